//! The journal of a cached version: records which blocks are stored and their digests,
//! in the format of a resumed copy. All mounts that use the version append to it. A
//! record is only a claim, checked by hashing; a lost record costs a fetch. The journal
//! names its key, so the journal of another file is rejected. Called by `file` alone.

use super::blocks::{BLOCK_BYTES, block_extent};
use super::{Key, PAGE_BYTES};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use verbatim_files::journal::{self, BOOT_BYTES, Head};
use verbatim_proto::message::FileInfo;
use verbatim_proto::{Digest, Extent};

/// Superseded records up to which the journal is not compacted.
const STALE_MAX: usize = 64;

/// The journal of one version.
pub(super) struct BlockJournal {
    file: File,
    head: Head,
    /// How far it was read.
    read_to: u64,
    /// The number of records.
    count: usize,
}

impl BlockJournal {
    /// Starts a journal in an empty file.
    pub fn create(mut file: File, info: &FileInfo, key: &Key) -> io::Result<Self> {
        let head = Head { stay: key_mark(key), ..Head::now(info, &file) };
        journal::begin(&mut file, &head)?;
        let read_to = file.metadata()?.len();
        Ok(Self { file, head, read_to, count: 0 })
    }

    /// Reads a journal and calls `each` with every block and the offset of its record, in order.
    /// `None` if it is damaged, or belongs to another key.
    pub fn load(file: File, key: &Key, mut each: impl FnMut(u32, u64)) -> io::Result<Option<Self>> {
        let mut count = 0;
        let read = journal::read_placed(&file, |head, extent, _, at| {
            count += 1;
            if let Some(block) = block_of(extent, head.size) {
                each(block, at);
            }
        });
        let is_of_this = |head: &Head| head.stay == key_mark(key);
        let Some((head, good)) = read.filter(|(head, _)| is_of_this(head)) else {
            return Ok(None);
        };
        // Truncates to the last good record; a damaged one would hide all later records.
        if file.metadata()?.len() > good {
            file.set_len(good)?;
        }
        Ok(Some(Self { file, head, read_to: good, count }))
    }

    /// Size, time and version that the journal is for.
    pub fn version(&self) -> Option<(u64, i64, u64)> {
        Some((self.head.size, self.head.mtime_ns, self.head.version?))
    }

    /// Appends the record of a written block; returns by how much the journal grew on disk.
    pub fn append(&self, extent: Extent, digests: &[Digest]) -> io::Result<u64> {
        let before = self.file.metadata()?.len();
        journal::append(&self.file, extent, digests)?;
        let after = before + journal::record_bytes(digests.len()) as u64;
        Ok(after.next_multiple_of(PAGE_BYTES) - before.next_multiple_of(PAGE_BYTES))
    }

    /// The size of the journal on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |found| found.len().next_multiple_of(PAGE_BYTES))
    }

    /// Reads records appended since, by this mount or another.
    pub fn read_new(&mut self, mut each: impl FnMut(u32, u64)) {
        let len = self.file.metadata().map_or(0, |found| found.len());
        while self.read_to < len {
            let size = self.head.size;
            let Some((extent, _, next)) = journal::record_at(&self.file, self.read_to, size) else {
                return;
            };
            if let Some(block) = block_of(extent, size) {
                each(block, self.read_to);
            }
            self.read_to = next;
            self.count += 1;
        }
    }

    /// The digests that the record of a block at this offset holds.
    pub fn digests_at(&self, block: u32, at: u64) -> Option<Vec<Digest>> {
        let (extent, digests, _) = journal::record_at(&self.file, at, self.head.size)?;
        (extent == block_extent(block, self.head.size)).then_some(digests)
    }

    /// Whether superseded records outnumber the stored blocks.
    pub fn needs_compaction(&self, blocks: usize) -> bool {
        self.count > 2 * blocks + STALE_MAX
    }

    /// Rewrites the journal with only the last record of each block, in this order; returns the new
    /// offsets. Needs exclusive use: records that another mount appends meanwhile are lost.
    pub fn compact(
        &mut self,
        path: &Path,
        order: impl Iterator<Item = u32>,
        records: &HashMap<u32, u64>,
    ) -> io::Result<HashMap<u32, u64>> {
        let aside = path.with_extension("journal-new");
        let _ = fs::remove_file(&aside);
        let mut new = OpenOptions::new();
        let mut file = new.read(true).append(true).create_new(true).mode(0o600).open(&aside)?;
        journal::begin(&mut file, &self.head)?;
        let mut found = HashMap::with_capacity(records.len());
        for block in order {
            let Some(at) = records.get(&block) else { continue };
            if let Some(digests) = self.digests_at(block, *at) {
                found.insert(block, file.metadata()?.len());
                journal::append(&file, block_extent(block, self.head.size), &digests)?;
            }
        }
        fs::rename(&aside, path)?;
        (self.read_to, self.count) = (file.metadata()?.len(), found.len());
        self.file = file;
        Ok(found)
    }
}

/// The mark of a key. The journal of a copy has its boot and its mount there; a cache never trusts
/// a record without hashing, so it needs neither.
fn key_mark(key: &Key) -> [u8; BOOT_BYTES] {
    let mut place = [0; BOOT_BYTES];
    place[..KEY_MARK.len()].copy_from_slice(&KEY_MARK);
    place[KEY_MARK.len()..][..key.len()].copy_from_slice(key);
    place
}

/// The prefix of a key in that field.
const KEY_MARK: [u8; 8] = *b"CACHEKEY";

/// The block of an extent, if the extent is exactly one block.
fn block_of(extent: Extent, size: u64) -> Option<u32> {
    let block = u32::try_from(extent.offset / BLOCK_BYTES).ok()?;
    let starts = extent.offset < size && extent.offset.is_multiple_of(BLOCK_BYTES);
    (starts && extent == block_extent(block, size)).then_some(block)
}
