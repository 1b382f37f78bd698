//! The errors of a command that did not start, each with a hint for the user, and the boxed futures
//! that commands run as.

use std::pin::Pin;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::model::report::hint_of;
use verbatim_proto::{Code, Fault};

/// Why a copy did not start.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The arguments make no sense.
    #[error("{cause}")]
    Usage {
        /// The cause.
        cause: String,
        /// The next step for the user.
        hint: Option<String>,
    },
    /// The status file cannot be written.
    #[error("{0}")]
    Status(Fault),
    /// The session failed.
    #[error("{0}")]
    Client(#[from] ClientError),
}

impl CopyError {
    /// The next step for the user.
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

/// Interrupts a copy when it completes.
pub(crate) type Stop<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A running copy or mirror.
pub type Running<'a, T> = Pin<Box<dyn Future<Output = Result<T, CopyError>> + 'a>>;
