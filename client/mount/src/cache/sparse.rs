//! Sparse writes of blocks: pages with data are written, pages of zeros stay or become
//! holes. So a sparse file takes no more space than at its source. Knows neither
//! journals nor versions. Called by `Cache::store` and `CacheFile::store`.

use super::PAGE_BYTES;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// A page of zeros.
static ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// A verified block, split into runs of data pages and zero pages.
pub(super) struct PageRuns<'a> {
    bytes: &'a [u8],
    /// The range of each run, and whether it is zeros.
    runs: Vec<(Range<usize>, bool)>,
}

impl<'a> PageRuns<'a> {
    /// Scans a block. For a page with data the first bytes usually decide.
    pub fn scan(bytes: &'a [u8]) -> Self {
        let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
        for (start, page) in (0..).step_by(ZEROS.len()).zip(bytes.chunks(ZEROS.len())) {
            let (end, is_zero) = (start + page.len(), *page == ZEROS[..page.len()]);
            match runs.last_mut().filter(|run| run.1 == is_zero) {
                Some((run, _)) => run.end = end,
                None => runs.push((start..end, is_zero)),
            }
        }
        Self { bytes, runs }
    }

    /// The length of the block.
    pub fn byte_count(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The disk space of its data pages.
    pub fn data_bytes(&self) -> u64 {
        let data = self.runs.iter().filter(|(_, is_zero)| !is_zero);
        data.map(|(run, _)| (run.len() as u64).next_multiple_of(PAGE_BYTES)).sum()
    }

    /// Writes the block. Returns the bytes of zeros that were written because the file system
    /// punches no holes. Other mounts may read it meanwhile: verified bytes do not change.
    pub fn write(&self, file: &File, offset: u64) -> io::Result<u64> {
        let has_zeros = self.runs.iter().any(|(_, is_zero)| *is_zero);
        // Only a damaged block, or one that another mount stores too, has data there.
        let is_all_hole = has_zeros && is_hole(file, offset, self.byte_count());
        let mut zero_bytes = 0;
        for (run, is_zero) in &self.runs {
            let (at, bytes) = (offset + run.start as u64, &self.bytes[run.clone()]);
            if *is_zero && (is_all_hole || punch(file, at, bytes.len() as u64)) {
                continue;
            }
            file.write_all_at(bytes, at)?;
            zero_bytes += if *is_zero { bytes.len() as u64 } else { 0 };
        }
        Ok(zero_bytes)
    }
}

/// Whether a range is a hole; if the file system cannot tell, it is data.
fn is_hole(file: &File, offset: u64, len: u64) -> bool {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data >= offset + len,
        Err(error) => error == Errno::NXIO,
    }
}

fn punch(file: &File, offset: u64, len: u64) -> bool {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, hole, offset, len).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const PAGE: usize = PAGE_BYTES as usize;

    /// A block whose pages are data where `data` says so, with a short page at its end.
    fn block(data: &[bool], tail: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = data.iter().flat_map(|it| [u8::from(*it) * 7; PAGE]).collect();
        bytes.extend(vec![9; tail]);
        bytes
    }

    #[test]
    fn page_runs_cover_a_block_and_one_nonzero_byte_makes_a_data_page() {
        let mut bytes = block(&[true, false, false, true, false], 5);
        bytes[2 * PAGE + 17] = 1;
        let pages = PageRuns::scan(&bytes);
        let expected = [
            (0..PAGE, false),
            (PAGE..2 * PAGE, true),
            (2 * PAGE..4 * PAGE, false),
            (4 * PAGE..5 * PAGE, true),
            (5 * PAGE..5 * PAGE + 5, false),
        ];
        assert_eq!(pages.runs, expected);
        assert_eq!((pages.data_bytes(), pages.byte_count()), (4 * PAGE_BYTES, bytes.len() as u64));
        assert_eq!(
            (PageRuns::scan(&[]).data_bytes(), PageRuns::scan(&[0; 3]).data_bytes()),
            (0, 0)
        );
        assert_eq!(PageRuns::scan(&[0, 1, 0]).data_bytes(), PAGE_BYTES);
    }

    #[test]
    fn pages_of_zeros_become_holes_over_old_data() {
        let offset = 3 * PAGE_BYTES;
        let bytes = block(&[false, true, false, false], 5);
        for is_damaged in [false, true] {
            let file = tempfile::tempfile().expect("file");
            file.set_len(9 * PAGE_BYTES).expect("grows");
            if is_damaged {
                file.write_all_at(&[1; 9 * PAGE], 0).expect("writes");
            }
            let before = file.metadata().expect("is there").blocks();
            let zero_bytes = PageRuns::scan(&bytes).write(&file, offset).expect("writes");
            let mut read = vec![1; 9 * PAGE];
            file.read_exact_at(&mut read, 0).expect("reads");
            let (head, rest) = read.split_at(offset as usize);
            let (written, tail) = rest.split_at(bytes.len());
            let around = u8::from(is_damaged);
            assert!(written == bytes && head.iter().chain(tail).all(|byte| *byte == around));
            let after = file.metadata().expect("is there").blocks();
            let pages = |count: u64| count * PAGE_BYTES / 512;
            match is_damaged {
                _ if zero_bytes > 0 => assert_eq!(zero_bytes, 3 * PAGE_BYTES, "no holes here"),
                true => assert_eq!(after, before - pages(3)),
                false => assert_eq!(after, before + pages(2)),
            }
        }
    }
}
