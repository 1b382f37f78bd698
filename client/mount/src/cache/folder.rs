//! The folder of the cache, checked before use: this user must own it and its
//! subfolders, and no other user may write to them. Otherwise another user could
//! replace cached files, or redirect writes. Creates a missing folder; never changes an
//! owner or a mode.

use rustix::process::geteuid;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use verbatim_proto::{Code, Fault};

/// The write bits of group and others.
const OTHERS_WRITE: u32 = 0o022;

/// The sticky bit: users cannot remove the files of others.
const STICKY: u32 = 0o1000;

/// Why a cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Another user owns a folder of the cache, or may write to it.
    #[error("cannot use {} as a cache: {} belongs to user {owner} and its mode is {mode:04o}, {why}",
        cache.display(), folder.display(), why = why_unsafe(*owner, *user))]
    Unsafe {
        /// The cache, with symlinks resolved.
        cache: PathBuf,
        /// The cache itself or a subfolder.
        folder: PathBuf,
        /// The owner of that folder.
        owner: u32,
        /// Its permission bits.
        mode: u32,
        /// The user of this process.
        user: u32,
    },
    /// The most mounts use it already.
    #[error("{0}")]
    Full(Fault),
    /// Any other fault.
    #[error("{0}")]
    Fault(#[from] Fault),
}

fn why_unsafe(owner: u32, user: u32) -> String {
    match owner == user {
        true => "so other users may write to it".into(),
        false => format!("and this is user {user}"),
    }
}

impl CacheError {
    /// The next step for the user.
    pub fn hint(&self) -> Option<String> {
        let another = "give another folder with --cache DIR";
        match self {
            Self::Unsafe { folder, mode, .. } if mode & STICKY != 0 && mode & OTHERS_WRITE != 0 => {
                Some(format!("give a folder in it: --cache {}/NAME", folder.display()))
            }
            Self::Unsafe { folder, owner, user, .. } if owner == user => {
                Some(format!("chmod go-w {}, or {another}", folder.display()))
            }
            Self::Unsafe { folder, user, .. } => {
                Some(format!("chown {user} {}, or {another}", folder.display()))
            }
            Self::Full(_) => Some("give this mount a cache of its own with --cache DIR".into()),
            Self::Fault(_) => None,
        }
    }
}

/// Creates the folder of a cache, or checks an existing one. Returns its real path: a symlink could
/// be changed later.
pub(super) fn create_or_check(given: &Path) -> Result<PathBuf, CacheError> {
    let cannot =
        |e: io::Error| Fault::from_io(format!("cannot use {} as a cache", given.display()), &e);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(given).map_err(cannot)?;
    let cache = given.canonicalize().map_err(cannot)?;
    check_owner(&cache, &cache, &fs::metadata(&cache).map_err(cannot)?)?;
    // No other user can replace its entries from here on, but may have done so before.
    for entry in fs::read_dir(&cache).map_err(cannot)? {
        let inner = entry.map_err(cannot)?.path();
        let found = match fs::symlink_metadata(&inner) {
            // Another mount removed the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found.map_err(cannot)?,
        };
        if found.is_symlink() {
            // No mount creates a symlink there. Its target is not touched.
            fs::remove_file(&inner).map_err(cannot)?;
        } else if found.is_dir() {
            check_owner(&cache, &inner, &found)?;
        }
    }
    Ok(cache)
}

/// Rejects a folder that another user owns or may write to.
fn check_owner(cache: &Path, folder: &Path, found: &Metadata) -> Result<(), CacheError> {
    let (owner, mode, user) = (found.uid(), found.mode() & 0o7777, geteuid().as_raw());
    if !found.is_dir() {
        let text = format!("cannot use {} as a cache: it is not a folder", folder.display());
        return Err(Fault::new(Code::NotFolder, text).into());
    }
    if owner == user && mode & OTHERS_WRITE == 0 {
        return Ok(());
    }
    let (cache, folder) = (cache.to_owned(), folder.to_owned());
    Err(CacheError::Unsafe { cache, folder, owner, mode, user })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn set(folder: &Path, mode: u32) {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).expect("sets");
    }

    /// The error and the hint for a folder.
    fn refusal(folder: &Path) -> (String, String) {
        let error = create_or_check(folder).expect_err("it is refused");
        (error.to_string(), error.hint().expect("it has a hint"))
    }

    #[test]
    fn a_folder_that_the_group_or_others_may_write_to_is_refused() {
        let dir = tempfile::tempdir().expect("folder");
        let cache = dir.path().join("a/b");
        let made = create_or_check(&cache).expect("is made");
        assert_eq!(fs::metadata(&made).expect("is there").mode() & 0o7777, 0o700);
        let shown = made.display();
        for mode in [0o770, 0o702, 0o777] {
            set(&made, mode);
            let (said, hint) = refusal(&cache);
            assert!(said.contains(&format!("{shown} belongs to user")), "{said}");
            assert!(said.contains(&format!("mode is {mode:04o}")), "{said}");
            assert!(hint.starts_with(&format!("chmod go-w {shown},")), "{hint}");
        }
        set(&made, 0o1777);
        assert!(refusal(&cache).1.contains(&format!("--cache {shown}/NAME")), "{shown}");
        for mode in [0o755, 0o1755, 0o700] {
            set(&made, mode);
            create_or_check(&cache).expect("nobody else may write to it");
        }
        // A subfolder is checked as well.
        let part = made.join("ab");
        fs::create_dir(&part).expect("makes");
        set(&part, 0o777);
        assert!(refusal(&cache).1.contains(&format!("chmod go-w {}", part.display())));
    }

    #[test]
    fn a_symlink_to_the_cache_is_followed_and_symlinks_in_it_are_removed() {
        let dir = tempfile::tempdir().expect("folder");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("outside")).expect("makes");
        fs::create_dir(at("cache")).expect("makes");
        symlink("cache", at("link")).expect("links");
        symlink(at("outside"), at("cache/ab")).expect("links");
        let found = create_or_check(&at("link")).expect("is ours");
        assert_eq!(found, at("cache").canonicalize().expect("is there"));
        assert!(!at("cache/ab").is_symlink() && at("outside").is_dir());
        set(&at("cache"), 0o777);
        let said = refusal(&at("link")).0;
        assert!(said.contains(&found.display().to_string()), "{said}");
    }
}
