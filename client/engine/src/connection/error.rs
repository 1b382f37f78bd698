//! Errors that prevent or end a session, each with a code for the copy and a hint for the user.
//! Owns neither sessions nor retries: `verbatim-client` decides those.

use crate::model::report::hint_of;
use verbatim_control::ControlError;
use verbatim_fabric::FabricError;
use verbatim_proto::{Code, Fault};

/// Why a session could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server cannot be reached, is not trusted, or rejects this client.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// No worker could be started, or the user requires RDMA and it does not work.
    #[error("{0}")]
    Fabric(#[from] FabricError),
    /// The server refused a request.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The session ended before the server answered.
    #[error("{peer} ended the session: {fault}")]
    Ended {
        /// The server.
        peer: String,
        /// Why it ended.
        fault: Fault,
    },
}

impl ClientError {
    /// The next step for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Control(error) => error.hint(),
            Self::Fabric(error) => error.hint().map(str::to_owned),
            Self::Fault(fault) => match fault.code {
                // The hint depends on the command.
                Code::IsFolder | Code::BadPath => None,
                code => hint_of(code).map(str::to_owned),
            },
            Self::Ended { .. } => Some("run the same command again".into()),
        }
    }
}

/// The fault of the copy that this error causes.
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
