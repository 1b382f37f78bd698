//! Limits of one client, limits of what its requests may queue, and the end of every wait: sessions
//! without a socket, as in `tests`.

use super::*;
use crate::limits::client_limits::{CLIENT_THREADS_MAX, ClientLimits};
use crate::limits::fair_pool::FairPool;
use crate::session::backpressure::{AHEAD_BYTES_MAX, JOBS_UNMETERED_MAX};
use crate::session::fd_queue::FD_WAIT_MAX;
use verbatim_proto::Meta;
use verbatim_proto::message::{EntryKind, NewEntry};
use verbatim_proto::meta::Xattr;

/// A client of a server with so many descriptors for files; `data` has empty ones.
fn with_places(places: usize) -> Scene {
    let scene = Scene::sharing(|_| (), |services| services.shares.files = FairPool::new(places));
    for number in 0..10 {
        std::fs::write(scene.data().join(number.to_string()), b"").expect("writes");
    }
    scene
}

impl Scene {
    /// Asks to open these files.
    fn opens(&mut self, files: std::ops::Range<u32>) {
        let open = |number: u32| {
            let path = path(&format!("data/{number}"));
            OpenFile { file: FileId(number), path, have: Vec::new() }
        };
        let files = files.map(open).collect();
        self.say(ClientMessage::Read(ReadRequest::Open { files })).expect("it may ask");
    }

    /// The next files that were opened, or failed.
    async fn opened(&mut self) -> Vec<(u32, Result<(), Fault>)> {
        let opened = self.hear(|message| match message {
            ServerMessage::Read(ReadReply::Opened { files }) => Some(files),
            _ => None,
        });
        opened.await.into_iter().map(|(file, answer)| (file.0, answer.map(drop))).collect()
    }

    fn closes(&mut self, number: u32) {
        let close = ReadRequest::Close { files: vec![FileId(number)], describe: false };
        self.say(ClientMessage::Read(close)).expect("it is open");
    }

    fn share(&self) -> Arc<ClientLimits> {
        self.session.client.share.clone()
    }
}

fn all_good(files: std::ops::Range<u32>) -> Vec<(u32, Result<(), Fault>)> {
    files.map(|number| (number, Ok(()))).collect()
}

#[tokio::test]
async fn files_wait_for_descriptors_until_others_of_the_session_are_closed() {
    let mut scene = with_places(15);
    scene.opens(0..7);
    assert_eq!(scene.opened().await, all_good(0..5), "a third: others may come");
    assert!(!scene.session.is_idle(), "it is not sent away for being silent");
    assert_eq!(scene.session.fd_queue.since, None, "some are open");
    assert!(scene.session.tick(Duration::ZERO).is_ok());
    scene.hear(|message| matches!(message, ServerMessage::Working).then_some(())).await;
    // Another session of this client has descriptors, and closes its files.
    let mut other = scene.again();
    other.opens(7..8);
    assert_eq!(other.opened().await, all_good(7..8));
    drop(other);
    scene.closes(1);
    assert_eq!(scene.opened().await, all_good(5..6));
    scene.closes(0);
    scene.closes(2);
    assert_eq!(scene.opened().await, all_good(6..7));
    assert!(!scene.session.fd_queue.waits());
}

