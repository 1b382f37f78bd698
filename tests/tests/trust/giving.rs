//! Exports whose files are given to whom the client says (`owner = "client"`), and servers that
//! may change owners and modes of others' files (`keep_chown`), attacked with claims about files
//! that clients did not make. Needs root.

use crate::process::{Home, NOBODY, Running, Serve, skip};
use crate::{World, text};
use rustix::fs::{CWD, FileType, Mode, listxattr, makedev, mknodat};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use verbatim_control::{ClientKey, ConnectOptions, Fingerprint};
use verbatim_proto::message::{EntryKind, NewEntry};
use verbatim_proto::meta::Xattr;
use verbatim_proto::mirror::Edit;
use verbatim_proto::{
    ClientMessage, Code, Fault, Meta, MirrorReply, MirrorRequest, ServerMessage, WirePath,
};
use verbatim_tests::raw::Raw;

/// One export gives files away, the other has files of its server; both keep setuid bits.
const EXPORTS: &str = r#"
insecure_no_auth = true

[[export]]
path = "DIR/in"
mode = "rw"
owner = "client"
allow_setuid = true

[[export]]
path = "DIR/own"
mode = "rw"
allow_setuid = true
"#;

/// What a user who is not root keeps to give files away.
const KEEPER: &str = "user = \"nobody\"\nkeep_chown = true\n";

/// The servers that are attacked: one of root, and one of nobody who keeps what giving takes.
fn servers() -> [World; 2] {
    ["", KEEPER].map(|lines| {
        let (dir, home) = (crate::folders(), Arc::new(Home::new()));
        let path = |below: &str| dir.path().join(below);
        for folder in [dir.path(), home.path()] {
            fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).expect("ours");
        }
        fs::create_dir_all(home.state()).expect("a folder");
        fs::create_dir_all(path("own")).expect("a folder");
        if lines == KEEPER {
            for folder in [home.state(), path("in"), path("own")] {
                chown(folder, Some(NOBODY), Some(NOBODY)).expect("root may");
            }
        }
        let toml = EXPORTS.replace("DIR", &text(dir.path()));
        fs::write(path("serve.toml"), format!("{lines}{toml}")).expect("a file");
        let config = ["--config", &text(&path("serve.toml"))];
        let serve = Serve::of(&home, "127.0.0.1:0", &config);
        World { serve, dir, home }
    })
}

fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(test, "only root may give files away");
    }
    root
}

/// A session of a user of another machine, who has no key.
fn stranger(world: &World) -> (Home, Raw) {
    let home = Home::new();
    let fingerprint: Fingerprint = world.serve.fingerprint.parse().expect("it is one");
    let options = ConnectOptions {
        state_dir: home.state(),
        config_dir: home.path().join("config"),
        fingerprint: Some(fingerprint),
        ..world.options()
    };
    (home, Raw::connect(&options))
}

fn path(text: &str) -> WirePath {
    WirePath::parse(text.as_bytes()).expect("a path")
}

fn meta((uid, gid, mode): (u32, u32, u32), xattrs: &[(&str, &[u8])]) -> Meta {
    let xattr = |(name, value): &(&str, &[u8])| Xattr {
        name: name.as_bytes().to_vec(),
        value: value.to_vec(),
    };
    let xattrs = xattrs.iter().map(xattr).collect();
    Meta { mode, uid, gid, atime_ns: 1, mtime_ns: 2, xattrs }
}

fn describe(at: &str, meta: Meta) -> Edit {
    Edit::Describe { path: path(at), meta: Box::new(meta) }
}

fn edit(raw: &mut Raw, edits: Vec<Edit>) -> Vec<Result<(), Fault>> {
    raw.say(ClientMessage::Mirror(MirrorRequest::Edit { request: 1, edits }));
    raw.hear("answer to Edit", |message| match message {
        ServerMessage::Mirror(MirrorReply::Changed { answers, .. }) => Some(answers.clone()),
        _ => None,
    })
}

fn make(raw: &mut Raw, at: &str, kind: EntryKind) -> Result<(), Fault> {
    let (meta, force, unfinished) = (None, false, false);
    let entries = vec![NewEntry { path: path(at), kind, mode: 0o777, meta, force, unfinished }];
    raw.say(ClientMessage::Make { request: 1, entries });
    raw.hear("answer to Make", |message| match message {
        ServerMessage::Made { answers, .. } => Some(answers[0].clone()),
        _ => None,
    })
}

/// Makes a file of root that everybody may execute.
fn program(at: &Path) {
    fs::write(at, b"#!/bin/sh").expect("a file");
    fs::set_permissions(at, PermissionsExt::from_mode(0o755)).expect("ours");
}

