//! Targets that keep less than their source: ext4 with inodes of 128 bytes has whole
//! seconds, ramfs no attributes. What such a target cannot keep differs never again,
//! and what is known to have changed is copied all the same.

use crate::faithful::{list, set_attribute};
use crate::mounting::{self, Mount};
use crate::process::{Ended, Running, Signal, Text, seen, skip, wait_for};
use crate::{BOTH, Way, World, changes, summary, text, tree, write};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An odd second, so that FAT would have to cut it as well.
const SECOND: i64 = 1_234_567_891;

/// The longest that a change may take to be followed.
const SOON: Duration = Duration::from_secs(30);

/// A world, and in it a target that keeps less.
struct Coarse {
    /// What is mounted goes before the world it is in.
    _mount: Mount,
    world: World,
    way: Way,
}

impl Coarse {
    fn new(test: &str, way: Way) -> Option<Self> {
        let world = World::new();
        let at = top(&world, way);
        let mount = mounting::image(&world.path("image"), "mkfs.ext4", &["-q", "-I", "128"], &at);
        Self::of(test, mount, world, way)
    }

    /// The same of a target that has no attributes.
    fn bare(test: &str, way: Way) -> Option<Self> {
        let world = World::new();
        let mount = mounting::ramfs(&top(&world, way));
        Self::of(test, mount, world, way)
    }

    fn of(test: &str, mount: Option<Mount>, world: World, way: Way) -> Option<Self> {
        if mount.is_none() {
            skip(&format!("sync coarse::{test}"), "such a target cannot be made or mounted here");
        }
        mount.map(|mount| Self { _mount: mount, world, way })
    }

    fn target(&self) -> PathBuf {
        top(&self.world, self.way).join("copy")
    }

    /// Runs a command with both ends, `of` behind the source, and these flags.
    fn start(&self, of: &str, command: &str, flags: &[&str]) -> Running {
        let ends = match self.way {
            Way::Down => [self.world.serve.at(&format!("src{of}")), text(&self.target())],
            Way::Up => {
                let source = format!("{}{of}", text(&self.world.source()));
                [source, self.world.serve.at("in/coarse/copy")]
            }
        };
        let ends = [ends[0].as_str(), ends[1].as_str()];
        Running::start(self.world.home.command(command, &[&ends, flags].concat()))
    }

    fn sync(&self, flags: &[&str]) -> Ended {
        self.start("", "rdma-sync", &[flags, &["--json"]].concat()).end().done()
    }
}

fn top(world: &World, way: Way) -> PathBuf {
    world.path(if way == Way::Down { "out/coarse" } else { "in/coarse" })
}

/// Gives something, and a link itself, this time.
fn set_time(path: &Path, tv_sec: i64, tv_nsec: i64) {
    let time = Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("sets the time");
}

/// Writes a file that has its time when it is closed.
fn write_at(path: &Path, bytes: &[u8], tv_sec: i64, tv_nsec: i64) {
    use std::io::Write;
    let mut file = fs::File::create(path).expect("a file");
    file.write_all(bytes).expect("writes");
    set_time(path, tv_sec, tv_nsec);
}

/// A tree of everything that has a time, none of which is whole seconds.
fn plant(source: &Path) {
    write(source.join("small"), b"small");
    write(source.join("named"), b"twice");
    write(source.join("folder/large"), &tree::content(1, 3 << 20));
    fs::hard_link(source.join("named"), source.join("folder/again")).expect("links");
    symlink("small", source.join("link")).expect("links");
    for name in ["folder/large", "named", "small", "link", "folder", ""] {
        set_time(&source.join(name), SECOND, 987_654_321);
    }
}

fn times(root: &Path) -> Vec<(PathBuf, i64, i64)> {
    let of = |path: PathBuf| {
        let meta = fs::symlink_metadata(&path).expect("there");
        (path, meta.mtime(), meta.mtime_nsec())
    };
    tree::walk(root).into_iter().map(of).collect()
}

#[test]
fn what_the_target_cannot_keep_of_a_time_differs_never_again() {
    for way in BOTH {
        let test = "what_the_target_cannot_keep_of_a_time_differs_never_again";
        let Some(coarse) = Coarse::new(test, way) else { return };
        plant(&coarse.world.source());
        coarse.sync(&[]);
        tree::assert_same_content(&coarse.world.source(), &coarse.target());
        let kept = times(&coarse.target());
        let is_cut = |(_, second, rest): &(PathBuf, i64, i64)| (*second, *rest) == (SECOND, 0);
        assert!(kept.len() >= 5 && kept.iter().all(is_cut), "{way:?}: {kept:?}");
        // Tried where something may be written, and guessed by what is there where not.
        for flags in [&[] as &[&str], &["--checksum"], &["--dry-run"], &["--check"], &["--atomic"]]
        {
            let folder = || fs::metadata(coarse.target()).expect("there").ino();
            let before = folder();
            let ended = coarse.sync(flags);
            assert_eq!(changes(&ended), [""; 0], "{way:?} {flags:?}");
            assert_eq!(summary(&ended)["bytes"], 0, "{way:?} {flags:?}");
            assert_eq!(before, folder(), "{way:?} {flags:?}: nothing takes its place");
        }
        assert_eq!(times(&coarse.target()), kept, "{way:?}");
        assert_eq!(tree::parts(&coarse.target()), [""; 0].map(PathBuf::from), "{way:?}");
    }
}

