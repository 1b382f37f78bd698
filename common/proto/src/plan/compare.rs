//! How an entry of one tree differs from the entry of the same name in another.
//! The source's metadata is what the target may keep of it, so what differs here
//! is what a step would change; what its file system cannot keep is no difference.
//! Access times are kept by copies, and never compared: reading changes them.

use super::Options;
use crate::tree::{EntryKind, Node};
use crate::{Habits, Lacks, Meta};

/// Why something is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// It is not there.
    pub new: bool,
    /// Something of another kind is there.
    pub kind: bool,
    /// It has another size.
    pub size: bool,
    /// It has another time of last change.
    pub time: bool,
    /// It has another content: another digest, or a link that leads elsewhere.
    pub content: bool,
    /// It has other permission bits.
    pub mode: bool,
    /// It has another owner or group.
    pub owner: bool,
    /// It has other extended attributes, or another access control list.
    pub attributes: bool,
    /// It is, or is not, another name of a file that is there.
    pub link: bool,
    /// It is only at the target.
    pub gone: bool,
}

impl Why {
    /// Of something that is not there.
    pub const NEW: Self = Self::none(true, false, false);
    /// Of something in whose place something else is.
    pub const KIND: Self = Self::none(false, true, false);
    /// Of something that only the target has.
    pub const GONE: Self = Self::none(false, false, true);

    const fn none(new: bool, kind: bool, gone: bool) -> Self {
        Self {
            new,
            kind,
            gone,
            size: false,
            time: false,
            content: false,
            mode: false,
            owner: false,
            attributes: false,
            link: false,
        }
    }

    /// Whether there is no reason.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The reasons as words.
    pub fn words(&self) -> Vec<&'static str> {
        let all = [
            (self.new, "new"),
            (self.kind, "kind"),
            (self.size, "size"),
            (self.time, "time"),
            (self.content, "content"),
            (self.mode, "mode"),
            (self.owner, "owner"),
            (self.attributes, "attributes"),
            (self.link, "link"),
            (self.gone, "gone"),
        ];
        all.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect()
    }
}

/// How the metadata of something differs; of a link its owner and time alone.
pub(super) fn metadata(source: &Node, target: &Node, options: &Options) -> Why {
    let (is, was) = (&source.meta, &target.meta);
    let is_link = matches!(source.kind, EntryKind::Symlink { .. });
    let Habits { resolution, lacks } = &options.habits;
    Why {
        time: !resolution.is_kept(is.mtime_ns, was.mtime_ns),
        owner: (is.uid, is.gid) != (was.uid, was.gid),
        mode: !is_link && lacks.mode_of(is) != was.mode,
        attributes: !is_link && !same_attributes(is, was, lacks),
        ..Why::default()
    }
}

/// How the content of a file differs, as far as it is looked at.
pub(super) fn content(source: &Node, target: &Node, options: &Options) -> Why {
    let mut why = Why { size: source.size != target.size, ..Why::default() };
    if options.checksum {
        let same = source.digest.is_some() && source.digest == target.digest;
        why.content = !why.size && !same;
    } else {
        let (is, was) = (source.meta.mtime_ns, target.meta.mtime_ns);
        why.time = !options.habits.resolution.is_kept(is, was);
    }
    why
}

/// Attributes come in whatever order a file system has them.
fn same_attributes(source: &Meta, target: &Meta, lacks: &Lacks) -> bool {
    let mut is = source.xattrs.iter().filter(|xattr| !lacks.lacks(&xattr.name));
    let was = &target.xattrs;
    is.clone().count() == was.len() && is.all(|xattr| was.contains(xattr))
}
