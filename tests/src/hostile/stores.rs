//! Files that we wrote and that somebody, or a dying disk, changed: what is
//! not sealed is not believed, and nothing is lost by it but time.

use std::fs::{self, File};
use std::io::{Seek, Write};
use verbatim_files::journal;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Digest, Extent};
use verbatim_server::cache::DigestCache;

/// A journal with a changed tail or head gives what was sealed, in front of the damage, or
/// nothing. The input says where it is cut, and what is put there.
pub fn journal(bytes: &[u8]) {
    let mut file = tempfile::tempfile().expect("a temporary file");
    let info = verbatim_proto::message::FileInfo {
        size: 8 * GRAIN_BYTES,
        mode: 0o644,
        mtime_ns: 7,
        allocated: 0,
        version: Some(7),
    };
    journal::begin(&mut file, &journal::Head::now(&info)).expect("begins");
    let written = |number: u64| {
        let extent = Extent { offset: number * GRAIN_BYTES, len: GRAIN_BYTES };
        (extent, Digest([number as u8; 32]))
    };
    for number in 0..8 {
        let (extent, digest) = written(number);
        journal::append(&file, extent, &[digest]).expect("appends");
    }
    let read = |mut file: &File| {
        file.rewind().expect("a file of ours");
        let mut count = 0;
        journal::read(file, |_, extent, digests| {
            let number = extent.offset / GRAIN_BYTES;
            assert_eq!((extent, digests), (written(number).0, vec![written(number).1]), "believed");
            count += 1;
        });
        count
    };
    assert_eq!(read(&file), 8, "all of it, before it is damaged");
    damage(&mut file, bytes);
    assert!(read(&file) <= 8);
}

/// Overwrites a part of a file, and may cut it there.
fn damage(file: &mut File, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let [low, high, cut, rest @ ..] = bytes else { return };
    let len = file.metadata().expect("ours").len();
    // Anywhere in it, however long it is.
    let at = (u64::from(u16::from_le_bytes([*low, *high])) * (len + 1)) >> 16;
    file.write_all_at(rest, at).expect("writes");
    if cut % 2 == 1 {
        file.set_len(at + rest.len() as u64).expect("cuts");
    }
}

/// A digest cache of any bytes opens, knows nothing that was not put into it, and goes on.
pub fn digest_cache(bytes: &[u8]) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let cache = DigestCache::open(dir.path(), 1 << 20);
    let identity = identity_of(&dir.path().join("file"));
    let digests = [Digest([5; 32]); 3];
    cache.put(&identity, 0, &digests);
    cache.flush();
    cache.close();
    for entry in fs::read_dir(dir.path()).expect("a folder").flatten() {
        if entry.file_name() != "file" && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let path = entry.path();
            let mut file = File::options().read(true).write(true).open(path).expect("opens");
            damage(&mut file, bytes);
        }
    }
    let cache = DigestCache::open(dir.path(), 1 << 20);
    let found = cache.get(&identity, 0);
    assert!(found.is_some() || !bytes.is_empty(), "what is not damaged is found");
    if let Some(found) = found {
        assert_eq!(found, digests, "digests that nobody put there");
    }
    cache.put(&identity, 1, &digests);
    cache.flush();
    assert_eq!(cache.get(&identity, 1).as_deref(), Some(&digests[..]), "it goes on");
    cache.close();
}

fn identity_of(path: &std::path::Path) -> verbatim_files::Identity {
    let mut file = File::create(path).expect("creates");
    file.write_all(b"content").expect("writes");
    verbatim_files::Identity::of(&File::open(path).expect("opens")).expect("a file of ours")
}
