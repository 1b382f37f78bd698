//! Tests of the cache alone: what it stores, finds again, and never returns. No network
//! and no mount.

use super::*;
use std::os::unix::fs::FileExt;

const SIZE: u64 = 3 * BLOCK_BYTES + 77;

/// The disk space of a small journal.
const NOTES_BYTES: u64 = 4096;

fn info(size: u64) -> FileInfo {
    FileInfo { size, mode: 0o644, mtime_ns: 5, allocated: size, version: Some(9) }
}

impl Cache {
    fn create_version(
        &self,
        key: &Key,
        info: &FileInfo,
        version: u64,
    ) -> io::Result<Arc<CacheFile>> {
        self.create(key, info, version, |_| ()).map(|made| made.0)
    }
}

fn content(block: u32, size: u64) -> Vec<u8> {
    let len = block_extent(block, size).len;
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(block) as u8).collect()
}

fn store_block(cache: &Cache, file: &CacheFile, block: u32) -> io::Result<()> {
    let bytes = content(block, file.size);
    let extent = block_extent(block, file.size);
    let digests = Digest::of_grains(extent.offset, file.size, &bytes);
    cache.store(file, block, &bytes, &digests)
}

/// Stores a block that others can be evicted for. After a scan without a result the cache does not
/// scan again at once.
fn store_when_room(cache: &Cache, file: &CacheFile, block: u32) {
    let begin = Instant::now();
    while let Err(error) = store_block(cache, file, block) {
        assert!(begin.elapsed() < Duration::from_secs(10), "no room is made: {error}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn complete_file(cache: &Cache, key: u8, size: u64) -> Arc<CacheFile> {
    let file = cache.create_version(&[key; 16], &info(size), 9).expect("creates");
    (0..size.div_ceil(BLOCK_BYTES) as u32).for_each(|it| store_when_room(cache, &file, it));
    file
}

#[test]
fn stored_blocks_are_found_again_and_verified_before_they_are_read() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let file = cache.create_version(&[1; 16], &info(SIZE), 9).expect("creates");
    store_block(&cache, &file, 1).expect("keeps");
    store_block(&cache, &file, 3).expect("keeps");
    assert!(file.read(BLOCK_BYTES - 1, 2).is_none(), "half of it is not there");
    assert_eq!(file.read(3 * BLOCK_BYTES, 77).expect("there").expect("reads"), content(3, SIZE));
    drop((file, cache));
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let file = cache.find(&[1; 16]).expect("is there");
    assert_eq!((file.version, file.size, file.mtime_ns), (9, SIZE, 5));
    assert!(file.read(BLOCK_BYTES, 1).is_none(), "it is only claimed");
    assert_eq!(file.absent(0..=3), [0, 2]);
    let bytes = file.read(BLOCK_BYTES, BLOCK_BYTES as usize).expect("there").expect("reads");
    assert_eq!(bytes, content(1, SIZE));
    assert!(cache.find(&[2; 16]).is_none());
}

#[test]
fn a_damaged_block_is_fetched_and_never_read() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    drop((complete_file(&cache, 1, SIZE), cache));
    let data = dir.path().join("01").join(format!("{}.data", "01".repeat(16)));
    let file = OpenOptions::new().read(true).write(true).open(&data).expect("opens");
    // Flips a bit in the second block and cuts off the last.
    let mut byte = [0];
    file.read_exact_at(&mut byte, BLOCK_BYTES + 12_345).expect("reads");
    file.write_all_at(&[byte[0] ^ 4], BLOCK_BYTES + 12_345).expect("flips");
    file.set_len(3 * BLOCK_BYTES).expect("cuts");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let file = cache.find(&[1; 16]).expect("is there");
    assert!(!file.is_complete());
    assert_eq!(file.absent(0..=3), [1, 3]);
    store_block(&cache, &file, 1).expect("keeps");
    store_block(&cache, &file, 3).expect("keeps");
    assert!(file.is_complete() && file.pin());
}

