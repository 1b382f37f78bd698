//! The mount point: checks it before mounting, removes a dead mount of an earlier run,
//! and unmounts. Never touches a mount of another command.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use verbatim_control::TOKEN_VARIABLE;
use verbatim_files::mounts::unescape;

/// The type of our mounts in mountinfo.
const FILE_SYSTEM: &str = "fuse.rdma-mount";

/// The FUSE device.
const DEVICE: &str = "/dev/fuse";

/// The kernel's settings of mounts, by device number.
const DEVICES: &str = "/sys/class/bdi";

/// The file in which root allows user_allow_other.
const FUSE_CONF: &str = "/etc/fuse.conf";

/// The most symlinks that the kernel follows in a row.
const LINKS_MAX: usize = 40;

/// Why a mount point cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MountpointError {
    /// The path does not exist, or is no folder.
    #[error("cannot mount on {}: {cause}", path.display())]
    Unusable {
        /// The mount point.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
    /// The folder has entries, which the mount would hide.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The path is a mount point already.
    #[error("{} is mounted already", .0.display())]
    Mounted(PathBuf),
    /// The kernel has no FUSE, or this process may not open the device.
    #[error("cannot use {DEVICE}: {0}")]
    Device(io::Error),
    /// --allow-other is not allowed for this user.
    #[error("--allow-other is not for ordinary users here")]
    AllowOther,
    /// The kernel or fusermount3 refused to mount.
    #[error("cannot mount on {}: {cause}", path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The mount is in use.
    #[error("cannot unmount {}: {cause}", path.display())]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
}

impl MountpointError {
    /// The next step for the user.
    pub fn hint(&self) -> String {
        match self {
            Self::Unusable { .. } => "give an empty folder that is yours".into(),
            Self::NotEmpty(_) => "mount on an empty folder: what is in this one would hide".into(),
            Self::Mounted(path) => format!("umount {} first", path.display()),
            Self::Device(error) if error.kind() == io::ErrorKind::NotFound => {
                "load the module: modprobe fuse; in a container: --device /dev/fuse".into()
            }
            Self::Device(_) => "ask for the right to use it, or run as root".into(),
            Self::AllowOther => {
                format!("have root put the line user_allow_other into {FUSE_CONF}, or leave it out")
            }
            Self::Refused { .. } => {
                "as an ordinary user fusermount3 must be installed (package fuse3), and the \
                 folder be yours"
                    .into()
            }
            Self::Busy { path, .. } => format!("fuser -vm {} says who uses it", path.display()),
        }
    }
}

/// Checks whether a mount may go there, and whether `allow_other` is allowed. Unmounts a dead mount
/// of an earlier daemon.
pub(super) fn check_and_clear(path: &Path, allow_other: bool) -> Result<(), MountpointError> {
    if allow_other && !rustix::process::geteuid().is_root() {
        // If the file cannot be read, fusermount3 decides.
        let set = fs::read_to_string(FUSE_CONF).unwrap_or_else(|_| "user_allow_other".into());
        if !allows_other(&set) {
            return Err(MountpointError::AllowOther);
        }
    }
    let device = fs::OpenOptions::new().read(true).write(true).open(DEVICE);
    device.map_err(MountpointError::Device)?;
    let unusable =
        |cause: &str| MountpointError::Unusable { path: path.to_owned(), cause: cause.into() };
    // A dead mount cannot be opened, but mountinfo names it.
    if is_our_mount(path) {
        match fs::metadata(path) {
            Err(error) if error.raw_os_error() == Some(ENOTCONN) => detach(path)?,
            _ => return Err(MountpointError::Mounted(path.to_owned())),
        }
    }
    let found = fs::metadata(path).map_err(|error| unusable(&error.to_string()))?;
    if !found.is_dir() {
        return Err(unusable("it is not a folder"));
    }
    let mut entries = fs::read_dir(path).map_err(|error| unusable(&error.to_string()))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(MountpointError::NotEmpty(path.to_owned())),
    }
}

/// The real path of a mount point, as mountinfo shows it. A dead mount cannot be opened, but a
/// symlink to it can be read.
pub(super) fn resolve(path: &Path) -> PathBuf {
    // Without a trailing slash, which would follow a symlink.
    let mut at: PathBuf = path.components().collect();
    for _ in 0..LINKS_MAX {
        if let Ok(full_path) = at.canonicalize() {
            return full_path;
        }
        let Ok(target) = fs::read_link(&at) else { break };
        at = at.parent().unwrap_or(Path::new("/")).join(target);
    }
    at
}

/// Whether fuse.conf allows ordinary users the option allow_other.
fn allows_other(settings: &str) -> bool {
    settings.lines().any(|line| line.trim() == "user_allow_other")
}

