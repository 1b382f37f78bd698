//! What readers get: the same bytes, names and attributes as at the source, in every
//! way of reading.

use super::*;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

const MIB: usize = 1 << 20;

/// A bit of everything.
fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("a/b/c")).expect("makes");
    fs::create_dir(dir.join("empty folder")).expect("makes");
    fs::write(dir.join("a/empty"), b"").expect("writes");
    fs::write(dir.join("a/small \u{e9}"), b"hello").expect("writes");
    fs::write(dir.join("a/b/odd"), noise(3 * MIB + 77, 1)).expect("writes");
    fs::write(dir.join("a/b/exact"), noise(2 * MIB, 2)).expect("writes");
    let sparse = fs::File::create(dir.join("a/b/c/sparse")).expect("makes");
    sparse.set_len(20 * MIB as u64 + 5).expect("grows");
    sparse.write_all_at(b"island", 9 * MIB as u64 + 3).expect("writes");
    symlink("b/odd", dir.join("a/link")).expect("links");
    symlink("nowhere", dir.join("a/dangling")).expect("links");
    for number in 0..50 {
        fs::write(dir.join(format!("a/b/c/f{number}")), noise(1000 + number, 3)).expect("writes");
    }
    fs::set_permissions(dir.join("a/empty"), fs::Permissions::from_mode(0o640)).expect("sets");
}

#[test]
fn a_tree_is_the_same_through_the_mount_and_again_from_the_cache() {
    if !can_mount("a_tree_is_the_same_through_the_mount_and_again_from_the_cache") {
        return;
    }
    let source = Source::new(fill);
    let flags = rustix::fs::XattrFlags::empty();
    let xattrs = rustix::fs::setxattr(source.path("a/b/odd"), "user.a", b"value", flags).is_ok();
    let _ = rustix::fs::setxattr(source.path("a/b"), "user.folder", b"its own", flags);
    let _ = rustix::fs::setxattr(source.path(""), "user.top", b"of all", flags);
    let cache = Arc::new(tempfile::tempdir().expect("a folder"));
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let mounted = source.mount_with(&cache, &[]);
        let mut diff = Command::new("diff");
        let said = diff.args(["-r", "--no-dereference"]).arg(source.path("")).arg(mounted.path(""));
        let said = said.output().expect("diff runs");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
        for name in ["a", "a/empty", "a/b/odd", "a/small \u{e9}", "a/link", "a/b/c/sparse"] {
            let there = fs::symlink_metadata(source.path(name)).expect("is there");
            let here = fs::symlink_metadata(mounted.path(name)).expect("is here");
            assert_eq!(here.mode(), there.mode(), "{name}");
            if !there.is_dir() {
                assert_eq!(here.len(), there.len(), "{name}");
            }
            assert_eq!((here.mtime(), here.mtime_nsec()), (there.mtime(), there.mtime_nsec()));
        }
        let link = fs::read_link(mounted.path("a/dangling")).expect("is a link");
        assert_eq!(link, Path::new("nowhere"));
        let missing = fs::metadata(mounted.path("a/nothing")).expect_err("is not there");
        assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
        let refused = fs::write(mounted.path("a/new"), b"x").expect_err("it is read-only");
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        if xattrs {
            let mut value = [0; 16];
            let len = rustix::fs::getxattr(mounted.path("a/b/odd"), "user.a", &mut value[..]);
            assert_eq!(len.map(|len| value[..len].to_vec()), Ok(b"value".to_vec()));
            for (at, name, told) in [("a/b", "user.folder", "its own"), ("", "user.top", "of all")]
            {
                let len = rustix::fs::getxattr(mounted.path(at), name, &mut value[..]);
                assert_eq!(len.map(|len| &value[..len]), Ok(told.as_bytes()), "{at}");
                let mut names = [0; 64];
                let len = rustix::fs::listxattr(mounted.path(at), &mut names[..]).expect("lists");
                assert_eq!(names[..len], [name.as_bytes(), b"\0"].concat());
            }
            let missing = rustix::fs::getxattr(mounted.path("a/b/odd"), "user.b", &mut value[..]);
            assert_eq!(missing, Err(rustix::io::Errno::NODATA));
        }
        let number = |name: &str| fs::metadata(mounted.path(name)).expect("is here").ino();
        numbers.push([number("a/b/odd"), number("a/b/c"), number("a/b/c/f7")]);
        let room = rustix::fs::statvfs(mounted.path("")).expect("tells");
        assert!(room.f_blocks > 0 && room.f_namemax == 255);
        mounted.end();
    }
    assert_eq!(numbers[0], numbers[1], "numbers stay");
}