#[test]
fn a_damaged_journal_claims_less() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    drop((complete_file(&cache, 1, SIZE), cache));
    let journal = dir.path().join("01").join(format!("{}.journal", "01".repeat(16)));
    let len = fs::metadata(&journal).expect("is there").len();
    OpenOptions::new().write(true).open(&journal).expect("opens").set_len(len - 1).expect("cuts");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let file = cache.find(&[1; 16]).expect("is there");
    assert_eq!(file.absent(0..=3), [3]);
    drop((file, cache));
    fs::write(&journal, b"no journal").expect("writes");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    assert!(cache.find(&[1; 16]).is_none());
    assert!(cache.create_version(&[1; 16], &info(SIZE), 9).is_ok(), "it is begun anew");
}

#[test]
fn a_file_over_the_size_limit_is_refused_before_its_blocks_are_allocated() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    for size in [FILE_BYTES_MAX + 1, 1 << 60, u64::MAX] {
        let refused =
            cache.create_version(&[1; 16], &info(size), 9).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::FileTooLarge));
    }
    assert_eq!(cache.find(&[1; 16]).map(|file| file.size), None, "nothing of it is left");
    // A journal with such a size is not believed either.
    drop(complete_file(&cache, 2, SIZE));
    let journal = dir.path().join("02").join(format!("{}.journal", "02".repeat(16)));
    let file = OpenOptions::new().write(true).open(journal).expect("opens");
    block_journal::BlockJournal::create(file, &info(1 << 60), &[2; 16]).expect("writes");
    assert!(cache.find(&[2; 16]).is_none());
    assert!(cache.create_version(&[2; 16], &info(SIZE), 9).is_ok(), "it is begun anew");
}

#[test]
fn a_version_that_cannot_be_opened_now_is_not_removed() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    drop((complete_file(&cache, 1, 12 * BLOCK_BYTES), cache));
    let data = dir.path().join("01").join(format!("{}.data", "01".repeat(16)));
    let (journal, aside) = (data.with_extension("journal"), dir.path().join("aside"));
    // Running out of descriptors would disturb other tests: a folder cannot be opened as a file
    // either.
    fs::rename(&journal, &aside).expect("renames");
    fs::create_dir(&journal).expect("makes");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let key = [1; 16];
    assert!(cache.find(&key).is_none());
    let file = cache.create_version(&key, &info(12 * BLOCK_BYTES), 9).expect("readers get it");
    assert!(!file.is_storable() && data.exists(), "it has no place, and nothing went for it");
    drop(file);
    assert!(!cache.evict_oldest(BLOCK_BYTES) && data.exists(), "nor for want of room");
    fs::remove_dir(&journal).expect("removes");
    fs::rename(&aside, &journal).expect("renames");
    let file = cache.find(&key).expect("is there");
    assert!(file.is_complete(), "it was good all the time");
}

#[test]
fn eviction_takes_the_least_recently_used_version_and_never_one_in_use() {
    let dir = tempfile::tempdir().expect("folder");
    let four = 4 * (BLOCK_BYTES + NOTES_BYTES);
    let cache = Cache::open(dir.path(), four).expect("opens");
    let in_use = complete_file(&cache, 1, BLOCK_BYTES);
    drop(complete_file(&cache, 2, BLOCK_BYTES));
    drop(complete_file(&cache, 3, BLOCK_BYTES));
    drop(complete_file(&cache, 4, BLOCK_BYTES));
    cache.find(&[2; 16]).expect("is there");
    drop(complete_file(&cache, 5, BLOCK_BYTES));
    assert!(cache.find(&[3; 16]).is_none(), "it was used longest ago");
    assert!(cache.find(&[2; 16]).is_some() && cache.find(&[4; 16]).is_some());
    assert_eq!(in_use.read(0, 5).expect("there").expect("reads"), content(0, BLOCK_BYTES)[..5]);
    store_block(&cache, &in_use, 0).expect("is there");
    let (bytes, most, gone) = cache.usage();
    assert_eq!((bytes, most, gone), (four, four, 1));
}