/// Wraps an error of mounting.
pub(super) fn mount_error(path: &Path, cause: io::Error) -> MountpointError {
    MountpointError::Refused { path: path.to_owned(), cause }
}

/// Whether a mount of this command is there.
fn is_our_mount(path: &Path) -> bool {
    let found = mountinfo_line(path);
    found
        .as_deref()
        .and_then(|line| line.split(" - ").nth(1))
        .is_some_and(|kind| kind.split(' ').next() == Some(FILE_SYSTEM))
}

/// The mountinfo line of the mount at this path.
fn mountinfo_line(path: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    // Only the parent is resolved: a dead mount answers no stat.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new(".")).canonicalize().ok()?;
    let full_path = path.file_name().map_or(parent.clone(), |name| parent.join(name));
    // Of several mounts at one path the last is on top.
    let last = mounts.lines().rev().find(|line| {
        let place = line.split(' ').nth(4).unwrap_or_default();
        unescape(place.as_bytes()) == full_path.as_os_str().as_encoded_bytes()
    });
    last.map(str::to_owned)
}

/// Sets the kernel's read-ahead of the mount, which starts lower and which only root may raise.
/// Larger reads replace several small ones.
pub(super) fn set_read_ahead(path: &Path, bytes: u32) -> io::Result<()> {
    let unfound = || io::Error::from(io::ErrorKind::NotFound);
    let line = mountinfo_line(path).filter(|_| is_our_mount(path)).ok_or_else(unfound)?;
    let device = line.split(' ').nth(2).ok_or_else(unfound)?;
    let setting = Path::new(DEVICES).join(device).join("read_ahead_kb");
    fs::write(setting, (bytes >> 10).to_string())
}

/// Unmounts, if the mount is not in use.
pub(super) fn unmount(path: &Path) -> Result<(), MountpointError> {
    unmount_with(path, false)
}

/// Detaches the mount at once; processes that use it keep it until they end.
pub(super) fn detach(path: &Path) -> Result<(), MountpointError> {
    unmount_with(path, true)
}

fn unmount_with(path: &Path, lazily: bool) -> Result<(), MountpointError> {
    use rustix::mount::{UnmountFlags, unmount};
    if !is_our_mount(path) {
        return Ok(());
    }
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let cause = match unmount(path, flags) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::PERM) => match run_fusermount(path, lazily) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        },
        Err(error) => error.into(),
    };
    Err(MountpointError::Busy { path: path.to_owned(), cause })
}

/// Unmounts by fusermount3, as an ordinary user must.
fn run_fusermount(path: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { "-uzq" } else { "-uq" };
    let mut command = Command::new("fusermount3");
    command.env_remove(TOKEN_VARIABLE);
    command.arg(flags).arg("--").arg(path).stdin(Stdio::null()).stderr(Stdio::null());
    match command.status()?.success() {
        true => Ok(()),
        false => Err(io::Error::from(io::ErrorKind::ResourceBusy)),
    }
}

/// The errno of a mount whose daemon is gone.
const ENOTCONN: i32 = 107;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_entries_and_a_file_are_refused_as_mountpoints() {
        if fs::OpenOptions::new().read(true).write(true).open(DEVICE).is_err() {
            return;
        }
        let dir = tempfile::tempdir().expect("folder");
        assert!(check_and_clear(dir.path(), false).is_ok());
        let file = dir.path().join("a");
        fs::write(&file, b"x").expect("writes");
        assert!(matches!(check_and_clear(dir.path(), false), Err(MountpointError::NotEmpty(_))));
        assert!(matches!(check_and_clear(&file, false), Err(MountpointError::Unusable { .. })));
        assert!(matches!(
            check_and_clear(&dir.path().join("b"), false),
            Err(MountpointError::Unusable { .. })
        ));
        assert!(unmount(dir.path()).is_ok(), "what is not ours is left alone");
    }

    #[test]
    fn a_symlink_resolves_to_its_mountpoint_even_if_the_mountpoint_cannot_be_read() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().expect("folder");
        let dir = dir.path().canonicalize().expect("is there");
        let at = |name: &str| dir.join(name);
        fs::create_dir(at("place")).expect("makes");
        symlink("place", at("one")).expect("links");
        symlink(at("one"), at("two")).expect("links");
        symlink("gone", at("dead")).expect("links");
        symlink("round", at("round")).expect("links");
        for name in ["place", "one", "two", "two/"] {
            assert_eq!(resolve(&at(name)), at("place"), "{name}");
        }
        assert_eq!((resolve(&at("dead")), resolve(&at("round"))), (at("gone"), at("round")));
    }

    #[test]
    fn ordinary_users_allow_other_users_only_with_user_allow_other() {
        assert!(allows_other("# a\n user_allow_other \nmount_max = 1"));
        assert!(!allows_other("#user_allow_other\nmount_max = 1") && !allows_other(""));
    }
}
