//! The units and bounds of the protocol, each with its name. Changing one that
//! crosses the wire changes the protocol version.

/// What digests are computed and cached for: 256 KiB.
pub const GRAIN_BYTES: u64 = 256 << 10;

/// What file systems store as a whole, as a rule: shorter runs of zeros save nothing.
pub const BLOCK_BYTES: u64 = 4096;

/// The default unit of transfer, retry and verification: 1 MiB.
pub const CHUNK_BYTES_DEFAULT: u32 = 1 << 20;

/// The smallest chunk: one grain.
pub const CHUNK_BYTES_MIN: u32 = GRAIN_BYTES as u32;

/// The largest chunk a client may ask for: 16 MiB.
pub const CHUNK_BYTES_MAX: u32 = 16 << 20;

/// The range of a file registered for one client at a time: 16 MiB.
pub const WINDOW_BYTES: u64 = 16 << 20;

/// Windows one client may have leased or in preparation.
pub const WINDOWS_MAX: usize = 16;

/// Files up to this size travel packed, many in one window.
pub const PACKED_FILE_BYTES_MAX: u64 = GRAIN_BYTES;

/// How many bytes of packed files one window holds.
pub const PACK_BYTES_MAX: u32 = 1 << 20;

/// How many packed files one window, or one written chunk, holds.
pub const PACK_FILES_MAX: usize = 512;

/// Files one client may have open at a time, for reading or for writing.
pub const OPEN_FILES_MAX: usize = 2048;

/// Separate ranges of one file that are there already, or missing: an honest peer reads and
/// writes in order.
pub const RANGES_MAX: usize = 4096;

/// Files named in one message.
pub const BATCH_FILES_MAX: usize = 256;

/// Paths looked at in one message: with the longest links the answer still fits a frame.
pub const LOOK_PATHS_MAX: usize = 128;

/// Entries in one page of a scan.
pub const PAGE_ENTRIES_MAX: usize = 1024;

/// Changes of a watched folder told in one message.
pub const CHANGES_MAX: usize = 512;

/// Links one client may have.
pub const LINKS_MAX: usize = 64;

/// Upload slots granted on each link.
pub const SLOTS_PER_LINK: u16 = 4;

/// Longer than any file that is copied: what stands for the size of one that is not known yet.
pub const STREAM_BYTES_MAX: u64 = 1 << 62;

/// The longest file. A source that is longer is refused before it is opened.
pub const FILE_BYTES_MAX: u64 = STREAM_BYTES_MAX - 1;

/// How far behind the last byte that was taken a file that is read in order may be fetched.
pub const ORDERED_AHEAD_BYTES: u64 = 16 << 20;

/// Holes named in one message.
pub const HOLES_MAX: usize = 256;

/// Lists of holes a writing client may have unanswered.
pub const HOLE_LISTS_MAX: usize = 16;

/// Steps of zeroing, or of hashing zeros, that one machine has under way.
pub const ZEROING_MAX: usize = 4;

/// Ranges that one client may have offered and not heard of.
pub const OFFERS_MAX: usize = 4;

/// The largest control frame, length prefix not counted: 1 MiB.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// The largest control frame of a client that is not welcomed yet: 4 KiB. A greeting takes a
/// tenth of it, and nobody knows yet who sends it.
pub const GREETING_BYTES_MAX: usize = 4 << 10;

/// The longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 32 << 10;

/// The longest name of one folder entry, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// What the extended attributes of one file may take, names and values together: 64 KiB. A
/// message holds several such files.
pub const XATTR_BYTES_MAX: usize = 64 << 10;

/// How often a server that is at work says so.
pub const WORKING_SECONDS: u64 = 1;

/// How often one chunk is fetched or sent before its file fails as a mismatch.
pub const CHUNK_ATTEMPTS_MAX: u8 = 4;

/// After how many bad fetches of a chunk the server is asked to open the file anew.
pub const CHUNK_ATTEMPTS_BEFORE_REFRESH: u8 = 2;

/// How often a file whose source changed under the copy is begun again.
pub const FILE_ATTEMPTS_MAX: u8 = 3;

/// An identity younger than this may hide a later write: it is neither cached nor trusted.
pub const RACY_NS: i128 = 2_000_000_000;

/// How many links a client makes that was not told. One keeps a processor busy on either side; a
/// server has other clients too.
pub const fn links_for(processors: usize) -> u16 {
    match processors {
        ..8 => 4,
        8..16 => 8,
        _ => 16,
    }
}

/// How many threads of a server move data that was not told. Over TCP a thread that stores a chunk
/// lets its other links wait, so there are some more than processors where those are few.
pub fn workers_for(processors: usize) -> usize {
    processors.clamp(4, 8)
}

/// How many of them have links of a device: what it carries costs a thread only the hashing and
/// the storing, and more threads than processors would wait for each other.
pub fn device_workers_for(processors: usize) -> usize {
    processors.clamp(2, 8)
}

/// How many chunks of a link a worker answers for together while more of it are on their way:
/// whoever is woken for one of them does the other at little more cost.
pub const ANSWERS_TOGETHER: usize = 2;

/// How many queue pairs a client makes that has so many processors: no more than it has threads
/// to serve them, and two, so that one is moving while the other is looked after.
pub fn qps_for(processors: usize) -> u16 {
    let processors = u16::try_from(processors).unwrap_or(u16::MAX);
    links_for(processors.into()).min(processors).max(2)
}

/// The chunk size over so many queue pairs: where they are few, longer chunks take no more memory
/// than four queue pairs do, and wake those who move them less often.
pub const fn chunk_bytes_for(qps: u16) -> u32 {
    match qps {
        ..=2 => 2 * CHUNK_BYTES_DEFAULT,
        _ => CHUNK_BYTES_DEFAULT,
    }
}

/// Returns whether `bytes` may be used as a chunk size.
pub fn is_chunk_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&bytes)
}

/// How many grains a file of `size` bytes has; an empty file has one.
pub fn grain_count(size: u64) -> u64 {
    size.div_ceil(GRAIN_BYTES).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_processors_have_few_queue_pairs_and_long_chunks() {
        let sizes = |processors| (qps_for(processors), chunk_bytes_for(qps_for(processors)) >> 20);
        assert_eq!([sizes(0), sizes(1), sizes(2), sizes(3)], [(2, 2), (2, 2), (2, 2), (3, 1)]);
        assert_eq!([sizes(4), sizes(7), sizes(8), sizes(64)], [(4, 1), (4, 1), (8, 1), (16, 1)]);
        assert_eq!(sizes(1 << 20), (16, 1));
        for qps in 1..=LINKS_MAX as u16 {
            assert!(is_chunk_size(chunk_bytes_for(qps)), "{qps}");
        }
    }
}
