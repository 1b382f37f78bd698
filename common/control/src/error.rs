//! What can go wrong between a socket and a greeted session, in words for the
//! user. Owns every text of this crate that names a cause and its next step.
//! Never carries a token or a seed. `client` and `server` print it and ask for
//! the hint; the causes are already text, so no source is printed twice.

use crate::Fingerprint;
use rustls::AlertDescription;
use std::{fmt, io, path::PathBuf};
use verbatim_proto::{Class, Code, Fault, wire::WireError};

/// Why a control connection could not be made, kept or prepared for.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ControlError {
    /// No address of the peer took the connection.
    #[error("cannot connect to {peer}: {cause}")]
    CannotConnect {
        /// Host and port, as the user gave them.
        peer: String,
        /// What each address answered.
        cause: String,
    },
    /// The server is not, or not provably, the one that was meant.
    #[error("cannot trust {peer}: {because}")]
    NotTrusted {
        /// Host and port, as the user gave them.
        peer: String,
        /// What speaks against it.
        because: Distrust,
    },
    /// One side turned the session down, and said why.
    #[error("{0}")]
    Refused(Fault),
    /// The TLS handshake failed.
    #[error("cannot speak TLS with {peer}: {cause}")]
    Tls {
        /// The other end.
        peer: String,
        /// What TLS found wrong.
        cause: String,
    },
    /// The peer sent, or was about to be sent, something that is no frame.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The connection ended where it should not have.
    #[error("connection lost: {cause}")]
    Closed {
        /// How it ended.
        cause: String,
    },
    /// The server has no room for more who have not said who they are.
    #[error("connection lost: {peer} sent it away: too many come at once; try again")]
    SentAway {
        /// The server.
        peer: String,
    },
    /// A deadline passed.
    #[error("{what} took longer than {seconds} s")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long, in seconds.
        seconds: f64,
    },
    /// Something on this machine is in the way: a file, a mode, an address.
    #[error("{what}: {cause}")]
    Local {
        /// What was tried, on what.
        what: String,
        /// Why it failed.
        cause: String,
        /// What to do about it, where that is known.
        hint: Option<String>,
    },
}

impl ControlError {
    /// Returns what may be done about it.
    pub fn class(&self) -> Class {
        match self {
            Self::CannotConnect { .. }
            | Self::Closed { .. }
            | Self::SentAway { .. }
            | Self::TimedOut { .. } => Class::Retry,
            Self::Refused(fault) => fault.class(),
            Self::Tls { .. } | Self::Wire(_) => Class::Peer,
            Self::NotTrusted { .. } | Self::Local { .. } => Class::Local,
        }
    }

    /// Returns the next step, where there is one to suggest.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::CannotConnect { .. } => {
                let hint = "check the name, that rdma-serve runs there, and that no firewall is \
                            in between";
                Some(hint.into())
            }
            Self::NotTrusted { because, .. } => Some(because.hint()),
            Self::Refused(fault) => match fault.code {
                Code::NotAuthenticated => Some(
                    "use a key whose public half is in the server's authorized keys, a token \
                     that rdma-token made there, or a certificate of its client_ca"
                        .into(),
                ),
                Code::Version => Some("install the same release of verbatim on both ends".into()),
                _ => None,
            },
            Self::Tls { .. } | Self::Wire(_) => {
                Some("check that the port belongs to an rdma-serve".into())
            }
            Self::TimedOut { .. } => {
                Some("the peer may be overloaded or unreachable; try again, or wait longer".into())
            }
            Self::Local { hint, .. } => hint.clone(),
            Self::Closed { .. } | Self::SentAway { .. } => None,
        }
    }

    /// Suggests a next step where none is known yet.
    #[must_use]
    pub(crate) fn or_hint(mut self, other: &str) -> Self {
        if let Self::Local { hint, .. } = &mut self {
            hint.get_or_insert_with(|| other.into());
        }
        self
    }

    /// Makes a local error out of what the operating system said.
    pub(crate) fn local(what: impl Into<String>, error: &io::Error) -> Self {
        Self::Local { what: what.into(), cause: plain(error), hint: None }
    }

    /// Makes an error of a connection that broke under a read or a write.
    pub(crate) fn broken(error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(cause) = inner.and_then(not_taken) {
            let text = format!("the server does not take this side's certificate: {cause}");
            return Self::Refused(Fault::new(Code::NotAuthenticated, text));
        }
        let cause = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the peer went away without a goodbye".into(),
            _ => plain(error),
        };
        Self::Closed { cause }
    }
}

