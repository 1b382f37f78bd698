//! A temporary file of an upload, from when it is made until it is committed: its rules,
//! its quota and the room it takes. Owns how a lasting one is made or found again. The
//! last reference removes the file, if it was not committed.

use crate::exports::quota::{self, Quota};
use crate::limits::file_room::Room;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use verbatim_files::{Cost, Folder, Rules, Target};
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Have;
use verbatim_proto::{Code, Digest, Dropped, Extent, Fault, Meta, WirePath};

/// A temporary file, and what an earlier session left in it.
pub(crate) type Created = (OpenUpload, Option<Have>);

/// A temporary file, and what of its source's metadata it may keep.
#[derive(Clone)]
pub(crate) struct OpenUpload {
    pub target: Arc<Target>,
    pub(super) rules: Rules,
    pub(super) path: WirePath,
    pub(super) quota: Option<Arc<Quota>>,
    pub(super) began: Instant,
    /// Behind the target, which is closed before it is given back.
    pub(super) _room: Arc<Room>,
}

impl OpenUpload {
    /// Makes a range zeros. What is written for that counts, before it is; a hole does not.
    pub(super) fn zero(&self, extent: Extent, size: u64) -> Result<Vec<Digest>, Fault> {
        self.target.zero(extent, size, |bytes| self.may(bytes))
    }

    /// Gives it what its rules allow of this metadata. Attributes are written as well, and count.
    pub(super) fn describe(&self, meta: &Meta) -> Result<Dropped, Fault> {
        self.may(quota::attribute_bytes(meta, &self.rules))?;
        self.target.describe(meta, &self.rules)
    }

    /// Whether this many bytes may be written; takes them from the quota.
    pub(crate) fn may(&self, bytes: u64) -> Result<(), Fault> {
        quota::take(self.quota.as_ref(), bytes)
    }
}

/// Makes a temporary file that lasts, or takes up the one an earlier session of the same client
/// left, unless its client is gone; counts the bytes of it that are hashed again. Asks whether what
/// is to be written fits before anything is made.
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
        // What is there is for who comes back.
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
