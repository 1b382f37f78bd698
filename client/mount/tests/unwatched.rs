//! A FUSE file system that does not notify the kernel of changes, like a network file
//! system: cached attributes are stale, and a file of another mount may look the same.
//! Mounts one with a single file, and changes the file behind the kernel.

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, OpenFlags, ReplyAttr, ReplyEntry, ReplyOpen, Request, Session,
};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use tempfile::TempDir;
use verbatim_files::{Folder, Source};
use verbatim_proto::{Code, WirePath};

/// How long the kernel may cache attributes and names.
const BELIEVED: Duration = Duration::from_secs(3600);

/// A folder with one file, whose mtime is this many seconds after 1970.
struct Unwatched(Arc<AtomicU64>);

impl Unwatched {
    fn attr(&self, number: INodeNo) -> FileAttr {
        let is_root = number == INodeNo::ROOT;
        let changed = UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::SeqCst));
        FileAttr {
            ino: number,
            size: 5,
            blocks: 1,
            atime: changed,
            mtime: changed,
            ctime: changed,
            crtime: changed,
            kind: if is_root { FileType::Directory } else { FileType::RegularFile },
            perm: 0o755,
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Unwatched {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == "file" {
            true => reply.entry(&BELIEVED, &self.attr(INodeNo(2)), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&BELIEVED, &self.attr(number));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }
}

/// Records in the file that `tests/run` reads that this test was skipped.
fn skip(test: &str, reason: &str) {
    if let Some(path) = std::env::var_os("VERBATIM_SKIPS") {
        let mut file = fs::File::options().append(true).create(true).open(path).expect("opens");
        writeln!(file, "{test}: {reason}").expect("writes");
    }
}

/// Mounts the file system, or records a skip where this machine does not allow it.
fn mount(dir: &TempDir, changed: &Arc<AtomicU64>) -> Option<BackgroundSession> {
    let session = Session::new(Unwatched(changed.clone()), dir.path(), &Config::default());
    let mounted = session.and_then(Session::spawn).ok();
    if mounted.is_none() {
        skip("files in user space", "cannot mount (needs /dev/fuse, root or fusermount3)");
    }
    mounted
}

fn open(dir: &TempDir) -> Source {
    let folder = Folder::open(dir.path()).expect("opens");
    Source::open(&folder, &WirePath::parse(b"file").expect("plain"), "file").expect("opens")
}

#[test]
fn a_source_that_changed_behind_the_kernel_s_back_is_noticed() {
    let dir = tempfile::tempdir().expect("a folder");
    let changed = Arc::new(AtomicU64::new(1_000_000));
    let Some(mounted) = mount(&dir, &changed) else { return };
    let source = open(&dir);
    assert!(!source.is_racy());
    assert_eq!(source.check(), Ok(()));
    changed.store(2_000_000, Ordering::SeqCst);
    let known = fs::metadata(dir.path().join("file")).and_then(|found| found.modified());
    let known = known.expect("it is there").duration_since(UNIX_EPOCH).expect("a time");
    assert_eq!(known.as_secs(), 1_000_000, "the kernel says what it was told");
    assert_eq!(source.check().expect_err("it changed").code, Code::Changed);
    drop(source);
    mounted.umount_and_join().expect("nobody uses it");
}

#[test]
fn a_file_of_another_mount_that_looks_the_same_has_another_version() {
    // Older kernels may give a mount the number of one that is gone.
    const TOLD_APART_SINCE: (u32, u32) = (6, 8);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel says it");
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(str::parse);
    let release = numbers.next().zip(numbers.next());
    if !matches!(release, Some((Ok(a), Ok(b))) if (a, b) >= TOLD_APART_SINCE) {
        return skip("versions of another mount", "this kernel gives numbers of mounts again");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let changed = Arc::new(AtomicU64::new(1_000_000));
    let mut versions = Vec::new();
    for _ in 0..2 {
        let Some(mounted) = mount(&dir, &changed) else { return };
        let told = [open(&dir), open(&dir)].map(|source| source.info().version);
        assert_eq!(told[0], told[1], "it is the same file");
        versions.push(told[0].expect("it is old"));
        mounted.umount_and_join().expect("nobody uses it");
    }
    assert_ne!(versions[0], versions[1]);
}
