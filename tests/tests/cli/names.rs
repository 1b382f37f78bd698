//! Names are bytes: whatever a file system takes as a name is copied both ways,
//! and paths may be longer than the kernel takes at a time. Compared by diff and
//! rsync; the deep trees by a walk of our own, because those tools give up there.

use crate::process::{Serve, skip};
use crate::{World, bytes, text, works};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::fs::{mkdirat, openat, readlinkat, statat, symlinkat};
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use verbatim_tests::tree;

/// Names that a copy might trip over.
fn make_hostile(root: &Path) {
    tree::sample(root, 1);
    let every_byte: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
    let plain: [&[u8]; 18] = [
        b"--delete",
        b"-",
        b" ",
        b" leading",
        b"trailing ",
        b"\n",
        b"*",
        b"?[a-z]{b,c}",
        b"\\",
        b"\\n",
        b"'\"`$(exit 1)",
        b"~",
        b"#",
        b"...",
        b"\x1b[2J",
        // What our own temporary files and journals look like.
        b".name.1-0-00000000.verbatim-part",
        b".name.0123456789abcdef.verbatim-part",
        b".name.0123456789abcdef.verbatim-journal",
    ];
    let long = [vec![b'l'; 255], vec![0xff; 255], "\u{20ac}".repeat(85).into_bytes()];
    let names = plain.iter().map(|name| name.to_vec()).chain(long).chain([every_byte]);
    for (number, name) in names.enumerate() {
        let name = OsStr::from_bytes(&name);
        fs::write(root.join(name), bytes(number as u64, number * 1000)).expect("a file");
        let folder = root.join("folders").join(name);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(name), bytes(number as u64, number)).expect("a file");
        symlink(name, root.join(format!("link-{number}"))).expect("a link");
    }
    // More targets of links than fit into one frame.
    for number in 0..300 {
        let target = format!("{number}/{}", "../long/".repeat(450));
        symlink(target, root.join(format!("folders/far-{number}"))).expect("a link");
    }
}

/// Fails unless diff and rsync find two trees alike.
#[track_caller]
fn assert_alike(test: &str, from: &Path, to: &Path) {
    let diff = Command::new("diff").args(["-r", "--no-dereference"]).args([from, to]).output();
    let diff = diff.expect("diff is part of every system that builds this");
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
    if !works("rsync", &["--version"]) {
        return skip(test, "no rsync here: only compared by diff");
    }
    let slash = |path: &Path| format!("{}/", text(path));
    // Contents, kinds, names and targets of links; without -p neither times nor modes.
    let flags = ["-nac", "-i", "--no-times", "--no-perms", "--no-owner", "--no-group", "--delete"];
    let rsync = Command::new("rsync").args(flags).args([slash(from), slash(to)]).output();
    let rsync = rsync.expect("it just worked");
    assert!(rsync.status.success() && rsync.stdout.is_empty(), "{rsync:?}");
}

#[test]
fn hostile_names_arrive_both_ways() {
    let test = "hostile_names_arrive_both_ways";
    let world = World::new();
    make_hostile(&world.path("data/names"));
    let said = world.serve.cp(&["-r", &world.serve.at("data/names"), &world.text("out")]).done();
    assert!(!said.stderr.contains('\x1b'), "names are cleaned: {said:?}");
    assert_alike(test, &world.path("data/names"), &world.path("out/names"));
    world.serve.cp(&["-r", &world.text("out/names"), &world.serve.at("in/up")]).done();
    assert_alike(test, &world.path("data/names"), &world.path("in/up"));
    // Over what is there, and with metadata.
    world.serve.cp(&["-rp", &world.text("data/names"), &world.serve.at("in")]).done();
    world.serve.cp(&["-rp", &world.serve.at("in/names/."), &world.text("out/names")]).done();
    assert_alike(test, &world.path("data/names"), &world.path("out/names"));
}

const NAME_BYTES: usize = 200;

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn open_folder(path: &Path) -> OwnedFd {
    File::open(path).expect("a folder").into()
}

/// Makes a folder in a folder, and opens it.
fn step(at: &OwnedFd, name: &str) -> OwnedFd {
    mkdirat(at, name, Mode::from_raw_mode(0o755)).expect("a folder");
    openat(at, name, folder_flags(), Mode::empty()).expect("it was just made")
}

