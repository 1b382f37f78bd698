//! Whose something is and which names are one file, as the file system tells it. A
//! file of several names is looked at once more by what is open of it, so that its
//! version is the one that whoever opens it gets. Called by `Folder` and `Walk`.

use crate::identity::{Identity, file_system_of, stat_open};
use rustix::fs::{FileType, Mode, OFlags, Statx, openat};
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::time::SystemTime;
use verbatim_proto::{Named, Ties};

/// The ties of something with this status; `named` is asked only of a file of several names.
pub(crate) fn ties_of(stat: &Statx, named: impl FnOnce() -> io::Result<Named>) -> Ties {
    let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
    // One that cannot be told is a file of its own to whoever asks.
    let twin = (is_file && stat.stx_nlink > 1).then(named).and_then(Result::ok);
    Ties { uid: stat.stx_uid, gid: stat.stx_gid, names: stat.stx_nlink, twin }
}

/// Which file is open.
pub(crate) fn named_of(file: impl AsFd) -> io::Result<Named> {
    let identity = Identity::of_status(file_system_of(&file)?, &stat_open(&file)?);
    let settled = !identity.is_racy(SystemTime::now());
    Ok(Named { file: identity.file(), version: settled.then(|| identity.version()) })
}

/// Which file a name in an open folder leads to.
pub(crate) fn named_at(folder: impl AsFd, name: &OsStr) -> io::Result<Named> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    named_of(openat(folder, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use crate::{Folder, Source, Walk};
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use verbatim_proto::WirePath;

    #[test]
    fn names_of_one_file_are_told_as_one_with_the_version_that_opening_it_shows() {
        let dir = tempfile::tempdir().expect("folder");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("sub")).expect("folder");
        fs::write(at("one"), b"12345").expect("writes");
        fs::write(at("alone"), b"12345").expect("writes");
        fs::hard_link(at("one"), at("sub/two")).expect("links");
        symlink("one", at("link")).expect("links");
        let folder = Folder::open(dir.path()).expect("opens");
        let path = |text: &str| WirePath::parse(text.as_bytes()).expect("plain");
        let look = |text: &str| folder.look(&path(text), false).expect("is there").1;
        let (one, two) = (look("one"), look("sub/two"));
        assert_eq!((one, one.names), (two, 2));
        let named = one.twin.expect("it has two names");
        assert_eq!(named.version, None, "it is young");
        assert_eq!((look("alone").twin, look("link").twin, look("sub").twin), (None, None, None));
        let own = fs::metadata(at("one")).expect("is there");
        assert_eq!((one.uid, one.gid), (own.uid(), own.gid()));
        std::thread::sleep(std::time::Duration::from_millis(2_050));
        let version = Source::open(&folder, &path("one"), path("one")).expect("opens");
        let version = version.info().version.expect("it is settled");
        let settled = look("sub/two").twin.expect("it has two names");
        assert_eq!((settled.file, settled.version), (named.file, Some(version)));
        // A walk tells the same of each entry.
        let fd = folder.open_folder(&WirePath::root()).expect("opens");
        let mut walk = Walk::new(fd, true).expect("begins").telling_ties();
        let mut seen = 0;
        while let Some(found) = walk.next() {
            let name = found.expect("an entry").path.to_string();
            assert_eq!(walk.ties(), Some(look(&name)), "{name}");
            seen += 1;
        }
        assert_eq!(seen, 5);
    }
}