#[test]
fn a_change_of_less_than_the_target_keeps_is_found_by_content_alone() {
    for way in BOTH {
        let test = "a_change_of_less_than_the_target_keeps_is_found_by_content_alone";
        let Some(coarse) = Coarse::new(test, way) else { return };
        let (source, target) = (coarse.world.source(), coarse.target());
        plant(&source);
        coarse.sync(&[]);
        // Size and second are the same: as for rsync, and as documented.
        write_at(&source.join("small"), b"other", SECOND, 987_654_322);
        assert_eq!(changes(&coarse.sync(&[])), [""; 0], "{way:?}");
        assert_eq!(fs::read(target.join("small")).expect("reads"), b"small", "{way:?}");
        assert_eq!(changes(&coarse.sync(&["--checksum"])), ["copy small"], "{way:?}");
        assert_eq!(fs::read(target.join("small")).expect("reads"), b"other", "{way:?}");
        // A second is no less.
        set_time(&source.join("small"), SECOND + 1, 5);
        assert_eq!(changes(&coarse.sync(&[])), ["copy small"], "{way:?}");
    }
}

#[test]
fn who_follows_a_source_copies_what_it_is_told_of_within_the_same_second() {
    for way in BOTH {
        let test = "who_follows_a_source_copies_what_it_is_told_of_within_the_same_second";
        let Some(coarse) = Coarse::new(test, way) else { return };
        let (source, target) = (coarse.world.source(), coarse.target());
        plant(&source);
        let status = text(&coarse.world.path("status"));
        let mut run = coarse.start("", "rdma-sync", &["--watch", "--status-file", &status]);
        let flags = ["--wait", &status, "--wait-timeout", "30"];
        Running::start(coarse.world.home.command("rdma-sync", &flags)).end().done();
        // One of several names is told, and all is compared.
        for (name, bytes) in [("small", b"other"), ("small", b"third"), ("named", b"again")] {
            let fraction = 987_654_300 + i64::from(bytes[0]);
            write_at(&source.join(name), bytes, SECOND, fraction);
            wait_for(&format!("the target has the new content of {name}"), SOON, || {
                let there = fs::read(target.join(name));
                let done = there.as_ref().is_ok_and(|there| there == bytes);
                let there = there.map(|there| String::from_utf8_lossy(&there).into_owned());
                let status = Text(fs::read_to_string(&status).unwrap_or_default());
                seen(done, (there, status, run.report()))
            });
        }
        run.signal(Signal::TERM);
        assert_eq!(run.end().code, Some(130), "{way:?}");
    }
}

#[test]
fn a_copy_of_what_is_newer_takes_a_cut_time_for_as_new() {
    for way in BOTH {
        let test = "a_copy_of_what_is_newer_takes_a_cut_time_for_as_new";
        let Some(coarse) = Coarse::new(test, way) else { return };
        let (source, target) = (coarse.world.source(), coarse.target());
        plant(&source);
        fs::create_dir(&target).expect("a folder");
        let copy = || coarse.start("/.", "rdma-cp", &["-r", "-p", "-u"]).end().done();
        let inodes = || {
            let of = |name| fs::symlink_metadata(target.join(name)).expect("there").ino();
            ["small", "folder/large", "link"].map(of)
        };
        copy();
        let before = inodes();
        copy();
        assert_eq!(inodes(), before, "{way:?}: all of it is as new");
        write_at(&source.join("small"), b"newer", SECOND + 1, 5);
        copy();
        assert_eq!(fs::read(target.join("small")).expect("reads"), b"newer", "{way:?}");
        assert_eq!(inodes()[1..], before[1..], "{way:?}");
    }
}

#[test]
fn attributes_that_the_target_does_not_have_differ_never_again() {
    for way in BOTH {
        let test = "attributes_that_the_target_does_not_have_differ_never_again";
        let Some(coarse) = Coarse::bare(test, way) else { return };
        let (source, target) = (coarse.world.source(), coarse.target());
        plant(&source);
        set_attribute(&source.join("small"), "user.comment", b"lost");
        set_attribute(&source.join("folder"), "user.comment", b"lost");
        set_attribute(&source.join("folder/large"), "system.posix_acl_access", &list(false));
        let lost = &summary(&coarse.sync(&[]))["not_kept"]["xattrs"];
        assert_eq!(*lost, 3, "{way:?}: it is told once");
        tree::assert_same_content(&source, &target);
        let mode = fs::metadata(target.join("folder/large")).expect("there").mode();
        assert_eq!(mode & 0o7777, 0o600, "{way:?}: what the list gave the group nobody gets");
        for flags in [&[] as &[&str], &["--dry-run"], &["--check"]] {
            assert_eq!(changes(&coarse.sync(flags)), [""; 0], "{way:?} {flags:?}");
        }
    }
}
