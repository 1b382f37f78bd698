//! A server that lies to a real client: about what is in a folder, where a link
//! leads, how long a file is, and where its bytes are.

use crate::snapshot;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use verbatim_client::{CopyPolicy, Replace};
use verbatim_proto::message::{
    ClientMessage, Entry, EntryKind, FileInfo, JoinSecret, Lease, LinkAnswer, LinkId, Piece,
    ReadReply, ReadRequest, ServerMessage,
};
use verbatim_proto::{Code, Digest, Extent, Fault, Region, WindowId, WirePath};
use verbatim_tests::liar::{Liar, Script, entry, folder_of};
use verbatim_tests::pair::{Backend, Copied, Pair};

/// Copies `ro/all` of a liar to `all`, where `prepare` was first; returns the pair, for its
/// folders, and what became of the copy.
fn copy_from(script: Script, prepare: impl FnOnce(&Path)) -> (Pair, Option<Copied>) {
    copy_of("ro/all", script, prepare)
}

/// The same of another source.
fn copy_of(source: &str, script: Script, prepare: impl FnOnce(&Path)) -> (Pair, Option<Copied>) {
    copy_by(CopyPolicy::default(), source, script, prepare)
}

/// The same by these rules.
fn copy_by(
    rules: CopyPolicy,
    source: &str,
    script: Script,
    prepare: impl FnOnce(&Path),
) -> (Pair, Option<Copied>) {
    let liar = Liar::start(script);
    let pair = Pair::in_memory(Backend::Tcp);
    fs::create_dir(pair.served("outside")).expect("a folder");
    fs::write(pair.served("outside/kept"), b"untouched").expect("a file");
    prepare(&pair.local(""));
    let before = snapshot(&pair.served("outside"));
    let mut job = pair.down(&[source], "all").timeout(Duration::from_secs(3));
    job.options.policy = rules;
    let connect = &mut job.session.connect;
    connect.port = liar.port;
    connect.fingerprint = Some(liar.fingerprint);
    connect.timeout = Duration::from_secs(3);
    #[allow(clippy::print_stdout)] // a test that fails shows it
    let copied = job.try_run().inspect_err(|error| println!("not copied: {error}")).ok();
    assert_eq!(snapshot(&pair.served("outside")), before, "what nobody asked for was touched");
    (pair, copied)
}

fn link_out(at: &str) -> Entry {
    entry(at, EntryKind::Symlink { target: b"../../outside".to_vec() }, 0)
}

#[test]
fn an_empty_file_of_a_scripted_server_arrives() {
    // Or else the refusals below would show nothing.
    let script = |message| folder_of(message, vec![entry("f", EntryKind::File, 0)]);
    let (pair, copied) = copy_from(script, |_| {});
    assert!(pair.local("all/f").is_file(), "{copied:?}");
}

#[test]
fn a_server_cannot_say_that_what_is_fetched_is_there_already() {
    let script = |message| match message {
        ClientMessage::Read(ReadRequest::Open { files }) => {
            let fault = || Err(Fault::new(Code::Exists, "it is there now"));
            let files = files.iter().map(|file| (file.file, fault())).collect();
            vec![ServerMessage::Read(ReadReply::Opened { files })]
        }
        message => folder_of(message, vec![entry("f", EntryKind::File, 0)]),
    };
    let rules = CopyPolicy { replace: Replace::Never, ..CopyPolicy::default() };
    let (pair, copied) = copy_by(rules, "ro/all", script, |_| {});
    let copied = copied.expect("a session");
    assert!(!pair.local("all/f").exists());
    assert_eq!((copied.failed.len(), copied.skipped.len()), (1, 0), "{copied:?}");
}

#[test]
fn a_link_and_something_behind_it_stay_inside() {
    let script = |message| {
        let (folder, file) = (EntryKind::Folder, EntryKind::File);
        let behind = [entry("l/d", folder, 0), entry("l/f", file, 0)];
        folder_of(message, [vec![link_out("l")], behind.to_vec()].concat())
    };
    copy_from(script, |_| {});
}