#[test]
fn a_file_larger_than_the_cache_loses_its_oldest_blocks_unless_it_is_pinned() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 2 * BLOCK_BYTES + NOTES_BYTES).expect("opens");
    let file = cache.create_version(&[1; 16], &info(SIZE), 9).expect("creates");
    for block in 0..3 {
        store_block(&cache, &file, block).expect("keeps");
    }
    assert_eq!(file.absent(0..=3), [0, 3]);
    assert!(file.read(0, 1).is_none(), "a hole is no content");
    assert_eq!(file.read(BLOCK_BYTES, 3).expect("there").expect("reads"), content(1, SIZE)[..3]);
    store_block(&cache, &file, 0).expect("keeps");
    assert_eq!(file.read(0, 9).expect("there").expect("reads"), content(0, SIZE)[..9]);
    let small = cache.create_version(&[2; 16], &info(0), 9).expect("creates");
    assert!(small.pin(), "an empty file is whole");
    drop((file, small));
    let backed = complete_file(&cache, 3, 2 * BLOCK_BYTES);
    assert!(backed.pin());
    let other = cache.create_version(&[4; 16], &info(BLOCK_BYTES), 9).expect("creates");
    assert!(store_block(&cache, &other, 0).is_err(), "there is no room, and none is taken");
    assert_eq!(backed.punch(), None);
    backed.unpin();
    assert_eq!(backed.punch(), Some(BLOCK_BYTES));
    assert!(!backed.pin());
}

#[test]
fn opening_a_file_of_an_earlier_mount_does_not_wait_for_its_hash() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let file = complete_file(&cache, 1, SIZE);
    assert!(file.pin_if_verified(), "it came in this run");
    file.unpin();
    drop((file, cache));
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let file = cache.find(&[1; 16]).expect("is there");
    assert!(!file.pin_if_verified() && (0..=3).all(|block| !file.has(block)), "nothing was hashed");
    assert_eq!(file.punch(), Some(BLOCK_BYTES), "nor is it held");
    store_block(&cache, &file, 0).expect("keeps");
    assert!(file.absent(0..=3).is_empty() && file.pin_if_verified(), "it was read meanwhile");
    assert_eq!(file.punch(), None);
}

#[test]
fn readers_of_a_replaced_version_keep_it() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let old = complete_file(&cache, 1, BLOCK_BYTES);
    let new = cache.create_version(&[1; 16], &info(BLOCK_BYTES), 10).expect("creates");
    assert_eq!(new.absent(0..=0), [0], "nothing of the old one is in the new one");
    assert_eq!(old.read(0, 5).expect("there").expect("reads"), content(0, BLOCK_BYTES)[..5]);
    assert_eq!(cache.find(&[1; 16]).expect("is there").version, 10);
    store_block(&cache, &old, 0).expect("is there");
    assert_eq!(cache.usage().0, NOTES_BYTES, "what was replaced does not count");
}

