//! The journal of a partial file: which grains of it are verified, with their
//! digests, up to where they were flushed, and the boot and the mount it was written
//! in. Appended after the bytes are written, never before, so within one such stay
//! what it says was in the page cache even after kill -9. That it reached the disk is
//! another matter: a disk that could not take it says so once, to who flushes, and
//! forgets it with the inode. So what was not flushed is only a claim, as all of it is
//! after another boot or mount; it is to be checked by hashing, and flushed and
//! renewed then, so that nobody has to do that twice.
//!
//! A file of records, each with a checksum: one that is cut or damaged ends
//! the journal there, and what it would have said is fetched again.

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;
use verbatim_proto::message::FileInfo;
use verbatim_proto::units::{GRAIN_BYTES, WINDOW_BYTES};
use verbatim_proto::{Digest, Extent};

const MAGIC: [u8; 8] = *b"VBTMJRN2";
const HEAD_BYTES: usize = 8 + 36 + 8 + 8 + 8 + CHECK_BYTES;
const CHECK_BYTES: usize = 8;
/// How long the name of a boot is.
pub const BOOT_BYTES: usize = 36;

/// The most grains one record may name.
const RECORD_GRAINS_MAX: usize = (WINDOW_BYTES / GRAIN_BYTES) as usize;

/// The longest record.
const RECORD_BYTES_MAX: usize = record_bytes(RECORD_GRAINS_MAX);

/// Which version of a source a journal is about, and when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The boot and the mount it was written in.
    pub stay: [u8; BOOT_BYTES],
    /// The size of the source.
    pub size: u64,
    /// When the source's content had changed.
    pub mtime_ns: i64,
    /// Its version, if it was known.
    pub version: Option<u64>,
}

impl Head {
    /// The head of a journal that begins now in this file.
    pub fn now(info: &FileInfo, file: &File) -> Self {
        let FileInfo { size, mtime_ns, version, .. } = *info;
        Self { stay: stay_of(file), size, mtime_ns, version }
    }

    /// Whether it was written, to this file, since this machine was started and the file system
    /// mounted.
    pub fn is_of_this_stay(&self, file: &File) -> bool {
        self.stay == stay_of(file) && self.stay != [0; BOOT_BYTES]
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.stay);
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes.extend_from_slice(&self.mtime_ns.to_le_bytes());
        bytes.extend_from_slice(&self.version.unwrap_or(0).to_le_bytes());
        seal(bytes)
    }

    fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let body = unseal(bytes)?.strip_prefix(&MAGIC)?;
        let (stay, body) = body.split_first_chunk::<BOOT_BYTES>()?;
        let (size, body) = body.split_first_chunk::<8>()?;
        let (mtime_ns, body) = body.split_first_chunk::<8>()?;
        let version = u64::from_le_bytes(*body.first_chunk::<8>()?);
        Some(Self {
            stay: *stay,
            size: u64::from_le_bytes(*size),
            mtime_ns: i64::from_le_bytes(*mtime_ns),
            version: (version != 0).then_some(version),
        })
    }
}

/// Begins a journal in an empty file.
pub fn begin(file: &mut File, head: &Head) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(&head.encode())
}

