//! The links of several clients, on one worker thread. Told what to do by sessions; reports into
//! their event queues. Knows nothing of files: `Uploads` checks and stores the chunks that clients
//! send, on the thread that received them, while they are in cache.
//!
//! A chunk that its session expects is stored when it is notified, and the session hears
//! what became of it. Any other notification is passed on, and the session says what to do.

use crate::event_port::{EVENTS_MAX, EventPort};
use std::collections::HashMap;
use verbatim_fabric::worker::{Handler, LinkKey, LinkSet};
use verbatim_fabric::{Completion, FabricError, Link};
use verbatim_proto::message::{LinkId, Tag, Verdict};
use verbatim_proto::units::{ANSWERS_TOGETHER, SLOTS_PER_LINK};

/// What a worker does with chunks that clients send. One for each worker thread.
pub trait Uploads: Sized + Send + 'static {
    /// Where a chunk lies, and where it goes.
    type Chunk: Send;
    /// Other work of an upload that takes a while.
    type Task: Send;
    /// What became of a task, or why a chunk has no verdict.
    type Report: Send;

    /// Checks and stores a chunk. Nothing of the chunk may outlive this call: the session may
    /// discard its files as soon as it hears the verdicts.
    fn store(&mut self, chunk: Self::Chunk) -> Result<Stored, Self::Report>;

    /// Does a task. Nothing of the task may outlive this call, either.
    fn run(&mut self, task: Self::Task) -> Self::Report;
}

/// What became of a chunk.
pub struct Stored {
    /// How many bytes it has.
    pub bytes: u64,
    /// One for each of its pieces.
    pub verdicts: Vec<Verdict>,
}

/// A chunk that a client sends, and the session that hears what became of it.
pub struct Upload<U: Uploads> {
    /// The tag that the client notifies.
    pub tag: Tag,
    /// Where it lies, and where it goes.
    pub chunk: U::Chunk,
    /// Hears what became of it.
    pub session: EventPort<LinkEvent<U>>,
}

/// What a worker tells a session of one of its links.
pub enum LinkEvent<U: Uploads> {
    /// The client notified a chunk that was not expected.
    Notified {
        /// The link that it came over.
        link: LinkId,
        /// Its tag.
        tag: Tag,
    },
    /// A chunk was checked and stored, or not.
    Absorbed {
        /// Its tag.
        tag: Tag,
        /// How many bytes it has.
        bytes: u64,
        /// One for each of its pieces.
        verdicts: Vec<Verdict>,
    },
    /// What uploads report.
    Report(U::Report),
    /// The link ended: nothing of it can land any more.
    Dead {
        /// Its name.
        link: LinkId,
        /// Why it ended by itself; none where it was killed.
        why: Option<FabricError>,
    },
}

/// What a session tells a worker.
pub enum Command<U: Uploads> {
    /// Take this link.
    Adopt {
        /// The name of the link among all of the program.
        key: LinkKey,
        /// Its name in its session.
        id: LinkId,
        /// The link.
        link: Box<dyn Link>,
        /// Hears of it.
        session: EventPort<LinkEvent<U>>,
    },
    /// Check and store a chunk when this link notifies it.
    Expect(LinkKey, Upload<U>),
    /// Check and store a chunk that this link has notified.
    Absorb(LinkKey, Upload<U>),
    /// This link has notified a chunk that was judged before: nothing is to be done.
    Forget(LinkKey, Tag),
    /// Do a task of uploads, and say what became of it.
    Do {
        /// The task.
        task: U::Task,
        /// Hears what became of it.
        session: EventPort<LinkEvent<U>>,
    },
    /// End this link, and say so.
    Kill {
        /// The link.
        key: LinkKey,
        /// Its name in its session.
        id: LinkId,
        /// Hears that nothing of it can land any more.
        session: EventPort<LinkEvent<U>>,
    },
}

/// The most notifications of a link that its session was told of and has said nothing about.
pub const NOTIFIED_MAX: usize = 4 * SLOTS_PER_LINK as usize;

/// Whose a link is.
struct Owner<U: Uploads> {
    link: LinkId,
    session: EventPort<LinkEvent<U>>,
    expected: Vec<Upload<U>>,
    /// What the session was told of: it is not stored until it says so.
    notified: Vec<Tag>,
    /// What became of chunks while others are expected, to be told with the next.
    unsent: Vec<LinkEvent<U>>,
}

impl<U: Uploads> Owner<U> {
    /// The chunk of a tag, if it is expected.
    fn take(&mut self, tag: Tag) -> Option<Upload<U>> {
        let at = self.expected.iter().position(|upload| upload.tag == tag)?;
        Some(self.expected.swap_remove(at))
    }

