//! Where other file systems are mounted below a folder: such a folder can be
//! renamed, and they go along, so who exchanges folders must look first. Read from
//! the kernel's list, because an entry says only of itself that it is a mount
//! point. Called by `stage`, and by who looks for one mount in that list.

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
}
