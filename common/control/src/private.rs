//! Files that only this user may read: made in one step, replaced in one step,
//! refused when others can read them. Owns the modes and the bound on sizes;
//! never looks at the content. The modules that keep keys call it.

use crate::ControlError;
use rustix::fs::{FileType, FsWord, Mode, OFlags, statfs};
use std::{
    fs::{DirBuilder, File, Metadata, Permissions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
    time::{Duration, Instant},
};
use tempfile::NamedTempFile;

/// Makes a folder, and those above it, for this user alone; one that is there stays as it is.
pub(crate) fn make_dir(dir: &Path) -> Result<(), ControlError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| ControlError::local(format!("cannot make {}", dir.display()), &e))
}

/// Writes a file that must not be there yet; returns false, and changes nothing, if it is.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> Result<bool, ControlError> {
    let written = stage(path, bytes)?.persist_noclobber(path);
    match written {
        Ok(_) => Ok(true),
        Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(cannot("write", path, &e.error)),
    }
}

/// Writes a file in the place of whatever is there.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), ControlError> {
    stage(path, bytes)?.persist(path).map(|_| ()).map_err(|e| cannot("write", path, &e.error))
}

/// Writes a file in the place of whatever is there, and holds a lock on it from before it can
/// be found until the returned handle goes.
pub(crate) fn replace_held(path: &Path, bytes: &[u8]) -> Result<File, ControlError> {
    let staged = stage(path, bytes)?;
    staged.as_file().lock().map_err(|e| cannot("lock", path, &e))?;
    staged.persist(path).map_err(|e| cannot("write", path, &e.error))
}

/// Returns whether somebody holds a file that was written so.
pub(crate) fn is_held(path: &Path) -> bool {
    let tried = open_readable(path).map(|file| file.try_lock_shared());
    matches!(tried, Ok(Err(std::fs::TryLockError::WouldBlock)))
}

/// Removes a file that was written so and that nobody holds any more. What took its place in the
/// meantime stays.
pub(crate) fn remove_left(path: &Path) -> io::Result<()> {
    let left = open_readable(path)?;
    // Kept until it is gone.
    if left.try_lock().is_ok() && left.metadata()?.ino() == std::fs::metadata(path)?.ino() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Writes a file that others may read in the place of whatever is there.
pub(crate) fn replace_public(path: &Path, bytes: &[u8]) -> Result<(), ControlError> {
    let staged = stage(path, bytes)?;
    let opened = staged.as_file().set_permissions(Permissions::from_mode(0o644));
    opened.map_err(|e| cannot("write", path, &e))?;
    staged.persist(path).map(|_| ()).map_err(|e| cannot("write", path, &e.error))
}

/// How long a folder may be somebody else's, who changes a small file in it.
const LOCK_MAX: Duration = Duration::from_secs(10);

/// How often it is tried again.
const LOCK_EVERY: Duration = Duration::from_millis(5);

/// Makes the folder of a file and locks it while the returned handle lives, so that two who
/// change the file do not undo each other's work.
pub(crate) fn lock_folder_of(path: &Path) -> Result<File, ControlError> {
    lock_within(path, LOCK_MAX)
}

fn lock_within(path: &Path, max: Duration) -> Result<File, ControlError> {
    let dir = path.parent().expect("the path ends in a file name");
    make_dir(dir)?;
    let fault = |e: &io::Error| ControlError::local(format!("cannot lock {}", dir.display()), e);
    let folder = File::open(dir).map_err(|e| fault(&e))?;
    let until = Instant::now() + max;
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(LOCK_EVERY);
            }
            Err(TryLockError::WouldBlock) => return Err(fault(&io::ErrorKind::TimedOut.into())),
            Err(TryLockError::Error(error)) => return Err(fault(&error)),
        }
    }
}

/// Reads a file that anyone may read; none if it is not there.
pub(crate) fn read_public(path: &Path) -> Result<Option<Vec<u8>>, ControlError> {
    open(path)?.map(|(file, _)| read_bounded(path, file)).transpose()
}

/// Reads a file that holds a secret, and refuses one that group or others can get at.
pub(crate) fn read_secret(path: &Path) -> Result<Option<Vec<u8>>, ControlError> {
    let Some((file, metadata)) = open(path)? else { return Ok(None) };
    check_mode(path, &metadata)?;
    read_bounded(path, file).map(Some)
}

/// Reads a file that may hold a secret, and says whether it is safe with one.
#[allow(clippy::type_complexity)]
pub(crate) fn read_guarded(
    path: &Path,
) -> Result<Option<(Vec<u8>, Result<(), ControlError>)>, ControlError> {
    let Some((file, metadata)) = open(path)? else { return Ok(None) };
    Ok(Some((read_bounded(path, file)?, check_mode(path, &metadata))))
}

/// Reads a secret that must also be a file of this very user.
pub(crate) fn read_own_secret(path: &Path) -> Result<Option<Vec<u8>>, ControlError> {
    let Some((file, metadata)) = open(path)? else { return Ok(None) };
    check_owner(path, &metadata, rustix::process::geteuid().as_raw())?;
    check_mode(path, &metadata)?;
    read_bounded(path, file).map(Some)
}

/// Takes a file's bytes as text.
pub(crate) fn text(path: &Path, bytes: Vec<u8>) -> Result<String, ControlError> {
    String::from_utf8(bytes).map_err(|_| bad(path, "it is not text"))
}