#[test]
fn a_folder_of_many_entries_lists_all_of_them() {
    if !can_mount("a_folder_of_many_entries_lists_all_of_them") {
        return;
    }
    const MANY: usize = 9000;
    let source = Source::new(|dir| {
        (0..MANY).for_each(|it| drop(fs::File::create(dir.join(format!("f{it}"))).expect("makes")));
    });
    let mounted = source.mount(&[]);
    for _ in 0..2 {
        let listed = fs::read_dir(mounted.path("")).expect("lists");
        let names: std::collections::HashSet<_> =
            listed.map(|entry| entry.expect("is told").file_name()).collect();
        assert_eq!(names.len(), MANY);
        let both = Command::new("ls").arg("-fa").arg(mounted.path("")).output().expect("ls runs");
        let lines = String::from_utf8_lossy(&both.stdout).lines().count();
        assert_eq!(lines, MANY + 2, "the folder itself and what it is in are listed too");
    }
    mounted.end();
}

#[test]
fn readers_here_and_there_at_once_get_what_the_source_has() {
    if !can_mount("readers_here_and_there_at_once_get_what_the_source_has") {
        return;
    }
    let content = noise(24 * MIB + 123, 7);
    let source = Source::new(|dir| fs::write(dir.join("big"), &content).expect("writes"));
    // What is younger is looked at more than once.
    std::thread::sleep(SETTLED);
    let mounted = source.mount(&["--no-passthrough"]);
    let path = mounted.path("big");
    std::thread::scope(|scope| {
        for reader in 0..8_u64 {
            let (path, content) = (&path, &content);
            scope.spawn(move || {
                let mut file = fs::File::open(path).expect("opens");
                if reader == 0 {
                    let mut all = Vec::new();
                    file.read_to_end(&mut all).expect("reads");
                    assert!(all == *content, "in order");
                }
                let mut random = reader.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1;
                for _ in 0..200 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let offset = random as usize % content.len();
                    let len = (4096 * (1 + random as usize % 5)).min(content.len() - offset);
                    let mut bytes = vec![0; len];
                    file.read_exact_at(&mut bytes, offset as u64).expect("reads");
                    assert!(bytes == content[offset..offset + len], "{len} at {offset}");
                }
                file.seek(SeekFrom::End(-5)).expect("seeks");
                let mut tail = Vec::new();
                file.read_to_end(&mut tail).expect("reads");
                assert_eq!(tail, content[content.len() - 5..]);
            });
        }
    });
    let told = mounted.status();
    assert_eq!(told["fetched_bytes"], content.len(), "each block came once: {told}");
    mounted.end();
}

#[test]
fn a_mapped_file_and_one_read_without_the_page_cache_are_the_same() {
    if !can_mount("a_mapped_file_and_one_read_without_the_page_cache_are_the_same") {
        return;
    }
    let content = noise(5 * MIB + 4096, 9);
    let source = Source::new(|dir| fs::write(dir.join("big"), &content).expect("writes"));
    // Once as it arrives, once when all of it is here.
    let mounted = source.mount(&[]);
    for _ in 0..2 {
        let program = "import mmap,sys\nf=open(sys.argv[1],'rb')\n\
                       m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ)\n\
                       sys.stdout.buffer.write(m[4000000:]+m[:4000000])";
        let mapped =
            Command::new("python3").args(["-c", program]).arg(mounted.path("big")).output();
        match mapped {
            Ok(mapped) => {
                let (head, tail) = content.split_at(4_000_000);
                assert!(mapped.stdout == [tail, head].concat(), "{:?}", mapped.status);
            }
            Err(error) => skip("a mapped file", &format!("no python3: {error}")),
        }
        let direct = Command::new("dd")
            .args(["bs=1M", "iflag=direct", "status=none"])
            .arg(format!("if={}", mounted.path("big").display()))
            .output()
            .expect("dd runs");
        assert!(direct.stdout == content, "{}", String::from_utf8_lossy(&direct.stderr));
    }
    mounted.end();
}

#[test]
fn a_cache_that_is_too_small_gives_right_bytes_and_stays_small() {
    if !can_mount("a_cache_that_is_too_small_gives_right_bytes_and_stays_small") {
        return;
    }
    let content = noise(80 * MIB, 11);
    let source = Source::new(|dir| {
        fs::write(dir.join("big"), &content).expect("writes");
        fs::write(dir.join("small"), b"hello").expect("writes");
    });
    let mounted = source.mount(&["--cache-size", "64M"]);
    for _ in 0..2 {
        assert!(fs::read(mounted.path("big")).expect("reads") == content);
        assert_eq!(fs::read(mounted.path("small")).expect("reads"), b"hello");
        let kept = kept_bytes(mounted.cache.path());
        assert!((32 << 20..=66 << 20).contains(&kept), "{kept} bytes are kept");
    }
    mounted.end();
}

