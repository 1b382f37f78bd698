//! What makes a file the same file with the same content, as far as the file
//! system tells. What it cannot tell: a store through somebody's mapping, and a
//! write in the same tick of the clock as the last one, which is why an
//! identity younger than two seconds is called racy.

use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp, fstatfs, fstatvfs, statx};
use std::fs::File;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};
use verbatim_proto::Digest;
use verbatim_proto::units::RACY_NS;

/// The identity of a file's content. The birth time stands for the inode's generation: an
/// inode that is used again is born again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The file system, by its own id: the device number is not stable across reboots.
    pub file_system: u64,
    /// The inode number.
    pub inode: u64,
    /// When the inode was made, zero where the file system does not say.
    pub born_ns: i64,
    /// How many bytes it has.
    pub size: u64,
    /// When its content changed.
    pub mtime_ns: i64,
    /// When its inode changed.
    pub ctime_ns: i64,
}

impl Identity {
    /// Takes the identity of an open file.
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self::of_status(file_system_of(file)?, &stat_open(file)?))
    }

    /// The identity that an open file has now, as whoever keeps it says: NFS, and file systems in
    /// user space, answer for a while with what they said last. It cannot have moved to another
    /// file system.
    pub fn now(&self, file: &File) -> io::Result<Self> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        Ok(Self::of_status(self.file_system, &statx(file, c"", flags, ASKED)?))
    }

    /// The identity of a file that was looked at, and is on this file system.
    pub(crate) fn of_status(file_system: u64, stat: &Statx) -> Self {
        Self {
            file_system,
            inode: stat.stx_ino,
            born_ns: nanoseconds(&stat.stx_btime),
            size: stat.stx_size,
            mtime_ns: nanoseconds(&stat.stx_mtime),
            ctime_ns: nanoseconds(&stat.stx_ctime),
        }
    }

    /// A number for all of it: another one for another content.
    pub fn version(&self) -> u64 {
        let Self { file_system, inode, born_ns, size, mtime_ns, ctime_ns } = *self;
        number_of([file_system, inode, born_ns as u64, size, mtime_ns as u64, ctime_ns as u64])
    }

    /// A number for the file itself, whatever is in it.
    pub(crate) fn file(&self) -> u64 {
        number_of([self.file_system, self.inode, self.born_ns as u64])
    }

    /// Whether a later write could hide behind the same time stamps. An inode that changed in the
    /// future is racy too: nothing is known about that clock. The time of a content that lies
    /// there was set by somebody, which says nothing: a write changes the inode as well.
    pub fn is_racy(&self, now: SystemTime) -> bool {
        let is_set = i128::from(self.mtime_ns) > since_1970(now);
        let stamp_ns = if is_set { self.ctime_ns } else { self.mtime_ns.max(self.ctime_ns) };
        is_young(stamp_ns, now)
    }
}

/// Whether a change from `now` on could have the same time stamp.
pub(crate) fn is_young(stamp_ns: i64, now: SystemTime) -> bool {
    since_1970(now) - i128::from(stamp_ns) < RACY_NS
}

/// In nanoseconds.
fn since_1970(now: SystemTime) -> i128 {
    now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128)
}

/// One number for several.
fn number_of<const N: usize>(numbers: [u64; N]) -> u64 {
    let bytes = numbers.map(u64::to_le_bytes);
    let Digest(hash) = Digest::of(bytes.as_flattened());
    // Zero stands for none where it is written down.
    u64::from_le_bytes(hash[..8].try_into().expect("8 of 32 bytes")).max(1)
}

/// The id of the file system that an open file or folder is on.
pub(crate) fn file_system_of(fd: impl std::os::fd::AsFd) -> io::Result<u64> {
    Ok(fstatvfs(fd)?.f_fsid)
}

/// What kind of file system it is on, by the numbers of statfs(2); none where it does not say.
pub(crate) fn kind_of_file_system(fd: impl std::os::fd::AsFd) -> Option<u32> {
    fstatfs(fd).ok().map(|found| found.f_type as u32)
}

/// The status of an open file.
pub(crate) fn stat_open(file: impl std::os::fd::AsFd) -> io::Result<Statx> {
    Ok(statx(file, c"", AtFlags::EMPTY_PATH, ASKED)?)
}

/// What a status is to tell.
const ASKED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// A time stamp as nanoseconds since 1970, saturating.
pub(crate) fn nanoseconds(stamp: &StatxTimestamp) -> i64 {
    stamp.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(stamp.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;

    #[test]
    fn a_write_changes_the_identity_once_it_is_not_racy() {
        let mut file = tempfile::tempfile().expect("file");
        file.write_all(b"one").expect("writes");
        let before = Identity::of(&file).expect("identity");
        assert!(before.is_racy(SystemTime::now()));
        assert!(!before.is_racy(SystemTime::now() + Duration::from_secs(3)));
        assert!(before.is_racy(SystemTime::now() - Duration::from_secs(100)), "from the future");
        file.write_all(b"two").expect("writes");
        assert_ne!(Identity::of(&file).expect("identity"), before);
    }

    #[test]
    fn a_time_that_somebody_set_into_the_future_is_not_racy_once_the_inode_is_old() {
        let mut file = tempfile::tempfile().expect("file");
        let now = SystemTime::now();
        let century = Duration::from_secs(100 * 365 * 86_400);
        file.set_modified(now + century).expect("sets");
        let set = Identity::of(&file).expect("identity");
        assert!(set.is_racy(now), "it was set just now");
        assert!(!set.is_racy(now + Duration::from_secs(3)));
        assert!(set.is_racy(now - Duration::from_secs(100)), "that clock cannot be trusted");
        // Whatever is written later shows.
        file.write_all(b"x").expect("writes");
        assert_ne!(Identity::of(&file).expect("identity").mtime_ns, set.mtime_ns);
    }
}
