//! The messages of the control connection. One TLS session carries them in order;
//! data never does. Every list has a bound in `units`, checked by the machine that
//! takes it. Append variants; the golden bytes in `tests/golden.rs` keep the old.

pub use crate::entry::{Entry, EntryKind, NewEntry};
pub use crate::greeting::{Hello, Proof, Welcome};
pub use crate::holes::{Holes, WindowHoles};
pub use crate::ids::{FileId, LinkId, Region, Tag, WindowId};
pub use crate::info::{CreateFile, FileInfo, REHASHED_VERSION};
use crate::meta::{Dropped, Kept};
pub use crate::mirror::{MirrorReply, MirrorRequest};
pub use crate::offer::{Offer, Taken};
pub use crate::piece::Piece;
use crate::probing::{ProbeRequest, Probed};
pub use crate::rails::{JoinSecret, LinkAnswer, LinkOffer, RailAnswer, SealedAnswer, WindowRails};
pub use crate::spots::{Spot, SpotReply, SpotRequest};
use crate::{Digest, Extent, Fault, Look, Scan, Ties, WatchReply, WatchRequest, WirePath};
use serde::{Deserialize, Serialize};

/// The protocol versions this build speaks, newest first, as offered in ALPN; the last is 1.
pub const VERSIONS: &[&[u8]] =
    &[b"verbatim/5", b"verbatim/4", b"verbatim/3", b"verbatim/2", b"verbatim/1"];

/// From this version on a server knows `TellTies`.
pub const TIES_VERSION: usize = 2;

/// From this version on a server knows `ReplaceNothing`.
pub const REPLACE_NOTHING_VERSION: usize = 4;

/// What a client says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientMessage {
    /// The first message: who I am, and what I would like.
    Hello(Hello),
    /// Make a link.
    Attach {
        /// Its name.
        link: LinkId,
        /// Over what, with this side's half of the address.
        offer: LinkOffer,
    },
    /// This link failed: kill it, tell me when a late write can find nothing.
    Fence {
        /// The link.
        link: LinkId,
    },
    /// What is at these paths?
    Stat {
        /// Comes back in the answer.
        request: u32,
        /// The paths, and how.
        look: Look,
    },
    /// List a folder; the empty path lists the exports.
    Scan {
        /// Comes back with every page.
        request: u32,
        /// The folder, and how.
        scan: Scan,
    },
    /// One more page of a scan.
    ScanMore {
        /// Which scan.
        request: u32,
    },
    /// Make folders and symbolic links, in this order.
    Make {
        /// Comes back in the answer.
        request: u32,
        /// What to make.
        entries: Vec<NewEntry>,
    },
    /// To the read machine.
    Read(ReadRequest),
    /// To the write machine.
    Write(WriteRequest),
    /// I am done; end the session.
    Bye,
    /// About folders that are watched.
    Watch(WatchRequest),
    /// About trees that are mirrored.
    Mirror(MirrorRequest),
    /// Lend me memory to try links with.
    Probe(ProbeRequest),
    /// From now on say with every `Stated` and `Page` whose the entries are. Nothing is answered.
    TellTies,
    /// From now on no file or link takes the place of anything: who comes too late hears
    /// `Code::Exists`. Nothing is answered.
    ReplaceNothing,
    /// From now on say with `Created` what was hashed again for it. Nothing is answered.
    TellRehashed,
}

/// What a server says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerMessage {
    /// The answer to `Hello`.
    Welcome(Welcome),
    /// The session is refused or ended, and why.
    Refused(Fault),
    /// The answer to `Attach`.
    Attached {
        /// Which link.
        link: LinkId,
        /// The server's half of the address.
        answer: Result<LinkAnswer, Fault>,
    },
    /// The link is dead, and nothing it carried can land any more.
    Fenced {
        /// The link.
        link: LinkId,
    },
    /// The answer to `Stat`, in the same order.
    Stated {
        /// Which request.
        request: u32,
        /// What is there; the entries have no path.
        answers: Vec<Result<Entry, Fault>>,
    },
    /// A page of a scan.
    Page {
        /// Which scan.
        request: u32,
        /// The entries, paths relative to the folder asked for.
        entries: Vec<Entry>,
        /// Folders that could not be read.
        faults: Vec<(WirePath, Fault)>,
        /// Whether this was the last page.
        done: bool,
    },
    /// The answer to `Make`, in the same order.
    Made {
        /// Which request.
        request: u32,
        /// One answer per entry.
        answers: Vec<Result<(), Fault>>,
    },
    /// From the read machine.
    Read(ReadReply),
    /// From the write machine.
    Write(WriteReply),
    /// Still at work on what was asked: hashing, flushing. Sent every few seconds meanwhile.
    Working,
    /// What of the metadata was not kept since this was last said.
    Dropped(Dropped),
    /// What changed in folders that are watched.
    Watch(WatchReply),
    /// About trees that are mirrored.
    Mirror(MirrorReply),
    /// The answer to `Probe`.
    Probed(Result<Probed, Fault>),
    /// What `TellTies` asked for, before the `Stated` or `Page` that it belongs to.
    Ties {
        /// Which request.
        request: u32,
        /// One for each entry that is told, in the same order; none of what is no file of anybody.
        ties: Vec<Option<Ties>>,
    },
    /// What `TellRehashed` asked for, before `Created`: bytes of partial files, where any.
    Rehashed {
        /// How many.
        bytes: u64,
    },
}

