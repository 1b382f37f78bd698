//! What a worker of the server does: it owns the links of several clients,
//! passes on their notifications, and checks and stores uploaded chunks on the
//! thread that received them, while they are in cache. Told what to do by
//! sessions; answers into their event queues.
//!
//! A chunk is hashed and written a grain at a time, and the slot is held while a
//! grain is: what is written is what was hashed, whatever the client sends.

use crate::observe::View;
use crate::session::{EVENTS_MAX, Event};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use verbatim_fabric::worker::{Handler, LinkKey, LinkSet};
use verbatim_fabric::{Completion, FabricError, Link, SharedSlot};
use verbatim_files::Target;
use verbatim_proto::message::{LinkId, Piece, Tag, Verdict};
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Code, Digest, Fault};
use verbatim_telemetry::labels::Transport;

/// What a session tells a worker.
pub(crate) enum Command {
    /// Take this link.
    Adopt { key: LinkKey, id: LinkId, link: Box<dyn Link>, session: mpsc::Sender<Event> },
    /// Check and store a chunk.
    Absorb {
        tag: Tag,
        slot: SharedSlot,
        pieces: Vec<Landing>,
        session: mpsc::Sender<Event>,
        view: Arc<View>,
        transport: Transport,
    },
    /// End this link, and say so.
    Kill { key: LinkKey, id: LinkId, session: mpsc::Sender<Event> },
}

/// A piece of a chunk, and where it goes.
pub(crate) struct Landing {
    pub piece: Piece,
    pub target: Option<Arc<Target>>,
    pub size: u64,
    /// Why it may not be stored, if it may not.
    pub refused: Option<Fault>,
}

/// The handler of one worker thread.
#[derive(Default)]
pub(crate) struct ServerWorker {
    owners: HashMap<LinkKey, (LinkId, mpsc::Sender<Event>)>,
}

impl ServerWorker {
    /// Hashes, compares and writes one piece that begins at `at` of the slot.
    fn absorb(slot: &SharedSlot, at: usize, landing: &Landing) -> Verdict {
        if let Some(fault) = &landing.refused {
            return Verdict::Failed(fault.clone());
        }
        let Some(target) = &landing.target else {
            return Verdict::Failed(Fault::new(Code::Protocol, "no such file is open"));
        };
        let extent = landing.piece.extent;
        let mut done = 0;
        for digest in &landing.piece.digests {
            let len = (extent.len - done).min(GRAIN_BYTES);
            let offset = extent.offset + done;
            let verdict = slot.with(at + done as usize, len as usize, |grain| {
                if Digest::of_grain(offset, landing.size, grain) != *digest {
                    return Verdict::Mismatch;
                }
                target.write_at(grain, offset).map_or_else(Verdict::Failed, |()| Verdict::Stored)
            });
            if verdict != Verdict::Stored {
                return verdict;
            }
            done += len;
        }
        let noted = target.verified(extent, &landing.piece.digests);
        noted.map_or_else(Verdict::Failed, |()| Verdict::Stored)
    }
}

impl Handler<Box<dyn Link>> for ServerWorker {
    type Command = Command;

    fn command(&mut self, links: &mut LinkSet<Box<dyn Link>>, command: Command) {
        match command {
            Command::Adopt { key, id, link, session } => {
                self.owners.insert(key, (id, session));
                links.insert(key, link);
            }
            Command::Absorb { tag, slot, pieces, session, view, transport } => {
                let begin = Instant::now();
                let mut at = 0;
                let mut verdicts = Vec::with_capacity(pieces.len());
                for landing in &pieces {
                    verdicts.push(Self::absorb(&slot, at, landing));
                    at += landing.piece.extent.len as usize;
                }
                let sizes = pieces.iter().map(|of| (of.piece.file, of.piece.extent.len));
                view.stored(transport, sizes, &verdicts, begin.elapsed());
                drop(pieces);
                // A session that is gone needs no verdict.
                let _ = session.try_send(Event::Absorbed { tag, verdicts });
            }
            Command::Kill { key, id, session } => {
                self.owners.remove(&key);
                if let Some(mut link) = links.remove(&key) {
                    link.abort(&mut Vec::new());
                }
                let _ = session.try_send(Event::LinkDead { link: id, why: None });
            }
        }
    }

    fn completed(&mut self, links: &mut LinkSet<Box<dyn Link>>, key: LinkKey, done: Completion) {
        // The server submits nothing itself: only notifications come.
        let Completion::Notified { tag } = done else { return };
        let Some((link, session)) = self.owners.get(&key) else { return };
        let event = Event::Notified { link: *link, tag: Tag(tag) };
        // Half of the queue is for answers the session waits for; a client that floods it with
        // notifications loses its link.
        let flooded = session.capacity() < EVENTS_MAX / 2;
        if flooded || session.try_send(event).is_err() {
            let dead = links.remove(&key);
            let error = FabricError::Protocol("too many notifications".into());
            drop(dead);
            self.lost(key, Vec::new(), error);
        }
    }

    fn lost(&mut self, key: LinkKey, _flushed: Vec<Completion>, error: FabricError) {
        if let Some((link, session)) = self.owners.remove(&key) {
            let _ = session.try_send(Event::LinkDead { link, why: Some(error) });
        }
    }
}
