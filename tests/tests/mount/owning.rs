//! Whose things are, and files with several names: as at the source, one file here as
//! well, with or without the server, and never one for the other.

use super::*;
use rustix::fs::{AtFlags, CWD, chownat};
use std::os::unix::fs::{DirEntryExt, MetadataExt, symlink};

const MIB: usize = 1 << 20;
const SIZE: usize = 3 * MIB + 7;

fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("a")).expect("makes");
    fs::create_dir(dir.join("b")).expect("makes");
    fs::write(dir.join("a/one"), noise(SIZE, 1)).expect("writes");
    fs::write(dir.join("a/alone"), b"alone").expect("writes");
    fs::hard_link(dir.join("a/one"), dir.join("b/two")).expect("links");
    fs::hard_link(dir.join("a/one"), dir.join("b/three")).expect("links");
    symlink("one", dir.join("a/link")).expect("links");
    if rustix::process::geteuid().is_root() {
        for (number, name) in ["", "a", "a/one", "a/alone", "a/link"].iter().enumerate() {
            let (uid, gid) = (7000 + number as u32, 7100 + number as u32);
            let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
            let own = chownat(CWD, dir.join(name), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
            own.expect("root may");
        }
    }
}

/// What is the same here and there, and the number that stands for it here.
fn told(path: &Path) -> ((u32, u32, u64), u64) {
    let found = fs::symlink_metadata(path).expect("is there");
    ((found.uid(), found.gid(), found.nlink()), found.ino())
}

/// Entries of a folder that are listed under another inode number than they have.
fn listed_otherwise(mounted: &Mounted, folder: &str) -> Vec<String> {
    let entries =
        fs::read_dir(mounted.path(folder)).expect("lists").map(|it| it.expect("is there"));
    let entries: Vec<_> = entries.collect();
    assert!(entries.len() >= 2, "{folder} has something in it");
    let differs = |entry: &fs::DirEntry| entry.ino() != told(&entry.path()).1;
    let told = |entry: &fs::DirEntry| format!("{:?} {}", entry.path(), entry.ino());
    entries.iter().filter(|entry| differs(entry)).map(told).collect()
}

#[test]
fn owners_are_those_of_the_source_and_several_names_are_one_file() {
    if !can_mount("owners_are_those_of_the_source_and_several_names_are_one_file") {
        return;
    }
    let mut source = Source::new(fill);
    std::thread::sleep(SETTLED);
    let (cache, from) = (Arc::new(tempfile::tempdir().expect("folder")), source.serve().at("data"));
    let everything = ["", "a", "b", "a/one", "b/two", "b/three", "a/alone", "a/link"];
    let check = |mounted: &Mounted| {
        for name in everything {
            // By its name alone, and as one of a folder.
            assert_eq!(told(&mounted.path(name)).0, told(&source.path(name)).0, "{name}");
        }
        let number = |name: &str| told(&mounted.path(name)).1;
        assert_eq!((number("a/one"), number("a/one")), (number("b/two"), number("b/three")));
        assert!(number("a/one") != number("a/alone"));
        for name in ["a/one", "b/two", "b/three"] {
            assert!(fs::read(mounted.path(name)).expect("reads") == noise(SIZE, 1), "{name}");
        }
        number("a/one")
    };
    let mounted = source.mount_with(&cache, &[]);
    let number = check(&mounted);
    for folder in ["a", "b", "a", "b"] {
        assert_eq!(listed_otherwise(&mounted, folder), [""; 0], "as one of a folder");
    }
    assert_eq!(check(&mounted), number, "as one of a folder");
    let status = mounted.status();
    assert_eq!(status["fetched_bytes"], SIZE, "it came once: {status}");
    assert_eq!(reading::data_files(cache.path()).len(), 1, "and is kept once");
    mounted.end();
    source.kill();
    let mounted = Mounted::start(&source.home, &from, &cache, &["--offline"]);
    // The root itself was never told of by a folder.
    let known = everything.iter().filter(|name| !name.is_empty());
    for name in known {
        assert_eq!(told(&mounted.path(name)).0, told(&source.path(name)).0, "{name}");
    }
    for name in ["a/one", "b/two", "b/three"] {
        assert_eq!(told(&mounted.path(name)).1, number, "{name}");
        assert!(fs::read(mounted.path(name)).expect("is here") == noise(SIZE, 1), "{name}");
    }
    mounted.end();
}

