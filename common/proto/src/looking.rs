//! What a client asks when it looks around: what is at some paths, and what is
//! below a folder. Plain values, carried by `Stat` and `Scan`; and what is told beside
//! the answers to whoever asked for that: whose it is, and which names are one file.

use crate::WirePath;
use serde::{Deserialize, Serialize};

/// What is at these paths?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Whether a link at the end of a path is followed.
    pub follow: bool,
    /// The paths, export first; `LOOK_PATHS_MAX` at most.
    pub paths: Vec<WirePath>,
}

/// A folder to list, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    /// The folder, or a single file; the empty path lists the exports.
    pub path: WirePath,
    /// Whether to go into the folders below.
    pub recursive: bool,
    /// Whether links are listed as what they lead to, and folders behind them are gone into.
    pub follow: bool,
    /// Whether folders and links come with their metadata, and the folder itself first.
    pub describe: bool,
    /// What is left out, and not gone into: patterns as `Excludes` reads them.
    pub exclude: Vec<Vec<u8>>,
}

/// Whose something is, and which names lead to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ties {
    /// The number of the owner.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
    /// How many names it has.
    pub names: u32,
    /// Of a file that has several: which one it is.
    pub twin: Option<Named>,
}

/// Which file a name of several leads to. Means the same in every session, unlike `Twin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Named {
    /// The same for all of its names, for as long as there is the file.
    pub file: u64,
    /// The version it has, as `FileInfo` tells it; none while a later write could hide.
    pub version: Option<u64>,
}
