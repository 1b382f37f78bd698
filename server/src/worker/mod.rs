//! What a worker of the server does: it owns the links of several clients,
//! and checks and stores uploaded chunks on the thread that received them, while
//! they are in cache. Told what to do by sessions; answers into their event queues.
//!
//! A chunk that its session expects is stored when it is notified, and the session hears
//! what became of it. Any other notification is passed on, and the session says what to do.
//!
//! The slot of a chunk is held while it is hashed and written: what is written is what was
//! hashed, whatever the client sends. One that lies in its file is hashed when no device
//! can write to it any more.

mod direct_range;

use crate::exports::quota::{self, Quota};
use crate::observe::session_stats::View;
use crate::rdma::registrations::{Offered, SessionDomain};
pub(crate) use direct_range::{SpotEvent, Taking};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use verbatim_fabric::worker::{Handler, LinkKey, LinkSet};
use verbatim_fabric::{Completion, FabricError, Link, MappedSpot, Memory, SharedSlot};
use verbatim_files::Target;
use verbatim_files::checked::{self, Unfit};
use verbatim_proto::message::{LinkId, Piece, Spot, Tag, Verdict};
use verbatim_proto::units::{ANSWERS_TOGETHER, GRAIN_BYTES, SLOTS_PER_LINK};
use verbatim_proto::{Code, Digest, Fault};
use verbatim_serve::{EVENTS_MAX, EventPort};
use verbatim_telemetry::labels::Transport;

/// What a worker tells a session of one of its links.
pub(crate) enum LinkEvent {
    /// The client notified a chunk that was not expected.
    Notified {
        link: LinkId,
        tag: Tag,
    },
    /// A chunk was checked and stored, or not.
    Absorbed {
        tag: Tag,
        bytes: u64,
        verdicts: Vec<Verdict>,
    },
    Spot(SpotEvent),
    /// The link ended: nothing of it can land any more.
    Dead {
        link: LinkId,
        why: Option<FabricError>,
    },
}

/// What a session tells a worker.
pub(crate) enum Command {
    /// Take this link.
    Adopt { key: LinkKey, id: LinkId, link: Box<dyn Link>, session: EventPort<LinkEvent> },
    /// Check and store a chunk when this link notifies it.
    Expect(LinkKey, Chunk),
    /// Check and store a chunk that this link has notified.
    Absorb(LinkKey, Chunk),
    /// This link has notified a chunk that was judged before: nothing is to be done.
    Forget(LinkKey, Tag),
    /// Let a device write to a range of a file, and say where.
    MakeSpot { wish: SpotWish, domain: Arc<SessionDomain>, session: EventPort<LinkEvent> },
    /// End this link, and say so.
    Kill { key: LinkKey, id: LinkId, session: EventPort<LinkEvent> },
}

/// A chunk of a client.
pub(crate) struct Chunk {
    pub tag: Tag,
    pub lies: Lies,
    pub pieces: Vec<Landing>,
    pub session: EventPort<LinkEvent>,
    pub view: Arc<View>,
    pub transport: Transport,
}

/// Where a chunk lies that is to be checked.
pub(crate) enum Lies {
    /// In a slot: it is copied to its files.
    InSlot(SharedSlot),
    /// In its file, at a spot that is taken back first.
    InFile(Taking),
}

/// A range of a file that is to be written to by a device.
pub(crate) struct SpotWish {
    pub spot: Spot,
    pub rail: u16,
    pub target: Arc<Target>,
}

/// A piece of a chunk, and where it goes.
pub(crate) struct Landing {
    pub piece: Piece,
    pub target: Option<Arc<Target>>,
    pub quota: Option<Arc<Quota>>,
    pub size: u64,
}

impl Landing {
    /// The file it goes to, where it may; takes its bytes from the quota.
    fn target(&self) -> Result<&Target, Fault> {
        let target = self.target.as_deref();
        let target = target.ok_or_else(|| Fault::new(Code::Protocol, "no such file is open"))?;
        quota::take(self.quota.as_ref(), self.piece.extent.len)?;
        Ok(target)
    }
}