#[test]
fn two_mounts_share_blocks_and_neither_evicts_a_version_in_use_by_the_other() {
    let dir = tempfile::tempdir().expect("folder");
    let open = || Cache::open(dir.path(), 4 * BLOCK_BYTES + 2 * NOTES_BYTES).expect("opens");
    let (one, two) = (open(), open());
    let mine = one.create_version(&[1; 16], &info(SIZE), 9).expect("creates");
    let theirs = two.find(&[1; 16]).expect("is there");
    assert_eq!(theirs.absent(0..=3), [0, 1, 2, 3]);
    store_block(&one, &mine, 1).expect("keeps");
    store_block(&one, &mine, 2).expect("keeps");
    assert_eq!(theirs.absent(0..=3), [0, 3], "it need not be brought twice");
    assert_eq!(theirs.read(BLOCK_BYTES, 9).expect("there").expect("reads"), content(1, SIZE)[..9]);
    // Both mounts create the same version: it is one.
    let again = two.create_version(&[1; 16], &info(SIZE), 9).expect("is there");
    assert!(again.absent(1..=2).is_empty());
    let both = 2 * BLOCK_BYTES + NOTES_BYTES;
    assert_eq!((one.usage().0, two.usage().0), (both, both));
    // The cache fills up: versions in use by the other mount stay, and none is punched.
    let other = complete_file(&two, 2, 2 * BLOCK_BYTES);
    assert!(store_block(&two, &other, 0).is_ok());
    let more = two.create_version(&[3; 16], &info(BLOCK_BYTES), 9).expect("creates");
    assert!(store_block(&two, &more, 0).is_err(), "all is in use");
    assert!(store_block(&one, &mine, 0).is_err(), "nor is anything punched while two are in");
    for file in [&mine, &theirs] {
        let bytes = file.read(2 * BLOCK_BYTES, 7).expect("there").expect("reads");
        assert_eq!(bytes, content(2, SIZE)[..7]);
    }
    drop(other);
    store_when_room(&two, &more, 0);
    assert!(one.find(&[2; 16]).is_none());
    drop((two, theirs, again, more));
    drop(mine);
    assert_eq!(one.find(&[1; 16]).expect("is there").absent(0..=3), [0, 3]);
}

#[test]
fn a_ninth_mount_is_refused_and_the_byte_count_outlives_the_mounts() {
    let dir = tempfile::tempdir().expect("folder");
    let eight: Vec<Cache> =
        (0..MOUNTS_MAX).map(|_| Cache::open(dir.path(), 1 << 30).expect("opens")).collect();
    assert!(Cache::open(dir.path(), 1 << 30).is_err());
    drop(complete_file(&eight[3], 1, BLOCK_BYTES + 5));
    drop(eight);
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    assert_eq!(cache.usage().0, BLOCK_BYTES + 4096 + NOTES_BYTES, "as the disk has it");
    // After another boot a scan counts it.
    drop(cache);
    fs::remove_file(dir.path().join("bytes")).expect("removes");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    cache.count();
    assert_eq!(cache.usage().0, BLOCK_BYTES + 4096 + NOTES_BYTES);
}

#[test]
fn blocks_of_a_new_cache_are_counted_once_even_by_a_late_scan() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    drop(complete_file(&cache, 1, BLOCK_BYTES + 5));
    cache.count();
    assert_eq!(cache.usage().0, BLOCK_BYTES + 4096 + NOTES_BYTES);
}

#[test]
fn a_mount_that_fails_before_counting_leaves_the_count_to_the_next_mount() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    drop((complete_file(&cache, 1, BLOCK_BYTES + 5), cache));
    // The count is of another boot.
    let total = OpenOptions::new().write(true).open(dir.path().join("bytes")).expect("opens");
    total.write_all_at(b"another boot", 0).expect("writes");
    drop(Cache::open(dir.path(), 1 << 30).expect("opens"));
    let (one, two) = (Cache::open(dir.path(), 1 << 30), Cache::open(dir.path(), 1 << 30));
    let (one, two) = (one.expect("opens"), two.expect("opens"));
    assert_eq!(one.usage().0, 0, "nobody has counted");
    // Both scan, and the bytes are counted once.
    one.count();
    two.count();
    assert_eq!(
        (one.usage().0, two.usage().0),
        (BLOCK_BYTES + 4096 + NOTES_BYTES, BLOCK_BYTES + 4096 + NOTES_BYTES)
    );
    drop((one, two));
    assert_eq!(
        Cache::open(dir.path(), 1 << 30).expect("opens").usage().0,
        BLOCK_BYTES + 4096 + NOTES_BYTES
    );
}

