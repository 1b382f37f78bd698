//! What takes an inode counts in a quota, with whatever program or messages it is made: files of
//! one byte, folders, symbolic links with long targets, hard links, trees beside a target.

use crate::process::{Ended, Running, Serve, Signal};
use crate::{World, names, text};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use verbatim_proto::message::{
    CreateFile, EntryKind, FileInfo, NewEntry, WriteReply, WriteRequest,
};
use verbatim_proto::mirror::Edit;
use verbatim_proto::units::STREAM_BYTES_MAX;
use verbatim_proto::{
    ClientMessage, Code, Digest, Fault, FileId, Meta, MirrorReply, MirrorRequest, ServerMessage,
    WirePath,
};
use verbatim_tests::raw::Raw;

const SMALL: &str = r#"
[[export]]
name = "links"
path = "DIR/links"
mode = "rw"
quota_mb = 1

[[export]]
name = "folders"
path = "DIR/folders"
mode = "rw"
quota_mb = 1

[[export]]
name = "files"
path = "DIR/files"
mode = "rw"
quota_mb = 1
"#;

/// What each export holds of 1 MiB: an inode counts 4 KiB, a link its target as well, a file its
/// byte.
const HELD: [(&str, usize, usize); 3] =
    [("links", 5000, 4096 + 4000), ("folders", 2560, 4096), ("files", 5000, 4097)];

/// Makes one entry of what an export of `HELD` is to hold.
fn make_one(kind: &str, at: &Path) {
    match kind {
        "links" => symlink("x".repeat(4000), at),
        "folders" => fs::create_dir(at),
        _ => fs::write(at, b"x"),
    }
    .expect("it can be made");
}

/// A server of three exports with quotas of 1 MiB, and three trees that fit in none.
fn small_quotas() -> World {
    World::prepared(SMALL, |dir| {
        for (kind, count, _) in HELD {
            fs::create_dir(dir.join(kind)).expect("a folder");
            let from = dir.join("from").join(kind);
            fs::create_dir_all(&from).expect("folders");
            (0..count).for_each(|number| make_one(kind, &from.join(number.to_string())));
        }
    })
}

/// Copies each tree with `copy`, which is refused, and looks how much of it arrived.
#[track_caller]
fn ends_near_the_quota(world: &World, copy: impl Fn(&str, &str) -> Ended) {
    for (kind, count, bytes) in HELD {
        let ended =
            copy(&format!("{}/", world.text(&format!("from/{kind}"))), &world.serve.at(kind));
        let made = count_below(&world.path(kind));
        // One folder more is what all of it is in.
        let most = (1 << 20) / bytes + 1;
        assert!(
            made > most / 2 && made <= most,
            "of {count} {kind} {made} were made, at most {most} fit\n{}",
            ended.stderr.lines().take(5).collect::<Vec<_>>().join("\n")
        );
        ended.refused(1, &[&format!("the quota of {kind} is used up"), "quota_mb"]);
    }
}

/// How many entries there are below a folder.
fn count_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let count = |entry: fs::DirEntry| {
        let is_folder = entry.file_type().expect("a type").is_dir();
        1 + if is_folder { count_below(&entry.path()) } else { 0 }
    };
    entries.map(count).sum()
}

#[test]
fn rdma_cp_cannot_fill_a_disk_with_links_folders_and_files_of_one_byte() {
    let world = small_quotas();
    ends_near_the_quota(&world, |from, to| world.serve.cp(&["-r", from, to]));
}

#[test]
fn rdma_sync_cannot_fill_a_disk_with_links_folders_and_files_of_one_byte() {
    let world = small_quotas();
    ends_near_the_quota(&world, |from, to| {
        Running::start(world.home.command("rdma-sync", &[from, to])).end()
    });
}

const FEW: &str = r#"
[[export]]
path = "DIR/in"
mode = "rw"
quota_files = 10
"#;

fn path(text: &str) -> WirePath {
    WirePath::parse(text.as_bytes()).expect("a path")
}

/// Asks for these to be made.
fn make(raw: &mut Raw, entries: Vec<NewEntry>) -> Vec<Result<(), Fault>> {
    raw.say(ClientMessage::Make { request: 1, entries });
    raw.hear("answer to Make", |message| match message {
        ServerMessage::Made { answers, .. } => Some(answers.clone()),
        _ => None,
    })
}

fn entry(text: &str, kind: EntryKind) -> NewEntry {
    let (meta, force, unfinished) = (None, false, false);
    NewEntry { path: path(text), kind, mode: 0o755, meta, force, unfinished }
}

