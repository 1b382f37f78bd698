//! Lists cut into messages of bounded length, and the fault for a message that
//! nobody asked for. Shared by the machines.

use crate::message::FileId;
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
