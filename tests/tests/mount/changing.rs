//! What readers get when the source changes under them, and when the cache was
//! damaged: the version that they opened, an error, or the new one after a new open;
//! never a mixture, never a wrong byte.

use super::reading::data_files;
use super::*;
use std::os::unix::fs::{FileExt, MetadataExt};

const MIB: usize = 1 << 20;

/// What is done to the data and the journal of a version.
type Harm<'a> = &'a dyn Fn(&fs::File, &Path);

#[test]
fn a_reader_keeps_its_version_or_is_told_and_the_next_open_gets_the_new_one() {
    if !can_mount("a_reader_keeps_its_version_or_is_told_and_the_next_open_gets_the_new_one") {
        return;
    }
    let (old, new) = (noise(48 * MIB, 1), noise(48 * MIB, 2));
    let source = Source::new(|dir| fs::write(dir.join("big"), &old).expect("writes"));
    let mounted = source.mount(&[]);
    let reader = fs::File::open(mounted.path("big")).expect("opens");
    let mut bytes = vec![0; 4096];
    reader.read_exact_at(&mut bytes, 0).expect("reads");
    assert_eq!(bytes, old[..4096]);
    let shown = || fs::metadata(mounted.path("big")).expect("is there").ino();
    let first = shown();
    // In place, with the same size: by writing, and then by another file under its name.
    fs::write(source.path("big"), &new).expect("writes");
    let (mut told, mut kept) = (0, 0);
    for offset in (0..old.len()).step_by(MIB / 2) {
        match reader.read_exact_at(&mut bytes, offset as u64) {
            Ok(()) => {
                assert!(bytes == old[offset..offset + 4096], "another version at {offset}");
                kept += 1;
            }
            Err(error) => {
                assert_eq!(errno(&error), ESTALE, "{error} at {offset}");
                told += 1;
            }
        }
    }
    assert!(told > 0 && kept > 0, "{told} told, {kept} kept");
    assert!(fs::read(mounted.path("big")).expect("reads") == new, "a new open is new");
    assert_eq!(shown(), first, "another version is the same file");
    let held = reader.metadata().expect("is open");
    assert_eq!((held.ino(), held.len()), (first, old.len() as u64));
    // The old reader does not see what the new one has brought.
    for offset in (0..old.len()).step_by(MIB) {
        if reader.read_exact_at(&mut bytes, offset as u64).is_ok() {
            assert!(bytes == old[offset..offset + 4096], "another version at {offset}");
        }
    }
    let third = noise(5 * MIB, 3);
    fs::write(source.path("next"), &third).expect("writes");
    fs::rename(source.path("next"), source.path("big")).expect("renames");
    wait_for("the mount shows the third version of big", STAND_MAX, || {
        let read = fs::read(mounted.path("big"));
        let done = read.as_ref().is_ok_and(|read| *read == third);
        seen(done, read.map(|read| format!("{} bytes of something else", read.len())))
    });
    fs::remove_file(source.path("big")).expect("removes");
    let kind = wait_for("the mount shows no file big", STAND_MAX, || {
        match fs::metadata(mounted.path("big")) {
            Ok(meta) => Err(format!("a file of {} bytes", meta.len())),
            Err(error) => Ok(error.kind()),
        }
    });
    assert_eq!(kind, std::io::ErrorKind::NotFound);
    drop(reader);
    mounted.end();
}

const SLOW_BYTES: usize = 24 * MIB;

/// Reads a file here and there for a while; fails when not all of it is the same. An error is an
/// answer: the version went while it was read.
fn read_slowly(path: &Path) -> Option<u8> {
    let file = fs::File::open(path).ok()?;
    let mut bytes = vec![0; 4096];
    let mut version = None;
    for offset in (0..SLOW_BYTES).step_by(3 * MIB) {
        file.read_exact_at(&mut bytes, offset as u64).ok()?;
        let first = *version.get_or_insert(bytes[0]);
        assert!(bytes.iter().all(|byte| *byte == first), "a mixture: {first}, {}", bytes[0]);
        std::thread::sleep(Duration::from_millis(50));
    }
    version
}

#[test]
fn who_reads_while_the_source_is_replaced_again_and_again_never_gets_a_mixture() {
    if !can_mount("who_reads_while_the_source_is_replaced_again_and_again_never_gets_a_mixture") {
        return;
    }
    // Each version is one byte throughout, so that a mixture shows in any two bytes.
    let version = |number: u8| vec![number; SLOW_BYTES];
    let source = Source::new(|dir| fs::write(dir.join("file"), version(0)).expect("writes"));
    let mounted = source.mount(&[]);
    let done = std::sync::atomic::AtomicBool::new(false);
    let path = mounted.path("file");
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = std::collections::BTreeSet::new();
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        seen.extend(read_slowly(&path));
                    }
                    seen
                })
            })
            .collect();
        for number in 1..4 {
            std::thread::sleep(SETTLED);
            let next = source.path("next");
            fs::write(&next, version(number)).expect("writes");
            // Once by a new file, once in place.
            match number % 2 {
                0 => fs::rename(&next, source.path("file")).expect("renames"),
                _ => fs::write(source.path("file"), version(number)).expect("writes"),
            }
        }
        std::thread::sleep(SETTLED + Duration::from_secs(1));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for reader in readers {
            let seen = reader.join().expect("no mixture");
            assert!(seen.contains(&3), "the last version is not seen: {seen:?}");
        }
    });
    mounted.end();
}

#[test]
fn a_damaged_cache_costs_a_fetch_and_never_gives_a_wrong_byte() {
    if !can_mount("a_damaged_cache_costs_a_fetch_and_never_gives_a_wrong_byte") {
        return;
    }
    let content = noise(6 * MIB + 99, 5);
    let source = Source::new(|dir| fs::write(dir.join("big"), &content).expect("writes"));
    let cache = Arc::new(tempfile::tempdir().expect("a folder"));
    let flip = |file: &fs::File, offset: u64| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).expect("reads");
        file.write_all_at(&[byte[0] ^ 0x10], offset).expect("flips");
    };
    let harm: [Harm; 4] = [
        &|_, _| {},
        &|file, _| (0..6).for_each(|block| flip(file, block * MIB as u64 + 777)),
        &|file, _| file.set_len(MIB as u64 + 5).expect("cuts"),
        &|_, journal| fs::write(journal, b"nonsense").expect("writes"),
    ];
    for harm in harm {
        let mounted = source.mount_with(&cache, &[]);
        assert!(fs::read(mounted.path("big")).expect("reads") == content);
        // What is all here goes past the daemon the second time.
        assert!(fs::read(mounted.path("big")).expect("reads") == content);
        mounted.end();
        let data = data_files(cache.path());
        assert_eq!(data.len(), 1);
        let file = fs::OpenOptions::new().read(true).write(true).open(&data[0]).expect("opens");
        harm(&file, &data[0].with_extension("journal"));
    }
    let mounted = source.mount_with(&cache, &[]);
    assert!(fs::read(mounted.path("big")).expect("reads") == content);
    mounted.end();
}
