//! Bounds of one session, each met by a client that asks for more than there is, and
//! hears what it may have; and the rate of one client, which is kept and told nobody
//! as a failure.

use crate::process::{Running, contents, seen, wait_for};
use crate::{FOLLOW_MAX, World, names, text};
use std::time::{Duration, Instant};
use verbatim_proto::message::{
    CreateFile, EntryKind, FileInfo, NewEntry, OpenFile, ReadRequest, WriteRequest,
};
use verbatim_proto::pattern::EXCLUDES_MAX;
use verbatim_proto::units::{BATCH_FILES_MAX, OPEN_FILES_MAX, PAGE_ENTRIES_MAX};
use verbatim_proto::{ClientMessage, Extent, FileId, Scan, ServerMessage, WindowId, WirePath};
use verbatim_tests::raw::Raw;

fn path(text: &str) -> WirePath {
    WirePath::parse(text.as_bytes()).expect("a path")
}

fn scan(request: u32) -> ClientMessage {
    let (recursive, follow, describe, exclude) = (true, false, false, Vec::new());
    let scan = Scan { path: path("data/many"), recursive, follow, describe, exclude };
    ClientMessage::Scan { request, scan }
}

/// Fills the folder that is scanned with more than one page, so that a scan is not over
/// before the client asks for the rest.
fn more_than_a_page(world: &World) {
    std::fs::create_dir(world.path("data/many")).expect("a folder");
    for number in 0..PAGE_ENTRIES_MAX + 10 {
        std::fs::write(world.path(&format!("data/many/{number}")), b"").expect("a file");
    }
}

fn folder(number: u32) -> NewEntry {
    let (kind, meta, force, unfinished) = (EntryKind::Folder, None, false, false);
    let path = path(&format!("in/f{number}"));
    NewEntry { path, kind, mode: 0o755, meta, force, unfinished }
}

/// Numbers for one file more than may be open, in as many messages as that takes.
fn too_many_files() -> Vec<Vec<FileId>> {
    let numbers: Vec<FileId> = (0..=OPEN_FILES_MAX as u32).map(FileId).collect();
    numbers.chunks(BATCH_FILES_MAX).map(<[_]>::to_vec).collect()
}

fn opens() -> Vec<ClientMessage> {
    let open = |file| OpenFile { file, path: path("data/small"), have: Vec::new() };
    let batch = |files: Vec<FileId>| {
        let files = files.into_iter().map(open).collect();
        ClientMessage::Read(ReadRequest::Open { files })
    };
    too_many_files().into_iter().map(batch).collect()
}

fn creates() -> Vec<ClientMessage> {
    let info = FileInfo { size: 1, mode: 0o644, mtime_ns: 0, allocated: 1, version: None };
    let create = |file: FileId| {
        let path = path(&format!("in/{}", file.0));
        CreateFile { file, path, info, stream: false }
    };
    let batch = |files: Vec<FileId>| {
        let files = files.into_iter().map(create).collect();
        ClientMessage::Write(WriteRequest::Create { files })
    };
    too_many_files().into_iter().map(batch).collect()
}

#[test]
fn who_asks_for_more_than_a_session_may_have_is_told_what_that_is() {
    let world = World::new(&[]);
    more_than_a_page(&world);
    let told = |messages: Vec<ClientMessage>| {
        let mut raw = Raw::connect(&world.options());
        // The server may end it before all is said.
        messages.into_iter().take_while(|it| raw.try_say(it.clone()).is_ok()).for_each(drop);
        raw.hear("refusal", |message| match message {
            ServerMessage::Refused(fault) => Some(fault.text.clone()),
            _ => None,
        })
    };
    assert_eq!(told(opens()), "client opened more than 2048 files at a time");
    assert_eq!(told(creates()), "client created more than 2048 files at a time");
    assert_eq!(told((0..9).map(scan).collect()), "a session may have 8 scans");
    let entries = (0..=BATCH_FILES_MAX as u32).map(folder).collect();
    let make = ClientMessage::Make { request: 1, entries };
    assert_eq!(told(vec![make]), "more than 256 entries to make at a time");
    // Nothing of it is left behind, and others are served.
    wait_for("the server has removed all temporary files from in", FOLLOW_MAX, || {
        seen(names(&world.path("in")).is_empty(), contents(&world.path("in")))
    });
    world.serve.cp(&[world.serve.at("data/large"), world.text("out")]).done();
}

#[test]
fn pieces_whose_sizes_overflow_are_refused_with_their_window() {
    let world = World::new(&[]);
    let mut raw = Raw::connect(&world.options());
    let piece = (FileId(1), Extent { offset: 0, len: u64::MAX });
    let (window, pieces) = (WindowId(9), vec![piece; 2]);
    raw.say(ClientMessage::Read(ReadRequest::Refresh { window, pieces }));
    let told = raw.hear("refusal", |message| match message {
        ServerMessage::Refused(fault) => Some(fault.text.clone()),
        _ => None,
    });
    assert_eq!(told, "client refreshed a window it does not have");
    assert!(!world.serve.log().contains("panicked"), "{}", world.serve.log());
}

