//! Why a command was not even begun, and what a command runs as: a future that a caller
//! may end.

use std::pin::Pin;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::model::report::hint_of;
use verbatim_proto::{Code, Fault};

/// Why a copy was not even begun.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The command makes no sense.
    #[error("{cause}")]
    Usage {
        /// What is wrong.
        cause: String,
        /// What to do.
        hint: Option<String>,
    },
    /// How it goes cannot be told where it is to be.
    #[error("{0}")]
    Status(Fault),
    /// There is no session.
    #[error("{0}")]
    Client(#[from] ClientError),
}

impl CopyError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::Status(fault) if fault.code == Code::NoSpace => {
                hint_of(fault.code).map(str::to_owned)
            }
            Self::Status(_) => {
                Some("give a --status-file in a folder that you may write to".into())
            }
            Self::Client(error) => error.hint(),
        }
    }
}

/// What ends a copy before its time, when it completes.
pub(crate) type Stop<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A copy, or a mirror, under way.
pub type Running<'a, T> = Pin<Box<dyn Future<Output = Result<T, CopyError>> + 'a>>;
