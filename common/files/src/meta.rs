//! Metadata: reads it from what is open, and gives a file what of it is allowed here
//! (`rules`) before it takes its name. Called by sources and walks on one side, by
//! targets and folders on the other.

use crate::identity::nanoseconds;
use crate::rules::{ACL_DEFAULT, is_allowed, mode_of_existing, privileged};
pub use crate::rules::{Allowed, GIVING, Kind, Rules, allowed, expected};
use rustix::fs::{AtFlags, Gid, Mode, Statx, Timespec, Timestamps, Uid, XattrFlags};
use rustix::fs::{chownat, fchmod, fchown, futimens, utimensat};
use rustix::fs::{fgetxattr, flistxattr, fremovexattr, fsetxattr, lgetxattr, llistxattr};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use verbatim_proto::habits::{ACL_ACCESS, ACL_MASK};
use verbatim_proto::meta::Xattr;
use verbatim_proto::units::XATTR_BYTES_MAX;
use verbatim_proto::{Dropped, Fault, Meta};

/// Whether the kernel tells this thread of `trusted.*` attributes.
pub(crate) fn sees_all() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Labels that the security modules of one machine put on its files; elsewhere they mean nothing.
const LABELS: [&[u8]; 4] =
    [b"security.selinux", b"security.SMACK64", b"security.ima", b"security.evm"];

/// The metadata that a status tells: all but the extended attributes.
pub(crate) fn of_status(stat: &Statx) -> Meta {
    Meta {
        mode: u32::from(stat.stx_mode) & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        atime_ns: nanoseconds(&stat.stx_atime),
        mtime_ns: nanoseconds(&stat.stx_mtime),
        xattrs: Vec::new(),
    }
}

/// Reads the extended attributes of what is open; `trusted.*` only where `trusted` says so,
/// because only root may see them. `what` is for messages.
pub fn xattrs_of(fd: impl AsFd, trusted: bool, what: &str) -> Result<Vec<Xattr>, Fault> {
    let fd = fd.as_fd();
    let list = |names: &mut [u8]| flistxattr(fd, names);
    let get = |name: &OsStr, value: &mut [u8]| fgetxattr(fd, name, value);
    Ok(read_xattrs(list, get, trusted, what)?.unwrap_or_default())
}

/// Reads the extended attributes of a name in an open folder, or in the one that this thread is
/// in. It need not be opened for it. None where it has none, whoever is told.
pub(crate) fn xattrs_at(
    folder: Option<BorrowedFd<'_>>,
    name: &OsStr,
    trusted: bool,
    what: &impl std::fmt::Display,
) -> Result<Option<Vec<Xattr>>, Fault> {
    let through_proc = folder.map(|folder| {
        let mut path = Vec::with_capacity(FD_PATH_BYTES + name.len());
        // Writing to memory does not fail.
        let _ = write!(path, "/proc/self/fd/{}/", folder.as_raw_fd());
        path.extend_from_slice(name.as_bytes());
        path
    });
    let path = through_proc.as_deref().map_or(name, OsStr::from_bytes);
    let list = |names: &mut [u8]| llistxattr(path, names);
    let get = |name: &OsStr, value: &mut [u8]| lgetxattr(path, name, value);
    read_xattrs(list, get, trusted, what)
}

/// Room for the name that an open folder has in /proc, and a slash.
const FD_PATH_BYTES: usize = 32;

fn read_xattrs(
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&OsStr, &mut [u8]) -> Result<usize, Errno>,
    trusted: bool,
    what: &(impl std::fmt::Display + ?Sized),
) -> Result<Option<Vec<Xattr>>, Fault> {
    let fault =
        |e: Errno| Fault::from_io(format!("cannot read extended attributes of {what}"), &e.into());
    let (mut few, mut many) = ([0; NAMES_BYTES], Vec::new());
    let mut names: &mut [u8] = &mut few;
    let count = match list(names) {
        Err(Errno::RANGE) => {
            many.resize(XATTR_BYTES_MAX, 0);
            names = &mut many;
            list(names)
        }
        other => other,
    };
    let count = match count {
        // Most files have none.
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(None),
        Ok(count) => count,
        Err(error) => return Err(fault(error)),
    };
    let is_label = |name: &[u8]| LABELS.iter().any(|label| name.starts_with(label));
    let (mut xattrs, mut value, mut has_some) = (Vec::new(), Vec::new(), false);
    let names = names[..count].split(|&byte| byte == 0);
    for name in names.filter(|name| !name.is_empty() && !is_label(name)) {
        has_some = true;
        if !trusted && name.starts_with(b"trusted.") {
            continue;
        }
        value.resize(XATTR_BYTES_MAX, 0);
        match get(OsStr::from_bytes(name), value.as_mut_slice()) {
            Ok(len) => xattrs.push(Xattr { name: name.to_vec(), value: value[..len].to_vec() }),
            // Removed meanwhile, or not for this user to see.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(fault(error)),
        }
    }
    let all = Meta { xattrs, ..Meta::default() };
    check(&all, what)?;
    Ok(has_some.then_some(all.xattrs))
}

