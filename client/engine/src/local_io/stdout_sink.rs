//! Standard output as the target of a download: a thread writes verified ranges in order, which
//! arrive in any order. The sink outlives sessions: it knows which ranges of which version it has,
//! and the next session fetches the rest. Each session writes through its `StdoutSession`, which
//! goes dead when the next one attaches.

use crate::local_io::buffer_pool::{BufferPool, Bytes};
use crate::local_io::pipe::{
    PipeEvent, PipeEventSender, PipeSender, lock, spawn, wait_if_transient,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use verbatim_fabric::Buffer;
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Have;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Code, Digest, Extent, ExtentSet, Fault, FileId, RootBuilder};

/// Standard output as the target of one download.
#[derive(Default)]
pub(crate) struct StdoutSink {
    state: Mutex<SinkState>,
    pool: BufferPool,
    more: Condvar,
}

#[derive(Default)]
struct SinkState {
    /// How many sessions have attached.
    sessions: u64,
    events: Option<PipeEventSender>,
    /// The received ranges, and the version of their file.
    have: Option<Have>,
    segments: BTreeMap<u64, Segment>,
    written: u64,
    /// The size of the file, once all of it is verified.
    end: Option<u64>,
    closed: bool,
    failed: Option<Fault>,
}

enum Segment {
    Bytes(Bytes),
    Zeros(u64),
}

impl StdoutSink {
    /// Attaches a session, and starts the writer for the first. Returns the handle, the ranges that
    /// earlier sessions received, and how many bytes are written.
    pub fn attach(
        self: &Arc<Self>,
        file: FileId,
        events: PipeSender,
    ) -> (StdoutSession, Option<(Have, u64)>) {
        let mut state = lock(&self.state);
        if state.sessions == 0 {
            let sink = self.clone();
            spawn("stdout", move || sink.run());
        }
        state.sessions += 1;
        state.events = Some(events.for_file(file));
        // Before the first range arrives, any version will do.
        state.have.take_if(|have| have.extents.is_empty());
        let earlier = state.have.clone().map(|have| (have, state.written));
        (StdoutSession { sink: self.clone(), session: state.sessions }, earlier)
    }

    /// Whether another session can resume: the reader is still there, and the received ranges have
    /// a version to compare.
    pub fn can_resume(&self) -> bool {
        let mut state = lock(&self.state);
        // A thread with nothing to write gets no EPIPE.
        if state.sessions > 0 && is_unread(std::io::stdout().as_fd()) {
            state.failed.get_or_insert_with(|| write_fault(&ErrorKind::BrokenPipe.into()));
        }
        let can_be_told = |have: &Have| have.extents.is_empty() || have.version.is_some();
        state.failed.is_none() && state.have.as_ref().is_none_or(can_be_told)
    }

    /// Stops writing.
    pub fn close(&self) {
        lock(&self.state).closed = true;
        self.more.notify_all();
    }

    /// Adds to a fault what it means for a retry by the user. A failed pipe is the cause itself,
    /// unless the user interrupted the copy.
    pub fn explain(&self, fault: Fault) -> Fault {
        match &lock(&self.state).failed {
            Some(_) if fault.code == Code::Interrupted => return fault,
            Some(failed) => return failed.clone(),
            None => {}
        }
        let text = "what went through the pipe is not all of it: run all of it anew";
        Fault::new(fault.code, format!("{}; {text}", fault.text))
    }

    fn run(&self) {
        let output = std::io::stdout().as_fd().try_clone_to_owned().map(File::from);
        let Err(error) = output.and_then(|output| self.pump(&output)) else { return };
        let fault = write_fault(&error);
        let mut state = lock(&self.state);
        state.failed = Some(fault.clone());
        let events = state.events.clone();
        drop(state);
        events.inspect(|events| events.send(PipeEvent::Failed(fault)));
    }

    fn pump(&self, output: &File) -> std::io::Result<()> {
        while let Some(segment) = self.next() {
            let len = match segment {
                Segment::Bytes(bytes) => {
                    write_all(output, &bytes)?;
                    let len = bytes.len() as u64;
                    self.pool.give_back(bytes);
                    len
                }
                Segment::Zeros(len) => {
                    self.write_zeros(output, len)?;
                    len
                }
            };
            let mut state = lock(&self.state);
            state.written += len;
            let (written, events) = (state.written, state.events.clone());
            drop(state);
            events.inspect(|events| events.send(PipeEvent::Written(written)));
        }
        let state = lock(&self.state);
        let events = state.events.clone().filter(|_| !state.closed);
        drop(state);
        events.inspect(|events| events.send(PipeEvent::Ended));
        Ok(())
    }

