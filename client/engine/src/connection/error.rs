//! Why there is no session, or why it ended, and what that means for a copy:
//! each error has a code, and a hint for the user.

use crate::model::report::hint_of;
use verbatim_control::ControlError;
use verbatim_fabric::FabricError;
use verbatim_proto::{Code, Fault};

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server cannot be reached, trusted, or does not let this client in.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// No worker could be started, or RDMA was insisted on and cannot be used.
    #[error("{0}")]
    Fabric(#[from] FabricError),
    /// The server refused a request.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The session was ended before it answered.
    #[error("{peer} ended the session: {fault}")]
    Ended {
        /// The server.
        peer: String,
        /// Why.
        fault: Fault,
    },
}

impl ClientError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Control(error) => error.hint(),
            Self::Fabric(error) => error.hint().map(str::to_owned),
            Self::Fault(fault) => match fault.code {
                // What to do then is another thing for each command.
                Code::IsFolder | Code::BadPath => None,
                code => hint_of(code).map(str::to_owned),
            },
            Self::Ended { .. } => Some("run the same command again".into()),
        }
    }
}

/// What the end of a connection means for the copy.
pub fn fault_of(error: &ClientError) -> Fault {
    let code = match error {
        ClientError::Fault(fault) | ClientError::Ended { fault, .. } => fault.code,
        ClientError::Control(ControlError::Refused(fault)) => fault.code,
        ClientError::Control(ControlError::TimedOut { .. }) => Code::TimedOut,
        ClientError::Control(ControlError::Wire(_)) => Code::Protocol,
        ClientError::Control(_) => Code::LinkLost,
        ClientError::Fabric(_) => Code::Io,
    };
    Fault::new(code, error.to_string())
}
