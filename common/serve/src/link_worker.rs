//! The links of several clients, on one worker thread. Sessions send commands, and the worker
//! reports to their event queues. Knows nothing of files: `Uploads` verifies and stores chunks on
//! the thread that received them, while they are in cache.
//!
//! A chunk that its session expects is stored as soon as the link notifies it, and the session gets
//! the verdicts. Any other notification goes to the session, which decides.

use crate::event_port::{EVENTS_MAX, EventPort};
use std::collections::HashMap;
use verbatim_fabric::worker::{Handler, LinkKey, LinkSet};
use verbatim_fabric::{Completion, FabricError, Link};
use verbatim_proto::message::{LinkId, Tag, Verdict};
use verbatim_proto::units::{ANSWERS_TOGETHER, SLOTS_PER_LINK};

/// Handles the chunks that clients upload. One for each worker thread.
pub trait Uploads: Sized + Send + 'static {
    /// The memory and the targets of a chunk.
    type Chunk: Send;
    /// Other slow work of an upload.
    type Task: Send;
    /// The result of a task, or the reason why a chunk has no verdict.
    type Report: Send;

    /// Verifies and stores a chunk. Nothing of the chunk may outlive this call: the session may
    /// discard its files as soon as it has the verdicts.
    fn store(&mut self, chunk: Self::Chunk) -> Result<Stored, Self::Report>;

    /// Runs a task. Nothing of the task may outlive this call, either.
    fn run(&mut self, task: Self::Task) -> Self::Report;
}

/// The result of a chunk.
pub struct Stored {
    /// Its length in bytes.
    pub bytes: u64,
    /// One for each of its pieces.
    pub verdicts: Vec<Verdict>,
}

/// An uploaded chunk, and the session that gets its verdicts.
pub struct Upload<U: Uploads> {
    /// The tag in the client's notification.
    pub tag: Tag,
    /// Its memory and its targets.
    pub chunk: U::Chunk,
    /// Gets the verdicts.
    pub session: EventPort<LinkEvent<U>>,
}

/// A worker's report about a link of a session.
pub enum LinkEvent<U: Uploads> {
    /// The client notified a chunk that was not expected.
    Notified {
        /// The link of the notification.
        link: LinkId,
        /// Its tag.
        tag: Tag,
    },
    /// The chunk has its verdicts.
    Absorbed {
        /// Its tag.
        tag: Tag,
        /// Its length in bytes.
        bytes: u64,
        /// One for each of its pieces.
        verdicts: Vec<Verdict>,
    },
    /// A report of `Uploads`.
    Report(U::Report),
    /// The link ended: no write of it can land any more.
    Dead {
        /// Its name.
        link: LinkId,
        /// Why it ended by itself; none where it was killed.
        why: Option<FabricError>,
    },
}

/// A command of a session to a worker.
pub enum Command<U: Uploads> {
    /// Take this link.
    Adopt {
        /// The link's key, unique in the program.
        key: LinkKey,
        /// Its name in its session.
        id: LinkId,
        /// The link.
        link: Box<dyn Link>,
        /// Gets the reports about it.
        session: EventPort<LinkEvent<U>>,
    },
    /// Store a chunk when this link notifies it.
    Expect(LinkKey, Upload<U>),
    /// Store a chunk that this link has notified.
    Absorb(LinkKey, Upload<U>),
    /// This link has notified a chunk that has its verdict: do nothing.
    Forget(LinkKey, Tag),
    /// Run a task of `Uploads`, and report its result.
    Do {
        /// The task.
        task: U::Task,
        /// Gets the report.
        session: EventPort<LinkEvent<U>>,
    },
    /// End this link, and report that.
    Kill {
        /// The link.
        key: LinkKey,
        /// Its name in its session.
        id: LinkId,
        /// Gets `LinkEvent::Dead`.
        session: EventPort<LinkEvent<U>>,
    },
}

/// Notifications of a link that its session may have received without an answer.
pub const NOTIFIED_MAX: usize = 4 * SLOTS_PER_LINK as usize;

/// The session of a link, and its chunks.
struct Owner<U: Uploads> {
    link: LinkId,
    session: EventPort<LinkEvent<U>>,
    expected: Vec<Upload<U>>,
    /// Notifications that the session has received and not answered.
    notified: Vec<Tag>,
    /// Verdicts that wait for the next, while other chunks are expected.
    unsent: Vec<LinkEvent<U>>,
}

impl<U: Uploads> Owner<U> {
    /// Removes and returns the chunk of a tag, if it is expected.
    fn take(&mut self, tag: Tag) -> Option<Upload<U>> {
        let at = self.expected.iter().position(|upload| upload.tag == tag)?;
        Some(self.expected.swap_remove(at))
    }

    /// Reports verdicts: batched where another chunk or the end of the link is sure to follow.
    fn absorbed(&mut self, event: LinkEvent<U>) {
        self.unsent.push(event);
        if self.expected.is_empty() || self.unsent.len() >= ANSWERS_TOGETHER {
            self.flush_events();
        }
    }

    fn flush_events(&mut self) {
        for event in self.unsent.drain(..) {
            // A session that has ended needs no verdict.
            let _ = self.session.try_send(event);
        }
    }

    /// Passes a notification on to the session; returns whether that was possible. It may name a
    /// chunk whose verdict is batched: the session must get that first.
    fn pass_on(&mut self, tag: Tag) -> bool {
        self.flush_events();
        if self.notified.contains(&tag) {
            return true;
        }
        self.notified.push(tag);
        // Half of the queue is reserved for answers; a client that floods it with notifications
        // loses its link.
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

    /// The session has answered a notification.
    fn forget(&mut self, key: LinkKey, tag: Tag) {
        if let Some(owner) = self.owners.get_mut(&key) {
            owner.notified.retain(|notified| *notified != tag);
        }
    }

    /// Stores a chunk, and reports its verdicts.
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
                // A session that has ended needs no report.
                let _ = session.try_send(LinkEvent::Report(report));
            }
            Command::Expect(key, upload) => {
                // The session got this notification already, and will answer it.
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
        // The server submits nothing itself: it only receives notifications.
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
