//! Everything a tree can hold arrives: rsync, asked to find a difference of any
//! kind, finds none. Where rsync is missing the test says so.

use crate::mounting::{self, Mount};
use crate::process::skip;
use crate::{BOTH, Way, World, changes, tree, write};
use rustix::fs::XattrFlags;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// What rsync would do to make the copy equal; nothing, if it is.
pub(crate) fn rsync(source: &Path, copy: &Path) -> Option<String> {
    let flags = ["-aHAXS", "--checksum", "--dry-run", "--itemize-changes", "--delete"];
    let mut command = Command::new("rsync");
    command.args(flags).arg(format!("{}/", source.display())).arg(format!("{}/", copy.display()));
    let output = command.output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&said).into_owned())
}

pub(crate) fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).expect("sets an attribute");
}

/// An access control list as the kernel has it: the owner, user 99, the group, the mask, others.
pub(crate) fn list(execute: bool) -> Vec<u8> {
    let any = u32::MAX;
    let all = 6 + u16::from(execute);
    let entries = [(1, all, any), (2, 4, 99), (4, 4, any), (16, 6, any), (32, 0, any)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(rights));
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

/// A tree with everything in it. On tmpfs of older kernels there are no user attributes; where
/// they cannot be set the test would prove nothing, so it is run where they can.
pub(crate) fn everything(root: &Path) {
    tree::sample(root, 7);
    let is_root = rustix::process::geteuid().is_root();
    write(root.join("links/one"), b"one file");
    fs::hard_link(root.join("links/one"), root.join("links/two")).expect("links");
    fs::hard_link(root.join("links/one"), root.join(OsStr::from_bytes(b"deep/three \xff")))
        .expect("links");
    write(root.join("sparse"), &tree::content(9, 300_000));
    let sparse = fs::OpenOptions::new().write(true).open(root.join("sparse")).expect("opens");
    sparse.set_len(30 << 20).expect("grows");
    set_attribute(&root.join("a.bin"), "user.comment", b"kept");
    set_attribute(&root.join("a.bin"), "user.empty", b"");
    set_attribute(&root.join("deep"), "user.of a folder", &[7; 300]);
    set_attribute(&root.join("-rf"), "system.posix_acl_access", &list(false));
    set_attribute(&root.join("deep/er"), "system.posix_acl_access", &list(true));
    set_attribute(&root.join("deep/er"), "system.posix_acl_default", &list(true));
    fs::create_dir_all(root.join("shut")).expect("makes");
    write(root.join("shut/file"), b"in a folder nobody may write to");
    symlink("x".repeat(4000), root.join("a long link")).expect("links");
    write(root.join("n".repeat(255).as_str()), b"a long name");
    write(root.join("not/text/\u{1}\u{7f}\"'\\*?[x]"), b"");
    fs::set_permissions(root.join("shut"), fs::Permissions::from_mode(0o555)).expect("sets");
    let owned = fs::Permissions::from_mode(0o6755);
    if is_root {
        for (name, id) in [("a.bin", 1234), ("deep", 1235), ("links/one", 1236)] {
            std::os::unix::fs::chown(root.join(name), Some(id), Some(id + 1)).expect("gives");
        }
        std::os::unix::fs::lchown(root.join("link to a file"), Some(77), Some(78)).expect("gives");
        fs::set_permissions(root.join("modes/program"), owned).expect("sets");
    }
    for (number, path) in tree::walk(root).into_iter().enumerate() {
        let time = Duration::new(900_000_000 + number as u64 * 17, 987_654_321 - number as u32);
        if path.is_symlink() {
            let stamp = rustix::fs::Timespec { tv_sec: 999_999_999, tv_nsec: 1 };
            let times = rustix::fs::Timestamps { last_access: stamp, last_modification: stamp };
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, flags).expect("sets times");
        } else {
            let file = fs::File::open(&path).expect("opens");
            file.set_modified(SystemTime::UNIX_EPOCH + time).expect("sets the time");
        }
    }
}