/// The most notifications of a link that its session was told of and has said nothing about.
pub(crate) const TOLD_MAX: usize = 4 * SLOTS_PER_LINK as usize;

/// Whose a link is.
struct Owner {
    link: LinkId,
    session: EventPort<LinkEvent>,
    expected: Vec<Chunk>,
    /// What the session was told of: it is not stored until it says so.
    told: Vec<Tag>,
    /// What became of chunks while others are expected, to be told with the next.
    held: Vec<LinkEvent>,
}

impl Owner {
    /// The chunk of a tag, if it is expected.
    fn take(&mut self, tag: Tag) -> Option<Chunk> {
        let at = self.expected.iter().position(|chunk| chunk.tag == tag)?;
        Some(self.expected.swap_remove(at))
    }

    /// Tells what became of a chunk: with the next one where that is sure to come, or its link
    /// to die.
    fn absorbed(&mut self, event: LinkEvent) {
        self.held.push(event);
        if self.expected.is_empty() || self.held.len() >= ANSWERS_TOGETHER {
            self.tell_held();
        }
    }

    fn tell_held(&mut self) {
        for event in self.held.drain(..) {
            // A session that is gone needs no verdict.
            let _ = self.session.tell(event);
        }
    }

    /// Passes a notification on; whether that could be done. It may name a chunk whose verdict is
    /// held: the session must have heard that first.
    fn tell(&mut self, tag: Tag) -> bool {
        self.tell_held();
        if self.told.contains(&tag) {
            return true;
        }
        self.told.push(tag);
        // Half of the queue is for answers the session waits for; a client that floods it with
        // notifications loses its link.
        let room = self.told.len() <= TOLD_MAX && self.session.room() >= EVENTS_MAX / 2;
        room && self.session.tell(LinkEvent::Notified { link: self.link, tag }).is_ok()
    }
}

/// The handler of one worker thread.
#[derive(Default)]
pub(crate) struct ServerWorker {
    owners: HashMap<LinkKey, Owner>,
    /// Where a grain is read to that lies in its file.
    scratch: Vec<u8>,
}

impl ServerWorker {
    /// Hashes, compares and writes one piece that begins at `at` of the slot.
    fn store(slot: &SharedSlot, at: usize, landing: &Landing) -> Verdict {
        let target = match landing.target() {
            Ok(target) => target,
            Err(fault) => return Verdict::Failed(fault),
        };
        let Piece { extent, digests, .. } = &landing.piece;
        // All of it at once: what is checked is what is written.
        let written = slot.with(at, extent.len as usize, |bytes| {
            checked::write(target, bytes, (extent.offset, landing.size), digests)
        });
        match written {
            Ok(_) => Verdict::Stored,
            Err(Unfit::Mismatch) => Verdict::Mismatch,
            Err(Unfit::Failed(fault)) => Verdict::Failed(fault),
        }
    }
}

impl ServerWorker {
    /// Checks and stores the pieces of a slot, one behind the other.
    fn store_all(slot: &SharedSlot, pieces: &[Landing]) -> Vec<Verdict> {
        let mut at = 0;
        let mut verdicts = Vec::with_capacity(pieces.len());
        for landing in pieces {
            verdicts.push(Self::store(slot, at, landing));
            at += landing.piece.extent.len as usize;
        }
        verdicts
    }