/// Begins uploads: of an empty file, of one that lasts, and of one whose size is told last.
fn create(raw: &mut Raw) -> Vec<Result<(), Fault>> {
    let file = |(number, (size, stream)): (u32, (u64, bool))| {
        let info = FileInfo { size, mode: 0o644, mtime_ns: 0, allocated: 0, version: None };
        CreateFile { file: FileId(number), path: path(&format!("in/u{number}")), info, stream }
    };
    let kinds = [(0, false), (32 << 20, false), (STREAM_BYTES_MAX, true)];
    let files = (1..).zip(kinds).map(file).collect();
    raw.say(ClientMessage::Write(WriteRequest::Create { files }));
    let answers = raw.hear("answer to Create", |message| match message {
        ServerMessage::Write(WriteReply::Created { files }) => Some(files.clone()),
        _ => None,
    });
    answers.into_iter().map(|(_, answer)| answer.map(drop)).collect()
}

/// Asks for something of a mirror.
fn mirror(raw: &mut Raw, request: MirrorRequest) -> Vec<Result<(), Fault>> {
    raw.say(ClientMessage::Mirror(request));
    raw.hear("answer to a mirror", |message| match message {
        ServerMessage::Mirror(MirrorReply::Begun { answer, .. }) => {
            Some(vec![answer.clone().map(drop)])
        }
        ServerMessage::Mirror(MirrorReply::Staged { answer, .. }) => {
            Some(vec![answer.clone().map(drop)])
        }
        ServerMessage::Mirror(MirrorReply::Changed { answers, .. }) => Some(answers.clone()),
        _ => None,
    })
}

#[test]
fn every_message_that_makes_an_inode_is_refused_where_quota_files_is_full() {
    let world = World::configured(FEW);
    fs::write(world.path("in/file"), b"of the server").expect("a file");
    let mut raw = Raw::connect(&world.options());
    let link = |name: &str| Edit::Link { path: path(name), to: path("in/file") };
    let edits = vec![link("in/a"), link("in/b")];
    let linked = mirror(&mut raw, MirrorRequest::Edit { request: 2, edits });
    assert!(linked.iter().all(Result::is_ok), "hard links are no files: {linked:?}");
    let folders = || (0..12).map(|n| entry(&format!("in/f{n}"), EntryKind::Folder)).collect();
    for _ in 0..2 {
        let made = make(&mut raw, folders());
        let done = made.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(done, 10, "those that are there can be made again: {made:?}");
    }
    let target = b"x".to_vec();
    let own =
        Edit::Own { path: path("in/a"), meta: Box::new(Meta { mode: 0o600, ..Meta::default() }) };
    let stage =
        |text: &str| MirrorRequest::Stage { request: 3, path: path(text), key: Digest::of(b"") };
    let all = [
        make(&mut raw, vec![entry("in/f12", EntryKind::Folder)]),
        make(&mut raw, vec![entry("in/l", EntryKind::Symlink { target })]),
        create(&mut raw),
        mirror(&mut raw, MirrorRequest::Begin { request: 4, path: path("in/m"), hold: true }),
        mirror(&mut raw, stage("in/f1")),
        mirror(&mut raw, stage("in/new")),
        mirror(&mut raw, MirrorRequest::Edit { request: 5, edits: vec![own] }),
    ];
    for answer in all.iter().flatten() {
        let fault = answer.as_ref().expect_err(&format!("nothing is left: {all:?}"));
        assert!(fault.code == Code::NoSpace && fault.text.contains("quota_files"), "{fault}");
    }
    let there = names(&world.path("in"));
    assert_eq!(there.len(), 3 + 10, "{there:?}");
}

#[test]
fn a_full_quota_of_files_is_known_to_the_next_server() {
    let world = World::configured(FEW);
    let from = world.path("from");
    fs::create_dir(&from).expect("a folder");
    (0..30).for_each(|number| fs::write(from.join(number.to_string()), b"").expect("a file"));
    let copy = |world: &World, from: &str| world.serve.cp(&["-r", from, &world.serve.at("in")]);
    copy(&world, &text(&from))
        .refused(1, &["0 of 10 files, folders and links are left", "quota_files"]);
    assert_eq!(count_below(&world.path("in")), 10);

    let World { serve, dir, home } = world;
    serve.signal(Signal::TERM);
    assert_eq!(serve.end(), Some(0));
    let config = text(&dir.path().join("serve.toml"));
    let serve = Serve::of(&home, "127.0.0.1:0", &["--config", &config]);
    let world = World { serve, dir, home };
    copy(&world, &world.text("data/small"))
        .refused(1, &["the quota of in is used up", "quota_files"]);
    assert_eq!(count_below(&world.path("in")), 10);
}