/// Owner, group and mode.
fn state(at: &Path) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(at).expect("it is there");
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

/// A number that no account has.
const NO_NAME: u32 = 1 << 31;

/// What chown takes for "as it is".
const AS_IT_IS: u32 = u32::MAX;

#[test]
fn claims_about_programs_of_root_make_no_setuid_program_of_root() {
    if !is_root("claims_about_programs_of_root_make_no_setuid_program_of_root") {
        return;
    }
    // What is claimed of a program of root, and what it is then where files are given away.
    let cases = [
        ((0, 0, 0o6755), (NOBODY, NOBODY, 0o755)),
        ((AS_IT_IS, AS_IT_IS, 0o7777), (NOBODY, NOBODY, 0o1777)),
        ((1234, 0, 0o6755), (1234, NOBODY, 0o4755)),
        ((0, 1235, 0o6755), (NOBODY, 1235, 0o2755)),
        ((NO_NAME, NO_NAME - 1, 0o4755), (NO_NAME, NO_NAME - 1, 0o4755)),
        ((NOBODY, NOBODY, 0o6777), (NOBODY, NOBODY, 0o6777)),
    ];
    for world in servers() {
        let (_home, mut raw) = stranger(&world);
        for (claimed, given) in cases {
            let programs = ["in/program", "own/program"];
            for at in programs {
                let _ = fs::remove_file(world.path(at));
                program(&world.path(at));
            }
            let edits = programs.map(|at| describe(at, meta(claimed, &[]))).to_vec();
            let answers = edit(&mut raw, edits);
            assert!(answers.iter().all(Result::is_ok), "{claimed:?}: {answers:?}");
            assert_eq!(state(&world.path("in/program")), given, "of {claimed:?}");
            let (uid, gid, mode) = state(&world.path("own/program"));
            assert_eq!((uid, gid, mode & 0o6000), (0, 0, 0), "{mode:o} of {claimed:?}");
        }
    }
}

/// Makes what has no content, each of root: a pipe, a socket and a device.
fn make_specials(folder: &Path) -> UnixListener {
    let mode = Mode::from_raw_mode(0o644);
    mknodat(CWD, folder.join("pipe"), FileType::Fifo, mode, 0).expect("root may");
    mknodat(CWD, folder.join("null"), FileType::CharacterDevice, mode, makedev(1, 3))
        .expect("root may");
    UnixListener::bind(folder.join("socket")).expect("a name that is free")
}

#[test]
fn claims_through_links_and_of_devices_change_no_owner() {
    if !is_root("claims_through_links_and_of_devices_change_no_owner") {
        return;
    }
    for world in servers() {
        program(&world.path("out/program"));
        let _socket = make_specials(&world.path("in"));
        let outside = ["out", "out/program", "in/pipe", "in/null", "in/socket"];
        let before = outside.map(|at| state(&world.path(at)));
        let (_home, mut raw) = stranger(&world);
        // Links that the client makes itself.
        let links = [("in/file", "../out/program"), ("in/folder", "../out"), ("in/up", "..")];
        let absolute = ("in/absolute", &*world.text("out"));
        for (at, target) in links.into_iter().chain([absolute]) {
            let target = target.as_bytes().to_vec();
            make(&mut raw, at, EntryKind::Symlink { target }).expect("links may lead anywhere");
        }
        let claimed = || meta((1234, 1235, 0o6777), &[]);
        let edits: Vec<Edit> = [
            "in/file",
            "in/folder",
            "in/folder/program",
            "in/up/out/program",
            "in/absolute",
            "in/absolute/program",
            "in/pipe",
            "in/null",
            "in/socket",
        ]
        .map(|at| describe(at, claimed()))
        .to_vec();
        for (edit, answer) in edits.iter().zip(edit(&mut raw, edits.clone())) {
            let fault = answer.expect_err(&format!("{:?} was taken", edit.path()));
            assert!(matches!(fault.code, Code::BadPath | Code::Special), "{fault:?}");
        }
        let made = make(&mut raw, "in/device", EntryKind::Special);
        assert_eq!(made.expect_err("no device is made").code, Code::Protocol);
        assert_eq!(outside.map(|at| state(&world.path(at))), before);

        // Those that were there, in the place of a folder of a mirror.
        let (from, to) = (world.path("from/sub"), world.path("in/mirror"));
        fs::create_dir_all(&from).expect("folders");
        fs::create_dir(&to).expect("a folder");
        chown(&to, Some(NOBODY), Some(NOBODY)).expect("root may");
        symlink(world.path("out"), to.join("sub")).expect("a link");
        program(&from.join("program"));
        for mine in [&from, &from.join("program")] {
            chown(mine, Some(1234), Some(1235)).expect("root may");
        }
        let home = Home::new();
        let trusted =
            ["--fingerprint", &world.serve.fingerprint, "-a", "--delete", "--numeric-ids"];
        let places = [&*text(from.parent().expect("a folder")), &world.serve.at("in/mirror")];
        let places = places.map(|place| format!("{}/", place.trim_end_matches('/')));
        let arguments: Vec<&str> =
            trusted.into_iter().chain(places.iter().map(String::as_str)).collect();
        Running::start(home.command("rdma-sync", &arguments)).end().done();
        assert_eq!(state(&to.join("sub/program")), (1234, 1235, 0o755));
        assert_eq!(outside.map(|at| state(&world.path(at))), before);
    }
}

