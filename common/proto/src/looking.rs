//! What a client asks when it looks around: what is at some paths, and what is
//! below a folder. Plain values, carried by `Stat` and `Scan`.

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
