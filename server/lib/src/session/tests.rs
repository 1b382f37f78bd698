//! A session without a socket: the tests send messages of a client and read the answers over a pipe
//! in memory, on real exports. Tests with a real client are in `tests/`.

mod bounds;
mod memory;

use super::mirror::MIRROR_IDLE_MAX;
use super::*;
use crate::config::export::{Export, Mode};
use crate::config::{Config, Metrics};
use crate::exports::client_view::ClientIdentity;
use crate::limits::client_limits::HASHED_WALKS_MAX;
use crate::observe::session_stats::SessionInfo;
use crate::server::{ServerOptions, share};
use std::collections::VecDeque;
use std::path::Path;
use tempfile::TempDir;
use verbatim_control::Sender;
use verbatim_fabric::domain::Access;
use verbatim_fabric::sim::{Faults, SimClock, SimLink, SimNet};
use verbatim_fabric::{
    Buffer, Completion, FabricError, Full, Limits, Link, Memory, Op, RemoteRange, Ticket, Wake,
};
use verbatim_files::TreeWalk;
use verbatim_files::hold::Hold;
use verbatim_files::paging::next_page;
use verbatim_proto::alike::{digest_of, ends_page};
use verbatim_proto::message::{
    CreateFile, FileId, FileInfo, Grant, Lease, LinkAnswer, LinkId, LinkOffer, OpenFile, Piece,
    ReadReply, ReadRequest, Region, SentChunk, Tag, Verdict, WriteReply, WriteRequest,
};
use verbatim_proto::mirror::{Edit, TreeScan};
use verbatim_proto::units::{GRAIN_BYTES, PACK_BYTES_MAX, PAGE_ENTRIES_MAX, RACY_NS, WINDOW_BYTES};
use verbatim_proto::{
    Digest, Extent, Fault, Filter, Look, MirrorReply, MirrorRequest, Scan, WirePath,
};
use verbatim_serve::link_worker::NOTIFIED_MAX;

mod qp_setup;

/// The deadline of anything that should happen at once.
const SOON: Duration = Duration::from_secs(20);

struct Scene {
    session: Session,
    events: mpsc::Receiver<Event>,
    client: Receiver<ServerMessage>,
    dir: Arc<TempDir>,
}

impl Scene {
    /// A client of a server that exports the folder `data`; the test adjusts the configuration.
    fn new(change: impl FnOnce(&mut Config)) -> Self {
        Self::sharing(change, |_| ())
    }

