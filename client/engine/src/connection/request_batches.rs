//! Splits lists of paths into requests that fit the frames of the protocol and the limits of a
//! server.

use verbatim_proto::units::{FRAME_BYTES_MAX, LOOK_PATHS_MAX};

/// Splits a list into batches for one request each: at most `LOOK_PATHS_MAX` paths and half a frame
/// of path bytes. Keeps the order.
pub fn split_by_frame<T>(items: Vec<T>, path_of: impl Fn(&T) -> &[u8]) -> Vec<Vec<T>> {
    let mut batches: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for item in items {
        bytes += path_of(&item).len();
        match batches.last_mut() {
            Some(batch) if batch.len() < LOOK_PATHS_MAX && bytes <= FRAME_BYTES_MAX / 2 => {
                batch.push(item);
            }
            _ => {
                bytes = path_of(&item).len();
                batches.push(vec![item]);
            }
        }
    }
    batches
}