    /// Waits for the next segment in order; `None` at the end, or after `close`.
    fn next(&self) -> Option<Segment> {
        let mut state = lock(&self.state);
        loop {
            if state.closed || state.end == Some(state.written) {
                return None;
            }
            let at = state.written;
            if let Some(segment) = state.segments.remove(&at) {
                return Some(segment);
            }
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write_zeros(&self, output: &File, mut left: u64) -> std::io::Result<()> {
        static ZEROS: [u8; GRAIN_BYTES as usize] = [0; GRAIN_BYTES as usize];
        while left > 0 && !lock(&self.state).closed {
            let len = left.min(GRAIN_BYTES);
            write_all(output, &ZEROS[..len as usize])?;
            left -= len;
        }
        Ok(())
    }
}

/// The handle of one session on a [`StdoutSink`].
#[derive(Clone)]
pub(crate) struct StdoutSession {
    sink: Arc<StdoutSink>,
    session: u64,
}

impl StdoutSession {
    /// Notes the size, time and version of the source.
    pub fn set_info(&self, info: FileInfo) {
        let FileInfo { size, mtime_ns, version, .. } = info;
        self.change(|state| {
            let fresh = || Have {
                size,
                mtime_ns,
                version,
                extents: ExtentSet::new(),
                root: RootBuilder::new(size),
            };
            state.have.get_or_insert_with(fresh);
        });
    }

    /// Stores verified bytes.
    pub fn put(&self, offset: u64, bytes: &[u8], digests: &[Digest]) {
        self.insert(offset, Bytes::Copied(bytes.to_vec()), digests);
    }

    /// Stores the bytes of a slot's buffer. May keep the buffer and put another one in its place.
    pub fn put_buffer(&self, offset: u64, buffer: &mut Buffer, digests: &[Digest]) {
        self.insert(offset, self.sink.pool.swap(buffer), digests);
    }

    fn insert(&self, offset: u64, bytes: Bytes, digests: &[Digest]) {
        let extent = Extent::new(offset, bytes.len() as u64);
        self.change(|state| {
            if state.accept(extent, digests) {
                state.segments.insert(offset, Segment::Bytes(bytes));
            }
        });
    }

    /// Stores a hole. Adjacent holes are merged, so that they occupy little memory.
    pub fn put_zeros(&self, extent: Extent, digests: &[Digest]) {
        self.change(|state| {
            if !state.accept(extent, digests) {
                return;
            }
            if let Some((start, Segment::Zeros(len))) =
                state.segments.range_mut(..extent.offset).next_back()
                && start + *len == extent.offset
            {
                *len += extent.len;
            } else {
                state.segments.insert(extent.offset, Segment::Zeros(extent.len));
            }
        });
    }

    /// Notes that the whole file of this size is verified.
    pub fn end_at(&self, size: u64) {
        self.change(|state| state.end = Some(size));
    }

    /// Stops writing.
    pub fn close(&self) {
        self.sink.close();
    }

    /// Adds to a fault what it means for a retry by the user.
    pub fn explain(&self, fault: Fault) -> Fault {
        self.sink.explain(fault)
    }

    /// Why the pipe failed, if that was before this session attached.
    pub fn failure(&self) -> Option<Fault> {
        lock(&self.sink.state).failed.clone()
    }

    /// Does nothing once the next session has attached: late ranges of this one would arrive twice.
    fn change(&self, change: impl FnOnce(&mut SinkState)) {
        let mut state = lock(&self.sink.state);
        if state.sessions == self.session {
            change(&mut state);
            self.sink.more.notify_all();
        }
    }
}

impl SinkState {
    /// Records a range, unless it is a duplicate: chunks of an abandoned link arrive late, and
    /// again over another link.
    fn accept(&mut self, extent: Extent, digests: &[Digest]) -> bool {
        let Some(have) = self.have.as_mut().filter(|have| !have.extents.intersects(extent)) else {
            return false;
        };
        have.extents.insert(extent);
        have.root.insert_run(extent.offset, digests);
        true
    }
}

fn write_all(mut output: &File, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) => wait_if_transient(error, output.as_fd(), PollFlags::OUT)?,
        }
    }
    Ok(())
}