/// Appends what was verified and written. One write, so that a crash cuts at most this record.
pub fn append(mut file: &File, extent: Extent, digests: &[Digest]) -> io::Result<()> {
    assert!(digests.len() <= RECORD_GRAINS_MAX, "a record names a window at most");
    let mut bytes = Vec::with_capacity(record_bytes(digests.len()));
    bytes.extend_from_slice(&(digests.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&extent.offset.to_le_bytes());
    bytes.extend_from_slice(&extent.len.to_le_bytes());
    for digest in digests {
        bytes.extend_from_slice(&digest.0);
    }
    file.write_all(&seal(bytes))
}

/// Notes that all before was flushed: a record of nothing. To who does not know of it the journal
/// ends there.
pub(crate) fn append_flushed(file: &File) -> io::Result<()> {
    append(file, Extent::new(0, 0), &[])
}

/// How long a record of so many grains is.
pub const fn record_bytes(grains: usize) -> usize {
    20 + 32 * grains + CHECK_BYTES
}

/// Keeps these records alone, in order, as of this stay. Until all of them are in place they are
/// of the stay they were, and only a claim.
pub fn renew(file: &File, head: Head, kept: &[Range<u64>]) -> io::Result<Head> {
    // What is appended goes to the end, wherever it is written to.
    let appending = fcntl_getfl(file)?;
    fcntl_setfl(file, appending - OFlags::APPEND)?;
    let (mut end, mut step) = (HEAD_BYTES as u64, vec![0; RECORD_BYTES_MAX]);
    for range in kept {
        let mut at = range.start;
        while at < range.end && at != end {
            let len = (range.end - at).min(step.len() as u64) as usize;
            file.read_exact_at(&mut step[..len], at)?;
            file.write_all_at(&step[..len], end)?;
            (at, end) = (at + len as u64, end + len as u64);
        }
        end += range.end - at;
    }
    file.set_len(end)?;
    let head = Head { stay: stay_of(file), ..head };
    file.write_all_at(&head.encode(), 0)?;
    fcntl_setfl(file, appending)?;
    Ok(head)
}

/// How far a journal goes.
pub(crate) struct Reach {
    pub head: Head,
    /// Up to where what it says was flushed, in the stay of its head.
    pub flushed: u64,
    /// How long its good part is.
    pub good: u64,
}

/// Reads a journal from its beginning: each good record goes to `each`, with the head, and none
/// is kept: the journal of a large file is long. `None` when it is no journal. Returns the head,
/// and how long the good part is.
pub fn read(file: &File, mut each: impl FnMut(&Head, Extent, Vec<Digest>)) -> Option<(Head, u64)> {
    read_placed(file, |head, extent, digests, _| each(head, extent, digests))
}

/// The same, with where each record begins, for whoever reads it again with `record_at`.
pub fn read_placed(
    file: &File,
    mut each: impl FnMut(&Head, Extent, Vec<Digest>, u64),
) -> Option<(Head, u64)> {
    let Reach { head, good, .. } = look_through(file, |head, extent, digests, at| {
        if !digests.is_empty() {
            each(head, extent, digests, at);
        }
    })?;
    Some((head, good))
}

/// Says how far a journal goes, without what it says.
pub(crate) fn reach(file: &File) -> Option<Reach> {
    look_through(file, |_, _, _, _| {})
}

fn look_through(
    mut file: &File,
    mut each: impl FnMut(&Head, Extent, Vec<Digest>, u64),
) -> Option<Reach> {
    file.rewind().ok()?;
    let mut input = io::BufReader::new(file);
    let mut head = [0; HEAD_BYTES];
    input.read_exact(&mut head).ok()?;
    let head = Head::decode(&head)?;
    let (mut flushed, mut good) = (0, HEAD_BYTES as u64);
    while let Some((extent, digests, bytes)) = read_record(&mut input, head.size) {
        if digests.is_empty() {
            flushed = good + bytes;
        }
        each(&head, extent, digests, good);
        good += bytes;
    }
    Some(Reach { head, flushed, good })
}

/// Reads one record again, of a file of `size` bytes; also says where the next one begins.
pub fn record_at(file: &File, position: u64, size: u64) -> Option<(Extent, Vec<Digest>, u64)> {
    let mut bytes = vec![0; RECORD_BYTES_MAX];
    let read = file.read_at(&mut bytes, position).ok()?;
    let (extent, digests, len) = read_record(&mut &bytes[..read], size)?;
    (!digests.is_empty()).then_some((extent, digests, position + len))
}

/// The next record, if it is whole, undamaged and about whole grains of the file; without digests
/// the one that says that all before was flushed.
fn read_record(input: &mut impl Read, size: u64) -> Option<(Extent, Vec<Digest>, u64)> {
    let mut bytes = vec![0; 20];
    input.read_exact(&mut bytes).ok()?;
    let (count, rest) = bytes.split_first_chunk::<4>()?;
    let count = u32::from_le_bytes(*count) as usize;
    let (offset, rest) = rest.split_first_chunk::<8>()?;
    let extent = Extent::new(u64::from_le_bytes(*offset), u64::from_le_bytes(*rest.first_chunk()?));
    let whole = extent.fits(size)
        && extent.offset.is_multiple_of(GRAIN_BYTES)
        && (extent.len.is_multiple_of(GRAIN_BYTES) || extent.end() == Some(size))
        && extent.len.div_ceil(GRAIN_BYTES) == count as u64;
    let is_of_nothing = count == 0 && extent.offset > 0;
    if is_of_nothing || count > RECORD_GRAINS_MAX || !whole {
        return None;
    }
    bytes.resize(record_bytes(count), 0);
    input.read_exact(&mut bytes[20..]).ok()?;
    let digests = unseal(&bytes)?[20..].chunks_exact(32);
    let digests = digests.map(|value| Digest(value.try_into().expect("32 bytes"))).collect();
    Some((extent, digests, bytes.len() as u64))
}

/// Appends a checksum.
pub(crate) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let Digest(check) = Digest::of(&bytes);
    bytes.extend_from_slice(&check[..CHECK_BYTES]);
    bytes
}

