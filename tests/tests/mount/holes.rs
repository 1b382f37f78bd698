//! Sparse files through a mount: a hole reads as zeros, costs next to nothing of the
//! network, and takes no room in the cache, whoever reads it: the daemon, the kernel past
//! the daemon, the fill, and the next mount of the same cache. A hole that is filled at
//! the source, and data that becomes a hole, are changes like any other.

use super::reading::{files_of, kept_bytes};
use super::*;
use std::os::unix::fs::{FileExt, MetadataExt};
use verbatim_tests::proxy::Proxy;

const MIB: u64 = 1 << 20;
const GRAIN: u64 = 256 << 10;

/// Where in a file data of which length is: all else is a hole.
const DATA: [(u64, usize); 3] = [(0, 100), (3 * MIB + 5, 2 << 20), (90 * MIB + 77, 5000)];

/// The grains that have data, which move: one, nine, and one.
const MOVED: u64 = (1 + 9 + 1) * GRAIN;

/// What the notes of 501 blocks and a few names take, and what a file system keeps of its own.
const BESIDE: u64 = 256 << 10;

fn make(path: &Path, size: u64, data: &[(u64, usize)]) {
    let file = fs::File::create(path).expect("creates");
    file.set_len(size).expect("grows");
    for (at, (offset, len)) in data.iter().enumerate() {
        file.write_all_at(&noise(*len, at as u64), *offset).expect("writes");
    }
}

/// Fails unless a file is of this length, with this data and zeros everywhere else.
#[track_caller]
fn check(path: &Path, size: u64, data: &[(u64, usize)]) {
    let file = fs::File::open(path).expect("opens");
    assert_eq!(file.metadata().expect("is there").len(), size);
    let mut bytes = vec![1; MIB as usize];
    for offset in (0..size).step_by(bytes.len()) {
        let len = MIB.min(size - offset) as usize;
        let mut expected = vec![0; len];
        for (at, (from, count)) in data.iter().enumerate() {
            let (begin, end) =
                ((*from).max(offset), (from + *count as u64).min(offset + len as u64));
            if begin < end {
                let part =
                    &noise(*count, at as u64)[(begin - from) as usize..(end - from) as usize];
                expected[(begin - offset) as usize..][..part.len()].copy_from_slice(part);
            }
        }
        file.read_exact_at(&mut bytes[..len], offset).expect("reads");
        assert!(bytes[..len] == expected, "other bytes at {offset}");
    }
}

/// What all files of a cache take, with their notes and names.
fn taken_bytes(cache: &Path) -> u64 {
    let files = ["data", "journal", "names"].into_iter().flat_map(|kind| files_of(cache, kind));
    files.map(|path| fs::metadata(path).expect("is there").blocks() * 512).sum()
}

/// Reads a sparse file through a mount whose network is a proxy, and again from its cache.
fn read_through(size: u64, flags: &[&str]) {
    let source = Source::new(|dir| make(&dir.join("sparse"), size, &DATA));
    // What is younger is looked at more than once.
    std::thread::sleep(SETTLED);
    let proxy = Proxy::start(source.serve().address.port(), &[]);
    let from = format!("rdma://127.0.0.1:{}/data", proxy.port());
    let known = proxy.known(&source.home);
    let all: Vec<&str> = known.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    let cache = Arc::new(tempfile::tempdir().expect("a folder"));
    let read = |times: usize, fetched: u64| {
        let mounted = Mounted::start(&source.home, &from, &cache, &all);
        (0..times).for_each(|_| check(&mounted.path("sparse"), size, &DATA));
        let (told, counts) = (mounted.status(), proxy.counts());
        let context = format!("{told} {counts:?}");
        assert_eq!(told["fetched_bytes"].as_u64(), Some(fetched), "{context}");
        assert!(counts.data_bytes < MOVED + 64 * 1024, "{context}");
        // A kibibyte or two for each part of 4 MiB that was asked for.
        assert!(counts.control_bytes < 512 << 10, "{context}");
        let (data, all) = (kept_bytes(cache.path()), taken_bytes(cache.path()));
        assert!(data <= MOVED + BESIDE && all <= MOVED + 2 * BESIDE, "{data} {all} {context}");
        let counted = told["cache"]["bytes"].as_u64().expect("a number");
        assert!(counted.abs_diff(all) <= BESIDE, "{all} bytes are taken: {context}");
        let past = &told["passthrough"];
        let by_kernel = times > 1 && past["used"] == true;
        assert_eq!(past["opens"].as_u64(), Some(u64::from(by_kernel)), "{context}");
        mounted.end();
    };
    // As it arrives, and then as it is in the cache.
    read(2, MOVED);
    // What an earlier mount left is hashed, and all of it is good.
    read(1, 0);
}