    /// Checks a piece that lies in its file, where nobody can write any more.
    fn look(&mut self, landing: &Landing) -> Verdict {
        let target = match landing.target() {
            Ok(target) => target,
            Err(fault) => return Verdict::Failed(fault),
        };
        let extent = landing.piece.extent;
        self.scratch.resize(GRAIN_BYTES as usize, 0);
        let starts = (0..extent.len).step_by(GRAIN_BYTES as usize);
        for (done, digest) in starts.zip(&landing.piece.digests) {
            let grain = &mut self.scratch[..(extent.len - done).min(GRAIN_BYTES) as usize];
            let offset = extent.offset + done;
            if let Err(fault) = target.read_landed(grain, offset) {
                return Verdict::Failed(fault);
            }
            if Digest::of_grain(offset, landing.size, grain) != *digest {
                return Verdict::Mismatch;
            }
        }
        let noted = target.verified(extent, &landing.piece.digests);
        noted.map_or_else(Verdict::Failed, |()| Verdict::Stored)
    }

    /// The session has said what is to be done with what it was told of.
    fn forget(&mut self, key: LinkKey, tag: Tag) {
        if let Some(owner) = self.owners.get_mut(&key) {
            owner.told.retain(|told| *told != tag);
        }
    }

    /// Checks and stores a chunk of a link, and tells its session.
    fn absorb(&mut self, key: LinkKey, chunk: Chunk) {
        let Chunk { tag, lies, pieces, session, view, transport } = chunk;
        let begin = Instant::now();
        let verdicts = match &lies {
            Lies::InSlot(slot) => {
                let verdicts = Self::store_all(slot, &pieces);
                slot.give_back();
                verdicts
            }
            Lies::InFile(taking) if taking.take_back() => {
                pieces.iter().map(|landing| self.look(landing)).collect()
            }
            Lies::InFile(_) => {
                let _ = session.tell(LinkEvent::Spot(SpotEvent::Stuck));
                return;
            }
        };
        let sizes = pieces.iter().map(|of| (of.piece.file, of.piece.extent.len));
        let bytes = sizes.clone().map(|(_, len)| len).sum();
        view.stored(transport, sizes, &verdicts, begin.elapsed());
        // The files must not outlive the answer: a discard removes them.
        drop(pieces);
        let event = LinkEvent::Absorbed { tag, bytes, verdicts };
        match self.owners.get_mut(&key) {
            Some(owner) => owner.absorbed(event),
            None => {
                let _ = session.tell(event);
            }
        }
    }
}

/// Registers a range of a file for writes of a device.
fn make_spot(wish: &SpotWish, domain: &SessionDomain) -> Result<Offered, Fault> {
    let SpotWish { spot, rail, target } = wish;
    let len = spot.extent.len;
    let fault = |error: FabricError| Fault::new(Code::Limit, error.with_hint());
    let pin = domain.pin_slot(Some(*rail), len);
    let pin = pin.ok_or_else(|| Fault::new(Code::Limit, "no more may be pinned now"))?;
    let mapped = MappedSpot::new(target.file(), spot.extent.offset, len as usize);
    let mut mapped = mapped.map_err(fault)?;
    if !target.is_in_memory() {
        // Found out now, a full disk costs a slot; in the midst of a write it costs the link.
        target.make_room(spot.extent)?;
        mapped = mapped.on_demand();
    }
    let memory = Memory::Spot(mapped);
    domain.offer_on(Some(*rail), memory, pin).map_err(fault)
}

impl Handler<Box<dyn Link>> for ServerWorker {
    type Command = Command;

    fn command(&mut self, links: &mut LinkSet<Box<dyn Link>>, command: Command) {
        match command {
            Command::Adopt { key, id, link, session } => {
                let (expected, told, held) = (Vec::new(), Vec::new(), Vec::new());
                self.owners.insert(key, Owner { link: id, session, expected, told, held });
                links.insert(key, link);
            }
            Command::MakeSpot { wish, domain, session } => {
                let answer = make_spot(&wish, &domain);
                let tag = wish.spot.tag;
                // The file must not outlive the answer: a discard removes it.
                drop(wish);
                // A session that is gone has ended all of its domain.
                let _ = session.tell(LinkEvent::Spot(SpotEvent::Made(tag, answer)));
            }
            Command::Expect(key, chunk) => {
                // A session that was told of it already will say what is to be done.
                let owner = self.owners.get_mut(&key);
                if let Some(owner) = owner.filter(|owner| !owner.told.contains(&chunk.tag)) {
                    owner.expected.push(chunk);
                }
            }
            Command::Forget(key, tag) => self.forget(key, tag),
            Command::Absorb(key, chunk) => {
                self.forget(key, chunk.tag);
                self.absorb(key, chunk);
            }
            Command::Kill { key, id, session } => {
                if let Some(mut owner) = self.owners.remove(&key) {
                    owner.tell_held();
                }
                if let Some(mut link) = links.remove(&key) {
                    link.abort(&mut Vec::new());
                }
                let _ = session.tell(LinkEvent::Dead { link: id, why: None });
            }
        }
    }