#[test]
fn rsync_finds_no_difference() {
    let name = "sync faithful::rsync_finds_no_difference";
    for way in BOTH {
        let world = match way {
            Way::Down => World::new(),
            Way::Up => World::with_owners(),
        };
        let (source, target) = (world.source(), world.target(way));
        everything(&source);
        // What rsync has to be told, and a habit of many.
        world.sync(way, &["-aHAXS", "-rlptgoD", "--archive"]).done();
        let Some(said) = rsync(&source, &target) else {
            return skip(name, "rsync is not installed");
        };
        assert_eq!(said, "", "{way:?}");
        let (one, two) = (target.join("links/one"), target.join("links/two"));
        let inode = |path: &Path| fs::metadata(path).expect("there").ino();
        assert_eq!(inode(&one), inode(&two), "{way:?}: one file of several names");
        let sparse = fs::metadata(target.join("sparse")).expect("there");
        assert!(sparse.blocks() * 512 < 2 << 20, "{way:?}: {} blocks", sparse.blocks());
        assert_eq!(changes(&world.sync(way, &["--json", "--delete"]).done()), [""; 0], "{way:?}");
        // Everything about it changes, and one name becomes a file of its own.
        fs::remove_file(source.join("links/two")).expect("removes");
        write(source.join("links/two"), b"one file");
        rustix::fs::removexattr(source.join("a.bin"), "user.empty").expect("removes");
        set_attribute(&source.join("a.bin"), "user.comment", b"changed");
        fs::set_permissions(source.join("shut"), fs::Permissions::from_mode(0o755)).expect("sets");
        write(source.join("shut/more"), b"");
        fs::set_permissions(source.join("shut"), fs::Permissions::from_mode(0o555)).expect("sets");
        rustix::fs::removexattr(source.join("-rf"), "system.posix_acl_access").expect("removes");
        world.sync(way, &["--delete"]).done();
        assert_eq!(rsync(&source, &target).as_deref(), Some(""), "{way:?}");
        assert_ne!(inode(&one), inode(&two), "{way:?}: two files");
        let name = OsStr::from_bytes(b"deep/three \xff");
        assert_eq!(inode(&one), inode(&target.join(name)), "{way:?}: still one file");
    }
}

/// What statfs(2) says of ext2 to ext4: there time stamps are trusted.
const EXT4: rustix::fs::FsWord = 0xEF53;

#[test]
fn an_attribute_is_seen_on_a_file_that_was_known_to_have_none() {
    let name = "sync faithful::an_attribute_is_seen_on_a_file_that_was_known_to_have_none";
    // What is mounted goes before the world it is in.
    let mut places: Vec<(Option<Mount>, Way, World, &str)> =
        BOTH.into_iter().map(|way| (None, way, World::new(), "file")).collect();
    for make in ["mkfs.xfs", "mkfs.btrfs"] {
        let world = World::new();
        let at = world.source().join("disk");
        match mounting::image(&world.path("image"), make, &["-q"], &at) {
            Some(mount) => places.push((Some(mount), Way::Down, world, "disk/file")),
            None => skip(name, &format!("what {make} makes cannot be made or mounted here")),
        }
    }
    for (_, way, world, file) in &places {
        write(world.source().join(file), b"the same");
        write(world.source().join("here"), b"the same");
        world.sync(*way, &[]).done();
    }
    // What is walked is young no more: a server keeps that there is none, and so does a client.
    std::thread::sleep(Duration::from_millis(2100));
    for (_, way, world, file) in &places {
        for _ in 0..2 {
            assert_eq!(changes(&world.sync(*way, &["--json"]).done()), [""; 0], "{way:?}");
        }
        let (source, target) = (world.source(), world.target(*way));
        if rustix::fs::statfs(world.home.state()).expect("there").f_type == EXT4 {
            let kept = fs::read_dir(world.home.state().join("bare")).expect("something is kept");
            assert_eq!(kept.count(), 1, "{way:?}: one file for the tree of the client");
        }
        let (served, here) = match way {
            Way::Down => (&source, &target),
            Way::Up => (&target, &source),
        };
        set_attribute(&served.join(file), "user.comment", b"new");
        set_attribute(&here.join("here"), "user.comment", b"new");
        world.sync(*way, &[]).done();
        let count = |name: &str| {
            let mut names = [0; 256];
            let found = rustix::fs::listxattr(target.join(name), &mut names).expect("lists");
            let is_user = |name: &&[u8]| name.starts_with(b"user.");
            names[..found].split(|&byte| byte == 0).filter(is_user).count()
        };
        let of_source = match way {
            Way::Down => (1, 0),
            Way::Up => (0, 1),
        };
        let found = (count(file), count("here"));
        assert_eq!(found, of_source, "{way:?}, {file}: the target has what the source has");
    }
}
