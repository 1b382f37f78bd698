//! Replaces a small file that others read, all of it at once: who reads it sees
//! what was there or what is there now, and anybody may. For status files and the
//! numbers of a copy; files that are copied have targets of their own.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A file beside `path` that may take its place: where it cannot be made, nothing can be written.
pub fn begin(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    tempfile::Builder::new().prefix(".verbatim-").tempfile_in(folder.unwrap_or(Path::new(".")))
}

/// Gives the file at `path` this content.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut file = begin(path)?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(PermissionsExt::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_replaced_may_be_read_by_anybody_whatever_the_umask_is() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("a");
        for text in ["one", "another"] {
            super::replace(&path, text).expect("writes");
            assert_eq!(std::fs::read_to_string(&path).expect("reads"), text);
        }
        assert_eq!(std::fs::metadata(&path).expect("there").mode() & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is left");
    }
}
