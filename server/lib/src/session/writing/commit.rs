//! Commits whole uploads: metadata first, then fsync and rename of all files in parallel. A file
//! that does not take its metadata is discarded.

use super::open_upload::OpenUpload;
use verbatim_files::{Over, Target};
use verbatim_proto::message::FileId;
use verbatim_proto::{Dropped, Fault, Kept};

/// The result for each file.
pub(super) type Answers = Vec<(FileId, Result<(), Fault>)>;

/// Applies metadata to whole files, then commits those that took it. One answer for each file, in
/// order.
pub(super) fn commit(over: Over, files: Vec<(FileId, OpenUpload, Kept)>) -> (Answers, Dropped) {
    let mut dropped = Dropped::default();
    let mut answers = Answers::with_capacity(files.len());
    let (mut places, mut whole) = (Vec::new(), Vec::new());
    for (id, upload, meta) in &files {
        let describe = |meta| upload.describe(meta);
        let described = meta.as_deref().map_or(Ok(Dropped::default()), describe);
        match &described {
            Ok(not_kept) => {
                dropped += *not_kept;
                places.push(answers.len());
                whole.push(upload.target.clone());
            }
            Err(_) => upload.target.discard(),
        }
        answers.push((*id, described.map(drop)));
    }
    for (place, answer) in places.into_iter().zip(Target::commit_over(over, &whole)) {
        answers[place].1 = answer;
    }
    (answers, dropped)
}
