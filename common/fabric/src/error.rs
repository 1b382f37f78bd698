//! Why a link or a registration failed. The drivers turn these into faults of
//! the protocol; this crate never prints them.

/// An error of the fabric. Link errors end their link; the drivers above open another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// The peer closed the link, or it was cut.
    #[error("peer closed the link")]
    Closed,
    /// This side ended the link; what was in flight is flushed.
    #[error("link was aborted")]
    Aborted,
    /// The peer named memory that is not registered, or a range outside it.
    #[error("remote access error: {0}")]
    Access(String),
    /// The peer sent what no peer may send.
    #[error("peer broke the link protocol: {0}")]
    Protocol(String),
    /// A system call failed.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system answered.
        cause: String,
    },
    /// An RDMA device, its library or its queue pair refused or failed.
    #[error("{what}: {cause}")]
    Device {
        /// What was tried, and on what.
        what: String,
        /// Why it failed.
        cause: String,
        /// What to do about it.
        hint: String,
    },
    /// A bound was reached.
    #[error("{0}")]
    Limit(String),
}

impl FabricError {
    /// Wraps an error of the operating system.
    pub fn system(what: &'static str, cause: impl std::fmt::Display) -> Self {
        let cause = cause.to_string();
        let cause = cause.split(" (os error").next().unwrap_or(&cause).to_owned();
        Self::System { what, cause }
    }

    /// A failure of an RDMA device, with what to do about it.
    pub fn device(
        what: impl Into<String>,
        cause: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::Device { what: what.into(), cause: cause.into(), hint: hint.into() }
    }

    /// The error and what to do about it, in one line.
    pub fn with_hint(&self) -> String {
        match self.hint() {
            Some(hint) => format!("{self}; {hint}"),
            None => self.to_string(),
        }
    }

    /// What to do about it, where there is something.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Device { hint, .. } => Some(hint),
            _ => None,
        }
    }
}