#[test]
fn a_hole_costs_neither_network_nor_cache_and_reads_as_zeros() {
    if can_mount("a_hole_costs_neither_network_nor_cache_and_reads_as_zeros") {
        read_through(500 * MIB + 12_345, &[]);
    }
}

#[test]
fn a_hole_costs_neither_network_nor_cache_where_the_daemon_reads() {
    if can_mount("a_hole_costs_neither_network_nor_cache_where_the_daemon_reads") {
        read_through(100 * MIB + 12_345, &["--no-passthrough"]);
    }
}

#[test]
fn a_sparse_file_that_is_longer_than_the_cache_is_filled_and_nothing_goes_for_it() {
    if !can_mount("a_sparse_file_that_is_longer_than_the_cache_is_filled_and_nothing_goes_for_it") {
        return;
    }
    const SIZE: u64 = 200 * MIB;
    let source = Source::new(|dir| {
        make(&dir.join("a"), SIZE, &DATA);
        fs::write(dir.join("b"), noise(3 << 20, 9)).expect("writes");
    });
    std::thread::sleep(SETTLED);
    // At this rate the holes alone would take longer than the wait.
    let mounted = source.mount(&["--cache-size", "64M", "--fill=4M"]);
    let told = mounted.wait_for_status("the fill ends", |it| it["fill"]["state"] != "filling");
    assert_eq!(told["fill"]["state"], "complete", "{told}");
    assert_eq!(told["fill"]["files"], 2, "{told}");
    assert_eq!(told["cache"]["evictions"], 0, "{told}");
    assert_eq!(told["fetched_bytes"].as_u64(), Some(MOVED + 3 * MIB), "{told}");
    check(&mounted.path("a"), SIZE, &DATA);
    assert_eq!(mounted.status()["fetched_bytes"], told["fetched_bytes"], "all of it is here");
    mounted.end();
}

#[test]
fn a_hole_that_is_filled_and_data_that_becomes_a_hole_are_read_as_they_are_now() {
    use rustix::fs::{FallocateFlags, fallocate};
    if !can_mount("a_hole_that_is_filled_and_data_that_becomes_a_hole_are_read_as_they_are_now") {
        return;
    }
    const SIZE: u64 = 20 * MIB + 5;
    let before = [(2 * MIB, 3 << 20), (15 * MIB + 9, 70_000)];
    // The same noise where it was, and more of it.
    let after = [(2 * MIB, 1 << 20), (15 * MIB + 9, 70_000), (10 * MIB + 11, 1 << 20)];
    let source = Source::new(|dir| make(&dir.join("sparse"), SIZE, &before));
    std::thread::sleep(SETTLED);
    for flags in [&[][..], &["--no-passthrough"]] {
        make(&source.path("sparse"), SIZE, &before);
        std::thread::sleep(SETTLED);
        let mounted = source.mount(flags);
        check(&mounted.path("sparse"), SIZE, &before);
        let reader = fs::File::open(mounted.path("sparse")).expect("opens");
        let file = fs::OpenOptions::new().write(true).open(source.path("sparse")).expect("opens");
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, hole, 3 * MIB, 2 * MIB).expect("punches");
        let first = noise(3 << 20, 0);
        file.write_all_at(&first[..1 << 20], 2 * MIB).expect("writes");
        file.write_all_at(&noise(1 << 20, 2), 10 * MIB + 11).expect("writes");
        drop(file);
        std::thread::sleep(SETTLED);
        // Noise is of its length too: what is longer begins as what is shorter.
        check(&mounted.path("sparse"), SIZE, &after);
        // Who has the old version open keeps what the cache has of it: all of it.
        let mut bytes = vec![1; 1 << 20];
        reader.read_exact_at(&mut bytes, 10 * MIB + 11).expect("reads");
        assert!(bytes.iter().all(|byte| *byte == 0), "the version that it opened had a hole");
        reader.read_exact_at(&mut bytes, 3 * MIB).expect("reads");
        assert!(bytes == first[1 << 20..2 << 20], "the version that it opened had data");
        mounted.end();
    }
}
