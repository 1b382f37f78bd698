//! The specification of a mirror: trees, direction, options. Built by `sync`, read by the other
//! modules of the mirror.

use std::sync::Arc;
use verbatim_engine::connection::label::label_of;
use verbatim_engine::connection::ledger::ItemKey;
use verbatim_engine::model::delete_limit::DeleteLimit;
use verbatim_files::meta::{Kind, expected};
use verbatim_files::stage::Stage;
use verbatim_files::{Folder, Rules};
use verbatim_proto::chosen::Chosen;
use verbatim_proto::message::EntryKind;
use verbatim_proto::plan::{Options, Side};
use verbatim_proto::tree::Found;
use verbatim_proto::{Digest, Filter, Meta, Twin, WirePath};

/// A mirror to make.
#[derive(Clone)]
pub struct Mirror {
    /// The direction of the data.
    pub direction: Direction,
    /// The local tree; `None` for a missing target of a dry run.
    pub folder: Option<Arc<Folder>>,
    /// The tree on the server, export first.
    pub remote: WirePath,
    /// Whether the remote tree is missing; only in a dry run.
    pub remote_is_missing: bool,
    /// The source, as the user would name it.
    pub source: String,
    /// The target, as the user would name it.
    pub target: String,
    /// The options of the comparison.
    pub options: Options,
    /// Patterns to leave out on both sides.
    pub filter: Filter,
    /// The paths to compare, unless it is the whole tree.
    pub chosen: Option<Arc<Chosen>>,
    /// The target, if it may lie inside the source: it is left out.
    pub avoid: Option<Twin>,
    /// The limit of deletions.
    pub limit: DeleteLimit,
    /// The metadata that the receiving side can store.
    pub rules: Rules,
    /// Whether owners are translated by name.
    pub by_name: bool,
    /// The key by which the sessions of this run share the lock of the server.
    pub share: Option<Digest>,
    /// The staging tree of `--atomic`.
    pub atomic_target: Option<AtomicTarget>,
}

/// A staging tree that replaces its target when it is complete.
#[derive(Clone)]
pub enum AtomicTarget {
    /// A local staging tree.
    Local(Arc<Stage>),
    /// A remote staging tree, which the server builds.
    Remote {
        /// The target, export first.
        target: WirePath,
        /// The key of the sync, by which a later run resumes the tree.
        key: Digest,
    },
}

/// The direction of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A download: the server has the source.
    Down,
    /// An upload: this machine has the source.
    Up,
}

/// A mirror in progress, with the number of its piece of work.
pub(crate) struct Spec {
    pub number: u32,
    pub mirror: Mirror,
}

impl Spec {
    /// The ledger key of the entry at `path`.
    pub fn item(&self, path: &WirePath) -> ItemKey {
        ItemKey::new(self.number, path)
    }

    /// The label of an entry of the source.
    pub fn shown(&self, path: &WirePath) -> String {
        label_of(&self.mirror.source, path)
    }

    /// Whether the target is the root of an export.
    pub fn is_export(&self) -> bool {
        self.mirror.direction == Direction::Up && self.mirror.remote.parent().is_root()
    }

    pub fn side_of_remote(&self) -> Side {
        if self.mirror.direction == Direction::Down { Side::Source } else { Side::Target }
    }

    pub fn side_of_local(&self) -> Side {
        if self.mirror.direction == Direction::Down { Side::Target } else { Side::Source }
    }

    /// The metadata of a source entry that the target can store.
    pub fn settable_meta(&self, kind: &EntryKind, meta: Meta) -> Meta {
        let kind = match kind {
            EntryKind::File => Kind::File,
            EntryKind::Folder => Kind::Folder,
            EntryKind::Symlink { .. } => Kind::Link,
            EntryKind::Special => return meta,
        };
        let kept = expected(&meta, kind, &self.mirror.rules);
        match kind {
            // The attributes of a link are not compared; creating it counts those that cannot be
            // stored.
            Kind::Link => Meta { xattrs: meta.xattrs, ..kept },
            _ => kept,
        }
    }

    /// Ignores owners at a target where they cannot be set: folders may pass on their group.
    pub fn ignore_unsettable_owner(&self, found: &mut Found) {
        if let (Ok(node), false) = (found, self.mirror.rules.give_away) {
            (node.meta.uid, node.meta.gid) = self.mirror.rules.user;
        }
    }
}
