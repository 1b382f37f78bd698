//! Lists cut into messages of bounded length, and the fault for a message that
//! nobody asked for. Shared by the machines.

use crate::message::{CommitFile, FileId};
use crate::meta::Meta;
use crate::units::{BATCH_FILES_MAX, FRAME_BYTES_MAX};
use crate::{Code, Fault};

/// Empties a list into messages of bounded length.
pub(crate) fn batches<T>(list: &mut Vec<T>) -> Vec<Vec<T>> {
    batches_by(list, |_| 0)
}

/// Empties a list into messages of bounded length and of bounded bytes.
pub(crate) fn batches_by<T>(list: &mut Vec<T>, bytes_of: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut batches: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for item in list.drain(..) {
        bytes += bytes_of(&item);
        match batches.last_mut() {
            Some(batch) if batch.len() < BATCH_FILES_MAX && bytes <= FRAME_BYTES_MAX / 2 => {
                batch.push(item);
            }
            _ => {
                bytes = bytes_of(&item);
                batches.push(vec![item]);
            }
        }
    }
    batches
}

pub(crate) fn unexpected(what: &str, file: FileId) -> Fault {
    Fault::new(Code::Protocol, format!("peer sent a {what}, unasked, for file {}", file.0))
}

impl CommitFile {
    /// About how many bytes it takes in a message.
    pub(crate) fn weight(&self) -> usize {
        self.meta.as_deref().map_or(0, Meta::weight) + COMMIT_BYTES
    }
}

/// What a file to commit takes without metadata.
const COMMIT_BYTES: usize = 48;
