//! Pipes at either end of a copy. An `Inlet` is a source that is read once: its
//! chunks are kept until the server has them. An `Outlet` takes verified ranges
//! in any order and writes them in order. Each has a thread of its own, because
//! whoever is at the other end of a pipe may take all the time in the world;
//! both hold a bounded number of bytes.

use crate::session::Event;
use crate::spares::{Bytes, Spares};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use verbatim_fabric::Buffer;
use verbatim_proto::units::{GRAIN_BYTES, STREAM_BYTES_MAX};
use verbatim_proto::{Code, Extent, Fault, FileId};

/// Bytes of an inlet that are kept, about: two chunks more are on their way into it.
const INLET_BYTES_MAX: usize = 16 << 20;

/// What a pipe tells its session.
pub(crate) enum PipeEvent {
    /// This much more was read; with the last of it comes the size of all.
    Read { extent: Extent, size: Option<u64> },
    /// All before this offset is written.
    Written(u64),
    /// All of it is written.
    Ended,
    /// It can be read, or written, no more.
    Failed(Fault),
}

/// Tells a session of a pipe.
struct Teller {
    events: mpsc::Sender<Event>,
    file: FileId,
}

impl Teller {
    fn tell(&self, event: PipeEvent) {
        // A session that is gone needs no news; a full queue waits, for nothing may be lost.
        let _ = self.events.blocking_send(Event::Pipe(self.file, event));
    }
}

/// A source that is read once.
pub(crate) struct Inlet {
    chunk_bytes: usize,
    kept: Mutex<Kept>,
    spares: Spares,
    room: Condvar,
}

#[derive(Default)]
struct Kept {
    /// Offset -> bytes, and how many of them are not stored.
    chunks: BTreeMap<u64, (Buffer, usize)>,
    size: Option<u64>,
    closed: bool,
}

impl Inlet {
    /// Begins to read standard input for a file.
    pub fn of_stdin(file: FileId, chunk_bytes: usize, events: mpsc::Sender<Event>) -> Arc<Self> {
        let (kept, spares, room) = (Mutex::default(), Spares::default(), Condvar::new());
        let inlet = Arc::new(Self { chunk_bytes, kept, spares, room });
        let (reader, teller) = (inlet.clone(), Teller { events, file });
        spawn("stdin", move || {
            let input = std::io::stdin().as_fd().try_clone_to_owned().map(File::from);
            let read = input.and_then(|input| reader.pump(input, &teller));
            if let Err(error) = read {
                let fault = Fault::from_io("cannot read standard input", &error);
                teller.tell(PipeEvent::Failed(fault));
            }
        });
        inlet
    }

    /// How long it is; as long as can be while that is not known.
    pub fn size(&self) -> u64 {
        lock(&self.kept).size.unwrap_or(STREAM_BYTES_MAX)
    }

