//! Sample trees: seeded content, awkward names, every kind of entry a copy
//! keeps. Builds them and compares two of them byte by byte. It never talks to
//! a server; scenarios build on one side, copy, and compare both.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// What every temporary name ends with; written here anew, so that a renamed constant cannot
/// blind the search for what was left behind.
pub const TEMPORARY_SUFFIX: &[u8] = b".verbatim-part";

/// Bytes that follow from the seed.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Writes a file, and the folders it is in.
pub fn write(path: &Path, bytes: &[u8]) {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).expect("makes the folder");
    }
    fs::write(path, bytes).expect("writes the file");
}

/// Builds a tree with everything in it that a copy must keep.
pub fn sample(root: &Path, seed: u64) {
    let file = |name: &[u8], number: u64, len: usize| {
        let path = root.join(OsStr::from_bytes(name));
        write(&path, &content(seed ^ (number << 32), len));
        path
    };
    fs::create_dir_all(root.join("deep/er/and/deeper")).expect("makes folders");
    fs::create_dir_all(root.join("empty folder/also empty")).expect("makes folders");
    file(b"a.bin", 1, 3 << 20);
    file(b"deep/er/and/deeper/b.bin", 2, 300_001);
    file(b"deep/empty", 3, 0);
    file(b"name with spaces", 4, 17);
    file(b"name\nwith\ttwo lines", 5, 18);
    file(b"not text \xff\xfe", 6, 19);
    file("name in \u{440}\u{443}\u{441}\u{441}\u{43a}\u{438}\u{439}".as_bytes(), 7, 20);
    file(b"not text \x80 folder/inner", 8, 21);
    file(b".hidden", 9, 22);
    file(b"-rf", 10, 23);
    file(b"with:colon", 11, 24);
    set_mode(&file(b"modes/private", 12, 25), 0o600);
    set_mode(&file(b"modes/program", 13, 26), 0o755);
    set_mode(&file(b"modes/read only", 14, 27), 0o444);
    set_mode(&root.join("modes"), 0o750);
    link(root, "a.bin", "link to a file");
    link(root, "deep/er", "link to a folder");
    link(root, "../a.bin", "deep/link upwards");
    link(root, "nothing is here", "dangling link");
    link(root, "/nowhere/at/all", "absolute link");
}

/// Builds `count` files of up to `len_max` bytes, a hundred to a folder.
pub fn small_files(root: &Path, count: usize, len_max: usize, seed: u64) {
    for number in 0..count {
        let len = (number * 7919 + 13) % (len_max + 1);
        let path = root.join(format!("{:02}/{number:04}", number / 100));
        write(&path, &content(seed ^ ((number as u64 + 1) << 20), len));
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("sets the mode");
}

fn link(root: &Path, target: &str, name: &str) {
    symlink(target, root.join(name)).expect("links");
}

#[derive(PartialEq, Eq)]
enum Kind {
    Folder,
    File(Vec<u8>),
    Link(PathBuf),
    Special,
}

struct Entry {
    kind: Kind,
    mode: u32,
}

/// Fails unless the copy has all that the source has, and nothing else.
pub fn assert_same(source: &Path, copy: &Path) {
    let differences = differences(source, copy);
    let shown = differences.iter().take(20).cloned().collect::<Vec<_>>().join("\n  ");
    assert!(
        differences.is_empty(),
        "{} differs from {} in {} places:\n  {shown}",
        copy.display(),
        source.display(),
        differences.len(),
    );
}

/// Fails unless the copy has the same names, kinds, contents and targets, whatever their modes.
pub fn assert_same_content(source: &Path, copy: &Path) {
    let mut differences = differences(source, copy);
    differences.retain(|what| !what.contains(": mode is "));
    assert!(differences.is_empty(), "{} differs: {differences:#?}", copy.display());
}

/// Says where a copy is not what its source is: kinds, contents, targets of links, modes under
/// the umask.
pub fn differences(source: &Path, copy: &Path) -> Vec<String> {
    let umask = umask();
    let (here, there) = (entries(source), entries(copy));
    let extra = there.keys().filter(|name| !here.contains_key(*name));
    let mut found: Vec<String> =
        extra.map(|name| format!("{name:?} is only in the copy")).collect();
    for (name, entry) in &here {
        let Some(other) = there.get(name) else {
            found.push(format!("{name:?} is not in the copy"));
            continue;
        };
        found.extend(difference(entry, other, umask).map(|what| format!("{name:?}: {what}")));
    }
    found
}

fn difference(entry: &Entry, other: &Entry, umask: u32) -> Option<String> {
    match (&entry.kind, &other.kind) {
        (Kind::File(a), Kind::File(b)) if a.len() != b.len() => {
            return Some(format!("{} bytes became {}", a.len(), b.len()));
        }
        // Whole slices first: byte by byte is slow in tests, which are not optimised.
        (Kind::File(a), Kind::File(b)) if a != b => {
            let at = a.iter().zip(b).position(|(a, b)| a != b).expect("some byte");
            return Some(format!("byte {at} is {:#04x}, not {:#04x}", b[at], a[at]));
        }
        (Kind::File(_), Kind::File(_)) => {}
        (Kind::Link(a), Kind::Link(b)) => {
            return (a != b).then(|| format!("link to {a:?} became link to {b:?}"));
        }
        (a, b) if a != b => return Some(format!("{} became {}", a.name(), b.name())),
        _ => {}
    }
    let always = if entry.kind == Kind::Folder { 0o700 } else { 0 };
    let expected = (entry.mode & 0o777 | always) & !umask;
    (other.mode != expected).then(|| format!("mode is {:03o}, not {expected:03o}", other.mode))
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Folder => "a folder",
            Self::File(_) => "a file",
            Self::Link(_) => "a link",
            Self::Special => "something special",
        }
    }
}

