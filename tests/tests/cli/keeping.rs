//! What `-p` keeps, both ways, and what a server that runs as root does not take
//! from anybody: setuid bits, file capabilities, files of root. Compared by
//! status and attributes here, and by rsync where it is installed.

use crate::process::{Ended, Home, Running, Serve, Signal, exists, skip, wait_for, when};
use crate::resuming::told;
use crate::stopping::BEGIN_MAX;
use crate::{bytes, is_root, text, works};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use verbatim_tests::port::Port;
use verbatim_tests::tree;

/// What there is of one entry beside its content.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    folder: bool,
    mode: u32,
    owner: (u32, u32),
    atime: (i64, i64),
    mtime: (i64, i64),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn seen(path: &Path) -> Seen {
    let status = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut names = vec![0; 4096];
    let count = llistxattr(path, &mut names).unwrap_or(0);
    let names = names[..count].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 4096];
        let count = lgetxattr(path, name, &mut value[..]).expect("it was just listed");
        value.truncate(count);
        (name.to_vec(), value)
    };
    Seen {
        folder: status.is_dir(),
        mode: status.mode() & 0o7777,
        owner: (status.uid(), status.gid()),
        atime: (status.atime(), status.atime_nsec()),
        mtime: (status.mtime(), status.mtime_nsec()),
        xattrs: names.map(value).collect(),
    }
}

/// All entries of a tree and its root, by path. Before anybody reads them: that changes times.
fn all(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let below = |path: PathBuf| (path.strip_prefix(root).expect("below").to_owned(), seen(&path));
    tree::walk(root).into_iter().chain([root.to_owned()]).map(below).collect()
}

#[track_caller]
fn assert_kept(source: &BTreeMap<PathBuf, Seen>, copy: &BTreeMap<PathBuf, Seen>) {
    assert!(source.keys().eq(copy.keys()), "other names: {:?}", copy.keys());
    for (path, seen) in source {
        // Listing a folder reads it, on either side.
        let (mut seen, mut other) = (seen.clone(), copy[path].clone());
        if seen.folder {
            (seen.atime, other.atime) = ((0, 0), (0, 0));
        }
        assert_eq!(other, seen, "{} is not as its source", path.display());
    }
}

/// Fails unless rsync finds nothing to do, where there is rsync.
#[track_caller]
fn assert_rsync_agrees(test: &str, from: &Path, to: &Path) {
    if !works("rsync", &["--version"]) {
        return skip(test, "no rsync here: only compared by status");
    }
    let slash = |path: &Path| format!("{}/", text(path));
    let command = ["-niacHAX", "--delete", &slash(from), &slash(to)];
    let output = std::process::Command::new("rsync").args(command).output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(found, "", "rsync would still change what is listed");
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own file");
}

fn set_times(path: &Path, seconds: i64) {
    let stamp = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let last_access = stamp(seconds + 86_400, 111_222_333);
    let times = Timestamps { last_access, last_modification: stamp(seconds, 123_456_789) };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("our own file");
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    let set = lsetxattr(path, name, value, XattrFlags::empty());
    set.unwrap_or_else(|e| panic!("cannot set {name} of {}: {e}", path.display()));
}

