//! The messages of mirroring: looking at a tree in full, holding a target, and
//! the changes that are neither a copy nor a new folder. Plain values, carried by
//! `ClientMessage::Mirror` and `ServerMessage::Mirror`.

use crate::meta::{Keeps, Meta};
use crate::owners::{Owner, OwnerName};
use crate::tree::{Found, Twin};
use crate::{Changes, Digest, Fault, Habits, WirePath};
use serde::{Deserialize, Serialize};

/// The version from which on a server knows `WalkPlain`.
pub const PLAIN_VERSION: usize = 2;

/// The version from which on a server knows `WalkUnless`.
pub const ALIKE_VERSION: usize = 3;

/// The version from which on a server knows `HabitsOf`.
pub const HABITS_VERSION: usize = 4;

/// A client asks about a tree, or changes one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MirrorRequest {
    /// What kind of place is this?
    Begin {
        /// Comes back in the answer.
        request: u32,
        /// The folder, export first.
        path: WirePath,
        /// Whether it is the target of changes: then it is made where it is missing, and held
        /// until the session ends, so that two mirrors do not fight over it.
        hold: bool,
    },
    /// Tell all of a tree, in the order of a sorted walk.
    Walk {
        /// Comes back with every page.
        request: u32,
        /// The tree, and how.
        walk: TreeScan,
    },
    /// One more page of a walk.
    WalkMore {
        /// Which walk.
        request: u32,
    },
    /// Do these, in this order, behind all that was to be made before.
    Edit {
        /// Comes back in the answer.
        request: u32,
        /// What to do.
        edits: Vec<Edit>,
    },
    /// Tell only some of a tree, in the same way: what changed, and the folders it is in.
    WalkOnly {
        /// Comes back with every page.
        request: u32,
        /// The tree, and how.
        walk: TreeScan,
        /// What changed; `CHANGES_MAX` at most.
        only: Changes,
    },
    /// Build a tree beside this folder, with all that is in it, and hold both until it is published
    /// or the session ends. Whoever asks again with the same key goes on with the same tree.
    Stage {
        /// Comes back in the answer.
        request: u32,
        /// The folder, export first; it may be missing.
        path: WirePath,
        /// What is copied there, and how.
        key: Digest,
    },
    /// Put the tree that was built beside this folder in its place, at once.
    Publish {
        /// Comes back in the answer.
        request: u32,
        /// The folder, export first.
        path: WirePath,
        /// Whether they differ; where they do not, the tree is removed.
        changed: bool,
    },
    /// What are these accounts called there?
    NamesOf {
        /// Comes back in the answer.
        request: u32,
        /// The accounts; `OWNERS_MAX` at most.
        owners: Vec<Owner>,
    },
    /// Which numbers do accounts of these names have there?
    NumbersOf {
        /// Comes back in the answer.
        request: u32,
        /// The names; `OWNERS_MAX` at most.
        names: Vec<OwnerName>,
    },
    /// This session is one of a run: a target that it holds when it ends is kept for the others
    /// that said the same, as long as one of them is there. Nothing is answered.
    Share {
        /// What the run calls itself.
        key: Digest,
    },
    /// As `Walk`, but files come without their extended attributes: the target is empty, so that
    /// there is nothing to compare them with.
    /// Only for those of `PLAIN_VERSION`.
    WalkPlain {
        /// Comes back with every page.
        request: u32,
        /// The tree, and how.
        walk: TreeScan,
    },
    /// As `WalkMore`, but a page that has this digest is known, and need not be told.
    /// Only for those of `ALIKE_VERSION`.
    WalkUnless {
        /// Which walk.
        request: u32,
        /// The page that is known, as `alike::digest_of` says it.
        alike: Digest,
        /// Whether owners are compared.
        owners: bool,
    },
    /// What of metadata can be kept there?
    /// Only for those of `HABITS_VERSION`.
    HabitsOf {
        /// Comes back in the answer.
        request: u32,
        /// The folder, export first, or something in it.
        path: WirePath,
        /// Whether times may be tried, with a file that is gone when it is answered. Else they are
        /// guessed by what is there.
        tries: bool,
    },
}

/// A tree to tell, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeScan {
    /// Its root, export first.
    pub path: WirePath,
    /// What is left out, and not gone into: rules as `Filter` reads them.
    pub filter: Vec<Vec<u8>>,
    /// Whether files come with the digests of their content.
    pub digests: bool,
    /// A folder that is not gone into, because it is the target.
    pub avoid: Option<Twin>,
}

