//! Where the memory comes from that a connection takes for its peer: what it has not
//! read yet, and what has arrived of a long frame. Each connection has the first
//! `FREE_BYTES` of both for nothing; what is more is asked for, and given back when
//! it is dropped. Whoever makes the connection says who lends; a client lends itself
//! whatever it needs.

use crate::ControlError;
use std::sync::Arc;
use verbatim_proto::{Code, Fault};

/// What every connection has without asking, each way.
pub(crate) const FREE_BYTES: usize = 64 << 10;

/// Lends memory to a connection.
pub trait Budget: Send + Sync {
    /// Lends so many bytes until the loan is dropped, or none of them.
    fn lend(&self, bytes: usize) -> Option<Loan>;
}

/// Bytes that were lent; dropping it gives them back.
pub type Loan = Box<dyn Send + Sync>;

/// Who lends to a connection; nobody where its memory is not counted.
pub(crate) type Lender = Option<Arc<dyn Budget>>;

/// Asks for memory, for what the error names. Where there is nobody to ask there is enough.
pub(crate) fn borrow(lender: &Lender, bytes: usize, what: &str) -> Result<Loan, ControlError> {
    let Some(lender) = lender else { return Ok(Box::new(())) };
    lender.lend(bytes).ok_or_else(|| {
        let text = format!(
            "the server has no memory for {what}: this client, or all together, have what \
             limits.memory_mb allows"
        );
        ControlError::Refused(Fault::new(Code::Limit, text))
    })
}

/// Lends so many bytes in all; how many are left is in here.
#[cfg(test)]
pub(crate) mod tests {
    use super::{Budget, Loan};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Clone)]
    pub(crate) struct Purse(pub Arc<AtomicUsize>);

    impl Purse {
        pub fn of(bytes: usize) -> Self {
            Self(Arc::new(AtomicUsize::new(bytes)))
        }

        pub fn left(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    struct Lent(Purse, usize);

    impl Drop for Lent {
        fn drop(&mut self) {
            self.0.0.fetch_add(self.1, Ordering::Relaxed);
        }
    }

    impl Budget for Purse {
        fn lend(&self, bytes: usize) -> Option<Loan> {
            let less = |left: usize| left.checked_sub(bytes);
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
            Some(Box::new(Lent(self.clone(), bytes)))
        }
    }
}