/// A client asks the read machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadRequest {
    /// Open these, answer once, and lease windows over what is needed as credit allows.
    Open {
        /// The files.
        files: Vec<OpenFile>,
    },
    /// These windows are read; take them back.
    Release {
        /// The windows.
        windows: Vec<WindowId>,
    },
    /// A digest did not match, twice: take the window back, open the file anew, hash and lease
    /// these pieces of it again. No read of the window is in flight.
    Refresh {
        /// The window.
        window: WindowId,
        /// What of it is still missing.
        pieces: Vec<(FileId, Extent)>,
    },
    /// Done with these; say whether they changed meanwhile.
    Close {
        /// The files.
        files: Vec<FileId>,
        /// Whether they come with their metadata.
        describe: bool,
    },
}

/// A file to open for reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Its number in this session.
    pub file: FileId,
    /// Where it is, export first.
    pub path: WirePath,
    /// What is already there and verified; the rest is leased.
    pub have: Vec<Extent>,
}

/// The read machine answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadReply {
    /// The answer to `Open`.
    Opened {
        /// One answer per file.
        files: Vec<(FileId, Result<FileInfo, Fault>)>,
    },
    /// A window to read.
    Lease(Lease),
    /// No more of this file can be leased, and why; close it.
    Failed {
        /// The file.
        file: FileId,
        /// Why.
        fault: Fault,
    },
    /// The answer to `Close`.
    Closed {
        /// One answer per file: whether it is still what was opened, and its metadata.
        files: Vec<(FileId, Result<Kept, Fault>)>,
    },
    /// What of a file is holes: zeros that are not leased. Released like a window.
    Holes(WindowHoles),
    /// The names of the next window on other rails.
    Rails(WindowRails),
}

/// A registered window: its pieces lie in it one behind the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its number.
    pub window: WindowId,
    /// Where it is.
    pub region: Region,
    /// What is in it: one piece of one large file, or many small files whole.
    pub pieces: Vec<Piece>,
}

/// A client asks the write machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteRequest {
    /// Make temporary files beside these targets.
    Create {
        /// The files.
        files: Vec<CreateFile>,
    },
    /// These chunks were written and notified; this is what must be in them.
    Sent {
        /// The chunks.
        chunks: Vec<SentChunk>,
    },
    /// All of these files is there: compare, make durable, rename.
    Commit {
        /// The files with their roots.
        files: Vec<CommitFile>,
    },
    /// Forget these files.
    Discard {
        /// The files.
        files: Vec<FileId>,
    },
    /// What of a file is holes: zeros that are not sent. One list of a file at a time.
    Holes(Holes),
    /// How long a stream is; said before what lies in its last grain.
    End {
        /// The file.
        file: FileId,
        /// Its size.
        size: u64,
    },
    /// About writing into files.
    Spots(SpotRequest),
    /// What a file of the server may have of one that is sent; answered with `Taken`.
    Offer(Offer),
}

/// A file that is all there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitFile {
    /// The file.
    pub file: FileId,
    /// The digest of all of it.
    pub root: Digest,
    /// What it gets before it takes its name, if it is to keep more than its mode.
    pub meta: Kept,
}

/// What a written chunk must hold, said over TLS so that the data path cannot vouch for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentChunk {
    /// The grant it used.
    pub tag: Tag,
    /// Its pieces, one behind the other.
    pub pieces: Vec<Piece>,
}

/// The write machine answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteReply {
    /// The answer to `Create`: what of each file is already there and verified.
    Created {
        /// One answer per file.
        files: Vec<(FileId, Result<Vec<Extent>, Fault>)>,
    },
    /// Verdicts on sent chunks, and slots to write to.
    Granted {
        /// What became of earlier chunks.
        verdicts: Vec<(Tag, Vec<Verdict>)>,
        /// New grants.
        grants: Vec<Grant>,
    },
    /// The answer to `Commit`.
    Committed {
        /// One answer per file.
        files: Vec<(FileId, Result<(), Fault>)>,
    },
    /// The answer to `Holes`: they are zeros in the temporary file too.
    Zeroed {
        /// The file.
        file: FileId,
        /// Whether they are.
        answer: Result<(), Fault>,
    },
    /// About writing into files.
    Spots(SpotReply),
    /// The answer to `Offer`.
    Taken(Taken),
}

/// What became of one piece of a sent chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Its digests matched and it is in the temporary file.
    Stored,
    /// A digest did not match: send it again.
    Mismatch,
    /// It could not be stored.
    Failed(Fault),
}

/// The right to write one chunk: credit and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// What the notification must carry.
    pub tag: Tag,
    /// The link it must come on.
    pub link: LinkId,
    /// Where to write.
    pub region: Region,
    /// How much fits.
    pub bytes: u32,
}