/// Whether the output is a pipe whose reader has closed it.
fn is_unread(output: BorrowedFd<'_>) -> bool {
    let mut output = [PollFd::from_borrowed_fd(output, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut output, Some(&now)).is_ok() && output[0].revents().contains(PollFlags::ERR)
}

fn write_fault(error: &std::io::Error) -> Fault {
    if error.kind() == ErrorKind::BrokenPipe {
        return Fault::new(Code::Io, "cannot write to standard output: its reader closed it");
    }
    Fault::from_io("cannot write to standard output", error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_io::waker::Waker;

    const GRAIN: usize = GRAIN_BYTES as usize;

    fn info(version: Option<u64>) -> FileInfo {
        let size = 3 * GRAIN_BYTES;
        FileInfo { size, mode: 0o644, mtime_ns: 5, allocated: size, version }
    }

    /// A sink with one session that has opened its file.
    fn tapped(version: Option<u64>) -> (Arc<StdoutSink>, StdoutSession) {
        let sink = Arc::<StdoutSink>::default();
        let (tap, earlier) = next(&sink);
        assert!(earlier.is_none(), "there was no session before");
        tap.set_info(info(version));
        (sink, tap)
    }

    fn next(sink: &Arc<StdoutSink>) -> (StdoutSession, Option<(Have, u64)>) {
        sink.attach(FileId(1), PipeSender::new(8, &Waker::default()).0)
    }

    /// Stores a grain other than the first, so that nothing is written.
    fn put(tap: &StdoutSession, grain: u64) {
        let (bytes, offset) = (vec![grain as u8; GRAIN], grain * GRAIN_BYTES);
        tap.put(offset, &bytes, &Digest::of_grains(offset, info(None).size, &bytes));
    }

    #[test]
    fn the_next_session_learns_the_received_ranges_and_the_old_one_is_ignored() {
        let (sink, first) = tapped(Some(7));
        put(&first, 2);
        let (second, earlier) = next(&sink);
        put(&first, 1);
        first.put_zeros(Extent::new(GRAIN_BYTES, GRAIN_BYTES), &[Digest([0; 32])]);
        first.end_at(0);
        let (have, taken) = earlier.expect("something came");
        assert_eq!((have.size, have.version, taken), (info(None).size, Some(7), 0));
        let last = Extent::new(2 * GRAIN_BYTES, GRAIN_BYTES);
        assert_eq!(have.extents.iter().collect::<Vec<_>>(), [last]);
        second.set_info(info(Some(8)));
        put(&second, 1);
        let (have, _) = next(&sink).1.expect("something came");
        assert_eq!(have.version, Some(7), "of the version that the first bytes are of");
        assert_eq!(have.extents.bytes(), 2 * GRAIN_BYTES);
        assert_eq!(lock(&sink.state).end, None, "it is over for who came too late");
        sink.close();
    }

    #[test]
    fn a_range_that_arrives_twice_is_stored_once() {
        let (sink, tap) = tapped(Some(7));
        // Nothing is written after this.
        sink.close();
        for grain in [2, 0, 2, 1, 1] {
            put(&tap, grain);
        }
        let zeros = Extent::new(GRAIN_BYTES, GRAIN_BYTES);
        tap.put_zeros(zeros, &Digest::of_grains(zeros.offset, info(None).size, &vec![0; GRAIN]));
        let all = [vec![0; GRAIN], vec![1; GRAIN], vec![2; GRAIN]].concat();
        let root = next(&sink).1.and_then(|(have, _)| have.root.finish());
        assert_eq!(root, Some(Digest::of(&all)));
        assert_eq!(lock(&sink.state).segments.len(), 3);
    }

    #[test]
    fn a_file_without_a_version_cannot_resume_after_its_first_range() {
        for version in [None, Some(7)] {
            let (sink, tap) = tapped(version);
            assert!(sink.can_resume(), "nothing came");
            put(&tap, 1);
            assert_eq!(sink.can_resume(), version.is_some());
            sink.close();
        }
        // Before the first range arrives, the next session may have another version.
        let (sink, _) = tapped(Some(7));
        let (tap, earlier) = next(&sink);
        assert!(earlier.is_none());
        tap.set_info(info(Some(8)));
        put(&tap, 1);
        assert_eq!(next(&sink).1.and_then(|(have, _)| have.version), Some(8));
        sink.close();
    }
}
