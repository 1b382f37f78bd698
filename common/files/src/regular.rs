//! Opening regular files and nothing else: to open a device, a tape or a watchdog, is
//! to use it, and to open a pipe wakes whoever writes to it. Each name is looked at
//! first, and what was opened is compared with that: whoever puts a device in the
//! place of a file between these two calls has it opened. `folder` opens in this way what
//! is below a folder; a user's own file is opened here.

use crate::identity::stat_open;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use verbatim_proto::{Code, Fault};

/// How often a name is looked at that is another file when it is opened.
pub(crate) const LOOKS_MAX: usize = 16;

/// Opens a regular file of this user's own, links and all, as `Folder::open_file` does; `what` is
/// for messages.
pub fn open_own(path: &Path, what: &str) -> Result<File, Fault> {
    let cannot = |error: Errno| Fault::from_io(what, &error.into());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    for _ in 0..LOOKS_MAX {
        let wanted = StatxFlags::TYPE | StatxFlags::INO;
        let looked = statx(CWD, path, AtFlags::empty(), wanted).map_err(cannot)?;
        require_regular(&looked, || what.to_owned())?;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(cannot)?;
        let stat = stat_open(&fd).map_err(|e| Fault::from_io(what, &e))?;
        if is_same(&looked, &stat) {
            return Ok(File::from(fd));
        }
    }
    Err(Fault::new(Code::Changed, format!("{what}: it is replaced all the time")))
}

/// Whether a name in an open folder is a regular file, or nothing.
pub(crate) fn is_regular_or_absent(folder: impl AsFd, name: &OsStr) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match statx(folder, name, flags, StatxFlags::TYPE) {
        Ok(stat) => is_regular(&stat),
        Err(error) => error == Errno::NOENT,
    }
}

pub(crate) fn is_regular(stat: &Statx) -> bool {
    FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile
}

pub(crate) fn require_regular(stat: &Statx, what: impl Fn() -> String) -> Result<(), Fault> {
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => {
            Err(Fault::new(Code::IsFolder, format!("{}: it is a folder", what())))
        }
        _ => Err(Fault::new(Code::Special, format!("{}: it is not a regular file", what()))),
    }
}

/// Whether the file that was opened is the one that was looked at.
pub(crate) fn is_same(looked: &Statx, opened: &Statx) -> bool {
    let of = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
    of(looked) == of(opened) && is_regular(opened)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use crate::partial::{LOCK, open_held};
    use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
    use rustix::fs::mknodat;
    use std::fs;
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use verbatim_proto::WirePath;

    fn path(text: &str) -> WirePath {
        WirePath::parse(text.as_bytes()).expect("plain")
    }

    /// The kernel's list of what is opened in a folder.
    struct Opens(OwnedFd);

    impl Opens {
        fn of(folder: &Path) -> Self {
            let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).expect("makes");
            inotify::add_watch(&fd, folder, WatchFlags::OPEN).expect("watches");
            Self(fd)
        }

        /// The names that were opened since.
        fn names(&self) -> Vec<String> {
            let mut buffer = vec![MaybeUninit::uninit(); 4096];
            let mut reader = Reader::new(&self.0, &mut buffer);
            let event = std::iter::from_fn(|| {
                let event = reader.next().ok()?;
                Some(event.file_name().map(|name| name.to_string_lossy().into_owned()))
            });
            event.flatten().collect()
        }
    }

    /// A folder with a file, a pipe, a socket, a device where this user may make one, and links to
    /// them; and their names.
    fn sample() -> (tempfile::TempDir, Folder, Vec<&'static str>) {
        let dir = tempfile::tempdir().expect("folder");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), b"content").expect("writes");
        let make =
            |name, kind, device| mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o600), device);
        make("pipe", FileType::Fifo, 0).expect("makes a pipe");
        make("socket", FileType::Socket, 0).expect("makes a socket");
        let mut special = vec!["pipe", "socket"];
        // /dev/null, which does nothing when it is opened.
        if make("device", FileType::CharacterDevice, rustix::fs::makedev(1, 3)).is_ok() {
            special.push("device");
        }
        for (link, to) in [("to pipe", "pipe"), ("to file", "file")] {
            std::os::unix::fs::symlink(to, at(link)).expect("links");
        }
        special.push("to pipe");
        let folder = Folder::open(dir.path()).expect("opens");
        (dir, folder, special)
    }

    #[test]
    fn pipes_and_devices_are_refused_and_never_opened() {
        let (dir, folder, special) = sample();
        let opens = Opens::of(dir.path());
        // Twice, because the folder is known the second time.
        for name in special.iter().chain(&special) {
            let refused = folder.open_file(&path(name)).map(drop);
            assert_eq!(opens.names(), [""; 0], "{name} was opened");
            let fault = refused.expect_err("it is no file");
            assert_eq!(fault.code, Code::Special, "{name}: {fault}");
        }
        for name in ["file", "to file"] {
            folder.open_file(&path(name)).expect("opens");
            assert_eq!(opens.names(), ["file"], "the kernel tells what is opened");
        }
    }

    #[test]
    fn a_file_in_the_place_of_another_is_opened_and_a_pipe_there_is_not() {
        let (dir, folder, _) = sample();
        fs::create_dir(dir.path().join("sub")).expect("makes");
        fs::write(dir.path().join("sub/a"), b"one").expect("writes");
        folder.open_file(&path("sub/a")).expect("opens");
        // The folder that is kept is elsewhere now, and another has its name.
        fs::rename(dir.path().join("sub"), dir.path().join("old")).expect("renames");
        fs::create_dir(dir.path().join("sub")).expect("makes");
        fs::rename(dir.path().join("pipe"), dir.path().join("sub/b")).expect("renames");
        fs::write(dir.path().join("sub/a"), b"another").expect("writes");
        fs::write(dir.path().join("old/c"), b"elsewhere").expect("writes");
        let (file, _) = folder.open_file(&path("sub/a")).expect("opens");
        assert_eq!(std::io::read_to_string(file).expect("reads"), "another");
        let opens = Opens::of(&dir.path().join("sub"));
        assert_eq!(folder.open_file(&path("sub/b")).expect_err("a pipe").code, Code::Special);
        assert_eq!(folder.open_file(&path("sub/c")).expect_err("gone").code, Code::NotFound);
        assert_eq!(opens.names(), [""; 0]);
    }

    #[test]
    fn a_pipe_that_a_user_names_is_refused_and_never_opened() {
        let (dir, _folder, special) = sample();
        let opens = Opens::of(dir.path());
        for name in special {
            let opened = open_own(&dir.path().join(name), "cannot open it").map(drop);
            assert_eq!(opens.names(), [""; 0], "{name} was opened");
            assert_eq!(opened.expect_err("no file").code, Code::Special, "{name}");
        }
        open_own(&dir.path().join("to file"), "cannot open it").expect("links are followed");
    }

    #[test]
    fn a_pipe_with_the_name_of_a_partial_file_is_never_opened() {
        let (dir, folder, _) = sample();
        let opens = Opens::of(dir.path());
        let held = open_held(folder.fd(), b"pipe", OFlags::RDWR, 0, LOCK).map(drop);
        assert_eq!(opens.names(), [""; 0], "{held:?}");
        assert!(held.is_err(), "it is no file");
        open_held(folder.fd(), b"file", OFlags::RDWR, 0, LOCK).expect("it is ours");
    }
}