#[test]
fn a_page_has_an_end_and_the_next_is_asked_for() {
    let world = World::new(&[]);
    more_than_a_page(&world);
    let mut raw = Raw::connect(&world.options());
    let page = |raw: &mut Raw| {
        raw.hear("page", |message| match message {
            ServerMessage::Page { entries, done, .. } => Some((entries.len(), *done)),
            _ => None,
        })
    };
    raw.say(scan(1));
    assert_eq!(page(&mut raw), (PAGE_ENTRIES_MAX, false));
    raw.say(ClientMessage::ScanMore { request: 1 });
    assert_eq!(page(&mut raw), (10, true));
}

#[test]
fn patterns_that_take_long_end_a_scan_and_keep_no_thread() {
    let world = World::new(&[]);
    let deep = vec!["x"; 126].join("/");
    std::fs::create_dir_all(world.path(&format!("data/many/{deep}/b"))).expect("folders");
    let mut raw = Raw::connect(&world.options());
    let pattern = format!("**/*[qrstuvwxyza]{}", "/x".repeat(70)).into_bytes();
    let ClientMessage::Scan { request, scan: plain } = scan(1) else { panic!("a scan") };
    let exclude = vec![pattern; EXCLUDES_MAX];
    raw.say(ClientMessage::Scan { request, scan: Scan { exclude, ..plain } });
    let (faults, done) = raw.hear("page", |message| match message {
        ServerMessage::Page { faults, done, .. } => Some((faults.clone(), *done)),
        _ => None,
    });
    let [(_, fault)] = &faults[..] else { panic!("one fault: {faults:?}") };
    assert!(fault.text.contains("take too long to match") && done, "{fault:?}");
    let many = vec![b"**/a/**/b/**/c/**/d/**".to_vec()];
    let ClientMessage::Scan { scan: plain, .. } = scan(2) else { panic!("a scan") };
    raw.say(ClientMessage::Scan { request: 2, scan: Scan { exclude: many, ..plain } });
    let told = raw.hear("refusal", |message| match message {
        ServerMessage::Page { request: 2, faults, .. } => {
            faults.first().map(|(_, fault)| fault.text.clone())
        }
        ServerMessage::Refused(fault) => Some(fault.text.clone()),
        _ => None,
    });
    assert!(told.contains("more than 4 `**`"), "{told}");
}

const PACED: &str = r#"
[limits]
client_mb_per_second = 4

[[export]]
path = "DIR/data"

[[export]]
path = "DIR/in"
mode = "rw"
"#;

/// Runs copies of one client at a time; how long all of them took.
fn timed(world: &World, token: &str, copies: &[&[&str]]) -> Duration {
    let begin = Instant::now();
    let started: Vec<_> = copies.iter().map(|it| world.command(token, it)).collect();
    let running: Vec<_> =
        started.into_iter().map(|(home, command)| (home, Running::start(command))).collect();
    running.into_iter().for_each(|(_home, it)| drop(it.end().done()));
    begin.elapsed()
}

#[test]
fn a_client_keeps_to_its_rate_both_ways_and_with_all_its_sessions() {
    let world = World::configured(PACED);
    let [alice, bob] = ["alice", "bob"].map(|name| world.add(name, &["--export", "*:rw"]));
    let from = world.serve.at("data/large");
    let (one, two, three) = (world.text("out/1"), world.text("out/2"), world.text("out/3"));
    // 8 MiB each. The last window is not waited for, and a quarter of a second is saved up.
    let both = timed(&world, &alice, &[&[&from, &one], &[&from, &two]]);
    assert!(both >= Duration::from_millis(3400), "16 MiB at 4 MiB/s took {both:?}");
    // Another client, while the first still owes: its own rate, not what is left of alice's.
    let other = timed(&world, &bob, &[&[&from, &three]]);
    assert!(other >= Duration::from_millis(1400), "8 MiB at 4 MiB/s took {other:?}");
    let up = ["-j", "1", "--chunk-size", "256K", &world.text("data/large"), &world.serve.at("in/")];
    let up = timed(&world, &bob, &[&up]);
    assert!(up >= Duration::from_millis(1400), "8 MiB at 4 MiB/s took {up:?}");
    let same = |path: &str| {
        let read = |path: &str| std::fs::read(path).expect("a file");
        assert!(read(path) == read(&world.text("data/large")), "{path} differs");
    };
    [&one, &two, &three, &text(&world.path("in/large"))].into_iter().for_each(|it| same(it));
    world.serve.logged("held back by limits.client_mb_per_second", 1);
}