    /// Copies bytes out that were read and are not stored.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), Fault> {
        let kept = lock(&self.kept);
        let chunk = kept.chunks.range(..=offset).next_back();
        let found = chunk.and_then(|(start, (chunk, _))| {
            let at = (offset - start) as usize;
            chunk.get(at..at.checked_add(bytes.len())?)
        });
        let gone = || Fault::new(Code::Interrupted, "the copy was given up");
        bytes.copy_from_slice(found.ok_or_else(gone)?);
        Ok(())
    }

    /// A range is stored: its bytes make room.
    pub fn release(&self, extent: Extent) {
        let mut kept = lock(&self.kept);
        let chunk = kept.chunks.range_mut(..=extent.offset).next_back();
        let Some((&start, (_, left))) = chunk else { return };
        *left = left.saturating_sub(extent.len as usize);
        if *left == 0 {
            let stored = kept.chunks.remove(&start);
            stored.into_iter().for_each(|(chunk, _)| self.spares.put(chunk));
            self.room.notify_all();
        }
    }

    /// Nobody needs it any more.
    pub fn close(&self) {
        lock(&self.kept).closed = true;
        self.room.notify_all();
    }

    /// Reads to the end. A chunk is handed on when it is known whether another follows: the
    /// digest of a file of one grain is not that of a grain of a longer one.
    fn pump(&self, mut input: File, teller: &Teller) -> std::io::Result<()> {
        let (mut offset, mut got) = (0, 0);
        let mut next = self.buffer()?;
        loop {
            let mut chunk = std::mem::replace(&mut next, self.buffer()?);
            let len = fill(&mut input, &mut chunk, got, self.chunk_bytes)?;
            chunk.set_len(len);
            // One that is not full was ended by the end of the pipe.
            got = match chunk.len() == self.chunk_bytes {
                true => fill(&mut input, &mut next, 0, 1)?,
                false => 0,
            };
            let extent = Extent::new(offset, chunk.len() as u64);
            offset += extent.len;
            let size = (got == 0).then_some(offset);
            if !self.keep(extent, chunk, size) {
                return Ok(());
            }
            teller.tell(PipeEvent::Read { extent, size });
            if size.is_some() {
                return Ok(());
            }
        }
    }

    /// Room for a chunk. What is in it does not matter.
    fn buffer(&self) -> std::io::Result<Buffer> {
        let mut buffer = self.spares.take(self.chunk_bytes).ok_or(ErrorKind::OutOfMemory)?;
        buffer.set_len(self.chunk_bytes);
        Ok(buffer)
    }

    /// Waits for room and keeps a chunk; false when nobody needs it any more.
    fn keep(&self, extent: Extent, chunk: Buffer, size: Option<u64>) -> bool {
        let chunks_max = (INLET_BYTES_MAX / self.chunk_bytes).max(2);
        let full = |kept: &mut Kept| kept.chunks.len() >= chunks_max && !kept.closed;
        let waited = self.room.wait_while(lock(&self.kept), full);
        let mut kept = waited.unwrap_or_else(PoisonError::into_inner);
        kept.size = size;
        if !chunk.is_empty() {
            kept.chunks.insert(extent.offset, (chunk, extent.len as usize));
        }
        !kept.closed
    }
}

/// A target that is written in order.
pub(crate) struct Outlet {
    waiting: Mutex<Waiting>,
    spares: Spares,
    more: Condvar,
}

#[derive(Default)]
struct Waiting {
    parts: BTreeMap<u64, Part>,
    written: u64,
    /// Where it ends, once all of it is verified.
    end: Option<u64>,
    closed: bool,
    failed: bool,
}

enum Part {
    Bytes(Bytes),
    Zeros(u64),
}

impl Outlet {
    /// Begins to write a file to standard output.
    pub fn of_stdout(file: FileId, events: mpsc::Sender<Event>) -> Arc<Self> {
        let (waiting, spares, more) = (Mutex::default(), Spares::default(), Condvar::new());
        let outlet = Arc::new(Self { waiting, spares, more });
        let (writer, teller) = (outlet.clone(), Teller { events, file });
        spawn("stdout", move || {
            let output = std::io::stdout().as_fd().try_clone_to_owned().map(File::from);
            if let Err(error) = output.and_then(|output| writer.pump(&output, &teller)) {
                lock(&writer.waiting).failed = true;
                teller.tell(PipeEvent::Failed(write_fault(&error)));
            }
        });
        outlet
    }

    /// Takes bytes that are verified.
    pub fn put(&self, offset: u64, bytes: &[u8]) {
        self.insert(offset, Bytes::Copied(bytes.to_vec()));
    }

    /// The same of all that is in a buffer, which may stay here: another one is in its place then.
    pub fn put_buffer(&self, offset: u64, buffer: &mut Buffer) {
        self.insert(offset, self.spares.swap(buffer));
    }

