//! The kernel's half of watching: an inotify instance, its watches and its
//! events. Folders are named by open descriptors, never by path, so that a
//! watch is on what was opened and nothing else. Knows nothing of trees.
//!
//! rustix is what the rest of this crate talks to the kernel with, and has all
//! of inotify without unsafe code of ours; a crate of its own would add nothing.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use verbatim_proto::{Code, Fault, WirePath};

/// Bytes of events that are read at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// Events that are taken before anything else is looked at.
const EVENTS_MAX: usize = 4096;

/// What is asked of every folder.
const WANTED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);

/// An inotify instance. Dropping it ends its watches.
#[derive(Debug)]
pub(super) struct Kernel {
    fd: OwnedFd,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Happened {
    /// The folder it happened in, or to; -1 for what happened to all.
    pub folder: i32,
    pub what: ReadFlags,
    /// The name in the folder; none for what happened to the folder itself.
    pub name: Option<Vec<u8>>,
}

impl Kernel {
    pub fn new() -> Result<Self, Fault> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        let fd = fd.map_err(|error| match error {
            Errno::MFILE => {
                let text = "cannot watch folders: this user has too many watchers; \
                            raise sysctl fs.inotify.max_user_instances";
                Fault::new(Code::Limit, text)
            }
            other => Fault::from_io("cannot watch folders", &other.into()),
        })?;
        Ok(Self { fd })
    }

    /// Watches an open folder; one that is watched keeps its number.
    pub fn watch(&self, folder: BorrowedFd<'_>) -> Result<i32, Errno> {
        let name = format!("/proc/self/fd/{}", folder.as_raw_fd());
        inotify::add_watch(&self.fd, name, WANTED)
    }

    /// Ends a watch; one that is gone already is fine.
    pub fn unwatch(&self, folder: i32) {
        // Its folder may be gone, and the watch with it.
        let _ = inotify::remove_watch(&self.fd, folder);
    }

    /// Takes what happened, `EVENTS_MAX` at most.
    pub fn read(&self) -> Result<Vec<Happened>, Fault> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.fd, &mut buffer);
        let mut happened = Vec::new();
        while happened.len() < EVENTS_MAX || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) => happened.push(Happened {
                    folder: event.wd(),
                    what: event.events(),
                    name: event.file_name().map(|name| name.to_bytes().to_vec()),
                }),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => {
                    return Err(Fault::from_io("cannot read what changed", &error.into()));
                }
            }
        }
        Ok(happened)
    }
}

impl AsFd for Kernel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Says that no more folders can be watched.
pub(super) fn watches_exhausted(path: &WirePath, limit: Option<u64>) -> Fault {
    let limit = limit.map_or_else(String::new, |limit| format!(" of {limit}"));
    let text = format!(
        "cannot watch {path}: this user's limit{limit} watched folders is reached; \
         raise sysctl fs.inotify.max_user_watches, or exclude folders"
    );
    Fault::new(Code::Limit, text)
}

/// Says that no more folders can be watched for one client.
pub(super) fn share_exhausted(path: &WirePath, has: usize, limit: Option<u64>) -> Fault {
    let limit = limit.map_or_else(String::new, |limit| format!(" of {limit}"));
    let text = format!(
        "cannot watch {path}: this client's share of the server's limit{limit} watched folders, or \
         of its memory, is reached, with {has} in this watch; raise sysctl \
         fs.inotify.max_user_watches or limits.memory_mb on the server, or exclude folders"
    );
    Fault::new(Code::Limit, text)
}

/// How many folders a user may watch, where the kernel says so.
pub fn watches_max() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").ok()?;
    text.trim().parse().ok()
}
