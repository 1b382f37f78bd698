//! Digest cache of a client: the digests of the grains of a file that it uploads, kept beside
//! the keys of the client while the upload is unfinished, so that a later try
//! need not hash again what the server already has. Called by `source`.
//!
//! The rule is that of the server's digest cache: a memo is of one identity
//! (file system, inode, birth, size, both times), a digest is noted only if the
//! identity was two seconds old when its bytes were read, and asked for only of
//! an identity that is. Any write in between changes the identity. A memo of
//! another boot is not believed.
//!
//! One file: a head, then 32 bytes a grain at their own place, zeros where
//! nothing is known. Such a place never crosses a page, so kill -9 leaves it
//! whole or empty. A wrong one would do no harm: the server compares the root.

use crate::identity::Identity;
use crate::journal::{BOOT_BYTES, boot_id, seal};
use crate::stale;
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use verbatim_proto::units::{GRAIN_BYTES, grain_count};
use verbatim_proto::{Digest, Extent};

const MAGIC: [u8; 8] = *b"VBTMMEM1";
const HEAD_BYTES: usize = 128;
const DIGEST_BYTES: u64 = 32;

/// What every memo's name ends with.
const SUFFIX: &str = ".digests";

/// The digests of one version of one file, as far as they are known.
#[derive(Debug)]
pub struct Memo {
    file: File,
    path: PathBuf,
    grains: u64,
}

impl Memo {
    /// Opens, or begins, what is known of a file. None where it cannot be kept: then everything
    /// is hashed, as if it had never been read.
    pub fn open(folder: &Path, identity: &Identity) -> Option<Self> {
        let head = head(identity)?;
        DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
        let path = folder.join(format!("{}{SUFFIX}", &Digest::of(&head).to_string()[..32]));
        let grains = grain_count(identity.size);
        let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let options = || OpenOptions::new().read(true).write(true).custom_flags(flags).to_owned();
        if let Ok(file) = options().open(&path) {
            let mut found = [0; HEAD_BYTES];
            if file.read_exact_at(&mut found, 0).is_ok() && found == head {
                return Some(Self { file, path, grains });
            }
            std::fs::remove_file(&path).ok()?;
        }
        let file = options().create_new(true).mode(0o600).open(&path).ok()?;
        file.write_all_at(&head, 0).ok()?;
        Some(Self { file, path, grains })
    }

    /// Notes the digests of a range. One that cannot be written is only not known later.
    pub fn note(&self, extent: Extent, digests: &[Digest]) {
        let first = extent.offset / GRAIN_BYTES;
        assert!(first + digests.len() as u64 <= self.grains, "the range is of this file");
        let bytes: Vec<u8> = digests.iter().flat_map(|digest| digest.0).collect();
        let _ = self.file.write_all_at(&bytes, place(first));
    }

    /// The digest of the grain at this offset, if it is known.
    pub fn find(&self, offset: u64) -> Option<Digest> {
        let mut bytes = [0; DIGEST_BYTES as usize];
        self.file.read_exact_at(&mut bytes, place(offset / GRAIN_BYTES)).ok()?;
        (bytes != [0; DIGEST_BYTES as usize]).then_some(Digest(bytes))
    }

    /// Removes it: the upload is done.
    pub fn forget(&self) {
        // Another process may have done so.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes memos of uploads that were given up long ago.
pub fn tidy(folder: &Path, now: SystemTime) {
    stale::remove(folder, SUFFIX, now);
}

fn place(grain: u64) -> u64 {
    HEAD_BYTES as u64 + grain * DIGEST_BYTES
}

/// What a memo of this identity, written since this machine was started, begins with; none
/// where the system does not name its boots.
fn head(identity: &Identity) -> Option<[u8; HEAD_BYTES]> {
    let Identity { file_system, inode, born_ns, size, mtime_ns, ctime_ns } = *identity;
    let boot = Some(boot_id()).filter(|boot| *boot != [0; BOOT_BYTES])?;
    let mut bytes = [&MAGIC[..], &boot].concat();
    for number in [file_system, inode, born_ns as u64, size, mtime_ns as u64, ctime_ns as u64] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let mut bytes = seal(bytes);
    bytes.resize(HEAD_BYTES, 0);
    Some(bytes.try_into().expect("a head has one length"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stale::KEEP;

    const SIZE: u64 = 3 * GRAIN_BYTES + 5;

    fn identity() -> Identity {
        let (file_system, inode, born_ns, mtime_ns, ctime_ns) = (1, 2, 3, 4, 5);
        Identity { file_system, inode, born_ns, size: SIZE, mtime_ns, ctime_ns }
    }

    #[test]
    fn what_is_noted_is_found_by_the_same_identity_only() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = dir.path().join("not/there/yet");
        let memo = Memo::open(&folder, &identity()).expect("begins");
        memo.note(Extent::new(GRAIN_BYTES, 2 * GRAIN_BYTES), &[Digest([1; 32]), Digest([2; 32])]);
        let memo = Memo::open(&folder, &identity()).expect("opens");
        let found: Vec<_> = (0..4).map(|grain| memo.find(grain * GRAIN_BYTES)).collect();
        assert_eq!(found, [None, Some(Digest([1; 32])), Some(Digest([2; 32])), None]);
        let others = [
            Identity { file_system: 9, ..identity() },
            Identity { inode: 9, ..identity() },
            Identity { born_ns: 9, ..identity() },
            Identity { size: SIZE + 1, ..identity() },
            Identity { mtime_ns: 9, ..identity() },
            Identity { ctime_ns: 9, ..identity() },
        ];
        for other in others {
            let memo = Memo::open(&folder, &other).expect("begins");
            assert_eq!(memo.find(GRAIN_BYTES), None, "{other:?}");
        }
        memo.forget();
        let memo = Memo::open(&folder, &identity()).expect("begins");
        assert_eq!(memo.find(GRAIN_BYTES), None, "it was forgotten");
    }

    #[test]
    fn a_memo_of_another_boot_is_not_believed() {
        let dir = tempfile::tempdir().expect("folder");
        let memo = Memo::open(dir.path(), &identity()).expect("begins");
        memo.note(Extent::new(0, GRAIN_BYTES), &[Digest([1; 32])]);
        memo.file.write_all_at(b"x", MAGIC.len() as u64).expect("another boot");
        let memo = Memo::open(dir.path(), &identity()).expect("begins anew");
        assert_eq!(memo.find(0), None);
    }

    #[test]
    fn only_old_memos_are_tidied_away() {
        let dir = tempfile::tempdir().expect("folder");
        let memo = Memo::open(dir.path(), &identity()).expect("begins");
        std::fs::write(dir.path().join("note"), b"of the user").expect("writes");
        tidy(dir.path(), SystemTime::now() + KEEP / 2);
        assert!(memo.path.exists());
        tidy(dir.path(), SystemTime::now() + 2 * KEEP);
        assert!(!memo.path.exists() && dir.path().join("note").exists());
    }
}
