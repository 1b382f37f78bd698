//! A client that wants what is not its own, with a real server that has an honest
//! client too, and serves it on whatever the other one says.

use crate::snapshot;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use verbatim_control::{Connection, connect};
use verbatim_proto::message::{
    ClientMessage, CommitFile, CreateFile, EntryKind, FileInfo, NewEntry, OpenFile, ReadReply,
    ReadRequest, SentChunk, ServerMessage, WriteRequest,
};
use verbatim_proto::mirror::{Edit, MirrorRequest, TreeScan};
use verbatim_proto::units::BATCH_FILES_MAX;
use verbatim_proto::{Digest, FileId, LinkId, Look, Scan, Tag, WindowId, WirePath};
use verbatim_tests::pair::{Backend, Pair};
use verbatim_tests::raw::ANSWER_MAX;

/// How long a server is listened to after a message; what it does not say by then, it does not.
const LISTEN: Duration = Duration::from_millis(300);

/// Sends messages on one session, and returns what came back until the server was done.
fn say(pair: &Pair, messages: Vec<ClientMessage>) -> Vec<ServerMessage> {
    say_until(pair, messages, |_| true)
}

/// The same, where the server is not done before it was heard: that is waited for longer.
fn say_until(
    pair: &Pair,
    messages: Vec<ClientMessage>,
    is_heard: impl Fn(&[ServerMessage]) -> bool,
) -> Vec<ServerMessage> {
    let options = pair.down(&["ro/x"], "x").session.connect;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let Connection { mut sender, mut receiver, .. } = connect(&options).await.expect("let in");
        let mut heard = Vec::new();
        for message in messages {
            if sender.send(&message).await.is_err() || sender.flush().await.is_err() {
                break;
            }
        }
        let begin = Instant::now();
        loop {
            let left = ANSWER_MAX.saturating_sub(begin.elapsed());
            let patience = if is_heard(&heard) { LISTEN } else { left };
            match timeout(patience, receiver.recv()).await {
                Ok(Ok(Some(message))) => heard.push(message),
                _ => return heard,
            }
        }
    })
}

fn path(text: &str) -> WirePath {
    WirePath::parse(text.as_bytes()).expect("plain")
}

fn open(at: &str) -> ClientMessage {
    open_as(FileId(1), at)
}

fn open_as(file: FileId, at: &str) -> ClientMessage {
    let file = OpenFile { file, path: path(at), have: vec![] };
    ClientMessage::Read(ReadRequest::Open { files: vec![file] })
}

/// Which files these answers let the client read.
fn granted(heard: &[ServerMessage]) -> BTreeSet<FileId> {
    let of = |answer: &ServerMessage| -> Vec<FileId> {
        match answer {
            ServerMessage::Read(ReadReply::Opened { files }) => {
                files.iter().filter(|(_, answer)| answer.is_ok()).map(|(id, _)| *id).collect()
            }
            ServerMessage::Read(ReadReply::Lease(lease)) => {
                lease.pieces.iter().map(|piece| piece.file).collect()
            }
            _ => vec![],
        }
    };
    heard.iter().flat_map(of).collect()
}

fn create(file: u32, at: &str) -> CreateFile {
    let info = FileInfo { size: 0, mode: 0o644, mtime_ns: 0, allocated: 0, version: None };
    CreateFile { file: FileId(file), path: path(at), info, stream: false }
}

fn put(at: &str) -> Vec<ClientMessage> {
    let commit = CommitFile { file: FileId(1), root: Digest::of(b""), meta: None };
    vec![
        ClientMessage::Write(WriteRequest::Create { files: vec![create(1, at)] }),
        ClientMessage::Write(WriteRequest::Commit { files: vec![commit] }),
    ]
}

fn make(at: &str, kind: EntryKind) -> ClientMessage {
    let entry =
        NewEntry { path: path(at), kind, force: true, mode: 0o777, meta: None, unfinished: false };
    ClientMessage::Make { request: 1, entries: vec![entry] }
}

/// A server with something outside its exports, and links in them that lead there.
fn tempted() -> Pair {
    let pair = Pair::in_memory(Backend::Tcp);
    fs::create_dir(pair.served("outside")).expect("a folder");
    fs::write(pair.served("outside/secret"), b"secret").expect("a file");
    for export in ["ro", "rw"] {
        symlink(pair.served("outside"), pair.served(export).join("out")).expect("a link");
        symlink("../outside", pair.served(export).join("up")).expect("a link");
    }
    // Of another size than what is secret.
    fs::write(pair.served("ro/public"), b"for everybody").expect("a file");
    pair
}

/// The honest client is served on, and nothing outside was touched.
fn unharmed(pair: &Pair, before: &[(std::path::PathBuf, Option<Vec<u8>>)]) {
    assert_eq!(snapshot(&pair.served("outside")), before, "outside its exports");
    let _ = fs::remove_file(pair.local("honest"));
    pair.down(&["ro/public"], "honest").run().whole();
}

