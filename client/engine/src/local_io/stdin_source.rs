//! Standard input as the source of an upload: a thread reads it once. Chunks stay in memory until
//! the server has stored them; their number is bounded.

use crate::local_io::buffer_pool::BufferPool;
use crate::local_io::pipe::{
    PipeEvent, PipeEventSender, PipeSender, lock, spawn, wait_if_transient,
};
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use verbatim_fabric::Buffer;
use verbatim_proto::units::STREAM_BYTES_MAX;
use verbatim_proto::{Code, Extent, Fault, FileId};

/// The most buffered bytes; two more chunks may be in the reader's hands.
const STDIN_BUFFER_BYTES_MAX: usize = 16 << 20;

/// Standard input as the source of an upload.
pub(crate) struct StdinSource {
    chunk_bytes: usize,
    unstored: Mutex<Unstored>,
    pool: BufferPool,
    space: Condvar,
}

#[derive(Default)]
struct Unstored {
    /// By offset: the bytes, and how many of them the server has not stored.
    chunks: BTreeMap<u64, (Buffer, usize)>,
    size: Option<u64>,
    closed: bool,
}

impl StdinSource {
    /// Starts to read standard input for a file.
    pub fn of_stdin(file: FileId, chunk_bytes: usize, events: PipeSender) -> Arc<Self> {
        let (unstored, pool, space) = (Mutex::default(), BufferPool::default(), Condvar::new());
        let source = Arc::new(Self { chunk_bytes, unstored, pool, space });
        let (reader, events) = (source.clone(), events.for_file(file));
        spawn("stdin", move || {
            let input = std::io::stdin().as_fd().try_clone_to_owned().map(File::from);
            let read = input.and_then(|input| reader.pump(input, &events));
            if let Err(error) = read {
                let fault = Fault::from_io("cannot read standard input", &error);
                events.send(PipeEvent::Failed(fault));
            }
        });
        source
    }

    /// The size; `STREAM_BYTES_MAX` until the input has ended.
    pub fn size(&self) -> u64 {
        lock(&self.unstored).size.unwrap_or(STREAM_BYTES_MAX)
    }

    /// Copies bytes of a buffered chunk.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), Fault> {
        let unstored = lock(&self.unstored);
        let chunk = unstored.chunks.range(..=offset).next_back();
        let found = chunk.and_then(|(start, (chunk, _))| {
            let at = (offset - start) as usize;
            chunk.get(at..at.checked_add(bytes.len())?)
        });
        let gone = || Fault::new(Code::Interrupted, "the copy was given up");
        bytes.copy_from_slice(found.ok_or_else(gone)?);
        Ok(())
    }

    /// Frees the bytes of a range that the server has stored.
    pub fn release(&self, extent: Extent) {
        let mut unstored = lock(&self.unstored);
        let chunk = unstored.chunks.range_mut(..=extent.offset).next_back();
        let Some((&start, (_, left))) = chunk else { return };
        *left = left.saturating_sub(extent.len as usize);
        if *left == 0 {
            let stored = unstored.chunks.remove(&start);
            stored.into_iter().for_each(|(chunk, _)| self.pool.put(chunk));
            self.space.notify_all();
        }
    }

    /// Stops the reader: the upload is over.
    pub fn close(&self) {
        lock(&self.unstored).closed = true;
        self.space.notify_all();
    }

    /// Reads to the end. Queues a chunk only when it knows whether another one follows: the digest
    /// of a one-grain file differs from that of a grain of a longer file.
    fn pump(&self, mut input: File, events: &PipeEventSender) -> std::io::Result<()> {
        let (mut offset, mut got) = (0, 0);
        let mut next = self.buffer()?;
        loop {
            let mut chunk = std::mem::replace(&mut next, self.buffer()?);
            let len = fill(&mut input, &mut chunk, got, self.chunk_bytes)?;
            chunk.set_len(len);
            // A chunk that is not full ends the input.
            got = match chunk.len() == self.chunk_bytes {
                true => fill(&mut input, &mut next, 0, 1)?,
                false => 0,
            };
            let extent = Extent::new(offset, chunk.len() as u64);
            offset += extent.len;
            let size = (got == 0).then_some(offset);
            if !self.push(extent, chunk, size) {
                return Ok(());
            }
            events.send(PipeEvent::Read { extent, size });
            if size.is_some() {
                return Ok(());
            }
        }
    }

    /// A free buffer for a chunk, with arbitrary content.
    fn buffer(&self) -> std::io::Result<Buffer> {
        let mut buffer = self.pool.take(self.chunk_bytes).ok_or(ErrorKind::OutOfMemory)?;
        buffer.set_len(self.chunk_bytes);
        Ok(buffer)
    }

    /// Waits for space and buffers a chunk. Returns false if the upload is over.
    fn push(&self, extent: Extent, chunk: Buffer, size: Option<u64>) -> bool {
        let chunks_max = (STDIN_BUFFER_BYTES_MAX / self.chunk_bytes).max(2);
        let full =
            |unstored: &mut Unstored| unstored.chunks.len() >= chunks_max && !unstored.closed;
        let waited = self.space.wait_while(lock(&self.unstored), full);
        let mut unstored = waited.unwrap_or_else(PoisonError::into_inner);
        unstored.size = size;
        if !chunk.is_empty() {
            unstored.chunks.insert(extent.offset, (chunk, extent.len as usize));
        }
        !unstored.closed
    }
}

/// Reads behind the first `got` bytes until there are `least`, or the input ends. Returns how many
/// there are.
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
            Err(error) => wait_if_transient(error, input.as_fd(), PollFlags::IN)?,
        }
    }
    Ok(got)
}