/// Room for the names of most files.
const NAMES_BYTES: usize = 1024;

/// Gives an open file or folder what the rules allow of this metadata, and says what they, or
/// its file system, do not. `what` is for messages.
pub fn apply(
    fd: impl AsFd,
    what: impl std::fmt::Display,
    kind: Kind,
    meta: &Meta,
    rules: &Rules,
) -> Result<Dropped, Fault> {
    let fault = |part: &str, error: Errno| {
        Fault::from_io(format!("cannot keep {part} of {what}"), &error.into())
    };
    check(meta, &what)?;
    let (Allowed { owner, mut mode, xattrs }, mut dropped) = allowed(meta, kind, rules);
    // Attributes need write permission, which the final mode may not give.
    if !xattrs.is_empty() {
        let open = if kind == Kind::Folder { 0o700 } else { 0o600 };
        fchmod(&fd, Mode::from_raw_mode(open)).map_err(|e| fault("the mode", e))?;
    }
    // Only folders have one to hand down.
    let acls: &[&[u8]] =
        if kind == Kind::Folder { &[ACL_ACCESS, ACL_DEFAULT] } else { &[ACL_ACCESS] };
    for &acl in acls {
        if !xattrs.iter().any(|xattr| xattr.name == acl) {
            // One that its folder handed down is not the source's. Mostly there is none, and looking
            // costs less than removing nothing.
            let acl = OsStr::from_bytes(acl);
            if fgetxattr(&fd, acl, &mut [0_u8; 0]) != Err(Errno::NODATA) {
                let _ = fremovexattr(&fd, acl);
            }
        }
    }
    // Those of the owner while it is ours to write; file capabilities do not outlast its change.
    let (late, early): (Vec<&Xattr>, _) = xattrs.into_iter().partition(|it| privileged(&it.name));
    let set = |xattrs: Vec<&Xattr>, mode: &mut u32, dropped: &mut Dropped| {
        for xattr in xattrs {
            let name = OsStr::from_bytes(&xattr.name);
            match fsetxattr(&fd, name, &xattr.value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::PERM) => {
                    dropped.xattrs += 1;
                    if xattr.name == ACL_ACCESS {
                        *mode &= !ACL_MASK;
                    }
                }
                Err(error) => return Err(fault(&format!("attribute {}", name.display()), error)),
            }
        }
        Ok(())
    };
    set(early, &mut mode, &mut dropped)?;
    if let Some((uid, gid)) = owner {
        match fchown(&fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))) {
            Ok(()) => {}
            // Root of a container, or of a file system that squashes it, may not either.
            Err(Errno::PERM | Errno::INVAL) => {
                dropped.owners = 1;
                mode &= !0o6000;
            }
            Err(error) => return Err(fault("the owner", error)),
        }
    }
    set(late, &mut mode, &mut dropped)?;
    if owner.is_none() && kind == Kind::File && mode & 0o6000 != 0 {
        let allowed = narrowed(&fd, mode, rules).map_err(|e| fault("the mode", e))?;
        dropped.special_bits |= u64::from(allowed != mode);
        mode = allowed;
    }
    fchmod(&fd, Mode::from_raw_mode(mode)).map_err(|e| fault("the mode", e))?;
    futimens(&fd, &times(meta)).map_err(|e| fault("the times", e))?;
    Ok(dropped)
}

/// What of a mode a file gets that keeps its owner: who may set modes of what is another's must
/// not give another's file setuid and setgid bits.
fn narrowed(fd: impl AsFd, mode: u32, rules: &Rules) -> Result<u32, Errno> {
    let now = rustix::fs::fstat(fd)?;
    Ok(mode_of_existing(mode, (now.st_uid, now.st_gid), rules))
}

/// Removes the attributes that the rules would let arrive, and that this metadata does not have:
/// what is given to something that was there before must be all it has.
pub(crate) fn remove_other_xattrs(
    fd: impl AsFd,
    meta: &Meta,
    kind: Kind,
    rules: &Rules,
    what: &str,
) -> Result<(), Fault> {
    let is_meant = |name: &[u8]| meta.xattrs.iter().any(|xattr| xattr.name == name);
    for there in xattrs_of(&fd, rules.privileged_xattrs, what)? {
        if is_meant(&there.name) || !is_allowed(&there.name, kind, rules) {
            continue;
        }
        match fremovexattr(&fd, OsStr::from_bytes(&there.name)) {
            Ok(()) | Err(Errno::NODATA | Errno::PERM | Errno::OPNOTSUPP) => {}
            Err(error) => {
                let text = format!("cannot remove an attribute of {what}");
                return Err(Fault::from_io(text, &error.into()));
            }
        }
    }
    Ok(())
}