fn write(at: &OwnedFd, name: &str, content: &[u8]) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = openat(at, name, flags, Mode::from_raw_mode(0o644)).expect("a new file");
    File::from(file).write_all(content).expect("room");
}

/// Makes folders in each other with a file in each, and returns the innermost.
fn dig(root: &Path, depth: usize, name_bytes: usize) -> OwnedFd {
    let mut at = open_folder(root);
    for level in 0..depth {
        write(&at, "file", &bytes(level as u64, level * 100));
        at = step(&at, &"abcdefghij"[level % 10..][..1].repeat(name_bytes));
    }
    at
}

/// What is in a tree of any depth, by path.
fn contents(root: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![(Vec::new(), open_folder(root))];
    while let Some((path, folder)) = folders.pop() {
        for entry in Dir::read_from(&folder).expect("a folder").map(|entry| entry.expect("a name"))
        {
            let name: &CStr = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let below = [&path[..], b"/", name.to_bytes()].concat();
            let status = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).expect("there");
            let content = match FileType::from_raw_mode(status.st_mode) {
                FileType::Directory => {
                    let inner = openat(&folder, name, folder_flags(), Mode::empty());
                    folders.push((below.clone(), inner.expect("a folder")));
                    b"a folder".to_vec()
                }
                FileType::Symlink => {
                    readlinkat(&folder, name, Vec::new()).expect("a link").into_bytes()
                }
                _ => {
                    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                    let file = openat(&folder, name, flags, Mode::empty()).expect("a file");
                    let mut content = Vec::new();
                    File::from(file).read_to_end(&mut content).expect("readable");
                    content
                }
            };
            found.insert(below, content);
        }
    }
    found
}

#[track_caller]
fn assert_same_contents(from: &Path, to: &Path) {
    let (from, to) = (contents(from), contents(to));
    assert_eq!(from.len(), to.len(), "as many entries");
    assert!(from == to, "names or contents differ");
}

#[test]
fn paths_longer_than_the_kernel_takes_arrive_both_ways() {
    let world = World::new();
    let root = world.path("data/deep");
    fs::create_dir(&root).unwrap();
    let bottom = dig(&root, 45, NAME_BYTES);
    // So many there that their paths alone are larger than a frame.
    for number in 0..150 {
        write(&step(&bottom, &format!("folder-{number}")), "inner", &bytes(number, 10));
        write(&bottom, &format!("file-{number}"), &bytes(number, number as usize * 50));
        symlinkat("file", &bottom, format!("link-{number}")).unwrap();
    }
    // One that is mapped, not packed, and one that lasts.
    write(&bottom, "chunks", &bytes(1, 3 << 20));
    write(&bottom, "large", &bytes(2, 17 << 20));
    let longest = contents(&root).keys().map(Vec::len).max();
    assert!(longest > Some(2 * 4096), "{longest:?}");
    for flags in ["-r", "-rp"] {
        let (down, up) = (format!("out/down{flags}"), format!("in/up{flags}"));
        world.serve.cp(&[flags, &world.serve.at("data/deep"), &world.text(&down)]).done();
        assert_same_contents(&root, &world.path(&down));
        world.serve.cp(&[flags, &world.text(&down), &world.serve.at(&up)]).done();
        assert_same_contents(&root, &world.path(&up));
    }
}

#[test]
fn a_path_too_long_for_the_protocol_is_a_fault_and_the_rest_arrives() {
    let world = World::new();
    let root = world.path("data/deep");
    fs::create_dir(&root).unwrap();
    dig(&root, 140, 250);
    fs::write(root.join("z"), b"z").unwrap();
    let said = ["is longer than 32768", "not copied"];
    let down = world.serve.cp(&["-r", &world.serve.at("data/deep"), &world.text("out/down")]);
    down.refused(1, &said);
    let up = world.serve.cp(&["-r", &world.text("data/deep"), &world.serve.at("in/up")]);
    up.refused(1, &said);
    for copy in ["out/down", "in/up"] {
        let found = contents(&world.path(copy));
        assert!(found.contains_key(&b"/z"[..]), "the rest is there");
        let files = found.keys().filter(|path| path.ends_with(b"/file")).count();
        assert!(files >= 129, "{files} files of those that fit");
    }
    // Both still work: nobody was cut off.
    let listed = Serve::cp(&world.serve, &["--list", &world.serve.at("in")]).done();
    assert!(listed.stdout.contains("up/"), "{listed:?}");
}