    fn insert(&self, offset: u64, bytes: Bytes) {
        lock(&self.waiting).parts.insert(offset, Part::Bytes(bytes));
        self.more.notify_all();
    }

    /// Takes a hole. Neighbours become one, so that holes take no room to speak of.
    pub fn put_zeros(&self, extent: Extent) {
        let mut waiting = lock(&self.waiting);
        if let Some((start, Part::Zeros(len))) =
            waiting.parts.range_mut(..extent.offset).next_back()
            && start + *len == extent.offset
        {
            *len += extent.len;
        } else {
            waiting.parts.insert(extent.offset, Part::Zeros(extent.len));
        }
        self.more.notify_all();
    }

    /// All of it is verified, and this is its size.
    pub fn end_at(&self, size: u64) {
        lock(&self.waiting).end = Some(size);
        self.more.notify_all();
    }

    /// Nothing more is written.
    pub fn close(&self) {
        lock(&self.waiting).closed = true;
        self.more.notify_all();
    }

    /// Whether it was the pipe that failed.
    pub fn has_failed(&self) -> bool {
        lock(&self.waiting).failed
    }

    fn pump(&self, output: &File, teller: &Teller) -> std::io::Result<()> {
        while let Some(part) = self.next() {
            let len = match part {
                Part::Bytes(bytes) => {
                    write_all(output, &bytes)?;
                    let len = bytes.len() as u64;
                    self.spares.give_back(bytes);
                    len
                }
                Part::Zeros(len) => {
                    self.write_zeros(output, len)?;
                    len
                }
            };
            let mut waiting = lock(&self.waiting);
            waiting.written += len;
            let written = waiting.written;
            drop(waiting);
            teller.tell(PipeEvent::Written(written));
        }
        let waiting = lock(&self.waiting);
        if !waiting.closed {
            drop(waiting);
            teller.tell(PipeEvent::Ended);
        }
        Ok(())
    }

    /// The next part, once it is there; none at the end, or when nothing more is written.
    fn next(&self) -> Option<Part> {
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.closed || waiting.end == Some(waiting.written) {
                return None;
            }
            let at = waiting.written;
            if let Some(part) = waiting.parts.remove(&at) {
                return Some(part);
            }
            waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write_zeros(&self, output: &File, mut left: u64) -> std::io::Result<()> {
        static ZEROS: [u8; GRAIN_BYTES as usize] = [0; GRAIN_BYTES as usize];
        while left > 0 && !lock(&self.waiting).closed {
            let len = left.min(GRAIN_BYTES);
            write_all(output, &ZEROS[..len as usize])?;
            left -= len;
        }
        Ok(())
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    // Nobody joins it: it may wait for ever for the other end of its pipe.
    thread.map(drop).expect("a thread for each end of a pipe can be had");
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads behind the bytes that are there until there are `least`, or the pipe ends; returns how
/// many there are.
fn fill(
    input: &mut File,
    buffer: &mut [u8],
    mut got: usize,
    least: usize,
) -> std::io::Result<usize> {
    while got < least {
        match input.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) => wait_if_may(error, input.as_fd(), PollFlags::IN)?,
        }
    }
    Ok(got)
}

fn write_all(mut output: &File, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) => wait_if_may(error, output.as_fd(), PollFlags::OUT)?,
        }
    }
    Ok(())
}

/// A signal, or a pipe that somebody made not to block, is no error.
fn wait_if_may(error: std::io::Error, fd: BorrowedFd<'_>, what: PollFlags) -> std::io::Result<()> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock => {
            poll(&mut [PollFd::from_borrowed_fd(fd, what)], None)?;
            Ok(())
        }
        _ => Err(error),
    }
}

fn write_fault(error: &std::io::Error) -> Fault {
    if error.kind() == ErrorKind::BrokenPipe {
        return Fault::new(Code::Io, "cannot write to standard output: its reader closed it");
    }
    Fault::from_io("cannot write to standard output", error)
}