#[test]
fn a_journal_with_many_superseded_records_is_compacted() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let file = cache.create_version(&[1; 16], &info(2 * BLOCK_BYTES), 9).expect("creates");
    for _ in 0..100 {
        store_block(&cache, &file, 0).expect("keeps");
        store_block(&cache, &file, 1).expect("keeps");
        assert_eq!([file.punch(), file.punch()], [Some(BLOCK_BYTES); 2]);
    }
    store_block(&cache, &file, 1).expect("keeps");
    drop(file);
    let journal = dir.path().join("01").join(format!("{}.journal", "01".repeat(16)));
    let len = || fs::metadata(&journal).expect("is there").len();
    let before = len();
    let other = Cache::open(dir.path(), 1 << 30).expect("opens");
    assert_eq!(cache.find(&[1; 16]).expect("is there").absent(0..=1), [0]);
    assert_eq!(len(), before, "another mount might append to the old one");
    drop(other);
    let used = cache.usage().0;
    let file = cache.find(&[1; 16]).expect("is there");
    assert!(len() < before / 50, "{} of {before}", len());
    assert_eq!(used - cache.usage().0, before.next_multiple_of(NOTES_BYTES) - NOTES_BYTES);
    assert_eq!(file.absent(0..=1), [0]);
    store_block(&cache, &file, 0).expect("keeps");
    drop(file);
    assert!(cache.find(&[1; 16]).expect("is there").is_complete());
}

#[test]
fn eviction_frees_blocks_on_disk_and_ignores_old_journal_records() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 64 * BLOCK_BYTES).expect("opens");
    let large = 12 * BLOCK_BYTES;
    drop(complete_file(&cache, 1, large));
    let data = dir.path().join("01").join(format!("{}.data", "01".repeat(16)));
    let journal = data.with_extension("journal");
    let of = |path: &Path| fs::metadata(path).map_or(0, |found| found.blocks() * 512);
    let taken = || of(&data) + of(&journal);
    let mut before = taken();
    // Each round frees something until all is gone; superseded records stay.
    while cache.evict_oldest(BLOCK_BYTES) {
        assert!(taken() < before || before == 0, "nothing went");
        before = taken();
        assert_eq!(cache.usage().0, before, "the count is what the disk has");
    }
    assert_eq!(cache.usage().0, 0);
}

#[test]
fn all_files_of_the_cache_count_and_stale_temporary_files_are_removed() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let taken = || {
        let parts = fs::read_dir(dir.path()).expect("lists").flatten();
        let parts = parts.map(|it| it.path()).filter(|it| it.is_dir());
        let files = parts.flat_map(|it| fs::read_dir(it).expect("lists")).flatten();
        files.map(|it| it.metadata().expect("is there").blocks() * 512).sum::<u64>()
    };
    (0..20).for_each(|key| drop(complete_file(&cache, key, 5)));
    drop(complete_file(&cache, 20, 30 * BLOCK_BYTES));
    cache.store_names(&[21; 16], b"names").expect("keeps");
    assert_eq!(cache.usage().0, taken(), "notes count as they come");
    let large = 30 * BLOCK_BYTES + 2 * NOTES_BYTES;
    assert_eq!(taken(), 20 * (4096 + NOTES_BYTES) + large + 4096, "those of a large one grow");
    // Temporary files of dead processes, and one of a live process.
    let part = dir.path().join("01");
    let aside = |kind: &str| part.join(format!("{}.{kind}", "01".repeat(16)));
    for kind in ["names-1", "journal-new", "names-2"] {
        fs::write(aside(kind), b"x").expect("writes");
    }
    let old = std::time::SystemTime::now() - Duration::from_secs(3600);
    for kind in ["names-1", "journal-new"] {
        let file = OpenOptions::new().write(true).open(aside(kind)).expect("opens");
        file.set_modified(old).expect("sets");
    }
    while cache.evict_oldest(0) {}
    let there = ["names-1", "journal-new", "names-2"].map(|kind| aside(kind).exists());
    assert_eq!(there, [false, false, true]);
    assert_eq!((cache.usage().0, taken()), (4096, 4096), "all the rest is gone");
}