/// What is in front of a checksum, if it is right.
pub(crate) fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (body, check) = bytes.split_last_chunk::<CHECK_BYTES>()?;
    (Digest::of(body).0[..CHECK_BYTES] == check[..]).then_some(body)
}

/// What names this boot and the mount that a file is on; zeros, which no journal trusts, where
/// the system does not say the one. Another namespace is another mount, which costs hashing.
pub(crate) fn stay_of(file: impl AsFd) -> [u8; BOOT_BYTES] {
    stay(boot_id(), mount_of(file).map(|(mount, _)| mount))
}

/// The number of the mount that something is on, and whether no other of this boot ever has it:
/// kernels before 6.8 tell one that the next mount may have, those before 5.8 none.
pub(crate) fn mount_of(file: impl AsFd) -> Option<(u64, bool)> {
    let asked = StatxFlags::MNT_ID | MNT_ID_UNIQUE;
    let found = statx(file, c"", AtFlags::EMPTY_PATH, asked).ok()?;
    let is_told = |flag: StatxFlags| found.stx_mask & flag.bits() != 0;
    is_told(asked).then(|| (found.stx_mnt_id, is_told(MNT_ID_UNIQUE)))
}

/// A boot and a mount in the room that a boot had alone: a journal that was written before mounts
/// were told is of another stay, and so is one of now to who reads it then.
pub(crate) fn stay(boot: [u8; BOOT_BYTES], mount: Option<u64>) -> [u8; BOOT_BYTES] {
    let Some(mount) = mount.filter(|_| boot != [0; BOOT_BYTES]) else { return boot };
    let Digest(digest) = Digest::of(&[&boot[..], &mount.to_le_bytes()].concat());
    let mut stay = [0; BOOT_BYTES];
    stay[..digest.len()].copy_from_slice(&digest);
    stay
}