#[tokio::test]
async fn a_session_that_finds_no_descriptor_in_time_fails_its_files_and_goes_on() {
    let mut scene = with_places(1);
    let mut other = scene.again();
    other.opens(0..1);
    assert_eq!(other.opened().await, all_good(0..1));
    scene.opens(1..3);
    assert!(scene.session.tick(Duration::ZERO).is_ok() && scene.session.fd_queue.waits());
    let since = scene.session.fd_queue.since.as_mut().expect("it has none");
    *since -= FD_WAIT_MAX;
    assert!(scene.session.tick(Duration::ZERO).is_ok(), "it goes on");
    for (number, answer) in scene.opened().await {
        let fault = answer.expect_err("there was none");
        assert_eq!(fault.code, Code::Limit, "{number}");
        assert!(fault.text.contains("raise LimitNOFILE"), "{fault}");
    }
    drop(other);
    let until = Instant::now() + SOON;
    while scene.session.client.services.shares.files.free() == 0 {
        let left = scene.session.client.services.shares.files.free();
        assert!(
            Instant::now() < until,
            "{left} places for files are left by a session that is gone"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    scene.opens(3..4);
    assert_eq!(scene.opened().await, all_good(3..4));
}

#[tokio::test]
async fn files_that_are_written_take_descriptors_until_they_are_gone() {
    let mut scene = with_places(3);
    scene.creates(FileId(1), 10).await;
    let files = scene.session.client.services.shares.files.clone();
    assert_eq!(files.free(), 1, "its own, and that of its folder");
    let info = FileInfo { size: 1, mode: 0o600, mtime_ns: 0, allocated: 1, version: None };
    let create = CreateFile { file: FileId(2), path: path("data/b"), info, stream: false };
    let create = WriteRequest::Create { files: vec![create] };
    scene.say(ClientMessage::Write(create)).expect("it may ask");
    assert!(scene.session.fd_queue.waits());
    let discard = WriteRequest::Discard { files: vec![FileId(1)] };
    scene.say(ClientMessage::Write(discard)).expect("it is open");
    let created = scene.hear(|message| match message {
        ServerMessage::Write(WriteReply::Created { files }) => Some(files[0].0),
        _ => None,
    });
    assert_eq!(created.await, FileId(2));
    drop(scene);
    assert_eq!(files.free(), 3);
}

#[tokio::test]
async fn a_job_that_waits_for_a_thread_ends_with_its_session() {
    let mut scene = Scene::new(|_| ());
    let threads = scene.share().threads.clone();
    let _all = threads.acquire_many_owned(CLIENT_THREADS_MAX as u32).await.expect("open");
    scene.looks().expect("it may ask");
    let reach = Arc::downgrade(&scene.session.client.reach);
    let Scene { session, events, .. } = scene;
    // As at the end of a session.
    drop(events);
    drop(session);
    let until = Instant::now() + SOON;
    while reach.strong_count() > 0 {
        let count = reach.strong_count();
        assert!(Instant::now() < until, "{count} jobs wait for a client that is gone");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_client_with_too_many_requests_is_not_read_until_some_are_done() {
    let mut scene = Scene::new(|_| ());
    let threads = scene.share().threads.clone();
    let all = threads.acquire_many_owned(CLIENT_THREADS_MAX as u32).await.expect("open");
    let (near, far) = tokio::io::duplex(8 << 20);
    let (mut sender, mut receiver) = (Sender::new(near), Receiver::new(far));
    let asked = 4 * JOBS_UNMETERED_MAX;
    let long = path(&"long/".repeat(1000));
    for _ in 0..asked {
        let look = Look { follow: false, paths: vec![long.clone(); 5] };
        sender.send(&ClientMessage::Stat { request: 1, look }).await.expect("there is room");
    }
    sender.flush().await.expect("there is room");
    while scene.session.accepts_requests() {
        let next = tokio::time::timeout(SOON, receiver.recv()).await.expect("it is deaf by then");
        let next = next.expect("readable").expect("it is there");
        assert!(scene.session.handle_messages(next, &mut receiver).is_ok());
    }
    let ahead = AHEAD_BYTES_MAX.div_ceil(receiver.frame_bytes());
    let mut heard = JOBS_UNMETERED_MAX - 1 + ahead;
    assert_eq!(
        (scene.session.limits.under_way(), scene.session.accepts_requests()),
        (heard, false)
    );
    drop(all);
    while heard < asked {
        let event = tokio::time::timeout(SOON, scene.events.recv()).await.expect("soon");
        assert!(scene.session.event(event.expect("an answer")).is_ok());
        if !scene.session.accepts_requests() {
            continue;
        }
        let next = receiver.recv().await.expect("readable").expect("it is there");
        heard += 1;
        assert!(scene.session.handle_message(next).is_ok());
    }
}

#[tokio::test]
async fn walks_that_hash_take_threads_of_their_client_and_leave_places_to_others() {
    let mut scene = Scene::new(|_| ());
    make_long_file(&scene.data());
    let (share, all) = (scene.share(), scene.session.client.services.hashed_walks.clone());
    let own = share.hashed_walks.clone().acquire_many_owned(4).await.expect("open");
    scene.walks(true);
    scene.looks().expect("it may ask");
    scene.hear(|message| matches!(message, ServerMessage::Stated { .. }).then_some(())).await;
    assert_eq!(all.available_permits(), HASHED_WALKS_MAX, "it waits for its own first");
    drop(own);
    let until = Instant::now() + SOON;
    while all.available_permits() == HASHED_WALKS_MAX {
        let own = share.hashed_walks.available_permits();
        assert!(
            Instant::now() < until,
            "the walk does not begin: {own} places of its client are free"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let threads = share.threads.available_permits();
    assert_eq!(threads, CLIENT_THREADS_MAX - 1, "others have the rest");
    assert_eq!(share.hashed_walks.available_permits(), 3);
}

#[tokio::test]
async fn attributes_of_existing_files_and_folders_count_against_the_quota() {
    let mut scene = Scene::new(|config| config.exports[0].quota_mb = 1);
    std::fs::write(scene.data().join("f"), b"").expect("writes");
    std::fs::create_dir(scene.data().join("d")).expect("a folder");
    let meta = || {
        let xattrs = vec![Xattr { name: b"user.a".to_vec(), value: vec![7; 60_000] }];
        Box::new(Meta { mode: 0o755, xattrs, ..Meta::default() })
    };
    // The file system may refuse them for its own reasons.
    let is_used_up = |answer: &Result<(), Fault>| {
        let fault = answer.as_ref().err();
        fault.is_some_and(|fault| fault.text.contains("the quota of data is used up"))
    };
    let describe = |_| Edit::Describe { path: path("data/f"), meta: meta() };
    let edit = MirrorRequest::Edit { request: 1, edits: (0..20).map(describe).collect() };
    scene.say(ClientMessage::Mirror(edit)).expect("it may change it");
    let changed = scene.hear(|message| match message {
        ServerMessage::Mirror(MirrorReply::Changed { answers, .. }) => Some(answers),
        _ => None,
    });
    let answers = changed.await;
    assert!(!is_used_up(&answers[0]) && is_used_up(&answers[19]), "{answers:?}");
    let (kind, meta) = (EntryKind::Folder, Some(meta()));
    let (path, mode, force, unfinished) = (path("data/d"), 0o755, false, false);
    let entries = vec![NewEntry { path, kind, mode, meta, force, unfinished }];
    scene.say(ClientMessage::Make { request: 2, entries }).expect("it may ask");
    let made = scene.hear(|message| match message {
        ServerMessage::Made { answers, .. } => Some(answers),
        _ => None,
    });
    assert!(made.await.iter().all(is_used_up));
}
