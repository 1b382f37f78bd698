//! Files that a client wants to read or write, until there are descriptors and memory
//! for them: no client has so many open that none are left to others, and to the server
//! itself. A file waits as long as its session has others open, whose end makes
//! room; where it has none files wait for a while, and then each fails alone. Owns
//! what waits; the service of reads and `writing` open what has a place.

use super::{Event, Session};
use crate::limits::fair_pool::Taker;
use crate::limits::file_room::Room;
use crate::limits::memory_budget::file_bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use verbatim_files::target::LASTING_BYTES_MIN;
use verbatim_proto::message::{CreateFile, OpenFile};
use verbatim_proto::units::BATCH_FILES_MAX;
use verbatim_proto::{Code, Fault};
use verbatim_serve::Guard;

/// How long files of a session wait that has none open.
pub(super) const PLACES_WAIT_MAX: Duration = Duration::from_secs(60);

/// What a file takes that is read.
const READ_DESCRIPTORS: usize = 1;

/// What one takes that is written: its own, and that of its folder.
const WRITE_DESCRIPTORS: usize = 2;

/// What one takes that lasts: the same, and that of its journal.
const LASTING_DESCRIPTORS: usize = 3;

/// The files of a session that wait, as many as its machines let it have.
pub(super) struct Opening {
    pub places: Arc<Taker>,
    memory: Arc<Taker>,
    reads: VecDeque<OpenFile>,
    writes: VecDeque<CreateFile>,
    /// Since when none is open and one waits.
    pub since: Option<Instant>,
}

impl Opening {
    pub fn new(places: Arc<Taker>, memory: Arc<Taker>) -> Self {
        let (reads, writes) = Default::default();
        Self { places, memory, reads, writes, since: None }
    }

    pub fn waits(&self) -> bool {
        !self.reads.is_empty() || !self.writes.is_empty()
    }
}

impl Session {
    /// Has files opened that are to be read, when there are places for them.
    pub(super) fn open(&mut self, files: Vec<OpenFile>) {
        self.opening.reads.extend(files);
        self.open_waiting();
    }

    /// The same of files that are to be written.
    pub(super) fn create(&mut self, files: Vec<CreateFile>) {
        for request in &files {
            self.writing.sizes.insert(request.file, request.info.size);
        }
        self.opening.writes.extend(files);
        self.open_waiting();
    }

    /// Has those opened that there are places for now. Asked whenever something happened, and
    /// every second: what others close tells nobody.
    pub(super) fn open_waiting(&mut self) {
        while self.opening.waits() {
            let Opening { places, memory, reads, writes, .. } = &mut self.opening;
            let from = (&*places, &*memory);
            let reads = placed(from, reads, |it| (READ_DESCRIPTORS, file_bytes(&it.path, None)));
            let writes = placed(from, writes, |it| {
                (descriptors_of(it), file_bytes(&it.path, Some(it.info.size)))
            });
            if reads.is_empty() && writes.is_empty() {
                break;
            }
            if !reads.is_empty() {
                let boxed = |(file, room)| (file, Box::new(room) as Guard);
                self.reading.open(reads.into_iter().map(boxed).collect());
            }
            if !writes.is_empty() {
                self.create_placed(writes);
            }
        }
        let Opening { places, since, .. } = &self.opening;
        let starved = self.opening.waits() && places.has() == 0;
        self.opening.since = starved.then(|| since.unwrap_or_else(Instant::now));
    }

    /// Fails what waited too long.
    pub(super) fn give_up_opening(&mut self) {
        if self.opening.since.is_none_or(|since| since.elapsed() < PLACES_WAIT_MAX) {
            return;
        }
        let Opening { reads, writes, .. } = &mut self.opening;
        let (reads, writes) = (std::mem::take(reads), std::mem::take(writes));
        if !reads.is_empty() {
            self.reading.refuse(reads.into_iter().map(|it| (it.file, none_free())).collect());
        }
        if !writes.is_empty() {
            let answers = writes.into_iter().map(|it| (it.file, Err(none_free()))).collect();
            self.jobs.run(move || Event::Created(answers));
        }
    }
}

/// Takes as many as have places now, in order, and no more than a message may name.
fn placed<T>(
    (places, memory): (&Arc<Taker>, &Arc<Taker>),
    files: &mut VecDeque<T>,
    wants: impl Fn(&T) -> (usize, usize),
) -> Vec<(T, Room)> {
    let next = || {
        let (descriptors, bytes) = wants(files.front()?);
        let room = Room::new(places.take(descriptors)?, memory.take(bytes)?);
        files.pop_front().zip(Some(room))
    };
    std::iter::from_fn(next).take(BATCH_FILES_MAX).collect()
}

fn descriptors_of(file: &CreateFile) -> usize {
    match file.stream || file.info.size < LASTING_BYTES_MIN {
        true => WRITE_DESCRIPTORS,
        false => LASTING_DESCRIPTORS,
    }
}

fn none_free() -> Fault {
    let text = format!(
        "the server had no descriptor or no memory for it in {} s: this client has its share of \
         them, or others have the rest; run fewer copies at a time, or raise LimitNOFILE or \
         limits.memory_mb of the server",
        PLACES_WAIT_MAX.as_secs()
    );
    Fault::new(Code::Limit, text)
}