/// Gives a symbolic link in an open folder its owner and times.
pub(crate) fn apply_to_link(
    folder: impl AsFd,
    name: &OsStr,
    meta: &Meta,
    rules: &Rules,
) -> Result<Dropped, Errno> {
    let (Allowed { owner, .. }, mut dropped) = allowed(meta, Kind::Link, rules);
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    if let Some((uid, gid)) = owner {
        match chownat(&folder, name, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), flags) {
            Err(Errno::PERM | Errno::INVAL) => dropped.owners = 1,
            result => result?,
        }
    }
    utimensat(&folder, name, &times(meta), flags)?;
    Ok(dropped)
}

fn times(meta: &Meta) -> Timestamps {
    let (last_access, last_modification) = (stamp(meta.atime_ns), stamp(meta.mtime_ns));
    Timestamps { last_access, last_modification }
}

/// Nanoseconds since 1970 as a time stamp.
pub(crate) fn stamp(ns: i64) -> Timespec {
    Timespec { tv_sec: ns.div_euclid(NS_PER_SECOND), tv_nsec: ns.rem_euclid(NS_PER_SECOND) }
}

const NS_PER_SECOND: i64 = 1_000_000_000;

/// Refuses metadata that is none, naming what it is of.
fn check(meta: &Meta, what: impl std::fmt::Display) -> Result<(), Fault> {
    meta.check().map_err(|f| Fault::new(f.code, format!("cannot keep {what}: {}", f.text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_has_attributes_also_where_they_are_not_told() {
        let read = |names: &'static [u8], trusted: bool| {
            let list = |into: &mut [u8]| {
                into[..names.len()].copy_from_slice(names);
                Ok(names.len())
            };
            read_xattrs(list, |_, _| Ok(0), trusted, "it").map(|found| found.map(|all| all.len()))
        };
        assert_eq!(read(b"", false), Ok(None));
        assert_eq!(read(b"security.selinux\0", false), Ok(None), "they mean nothing elsewhere");
        assert_eq!(read(b"trusted.x\0", false), Ok(Some(0)));
        assert_eq!(read(b"trusted.x\0security.selinux\0user.y\0", true), Ok(Some(2)));
    }

    #[test]
    fn what_is_read_of_a_file_is_what_another_gets() {
        let (from, to) = (file(), file());
        let mut meta = Meta { mode: 0o440, atime_ns: -1_500_000_001, ..of(&from) };
        meta.mtime_ns = 1_234_567_890_123_456_789;
        meta.xattrs.push(Xattr { name: b"user.\xff".to_vec(), value: vec![0, 255] });
        meta.xattrs.push(Xattr { name: b"user.empty".to_vec(), value: Vec::new() });
        let dropped = apply(&from, "from", Kind::File, &meta, &Rules::of_user()).expect("applies");
        if dropped.xattrs > 0 {
            return; // A file system without attributes: nothing to compare.
        }
        let mut read = Meta { xattrs: xattrs_of(&from, true, "from").expect("reads"), ..of(&from) };
        read.xattrs.sort_by(|a, b| a.name.cmp(&b.name));
        meta.xattrs.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(read, meta);
        apply(&to, "to", Kind::File, &read, &Rules::of_user()).expect("applies");
        let again = xattrs_of(&to, true, "to").expect("reads");
        assert_eq!(again.len(), 2);
        assert_eq!(Meta { xattrs: Vec::new(), ..of(&to) }, Meta { xattrs: Vec::new(), ..meta });
    }

    #[test]
    fn too_many_attributes_are_a_fault_of_their_file() {
        let value = vec![1; XATTR_BYTES_MAX];
        let xattrs = vec![Xattr { name: b"user.a".to_vec(), value }];
        let file = file();
        let before = file.metadata().expect("status").mode();
        let meta = Meta { mode: 0o777, xattrs, ..of(&file) };
        let fault = apply(&file, "big", Kind::File, &meta, &Rules::of_user()).expect_err("refused");
        assert!(fault.text.starts_with("cannot keep big: extended attributes of 65"), "{fault}");
        assert_eq!(file.metadata().expect("status").mode(), before, "nothing was set");
    }

    fn file() -> File {
        tempfile::tempfile().expect("file")
    }

    fn of(file: &File) -> Meta {
        of_status(&crate::identity::stat_open(file).expect("status"))
    }
}