#[test]
fn a_link_to_what_lies_beside_the_tree_is_not_followed() {
    let script = |message| {
        let beside = EntryKind::Symlink { target: b"../sibling".to_vec() };
        let (folder, file) = (EntryKind::Folder, EntryKind::File);
        let behind = [entry("l/d", folder, 0), entry("l/kept", file, 0)];
        folder_of(message, [vec![entry("l", beside, 0)], behind.to_vec()].concat())
    };
    // Beside a tree that is new, and beside one in a folder that is there.
    for around in ["", "all"] {
        let (pair, copied) = copy_from(script, |local| {
            fs::create_dir_all(local.join(around).join("sibling")).expect("a folder");
            fs::write(local.join(around).join("sibling/kept"), b"mine").expect("a file");
        });
        let here = pair.local(around);
        assert!(here.join("all/l").is_symlink(), "or else it shows nothing: {copied:?}");
        assert_eq!(fs::read(here.join("sibling/kept")).expect("still there"), b"mine");
        assert!(!here.join("sibling/d").exists(), "in {around:?}");
    }
}

#[test]
fn a_pattern_brings_no_name_that_is_not_in_its_folder() {
    let script = |message| match message {
        ClientMessage::Stat { request, look } => {
            let answer = |asked: &WirePath| match asked.as_bytes().contains(&b'*') {
                true => Err(Fault::new(Code::NotFound, "no such file")),
                false => Ok(Entry { path: asked.clone(), ..entry("x", EntryKind::File, 0) }),
            };
            let answers = look.paths.iter().map(answer).collect();
            vec![ServerMessage::Stated { request, answers }]
        }
        message => folder_of(
            message,
            ["data/.hidden", "data1"].map(|name| entry(name, EntryKind::File, 0)).to_vec(),
        ),
    };
    let (pair, copied) = copy_of("ro/data*", script, |local| {
        fs::create_dir(local.join("all")).expect("a folder");
        fs::write(local.join("all/.hidden"), b"mine").expect("a file");
    });
    assert!(pair.local("all/data1").is_file(), "or else it shows nothing: {copied:?}");
    assert_eq!(fs::read(pair.local("all/.hidden")).expect("still there"), b"mine");
}

#[test]
fn answers_that_nobody_asked_for_end_a_session() {
    let script = |message| match message {
        ClientMessage::Stat { request, .. } => {
            let stated = |request| ServerMessage::Stated { request, answers: Vec::new() };
            vec![stated(request + 1), stated(request + 2)]
        }
        message => folder_of(message, vec![]),
    };
    let begin = Instant::now();
    let (_, copied) = copy_from(script, |_| {});
    assert!(copied.is_none() && begin.elapsed() < Duration::from_secs(3), "{copied:?}");
    let script = |message| {
        let page = |request| {
            let entries = vec![entry("f", EntryKind::Folder, 0)];
            ServerMessage::Page { request, entries, faults: vec![], done: false }
        };
        match message {
            ClientMessage::Scan { request, .. } => vec![page(request), page(request)],
            message => folder_of(message, vec![]),
        }
    };
    let (_, copied) = copy_from(script, |_| {});
    let broken = copied.and_then(|copied| copied.summary.broken);
    assert!(broken.as_ref().is_some_and(|it| it.text.contains("unasked")), "{broken:?}");
    // A second answer for one link, and one for a link that nobody wants.
    for script in [attached_twice::<0> as Script, attached_twice::<1000>] {
        let (_, copied) = copy_from(script, |_| {});
        let broken = copied.and_then(|copied| copied.summary.broken);
        let said = "sent a link without a request";
        assert!(broken.as_ref().is_some_and(|it| it.text.contains(said)), "{broken:?}");
    }
}

/// Answers for a link, and for the one that is so much further.
fn attached_twice<const FURTHER: u16>(message: ClientMessage) -> Vec<ServerMessage> {
    let attached = |link| {
        let secret = JoinSecret([7; 32]);
        ServerMessage::Attached { link, answer: Ok(LinkAnswer::Tcp { secret }) }
    };
    match message {
        ClientMessage::Attach { link, .. } => {
            vec![attached(link), attached(LinkId { index: link.index + FURTHER, ..link })]
        }
        message => folder_of(message, vec![entry("f", EntryKind::File, 9)]),
    }
}

#[test]
fn a_folder_that_becomes_a_link_stays_inside() {
    let script = |message| {
        let (folder, file) = (EntryKind::Folder, EntryKind::File);
        let first = vec![entry("l", folder.clone(), 0), link_out("l")];
        folder_of(message, [first, vec![entry("l/d", folder, 0), entry("l/f", file, 0)]].concat())
    };
    copy_from(script, |_| {});
}

#[test]
fn what_an_earlier_lie_planted_is_not_followed() {
    let script = |message| {
        let (folder, file) = (EntryKind::Folder, EntryKind::File);
        let inside = [entry("l/d", folder.clone(), 0), entry("l/kept", file, 0)];
        folder_of(message, [vec![entry("l", folder, 0)], inside.to_vec()].concat())
    };
    copy_from(script, |local| {
        fs::create_dir(local.join("all")).expect("a folder");
        symlink("../../outside", local.join("all/l")).expect("a link");
    });
}

