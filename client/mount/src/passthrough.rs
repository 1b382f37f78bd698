//! FUSE passthrough: whether the kernel reads complete files without this process, and
//! why not. It needs kernel support, a privileged daemon, and a cache on a file system
//! that is not stacked. After one refusal it stays disabled.

use fuser::BackingId;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Whether passthrough is wanted, and why it is disabled.
#[derive(Debug)]
pub struct Passthrough {
    wanted: bool,
    why_not: Mutex<Option<String>>,
}

impl Passthrough {
    /// Enabled if the user wants it.
    pub fn new(wanted: bool) -> Self {
        let why_not = Mutex::new((!wanted).then(|| "it was not wanted".to_owned()));
        Self { wanted, why_not }
    }

    /// Whether the user wants it.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Disables passthrough if the kernel lacks it.
    pub(super) fn set_kernel_support(&self, has: bool) {
        if self.wanted && !has {
            self.disable("the kernel does not have it".into());
        }
    }

    /// Whether opens should try it.
    pub fn is_usable(&self) -> bool {
        self.why_not().is_none()
    }

    /// Why it is disabled; `None` while it is enabled.
    pub fn why_not(&self) -> Option<String> {
        self.why_not.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Handles the kernel's answer to an open with passthrough.
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
