//! Why a session ends: the client left, was refused, or its connection broke. Every activity of a
//! session may end it; the dispatcher tells the client why.

use verbatim_control::ControlError;
use verbatim_proto::{Code, Fault};
use verbatim_serve::rdma::registrations::check_released;

/// Why a session ends.
pub(crate) enum End {
    /// The client sent `Bye`, or closed its connection.
    Bye,
    /// The server refuses to serve the client further.
    Refused(Fault),
    /// The connection broke.
    Lost(ControlError),
}

impl End {
    /// Ends the session of a client that exceeded a limit or broke the protocol.
    pub fn refused(code: Code, text: impl Into<String>) -> Self {
        Self::Refused(Fault::new(code, text.into()))
    }
}

/// Ends the session if a device did not release memory: only the end of every queue pair revokes
/// it.
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
