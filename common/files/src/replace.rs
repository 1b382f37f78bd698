//! Replaces a small file that others read, all of it at once: who reads it sees
//! what was there or what is there now, and anybody may. It is written without a
//! name, and has a hidden one only between a link and a rename; that is the same
//! every time, so what somebody who was killed just then left goes with the next.
//! For status files and the numbers of a copy; files that are copied have targets.

use crate::naming::{Over, TEMPORARY_SUFFIX, create_new, create_unnamed};
use crate::naming::{hidden_name, link_new, rename, temporary_name};
use crate::opened::OpenFolder;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What tells the hidden name from other leftovers, of which it is one for whoever looks: the
/// digits of `replaced`.
const UNIQUE: &str = "7265706c61636564";

/// How often others may be in the way of one that replaces the same file, before it takes a name
/// of its own.
const TRIES_MAX: usize = 100;

/// What may take the place of a file.
#[derive(Debug)]
pub struct Replacement<'a> {
    file: File,
    folder: OpenFolder,
    name: &'a [u8],
    /// The name it has where files without one cannot be made.
    temporary: Option<Vec<u8>>,
}

impl<'a> Replacement<'a> {
    /// A file that may take the place of `path`: where none can be made, nothing can be written.
    pub fn begin(path: &'a Path) -> io::Result<Self> {
        let (folder, name) = place(path)?;
        match create_unnamed(&folder, 0o600) {
            Ok(file) => Ok(Self { file, folder, name, temporary: None }),
            Err(_) => Self::named(path),
        }
    }

    /// The same, under a name that no other has.
    fn named(path: &'a Path) -> io::Result<Self> {
        let (folder, name) = place(path)?;
        let temporary = temporary_name(name);
        let file = create_new(&folder, &temporary, 0o600)?;
        Ok(Self { file, folder, name, temporary: Some(temporary) })
    }

    /// Whether it is in place; it is not where another was in the way.
    fn put(mut self, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<bool> {
        write(&mut self.file)?;
        self.file.set_permissions(PermissionsExt::from_mode(0o644))?;
        if let Some(temporary) = &self.temporary {
            rename(&self.folder, temporary, self.name, Over::Anything)?;
            return Ok(true);
        }
        let hidden = hidden_name(self.name, UNIQUE, TEMPORARY_SUFFIX);
        if link_new(&self.file, &self.folder, &hidden).is_err() {
            self.remove(&hidden);
            return Ok(false);
        }
        // Whatever has the hidden name is whole, so it does not matter whose is renamed; but one
        // that lost it cannot be linked again.
        match rename(&self.folder, &hidden, self.name, Over::Anything) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => {
                self.remove(&hidden);
                Err(error.into())
            }
        }
    }

    /// The next that is made says what is wrong, if it stays.
    fn remove(&self, name: &[u8]) {
        let _ = unlinkat(&self.folder, OsStr::from_bytes(name), AtFlags::empty());
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            self.remove(temporary);
        }
    }
}

/// Gives the file at `path` this content.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let write = |file: &mut File| file.write_all(text.as_bytes());
    for _ in 0..TRIES_MAX {
        if Replacement::begin(path)?.put(write)? {
            return Ok(());
        }
    }
    // Others replace it all the time, or nothing can be linked here.
    replace_large(path, write)
}

/// The same of content that is written once, whoever is in the way: what somebody who was killed
/// just then left has a name.
pub(crate) fn replace_large(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    Replacement::named(path)?.put(write).map(drop)
}

/// The folder of a file, and its name there.
fn place(path: &Path) -> io::Result<(OpenFolder, &[u8])> {
    let Some(name) = path.file_name().map(OsStrExt::as_bytes) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not name a file"));
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, folder.unwrap_or(Path::new(".")), flags, Mode::empty())?;
    Ok((OpenFolder::new(folder), name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_replaced_may_be_read_by_anybody_whatever_the_umask_is() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("a");
        for text in ["one", "another"] {
            replace(&path, text).expect("writes");
            assert_eq!(fs::read_to_string(&path).expect("reads"), text);
        }
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is left");
    }

    #[test]
    fn what_one_that_was_killed_left_goes_with_the_next() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("a");
        let begun = Replacement::begin(&path).expect("makes");
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 0, "it has no name");
        let hidden = hidden_name(b"a", UNIQUE, TEMPORARY_SUFFIX);
        link_new(&begun.file, &begun.folder, &hidden).expect("links");
        assert!(crate::reap::is_leftover(&hidden), "no mirror takes it for a file");
        replace(&path, "whole").expect("writes");
        assert_eq!(fs::read_to_string(&path).expect("reads"), "whole");
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is left");
    }

    #[test]
    fn several_that_replace_one_file_leave_one_that_is_whole() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("a");
        let texts = ["a".repeat(9_000), "b".repeat(5_000), "c".to_owned()];
        replace(&path, &texts[0]).expect("writes");
        std::thread::scope(|scope| {
            for text in &texts {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..300 {
                        replace(path, text).expect("whoever is in the way");
                    }
                });
            }
            for _ in 0..1_000 {
                let text = fs::read_to_string(&path).expect("it is always there");
                assert!(texts.contains(&text), "it is one of them, and whole");
            }
        });
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is left");
    }

    #[test]
    fn where_nothing_can_be_linked_it_has_a_name_of_its_own() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("a");
        let names = || fs::read_dir(dir.path()).expect("lists").count();
        for text in ["one", "another"] {
            assert!(
                Replacement::named(&path)
                    .expect("makes")
                    .put(|file| file.write_all(text.as_bytes()))
                    .expect("writes")
            );
            assert_eq!((fs::read_to_string(&path).expect("reads").as_str(), names()), (text, 1));
        }
        drop(Replacement::named(&path).expect("makes"));
        assert_eq!(names(), 1, "one that is given up leaves nothing");
    }

    #[test]
    fn what_cannot_be_replaced_is_told_and_nothing_is_left() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir(dir.path().join("a")).expect("makes");
        assert!(replace(&dir.path().join("a"), "text").is_err(), "a folder has that name");
        assert!(replace(&dir.path().join("none/a"), "text").is_err(), "there is no folder");
        assert!(replace(Path::new("/"), "text").is_err(), "it has no name");
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is left");
    }
}
