//! What a mirror is asked for: which tree, which way, by which rules. Made by
//! `sync` and by whoever keeps a target current; read by the rest of the mirror.

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

/// A tree to make equal to another.
#[derive(Clone)]
pub struct Mirror {
    /// Which way.
    pub direction: Direction,
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
    pub atomic_target: Option<AtomicTarget>,
}

/// A tree that takes the place of its target when all of it is there.
#[derive(Clone)]
pub enum AtomicTarget {
    /// On this machine.
    Local(Arc<Stage>),
    /// On the server, which makes it for this target, of what this key stands for.
    Remote {
        /// The target, export first.
        target: WirePath,
        /// What is copied there, and how.
        key: Digest,
    },
}

/// Which way a mirror goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The server has the source.
    Down,
    /// This machine has the source.
    Up,
}

/// A mirror under way: what it was asked for, and which work of its session it is.
pub(crate) struct Spec {
    pub number: u32,
    pub mirror: Mirror,
}

impl Spec {
    /// What something at `path` is in the ledger.
    pub fn item(&self, path: &WirePath) -> ItemKey {
        ItemKey::new(self.number, path)
    }

    /// Something of the source, as the user would name it.
    pub fn shown(&self, path: &WirePath) -> String {
        label_of(&self.mirror.source, path)
    }

    /// Whether the target is an export itself.
    pub fn is_export(&self) -> bool {
        self.mirror.direction == Direction::Up && self.mirror.remote.parent().is_root()
    }

    pub fn side_of_remote(&self) -> Side {
        if self.mirror.direction == Direction::Down { Side::Source } else { Side::Target }
    }

    pub fn side_of_local(&self) -> Side {
        if self.mirror.direction == Direction::Down { Side::Target } else { Side::Source }
    }

    /// What the target may keep of the metadata of an entry of the source.
    pub fn settable_meta(&self, kind: &EntryKind, meta: Meta) -> Meta {
        let kind = match kind {
            EntryKind::File => Kind::File,
            EntryKind::Folder => Kind::Folder,
            EntryKind::Symlink { .. } => Kind::Link,
            EntryKind::Special => return meta,
        };
        let kept = expected(&meta, kind, &self.mirror.rules);
        match kind {
            // They are not compared, and whoever makes the link counts them as not kept.
            Kind::Link => Meta { xattrs: meta.xattrs, ..kept },
            _ => kept,
        }
    }

    /// Where owners cannot be set none is wrong: a folder may hand down its group.
    pub fn ignore_unsettable_owner(&self, found: &mut Found) {
        if let (Ok(node), false) = (found, self.mirror.rules.give_away) {
            (node.meta.uid, node.meta.gid) = self.mirror.rules.user;
        }
    }
}
