//! Hashes ranges of files with pread, a grain at a time, into a buffer that
//! stays in cache. Never through a mapping: a truncated file would be SIGBUS.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Digest, Extent};

/// The digests of the grains of `extent`, in a file of `size` bytes. A file that is shorter by
/// now is `UnexpectedEof`.
pub fn hash_extent(file: &File, size: u64, extent: Extent) -> io::Result<Vec<Digest>> {
    if size == 0 {
        return Ok(vec![Digest::of(b"")]);
    }
    let mut scratch = vec![0; extent.len.min(GRAIN_BYTES) as usize];
    let mut digests = Vec::with_capacity(extent.len.div_ceil(GRAIN_BYTES) as usize);
    let end = extent.offset + extent.len;
    let mut offset = extent.offset;
    while offset < end {
        let grain = &mut scratch[..(end - offset).min(GRAIN_BYTES) as usize];
        file.read_exact_at(grain, offset)?;
        digests.push(Digest::of_grain(offset, size, grain));
        offset += GRAIN_BYTES;
    }
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_proto::RootBuilder;

    #[test]
    fn windows_of_a_file_merge_to_its_root() {
        let bytes: Vec<u8> = (0..3_000_001_u32).map(|i| (i % 253) as u8).collect();
        let file = tempfile::tempfile().expect("file");
        file.write_all_at(&bytes, 0).expect("writes");
        let size = bytes.len() as u64;
        let mut root = RootBuilder::new(size);
        for extent in [Extent::new(0, 1 << 20), Extent::new(1 << 20, size - (1 << 20))] {
            root.insert_run(extent.offset, &hash_extent(&file, size, extent).expect("hashes"));
        }
        assert_eq!(root.finish(), Some(Digest::of(&bytes)));
    }

    #[test]
    fn a_file_that_shrank_is_an_error() {
        let file = tempfile::tempfile().expect("file");
        file.set_len(10).expect("grows");
        let error = hash_extent(&file, 20, Extent::new(0, 20)).expect_err("too short");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
