//! Where other file systems are mounted below a folder: such a folder can be
//! renamed, and they go along, so who exchanges folders must look first. Read from
//! the kernel's list, because an entry says only of itself that it is a mount
//! point. And what a file system is mounted with. Called by `stage` and `bare`, and
//! by who looks for one mount in that list.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A mount point below an open folder, if there is one.
pub(crate) fn below(folder: impl AsFd) -> std::io::Result<Option<PathBuf>> {
    let folder = std::fs::read_link(format!("/proc/self/fd/{}", folder.as_fd().as_raw_fd()))?;
    let list = std::fs::read("/proc/self/mountinfo")?;
    Ok(find(&list, folder.as_os_str().as_bytes()))
}

/// What the file system of this number is mounted with, as the kernel's list tells it; nothing
/// where it is told by another number, as parts of btrfs are.
pub(crate) fn options(device: u64) -> Vec<u8> {
    of_device(&std::fs::read("/proc/self/mountinfo").unwrap_or_default(), device)
}

fn of_device(list: &[u8], device: u64) -> Vec<u8> {
    let number = format!("{}:{}", device >> 32, device as u32).into_bytes();
    let line = list.split(|&byte| byte == b'\n').find(|line| {
        // The third field of a line; the last is of the file system, and not of one mount.
        line.split(|&byte| byte == b' ').nth(2) == Some(&number)
    });
    let last = line.and_then(|line| line.rsplit(|&byte| byte == b' ').next());
    last.unwrap_or_default().to_vec()
}

fn find(list: &[u8], folder: &[u8]) -> Option<PathBuf> {
    let points = list.split(|&byte| byte == b'\n').filter_map(|line| {
        // The fifth field of a line.
        line.split(|&byte| byte == b' ').nth(4).map(unescape)
    });
    let is_below =
        |point: &Vec<u8>| point.strip_prefix(folder).is_some_and(|rest| rest.starts_with(b"/"));
    points.filter(is_below).min().map(|point| OsString::from_vec(point).into())
}

/// A path as the kernel writes it in its list, read: blanks and such are told as a backslash and
/// three octal digits.
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| first == b'\\');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_way_to_write_a_path_is_read() {
        assert_eq!(unescape(br"/mnt/a\040b\134c"), b"/mnt/a b\\c");
        assert_eq!(unescape(br"/mnt/\9"), br"/mnt/\9");
    }

    #[test]
    fn what_is_mounted_below_a_folder_is_found() {
        let list = b"22 1 0:1 / / rw - ext4 /dev/a rw\n\
            30 22 0:2 / /srv/www/a\\040b rw - tmpfs t rw\n\
            31 22 0:3 / /srv/wwwelse rw - tmpfs t rw\n";
        let below = |folder: &str| find(list, folder.as_bytes());
        assert_eq!(below("/srv/www"), Some("/srv/www/a b".into()));
        assert_eq!(below("/srv/www/a b"), None, "it is one itself, which is another matter");
        assert_eq!(below("/srv/wwwel"), None);
        assert_eq!(below("/home"), None);
        assert_eq!(unescape(b"a\\134b\\"), b"a\\b\\");
    }

    #[test]
    fn what_a_file_system_is_mounted_with_is_found() {
        let list = b"22 1 8:1 / / rw,noatime - ext4 /dev/a rw,noacl\n\
            30 22 8:17 / /srv rw shared:1 - ext4 /dev/b rw,data=ordered\n";
        let of = |major: u64, minor: u64| of_device(list, major << 32 | minor);
        assert_eq!((of(8, 1), of(8, 17)), (b"rw,noacl".to_vec(), b"rw,data=ordered".to_vec()));
        assert!(of(8, 7).is_empty() && of_device(b"", 8 << 32).is_empty());
    }
}
