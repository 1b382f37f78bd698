//! How the bytes of a temporary file take room: which zeros are stored and which
//! become holes, and what is given back of the room that was set aside for it.
//! Never looks at names or digests. `Target` has one, and lends it its file.

use crate::holes::ZEROS;
use crate::space::Room;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use verbatim_proto::Extent;
use verbatim_proto::message::FileInfo;
use verbatim_proto::units::BLOCK_BYTES;

/// The shortest run of zeros that becomes a hole in any file. Nothing in a file that is shorter
/// does, unless its source is sparse.
pub(crate) const HOLE_BYTES_MIN: usize = 64 << 10;

/// The room of one file.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    /// What was set aside for it.
    room: OnceLock<Room>,
    /// Its source is sparse, so no block of zeros is stored.
    sparse: AtomicBool,
}

impl Storage {
    /// Takes the room that was set aside. One that has room keeps it: a file is begun once.
    pub fn set_room(&self, room: Option<Room>) {
        room.into_iter().for_each(|room| drop(self.room.set(room)));
    }

    /// Says what room the source takes.
    pub fn keep_sparse(&self, file: &File, info: &FileInfo) -> io::Result<()> {
        self.sparse.store(info.is_sparse(), Ordering::Relaxed);
        // Its bytes alone do not make it as long as it is: the last of them may be a hole.
        let grows = info.is_sparse() && info.size < HOLE_BYTES_MIN as u64;
        if grows { file.set_len(info.size) } else { Ok(()) }
    }

    /// Whether blocks of zeros become holes.
    pub fn is_sparse(&self) -> bool {
        self.sparse.load(Ordering::Relaxed)
    }

    /// Writes bytes at an offset. Long zeros become a hole, in a sparse file all blocks of zeros.
    pub fn write(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.is_sparse() {
            return self.write_sparse(file, bytes, offset);
        }
        let extent = Extent::new(offset, bytes.len() as u64);
        if bytes.len() >= HOLE_BYTES_MIN && is_zero(bytes) && self.punch(file, extent) {
            return Ok(());
        }
        self.store(file, bytes, offset)
    }

    /// Writes blocks that have data, and makes holes of the others. They are punched also in a new
    /// file: other bytes may have come there before those that were verified last.
    fn write_sparse(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        for (zeros, run) in runs(bytes, offset) {
            let at = offset + run.start as u64;
            if !zeros {
                self.store(file, &bytes[run], at)?;
            } else if !self.punch(file, Extent::new(at, run.len() as u64)) {
                return self.store(file, &bytes[run.start..], at);
            }
        }
        Ok(())
    }

    /// Writes zeros to a range where there can be no hole.
    pub fn fill(&self, file: &File, extent: Extent) -> io::Result<()> {
        let end = extent.offset + extent.len;
        for offset in (extent.offset..end).step_by(ZEROS.len()) {
            let len = (end - offset).min(ZEROS.len() as u64);
            self.store(file, &ZEROS[..len as usize], offset)?;
        }
        Ok(())
    }

    /// Makes a range a hole; false where the file system cannot.
    pub fn punch(&self, file: &File, extent: Extent) -> bool {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = fallocate(file, hole, extent.offset, extent.len).is_ok();
        if punched && let Some(room) = self.room.get() {
            room.used(0, extent.len);
        }
        punched
    }

    /// So many bytes are stored: they no longer need the room that was set aside.
    pub fn stored(&self, bytes: u64) {
        if let Some(room) = self.room.get() {
            room.used(bytes, bytes);
        }
    }

    fn store(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.stored(bytes.len() as u64);
        file.write_all_at(bytes, offset)
    }
}

/// Whether all bytes are zero; other data is told by its first bytes.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(1024).all(|part| part.iter().fold(0, |seen, byte| seen | byte) == 0)
}

/// Cuts bytes that go to an offset of a file into runs, and says of each whether it is zeros.
/// Runs end only where blocks of the file do: a block with any other byte is data, and so is a
/// part of one at the start. The file ends with a part of one, so zeros there are a run of zeros.
fn runs(bytes: &[u8], offset: u64) -> Runs<'_> {
    Runs { bytes, offset, at: 0 }
}

/// The runs of some bytes, from their start to their end.
struct Runs<'a> {
    bytes: &'a [u8],
    offset: u64,
    at: usize,
}

impl Runs<'_> {
    /// The block, or the part of one, that begins at `at`, and whether it is zeros.
    fn block(&self, at: usize) -> Option<(bool, usize)> {
        let within = (self.offset + at as u64) % BLOCK_BYTES;
        let end = self.bytes.len().min(at + (BLOCK_BYTES - within) as usize);
        // Compared as a whole, up to the first byte that is not zero: data costs next to nothing.
        let is_zero = |block: &[u8]| *block == ZEROS[..block.len()];
        (at < end).then(|| (within == 0 && is_zero(&self.bytes[at..end]), end))
    }
}

