//! Errors of the configuration, of an export and of a user, each with a hint. The other files
//! of `config` return it, and so does the sandbox. Prints nothing.

use std::path::PathBuf;

/// An error in a configuration or an export.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{text}")]
    Unreadable {
        /// Which file, and why.
        text: String,
    },
    /// The file is not TOML, or a value has the wrong type.
    #[error("{origin}: line {line}: {text}")]
    BadToml {
        /// The file.
        origin: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        text: String,
    },
    /// There is nothing to serve.
    #[error("nothing to export")]
    NoExports,
    /// The server cannot be another user.
    #[error("cannot run as {user}: {why}")]
    User {
        /// Who it should be.
        user: String,
        /// Why not.
        why: String,
    },
    /// There is no such key.
    #[error("{origin}: unknown key \"{key}\"")]
    UnknownKey {
        /// The file.
        origin: String,
        /// The key, with its table.
        key: String,
        /// A known key that looks like it.
        nearest: Option<String>,
    },
    /// A value is not one of those the key may have.
    #[error("{origin}: {key} = {value} is out of range: it must be {range}; default: {default}")]
    OutOfRange {
        /// The file.
        origin: String,
        /// The key, with its table.
        key: String,
        /// The value, as TOML.
        value: String,
        /// The values it may have.
        range: String,
        /// The one it has where none is set, as TOML.
        default: String,
    },
    /// An export has a bad name or a bad path.
    #[error("bad export \"{export}\": {why}")]
    BadExport {
        /// The export as it was written.
        export: String,
        /// What is wrong with it.
        why: String,
        /// What to do about it.
        hint: String,
    },
    /// Two exports have one name.
    #[error("two exports have the name \"{name}\": {} and {}", first.display(), second.display())]
    DuplicateExport {
        /// The name.
        name: String,
        /// The folder that has it.
        first: PathBuf,
        /// The folder that wants it.
        second: PathBuf,
    },
    /// The path of an export is not a folder, or is not there.
    #[error("{text}")]
    NotExportable {
        /// Which export, and why.
        text: String,
        /// What to do about it.
        hint: String,
    },
}

impl ConfigError {
    /// The error of a process that cannot become this user.
    pub(crate) fn cannot_run_as(user: &str, why: &str) -> Self {
        let why = why.to_owned();
        Self::User { user: user.to_owned(), why }
    }

    /// What the user may do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unreadable { .. } => Some("give another file with --config".into()),
            Self::NoExports => Some("give a folder: rdma-serve PATH, or an [[export]]".into()),
            // Looked for by who wants an open server, and not to be had by a slip.
            Self::UnknownKey { key, .. } if key.contains("auth") && key.contains("require") => {
                Some("clients always prove a key, unless insecure_no_auth lets in anybody".into())
            }
            Self::UnknownKey { nearest: Some(key), .. } => Some(format!("did you mean \"{key}\"?")),
            Self::UnknownKey { .. } => Some("configs/rdma-serve.toml shows every key".into()),
            Self::BadExport { hint, .. } | Self::NotExportable { hint, .. } => Some(hint.clone()),
            Self::DuplicateExport { .. } => {
                Some("give one of them another name, as NAME=PATH".into())
            }
            Self::User { .. } => Some(
                "start it as root, name a user of this machine, and set keep_chown where an \
                     export's owner is \"client\"; or leave the user out"
                    .into(),
            ),
            Self::BadToml { .. } | Self::OutOfRange { .. } => None,
        }
    }
}
