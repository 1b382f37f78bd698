//! The local door: a server leaves a fresh key, and its own fingerprint, in a
//! file that only its user can read, so that user's clients on this machine
//! come in without set-up. Owns `<state>/local/<port>.toml`, and a lock on it, while the server
//! runs. Never opens for another user. `rdma-serve` publishes, `connect` finds.

use crate::identity::unwritable;
use crate::{ClientKey, ControlError, Fingerprint, PublicKey, private};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use zeroize::{Zeroize, Zeroizing};

/// A published local key; dropping it takes the file away.
#[derive(Debug)]
pub struct LocalDoor {
    path: PathBuf,
    /// Tells this door from one that a later server left in its place.
    key: PublicKey,
    /// Locked while the server lives, however it ends.
    _held: File,
}

impl LocalDoor {
    /// Leaves a fresh key for the server on `port`, in the place of any older one.
    ///
    /// The public half is for the server's policy.
    pub fn publish(
        state_dir: &Path,
        port: u16,
        fingerprint: Fingerprint,
    ) -> Result<(Self, PublicKey), ControlError> {
        let path = Self::path(state_dir, port);
        let folder = path.parent().expect("the path ends in a file name");
        private::make_dir(folder).map_err(unwritable)?;
        let _alone = alone(&path);
        let secret = ClientKey::generate()?;
        let token = secret.to_token().to_string();
        let file = DoorFile { fingerprint: fingerprint.to_string(), token };
        let text = toml::to_string(&file).map_err(|e| private::bad(&path, e))?;
        let text = Zeroizing::new(text);
        sweep(&path);
        let held = private::replace_held(&path, text.as_bytes()).map_err(unwritable)?;
        let key = secret.public();
        Ok((Self { path, key, _held: held }, key))
    }

    /// Finds the door that a server of this user left for `port`; none if there is no such file.
    ///
    /// A door that a server left because it was killed is none. A file that belongs to another
    /// user, or that others can read, is an error.
    pub fn find(
        state_dir: &Path,
        port: u16,
    ) -> Result<Option<(Fingerprint, ClientKey)>, ControlError> {
        let path = Self::path(state_dir, port);
        Ok(read(&path)?.filter(|_| private::is_held(&path)))
    }

    /// Returns where the door of `port` is.
    pub(crate) fn path(state_dir: &Path, port: u16) -> PathBuf {
        state_dir.join("local").join(format!("{port}.toml"))
    }
}

impl Drop for LocalDoor {
    fn drop(&mut self) {
        let _alone = alone(&self.path);
        let ours = matches!(read(&self.path), Ok(Some((_, key))) if key.public() == self.key);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "local key not removed");
        }
    }
}

/// Keeps other servers of this user from changing doors meanwhile: what one takes for left
/// behind, another may just be putting there. Not all network file systems lock folders.
fn alone(door: &Path) -> Option<File> {
    private::lock_folder_of(door).ok()
}

/// Removes the doors that servers left which were killed.
fn sweep(door: &Path) {
    let folder = door.parent().and_then(|folder| std::fs::read_dir(folder).ok());
    for path in folder.into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|it| it == "toml") {
            // Another may have been faster.
            let _ = private::remove_left(&path);
        }
    }
}

/// What is in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DoorFile {
    fingerprint: String,
    token: String,
}

impl Drop for DoorFile {
    fn drop(&mut self) {
        self.token.zeroize();
    }
}

