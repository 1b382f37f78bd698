//! Files that we wrote and that somebody, or a dying disk, changed: what is
//! not sealed is not believed, and nothing is lost by it but time.

use super::draw::Draw;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use verbatim_files::journal;
use verbatim_proto::message::FileInfo;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Digest, Extent};
use verbatim_server::exports::digest_cache::DigestCache;

/// A journal with a changed tail or head gives what was sealed, in front of the damage, or
/// nothing. The input says where it is cut, and what is put there.
pub fn journal(bytes: &[u8]) {
    let mut file = tempfile::tempfile().expect("a temporary file");
    let info = FileInfo {
        size: 8 * GRAIN_BYTES,
        mode: 0o644,
        mtime_ns: 7,
        allocated: 0,
        version: Some(7),
    };
    let head = journal::Head::now(&info, &file);
    journal::begin(&mut file, &head).expect("begins");
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
    sealed(&mut file, &info, bytes);
}

/// A record that is sealed is believed only if it is about whole grains of the file: somebody may
/// have written it who meant another one.
fn sealed(file: &mut File, info: &FileInfo, bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    file.rewind().expect("a file of ours");
    let head = journal::Head::now(info, file);
    journal::begin(file, &head).expect("begins");
    file.seek(std::io::SeekFrom::End(0)).expect("a file of ours");
    for extent in draw.list(4, Draw::extent) {
        let digests: Vec<Digest> = draw.digests(extent);
        journal::append(file, extent, &digests).expect("appends");
    }
    file.rewind().expect("a file of ours");
    journal::read(file, |_, extent, digests| {
        let grains = extent.len.div_ceil(GRAIN_BYTES);
        assert!(extent.len > 0 && extent.fits(info.size), "outside its file");
        assert!(extent.offset.is_multiple_of(GRAIN_BYTES), "in the middle of a grain");
        let whole = extent.len.is_multiple_of(GRAIN_BYTES);
        assert!(whole || extent.end() == Some(info.size), "a part of a grain");
        assert_eq!(digests.len() as u64, grains, "a digest a grain");
    });
}

/// Overwrites a part of a file, and may cut it there.
fn damage(file: &mut File, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let [low, high, cut, rest @ ..] = bytes else { return };
    let len = file.metadata().expect("ours").len();
    let number = u64::from(u16::from_le_bytes([*low, *high]));
    let at = match place_of_digests(file).filter(|_| cut & AIMED != 0) {
        Some(place) => place + number % 256,
        // Anywhere in it, however long it is.
        None => (number * (len + 1)) >> 16,
    };
    file.write_all_at(rest, at).expect("writes");
    if cut % 2 == 1 {
        file.set_len(at + rest.len() as u64).expect("cuts");
    }
}

/// Says that the damage is to be where the digests of a cache are: they are few in a large file.
const AIMED: u8 = 2;

/// What is put into a cache: the digests of a window.
const CACHED: [Digest; 3] = [Digest([5; 32]); 3];

/// A little before the first of them.
fn place_of_digests(file: &mut File) -> Option<u64> {
    let mut bytes = Vec::new();
    file.rewind().expect("a file of ours");
    file.read_to_end(&mut bytes).expect("a file of ours");
    let found = bytes.windows(32).position(|window| window == CACHED[0].0)?;
    Some(found.saturating_sub(128) as u64)
}

/// A digest cache of any bytes opens, knows nothing that was not put into it, and goes on.
pub fn digest_cache(bytes: &[u8]) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let cache = DigestCache::open(dir.path(), 1 << 20);
    let identity = identity_of(&dir.path().join("file"));
    cache.put(&identity, 0, &CACHED);
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
        assert_eq!(found, CACHED, "digests that nobody put there");
    }
    let other = identity_of(&dir.path().join("other"));
    assert_eq!(cache.get(&other, 0), None, "the digests of another file");
    assert_eq!(cache.get(&identity, 1), None, "the digests of another window");
    cache.put(&identity, 1, &CACHED);
    cache.flush();
    assert_eq!(cache.get(&identity, 1).as_deref(), Some(&CACHED[..]), "it goes on");
    cache.close();
}

fn identity_of(path: &std::path::Path) -> verbatim_files::Identity {
    let mut file = File::create(path).expect("creates");
    file.write_all(b"content").expect("writes");
    verbatim_files::Identity::of(&File::open(path).expect("opens")).expect("a file of ours")
}
