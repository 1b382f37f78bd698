//! Targets on a disk that is too small. What an interrupted run left there, and
//! nobody wants any more, must not keep out what would fit without it: neither
//! files in the hidden tree of `--atomic`, nor partial files in a plain target.

use crate::mounting::{Mount, tmpfs};
use crate::process::{Ended, Running, skip};
use crate::{BOTH, Way, World, text, tree, write};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The disk of a target: one of the files below fits, two do not.
const DISK_BYTES: u64 = 16 << 20;
const LARGE_BYTES: usize = 9 << 20;
const OTHER_BYTES: usize = 8 << 20;

/// A world whose target is on a small disk of its own.
struct Small {
    world: World,
    way: Way,
    _mount: Mount,
}

impl Small {
    /// None where no file system can be mounted.
    fn new(way: Way) -> Option<Self> {
        let world = World::new();
        let _mount = tmpfs(&world.path("in/disk"), DISK_BYTES)?;
        Some(Self { world, way, _mount })
    }

    fn disk(&self) -> PathBuf {
        self.world.path("in/disk")
    }

    fn target(&self) -> PathBuf {
        self.disk().join("copy")
    }

    fn source(&self, name: &str) -> PathBuf {
        self.world.source().join(name)
    }

    /// Runs rdma-sync from the source to the target, to its end.
    #[track_caller]
    fn sync(&self, flags: &[&str]) -> Ended {
        let Self { world, way, .. } = self;
        let ends = match way {
            Way::Down => [world.serve.at("src"), text(&self.target())],
            Way::Up => [text(&world.source()), world.serve.at("in/disk/copy")],
        };
        let arguments: Vec<&str> = ends.iter().map(String::as_str).chain(flags.to_vec()).collect();
        Running::start(world.home.command("rdma-sync", &arguments)).end()
    }

    /// The hidden tree that an interrupted run left.
    #[track_caller]
    fn hidden_tree(&self) -> PathBuf {
        let parts = tree::parts(&self.disk());
        let hidden = parts.iter().find(|part| part.is_dir());
        hidden.unwrap_or_else(|| panic!("no hidden tree: {parts:?}")).clone()
    }

    /// Runs `--atomic` where only one of two new files fits: the hidden tree has the larger one.
    #[track_caller]
    fn fill_up(&self, flags: &[&str]) -> PathBuf {
        write(self.source("large"), &tree::content(1, LARGE_BYTES));
        write(self.source("other"), &tree::content(2, OTHER_BYTES));
        let ended = self.sync(flags).refused(1, &["other", "no space", "stays as it was"]);
        let said = &ended.stderr;
        let last = said.rfind("stays as it was").map(|at| &said[at..]).unwrap_or_default();
        assert!(!last.contains("when nobody writes to it"), "{:?}: {said}", self.way);
        let hidden = self.hidden_tree();
        assert_eq!(fs::metadata(hidden.join("large")).expect("it fits").len(), LARGE_BYTES as u64);
        hidden
    }

    #[track_caller]
    fn assert_nothing_is_left(&self) {
        assert_eq!(tree::parts(&self.disk()), [""; 0].map(PathBuf::from), "{:?}", self.way);
    }
}

/// Whether there is anything to be run here; says so where not.
fn no_small_disk(test: &str) -> bool {
    let none = Small::new(Way::Up).is_none();
    if none {
        skip(&format!("sync full::{test}"), "tmpfs cannot be mounted here");
    }
    none
}

/// Sets a file in a tree to a size, as an interrupted copy leaves its parts.
fn leave_part(folder: &Path, name: &str) {
    let name = format!(".{name}.0123456789abcdef.verbatim-part");
    write(folder.join(name), &tree::content(3, LARGE_BYTES));
}

#[test]
fn atomic_deletes_what_left_the_source_from_its_hidden_tree_when_the_disk_is_full() {
    if no_small_disk("atomic_deletes_what_left_the_source") {
        return;
    }
    for way in BOTH {
        for flags in [&["--atomic"][..], &["--atomic", "--delete"]] {
            let small = Small::new(way).expect("there was one");
            write(small.source("kept"), b"kept");
            small.sync(flags).done();
            small.fill_up(flags);
            fs::remove_file(small.source("large")).expect("removes");
            small.sync(flags).done();
            tree::assert_same_content(&small.world.source(), &small.target());
            small.assert_nothing_is_left();
        }
    }
}

#[test]
fn atomic_gives_back_the_old_version_of_a_file_that_left_the_source() {
    if no_small_disk("atomic_gives_back_the_old_version") {
        return;
    }
    for way in BOTH {
        let small = Small::new(way).expect("there was one");
        write(small.source("large"), b"old");
        small.sync(&["--atomic"]).done();
        small.fill_up(&["--atomic"]);
        fs::remove_file(small.source("large")).expect("removes");
        small.sync(&["--atomic"]).done();
        // Without --delete the target keeps what it had.
        let target = small.target();
        assert_eq!(fs::read(target.join("large")).expect("stays"), b"old", "{way:?}");
        assert!(fs::read(target.join("other")).expect("is there") == tree::content(2, OTHER_BYTES));
        small.assert_nothing_is_left();
    }
}