/// Makes the error of a file that was read but cannot be used.
pub(crate) fn bad(path: &Path, cause: impl ToString) -> ControlError {
    let what = format!("cannot use {}", path.display());
    ControlError::Local { what, cause: cause.to_string(), hint: None }
}

/// Writes a temporary file beside `path`; tempfile makes it with mode 0600.
fn stage(path: &Path, bytes: &[u8]) -> Result<NamedTempFile, ControlError> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stage = || {
        let mut file = NamedTempFile::new_in(dir)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        Ok(file)
    };
    stage().map_err(|e| cannot("write", path, &e))
}

/// Opens a file and looks at what was opened, so that nobody can swap it in between.
fn open(path: &Path) -> Result<Option<(File, Metadata)>, ControlError> {
    match open_readable(path).and_then(|file| file.metadata().map(|metadata| (file, metadata))) {
        Ok(opened) => Ok(Some(opened)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(cannot("read", path, &e)),
    }
}

/// Opens what can be read to its end: a regular file, or a pipe without a name, as a shell has it
/// for `<(command)`. A pipe of a file system would be waited for, and to open a device is to use
/// it: whoever may write to the folder could have root do that. Takes one descriptor.
fn open_readable(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    for _ in 0..LOOKS_MAX {
        let looked = rustix::fs::stat(path)?;
        let is_nameless = || statfs(path).is_ok_and(|it| it.f_type == PIPEFS_MAGIC);
        let more = match FileType::from_raw_mode(looked.st_mode) {
            FileType::RegularFile => OFlags::NONBLOCK,
            FileType::Fifo if is_nameless() => OFlags::empty(),
            FileType::Directory => return Err(io::ErrorKind::IsADirectory.into()),
            _ => return Err(io::Error::other("it is not a regular file")),
        };
        let file = File::from(rustix::fs::open(path, flags | more, Mode::empty())?);
        let now = rustix::fs::fstat(&file)?;
        if (now.st_dev, now.st_ino) == (looked.st_dev, looked.st_ino) {
            return Ok(file);
        }
    }
    Err(io::Error::other("it is replaced all the time"))
}

/// How often a name is looked at that is another file when it is opened.
const LOOKS_MAX: usize = 16;

fn read_bounded(path: &Path, file: File) -> Result<Vec<u8>, ControlError> {
    // As long as it will be: what a vector grows out of is left behind, and it may be a secret.
    let expected = file.metadata().map_or(0, |metadata| metadata.len()).min(FILE_BYTES_MAX);
    let mut bytes = Vec::with_capacity(expected as usize + ROOM_BYTES);
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| cannot("read", path, &e))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(bad(path, format!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn check_mode(path: &Path, metadata: &Metadata) -> Result<(), ControlError> {
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(ControlError::Local {
        what: format!("cannot use {}", path.display()),
        cause: format!("it holds a secret and its mode {mode:04o} is open to others"),
        hint: Some(format!("chmod 600 {}", path.display())),
    })
}

fn check_owner(path: &Path, metadata: &Metadata, user: u32) -> Result<(), ControlError> {
    let owner = metadata.uid();
    if owner == user {
        return Ok(());
    }
    Err(bad(path, format!("it belongs to user {owner}, and this is user {user}")))
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> ControlError {
    ControlError::local(format!("cannot {verb} {}", path.display()), error)
}

/// The file system of pipes that have no name.
const PIPEFS_MAGIC: FsWord = 0x5049_5045;

/// Room behind what is expected, so that its end is found without growing.
const ROOM_BYTES: usize = 64;

/// The largest file of keys that is read: 1 MiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_folder_that_stays_somebody_elses_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let first = lock_folder_of(&path).unwrap();
        let refused = lock_within(&path, Duration::from_millis(20)).unwrap_err();
        assert!(refused.to_string().contains("cannot lock"), "{refused}");
        drop(first);
        lock_within(&path, Duration::ZERO).unwrap();
    }

    #[test]
    fn new_files_are_private_and_never_overwrite() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/secret");
        make_dir(path.parent().unwrap()).unwrap();
        assert!(write_new(&path, b"first").unwrap());
        assert!(!write_new(&path, b"second").unwrap());
        assert_eq!(read_own_secret(&path).unwrap().unwrap(), b"first");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().mode() & 0o777, 0o700);
        replace(&path, b"third").unwrap();
        assert_eq!(read_secret(&path).unwrap().unwrap(), b"third");
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let file = NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let error = check_owner(file.path(), &metadata, metadata.uid() + 1).unwrap_err();
        assert!(error.to_string().contains("belongs to user"), "{error}");
    }

    #[test]
    fn a_file_without_end_is_not_read_to_its_end() {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        let error = read_public(file.path()).unwrap_err();
        assert!(error.to_string().contains("larger than"), "{error}");
    }

    #[test]
    fn devices_and_pipes_with_a_name_are_not_opened_and_a_pipe_of_a_shell_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
        for path in [&*pipe, Path::new("/dev/zero"), Path::new("/dev/tty")] {
            let error = read_public(path).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{error}");
        }
        let (from, mut to) = io::pipe().unwrap();
        to.write_all(b"text").unwrap();
        drop(to);
        let path = format!("/proc/self/fd/{}", from.as_raw_fd());
        assert_eq!(read_public(Path::new(&path)).unwrap().unwrap(), b"text");
    }
}
