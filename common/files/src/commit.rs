//! A batch of targets becomes durable together: the files are flushed side by
//! side, then renamed, then their folders are flushed. Called by both sides for
//! files that are whole; never looks at what is in them.

use crate::naming::Over;
use crate::opened::OpenFolder;
use crate::target::Target;
use rustix::fs::fsync;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use verbatim_proto::Fault;

/// Files flushed at the same time.
const FLUSHES_MAX: usize = 8;

impl Target {
    /// Makes a batch durable under its final names: one answer per target, in order.
    pub fn commit(batch: &[Arc<Self>]) -> Vec<Result<(), Fault>> {
        Self::commit_over(Over::Anything, batch)
    }

    /// The same, over what may have these names. `Code::Exists` where something has one and may
    /// not be replaced: it stays, and the file that came too late goes.
    pub fn commit_over(over: Over, batch: &[Arc<Self>]) -> Vec<Result<(), Fault>> {
        let mut answers = flush_all(batch);
        // Each once, just before the names in it: one may have been moved since it was opened.
        let mut folders: Vec<(&Arc<OpenFolder>, bool)> = Vec::new();
        for (target, answer) in batch.iter().zip(&mut answers) {
            if answer.is_err() {
                // What was not written is not in the page cache any more either, and the system
                // says so once: whoever went on with it would find nothing wrong.
                target.discard();
                continue;
            }
            let known = folders.iter().find(|(known, _)| Arc::ptr_eq(known, target.folder()));
            let in_place = known.map_or_else(|| target.folder().is_in_place(), |(_, is)| *is);
            if known.is_none() {
                folders.push((target.folder(), in_place));
            }
            if in_place {
                *answer = target.rename(over);
            } else {
                target.discard();
                *answer = Err(target.misplaced());
            }
        }
        for (folder, _) in folders.iter().filter(|(_, in_place)| *in_place) {
            if let Err(error) = fsync(&***folder) {
                let fault = Fault::from_io("cannot flush the folder", &error.into());
                answers.iter_mut().for_each(|answer| *answer = Err(fault.clone()));
            }
        }
        answers
    }
}

/// Flushes files; one answer per target, in order. Only a disk is waited for, so only what goes
/// to one is worth threads.
fn flush_all(batch: &[Arc<Target>]) -> Vec<Result<(), Fault>> {
    let mut answers = vec![Ok(()); batch.len()];
    let mut slow = Vec::new();
    for (index, target) in batch.iter().enumerate() {
        match target.folder().is_in_memory() {
            true => answers[index] = target.flush(),
            false => slow.push(index),
        }
    }
    for (index, answer) in flush_slow(batch, &slow, Builder::new) {
        answers[index] = answer;
    }
    answers
}

/// Flushes these files of a batch side by side, where threads can be had.
fn flush_slow(
    batch: &[Arc<Target>],
    slow: &[usize],
    thread: impl Fn() -> Builder,
) -> Vec<(usize, Result<(), Fault>)> {
    if let [index] = *slow {
        return vec![(index, batch[index].flush())];
    }
    slow.iter().for_each(|&index| batch[index].begin_flush());
    let next = AtomicUsize::new(0);
    let flush = || {
        let mut done = Vec::new();
        while let Some(&index) = slow.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push((index, batch[index].flush()));
        }
        done
    };
    std::thread::scope(|scope| {
        let others = 1..FLUSHES_MAX.min(slow.len());
        let others = others.map_while(|_| thread().spawn_scoped(scope, flush).ok());
        let others: Vec<_> = others.collect();
        let mut done = flush();
        let results = others.into_iter().map(|other| other.join());
        done.extend(results.flat_map(|result| result.expect("flushing does not panic")));
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;
    use verbatim_proto::WirePath;

    #[test]
    fn files_are_flushed_where_no_thread_can_be_had() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let create = |name: &str| {
            let path = WirePath::parse(name.as_bytes()).expect("plain");
            Arc::new(Target::create(&folder, &path, 1, 0o600).expect("creates"))
        };
        let batch: Vec<_> = ["a", "b", "c"].map(create).into();
        // More memory for a thread than there is.
        let none = || Builder::new().stack_size(1 << 60);
        assert!(none().spawn(|| {}).is_err(), "or this test says nothing");
        let mut flushed = flush_slow(&batch, &[0, 1, 2], none);
        flushed.sort_by_key(|(index, _)| *index);
        assert_eq!(flushed, [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
    }
}