    /// Tells what became of a chunk: with the next one where that is sure to come, or its link
    /// to die.
    fn absorbed(&mut self, event: LinkEvent<U>) {
        self.unsent.push(event);
        if self.expected.is_empty() || self.unsent.len() >= ANSWERS_TOGETHER {
            self.flush_events();
        }
    }

    fn flush_events(&mut self) {
        for event in self.unsent.drain(..) {
            // A session that is gone needs no verdict.
            let _ = self.session.try_send(event);
        }
    }

    /// Passes a notification on; whether that could be done. It may name a chunk whose verdict is
    /// held: the session must have heard that first.
    fn pass_on(&mut self, tag: Tag) -> bool {
        self.flush_events();
        if self.notified.contains(&tag) {
            return true;
        }
        self.notified.push(tag);
        // Half of the queue is for answers the session waits for; a client that floods it with
        // notifications loses its link.
        let room = self.notified.len() <= NOTIFIED_MAX && self.session.room() >= EVENTS_MAX / 2;
        room && self.session.try_send(LinkEvent::Notified { link: self.link, tag }).is_ok()
    }
}

/// The handler of one worker thread.
pub struct LinkWorker<U: Uploads> {
    owners: HashMap<LinkKey, Owner<U>>,
    uploads: U,
}

impl<U: Uploads> LinkWorker<U> {
    /// A worker without links.
    pub fn new(uploads: U) -> Self {
        Self { owners: HashMap::new(), uploads }
    }

    /// The session has said what is to be done with what it was told of.
    fn forget(&mut self, key: LinkKey, tag: Tag) {
        if let Some(owner) = self.owners.get_mut(&key) {
            owner.notified.retain(|notified| *notified != tag);
        }
    }

    /// Has a chunk of a link checked and stored, and tells its session.
    fn absorb(&mut self, key: LinkKey, upload: Upload<U>) {
        let Upload { tag, chunk, session } = upload;
        let Stored { bytes, verdicts } = match self.uploads.store(chunk) {
            Ok(stored) => stored,
            Err(report) => {
                let _ = session.try_send(LinkEvent::Report(report));
                return;
            }
        };
        let event = LinkEvent::Absorbed { tag, bytes, verdicts };
        match self.owners.get_mut(&key) {
            Some(owner) => owner.absorbed(event),
            None => {
                let _ = session.try_send(event);
            }
        }
    }
}

impl<U: Uploads> Handler<Box<dyn Link>> for LinkWorker<U> {
    type Command = Command<U>;

    fn command(&mut self, links: &mut LinkSet<Box<dyn Link>>, command: Command<U>) {
        match command {
            Command::Adopt { key, id, link, session } => {
                let (expected, notified, unsent) = (Vec::new(), Vec::new(), Vec::new());
                self.owners.insert(key, Owner { link: id, session, expected, notified, unsent });
                links.insert(key, link);
            }
            Command::Do { task, session } => {
                let report = self.uploads.run(task);
                // A session that is gone needs no report.
                let _ = session.try_send(LinkEvent::Report(report));
            }
            Command::Expect(key, upload) => {
                // A session that was told of it already will say what is to be done.
                let owner = self.owners.get_mut(&key);
                if let Some(owner) = owner.filter(|owner| !owner.notified.contains(&upload.tag)) {
                    owner.expected.push(upload);
                }
            }
            Command::Forget(key, tag) => self.forget(key, tag),
            Command::Absorb(key, upload) => {
                self.forget(key, upload.tag);
                self.absorb(key, upload);
            }
            Command::Kill { key, id, session } => {
                if let Some(mut owner) = self.owners.remove(&key) {
                    owner.flush_events();
                }
                if let Some(mut link) = links.remove(&key) {
                    link.abort(&mut Vec::new());
                }
                let _ = session.try_send(LinkEvent::Dead { link: id, why: None });
            }
        }
    }

    fn completed(&mut self, links: &mut LinkSet<Box<dyn Link>>, key: LinkKey, done: Completion) {
        // The server submits nothing itself: only notifications come.
        let Completion::Notified { tag } = done else { return };
        let Some(owner) = self.owners.get_mut(&key) else { return };
        if let Some(upload) = owner.take(Tag(tag)) {
            self.absorb(key, upload);
        } else if !owner.pass_on(Tag(tag)) {
            let dead = links.remove(&key);
            let error = FabricError::Protocol("too many notifications".into());
            drop(dead);
            self.lost(key, Vec::new(), error);
        }
    }

    fn lost(&mut self, key: LinkKey, _flushed: Vec<Completion>, error: FabricError) {
        if let Some(mut owner) = self.owners.remove(&key) {
            owner.flush_events();
            let Owner { link, session, .. } = owner;
            let _ = session.try_send(LinkEvent::Dead { link, why: Some(error) });
        }
    }
}
