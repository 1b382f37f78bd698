//! What went wrong, as it crosses the wire and as the user is told. The code
//! says what, the class says what may be done about it, the text says on what.

use crate::text::cleaned;
use serde::{Deserialize, Deserializer, Serialize};

/// What may be done about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The same request may succeed later or on another path.
    Retry,
    /// The peer must change something, or is misbehaving.
    Peer,
    /// This side must change something.
    Local,
    /// Only a bug gets here.
    Bug,
}

/// What went wrong. The numbers are the protocol: append, never reorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Code {
    /// No such file, folder or export.
    NotFound,
    /// The other side's user may not do this.
    Denied,
    /// The path leaves its export, or is not a path.
    BadPath,
    /// A folder where a file was needed.
    IsFolder,
    /// Something else where a folder was needed.
    NotFolder,
    /// A fifo, socket or device.
    Special,
    /// The export is read-only.
    ReadOnly,
    /// No space, quota exceeded, or file too large for the file system.
    NoSpace,
    /// The file changed while it was copied.
    Changed,
    /// A digest did not match, and retries did not help.
    Mismatch,
    /// A system call failed for another reason.
    Io,
    /// A bound of the server or of the protocol was reached.
    Limit,
    /// The peer broke the protocol.
    Protocol,
    /// No common protocol version.
    Version,
    /// Not authenticated, or the key is not known.
    NotAuthenticated,
    /// The link died under the operation.
    LinkLost,
    /// A deadline passed.
    TimedOut,
    /// The peer is stopping.
    Stopping,
    /// The user interrupted it.
    Interrupted,
    /// Something happened that only a bug can make happen.
    Bug,
    /// Something has the name that may not be replaced. Said only of what is not to replace
    /// anything: over the wire, to who sent `ReplaceNothing`.
    Exists,
}

impl Code {
    /// What may be done about a fault with this code.
    pub fn class(self) -> Class {
        match self {
            Self::Changed | Self::LinkLost | Self::TimedOut | Self::Stopping => Class::Retry,
            Self::NotFound | Self::Denied | Self::IsFolder | Self::NotFolder | Self::Special => {
                Class::Peer
            }
            Self::ReadOnly | Self::NoSpace | Self::Io | Self::Limit | Self::Mismatch => Class::Peer,
            Self::Protocol | Self::Version | Self::NotAuthenticated => Class::Peer,
            Self::BadPath | Self::Interrupted | Self::Exists => Class::Local,
            Self::Bug => Class::Bug,
        }
    }
}

/// One thing that went wrong, with the text the user is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// What went wrong.
    pub code: Code,
    /// On what and why: lower case, no final stop.
    #[serde(deserialize_with = "heard")]
    pub text: String,
}

impl Fault {
    /// A fault with this code and text.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: shortened(text.into()) }
    }

    /// What may be done about it.
    pub fn class(&self) -> Class {
        self.code.class()
    }

    /// Turns an error of the operating system into a fault; `what` says what was tried on what.
    pub fn from_io(what: impl std::fmt::Display, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Kind;
        let code = match error.kind() {
            Kind::NotFound => Code::NotFound,
            Kind::PermissionDenied => Code::Denied,
            Kind::IsADirectory => Code::IsFolder,
            Kind::NotADirectory => Code::NotFolder,
            Kind::ReadOnlyFilesystem => Code::ReadOnly,
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Code::NoSpace,
            Kind::TimedOut => Code::TimedOut,
            Kind::InvalidFilename => Code::BadPath,
            // ELOOP of openat2 and EXDEV: the path would leave its export.
            Kind::CrossesDevices => Code::BadPath,
            _ => Code::Io,
        };
        Self::new(code, format!("{what}: {}", plain(error)))
    }
}

/// The longest text in bytes; a path of any length may be in it, and a frame has a bound.
const TEXT_BYTES_MAX: usize = 1024;

/// Reads the text of a peer: as short as ours, and harmless.
fn heard<'de, D: Deserializer<'de>>(message: D) -> Result<String, D::Error> {
    Ok(shortened(cleaned(message)?))
}

/// Takes what is too much out of the middle: what was tried is in front, the cause at the end.
fn shortened(text: String) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text;
    }
    let half = TEXT_BYTES_MAX / 2 - 2;
    let head = text.floor_char_boundary(half);
    let tail = text.ceil_char_boundary(text.len() - half);
    format!("{}...{}", &text[..head], &text[tail..])
}

/// The operating system's own words, without Rust's "(os error n)".
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_error_keeps_its_cause_and_loses_its_number() {
        let error = std::io::Error::from_raw_os_error(13);
        let fault = Fault::from_io("cannot open data/a.bin", &error);
        assert_eq!(fault.code, Code::Denied);
        assert_eq!(fault.to_string(), "cannot open data/a.bin: permission denied");
    }

    #[test]
    fn a_long_path_leaves_room_for_the_cause() {
        let what = format!("cannot open {}", "\u{e9}/".repeat(4000));
        let fault = Fault::from_io(what, &std::io::Error::from_raw_os_error(13));
        assert!(fault.text.starts_with("cannot open \u{e9}/"), "{fault}");
        assert!(fault.text.ends_with("/: permission denied"), "{fault}");
        assert!(fault.text.len() <= TEXT_BYTES_MAX, "{}", fault.text.len());
    }
}
