//! What clients may still write into an export: bytes are taken as they arrive,
//! from every session, and never given back while the server runs. Owns that
//! count; who writes asks it first.

use std::sync::atomic::{AtomicU64, Ordering};
use verbatim_proto::{Code, Fault};

/// The quota of one export.
#[derive(Debug)]
pub(crate) struct Quota {
    export: String,
    bytes_max: u64,
    left: AtomicU64,
}

impl Quota {
    pub fn new(export: &str, bytes_max: u64) -> Self {
        Self { export: export.into(), bytes_max, left: AtomicU64::new(bytes_max) }
    }

    /// Whether this many bytes would fit now; nothing is taken.
    pub fn check(&self, bytes: u64) -> Result<(), Fault> {
        let left = self.left.load(Ordering::Relaxed);
        if bytes <= left { Ok(()) } else { Err(self.over(bytes, left)) }
    }

    /// Takes this many bytes, or none.
    pub fn take(&self, bytes: u64) -> Result<(), Fault> {
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map(|_| ()).map_err(|left| self.over(bytes, left))
    }

    fn over(&self, bytes: u64, left: u64) -> Fault {
        let Self { export, bytes_max, .. } = self;
        let text = format!(
            "the quota of {export} is used up: {left} of {bytes_max} bytes are left, {bytes} are \
             needed; ask who runs the server to raise quota_mb"
        );
        Fault::new(Code::NoSpace, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_until_none_are_left() {
        let quota = Quota::new("in", 100);
        assert!(quota.check(100).is_ok() && quota.check(101).is_err());
        quota.take(60).unwrap();
        let fault = quota.take(41).unwrap_err();
        assert_eq!(fault.code, Code::NoSpace);
        assert!(fault.text.contains("40 of 100 bytes are left, 41 are needed"), "{fault}");
        quota.take(40).unwrap();
        assert!(quota.take(1).is_err() && quota.take(0).is_ok());
    }
}