    fn completed(&mut self, links: &mut LinkSet<Box<dyn Link>>, key: LinkKey, done: Completion) {
        // The server submits nothing itself: only notifications come.
        let Completion::Notified { tag } = done else { return };
        let Some(owner) = self.owners.get_mut(&key) else { return };
        if let Some(chunk) = owner.take(Tag(tag)) {
            self.absorb(key, chunk);
        } else if !owner.tell(Tag(tag)) {
            let dead = links.remove(&key);
            let error = FabricError::Protocol("too many notifications".into());
            drop(dead);
            self.lost(key, Vec::new(), error);
        }
    }

    fn lost(&mut self, key: LinkKey, _flushed: Vec<Completion>, error: FabricError) {
        if let Some(mut owner) = self.owners.remove(&key) {
            owner.tell_held();
            let Owner { link, session, .. } = owner;
            let _ = session.tell(LinkEvent::Dead { link, why: Some(error) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::observatory::Observatory;
    use crate::observe::session_stats::Guest;
    use std::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;
    use verbatim_fabric::tcp::TcpLink;
    use verbatim_fabric::{SoftDomain, SparePages};
    use verbatim_files::Folder;
    use verbatim_proto::message::FileId;
    use verbatim_proto::{Extent, WirePath};

    const BYTES: u64 = 100;
    const TAG: Tag = Tag(7);

    /// Keys of two links of one session.
    const ONE: LinkKey = LinkKey(1);
    const OTHER: LinkKey = LinkKey(2);

    /// A worker that has two links, and a file that a chunk goes into.
    struct Scene {
        worker: ServerWorker,
        links: LinkSet<Box<dyn Link>>,
        sender: EventPort<LinkEvent>,
        events: mpsc::Receiver<LinkEvent>,
        view: Arc<View>,
        target: Arc<Target>,
        in_turns: SparePages,
        _dir: tempfile::TempDir,
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a folder");
            let folder = Folder::open(dir.path()).expect("a folder");
            let path = WirePath::parse(b"a").expect("a path");
            let target = Target::create(&folder, &path, BYTES, 0o644).expect("a file");
            let (who, agent, request) = ("me".into(), "test".into(), "0f".into());
            let (domain, discreet) = Default::default();
            let peer = ([127, 0, 0, 1], 1).into();
            let guest = Guest { id: 1, request, peer, who, agent, domain, discreet };
            let view = Observatory::new(dir.path().to_owned()).enter(guest);
            let (queue, events) = mpsc::channel(EVENTS_MAX);
            let sender = EventPort::of(&queue);
            let mut scene = Self {
                worker: ServerWorker::default(),
                links: LinkSet::new(),
                sender,
                events,
                view,
                target: Arc::new(target),
                in_turns: SparePages::new(BYTES as usize),
                _dir: dir,
            };
            [ONE, OTHER].into_iter().for_each(|key| scene.adopt(key));
            scene
        }

        fn adopt(&mut self, key: LinkKey) {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let stream = TcpStream::connect(listener.local_addr().expect("an address"));
            let link = TcpLink::new(stream.expect("a connection"), SoftDomain::new());
            let link: Box<dyn Link> = Box::new(link.expect("a link"));
            let id = Self::link(key);
            self.tell(Command::Adopt { key, id, link, session: self.sender.clone() });
        }

        fn link(key: LinkKey) -> LinkId {
            LinkId { index: key.0 as u16, epoch: 0 }
        }

        fn tell(&mut self, command: Command) {
            self.worker.command(&mut self.links, command);
        }

        fn notify(&mut self, key: LinkKey, tag: Tag) {
            self.worker.completed(&mut self.links, key, Completion::Notified { tag: tag.0 });
        }

        /// The first link is killed, or dies.
        fn end(&mut self, killed: bool) {
            let (id, session) = (Self::link(ONE), self.sender.clone());
            match killed {
                true => self.tell(Command::Kill { key: ONE, id, session }),
                false => {
                    let error = FabricError::Protocol("test".into());
                    self.worker.lost(ONE, Vec::new(), error);
                }
            }
        }

        /// A chunk that is all of the file, in a slot it has come to.
        fn chunk(&self) -> Chunk {
            let bytes = [5; BYTES as usize];
            let slot = self.in_turns.slot().expect("a slot");
            slot.copy_in(0, &bytes);
            let digests = Digest::of_grains(0, BYTES, &bytes);
            let piece = Piece { file: FileId(1), extent: Extent::new(0, BYTES), digests };
            let target = Some(self.target.clone());
            let (session, view) = (self.sender.clone(), self.view.clone());
            let pieces = vec![Landing { piece, target, quota: None, size: BYTES }];
            let lies = Lies::InSlot(slot);
            Chunk { tag: TAG, lies, pieces, session, view, transport: Transport::Tcp }
        }

        /// What the session was told since, one word each.
        fn told(&mut self) -> Vec<String> {
            let word = |event| match event {
                LinkEvent::Notified { link, tag } => {
                    format!("notified {} on {}", tag.0, link.index)
                }
                LinkEvent::Absorbed { tag, bytes, verdicts } => {
                    assert_eq!((bytes, &*verdicts), (BYTES, &[Verdict::Stored][..]));
                    format!("absorbed {}", tag.0)
                }
                LinkEvent::Dead { link, .. } => format!("dead {}", link.index),
                _ => "something else".into(),
            };
            std::iter::from_fn(|| self.events.try_recv().ok()).map(word).collect()
        }

        fn is_stored(&self) -> bool {
            let mut landed = vec![0; BYTES as usize];
            let read = self.target.read_landed(&mut landed, 0);
            read.is_ok() && landed.iter().all(|byte| *byte == 5)
        }
    }

    #[test]
    fn what_is_expected_is_stored_when_its_own_link_notifies_it_and_once() {
        let mut scene = Scene::new();
        scene.tell(Command::Expect(ONE, scene.chunk()));
        assert_eq!((scene.told(), scene.is_stored()), (vec![], false), "it has not come");
        scene.notify(OTHER, TAG);
        assert_eq!((scene.told(), scene.is_stored()), (vec!["notified 7 on 2".into()], false));
        scene.notify(ONE, TAG);
        assert_eq!((scene.told(), scene.is_stored()), (vec!["absorbed 7".into()], true));
        scene.notify(ONE, TAG);
        assert_eq!(scene.told(), ["notified 7 on 1"], "the session finds that it was used");
    }

    #[test]
    fn the_memory_of_what_was_stored_is_the_next_ones_and_not_before() {
        let address = |slot: &SharedSlot| slot.fill_with(0, 1, |bytes| bytes.as_ptr());
        let mut scene = Scene::new();
        let (chunk, next) = (scene.chunk(), scene.in_turns.slot().expect("a slot"));
        let Lies::InSlot(slot) = &chunk.lies else { panic!("it came to a slot") };
        let there = address(slot);
        scene.tell(Command::Expect(ONE, chunk));
        assert_ne!(address(&next), there, "it is not stored yet");
        next.give_back();
        scene.notify(ONE, TAG);
        assert!(scene.is_stored());
        assert_eq!(address(&next), there);
    }

    #[test]
    fn what_a_session_was_told_of_is_stored_when_it_says_so() {
        let mut scene = Scene::new();
        scene.notify(ONE, TAG);
        // Both were on the way: the session says again what is to be done.
        scene.tell(Command::Expect(ONE, scene.chunk()));
        scene.notify(ONE, TAG);
        assert_eq!(scene.told(), ["notified 7 on 1"], "once is enough");
        assert!(!scene.is_stored(), "it would be stored a second time");
        scene.tell(Command::Absorb(ONE, scene.chunk()));
        assert_eq!((scene.told(), scene.is_stored()), (vec!["absorbed 7".into()], true));
    }

    #[test]
    fn a_verdict_is_told_with_the_next_one_that_its_link_is_sure_to_have() {
        let (first, second, third) = (Tag(1), Tag(2), Tag(3));
        let expecting = |tags: &[Tag]| {
            let mut scene = Scene::new();
            for tag in tags {
                let chunk = Chunk { tag: *tag, ..scene.chunk() };
                scene.tell(Command::Expect(ONE, chunk));
            }
            scene
        };
        let mut scene = expecting(&[first, second, third]);
        scene.notify(ONE, first);
        assert_eq!((scene.told(), scene.is_stored()), (vec![], true), "the next comes soon");
        scene.notify(ONE, second);
        assert_eq!(scene.told(), ["absorbed 1", "absorbed 2"]);
        scene.notify(ONE, third);
        assert_eq!(scene.told(), ["absorbed 3"], "nothing else is expected");
        // What is notified a second time was judged before, for the session too.
        let mut scene = expecting(&[first, second]);
        scene.notify(ONE, first);
        scene.notify(ONE, first);
        assert_eq!(scene.told(), ["absorbed 1", "notified 1 on 1"]);
        // Another link has others to wait for.
        let mut scene = expecting(&[first]);
        scene.tell(Command::Expect(OTHER, Chunk { tag: second, ..scene.chunk() }));
        scene.notify(ONE, first);
        assert_eq!(scene.told(), ["absorbed 1"]);
        for killed in [true, false] {
            let mut scene = expecting(&[first, second]);
            scene.notify(ONE, first);
            scene.end(killed);
            assert_eq!(scene.told(), ["absorbed 1", "dead 1"]);
        }
    }

    #[test]
    fn nothing_is_expected_of_a_dead_link() {
        for killed in [true, false] {
            let mut scene = Scene::new();
            scene.tell(Command::Expect(ONE, scene.chunk()));
            scene.end(killed);
            scene.notify(ONE, TAG);
            scene.tell(Command::Expect(ONE, scene.chunk()));
            scene.notify(ONE, TAG);
            assert_eq!((scene.told(), scene.is_stored()), (vec!["dead 1".into()], false));
            assert_eq!(Arc::strong_count(&scene.target), 1, "its file is let go");
            // What was notified while it lived is judged all the same.
            scene.tell(Command::Absorb(ONE, scene.chunk()));
            assert_eq!((scene.told(), scene.is_stored()), (vec!["absorbed 7".into()], true));
        }
    }

    #[test]
    fn who_notifies_what_nobody_asked_for_loses_the_link() {
        let mut scene = Scene::new();
        let tags = || (0..TOLD_MAX as u32).map(Tag);
        for tag in tags().chain(tags()) {
            scene.notify(ONE, tag);
        }
        assert_eq!(scene.told().len(), TOLD_MAX, "one and the same is told once");
        // What was judged before is forgotten, and makes room.
        scene.tell(Command::Forget(ONE, Tag(3)));
        scene.notify(ONE, Tag(TOLD_MAX as u32));
        assert_eq!(scene.told().len(), 1);
        scene.notify(ONE, Tag(u32::MAX));
        assert_eq!(scene.told(), ["dead 1"]);
        assert!(!scene.links.contains_key(&ONE) && scene.links.contains_key(&OTHER));
    }
}