/// What speaks against a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// Nobody vouched for it.
    Unknown {
        /// What it presented.
        presented: Fingerprint,
    },
    /// Its certificate is not one that the user's authority vouches for.
    Certificate {
        /// What is wrong with it.
        cause: String,
    },
    /// It is not the one somebody vouched for.
    Differs {
        /// What it presented.
        presented: Fingerprint,
        /// What it should have presented.
        expected: Fingerprint,
        /// Who said so.
        voucher: Voucher,
    },
}

impl Distrust {
    fn hint(&self) -> String {
        match self {
            Self::Unknown { presented } => format!(
                "compare it with what the server printed at its start, then add \
                 --fingerprint {presented}, or --trust-on-first-use to remember it unseen"
            ),
            Self::Certificate { .. } => "check --ca, the name or address you call the server by, \
                                          and its certificate with openssl x509 -text"
                .into(),
            Self::Differs { voucher: Voucher::Given, .. } => {
                "compare the fingerprint with what the server printed at its start".into()
            }
            Self::Differs { voucher: Voucher::Door { path }, .. } => format!(
                "another server has this port now, or the old one did not stop cleanly: remove \
                 {}, or give --fingerprint",
                path.display()
            ),
            Self::Differs { voucher: Voucher::Known { path, line }, .. } => format!(
                "only if you know that the server was set up anew, remove line {line} of {}",
                path.display()
            ),
        }
    }
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { presented } => {
                write!(f, "it is not known here, and presents {presented}")
            }
            Self::Certificate { cause } => write!(f, "its certificate does not do: {cause}"),
            Self::Differs { presented, expected, voucher } => match voucher {
                Voucher::Given => write!(f, "it presents {presented}, not {expected} as given"),
                Voucher::Door { path } => {
                    write!(f, "it presents {presented}, not {expected} as in {}", path.display())
                }
                Voucher::Known { path, line } => write!(
                    f,
                    "ITS IDENTITY HAS CHANGED, somebody may be in the middle: it presents \
                     {presented}, not {expected} as in {} line {line}",
                    path.display()
                ),
            },
        }
    }
}

/// Who vouched for a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Voucher {
    /// The user, by flag or config.
    Given,
    /// The local door that a server of this user left.
    Door {
        /// Its file.
        path: PathBuf,
    },
    /// An earlier connection.
    Known {
        /// The file of known servers.
        path: PathBuf,
        /// The line, counted from one.
        line: usize,
    },
}

/// The operating system's own words: lower case, without Rust's "(os error n)".
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Says what the other end found wrong with our certificate, if that is what it says.
fn not_taken(error: &rustls::Error) -> Option<&'static str> {
    match error {
        rustls::Error::AlertReceived(alert) => match alert {
            // One that is not valid yet is told in the same words.
            AlertDescription::CertificateExpired => Some("it has expired, or is not valid yet"),
            AlertDescription::UnknownCA => Some("it is of another authority"),
            // Another authority of the same name.
            AlertDescription::DecryptError => Some("its signature is not right"),
            AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
                Some("it is not fit for a client")
            }
            AlertDescription::UnsupportedCertificate => Some("it is not made for clients"),
            _ => None,
        },
        _ => None,
    }
}
