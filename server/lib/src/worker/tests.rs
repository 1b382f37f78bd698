//! A worker that stores real files, over links that receive nothing: the test calls the worker with
//! notifications.

use super::chunk_store::{Chunk, ChunkLocation, ChunkStore, PieceTarget};
use super::{Command, LinkEvent, Upload, Worker};
use crate::observe::server_stats::ServerStats;
use crate::observe::session_stats::{SessionInfo, SessionStats};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use tokio::sync::mpsc;
use verbatim_fabric::tcp::TcpLink;
use verbatim_fabric::worker::{Handler, LinkKey, LinkSet};
use verbatim_fabric::{Completion, FabricError, Link, SharedSlot, SoftDomain, SparePages};
use verbatim_files::{Folder, Target};
use verbatim_proto::message::{FileId, LinkId, Piece, Tag, Verdict};
use verbatim_proto::{Digest, Extent, WirePath};
use verbatim_serve::link_worker::NOTIFIED_MAX;
use verbatim_serve::{EVENTS_MAX, EventPort};
use verbatim_telemetry::labels::Transport;

const BYTES: u64 = 100;
const TAG: Tag = Tag(7);

/// Keys of two links of one session.
const ONE: LinkKey = LinkKey(1);
const OTHER: LinkKey = LinkKey(2);

/// A worker with two links, and the target of a chunk.
struct Scene {
    worker: Worker,
    links: LinkSet<Box<dyn Link>>,
    sender: EventPort<LinkEvent>,
    events: mpsc::Receiver<LinkEvent>,
    view: Arc<SessionStats>,
    target: Arc<Target>,
    spare_pages: SparePages,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(dir.path()).expect("a folder");
        let path = WirePath::parse(b"a").expect("a path");
        let target = Target::create(&folder, &path, BYTES, 0o644).expect("a file");
        let (who, agent, request) = ("me".into(), "test".into(), "0f".into());
        let (domain, used_hidden) = Default::default();
        let peer = ([127, 0, 0, 1], 1).into();
        let guest = SessionInfo { id: 1, request, peer, who, agent, domain, used_hidden };
        let view = ServerStats::new(dir.path().to_owned()).add_session(guest);
        let (queue, events) = mpsc::channel(EVENTS_MAX);
        let sender = EventPort::of(&queue);
        let mut scene = Self {
            worker: Worker::new(ChunkStore::default()),
            links: LinkSet::new(),
            sender,
            events,
            view,
            target: Arc::new(target),
            spare_pages: SparePages::new(BYTES as usize),
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

    /// A chunk with the whole file, in the slot it was written to.
    fn chunk(&self) -> Upload {
        let bytes = [5; BYTES as usize];
        let slot = self.spare_pages.slot().expect("a slot");
        slot.copy_in(0, &bytes);
        let digests = Digest::of_grains(0, BYTES, &bytes);
        let piece = Piece { file: FileId(1), extent: Extent::new(0, BYTES), digests };
        let target = Some(self.target.clone());
        let (session, view) = (self.sender.clone(), self.view.clone());
        let pieces = vec![PieceTarget { piece, target, quota: None, size: BYTES }];
        let location = ChunkLocation::InSlot(slot);
        let chunk = Chunk { location, pieces, view, transport: Transport::Tcp };
        Upload { tag: TAG, chunk, session }
    }

    /// The events of the session since the last call, one word each.
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
fn an_expected_chunk_is_stored_once_when_its_own_link_notifies_it() {
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
fn slot_memory_is_reused_after_its_chunk_is_stored_and_not_before() {
    let address = |slot: &SharedSlot| slot.fill_with(0, 1, |bytes| bytes.as_ptr());
    let mut scene = Scene::new();
    let (chunk, next) = (scene.chunk(), scene.spare_pages.slot().expect("a slot"));
    let ChunkLocation::InSlot(slot) = &chunk.chunk.location else { panic!("it came to a slot") };
    let there = address(slot);
    scene.tell(Command::Expect(ONE, chunk));
    assert_ne!(address(&next), there, "it is not stored yet");
    next.give_back();
    scene.notify(ONE, TAG);
    assert!(scene.is_stored());
    assert_eq!(address(&next), there);
}

#[test]
fn a_notified_chunk_is_stored_when_its_session_says_so() {
    let mut scene = Scene::new();
    scene.notify(ONE, TAG);
    // Notification and command crossed: the session repeats its command.
    scene.tell(Command::Expect(ONE, scene.chunk()));
    scene.notify(ONE, TAG);
    assert_eq!(scene.told(), ["notified 7 on 1"], "once is enough");
    assert!(!scene.is_stored(), "it would be stored a second time");
    scene.tell(Command::Absorb(ONE, scene.chunk()));
    assert_eq!((scene.told(), scene.is_stored()), (vec!["absorbed 7".into()], true));
}

#[test]
fn verdicts_are_batched_while_more_chunks_are_expected() {
    let (first, second, third) = (Tag(1), Tag(2), Tag(3));
    let expecting = |tags: &[Tag]| {
        let mut scene = Scene::new();
        for tag in tags {
            let chunk = Upload { tag: *tag, ..scene.chunk() };
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
    // A repeated notification was judged before, by the session too.
    let mut scene = expecting(&[first, second]);
    scene.notify(ONE, first);
    scene.notify(ONE, first);
    assert_eq!(scene.told(), ["absorbed 1", "notified 1 on 1"]);
    // The other link waits for other chunks.
    let mut scene = expecting(&[first]);
    scene.tell(Command::Expect(OTHER, Upload { tag: second, ..scene.chunk() }));
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
        // A chunk that was notified while the link lived gets its verdict.
        scene.tell(Command::Absorb(ONE, scene.chunk()));
        assert_eq!((scene.told(), scene.is_stored()), (vec!["absorbed 7".into()], true));
    }
}

#[test]
fn unexpected_notifications_end_the_link() {
    let mut scene = Scene::new();
    let tags = || (0..NOTIFIED_MAX as u32).map(Tag);
    for tag in tags().chain(tags()) {
        scene.notify(ONE, tag);
    }
    assert_eq!(scene.told().len(), NOTIFIED_MAX, "one and the same is told once");
    // A judged notification is forgotten, and makes room.
    scene.tell(Command::Forget(ONE, Tag(3)));
    scene.notify(ONE, Tag(NOTIFIED_MAX as u32));
    assert_eq!(scene.told().len(), 1);
    scene.notify(ONE, Tag(u32::MAX));
    assert_eq!(scene.told(), ["dead 1"]);
    assert!(!scene.links.contains_key(&ONE) && scene.links.contains_key(&OTHER));
}
