//! What the writing machines are given and what they ask for: options,
//! effects, and the outcomes the drivers answer with. Plain values.

use crate::message::{
    CreateFile, FileId, Grant, LinkId, Piece, Spot, Tag, WriteReply, WriteRequest,
};
use crate::meta::Kept;
use crate::offer::Offer;
use crate::{Digest, Extent, Fault};
use std::time::Duration;

/// How a session writes.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// The unit of transfer and retry.
    pub chunk_bytes: u32,
    /// After how long without an answer a link, or the peer, is given up.
    pub timeout: Duration,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEffect {
    /// Send this.
    Send(WriteRequest),
    /// Read, hash and write a chunk; answer with `posted`.
    Post(Post),
    /// A range of a stream is stored, and its bytes are not needed again.
    Stored {
        /// The file.
        file: FileId,
        /// The range.
        extent: Extent,
    },
    /// Hash what the server already has of this file; answer with `hashed`.
    Hash {
        /// The file.
        file: FileId,
        /// The range.
        extent: Extent,
    },
    /// Hash zeros as this range of a file; answer with `zeros_hashed`.
    HashZeros {
        /// The file.
        file: FileId,
        /// The range.
        extent: Extent,
    },
    /// Look for holes of the source from here on; answer with `found`.
    FindHoles {
        /// The file.
        file: FileId,
        /// From where on.
        from: u64,
    },
    /// Hash a range of the source, to be offered; answer with `offer_hashed`.
    HashOffer {
        /// The file.
        file: FileId,
        /// The range.
        extent: Extent,
    },
    /// A range of the source is at the server, and was not sent.
    Taken {
        /// The file.
        file: FileId,
        /// The range.
        extent: Extent,
        /// Its digests, as they were offered.
        digests: Vec<Digest>,
    },
    /// Say whether the source is still what it was; answer with `source_checked`.
    CheckSource {
        /// The file.
        file: FileId,
        /// The digest of what was sent.
        root: Digest,
    },
    /// This link gave no answer in time: end it; answer with `link_down`.
    DropLink {
        /// The link.
        link: LinkId,
    },
    /// The source changed: look at it anew; answer with `create` for the same number.
    Restart {
        /// The file.
        file: FileId,
    },
    /// The file is under its final name, whole, durable and verified.
    Finished {
        /// The file.
        file: FileId,
        /// Its digest.
        root: Digest,
    },
    /// The file failed.
    Failed {
        /// The file.
        file: FileId,
        /// Why.
        fault: Fault,
    },
    /// The session cannot go on.
    Broken(Fault),
}

/// One chunk to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// Where to, and what to say.
    pub grant: Grant,
    /// What goes into it, one behind the other.
    pub pieces: Vec<(FileId, Extent)>,
    /// Whether some of it did not match before: send the very bytes that were hashed.
    pub again: bool,
}

/// How a chunk's writing ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is on its way, and will be notified; the digests of each piece.
    Sent(Vec<Vec<Digest>>),
    /// These pieces could not be read, so nothing was written.
    Unread(Vec<(usize, Fault)>),
    /// The link died first.
    LinkLost,
}

/// A slot of a link, numbered by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEffect {
    /// Send this.
    Send(WriteReply),
    /// Register this many slots for a link; answer with `provisioned`.
    Provision {
        /// The link.
        link: LinkId,
        /// How many.
        slots: u16,
    },
    /// Make temporary files; answer with `created`.
    Create(Vec<CreateFile>),
    /// Register a range of a file for writes of a link; answer with `spot_made`.
    MakeSpot {
        /// The link.
        link: LinkId,
        /// What is asked for.
        spot: Spot,
    },
    /// Nothing is to be written to this spot any more: take it back.
    EndSpot(Tag),
    /// A chunk will be notified: the driver may store it then and answer with `absorbed`, as
    /// long as the link lives, or else say `notified` and be asked to.
    Expect(Absorb),
    /// Copy a chunk out of its slot, verify, store; answer with `absorbed`.
    Absorb(Absorb),
    /// A stream is this long.
    Sized {
        /// The file.
        file: FileId,
        /// Its size.
        size: u64,
    },
    /// Make a range of a temporary file zeros, and hash zeros; answer with `zeroed`.
    Zero {
        /// The file.
        file: FileId,
        /// The range.
        extent: Extent,
    },
    /// Take what a file of ours has of a range; answer with `taken`.
    Take(Offer),
    /// Give these their metadata, make them durable, rename them; answer with `committed`.
    Commit(Vec<(FileId, Kept)>),
    /// Remove the temporary files of these.
    Discard(Vec<FileId>),
    /// Kill a link; answer with `killed`.
    Kill(LinkId),
    /// Nothing uses the slots of this dead link any more: free them.
    Free(LinkId),
    /// Tell the client that this link is dead.
    Fenced(LinkId),
    /// The client broke the protocol or a bound: end the session.
    Broken(Fault),
}

/// A chunk to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absorb {
    /// Its tag.
    pub tag: Tag,
    /// The link whose worker holds the slot.
    pub link: LinkId,
    /// The slot it is in.
    pub slot: SlotId,
    /// What must be in it, one behind the other.
    pub pieces: Vec<Piece>,
    /// It is in its file already, at the spot of this tag: take that back, then verify.
    pub in_place: bool,
}
