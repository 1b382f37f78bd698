//! Versions that this process has verified whole and closed since, so that a large file
//! is not hashed again whenever it is opened. What is remembered is believed only while
//! its file is untouched: whoever punches or writes it changes its time and its blocks.
//! Bounded; the oldest go first. Says nothing of what an earlier run left.

use super::{CacheFile, Key};
use std::collections::{HashMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

/// The most that are remembered.
const VERIFIED_MAX: usize = 1 << 15;

/// How a file looked when it was let go of: version, inode, blocks, time of its last change.
type FileStamp = (u64, u64, u64, (i64, i64));

/// The versions.
#[derive(Default)]
pub(super) struct VerifiedVersions(Mutex<Stamps>);

#[derive(Default)]
struct Stamps {
    stamps: HashMap<Key, FileStamp>,
    order: VecDeque<Key>,
}

impl VerifiedVersions {
    /// Remembers a version, if all of it is verified. Its user holds a lock on it, so nobody
    /// changes it meanwhile.
    pub fn record(&self, file: &CacheFile) {
        let stamp = stamp(file).filter(|_| file.is_fully_verified());
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stamp) = stamp else {
            state.stamps.remove(&file.key);
            return;
        };
        if state.stamps.insert(file.key, stamp).is_none() {
            state.order.push_back(file.key);
        }
        while state.order.len() > VERIFIED_MAX {
            let oldest = state.order.pop_front();
            oldest.and_then(|key| state.stamps.remove(&key));
        }
    }

    /// Whether it is one of them, untouched. Asked by who has just locked it.
    pub fn contains(&self, file: &CacheFile) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = state.stamps.get(&file.key).copied();
        drop(state);
        known.is_some() && known == stamp(file)
    }
}

fn stamp(file: &CacheFile) -> Option<FileStamp> {
    let found = file.data.metadata().ok()?;
    let changed = (found.ctime(), found.ctime_nsec());
    Some((file.version, found.ino(), found.blocks(), changed))
}