    /// The same with adjusted services.
    fn sharing(change: impl FnOnce(&mut Config), other: impl FnOnce(&mut Services)) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let data = dir.path().join("data");
        std::fs::create_dir(&data).expect("a folder");
        let mut config = Config {
            state: dir.path().join("state"),
            metrics: Metrics::off(),
            workers: 1,
            exports: vec![Export::new("data", &data, Mode::ReadWrite).expect("an export")],
            ..Config::default()
        };
        config.rdma.enable = false;
        config.cache.enabled = false;
        change(&mut config);
        let sim = Some(SimNet::new(1, Faults::default(), SimClock::Real));
        let services = share(&config, ServerOptions { sim, ..ServerOptions::default() });
        let mut services = services.expect("it can be served");
        other(&mut services);
        Self::of(dir.into(), services.into())
    }

    /// Another session of the same client.
    fn again(&self) -> Self {
        Self::of(self.dir.clone(), self.session.client.services.clone())
    }

    fn of(dir: Arc<TempDir>, services: Arc<Services>) -> Self {
        let (here, there) = tokio::io::duplex(1 << 20);
        let outbox = Outbox::new(Sender::new(here), SOON);
        let peer = ([127, 0, 0, 1], 1).into();
        let (who, agent, request) = ("me".into(), "test".into(), "0f".into());
        let (domain, used_hidden) = Default::default();
        let guest = SessionInfo { id: 1, request, peer, who, agent, domain, used_hidden };
        let view = services.observatory.add_session(guest);
        let visitor = ClientIdentity { who: &Who::Local, address: peer.ip() };
        let reach = ClientView::of(&services.exports, &visitor);
        let (session, events) =
            Session::new(services, outbox, 1 << 20, None, view, (Who::Local, reach));
        Self { session, events, client: Receiver::new(there), dir }
    }

    fn data(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    fn say(&mut self, message: ClientMessage) -> Result<(), Fault> {
        let said = self.session.handle_message(message).and_then(|()| self.session.run_effects());
        said.map_err(|end| match end {
            End::Refused(fault) => fault,
            _ => panic!("it hung up"),
        })
    }

    /// Runs the session until it sends a message that `wanted` accepts.
    async fn hear<T>(&mut self, wanted: impl Fn(ServerMessage) -> Option<T>) -> T {
        let heard = async {
            loop {
                tokio::select! {
                    Some(event) = self.events.recv() => {
                        assert!(self.session.event(event).is_ok(), "it goes on");
                        assert!(self.session.run_effects().is_ok(), "it goes on");
                    }
                    message = self.client.recv() => {
                        let message = message.expect("readable").expect("it is there");
                        if let Some(answer) = wanted(message) {
                            return answer;
                        }
                    }
                }
            }
        };
        tokio::time::timeout(SOON, heard).await.expect("soon")
    }

    async fn attach(
        &mut self,
        index: u16,
        epoch: u16,
        offer: LinkOffer,
    ) -> Result<LinkAnswer, Fault> {
        let link = LinkId { index, epoch };
        self.say(ClientMessage::Attach { link, offer })?;
        self.hear(|message| match message {
            ServerMessage::Attached { link: made, answer } if made == link => Some(answer),
            _ => None,
        })
        .await
    }

    /// Creates `data/a` for writing.
    async fn creates(&mut self, file: FileId, size: u64) {
        let info = FileInfo { size, mode: 0o600, mtime_ns: 0, allocated: size, version: None };
        let files = vec![CreateFile { file, path: path("data/a"), info, stream: false }];
        self.say(ClientMessage::Write(WriteRequest::Create { files })).expect("it may write");
        let created = self.hear(|message| match message {
            ServerMessage::Write(WriteReply::Created { files }) => Some(files),
            _ => None,
        });
        assert!(created.await.iter().all(|(_, answer)| answer.is_ok()));
    }

    /// The next verdicts and grants.
    async fn granted(&mut self) -> (Vec<(Tag, Vec<Verdict>)>, Vec<Grant>) {
        self.hear(|message| match message {
            ServerMessage::Write(WriteReply::Granted { verdicts, grants }) => {
                Some((verdicts, grants))
            }
            _ => None,
        })
        .await
    }

    fn looks(&mut self) -> Result<(), Fault> {
        let look = Look { follow: false, paths: Vec::new() };
        self.say(ClientMessage::Stat { request: 1, look })
    }

    /// Begins a walk of `data`.
    fn walks(&mut self, digests: bool) {
        let path = path("data");
        let walk = TreeScan { path, filter: Vec::new(), avoid: None, digests };
        let walk = MirrorRequest::Walk { request: 1, walk };
        self.say(ClientMessage::Mirror(walk)).expect("it may walk");
    }

    /// Locks `data`.
    async fn holds(&mut self) {
        let begin = MirrorRequest::Begin { request: 1, path: path("data"), hold: true };
        self.say(ClientMessage::Mirror(begin)).expect("it may hold it");
        let answer = self.hear(|message| match message {
            ServerMessage::Mirror(MirrorReply::Begun { answer, .. }) => Some(answer),
            _ => None,
        });
        answer.await.expect("nobody else holds it");
    }
}

fn path(text: &str) -> WirePath {
    WirePath::parse(text.as_bytes()).expect("plain")
}

/// Names in order, none of which ends a page.
fn within_pages() -> impl Iterator<Item = String> {
    (0..).map(|number| format!("{number:05}")).filter(|name| !ends_page(&path(name)))
}