fn read(path: &Path) -> Result<Option<(Fingerprint, ClientKey)>, ControlError> {
    let Some(bytes) = private::read_own_secret(path)? else { return Ok(None) };
    let text = Zeroizing::new(private::text(path, bytes)?);
    // The parser's own message would quote the line, and the line may be the token.
    let file: DoorFile =
        toml::from_str(&text).map_err(|_| private::bad(path, "it is not what rdma-serve wrote"))?;
    let fingerprint = file.fingerprint.parse().map_err(|e| private::bad(path, e))?;
    let key = ClientKey::from_token(&file.token).map_err(|e| private::bad(path, e))?;
    Ok(Some((fingerprint, key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerIdentity;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_door_is_found_while_it_stands_and_gone_after() {
        let dir = tempfile::tempdir().unwrap();
        let print = ServerIdentity::load_or_create(dir.path()).unwrap().fingerprint();
        assert!(LocalDoor::find(dir.path(), 1).unwrap().is_none());
        let (door, public) = LocalDoor::publish(dir.path(), 1, print).unwrap();
        let (found, key) = LocalDoor::find(dir.path(), 1).unwrap().unwrap();
        assert_eq!((found, key.public()), (print, public));
        assert!(LocalDoor::find(dir.path(), 2).unwrap().is_none());
        drop(door);
        assert!(LocalDoor::find(dir.path(), 1).unwrap().is_none());
    }

    #[test]
    fn an_old_server_leaves_the_door_of_a_new_one_alone() {
        let dir = tempfile::tempdir().unwrap();
        let print = ServerIdentity::load_or_create(dir.path()).unwrap().fingerprint();
        let (old, _) = LocalDoor::publish(dir.path(), 1, print).unwrap();
        let (_new, public) = LocalDoor::publish(dir.path(), 1, print).unwrap();
        drop(old);
        assert_eq!(LocalDoor::find(dir.path(), 1).unwrap().unwrap().1.public(), public);
    }

    #[test]
    fn the_door_of_a_server_that_was_killed_is_none_and_swept_away() {
        let dir = tempfile::tempdir().unwrap();
        let print = ServerIdentity::load_or_create(dir.path()).unwrap().fingerprint();
        let (door, _) = LocalDoor::publish(dir.path(), 1, print).unwrap();
        let left = std::fs::read(&door.path).unwrap();
        drop(door);
        let path = LocalDoor::path(dir.path(), 1);
        private::replace(&path, &left).unwrap();
        assert!(LocalDoor::find(dir.path(), 1).unwrap().is_none(), "nobody holds it");
        let (_second, _) = LocalDoor::publish(dir.path(), 2, print).unwrap();
        assert!(!path.exists(), "it is swept away");
        let (_third, _) = LocalDoor::publish(dir.path(), 3, print).unwrap();
        assert!(LocalDoor::find(dir.path(), 2).unwrap().is_some(), "that of a live one is not");
    }

    #[test]
    fn doors_are_swept_by_one_server_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let print = ServerIdentity::load_or_create(dir.path()).unwrap().fingerprint();
        let left = LocalDoor::path(dir.path(), 1);
        let other = private::lock_folder_of(&left).unwrap();
        private::replace(&left, b"left by one that was killed").unwrap();
        let state = dir.path().to_owned();
        let second = std::thread::spawn(move || LocalDoor::publish(&state, 2, print).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(left.exists(), "another may be putting its own there");
        drop(other);
        let (_second, _) = second.join().unwrap();
        assert!(!left.exists(), "it is swept away");
    }

    #[test]
    fn what_took_the_place_of_a_door_is_not_swept_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.toml");
        let held = private::replace_held(&path, b"of a live one").unwrap();
        private::remove_left(&path).unwrap();
        assert!(path.exists());
        drop(held);
        private::remove_left(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_door_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let print = ServerIdentity::load_or_create(dir.path()).unwrap().fingerprint();
        let (door, _) = LocalDoor::publish(dir.path(), 1, print).unwrap();
        std::fs::set_permissions(&door.path, PermissionsExt::from_mode(0o604)).unwrap();
        let error = LocalDoor::find(dir.path(), 1).unwrap_err();
        assert!(error.to_string().contains("0604"), "{error}");
        assert!(error.hint().unwrap().starts_with("chmod 600"));
    }

    #[test]
    fn a_broken_door_does_not_spill_its_token() {
        let dir = tempfile::tempdir().unwrap();
        let print = ServerIdentity::load_or_create(dir.path()).unwrap().fingerprint();
        let (door, _) = LocalDoor::publish(dir.path(), 1, print).unwrap();
        private::replace(&door.path, b"token = vbt1-secret\n").unwrap();
        let error = LocalDoor::find(dir.path(), 1).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}