#[test]
fn a_verified_version_is_not_hashed_again_unless_its_file_was_touched() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let file = complete_file(&cache, 1, SIZE);
    cache.touch(&file);
    drop(file);
    let file = cache.find(&[1; 16]).expect("is there");
    assert!((0..=3).all(|block| file.has(block)), "it is only claimed");
    cache.touch(&file);
    drop(file);
    // Another mount punches it, and its journal stays.
    let data = dir.path().join("01").join(format!("{}.data", "01".repeat(16)));
    let other = OpenOptions::new().read(true).write(true).open(&data).expect("opens");
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&other, hole, BLOCK_BYTES, BLOCK_BYTES).expect("punches");
    let file = cache.find(&[1; 16]).expect("is there");
    assert!((0..=3).all(|block| !file.has(block)), "it was touched");
    assert_eq!(file.absent(0..=3), [1]);
    cache.touch(&file);
    drop(file);
    let file = cache.find(&[1; 16]).expect("is there");
    assert!(!file.has(0), "not all of it is verified, and nothing is remembered");
}

#[test]
fn data_beyond_the_size_of_the_version_is_truncated_unless_another_mount_uses_it() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let used = complete_file(&cache, 1, SIZE);
    let data = dir.path().join("01").join(format!("{}.data", "01".repeat(16)));
    let long = |by: u64| {
        let file = OpenOptions::new().append(true).open(&data).expect("opens");
        io::Write::write_all(&mut &file, &vec![7; by as usize]).expect("appends");
    };
    long(5);
    let other = Cache::open(dir.path(), 1 << 30).expect("opens");
    assert!(other.find(&[1; 16]).is_none(), "it is not cut under its user, nor is it used");
    drop(used);
    let file = other.find(&[1; 16]).expect("is there");
    assert!(file.is_complete() && file.pin(), "all of it is good");
    assert_eq!(file.data().metadata().expect("is there").len(), SIZE, "the kernel reads to there");
    drop(file);
    drop(complete_file(&cache, 2, 0));
    let empty = dir.path().join("02").join(format!("{}.data", "02".repeat(16)));
    fs::write(&empty, b"a tail").expect("writes");
    assert!(cache.find(&[2; 16]).expect("is there").pin_if_verified());
    assert_eq!(fs::metadata(&empty).expect("is there").len(), 0);
}

#[test]
fn files_stored_under_one_key_are_not_found_under_another() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    (1..=2).for_each(|key| drop(complete_file(&cache, key, SIZE)));
    (1..=2).for_each(|key| cache.store_names(&[key; 16], &[key; 99]).expect("keeps"));
    (1..=2).for_each(|key| cache.store_source_fact("root", &[key; 16], &[key]).expect("keeps"));
    let of = |key: &str| dir.path().join(key).join(key.repeat(16));
    let swap = |one: &Path, other: &Path| {
        let aside = dir.path().join("aside");
        fs::rename(one, &aside).expect("renames");
        fs::rename(other, one).expect("renames");
        fs::rename(&aside, other).expect("renames");
    };
    for kind in ["data", "journal", "names"] {
        swap(&of("01").with_extension(kind), &of("02").with_extension(kind));
    }
    let beside = |key: &str| dir.path().join(format!("root-{}", key.repeat(16)));
    swap(&beside("01"), &beside("02"));
    for key in [[1; 16], [2; 16]] {
        assert!(cache.find(&key).is_none());
        assert_eq!((cache.load_names(&key), cache.load_source_fact("root", &key)), (None, None));
    }
    // Storing again replaces damaged names.
    cache.store_names(&[1; 16], &[1; 99]).expect("keeps");
    let names = of("01").with_extension("names");
    let mut bytes = fs::read(&names).expect("reads");
    *bytes.last_mut().expect("there are some") ^= 1;
    fs::write(&names, bytes).expect("writes");
    assert_eq!(cache.load_names(&[1; 16]), None);
    cache.store_names(&[1; 16], &[1; 99]).expect("keeps");
    assert_eq!(cache.load_names(&[1; 16]), Some(vec![1; 99]));
}