fn is_walked(message: &ServerMessage) -> bool {
    matches!(message, ServerMessage::Mirror(MirrorReply::Walked { .. }))
}

#[tokio::test]
async fn a_client_never_has_more_links_than_its_maximum() {
    let max = 2;
    let mut scene = Scene::new(|config| config.limits.links_per_session_max = max);
    for epoch in 0..50 {
        for index in 0..max as u16 {
            let answer = scene.attach(index, epoch, LinkOffer::Sim).await;
            let refused = answer.err().filter(|fault| fault.code != Code::Limit);
            assert_eq!(refused, None, "or there are too many of them");
            let live = scene.session.links.count();
            assert!(live.0 <= max as usize && live.1 <= 2 * max as usize, "{live:?} links");
        }
    }
    let answer = scene.attach(max as u16, 0, LinkOffer::Sim).await;
    assert_eq!(answer.expect_err("no such name").code, Code::Limit);
}

/// A simulated link that claims to be a queue pair, with memory that goes when it does.
struct QueuePair(SimLink, #[expect(dead_code, reason = "it is dropped")] Arc<()>);

impl Link for QueuePair {
    fn submit(&mut self, ticket: Ticket, op: Op) -> Result<(), Full> {
        self.0.submit(ticket, op)
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        self.0.poll(completions)
    }

    fn wake(&self) -> Wake<'_> {
        self.0.wake()
    }

    fn abort(&mut self, completions: &mut Vec<Completion>) {
        self.0.abort(completions);
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn transport(&self) -> &str {
        "verbs test/1"
    }
}

#[tokio::test]
async fn lost_queue_pairs_are_a_fallback_when_tcp_takes_their_place_and_one_only() {
    let mut scene = Scene::new(|_| ());
    let services = scene.session.client.services.clone();
    let sim = services.sim.clone().expect("it is simulated");
    let counted = |reason: &str| {
        let text = services.observatory.metrics_text(&services.watched());
        let name = format!("rdma_serve_fallbacks_total{{reason=\"{reason}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).map(str::to_owned)
    };
    for index in 0..3 {
        let (_, end) = sim.listen_end(scene.session.client.domain.soft().clone());
        scene.session.links.adopt(
            &scene.session.client,
            LinkId { index, epoch: 0 },
            Box::new(QueuePair(end, Arc::default())),
            None,
        );
    }
    for index in 0..2 {
        let link = LinkId { index, epoch: 0 };
        scene.session.links.died(&scene.session.client, link, Some(FabricError::Closed));
    }
    assert_eq!(counted("lost").as_deref(), Some("0"), "they may be made anew");
    // Two whose end the server saw, and one that only the client knows to be lost.
    for index in 0..3 {
        scene.attach(index, 1, LinkOffer::Tcp).await.expect("a link");
    }
    assert_eq!(counted("lost").as_deref(), Some("1"), "of one session");
    assert_eq!(counted("client").as_deref(), Some("0"), "it had asked");
}

#[tokio::test]
async fn a_failed_stat_is_an_error_and_a_missing_path_is_an_answer() {
    let mut scene = Scene::new(|_| ());
    std::fs::write(scene.data().join("a"), b"a").expect("writes");
    let services = scene.session.client.services.clone();
    let counted = || {
        let text = services.observatory.metrics_text(&services.watched());
        let lines = text.lines().filter(|line| line.starts_with("rdma_serve_errors_total{"));
        let count = |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<u64>().ok());
        lines.map(|line| count(line).expect("a number")).sum::<u64>()
    };
    for (asked, errors) in [("data/a", 0), ("data/none", 0), ("data/a/b", 1), ("none", 2)] {
        let look = Look { follow: true, paths: vec![path(asked)] };
        scene.say(ClientMessage::Stat { request: 1, look }).expect("it may ask");
        let is_stated = |message| matches!(message, ServerMessage::Stated { .. }).then_some(());
        scene.hear(is_stated).await;
        assert_eq!(counted(), errors, "{asked}");
    }
    let scan = Scan { path: path("data/none"), ..Scan::default() };
    scene.say(ClientMessage::Scan { request: 2, scan }).expect("it may ask");
    scene.hear(|message| matches!(message, ServerMessage::Page { .. }).then_some(())).await;
    assert_eq!(counted(), 3, "a folder that cannot be listed");
}

#[tokio::test]
async fn a_client_with_too_many_jobs_is_refused() {
    let mut scene = Scene::new(|_| ());
    for _ in 0..JOBS_MAX {
        scene.looks().expect("so many are done");
    }
    assert_eq!(scene.looks().expect_err("and no more").code, Code::Limit);
}

#[tokio::test]
async fn a_full_event_queue_ends_the_session() {
    let mut scene = Scene::new(|_| ());
    let dead = || LinkEvent::Dead { link: LinkId { index: 0, epoch: 0 }, why: None };
    while scene.session.links.events().try_send(dead()).is_ok() {}
    scene.looks().expect("it may ask");
    let until = Instant::now() + SOON;
    while scene.session.tick(Duration::ZERO).is_ok() {
        let jobs = scene.session.limits.under_way();
        assert!(Instant::now() < until, "the session goes on with an answer lost; {jobs} jobs");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A file whose digest takes a minute, without room on the disk.
fn make_long_file(folder: &Path) {
    let file = std::fs::File::create(folder.join("long")).expect("a file");
    file.set_len(16 << 30).expect("a hole");
}

#[tokio::test]
async fn a_walk_that_hashes_ends_with_its_session() {
    let mut scene = Scene::new(|_| ());
    make_long_file(&scene.data());
    scene.walks(true);
    let walks = scene.session.client.services.hashed_walks.clone();
    let wait_until = async |free: usize| {
        let until = Instant::now() + SOON;
        while walks.available_permits() != free {
            let now = walks.available_permits();
            assert!(Instant::now() < until, "{now} places for walks are free, not {free}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    wait_until(HASHED_WALKS_MAX - 1).await;
    drop(scene);
    wait_until(HASHED_WALKS_MAX).await;
}

#[tokio::test]
async fn walks_that_hash_wait_for_a_permit_and_other_requests_do_not() {
    let mut scene = Scene::new(|_| ());
    std::fs::write(scene.data().join("a"), b"a").expect("writes");
    let walks = scene.session.client.services.hashed_walks.clone();
    let all = walks.acquire_many_owned(HASHED_WALKS_MAX as u32).await.expect("open");
    scene.walks(true);
    for _ in 0..100 {
        scene.looks().expect("it may ask");
        let walked = scene.hear(|message| match message {
            ServerMessage::Stated { .. } => Some(false),
            other => is_walked(&other).then_some(true),
        });
        assert!(!walked.await, "there was no place for it");
    }
    drop(all);
    scene.hear(|message| is_walked(&message).then_some(())).await;
}

#[tokio::test]
async fn the_next_page_of_a_walk_is_prefetched_and_requested_once() {
    let mut scene = Scene::new(|_| ());
    let files = || within_pages().take(2 * PAGE_ENTRIES_MAX);
    for name in files() {
        std::fs::write(scene.data().join(name), b"").expect("writes");
    }
    let page = |message| match message {
        ServerMessage::Mirror(MirrorReply::Walked { found, done, .. }) => Some((found, done)),
        _ => None,
    };
    scene.walks(false);
    let (found, done) = scene.hear(page).await;
    assert_eq!((found.len(), done), (PAGE_ENTRIES_MAX, false), "its root is the first");
    // It may exist by now: the walk that waited for the first page may have produced the others
    // too.
    while scene.session.mirrors.ready_pages(1) == 0 {
        let event = tokio::time::timeout(SOON, scene.events.recv()).await.expect("soon");
        assert!(scene.session.event(event.expect("a page")).is_ok(), "it goes on");
    }
    for name in files().take(2 * PAGE_ENTRIES_MAX - 1) {
        std::fs::remove_file(scene.data().join(name)).expect("removes");
    }
    let more = || ClientMessage::Mirror(MirrorRequest::WalkMore { request: 1 });
    scene.say(more()).expect("it may ask");
    let (found, done) = scene.hear(page).await;
    assert_eq!((found.len(), done), (PAGE_ENTRIES_MAX, false), "as it was then");
    // The last page is ready or under way: a request for it gets it, and no page is made twice.
    scene.say(more()).expect("it may ask");
    let refused = scene.say(more()).map_err(|fault| fault.code);
    assert_eq!(refused, Err(Code::Protocol), "it was asked for");
    let (found, done) = scene.hear(page).await;
    assert_eq!((found.len(), done), (1, true));
}

#[tokio::test]
async fn a_page_that_the_client_has_is_not_sent_but_its_leftovers_are() {
    let mut scene = Scene::new(|_| ());
    for name in within_pages().take(3 * PAGE_ENTRIES_MAX - 1) {
        std::fs::write(scene.data().join(name), b"").expect("writes");
    }
    std::fs::create_dir(scene.data().join("z")).expect("a folder");
    for name in ["z/f", "z/.f.12-3-0123abcd.verbatim-part"] {
        std::fs::write(scene.data().join(name), b"").expect("writes");
    }
    let root = std::fs::File::open(scene.data()).expect("opens").into();
    let mut walk = TreeWalk::new(root, Filter::default(), false);
    let pages: Vec<_> = (0..4).map(|_| next_page(&mut walk, None).0.found).collect();
    assert_eq!([0, 1, 2, 3].map(|at| pages[at].len()), [1024, 1024, 1024, 2]);
    scene.walks(false);
    let told = |message| match message {
        ServerMessage::Mirror(MirrorReply::Walked { found, leftovers, done, .. }) => {
            Some((found.len(), leftovers.len(), done))
        }
        ServerMessage::Mirror(MirrorReply::Alike { request: 1, done }) => Some((0, 0, done)),
        _ => None,
    };
    assert_eq!(scene.hear(told).await, (1024, 0, false));
    for (at, expected) in [(2, (1024, 0, false)), (2, (0, 0, false)), (3, (2, 1, true))] {
        let alike = digest_of(&pages[at], true).expect("all can be told");
        let unless = MirrorRequest::WalkUnless { request: 1, alike, owners: true };
        scene.say(ClientMessage::Mirror(unless)).expect("it may ask");
        assert_eq!(scene.hear(told).await, expected, "{at}");
    }
}

#[tokio::test]
async fn requests_before_a_bye_are_handled() {
    let mut scene = Scene::new(|_| ());
    let file = FileId(1);
    scene.creates(file, 10).await;
    let data = scene.data();
    let names = move || -> Vec<_> {
        let entries = std::fs::read_dir(&data).expect("lists").flatten();
        entries.map(|entry| entry.file_name()).collect()
    };
    assert_eq!(names().len(), 1, "its temporary file");
    let (near, far) = tokio::io::duplex(1 << 10);
    let (mut sender, mut receiver) = (Sender::new(near), Receiver::new(far));
    let discard = ClientMessage::Write(WriteRequest::Discard { files: vec![file] });
    for message in [ClientMessage::TellTies, discard, ClientMessage::Bye] {
        sender.send(&message).await.expect("there is room");
    }
    sender.flush().await.expect("there is room");
    let first = receiver.recv().await.expect("readable").expect("it is there");
    assert!(matches!(scene.session.handle_messages(first, &mut receiver), Err(End::Bye)));
    let until = Instant::now() + SOON;
    while !names().is_empty() {
        assert!(Instant::now() < until, "files are left that the client discarded: {:?}", names());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_link_counts_as_lost_when_its_session_goes_on_without_it() {
    let lost = |scene: &Scene| {
        let services = &scene.session.client.services;
        let text = services.observatory.metrics_text(&services.watched());
        let name = "rdma_serve_links_lost_total{transport=\"sim\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |count| count.parse::<u64>().expect("a count"))
    };
    let mut scene = Scene::new(|_| ());
    for (index, expected) in [(0, 1), (1, 2), (2, 3)] {
        let made = scene.attach(index, 0, LinkOffer::Sim).await;
        let Ok(LinkAnswer::Sim { .. }) = made else { panic!("no link: {made:?}") };
        let link = LinkId { index, epoch: 0 };
        scene.session.links.died(&scene.session.client, link, Some(FabricError::Closed));
        // The client may be about to send `Bye`.
        assert!(scene.session.tick(Duration::ZERO).is_ok(), "it goes on");
        assert_eq!(lost(&scene), expected - 1, "link {index} ended a moment ago");
        match index {
            0 => scene.say(ClientMessage::Fence { link }).expect("it may"),
            1 => drop(scene.attach(index, 1, LinkOffer::Sim).await.expect("another link")),
            _ => {
                let soon = std::time::Instant::now() + Duration::from_secs(1);
                scene.session.links.count_lost_before(&scene.session.client, soon);
            }
        }
        assert_eq!(lost(&scene), expected, "link {index} was missed");
        let Session { links, client, .. } = &mut scene.session;
        links.died(client, LinkId { index, epoch: 1 }, None);
        links.count_lost_before(client, std::time::Instant::now() + Duration::from_secs(60));
        assert_eq!(lost(&scene), expected, "link {index} was counted once");
    }
}

#[tokio::test]
async fn a_repeated_notification_keeps_the_link() {
    let mut scene = Scene::new(|_| ());
    let file = FileId(1);
    // If the worker remembered them, the last but one would cost the link.
    let chunks = NOTIFIED_MAX as u64 + 2;
    let size = chunks * GRAIN_BYTES;
    scene.creates(file, size).await;
    let Ok(LinkAnswer::Sim { endpoint }) = scene.attach(0, 0, LinkOffer::Sim).await else {
        panic!("no link");
    };
    let sim = scene.session.client.services.sim.clone().expect("it is simulated");
    let mut link = sim.take_end(endpoint, Arc::default()).expect("the client's end");
    let zeros = vec![0; GRAIN_BYTES as usize];
    let mut grants = VecDeque::new();
    for chunk in 0..chunks {
        while grants.is_empty() {
            grants.extend(scene.granted().await.1);
        }
        let Grant { tag, region, .. } = grants.pop_front().expect("there is one");
        let mut notify = || {
            let mut from = Buffer::new(GRAIN_BYTES as usize).expect("memory");
            from.set_len(GRAIN_BYTES as usize);
            let to = RemoteRange { key: region.key, address: region.base };
            link.submit(Ticket(chunk), Op::WriteNotify { from, to, tag: tag.0 }).expect("room");
            link.poll(&mut Vec::new()).expect("the link lives");
        };
        notify();
        let extent = Extent::new(chunk * GRAIN_BYTES, GRAIN_BYTES);
        let digests = Digest::of_grains(extent.offset, size, &zeros);
        let pieces = vec![Piece { file, extent, digests }];
        let chunks = vec![SentChunk { tag, pieces }];
        scene.say(ClientMessage::Write(WriteRequest::Sent { chunks })).expect("it was granted");
        let verdicts = loop {
            let (verdicts, more) = scene.granted().await;
            grants.extend(more);
            if !verdicts.is_empty() {
                break verdicts;
            }
        };
        assert_eq!(verdicts, [(tag, vec![Verdict::Stored])], "chunk {chunk}");
        notify();
    }
}

#[tokio::test]
async fn a_client_with_an_open_mirror_may_be_silent_for_longer() {
    let mut scene = Scene::new(|_| ());
    let long = scene.session.client.services.idle + Duration::from_secs(1);
    assert!(scene.session.tick(long).is_err(), "it does nothing at all");
    scene.holds().await;
    assert!(scene.session.tick(long).is_ok(), "it hashes a large file of its own");
    assert!(scene.session.tick(MIRROR_IDLE_MAX + Duration::from_secs(1)).is_err());
}

#[test]
fn a_target_stays_locked_until_its_last_change_is_done() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().expect("a runtime");
    runtime.block_on(async {
        let mut scene = Scene::new(|_| ());
        let (data, file) = (scene.data(), scene.data().join("p"));
        std::fs::write(&file, b"p").expect("writes");
        scene.holds().await;
        let is_held = || {
            let folder = std::fs::File::open(&data).expect("there");
            Hold::take(folder.into(), "cannot hold it").is_err()
        };
        // The only thread for jobs is busy, so the change waits.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || wait.recv());
        let edits = vec![Edit::Remove { path: path("data/p"), is_folder: false }];
        let edit = MirrorRequest::Edit { request: 2, edits };
        scene.say(ClientMessage::Mirror(edit)).expect("it may change it");
        scene.session.client.cancel.set();
        scene.session.mirrors.end_all();
        assert!(is_held(), "the change is not done");
        // A second session of the client waits for the lock.
        let again = std::thread::spawn({
            let data = data.clone();
            let open = move || Ok(std::fs::File::open(&data).expect("there").into());
            move || sync_lock::wait_for_lock(|| Hold::take(open()?, "cannot hold it")).is_ok()
        });
        drop(go);
        assert!(again.join().expect("it ends"), "it is refused");
        let until = Instant::now() + SOON;
        while is_held() {
            assert!(
                Instant::now() < until,
                "the change is done, and its lock is held {SOON:?} later"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(file.exists(), "changed for a client that was gone");
    });
}

#[tokio::test]
async fn an_atomic_tree_is_published_once() {
    let mut scene = Scene::new(|_| ());
    let target = scene.data().join("t");
    std::fs::create_dir(&target).expect("a folder");
    let stage = MirrorRequest::Stage { request: 1, path: path("data/t"), key: Digest::of(b"it") };
    scene.say(ClientMessage::Mirror(stage)).expect("it may build one");
    let staged = scene.hear(|message| match message {
        ServerMessage::Mirror(MirrorReply::Staged { answer, .. }) => Some(answer),
        _ => None,
    });
    let staged = staged.await.expect("it is built");
    std::fs::write(scene.dir.path().join(staged.path.to_string()).join("new"), b"")
        .expect("writes");
    let mut publish = |request| {
        let publish = MirrorRequest::Publish { request, path: path("data/t"), changed: true };
        scene.say(ClientMessage::Mirror(publish))
    };
    publish(2).expect("it is there");
    assert_eq!(publish(3).expect_err("it is being published").code, Code::Protocol);
    let published = scene.hear(|message| match message {
        ServerMessage::Mirror(MirrorReply::Published { request, answer }) => {
            Some((request, answer))
        }
        _ => None,
    });
    assert_eq!(published.await, (2, Ok(())));
    assert!(target.join("new").exists(), "the old tree is back");
}

#[tokio::test]
async fn a_client_that_waits_for_pins_gets_working_every_second() {
    let mut scene = Scene::new(|_| ());
    std::fs::write(scene.data().join("a"), vec![7; 1000]).expect("writes");
    let open = OpenFile { file: FileId(1), path: path("data/a"), have: Vec::new() };
    scene.say(ClientMessage::Read(ReadRequest::Open { files: vec![open] })).expect("it may read");
    let opened = scene.events.recv().await.expect("an answer");
    assert!(scene.session.event(opened).is_ok(), "it goes on");
    // No memory is left for a window.
    let memory = scene.session.client.memory.clone();
    let take = || memory.take(PACK_BYTES_MAX as usize);
    let _taken: Vec<Permit> = std::iter::from_fn(take).collect();
    assert!(scene.session.run_effects().is_ok(), "it goes on");
    assert!(scene.session.waits_for_pins(), "it may not be pinned");
    assert!(scene.session.tick(Duration::ZERO).is_ok(), "it goes on");
    scene.hear(|message| matches!(message, ServerMessage::Working).then_some(())).await;
}

/// Opens a file, and returns the next window.
async fn lease(scene: &mut Scene, request: ReadRequest) -> Lease {
    scene.say(ClientMessage::Read(request)).expect("it may read");
    let lease = scene.hear(|message| match message {
        ServerMessage::Read(ReadReply::Lease(lease)) => Some(lease),
        _ => None,
    });
    lease.await
}

/// Waits until a file that was just written is so old that its identity is trusted.
async fn until_trusted() {
    tokio::time::sleep(Duration::from_nanos(RACY_NS as u64) + Duration::from_millis(100)).await;
}

#[tokio::test]
async fn holes_of_a_large_file_are_not_looked_for_at_each_open() {
    let mut scene = Scene::new(|_| ());
    let file = std::fs::File::create(scene.data().join("big")).expect("makes");
    file.set_len(WINDOW_BYTES).expect("grows");
    until_trusted().await;
    // The file is all hole. The cache is given a wrong survey, so the test sees that it answers.
    let identity = verbatim_files::Identity::of(&file).expect("an identity");
    scene.session.client.services.surveys.remember((identity, 0, WINDOW_BYTES));
    let want = Extent::new(WINDOW_BYTES - GRAIN_BYTES, GRAIN_BYTES);
    let have = vec![Extent::new(0, want.offset)];
    let open = OpenFile { file: FileId(1), path: path("data/big"), have };
    let leased = lease(&mut scene, ReadRequest::Open { files: vec![open] }).await;
    assert_eq!(leased.pieces[0].extent, want);
}

/// The memory of a window, as links without a device find it.
fn memory_of(scene: &Scene, lease: &Lease) -> Memory {
    let Region { key, base, .. } = lease.region;
    let soft = scene.session.client.domain.soft();
    soft.find(key, base, 1, Access::Read).expect("it is registered").0
}

#[tokio::test]
async fn a_small_file_is_sent_from_the_file_until_it_does_not_match() {
    let mut scene = Scene::new(|config| config.cache.enabled = true);
    let file = scene.data().join("a");
    std::fs::write(&file, vec![7; 100_000]).expect("writes");
    std::fs::write(scene.data().join("b"), vec![8; 1000]).expect("writes");
    until_trusted().await;
    let open = |number, name| OpenFile { file: FileId(number), path: path(name), have: vec![] };
    let files = vec![open(1, "data/a"), open(2, "data/b")];
    let first = lease(&mut scene, ReadRequest::Open { files }).await;
    assert_eq!(first.pieces[0].digests, [Digest::of(&[7; 100_000])]);
    assert_eq!(first.pieces[1].digests, [Digest::of(&[8; 1000])]);
    assert!(matches!(memory_of(&scene, &first), Memory::Gathered(..)), "it was copied");
    assert_eq!(
        scene.session.client.services.hashing.cache().stats().misses,
        1,
        "b is not looked for"
    );

    let again = vec![(FileId(1), Extent::new(0, 100_000))];
    let refresh = ReadRequest::Refresh { window: first.window, pieces: again };
    let second = lease(&mut scene, refresh).await;
    assert_eq!(second.pieces[0].digests, first.pieces[0].digests);
    let Memory::Staged(slot) = memory_of(&scene, &second) else { panic!("it may change again") };
    slot.with(0, 100_000, |bytes| assert!(bytes.iter().all(|&byte| byte == 7), "it differs"));

    std::fs::write(&file, vec![9; 100_000]).expect("writes");
    let again = vec![(FileId(1), Extent::new(0, 100_000))];
    let refresh = ReadRequest::Refresh { window: second.window, pieces: again };
    scene.say(ClientMessage::Read(refresh)).expect("it may read");
    let failed = scene.hear(|message| match message {
        ServerMessage::Read(ReadReply::Failed { file, fault }) => Some((file, fault.code)),
        _ => None,
    });
    assert_eq!(failed.await, (FileId(1), Code::Changed));
}