#[test]
fn a_file_in_the_place_of_the_folder_that_was_asked_for_overwrites_nothing() {
    let script = |message| match message {
        ClientMessage::Scan { request, .. } => {
            // The root itself, as a file, and as a link.
            let root = |kind| Entry { path: WirePath::root(), ..entry("x", kind, 0) };
            let link = EntryKind::Symlink { target: b"../outside".to_vec() };
            let entries = vec![root(EntryKind::File), root(link)];
            vec![ServerMessage::Page { request, entries, faults: vec![], done: true }]
        }
        message => folder_of(message, vec![]),
    };
    let (pair, _) = copy_from(script, |local| {
        fs::create_dir(local.join("all")).expect("a folder");
        fs::write(local.join("all/mine"), b"mine").expect("a file");
    });
    assert_eq!(fs::read(pair.local("all/mine")).expect("still there"), b"mine");
}

/// How often the liar below has told another page.
static PAGES: AtomicUsize = AtomicUsize::new(0);

#[test]
fn many_pages_of_the_same_take_little_memory_and_time() {
    // In a process of its own: what other tests take is not its business.
    const ALONE: &str = "VERBATIM_TEST_ALONE";
    const NAME: &str = "servers::many_pages_of_the_same_take_little_memory_and_time";
    if std::env::var_os(ALONE).is_none() {
        let mut test = Command::new(std::env::current_exe().expect("a running test has a file"));
        let ended = test.args(["--exact", NAME, "--nocapture"]).env(ALONE, "1").output();
        let ended = ended.expect("it starts");
        let (said, wrong) = (ended.stdout.escape_ascii(), ended.stderr.escape_ascii());
        assert!(ended.status.success(), "{said} {wrong}");
        return;
    }
    const PAGES_MAX: usize = 300;
    const ENTRIES: usize = 1000;
    // More of the same folder over and over, as if there were no end.
    let script = |message| {
        let request = match message {
            ClientMessage::Scan { request, .. } | ClientMessage::ScanMore { request } => request,
            message => return folder_of(message, vec![]),
        };
        let page = PAGES.fetch_add(1, Ordering::Relaxed) + 1;
        let name = |number| format!("{page}-{number}");
        let entries = (0..ENTRIES).map(|number| entry(&name(number), EntryKind::Special, 0));
        let (entries, done) = (entries.collect(), page >= PAGES_MAX);
        vec![ServerMessage::Page { request, entries, faults: vec![], done }]
    };
    let (before, begin) = (anonymous_kib(), Instant::now());
    let (_pair, copied) = copy_from(script, |_| {});
    let grown = anonymous_kib().saturating_sub(before);
    let skipped = copied.expect("it ends").summary.skipped;
    assert_eq!(PAGES.load(Ordering::Relaxed), PAGES_MAX, "all pages were read");
    assert_eq!(skipped as usize, PAGES_MAX * ENTRIES, "and all that is in them");
    // What the test itself records of each is most of it: about 100 bytes.
    let each = grown * 1024 / skipped;
    assert!(each < 160, "{grown} KiB, {each} bytes for each of {skipped} entries");
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

/// RssAnon of this process.
fn anonymous_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a kernel");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}

#[test]
fn leases_that_cannot_be_end_the_session_and_not_the_client() {
    let script = |message| match message {
        ClientMessage::Read(ReadRequest::Open { files }) => {
            let size = u64::MAX;
            let info = FileInfo { size, mode: 0, mtime_ns: 0, allocated: 0, version: None };
            let file = files[0].file;
            let lease = |number: u64, offset, len, base| {
                let digests = vec![Digest([0; 32]); 4];
                let pieces = vec![Piece { file, extent: Extent { offset, len }, digests }];
                let window = WindowId(number);
                ReadReply::Lease(Lease { window, region: Region { key: 0, base }, pieces })
            };
            let replies = [
                ReadReply::Opened { files: vec![(file, Ok(info))] },
                lease(1, 0, 1 << 20, u64::MAX - 5),
                lease(2, u64::MAX - 10, 1 << 20, 0),
                lease(3, 1 << 20, u64::MAX, 0),
            ];
            replies.into_iter().map(ServerMessage::Read).collect()
        }
        message => folder_of(message, vec![entry("f", EntryKind::File, u64::MAX)]),
    };
    let (pair, _) = copy_from(script, |_| {});
    assert!(!pair.local("all/f").exists());
}
