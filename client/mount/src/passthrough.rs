//! Whether complete files are read past this process, and why not. The kernel has to
//! have it, the daemon has to be privileged, and the file system under the cache has to
//! be one the kernel takes; what is refused once is not tried again.

use fuser::BackingId;
use std::io;
use std::sync::{Mutex, PoisonError};

/// What is known of it.
#[derive(Debug)]
pub struct Passthrough {
    wanted: bool,
    why_not: Mutex<Option<String>>,
}

impl Passthrough {
    /// Tried where it is wanted.
    pub fn new(wanted: bool) -> Self {
        let why_not = Mutex::new((!wanted).then(|| "it was not wanted".to_owned()));
        Self { wanted, why_not }
    }

    /// Whether it is to be tried.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// The kernel said whether it has it.
    pub(super) fn set_kernel_support(&self, has: bool) {
        if self.wanted && !has {
            self.disable("the kernel does not have it".into());
        }
    }

    /// Whether it may be tried.
    pub fn is_usable(&self) -> bool {
        self.why_not().is_none()
    }

    /// Why it is not used; none while it is.
    pub fn why_not(&self) -> Option<String> {
        self.why_not.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It was tried.
    pub(super) fn record_result(&self, tried: io::Result<BackingId>) -> Option<BackingId> {
        match tried {
            Ok(backing) => Some(backing),
            Err(error) => {
                let why = match error.raw_os_error() {
                    Some(EPERM) => "the daemon may not: it needs CAP_SYS_ADMIN".to_owned(),
                    Some(ELOOP) => "the cache is on a stacked file system".to_owned(),
                    _ => format!("the kernel refused: {error}"),
                };
                self.disable(why);
                None
            }
        }
    }

    fn disable(&self, why: String) {
        tracing::info!(why, "no passthrough");
        *self.why_not.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

const EPERM: i32 = 1;
const ELOOP: i32 = 40;