#[test]
fn a_file_with_several_names_changes_under_all_and_a_name_that_leaves_takes_nothing_along() {
    if !can_mount("a_file_with_several_names_changes_under_all") {
        return;
    }
    let mut source = Source::new(fill);
    std::thread::sleep(SETTLED);
    let (cache, from) = (Arc::new(tempfile::tempdir().expect("folder")), source.serve().at("data"));
    let mounted = source.mount_with(&cache, &[]);
    let read = |mounted: &Mounted, name: &str| fs::read(mounted.path(name)).expect("reads");
    let number = told(&mounted.path("a/one")).1;
    let reader = fs::File::open(mounted.path("b/two")).expect("opens");
    assert!(read(&mounted, "b/two") == noise(SIZE, 1));
    // Written to by one name.
    fs::write(source.path("a/one"), noise(SIZE, 2)).expect("writes");
    std::thread::sleep(SETTLED);
    for name in ["b/three", "b/two", "a/one"] {
        assert!(read(&mounted, name) == noise(SIZE, 2), "{name}");
        assert_eq!(told(&mounted.path(name)).1, number, "{name}");
    }
    // And is listed under the number that it always had, as often as anybody looks.
    let alone = told(&mounted.path("a/alone")).1;
    assert_eq!(fs::read(mounted.path("a/alone")).expect("reads"), b"alone");
    fs::write(source.path("a/alone"), b"changed").expect("writes");
    std::thread::sleep(SETTLED);
    assert_eq!(fs::read(mounted.path("a/alone")).expect("reads"), b"changed");
    for folder in ["a", "b", "a", "b", "a"] {
        assert_eq!(listed_otherwise(&mounted, folder), [""; 0]);
    }
    assert_eq!(told(&mounted.path("a/alone")).1, alone);
    let mut bytes = vec![0; SIZE];
    std::os::unix::fs::FileExt::read_exact_at(&reader, &mut bytes, 0).expect("reads on");
    assert!(bytes == noise(SIZE, 1), "a reader keeps its version");
    // A name that is given to another file, of the same size and time, while the kernel still
    // believes what it was told of the others.
    let time = fs::metadata(source.path("a/one")).expect("is there").modified().expect("known");
    let other = fs::File::create(source.path("new")).expect("makes");
    std::io::Write::write_all(&mut &other, &noise(SIZE, 3)).expect("writes");
    other.set_modified(time).expect("sets");
    std::thread::sleep(SETTLED);
    for name in ["b/three", "b/two", "a/one"] {
        assert!(read(&mounted, name) == noise(SIZE, 2), "{name}");
    }
    fs::rename(source.path("new"), source.path("b/two")).expect("renames");
    std::thread::sleep(SETTLED);
    for (name, seed, names) in [("b/two", 3, 1), ("b/three", 2, 2), ("a/one", 2, 2)] {
        assert!(read(&mounted, name) == noise(SIZE, seed), "{name}");
        assert_eq!(told(&mounted.path(name)).0.2, names, "{name}");
    }
    assert_ne!(told(&mounted.path("b/two")).1, number, "it is another file now");
    assert_eq!(told(&mounted.path("b/three")).1, number);
    mounted.end();
    source.kill();
    let mounted = Mounted::start(&source.home, &from, &cache, &["--offline"]);
    for (name, seed) in [("b/two", 3), ("b/three", 2), ("a/one", 2)] {
        assert!(read(&mounted, name) == noise(SIZE, seed), "{name} from the cache");
    }
    mounted.end();
}

#[test]
fn what_is_mounted_is_a_source_as_any_other_also_under_several_names() {
    if !can_mount("what_is_mounted_is_a_source_as_any_other_also_under_several_names") {
        return;
    }
    let source = Source::new(fill);
    std::thread::sleep(SETTLED);
    let mounted = source.mount(&[]);
    let out = tempfile::tempdir().expect("a folder");
    let exports = [
        format!("again={}", mounted.path("").display()),
        format!("in={}:rw", out.path().display()),
    ];
    let serve = Serve::of(&source.home, "127.0.0.1:0", &exports);
    let text = |path: PathBuf| path.to_str().expect("plain").to_owned();
    // Its files are asked after anew when they were read, down and up.
    let (down, up) = (out.path().join("down"), out.path().join("up"));
    serve.cp(&["-r".to_owned(), serve.at("again"), text(down.clone())]).done();
    serve.cp(&["-r".to_owned(), text(mounted.path("")), serve.at("in/up")]).done();
    for name in ["a/one", "b/two", "b/three", "a/alone"] {
        let content = fs::read(source.path(name)).expect("reads");
        for copy in [&down, &up] {
            assert!(fs::read(copy.join(name)).expect("it is there") == content, "{name}");
        }
    }
}