impl Iterator for Runs<'_> {
    type Item = (bool, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.at;
        let (zeros, mut end) = self.block(start)?;
        while let Some((same, next)) = self.block(end)
            && same == zeros
        {
            end = next;
        }
        self.at = end;
        Some((zeros, start..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Folder, Target};
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use verbatim_proto::WirePath;

    const BLOCK: usize = BLOCK_BYTES as usize;

    fn runs_of(bytes: &[u8], offset: u64) -> Vec<(bool, Range<usize>)> {
        runs(bytes, offset).collect()
    }

    #[test]
    fn blocks_of_zeros_are_told_from_data_at_the_borders_of_blocks() {
        assert_eq!(runs_of(&[], 0), []);
        assert_eq!(runs_of(&[0; 5 * BLOCK], 0), [(true, 0..5 * BLOCK)]);
        assert_eq!(runs_of(&[1; 5 * BLOCK], 0), [(false, 0..5 * BLOCK)]);
        let mut bytes = vec![0; 6 * BLOCK + 9];
        bytes[2 * BLOCK - 1] = 1;
        bytes[2 * BLOCK] = 1;
        let (two, six) = ((false, BLOCK..3 * BLOCK), 6 * BLOCK + 9);
        assert_eq!(runs_of(&bytes, 0), [(true, 0..BLOCK), two.clone(), (true, 3 * BLOCK..six)]);
        // The end of the file is data where any byte of it is.
        bytes[six - 1] = 1;
        let rest = [(true, 3 * BLOCK..6 * BLOCK), (false, 6 * BLOCK..six)];
        assert_eq!(runs_of(&bytes, 0), [&[(true, 0..BLOCK), two][..], &rest].concat());
    }

    #[test]
    fn a_part_of_a_block_at_the_start_is_data() {
        let bytes = [0; 2 * BLOCK];
        let runs = runs_of(&bytes, BLOCK_BYTES - 10);
        assert_eq!(runs, [(false, 0..10), (true, 10..2 * BLOCK)]);
        assert_eq!(runs_of(&bytes[..100], 7), [(false, 0..100)]);
    }

    fn path() -> WirePath {
        WirePath::parse(b"a").expect("plain")
    }

    #[test]
    fn zeros_become_holes_and_replace_what_was_there() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let target = Target::create(&folder, &path(), 1 << 20, 0o644).expect("creates");
        target.write_at(&vec![7; 1 << 20], 0).expect("writes");
        target.write_at(&vec![0; 1 << 20], 0).expect("punches");
        assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
        let copy = dir.path().join("a");
        assert_eq!(fs::read(&copy).expect("reads"), vec![0; 1 << 20]);
        assert_eq!(fs::metadata(&copy).expect("there").blocks(), 0, "a hole takes no blocks");
    }

    #[test]
    fn a_stream_is_as_long_as_it_is_said_to_be_also_where_it_ends_with_zeros() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let target = Target::create(&folder, &path(), 0, 0o644).expect("creates");
        target.write_at(&vec![7; 1 << 18], 0).expect("writes");
        target.write_at(&vec![0; 1 << 18], 1 << 18).expect("punches");
        target.end_at(1 << 19);
        assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
        assert_eq!(fs::metadata(dir.path().join("a")).expect("there").len(), 1 << 19);
    }

    #[test]
    fn a_short_file_is_as_long_as_its_source_also_where_a_peer_calls_it_a_hole() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        for size in [1, 4096, HOLE_BYTES_MIN as u64 - 1, HOLE_BYTES_MIN as u64] {
            let target = Target::create(&folder, &path(), size, 0o644).expect("creates");
            target.zero(Extent::new(0, size), size, |_| Ok(())).expect("zeroes");
            assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
            let copy = fs::read(dir.path().join("a")).expect("reads");
            assert_eq!(copy, vec![0; size as usize]);
        }
    }

    /// Writes garbage and then these bytes to a target of which the source says that it takes so
    /// much room; returns what the copy has, and how much it takes.
    fn copied(base: &str, bytes: &[u8], allocated: u64) -> (Vec<u8>, u64) {
        let dir = tempfile::tempdir_in(base).expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let path = path();
        let size = bytes.len() as u64;
        let info = FileInfo { size, mode: 0o644, mtime_ns: 5, allocated, version: None };
        let target = Target::create(&folder, &path, size, 0o644).expect("creates");
        target.keep_sparse(&info).expect("grows");
        target.write_at(&vec![9; bytes.len()], 0).expect("writes");
        target.write_at(bytes, 0).expect("writes");
        assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
        let copy = dir.path().join("a");
        (fs::read(&copy).expect("reads"), fs::metadata(&copy).expect("there").blocks() * 512)
    }

    #[test]
    fn a_target_of_a_sparse_source_stores_no_block_of_zeros_whatever_was_there() {
        let mut long = vec![0; 64 * BLOCK];
        long[3 * BLOCK..4 * BLOCK].fill(7);
        long[63 * BLOCK + 9] = 7;
        // Shorter than what becomes a hole in other files, and ending with zeros.
        let mut short = vec![0; 3 * BLOCK + 100];
        short[BLOCK] = 7;
        let bases = [std::env::temp_dir(), "/dev/shm".into()];
        for base in bases.iter().filter(|base| base.is_dir()) {
            let base = base.to_str().expect("text");
            // Of garbage at the end a part of a block stays, as zeros.
            for (bytes, blocks) in [(&long, 2), (&short, 2)] {
                let most = (blocks * BLOCK) as u64;
                let (there, takes) = copied(base, bytes, BLOCK as u64);
                assert!(there == *bytes, "{base}: {} other bytes", bytes.len());
                assert!(takes <= most, "{base}: {takes} for {} bytes", bytes.len());
                let all = bytes.len().next_multiple_of(BLOCK) as u64;
                let (there, takes) = copied(base, bytes, all);
                assert!(there == *bytes, "{base}: {} other bytes", bytes.len());
                assert_eq!(takes, all, "{base}: zeros of a source that is not sparse are stored");
            }
        }
    }
}