/// STATX_MNT_ID_UNIQUE: a number that no other mount of this boot ever has.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// What names this boot; zeros, which no journal trusts, where the system does not say.
pub fn boot_id() -> [u8; BOOT_BYTES] {
    static ID: LazyLock<[u8; BOOT_BYTES]> = LazyLock::new(|| {
        let text = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        text.first_chunk().copied().unwrap_or([0; BOOT_BYTES])
    });
    *ID
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 3 * GRAIN_BYTES + 5;

    type Records = Vec<(Extent, Vec<Digest>)>;

    fn sample() -> (File, Records) {
        let mut file = tempfile::tempfile().expect("file");
        let info = FileInfo { size: SIZE, mode: 0, mtime_ns: 7, allocated: SIZE, version: Some(9) };
        let head = Head::now(&info, &file);
        begin(&mut file, &head).expect("begins");
        let records = vec![
            (Extent::new(GRAIN_BYTES, GRAIN_BYTES), vec![Digest([1; 32])]),
            (Extent::new(2 * GRAIN_BYTES, GRAIN_BYTES + 5), vec![Digest([2; 32]), Digest([3; 32])]),
        ];
        for (extent, digests) in &records {
            append(&file, *extent, digests).expect("appends");
        }
        (file, records)
    }

    fn load(file: &File) -> Option<(Head, Records)> {
        let mut records = Vec::new();
        let (head, _) = read(file, |_, extent, digests| records.push((extent, digests)))?;
        Some((head, records))
    }

    #[test]
    fn another_boot_and_another_mount_are_another_stay() {
        use std::os::unix::fs::MetadataExt;
        let (here, there) = (boot_id(), [b'x'; BOOT_BYTES]);
        let stays = [stay(here, Some(1)), stay(here, Some(2)), stay(here, None), stay(there, None)];
        let others = |at: usize| stays.iter().skip(at + 1).all(|other| *other != stays[at]);
        assert!((0..stays.len()).all(others), "{stays:?}");
        let unknown = [0; BOOT_BYTES];
        assert_eq!(stay(unknown, Some(1)), unknown, "nobody trusts it");
        let (one, two) = (tempfile::tempfile(), tempfile::tempfile());
        assert_eq!(stay_of(one.expect("a file")), stay_of(two.expect("a file")));
        let device = |file: &File| file.metadata().expect("a file").dev();
        let (disk, memory) = (tempfile::tempfile(), tempfile::tempfile_in("/dev/shm"));
        // Where both are on one, or the kernel tells no mount, there is nothing to compare.
        if let (Ok(disk), Ok(memory)) = (disk, memory)
            && device(&disk) != device(&memory)
            && stay_of(&disk) != boot_id()
        {
            assert_ne!(stay_of(&memory), stay_of(&disk));
        }
    }

    #[test]
    fn what_was_appended_is_read_and_is_of_this_stay() {
        let (file, records) = sample();
        let (head, read) = load(&file).expect("a journal");
        assert_eq!((head.size, head.mtime_ns, head.version), (SIZE, 7, Some(9)));
        assert!(head.is_of_this_stay(&file));
        assert_eq!(read, records);
    }

    #[test]
    fn a_record_is_read_again_where_it_was_and_nowhere_else() {
        let (file, records) = sample();
        let mut places = Vec::new();
        read_placed(&file, |_, _, _, at| places.push(at)).expect("a journal");
        let again: Vec<_> = places.iter().filter_map(|at| record_at(&file, *at, SIZE)).collect();
        assert_eq!((again[0].2, again[1].2), (places[1], file.metadata().expect("length").len()));
        let again: Records = again.into_iter().map(|(extent, it, _)| (extent, it)).collect();
        assert_eq!(again, records);
        assert_eq!(record_at(&file, places[1] + 1, SIZE), None);
    }

    #[test]
    fn what_is_in_front_of_the_last_mark_was_flushed_and_nothing_behind_it() {
        let (file, mut records) = sample();
        let reached = |file: &File| reach(file).map(|it| (it.flushed, it.good)).expect("a journal");
        let marked = |file: &File| {
            append_flushed(file).expect("appends");
            file.metadata().expect("length").len()
        };
        let before = file.metadata().expect("length").len();
        assert_eq!(reached(&file), (0, before), "nothing was");
        let first = marked(&file);
        assert_eq!(reached(&file), (first, first));
        let (extent, digests) = (Extent::new(0, GRAIN_BYTES), vec![Digest([4; 32])]);
        append(&file, extent, &digests).expect("appends");
        records.push((extent, digests));
        let after = file.metadata().expect("length").len();
        assert_eq!(reached(&file), (first, after));
        let second = marked(&file);
        assert_eq!(reached(&file), (second, second));
        // It is no record to who reads them.
        assert_eq!(load(&file).expect("a journal").1, records);
        assert_eq!(record_at(&file, before, SIZE), None);
    }

    #[test]
    fn cut_at_any_length_it_says_less_and_never_something_else() {
        let (file, records) = sample();
        let len = file.metadata().expect("length").len();
        for cut in (0..=len).rev() {
            file.set_len(cut).expect("cuts");
            match load(&file) {
                None => assert!(cut < HEAD_BYTES as u64),
                Some((_, read)) => assert!(records.starts_with(&read), "cut at {cut}"),
            }
        }
    }

    #[test]
    fn any_flipped_bit_ends_it_there() {
        let (file, records) = sample();
        let len = file.metadata().expect("length").len();
        for offset in 0..len {
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).expect("reads");
            file.write_all_at(&[byte[0] ^ 1 << (offset % 8)], offset).expect("flips");
            if let Some((_, read)) = load(&file) {
                assert!(records.starts_with(&read) && read.len() < records.len(), "at {offset}");
            }
            file.write_all_at(&byte, offset).expect("mends");
        }
    }
}
