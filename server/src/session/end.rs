//! Why a session is over: the client left, was refused, or its connection broke. Every activity
//! of a session may end it; the dispatcher tells the client.

use verbatim_control::ControlError;
use verbatim_proto::{Code, Fault};

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

/// Goes on where devices have let go of memory. Where one has not, its client can still reach it,
/// and only the end of the session, with every queue pair, helps. Its client may come back: a
/// device that failed is opened anew, or left for TCP.
pub(super) fn go_on_if(let_go: bool) -> Result<(), End> {
    let text = "the device does not let go of memory; see dmesg of the server";
    let_go.then_some(()).ok_or_else(|| End::refused(Code::LinkLost, text))
}

impl From<ControlError> for End {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Refused(fault) => Self::Refused(fault),
            error => Self::Lost(error),
        }
    }
}