/// A change of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Edit {
    /// Give a file another name, in place of what has it and is no folder.
    Link {
        /// The name, export first.
        path: WirePath,
        /// A name it has, in the same export.
        to: WirePath,
    },
    /// Give a file or folder this metadata.
    Describe {
        /// Where it is, export first.
        path: WirePath,
        /// What it gets.
        meta: Box<Meta>,
    },
    /// Remove something; a folder only if it is empty.
    Remove {
        /// Where it is, export first.
        path: WirePath,
        /// Whether it is a folder.
        is_folder: bool,
    },
    /// Remove what a copy that was cut short left, unless somebody goes on with it. In a tree that
    /// is built beside a target, anything else becomes what the target has there, if anything.
    Sweep {
        /// Where it is, export first.
        path: WirePath,
    },
    /// Make a file that may share its content and metadata with another one its own, and give
    /// it this metadata: both, or nothing, so that the other one keeps what it has.
    Own {
        /// Where it is, export first.
        path: WirePath,
        /// The metadata.
        meta: Box<Meta>,
    },
}

/// The server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MirrorReply {
    /// The answer to `Begin`.
    Begun {
        /// Which request.
        request: u32,
        /// What kind of place it is.
        answer: Result<About, Fault>,
    },
    /// A page of a walk.
    Walked {
        /// Which walk.
        request: u32,
        /// What was found, paths relative to the root.
        found: Vec<Found>,
        /// What copies that were cut short left, and is told nowhere else.
        leftovers: Vec<WirePath>,
        /// Whether this was the last page.
        done: bool,
    },
    /// The answer to `Edit`, in the same order.
    Changed {
        /// Which request.
        request: u32,
        /// One answer per change.
        answers: Vec<Result<(), Fault>>,
    },
    /// The answer to `Stage`.
    Staged {
        /// Which request.
        request: u32,
        /// Where it is built.
        answer: Result<Staged, Fault>,
    },
    /// The answer to `Publish`.
    Published {
        /// Which request.
        request: u32,
        /// Whether it is in place.
        answer: Result<(), Fault>,
    },
    /// The answer to `NamesOf`, in the same order; none where there is no such account.
    Names {
        /// Which request.
        request: u32,
        /// The names.
        names: Vec<Option<String>>,
    },
    /// The answer to `NumbersOf`, in the same order; none where there is no such account.
    Numbers {
        /// Which request.
        request: u32,
        /// The numbers.
        numbers: Vec<Option<u32>>,
    },
    /// The answer to `WalkUnless` where the page is the one that is known, and no leftovers.
    Alike {
        /// Which walk.
        request: u32,
        /// Whether this was the last page.
        done: bool,
    },
    /// The answer to `HabitsOf`.
    Habits {
        /// Which request.
        request: u32,
        /// What can be kept, as far as that could be found out.
        habits: Habits,
    },
}

/// A tree that is built beside its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    /// What kind of place the target is.
    pub about: About,
    /// Where the tree is, export first.
    pub path: WirePath,
}

/// What kind of place a folder is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Which run of which machine this is: two that say the same share their files.
    #[serde(with = "serde_bytes")]
    pub boot: Vec<u8>,
    /// Which folder it is there; none where it is missing.
    pub root: Option<Twin>,
    /// The folders it is in, the nearest first; `ABOVE_MAX` at most.
    pub above: Vec<Twin>,
    /// What of metadata is kept in it.
    pub keeps: Keeps,
    /// Whether it takes names that differ only in case for one.
    pub folds_case: bool,
}

/// How many folders above one are told.
pub const ABOVE_MAX: usize = 64;

impl Edit {
    /// Where it is done.
    pub fn path(&self) -> &WirePath {
        match self {
            Self::Link { path, .. }
            | Self::Describe { path, .. }
            | Self::Remove { path, .. }
            | Self::Sweep { path }
            | Self::Own { path, .. } => path,
        }
    }

    /// About how many bytes it takes in a message.
    pub fn weight(&self) -> usize {
        let more = match self {
            Self::Link { to, .. } => to.as_bytes().len(),
            Self::Describe { meta, .. } | Self::Own { meta, .. } => meta.weight(),
            Self::Remove { .. } | Self::Sweep { .. } => 0,
        };
        self.path().as_bytes().len() + more + 8
    }
}
