//! What a mirror is asked for: which tree, which way, by which rules. Made by
//! `sync` and by whoever keeps a target current; read by the rest of the mirror.

use crate::model::delete_limit::DeleteLimit;
use crate::sync::chosen::Chosen;
use crate::transfer::remote_scan::label_of;
use std::sync::Arc;
use verbatim_files::stage::Stage;
use verbatim_files::{Folder, Rules};
use verbatim_proto::plan::Options;
use verbatim_proto::{Digest, Filter, Twin, WirePath};

/// A tree to make equal to another.
#[derive(Clone)]
pub struct Mirror {
    /// Which way.
    pub way: Way,
    /// The tree on this machine; none where it is a target that is missing, and nothing is
    /// written.
    pub folder: Option<Arc<Folder>>,
    /// The tree on the server, export first.
    pub remote: WirePath,
    /// Whether that is missing, and nothing is written.
    pub remote_is_missing: bool,
    /// How the user would name the source.
    pub source: String,
    /// How the user would name the target.
    pub target: String,
    /// What makes trees equal.
    pub options: Options,
    /// What is left out on both sides.
    pub filter: Filter,
    /// What alone is looked at, if not all of it.
    pub chosen: Option<Arc<Chosen>>,
    /// The target, where it may lie in the source: it is not copied into itself.
    pub avoid: Option<Twin>,
    /// How much may be deleted.
    pub limit: DeleteLimit,
    /// What the receiving side keeps of metadata.
    pub rules: Rules,
    /// Whether owners are those of the same name, not of the same number.
    pub by_name: bool,
    /// What the sessions of this run say, so that a target on a server is kept for it.
    pub share: Option<Digest>,
    /// The tree beside the target that is changed instead of it, if that is wanted.
    pub aside: Option<Aside>,
}

/// A tree that takes the place of its target when all of it is there.
#[derive(Clone)]
pub enum Aside {
    /// On this machine.
    Here(Arc<Stage>),
    /// On the server, which makes it for this target, of what this key stands for.
    There {
        /// The target, export first.
        target: WirePath,
        /// What is copied there, and how.
        key: Digest,
    },
}

/// Which way a mirror goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The server has the source.
    Down,
    /// This machine has the source.
    Up,
}

impl Mirror {
    /// Something of the source, as the user would name it.
    pub(crate) fn shown(&self, path: &WirePath) -> String {
        label_of(&self.source, path)
    }
}
