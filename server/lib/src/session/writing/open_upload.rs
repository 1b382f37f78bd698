//! An open upload: its temporary file, from creation to commit, with its rules, its quota and its
//! descriptors. Owns how a partial file is created or resumed. The last reference removes the file,
//! unless it was committed or is kept for resuming.

use crate::exports::quota::{self, Quota};
use crate::limits::file_permits::FilePermits;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use verbatim_files::{Cost, Folder, Rules, Target};
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Have;
use verbatim_proto::{Code, Digest, Dropped, Extent, Fault, Meta, WirePath};

/// A temporary file, and the ranges that an earlier session left in it.
pub(crate) type Created = (OpenUpload, Option<Have>);

/// A temporary file, and which metadata of its source it may keep.
#[derive(Clone)]
pub(crate) struct OpenUpload {
    pub target: Arc<Target>,
    pub(super) rules: Rules,
    pub(super) path: WirePath,
    pub(super) quota: Option<Arc<Quota>>,
    pub(super) began: Instant,
    /// Dropped after the target, whose descriptor it counts.
    pub(super) _room: Arc<FilePermits>,
}

impl OpenUpload {
    /// Zeroes a range. Bytes that have to be written count against the quota first; a hole does
    /// not.
    pub(super) fn zero(&self, extent: Extent, size: u64) -> Result<Vec<Digest>, Fault> {
        self.target.zero(extent, size, |bytes| self.may(bytes))
    }

    /// Applies the metadata that its rules allow. Attributes count against the quota.
    pub(super) fn describe(&self, meta: &Meta) -> Result<Dropped, Fault> {
        self.may(quota::attribute_bytes(meta, &self.rules))?;
        self.target.describe(meta, &self.rules)
    }

    /// Takes this many bytes from the quota, or fails.
    pub(crate) fn may(&self, bytes: u64) -> Result<(), Fault> {
        quota::take(self.quota.as_ref(), bytes)
    }
}

/// Creates a partial file, or resumes the one of an earlier session of the same client, unless the
/// client is gone; counts the bytes that are hashed again. Checks quota and free space before it
/// creates anything.
pub(super) fn create_lasting(
    (over, rehashed): (&AtomicBool, &AtomicU64),
    folder: &Folder,
    path: &WirePath,
    info: &FileInfo,
    key: &Digest,
    fits: impl Fn(Cost) -> Result<(), Fault>,
) -> Result<(Target, Option<Have>), Fault> {
    let found = Target::find_lasting_unless((over, rehashed), folder, path, key);
    if over.load(Ordering::Relaxed) {
        // The partial file stays for the client's next session.
        return Err(Fault::new(Code::LinkLost, "the client is gone"));
    }
    if let Some((target, have)) = found {
        if have.is_of(info) {
            fits(Cost::of_bytes(info.room().saturating_sub(have.extents.bytes())))?;
            target.set_mode(info.mode);
            target.keep_sparse(info)?;
            target.set_room(Target::room_for(folder, path, info, have.extents.bytes())?);
            return Ok((target, Some(have)));
        }
        target.discard();
    }
    fits(Cost::INODE.and(Cost::of_bytes(info.room())))?;
    let room = Target::room_for(folder, path, info, 0)?;
    let target = Target::create_lasting(folder, path, info, key)?;
    target.set_room(room);
    Ok((target, None))
}
