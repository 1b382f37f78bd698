//! Conversions to FUSE types: attributes, file types and errno values. Pure; called by
//! `fuse` and `readdir`.

use super::tree::TreeError;
use fuser::{Errno, FileAttr, FileType, INodeNo, ReplyXattr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use verbatim_client::remote_fs::attributes::{Facts, Kind};
use verbatim_proto::Fault;

/// Whether an extended attribute is shown. Those of the namespaces system and security describe the
/// source's machine.
pub(super) fn is_shown_xattr(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"trusted.")
}

/// Replies with a value or, for size 0, with its length.
pub(super) fn reply_xattr(value: &[u8], size: u32, reply: ReplyXattr) {
    match size as usize {
        0 => reply.size(value.len() as u32),
        most if value.len() <= most => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}

/// The errno of an error.
pub(super) fn errno(trouble: &TreeError) -> Errno {
    let Fault { code, .. } = match trouble {
        TreeError::Stale => return Errno::ESTALE,
        TreeError::Read(fault) | TreeError::Server(fault) => fault,
    };
    trouble.errno(*code)
}

/// The FUSE type of an entry.
pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Folder => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        // The server does not tell fifos, sockets and devices apart; none can be opened here.
        Kind::Special => FileType::NamedPipe,
    }
}

/// The attributes of a node for the kernel; `mounter` owns files without an owner.
pub(super) fn file_attr(number: u64, facts: Facts, mounter: (u32, u32)) -> FileAttr {
    let (uid, gid) = facts.owner().unwrap_or(mounter);
    let since = Duration::from_nanos(facts.mtime_ns.unsigned_abs());
    let mtime = match facts.mtime_ns >= 0 {
        true => UNIX_EPOCH.checked_add(since),
        false => UNIX_EPOCH.checked_sub(since),
    };
    let mtime: SystemTime = mtime.unwrap_or(UNIX_EPOCH);
    FileAttr {
        ino: INodeNo(number),
        size: facts.size,
        blocks: facts.size.div_ceil(512),
        atime: mtime,
        mtime,
        ctime: mtime,
        crtime: mtime,
        kind: file_type(facts.kind),
        perm: facts.mode & 0o777,
        nlink: facts.names,
        uid,
        gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