/// What the files of a cache take.
pub fn kept_bytes(cache: &Path) -> u64 {
    data_files(cache).iter().map(|path| fs::metadata(path).expect("is there").blocks() * 512).sum()
}

#[test]
fn a_file_from_the_future_is_read_as_any_other() {
    if !can_mount("a_file_from_the_future_is_read_as_any_other") {
        return;
    }
    let century = Duration::from_secs(100 * 365 * 86_400);
    let source = Source::new(|dir| {
        let mut file = fs::File::create(dir.join("file")).expect("makes");
        file.write_all(b"tomorrow").expect("writes");
        file.set_modified(std::time::SystemTime::now() + century).expect("sets");
    });
    std::thread::sleep(SETTLED);
    let mounted = source.mount(&[]);
    assert_eq!(fs::read(mounted.path("file")).expect("reads"), b"tomorrow");
    mounted.end();
}

#[test]
fn a_file_that_is_too_large_is_an_error_to_its_reader_and_to_nobody_else() {
    let test = "a_file_that_is_too_large_is_an_error_to_its_reader_and_to_nobody_else";
    if !can_mount(test) {
        return;
    }
    let mut is_large = false;
    let source = Source::in_folder(verbatim_tests::process::memory(), Home::new(), |dir| {
        fs::write(dir.join("file"), b"hello").expect("writes");
        let hole = fs::File::create(dir.join("hole")).expect("makes");
        is_large = hole.set_len(1 << 60).is_ok();
    });
    if !is_large {
        return skip(test, "no file system here has files of an exbibyte");
    }
    std::thread::sleep(SETTLED);
    let mounted = source.mount(&[]);
    assert_eq!(fs::metadata(mounted.path("hole")).expect("is there").len(), 1 << 60);
    let refused = fs::File::open(mounted.path("hole")).expect_err("is too large");
    assert_eq!(errno(&refused), EFBIG, "{refused}");
    assert_eq!(fs::read(mounted.path("file")).expect("reads"), b"hello");
    mounted.end();
}

#[test]
fn a_file_of_size_0_that_has_content_is_refused_by_name() {
    if !can_mount("a_file_of_size_0_that_has_content_is_refused_by_name") {
        return;
    }
    let home = Arc::new(Home::new());
    let empty = tempfile::tempdir().expect("a folder");
    fs::write(empty.path().join("empty"), b"").expect("writes");
    let exports = ["proc=/proc".to_owned(), format!("data={}", empty.path().display())];
    let serve = Serve::of(&home, "127.0.0.1:0", &exports);
    let cache = Arc::new(tempfile::tempdir().expect("a folder"));
    let said = |ended: Ended, words: &str| assert!(ended.stderr.contains(words), "{ended:#?}");
    let mounted = Mounted::start(&home, &serve.at("proc"), &cache, &[]);
    // Twice: nothing of the first try is taken for an empty file.
    for _ in 0..2 {
        assert_eq!(fs::metadata(mounted.path("version")).expect("is there").len(), 0);
        let read = fs::read(mounted.path("version")).map_err(|error| errno(&error));
        assert_eq!(read, Err(EOPNOTSUPP), "{}", mounted.status());
    }
    let files = data_files(cache.path());
    assert!(files.is_empty(), "an empty file is kept: {files:?}");
    said(mounted.end(), "path=proc/version cause=\"cannot copy version: its size is 0 but");
    // Nor does the fill take it for one.
    let mounted = Mounted::start(&home, &serve.at("proc/tty"), &cache, &["--fill"]);
    let told = mounted.wait_for_status("the fill ends", |it| it["fill"]["state"] != "filling");
    assert_eq!(told["fill"]["state"], "incomplete", "{told}");
    said(mounted.end(), "path=proc/tty/drivers cause=\"cannot copy tty/drivers: its size is 0 but");
    // One that is as empty as its size says is read.
    std::thread::sleep(SETTLED);
    let mounted = Mounted::start(&home, &serve.at("data"), &cache, &[]);
    assert_eq!(fs::read(mounted.path("empty")).expect("reads"), b"");
    mounted.end();
}

/// The files that hold content.
pub fn data_files(cache: &Path) -> Vec<PathBuf> {
    files_of(cache, "data")
}

/// The files of a cache that hold one kind of thing.
pub fn files_of(cache: &Path, kind: &str) -> Vec<PathBuf> {
    let parts = fs::read_dir(cache).expect("lists").flatten().map(|entry| entry.path());
    let files =
        parts.filter(|path| path.is_dir()).flat_map(|path| fs::read_dir(path).expect("lists"));
    let paths = files.flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension() == Some(OsStr::new(kind))).collect()
}