fn entries(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut found = BTreeMap::new();
    for path in walk(root) {
        let looked = fs::symlink_metadata(&path).and_then(|metadata| {
            let kind = match metadata.file_type() {
                kind if kind.is_dir() => Kind::Folder,
                kind if kind.is_file() => Kind::File(fs::read(&path)?),
                kind if kind.is_symlink() => Kind::Link(fs::read_link(&path)?),
                _ => Kind::Special,
            };
            Ok((metadata, kind))
        });
        let (metadata, kind) = match looked {
            // It was there a moment ago, or was of another kind, as what it is in may have been.
            Err(error) if is_of_change(error.kind()) => continue,
            looked => looked.expect("looks at an entry"),
        };
        let name = path.strip_prefix(root).expect("below the root").to_owned();
        found.insert(name, Entry { kind, mode: metadata.permissions().mode() & 0o7777 });
    }
    found
}

/// What a look at an entry says that vanished, or was replaced by one of another kind.
fn is_of_change(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound};
    matches!(kind, InvalidInput | IsADirectory | NotADirectory | NotFound)
}

/// Every path below a folder, links not followed. Entries that vanish meanwhile are left out.
pub fn walk(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

/// Temporary files below a folder.
pub fn parts(root: &Path) -> Vec<PathBuf> {
    let is_part = |path: &PathBuf| {
        let name = path.clone().into_os_string().into_vec();
        name.ends_with(TEMPORARY_SUFFIX)
    };
    walk(root).into_iter().filter(is_part).collect()
}

/// What this process takes away from the modes of new files.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").expect("the kernel says");
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    u32::from_str_radix(line.expect("kernels since 4.7 have it").trim(), 8).expect("is octal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_difference_is_seen() {
        let dir = tempfile::tempdir().expect("folder");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        type Change = (&'static str, fn(&Path));
        let changes: [Change; 6] = [
            ("byte 1048576 is", |root| {
                let mut bytes = fs::read(root.join("a.bin")).expect("reads");
                bytes[1 << 20] ^= 1;
                fs::write(root.join("a.bin"), bytes).expect("writes");
            }),
            ("became 22 bytes", |root| fs::write(root.join("-rf"), [0; 22]).expect("writes")),
            ("only in the copy", |root| fs::write(root.join("new"), b"").expect("writes")),
            ("not in the copy", |root| fs::remove_file(root.join(".hidden")).expect("removes")),
            ("mode is 600", |root| set_mode(&root.join("modes/program"), 0o600)),
            ("became link to", |root| {
                fs::remove_file(root.join("dangling link")).expect("removes");
                link(root, "elsewhere", "dangling link");
            }),
        ];
        for (expected, change) in changes {
            for root in [&a, &b] {
                let _ = fs::remove_dir_all(root);
                sample(root, 1);
            }
            assert_eq!(differences(&a, &b), Vec::<String>::new());
            change(&b);
            let found = differences(&a, &b);
            let expected = expected.replace("became 22 bytes", "23 bytes became 22");
            assert!(found.len() == 1 && found[0].contains(&expected), "{expected}: {found:?}");
        }
    }
}
