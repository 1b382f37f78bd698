//! A finding: what is, what should be, why it matters, and what mends it. Plain
//! data, made by checks, shown by whoever asked.

use serde::Serialize;

/// How much it matters; the worst of all findings is how a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know; nothing is lost by it.
    Note,
    /// Data moves slower than it could, or over less than there is.
    Limits,
    /// RDMA cannot be used because of it.
    Blocks,
}

impl Severity {
    /// Every value there is.
    pub const ALL: [Self; 3] = [Self::Note, Self::Limits, Self::Blocks];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Limits => "limits",
            Self::Blocks => "blocks",
        }
    }
}

/// What mends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fix {
    /// A command of the shell that does.
    Run(String),
    /// A line in a file, and what has to be done for it to count.
    Line {
        /// The file.
        file: String,
        /// What it should say.
        line: String,
        /// What makes it count: a restart, a new login.
        then: String,
    },
    /// Something only a person can do.
    Person(String),
}

impl std::fmt::Display for Fix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run(command) => write!(f, "run: {command}"),
            Self::Line { file, line, then } => write!(f, "in {file}: {line}; then {then}"),
            Self::Person(what) => f.write_str(what),
        }
    }
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which check found it: a short word that does not change.
    pub check: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What it is about: `mlx5_0/1`, `memlock`, a path.
    pub about: String,
    /// What is.
    pub is: String,
    /// What should be.
    pub should: String,
    /// Why that matters.
    pub why: String,
    /// What mends it.
    pub fix: Fix,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; it should be: {}", self.about, self.is, self.should)
    }
}