#[test]
fn nothing_outside_an_export_is_read() {
    let pair = tempted();
    let before = snapshot(&pair.served("outside"));
    for at in
        ["ro/out/secret", "ro/up/secret", "rw/out/secret", "state/server.key", "outside/secret"]
    {
        let look = Look { follow: true, paths: vec![path(at)] };
        let scan = Scan { path: path(at).parent(), recursive: true, ..Scan::default() };
        let walk = TreeScan { path: path(at).parent(), digests: true, ..TreeScan::default() };
        let said = [
            ClientMessage::Stat { request: 1, look },
            ClientMessage::Scan { request: 2, scan },
            ClientMessage::Mirror(MirrorRequest::Walk { request: 3, walk }),
            open(at),
        ];
        for message in said {
            // What it may have shows that the session goes on, and that it would be seen.
            let own = FileId(2);
            let both = vec![message.clone(), open_as(own, "ro/public")];
            let heard = say_until(&pair, both, |heard| granted(heard).contains(&own));
            let text = format!("{heard:?}");
            assert!(!text.contains("size: 6"), "{at}, {message:?}: {text}");
            assert_eq!(granted(&heard), BTreeSet::from([own]), "{at}, {message:?}: {text}");
        }
    }
    unharmed(&pair, &before);
}

#[test]
fn nothing_outside_an_export_is_written() {
    let pair = tempted();
    let before = snapshot(&pair.served("outside"));
    let link = |to: &str| EntryKind::Symlink { target: to.as_bytes().to_vec() };
    for at in ["rw/out/new", "rw/up/new", "ro/new", "state/new", "rw/mine/new", "rw/out/secret"] {
        let mut said = vec![make("rw/mine", link("../outside"))];
        said.extend(put(at));
        say(&pair, said);
        say(&pair, vec![make(at, EntryKind::Folder)]);
        let edit = |edit| MirrorRequest::Edit { request: 4, edits: vec![edit] };
        let remove = Edit::Remove { path: path(at), is_folder: false };
        let linked = Edit::Link { path: path("rw/stolen"), to: path("rw/out/secret") };
        let sweep = Edit::Sweep { path: path("rw/out") };
        for edit in [edit(remove), edit(linked), edit(sweep)] {
            say(&pair, vec![ClientMessage::Mirror(edit)]);
        }
        let stolen = fs::read(pair.served("rw/stolen")).unwrap_or_default();
        assert_ne!(stolen, b"secret", "linked to from outside");
    }
    assert!(!pair.served("ro/new").exists() && !pair.served("state/new").exists());
    unharmed(&pair, &before);
}

#[test]
fn messages_that_make_no_sense_harm_nobody_else() {
    let pair = tempted();
    let before = snapshot(&pair.served("outside"));
    let link = LinkId { index: 0, epoch: 0 };
    let many = (0..=BATCH_FILES_MAX as u32).map(|file| create(file, "rw/many")).collect();
    let unsent = |tag| SentChunk { tag: Tag(tag), pieces: vec![] };
    let root = Digest([1; 32]);
    let nonsense: Vec<Vec<ClientMessage>> = vec![
        vec![ClientMessage::Write(WriteRequest::Create { files: many })],
        vec![ClientMessage::Write(WriteRequest::Sent {
            chunks: vec![unsent(0), unsent(u32::MAX)],
        })],
        vec![ClientMessage::Write(WriteRequest::Commit {
            files: vec![CommitFile { file: FileId(9), root, meta: None }],
        })],
        vec![
            ClientMessage::Write(WriteRequest::Create { files: vec![create(1, "rw/a")] }),
            ClientMessage::Write(WriteRequest::Create { files: vec![create(1, "rw/b")] }),
        ],
        vec![ClientMessage::Write(WriteRequest::End { file: FileId(3), size: u64::MAX })],
        vec![ClientMessage::Read(ReadRequest::Release { windows: vec![WindowId(u64::MAX)] })],
        vec![ClientMessage::Read(ReadRequest::Close { files: vec![FileId(7)], describe: true })],
        vec![ClientMessage::Fence { link }, ClientMessage::Fence { link }],
        vec![ClientMessage::ScanMore { request: 77 }],
        vec![ClientMessage::Mirror(MirrorRequest::WalkMore { request: 77 })],
        vec![ClientMessage::Mirror(MirrorRequest::WalkUnless {
            request: 77,
            alike: root,
            owners: true,
        })],
        vec![open("ro/public"), open("ro/public")],
    ];
    for messages in nonsense {
        say(&pair, messages.clone());
        unharmed(&pair, &before);
    }
    // A wrong root is not committed, and leaves nothing behind.
    let wrong = CommitFile { file: FileId(1), root, meta: None };
    say(
        &pair,
        vec![
            ClientMessage::Write(WriteRequest::Create { files: vec![create(1, "rw/wrong")] }),
            ClientMessage::Write(WriteRequest::Commit { files: vec![wrong] }),
        ],
    );
    assert!(!pair.served("rw/wrong").exists());
    unharmed(&pair, &before);
}