/// A list that lets user 4321 do everything.
fn access_list() -> Vec<u8> {
    let entries = [(1_u16, 6_u16, u32::MAX), (2, 7, 4321), (4, 4, u32::MAX), (16, 7, u32::MAX)];
    let entries = entries.into_iter().chain([(32, 0, u32::MAX)]);
    let bytes = entries.flat_map(|(tag, bits, id)| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2_u32.to_le_bytes().into_iter().chain(bytes).collect()
}

#[test]
fn attributes_that_give_power_do_not_come_with_an_owner() {
    if !is_root("attributes_that_give_power_do_not_come_with_an_owner") {
        return;
    }
    let capability: Vec<u8> =
        [0x0200_0001_u32, 1 << 10, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let list = access_list();
    let claimed: [(&str, &[u8]); 6] = [
        ("security.capability", &capability),
        ("security.selinux", b"unconfined"),
        ("trusted.overlay.opaque", b"y"),
        ("system.posix_acl_access", &list),
        ("system.posix_acl_default", &list),
        ("user.note", b"kept"),
    ];
    for world in servers() {
        let (_home, mut raw) = stranger(&world);
        let programs = ["in/program", "own/program"];
        for at in programs {
            program(&world.path(at));
            // Its attributes are its owner's to set.
            let folder = fs::metadata(world.path(at).parent().expect("a folder"));
            let folder = folder.expect("it is there");
            chown(world.path(at), Some(folder.uid()), Some(folder.gid())).expect("root may");
            let edits = vec![describe(at, meta((1234, 1235, 0o755), &claimed))];
            edit(&mut raw, edits).remove(0).expect("a file of root that all may read");
            let mut names = [0; 1024];
            let len = listxattr(world.path(at), &mut names[..]).expect("attributes");
            let names = String::from_utf8_lossy(&names[..len]).into_owned();
            let foreign: Vec<&str> = names
                .split_terminator('\0')
                .filter(|name| !["user.note", "system.posix_acl_access"].contains(name))
                .collect();
            assert_eq!(foreign, [""; 0], "of {at}");
        }
    }
}

#[test]
fn a_client_that_may_only_read_or_not_see_an_export_gives_none_of_its_files_away() {
    let world = World::configured(
        "[[export]]\npath = \"DIR/in\"\nmode = \"rw\"\nowner = \"client\"\n\
         [[export]]\npath = \"DIR/data\"\nmode = \"rw\"\n",
    );
    if !is_root("a_client_that_may_only_read_or_not_see_an_export_gives_none_of_its_files_away") {
        return;
    }
    program(&world.path("in/program"));
    let before = state(&world.path("in/program"));
    for (name, export) in [("reader", "in:ro"), ("other", "data:rw")] {
        let token = world.add(name, &["--export", export]);
        let key = Some(ClientKey::from_token(&token).expect("a token"));
        let mut raw = Raw::connect(&ConnectOptions { key, ..world.options() });
        let edits = vec![
            describe("in/program", meta((1234, 1235, 0o4755), &[])),
            Edit::Own { path: path("in/program"), meta: Box::new(meta((1234, 1235, 0o4755), &[])) },
            Edit::Link { path: path("in/second"), to: path("in/program") },
            Edit::Link { path: path("data/second"), to: path("in/program") },
        ];
        for answer in edit(&mut raw, edits) {
            answer.expect_err(&format!("a client with {export} changed a file"));
        }
        assert_eq!(state(&world.path("in/program")), before, "{export}");
        assert_eq!(
            (crate::names(&world.path("in")).len(), world.path("data/second").exists()),
            (1, false)
        );
    }
}