#[test]
fn what_an_interrupted_atomic_run_left_does_not_count_as_deletes() {
    if no_small_disk("what_an_interrupted_atomic_run_left") {
        return;
    }
    let flags = ["--atomic", "--delete", "--max-delete", "0"];
    for way in BOTH {
        let small = Small::new(way).expect("there was one");
        write(small.source("kept"), b"kept");
        small.sync(&flags).done();
        small.fill_up(&flags);
        fs::remove_file(small.source("large")).expect("removes");
        // Now there is room for all of it.
        write(small.source("other"), b"small");
        small.sync(&flags).done();
        tree::assert_same_content(&small.world.source(), &small.target());
        small.assert_nothing_is_left();
    }
}

#[test]
fn atomic_removes_parts_of_files_that_left_the_source_when_the_disk_is_full() {
    if no_small_disk("atomic_removes_parts_of_files") {
        return;
    }
    for way in BOTH {
        let small = Small::new(way).expect("there was one");
        write(small.source("kept"), b"kept");
        small.sync(&["--atomic"]).done();
        let hidden = small.fill_up(&["--atomic"]);
        // As if the run had been killed in the middle of the larger one.
        fs::remove_file(hidden.join("large")).expect("removes");
        leave_part(&hidden, "large");
        fs::remove_file(small.source("large")).expect("removes");
        small.sync(&["--atomic"]).done();
        tree::assert_same_content(&small.world.source(), &small.target());
        small.assert_nothing_is_left();
    }
}

#[test]
fn a_mirror_removes_parts_of_files_that_left_the_source_when_the_disk_is_full() {
    if no_small_disk("a_mirror_removes_parts_of_files") {
        return;
    }
    for way in BOTH {
        let small = Small::new(way).expect("there was one");
        write(small.source("other"), &tree::content(2, OTHER_BYTES));
        leave_part(&small.target(), "gone");
        small.sync(&[]).done();
        tree::assert_same_content(&small.world.source(), &small.target());
        small.assert_nothing_is_left();
    }
}

#[test]
fn what_does_not_fit_although_nothing_is_left_behind_is_reported_once() {
    if no_small_disk("what_does_not_fit") {
        return;
    }
    for way in BOTH {
        let small = Small::new(way).expect("there was one");
        write(small.source("huge"), &tree::content(4, DISK_BYTES as usize + 1));
        write(small.source("small"), b"small");
        leave_part(&small.target(), "gone");
        let ended = small.sync(&[]).refused(1, &["huge", "no space", "make room at the target"]);
        assert_eq!(ended.stderr.matches("no space").count(), 1, "{way:?}: {}", ended.stderr);
        assert_eq!(fs::read(small.target().join("small")).expect("fits"), b"small");
        assert!(!small.target().join("huge").exists(), "{way:?}");
    }
}

/// A file of this many MiB with 4 KiB of data every 128 KiB, `shift` bytes behind that place.
fn make_finely_sparse(path: &Path, mib: u64, shift: u64) {
    const STEP: u64 = 128 << 10;
    let file = fs::File::create(path).expect("creates");
    file.set_len(mib << 20).expect("grows");
    for at in (0..mib << 20).step_by(STEP as usize) {
        file.write_all_at(&tree::content(at + shift, 4096), at + shift).expect("writes");
    }
}

#[test]
fn a_finely_sparse_file_fits_a_disk_that_its_data_fits() {
    if no_small_disk("a_finely_sparse_file_fits") {
        return;
    }
    for way in BOTH {
        for flags in [&[][..], &["--atomic"]] {
            let small = Small::new(way).expect("there was one");
            let (source, target) = (small.source("fine"), small.target().join("fine"));
            // 3 MiB of data in 96 MiB.
            make_finely_sparse(&source, 96, 0);
            small.sync(flags).done();
            assert_as_sparse(&source, &target);
            // Data where holes were, and holes where data was.
            make_finely_sparse(&source, 96, 8192);
            small.sync(flags).done();
            assert_as_sparse(&source, &target);
            // What changed is little, and the rest is taken from the file that is replaced.
            let file = fs::OpenOptions::new().write(true).open(&source).expect("opens");
            file.write_all_at(&[7; 100], (5 << 20) + 9).expect("writes");
            small.sync(flags).done();
            assert_as_sparse(&source, &target);
            small.assert_nothing_is_left();
        }
    }
}

/// Fails unless a copy has the bytes of its source, and takes little more room.
#[track_caller]
fn assert_as_sparse(source: &Path, copy: &Path) {
    let bytes = |path: &Path| fs::read(path).expect("reads");
    assert!(bytes(copy) == bytes(source), "{} has other bytes", copy.display());
    let allocated = |path: &Path| fs::metadata(path).expect("there").blocks() * 512;
    let (had, has) = (allocated(source), allocated(copy));
    let most = had + had / 10 + (64 << 10);
    assert!(has <= most, "{} takes {has} bytes, its source {had}", copy.display());
}
