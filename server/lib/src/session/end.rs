//! Why a session is over: the client left, was refused, or its connection broke. Every activity
//! of a session may end it; the dispatcher tells the client.

use verbatim_control::ControlError;
use verbatim_proto::{Code, Fault};
use verbatim_serve::rdma::registrations::check_released;

/// Why a session is over.
pub(crate) enum End {
    /// The client said goodbye, or hung up.
    Bye,
    /// It is refused any further.
    Refused(Fault),
    /// The connection broke.
    Lost(ControlError),
}

impl End {
    /// The end of a client that did what it must not do.
    pub fn refused(code: Code, text: impl Into<String>) -> Self {
        Self::Refused(Fault::new(code, text.into()))
    }
}

/// Goes on where devices have let go of memory; else the session ends.
pub(super) fn end_if_unreleased(let_go: bool) -> Result<(), End> {
    Ok(check_released(let_go)?)
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Refused(fault)
    }
}

impl From<ControlError> for End {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Refused(fault) => Self::Refused(fault),
            error => Self::Lost(error),
        }
    }
}