/// An access control list as the kernel keeps it: user 1234 gets `perm`, the group nothing.
fn acl(perm: u16) -> Vec<u8> {
    let entries = [(1, 6, u32::MAX), (2, perm, 1234), (4, 0, u32::MAX), (16, 6, u32::MAX)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries.into_iter().chain([(32, 0, u32::MAX)]) {
        bytes.extend([u16::to_le_bytes(tag), u16::to_le_bytes(perm)].concat());
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

/// The capability to bind low ports, as the kernel keeps it.
fn capability() -> Vec<u8> {
    [0x0200_0001_u32, 1 << 10, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A tree in which everything that `-p` keeps is of its own kind. Times last: they are changed
/// by all else.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("locked/inner/empty")).expect("folders");
    for (name, size) in [("plain", 5), ("locked/read only", 70_000), ("locked/inner/nothing", 0)] {
        fs::write(root.join(name), bytes(7, size)).expect("a file");
    }
    // One that lasts when it is interrupted is made in another way.
    fs::write(root.join("large"), bytes(8, 17 << 20)).expect("a file");
    symlink("plain", root.join("link")).expect("a link");
    symlink("nowhere at all", root.join("locked/dangling")).expect("a link");
    set_xattr(&root.join("plain"), "user.comment", b"one\0two \xff");
    set_xattr(&root.join("plain"), "user.empty", b"");
    set_xattr(&root.join("locked/read only"), "user.kept", b"although it is read-only");
    set_xattr(&root.join("locked/inner"), "user.folder", b"of a folder");
    set_xattr(&root.join("large"), "system.posix_acl_access", &acl(4));
    set_xattr(&root.join("locked/inner"), "system.posix_acl_default", &acl(6));
    for (name, mode) in [
        ("plain", 0o640),
        ("locked/read only", 0o444),
        ("locked/inner/nothing", 0o600),
        ("locked/inner", 0o750),
        ("locked/inner/empty", 0o711),
        ("locked", 0o555),
    ] {
        set_mode(&root.join(name), mode);
    }
    let mut paths = tree::walk(root);
    paths.push(root.to_owned());
    for (number, path) in paths.iter().enumerate() {
        set_times(path, 1_000_000_000 + number as i64 * 1000);
    }
    // Before 1970, where seconds and nanoseconds have different signs.
    set_times(&root.join("plain"), -1_000_000_000);
}

/// A folder on a file system that has attributes and lists, or a word why there is none.
fn world(test: &str) -> Option<TempDir> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let set =
        |name: &str, value: &[u8]| lsetxattr(dir.path(), name, value, XattrFlags::empty()).is_ok();
    if !set("user.probe", b"x") || !set("system.posix_acl_default", &acl(6)) {
        skip(test, "the temporary folder has no extended attributes or lists");
        return None;
    }
    for name in ["user.probe", "system.posix_acl_default"] {
        rustix::fs::lremovexattr(dir.path(), name).expect("it was just set");
    }
    for name in ["data", "in", "out"] {
        fs::create_dir(dir.path().join(name)).expect("a folder");
    }
    Some(dir)
}

fn exports(dir: &TempDir) -> [String; 2] {
    crate::exports(dir.path())
}

fn done(ended: Ended) -> String {
    ended.done().stderr
}

#[test]
fn metadata_is_kept_both_ways() {
    let test = "metadata_is_kept_both_ways";
    let Some(dir) = world(test) else { return };
    let at = |name: &str| dir.path().join(name);
    make_tree(&at("data/tree"));
    let source = all(&at("data/tree"));
    let serve = Serve::start(&exports(&dir));
    let said = done(serve.cp(&["-rp", &text(&at("data/tree")), &serve.at("in/up")]));
    assert!(!said.contains("not kept"), "{said}");
    let up = all(&at("in/up"));
    assert_kept(&source, &up);
    done(serve.cp(&["-a", &serve.at("in/up"), &text(&at("out/down"))]));
    assert_kept(&source, &all(&at("out/down")));
    tree::assert_same_content(&at("data/tree"), &at("out/down"));
    assert_rsync_agrees(test, &at("data/tree"), &at("in/up"));
    assert_rsync_agrees(test, &at("data/tree"), &at("out/down"));
    // One file alone, to a new name, also over an older one.
    for _ in 0..2 {
        done(serve.cp(&["-p", &serve.at("data/tree/large"), &text(&at("out/one"))]));
        done(serve.cp(&["-p", &text(&at("out/one")), &serve.at("in/one")]));
        let (one, there) = (seen(&at("out/one")), seen(&at("in/one")));
        let large = &source[Path::new("large")];
        assert_eq!((one.mode, one.mtime, &one.xattrs), (large.mode, large.mtime, &large.xattrs));
        assert_eq!((there.mode, there.mtime, there.xattrs), (one.mode, one.mtime, one.xattrs));
    }
}

#[test]
fn a_list_that_a_folder_hands_down_is_not_the_source_s() {
    let test = "a_list_that_a_folder_hands_down_is_not_the_source_s";
    let Some(dir) = world(test) else { return };
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("data/tree")).unwrap();
    fs::write(at("data/tree/file"), b"x").unwrap();
    set_mode(&at("data/tree/file"), 0o640);
    for folder in ["in", "out"] {
        set_xattr(&at(folder), "system.posix_acl_default", &acl(6));
    }
    let serve = Serve::start(&exports(&dir));
    done(serve.cp(&["-rp", &text(&at("data/tree")), &serve.at("in")]));
    done(serve.cp(&["-rp", &serve.at("data/tree"), &text(&at("out"))]));
    for (path, seen) in all(&at("in/tree")).into_iter().chain(all(&at("out/tree"))) {
        assert_eq!(seen.xattrs, BTreeMap::new(), "{}", path.display());
        assert_eq!(seen.mode, all(&at("data/tree"))[&path].mode, "{}", path.display());
    }
}

#[test]
fn without_the_flag_a_copy_has_permission_bits_and_the_time_of_now() {
    let test = "without_the_flag_a_copy_has_permission_bits_and_the_time_of_now";
    let Some(dir) = world(test) else { return };
    let at = |name: &str| dir.path().join(name);
    fs::write(at("data/file"), b"x").unwrap();
    set_xattr(&at("data/file"), "user.comment", b"x");
    set_mode(&at("data/file"), 0o4750);
    set_times(&at("data/file"), 1_000_000_000);
    let serve = Serve::start(&exports(&dir));
    done(serve.cp(&[&serve.at("data/file"), &text(&at("out"))]));
    done(serve.cp(&[&text(&at("data/file")), &serve.at("in")]));
    for copy in ["out/file", "in/file"] {
        let seen = seen(&at(copy));
        assert_eq!(seen.mode & 0o7700, 0o700, "{seen:?}");
        assert!(seen.xattrs.is_empty() && seen.mtime.0 > 1_000_000_000, "{seen:?}");
    }
}

/// Files, folders and links that would give their user power, or belong to others.
fn make_powerful(root: &Path) {
    fs::create_dir_all(root.join("shared")).expect("a sample");
    fs::create_dir_all(root.join("public")).expect("a sample");
    let file = |name: &str, uid, mode| {
        fs::write(root.join(name), b"#!/bin/sh").expect("a sample");
        lchown(root.join(name), Some(uid), Some(uid)).expect("a sample");
        set_mode(&root.join(name), mode);
    };
    file("root", 0, 0o6755);
    file("capable", 0, 0o755);
    file("user", 1234, 0o6755);
    file("shared/by user", 1234, 0o644);
    set_xattr(&root.join("capable"), "security.capability", &capability());
    set_xattr(&root.join("capable"), "trusted.verbatim", b"x");
    symlink("root", root.join("link")).expect("a sample");
    lchown(root.join("link"), Some(1234), Some(1234)).expect("a sample");
    lchown(root.join("shared"), Some(1234), Some(0)).expect("a sample");
    set_mode(&root.join("shared"), 0o2777);
    set_mode(&root.join("public"), 0o1777);
}

/// Mode and owner by path.
type Modes = BTreeMap<String, (u32, (u32, u32))>;

/// What became of it, and the names of attributes that are left.
fn power(root: &Path) -> (Modes, Vec<String>) {
    let all = all(root);
    let xattrs = all.values().flat_map(|seen| seen.xattrs.keys());
    let xattrs = xattrs.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    let short = |(path, seen): (&PathBuf, &Seen)| (text(path), (seen.mode, seen.owner));
    (all.iter().map(short).filter(|(path, _)| !path.is_empty()).collect(), xattrs)
}

fn expected(list: &[(&str, u32, u32, u32)]) -> Modes {
    list.iter().map(|&(name, mode, uid, gid)| (name.to_owned(), (mode, (uid, gid)))).collect()
}

/// Uploads everything powerful to a server of root with these lines in its export; returns what
/// is there then, what the client said and what the server logged.
fn upload_as_root(test: &str, lines: &str) -> Option<(Modes, Vec<String>, String, String)> {
    if !is_root() {
        skip(test, "only root can make files that give power");
        return None;
    }
    let dir = world(test)?;
    let at = |name: &str| dir.path().join(name);
    make_powerful(&at("data"));
    let config = at("serve.toml");
    let export = format!("[[export]]\nname = \"in\"\npath = {:?}\nmode = \"rw\"\n", at("in"));
    fs::write(&config, format!("{export}{lines}")).expect("a sample");
    let home = Arc::new(Home::new());
    let mut serve = Serve::of(&home, "127.0.0.1:0", &["--config", &text(&config)]);
    let said = done(serve.cp(&["-rp", &text(&at("data")), &serve.at("in/up")]));
    let log = match said.contains("not kept") {
        true => serve.said("metadata not kept"),
        false => String::new(),
    };
    let (entries, xattrs) = power(&at("in/up"));
    Some((entries, xattrs, said, log))
}

#[test]
fn a_server_of_root_takes_no_power_from_uploads() {
    let test = "a_server_of_root_takes_no_power_from_uploads";
    let Some((entries, xattrs, said, log)) = upload_as_root(test, "") else { return };
    let list = [
        ("root", 0o755, 0, 0),
        ("capable", 0o755, 0, 0),
        ("user", 0o755, 0, 0),
        ("shared", 0o777, 0, 0),
        ("shared/by user", 0o644, 0, 0),
        ("public", 0o1777, 0, 0),
        ("link", 0o777, 0, 0),
    ];
    assert_eq!(entries, expected(&list));
    assert_eq!(xattrs, [""; 0]);
    let words = "not kept: 4 owners, 3 setuid, setgid or sticky bits, 2 extended attributes";
    assert!(said.contains(words), "{said}");
    assert!(log.contains("owners=4 special_bits=3 xattrs=2"), "{log}");
}

#[test]
fn a_server_that_believes_its_clients_still_squashes_root() {
    let test = "a_server_that_believes_its_clients_still_squashes_root";
    let lines = "owner = \"client\"\nallow_setuid = true\n";
    let Some((entries, xattrs, said, _)) = upload_as_root(test, lines) else { return };
    let list = [
        ("root", 0o755, 65534, 65534),
        ("capable", 0o755, 65534, 65534),
        ("user", 0o6755, 1234, 1234),
        ("shared", 0o777, 1234, 65534),
        ("shared/by user", 0o644, 1234, 1234),
        ("public", 0o1777, 65534, 65534),
        ("link", 0o777, 1234, 1234),
    ];
    assert_eq!(entries, expected(&list));
    assert_eq!(xattrs, [""; 0]);
    // The folder itself, too, claims to be root's.
    let words = "not kept: 5 owners, 2 setuid, setgid or sticky bits, 2 extended attributes";
    assert!(said.contains(words), "{said}");
}

#[test]
fn an_export_that_allows_everything_keeps_everything() {
    let test = "an_export_that_allows_everything_keeps_everything";
    let lines = "owner = \"client\"\nroot_squash = false\nallow_setuid = true\n\
                 allow_security_xattrs = true\n";
    let Some((entries, xattrs, said, _)) = upload_as_root(test, lines) else { return };
    let list = [
        ("root", 0o6755, 0, 0),
        ("capable", 0o755, 0, 0),
        ("user", 0o6755, 1234, 1234),
        ("shared", 0o2777, 1234, 0),
        ("shared/by user", 0o644, 1234, 1234),
        ("public", 0o1777, 0, 0),
        ("link", 0o777, 1234, 1234),
    ];
    assert_eq!(entries, expected(&list));
    assert_eq!(xattrs, ["security.capability", "trusted.verbatim"]);
    assert!(!said.contains("not kept"), "{said}");
}

#[test]
fn root_that_downloads_gets_what_cp_would_give() {
    let test = "root_that_downloads_gets_what_cp_would_give";
    if !is_root() {
        return skip(test, "only root can keep owners");
    }
    let Some(dir) = world(test) else { return };
    make_powerful(&dir.path().join("data"));
    let serve = Serve::start(&exports(&dir));
    let (to, like_cp) = (dir.path().join("out/down"), dir.path().join("out/cp"));
    let said = done(serve.cp(&["-rp", &serve.at("data"), &text(&to)]));
    assert!(!said.contains("not kept"), "{said}");
    assert!(works("cp", &["-a", &text(&dir.path().join("data")), &text(&like_cp)]));
    let ((entries, xattrs), (by_cp, mut by_cp_xattrs)) = (power(&to), power(&like_cp));
    assert_eq!(entries, by_cp);
    // What only root may see is not told to clients unless the export says so.
    by_cp_xattrs.retain(|name| name != "trusted.verbatim");
    assert_eq!(xattrs, by_cp_xattrs);
}

#[test]
fn an_ordinary_user_keeps_what_is_its_own_also_in_folders_it_may_not_write() {
    let test = "an_ordinary_user_keeps_what_is_its_own_also_in_folders_it_may_not_write";
    let Some(home) = crate::process::Home::powerless() else {
        return skip(test, "root needs setpriv, and a build that nobody may run");
    };
    let Some(dir) = world(test) else { return };
    let at = |name: &str| dir.path().join(name);
    make_tree(&at("data/tree"));
    set_mode(dir.path(), 0o755);
    if is_root() {
        for path in tree::walk(dir.path()) {
            lchown(path, Some(65534), Some(65534)).expect("root may give away");
        }
    }
    let serve = Serve::of(&Arc::new(home), "127.0.0.1:0", &exports(&dir));
    // The second time over what the first one left: folders that are closed to their owner.
    for _ in 0..2 {
        let source = all(&at("data/tree"));
        let said = done(serve.cp(&["-rp", &text(&at("data/tree/.")), &serve.at("in/up")]));
        assert!(!said.contains("not kept"), "{said}");
        assert_kept(&source, &all(&at("in/up")));
        let said = done(serve.cp(&["-rp", &serve.at("in/up/."), &text(&at("out/down"))]));
        assert!(!said.contains("not kept"), "{said}");
        assert_kept(&source, &all(&at("out/down")));
    }
    // What is another's is copied, and becomes this user's: that is said.
    if is_root() {
        let theirs = at("data/theirs");
        fs::write(&theirs, b"x").unwrap();
        set_mode(&theirs, 0o6755);
        let ended = serve.cp(&["-p", "--json", &serve.at("data/theirs"), &text(&at("out"))]);
        let summary = ended.done().stdout;
        let not_kept = r#""not_kept":{"owners":1,"special_bits":1,"xattrs":0}"#;
        assert!(summary.contains(not_kept), "{summary}");
        let seen = seen(&at("out/theirs"));
        assert_eq!((seen.mode, seen.owner), (0o755, (65534, 65534)));
    }
}

/// What folders of a tree keep, by path: what lies in them may differ.
fn folders(all: &BTreeMap<PathBuf, Seen>) -> BTreeMap<&PathBuf, (u32, (i64, i64))> {
    let folders = all.iter().filter(|(_, seen)| seen.folder);
    folders.map(|(path, seen)| (path, (seen.mode, seen.mtime))).collect()
}

#[test]
fn what_is_left_alone_does_not_hold_up_its_folder() {
    let Some(dir) = world("what_is_left_alone_does_not_hold_up_its_folder") else { return };
    let at = |name: &str| dir.path().join(name);
    make_tree(&at("data/tree"));
    // Nothing but this link holds up its folder.
    fs::create_dir(at("data/tree/only")).unwrap();
    symlink("new", at("data/tree/only/link")).unwrap();
    for path in ["data/tree/only", "data/tree"] {
        set_times(&at(path), 1_100_000_000);
    }
    let source = all(&at("data/tree"));
    for to in ["in/up", "out/down"] {
        fs::create_dir_all(at(to).join("locked/inner")).unwrap();
        fs::write(at(to).join("locked/inner/nothing"), b"mine").unwrap();
        fs::write(at(to).join("plain"), b"mine").unwrap();
        symlink("mine", at(to).join("locked/dangling")).unwrap();
    }
    let serve = Serve::start(&exports(&dir));
    done(serve.cp(&["-rpn", &text(&at("data/tree/.")), &serve.at("in/up")]));
    done(serve.cp(&["-rpn", &serve.at("data/tree/."), &text(&at("out/down"))]));
    for to in ["in/up", "out/down"] {
        let copy = all(&at(to));
        assert_eq!(folders(&copy), folders(&source), "{to}");
        for mine in ["plain", "locked/inner/nothing"] {
            assert_eq!(fs::read(at(to).join(mine)).unwrap(), b"mine", "{to}/{mine}");
        }
        assert_eq!(fs::read_link(at(to).join("locked/dangling")).unwrap(), Path::new("mine"));
        let link = Path::new("only/link");
        assert_eq!(copy[link].mtime, source[link].mtime, "{to}");
    }
}

#[test]
fn nothing_is_set_where_nothing_is_written() {
    let Some(dir) = world("nothing_is_set_where_nothing_is_written") else { return };
    let at = |name: &str| dir.path().join(name);
    make_tree(&at("data/tree"));
    let serve = Serve::start(&exports(&dir));
    done(serve.cp(&["-r", &text(&at("data/tree")), &serve.at("in/up")]));
    done(serve.cp(&["-r", &serve.at("data/tree"), &text(&at("out/down"))]));
    let state = || {
        let mut all = [all(&at("in/up")), all(&at("out/down"))];
        // To read is not to write.
        all.iter_mut().flat_map(BTreeMap::values_mut).for_each(|seen| seen.atime = (0, 0));
        all
    };
    let before = state();
    for flag in ["--dry-run", "--verify"] {
        done(serve.cp(&["-rp", flag, &text(&at("data/tree/.")), &serve.at("in/up")]));
        done(serve.cp(&["-rp", flag, &serve.at("data/tree/."), &text(&at("out/down"))]));
        assert_eq!(state(), before, "{flag}");
    }
}

#[test]
fn folders_are_finished_by_the_session_that_comes_last() {
    const FILES: usize = 2000;
    let Some(dir) = world("folders_are_finished_by_the_session_that_comes_last") else { return };
    let at = |name: &str| dir.path().join(name);
    for number in 0..FILES {
        let folder = at("data/tree").join(format!("{}", number / 150));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{number}")), bytes(number as u64, number % 9000)).unwrap();
    }
    let mut paths = tree::walk(&at("data/tree"));
    paths.push(at("data/tree"));
    for (number, path) in paths.iter().enumerate() {
        set_times(path, 1_000_000_000 + number as i64);
        if path.is_dir() {
            set_mode(path, 0o551);
        }
    }
    let source = all(&at("data/tree"));
    let home = Arc::new(Home::new());
    let port = Port::take();
    let mut serve = Serve::of(&home, &port.text(), &exports(&dir));
    for to in ["in/up", "out/down"] {
        let (from, target) = match to {
            "in/up" => (text(&at("data/tree")), serve.at(to)),
            _ => (serve.at("data/tree"), text(&at(to))),
        };
        let mut copy = serve.start_cp(&["-rp", "--json", "--bwlimit", "2M", &from, &target]);
        let what = format!("more than {} files and folders are in {to}", FILES / 8);
        wait_for(&what, BEGIN_MAX, || {
            exists(&at(to)).map_err(|missing| (missing, copy.report()))?;
            let arrived = when(tree::walk(&at(to)).len(), |count| *count > FILES / 8);
            arrived.map_err(|count| (count.to_string(), copy.report()))
        });
        serve.signal(Signal::KILL);
        serve.end();
        serve = Serve::of(&home, &port.text(), &exports(&dir));
        let said = copy.end().done().stdout;
        assert_eq!(told(&said, "reconnects"), 1, "the copy was over too soon");
        // Only of folders: a file that was begun twice was read in between.
        assert_eq!(folders(&all(&at(to))), folders(&source), "{to}");
    }
}

/// When a line of a log was written, in seconds of its hour.
fn written_at(line: &str) -> f64 {
    let time = line.split_once('T').and_then(|(_, rest)| rest.split_once('Z')).expect("a time").0;
    let mut parts = time.split(':').skip(1).map(|part| part.parse::<f64>().expect("a number"));
    parts.next().expect("minutes") * 60.0 + parts.next().expect("seconds")
}

#[test]
fn a_folder_gets_its_times_as_soon_as_its_last_file_is_there() {
    let dir = tempfile::tempdir().expect("a folder");
    tree::write(&dir.path().join("from/a/f"), b"the only one");
    fs::create_dir(dir.path().join("in")).expect("a folder");
    let serve = Serve::start(&[format!("in={}:rw", dir.path().join("in").display())]);
    // A turn of the client that nothing wakes is 250 ms long. One machine may be busy that long,
    // but not each of five times.
    let waits = (0..5).map(|number| {
        let from = dir.path().join("from").display().to_string();
        let to = serve.at(&format!("in/{number}"));
        let mut command = serve.home().command("rdma-cp", &["-r", "-p", &from, &to]);
        command.env("RUST_LOG", "trace");
        let log = Running::start(command).end().done().stderr;
        let of = |text: &str| log.lines().rfind(|line| line.contains(text)).map(written_at);
        let committed = of("Committed").expect("the file is there");
        let told = of("message sent content=Make").expect("the folder has its times");
        (told - committed).rem_euclid(3600.0)
    });
    let least = waits.fold(f64::MAX, f64::min);
    assert!(least < 0.2, "{least} s");
}