/// Stores a block of zeros, with one data page in its middle if `data`.
fn store_sparse(cache: &Cache, file: &CacheFile, block: u32, data: bool) -> Vec<u8> {
    let extent = block_extent(block, file.size);
    let mut bytes = vec![0; extent.len as usize];
    if data {
        bytes[(5 * PAGE_BYTES) as usize] = 1;
    }
    let digests = Digest::of_grains(extent.offset, file.size, &bytes);
    cache.store(file, block, &bytes, &digests).expect("keeps");
    bytes
}

#[test]
fn zero_pages_are_holes_that_take_no_space_and_are_found_again() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let file = cache.create_version(&[1; 16], &info(SIZE), 9).expect("creates");
    let kept: Vec<Vec<u8>> =
        (0..=3).map(|block| store_sparse(&cache, &file, block, block == 1)).collect();
    assert_eq!(cache.usage().0, PAGE_BYTES + NOTES_BYTES, "one page has data");
    assert_eq!(file.data().metadata().expect("is there").blocks() * 512, PAGE_BYTES);
    assert!(file.pin_if_verified(), "the kernel may read it");
    drop((file, cache));
    fs::remove_file(dir.path().join("bytes")).expect("removes");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    cache.count();
    assert_eq!(cache.usage().0, PAGE_BYTES + NOTES_BYTES, "as the disk has it");
    let file = cache.find(&[1; 16]).expect("is there");
    assert!(file.absent(0..=3).is_empty());
    for (block, bytes) in (0..).zip(kept) {
        let extent = block_extent(block, SIZE);
        assert!(file.read(extent.offset, bytes.len()).expect("there").expect("reads") == bytes);
    }
    assert_eq!(file.punch(), Some(0), "a hole frees nothing");
}

#[test]
fn storing_zeros_over_damaged_bytes_punches_the_hole_again() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let file = cache.create_version(&[1; 16], &info(SIZE), 9).expect("creates");
    (0..=3).for_each(|block| drop(store_sparse(&cache, &file, block, false)));
    drop((file, cache));
    let data = dir.path().join("01").join(format!("{}.data", "01".repeat(16)));
    let damaged = OpenOptions::new().write(true).open(&data).expect("opens");
    damaged.write_all_at(&[4; 9000], 2 * BLOCK_BYTES + 77).expect("damages");
    let cache = Cache::open(dir.path(), 1 << 30).expect("opens");
    let file = cache.find(&[1; 16]).expect("is there");
    assert_eq!(file.absent(0..=3), [2]);
    let zeros = store_sparse(&cache, &file, 2, false);
    let read = file.read(2 * BLOCK_BYTES, zeros.len()).expect("there").expect("reads");
    assert!(read == zeros && file.is_complete());
    assert_eq!(fs::metadata(&data).expect("is there").blocks(), 0);
}

#[test]
fn journal_records_of_holes_are_bounded_by_the_size_of_the_cache() {
    let dir = tempfile::tempdir().expect("folder");
    let cache = Cache::open(dir.path(), 2 * NOTES_BYTES).expect("opens");
    let file = cache.create_version(&[1; 16], &info(200 * BLOCK_BYTES), 9).expect("creates");
    let zeros = vec![0; BLOCK_BYTES as usize];
    let kept = (0..200).take_while(|block| {
        let extent = block_extent(*block, file.size);
        let digests = Digest::of_grains(extent.offset, file.size, &zeros);
        cache.store(&file, *block, &zeros, &digests).is_ok()
    });
    let kept = kept.count() as u32;
    assert!((20..100).contains(&kept), "{kept} are kept");
    assert!(cache.usage().0 <= 3 * NOTES_BYTES, "{}", cache.usage().0);
    assert!(file.absent(0..=kept - 1).is_empty(), "what is kept stays");
}
