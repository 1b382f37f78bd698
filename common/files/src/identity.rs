//! What makes a file the same file with the same content, as far as the file
//! system tells. What it cannot tell: a store through somebody's mapping, and a
//! write in the same tick of the clock as the last one, which is why an
//! identity younger than two seconds is called racy.

use crate::journal::{BOOT_BYTES, boot_id, mount_of};
use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp, fstatfs, fstatvfs, statx};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};
use verbatim_proto::units::RACY_NS;
use verbatim_proto::{Digest, Twin};

/// The identity of a file's content. The birth time stands for the inode's generation: an
/// inode that is used again is born again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The file system, by its own id where that and the times tell its files apart for good, else
    /// by its mount: the device number is not stable across reboots.
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

/// A number for the file system that an open file or folder is on: its own id, where another file
/// with the same number and times cannot come in its place, and else one of this mount.
pub(crate) fn file_system_of(fd: impl AsFd) -> io::Result<u64> {
    let fd = fd.as_fd();
    let id = fstatvfs(fd)?.f_fsid;
    match kind_of_file_system(fd).is_some_and(|kind| is_told_apart(kind, id)) {
        true => Ok(id),
        false => Ok(of_mount(id, boot_id(), mount_of(fd))),
    }
}

/// File systems whose inodes have a time of change that nobody can set, by the numbers that
/// statfs(2) has for them: ext2 to ext4, xfs, btrfs, f2fs, bcachefs, zfs, tmpfs, lustre, ceph,
/// gpfs and beegfs. Not those of images, where a new one has whatever its maker put there, nor
/// those in user space, nor overlayfs, which may lie on either.
const OWN_TIMES: [u32; 11] = [
    0xEF53,
    0x5846_5342,
    0x9123_683E,
    0xF2F5_2010,
    0xCA45_1A4E,
    0x2FC1_2FC1,
    0x0102_1994,
    0x0BD0_0BD0,
    0x00C3_6400,
    0x4750_4653,
    0x1983_0326,
];

/// NFS, which has no id of its own, and whose times are its server's.
const NFS: u32 = 0x6969;

/// Whether another file in the place of one shows in its times, on a file system of this kind and
/// id. Zero is none: two of them have the same.
fn is_told_apart(kind: u32, id: u64) -> bool {
    kind == NFS || id != 0 && OWN_TIMES.contains(&kind)
}

/// The number of a file system in one mount of one boot. Where the kernel does not tell mounts
/// apart it is also of this process alone.
fn of_mount(id: u64, boot: [u8; BOOT_BYTES], mount: Option<(u64, bool)>) -> u64 {
    let (number, is_unique) = mount.unwrap_or_default();
    let is_lasting = is_unique && boot != [0; BOOT_BYTES];
    let process = if is_lasting { 0 } else { *PROCESS };
    let Digest(boot) = Digest::of(&boot);
    let boot = u64::from_le_bytes(boot[..8].try_into().expect("8 of 32 bytes"));
    number_of([id, boot, number, process])
}

/// Tells this process from all others of this machine.
static PROCESS: LazyLock<u64> = LazyLock::new(|| {
    let began = since_1970(SystemTime::now()) as u64;
    number_of([began, std::process::id().into()])
});

/// What kind of file system it is on, by the numbers of statfs(2); none where it does not say.
pub(crate) fn kind_of_file_system(fd: impl AsFd) -> Option<u32> {
    fstatfs(fd).ok().map(|found| found.f_type as u32)
}

/// The status of an open file.
pub(crate) fn stat_open(file: impl AsFd) -> io::Result<Statx> {
    Ok(statx(file, c"", AtFlags::EMPTY_PATH, ASKED)?)
}

/// Which file of this machine a status is of.
pub(crate) fn twin_of(stat: &Statx) -> Twin {
    let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    Twin { device, inode: stat.stx_ino }
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
    fn an_image_in_the_place_of_another_is_another_file_system() {
        const EROFS: u32 = 0xE0F5_E1E2;
        const FUSE: u32 = 0x6573_5546;
        assert!(!is_told_apart(EROFS, 7) && !is_told_apart(FUSE, 0));
        let (here, there) = ([b'h'; BOOT_BYTES], [b't'; BOOT_BYTES]);
        let once = of_mount(7, here, Some((1, true)));
        assert_eq!(of_mount(7, here, Some((1, true))), once, "it is mounted as it was");
        let others = [
            of_mount(7, here, Some((2, true))),
            of_mount(7, there, Some((1, true))),
            of_mount(8, here, Some((1, true))),
            // Of this process alone.
            of_mount(7, here, Some((1, false))),
            of_mount(7, here, None),
            of_mount(7, [0; BOOT_BYTES], Some((1, true))),
        ];
        assert!(others.iter().all(|other| *other != once), "{once} in {others:?}");
    }

    #[test]
    fn a_file_system_with_times_of_its_own_has_its_id_in_every_mount() {
        for kind in OWN_TIMES {
            // Two in memory of older kernels have none.
            assert!(is_told_apart(kind, 7) && !is_told_apart(kind, 0), "{kind:x}");
        }
        assert!(is_told_apart(NFS, 0));
        let open = |path: &str| File::open(path).expect("it is there");
        let id = |file: &File| fstatvfs(file).expect("its file system").f_fsid;
        let there = open("/proc");
        let told = file_system_of(&there).expect("its number");
        assert_ne!(told, id(&there), "it is by its mount");
        assert_eq!(file_system_of(&there).expect("its number"), told);
        let file = tempfile::tempfile().expect("file");
        let kind = kind_of_file_system(&file).expect("a kind");
        let told = file_system_of(&file).expect("its number");
        assert_eq!(told == id(&file), is_told_apart(kind, id(&file)));
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
