//! The seam: a completion-style link. Whoever drives a link submits operations
//! and polls completions; a buffer moves into its operation and comes back with
//! the completion, so nothing can free memory that the device still uses.
//! `Full` is the only back-pressure. A link never blocks in `submit` or `poll`.

use crate::error::FabricError;
use crate::memory::Buffer;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Names an operation of the driver; comes back with its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A range of memory registered on the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// The region's key.
    pub key: u64,
    /// The address of the first byte.
    pub address: u64,
}

/// One operation; its length is the length of its buffer.
#[derive(Debug)]
pub enum Op {
    /// Fills the buffer from the peer's memory.
    Read {
        /// Where from.
        from: RemoteRange,
        /// Where to.
        into: Buffer,
    },
    /// Places the buffer in the peer's memory.
    Write {
        /// Where from.
        from: Buffer,
        /// Where to.
        to: RemoteRange,
    },
    /// Places the buffer in the peer's memory, then tells the peer: when it polls
    /// `Notified(tag)`, all of the data is there.
    WriteNotify {
        /// Where from.
        from: Buffer,
        /// Where to.
        to: RemoteRange,
        /// What the peer is told.
        tag: u32,
    },
}

impl Op {
    /// The buffer of a refused operation.
    pub fn into_buffer(self) -> Buffer {
        match self {
            Self::Read { into, .. } => into,
            Self::Write { from, .. } | Self::WriteNotify { from, .. } => from,
        }
    }
}

/// The link has no room: poll, then submit again.
#[derive(Debug)]
pub struct Full(pub Op);

/// What a poll yields.
#[derive(Debug)]
pub enum Completion {
    /// An own operation ended; its buffer is the driver's again.
    Done {
        /// Which one.
        ticket: Ticket,
        /// The buffer it was submitted with, or one like it.
        buffer: Buffer,
        /// Whether it succeeded. After the first error the link is dead.
        result: Result<(), FabricError>,
    },
    /// The peer wrote to registered memory and says so.
    Notified {
        /// What it said.
        tag: u32,
    },
}

/// What a link can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Operations in flight.
    pub depth_max: usize,
    /// Bytes of one operation.
    pub message_bytes_max: usize,
    /// Whether what of a buffer lies in files is sent from there; else it is read into first.
    pub sends_from_file: bool,
    /// Whether a device registers buffers that are used on it.
    pub registers_buffers: bool,
}

/// What an idle driver should wait for before it polls again.
#[derive(Debug)]
pub struct Wake<'a> {
    /// The descriptor, when there is one.
    pub fd: Option<BorrowedFd<'a>>,
    /// Wait for it to become readable.
    pub readable: bool,
    /// Wait for it to become writable.
    pub writable: bool,
    /// Poll after this long in any case.
    pub at_most: Option<Duration>,
}

/// A link to one peer. Owned by one worker at a time.
pub trait Link: Send {
    /// Queues an operation, or hands it back when the link is full.
    fn submit(&mut self, ticket: Ticket, op: Op) -> Result<(), Full>;

    /// Makes progress without blocking and appends what completed. An error means the link is
    /// dead: `abort` returns what was in flight.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError>;

    /// Whether the last poll ended because it had sent its share of a turn, not because there was
    /// nothing to do: it is polled again after the others, without a wait.
    fn wants_turn(&self) -> bool {
        false
    }

    /// Hands over a buffer that a read ended with, when its bytes are done with, for another like
    /// it. A link that receives into one buffer at a time keeps it for what comes next, while it
    /// is in cache; what it gives for it is one that waits for its read.
    fn exchange(&mut self, used: Buffer) -> Buffer {
        used
    }

    /// What to wait for when a poll yielded nothing.
    fn wake(&self) -> Wake<'_>;

    /// Stops the link and returns everything in flight, each with an error. When this
    /// returns, neither side's device touches any of its memory through this link.
    fn abort(&mut self, completions: &mut Vec<Completion>);

    /// What this link can take.
    fn limits(&self) -> Limits;

    /// What runs here, for people: "tcp", "verbs mlx5_0/1".
    fn transport(&self) -> &str;
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn submit(&mut self, ticket: Ticket, op: Op) -> Result<(), Full> {
        (**self).submit(ticket, op)
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        (**self).poll(completions)
    }

    fn exchange(&mut self, used: Buffer) -> Buffer {
        (**self).exchange(used)
    }

    fn wants_turn(&self) -> bool {
        (**self).wants_turn()
    }

    fn wake(&self) -> Wake<'_> {
        (**self).wake()
    }

    fn abort(&mut self, completions: &mut Vec<Completion>) {
        (**self).abort(completions);
    }

    fn limits(&self) -> Limits {
        (**self).limits()
    }

    fn transport(&self) -> &str {
        (**self).transport()
    }
}
