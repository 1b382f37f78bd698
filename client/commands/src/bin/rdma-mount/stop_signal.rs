//! Signals that end a mount: those of every command, and SIGHUP, because a closed
//! terminal would leave a dead mount behind. A mount started by nohup ignores SIGHUP.

use crate::shared::exit::interrupt_signal;
use tokio::signal::unix::{SignalKind, signal};

/// Completes when a signal ends the mount. Signals are caught from this call on.
pub fn stop_signal() -> impl Future<Output = ()> {
    let interrupted = interrupt_signal();
    // Read first: a signal with a handler no longer counts as ignored.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hangup = (!ignores_hangup(&status)).then(|| signal(SignalKind::hangup()));
    async move {
        let hung_up = async {
            match hangup {
                Some(Ok(mut hangup)) => drop(hangup.recv().await),
                _ => std::future::pending().await,
            }
        };
        tokio::select! { () = interrupted => {}, () = hung_up => {} }
    }
}

/// Whether a process with this /proc status ignores SIGHUP, which is signal 1.
fn ignores_hangup(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_status_shows_whether_sighup_is_ignored() {
        let status = |mask: &str| format!("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(ignores_hangup(&status("0000000000001001")));
        assert!(!ignores_hangup(&status("0000000000001000")));
        assert!(!ignores_hangup(&status("none")) && !ignores_hangup(""));
    }
}
