//! The metrics of a server and its last errors, reported by sessions and the accept path. Both
//! are bounded, and reporting never blocks. Knows no session.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use verbatim_proto::{Class as FaultClass, Code, Fault};
use verbatim_telemetry::labels::Class;
use verbatim_telemetry::serve::ServeMetrics;

/// Errors kept for the status page.
pub(super) const RECENT_ERRORS_MAX: usize = 50;

/// Metrics and the last errors.
pub(crate) struct Counters {
    pub metrics: ServeMetrics,
    pub(super) recent_errors: Mutex<VecDeque<RecentError>>,
}

/// An error as the status page shows it.
#[derive(Clone, Debug)]
pub(crate) struct RecentError {
    pub at: SystemTime,
    pub text: String,
    pub hint: Option<String>,
    pub peer: Option<SocketAddr>,
    pub session: Option<u64>,
}

impl Counters {
    /// Zero counts and no errors.
    pub(super) fn new() -> Self {
        let metrics = ServeMetrics::new(env!("CARGO_PKG_VERSION"));
        Self { metrics, recent_errors: Mutex::default() }
    }

    /// Counts an error, and keeps it for the status page.
    pub(super) fn record(&self, peer: Option<SocketAddr>, session: Option<u64>, fault: &Fault) {
        self.count(fault);
        let hint = hint_of(fault.code).map(str::to_owned);
        let at = SystemTime::now();
        let mut recent_errors = lock(&self.recent_errors);
        recent_errors.truncate(RECENT_ERRORS_MAX - 1);
        recent_errors.push_front(RecentError { at, text: fault.text.clone(), hint, peer, session });
    }

    pub(super) fn count(&self, fault: &Fault) {
        self.metrics.failed(class_of(fault.class()));
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds since 1970.
pub(super) fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn class_of(class: FaultClass) -> Class {
    match class {
        FaultClass::Retry => Class::Retry,
        FaultClass::Peer => Class::Peer,
        FaultClass::Local => Class::Local,
        FaultClass::Bug => Class::Bug,
    }
}

/// The hint for an operator about a fault that a client received.
pub(crate) fn hint_of(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::NotFound => "the client named what is not here; rdma-cp --list HOST:/ lists exports",
        Code::Denied => {
            "see the owner and mode of the path, and for RDMA ports the gids of its export"
        }
        Code::ReadOnly => "export it with :rw, or mount it rw, if clients may write there",
        Code::NoSpace => {
            "make room in the file system of the export, or raise its quota_mb or quota_files"
        }
        Code::Changed => "somebody writes to the file while it is read; export a snapshot",
        Code::Mismatch => "memory, disk or cable alters data: check ECC, SMART and port errors",
        Code::Io => "see the kernel's log for the disk or network of this export",
        Code::Limit => "a bound was reached; those that can be raised are in [limits] and [rdma]",
        Code::Version => "use a client of the same release",
        Code::NotAuthenticated => {
            "if it may come in, make it a token with rdma-token add, or authorize its key"
        }
        Code::LinkLost => "the network or the client went away; it will go on",
        Code::TimedOut => "the client was silent, or kept what others wait for; it may come back",
        Code::BadPath => "links that lead out of an export are not followed",
        _ => return None,
    })
}
