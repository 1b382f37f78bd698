//! Versions that this process verified completely and then closed, so that a reopened
//! large file is not hashed again. An entry is valid only while the file is untouched:
//! punching or writing changes its ctime and its blocks. Bounded; the oldest entries
//! are dropped. Says nothing about earlier runs.

use super::{CacheFile, Key};
use std::collections::{HashMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

/// The most entries.
const VERIFIED_MAX: usize = 1 << 15;

/// The state of a file at its close: version, inode, blocks, ctime.
type FileStamp = (u64, u64, u64, (i64, i64));

/// Stamps of verified versions.
#[derive(Default)]
pub(super) struct VerifiedVersions(Mutex<Stamps>);

#[derive(Default)]
struct Stamps {
    stamps: HashMap<Key, FileStamp>,
    order: VecDeque<Key>,
}

impl VerifiedVersions {
    /// Records a version if all of it is verified. The caller holds a lock on it, so it does not
    /// change meanwhile.
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

    /// Whether a version was recorded and is untouched. The caller has just locked it.
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
