//! Safe opening of cache files: only a regular file with one link, of this user and not
//! writable by others. Symlinks, fifos and files of other users are rejected, so that
//! no file outside of the cache is read, truncated or written. Knows no contents.
//! Called by all of `cache`.

use rustix::fs::OFlags;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The mode of all cache files.
const MODE: u32 = 0o600;

/// The write bits of group and others.
const OTHERS_WRITE: u32 = 0o022;

/// How often a file is opened or created that other mounts create and remove as well.
const TRIES_MAX: usize = 8;

/// Owner and mode of files that this process creates in the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct SafeOpener {
    owner: u32,
    /// The write bits for others that the file system sets on every file.
    others: u32,
}

impl SafeOpener {
    /// Creates a file in the folder, reads its metadata and removes it. Some file systems give all
    /// files one owner and mode, and some map root to another user.
    pub fn probe(folder: &Path) -> Self {
        let path = temporary_path(&folder.join("owner"));
        let created = create_options().open(&path).and_then(|file| file.metadata());
        let _ = fs::remove_file(&path);
        // A full disk has no room for it.
        let usual = || (rustix::process::geteuid().as_raw(), 0);
        let (owner, others) = created
            .map_or_else(|_| usual(), |created| (created.uid(), created.mode() & OTHERS_WRITE));
        Self { owner, others }
    }

    /// Opens a file. `None` if it is missing or not trusted; an error if that is unknown, as with
    /// too many open files.
    pub fn open(&self, path: &Path, options: &OpenOptions) -> io::Result<Option<File>> {
        // Checked before the open, which may block for ever on a fifo.
        let may = match self.may_use(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            looked => looked?,
        };
        if !may {
            return Ok(None);
        }
        let opened = options.clone().custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path);
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let is_ours = self.is_trusted(&file.metadata()?);
        Ok(is_ours.then_some(file))
    }

    /// Opens a file for reading.
    pub fn open_to_read(&self, path: &Path) -> io::Result<Option<File>> {
        self.open(path, OpenOptions::new().read(true))
    }

    /// Opens or creates a file that stays in the cache. Removes an untrusted file in its place; the
    /// caller holds a lock.
    pub fn open_or_make(&self, path: &Path) -> io::Result<File> {
        for _ in 0..TRIES_MAX {
            if let Some(file) = self.open(path, OpenOptions::new().read(true).write(true))? {
                return Ok(file);
            }
            self.remove_untrusted(path)?;
            match create_options().open(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created,
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Replaces a file atomically: a reader finds the old contents or all of the new.
    pub fn replace(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        let temporary = temporary_path(path);
        let written = create_options().open(&temporary).and_then(|mut file| {
            parts.iter().try_for_each(|part| file.write_all(part))?;
            fs::rename(&temporary, path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Whether a file may be used. A folder is an error, and stays.
    fn may_use(&self, path: &Path) -> io::Result<bool> {
        let found = fs::symlink_metadata(path)?;
        match found.is_dir() {
            true => Err(io::ErrorKind::IsADirectory.into()),
            false => Ok(self.is_trusted(&found)),
        }
    }

    fn is_trusted(&self, found: &Metadata) -> bool {
        let others = found.mode() & OTHERS_WRITE & !self.others;
        found.is_file() && found.nlink() == 1 && found.uid() == self.owner && others == 0
    }

    /// Removes an untrusted file.
    fn remove_untrusted(&self, path: &Path) -> io::Result<()> {
        match self.may_use(path) {
            Ok(false) => fs::remove_file(path),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The options that create a cache file.
fn create_options() -> OpenOptions {
    let mut new = OpenOptions::new();
    new.read(true).write(true).create_new(true).mode(MODE);
    new
}

/// A temporary name for a file that is being replaced. Unique in this process; removes a file of a
/// dead process with the same number.
fn temporary_path(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("names-{}-{next}", std::process::id()));
    let _ = fs::remove_file(&temporary);
    temporary
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_a_regular_file_of_this_user_with_one_link_is_opened() {
        let dir = tempfile::tempdir().expect("folder");
        let at = |name: &str| dir.path().join(name);
        let opener = SafeOpener::probe(dir.path());
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 0, "nothing is left");
        let is_opened = |name: &str| opener.open_to_read(&at(name)).expect("is known").is_some();
        for name in ["good", "linked", "open to all"] {
            opener.replace(&at(name), &[b"a", b"b"]).expect("writes");
            assert!(is_opened(name) && fs::read(at(name)).expect("reads") == b"ab");
        }
        symlink("good", at("link")).expect("links");
        fs::hard_link(at("linked"), at("other name")).expect("links");
        fs::set_permissions(at("open to all"), fs::Permissions::from_mode(0o602)).expect("sets");
        for name in ["link", "linked", "other name", "open to all", "nothing"] {
            assert!(!is_opened(name), "{name}");
        }
        fs::create_dir(at("folder")).expect("makes");
        let folder = opener.open_to_read(&at("folder")).expect_err("is no file");
        assert_eq!(folder.kind(), io::ErrorKind::IsADirectory);
        assert!(opener.open_or_make(&at("folder")).is_err() && at("folder").exists());
    }

    #[test]
    fn a_symlink_in_place_of_a_lock_file_is_removed_and_its_target_stays() {
        let dir = tempfile::tempdir().expect("folder");
        let (lock, outside) = (dir.path().join("lock"), dir.path().join("outside"));
        let opener = SafeOpener::probe(dir.path());
        fs::write(&outside, b"of somebody").expect("writes");
        symlink(&outside, &lock).expect("links");
        let mut made = opener.open_or_make(&lock).expect("is made");
        made.write_all(b"x").expect("writes");
        assert_eq!(fs::read(&outside).expect("reads"), b"of somebody");
        let again = opener.open_or_make(&lock).expect("is there");
        assert_eq!(again.metadata().expect("is there").ino(), made.metadata().expect("is").ino());
    }
}
