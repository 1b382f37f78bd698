//! A batch of targets becomes durable together: the files are flushed side by
//! side, then renamed, then their folders are flushed. Called by both sides for
//! files that are whole; never looks at what is in them.

use crate::opened::OpenFolder;
use crate::target::Target;
use rustix::fs::fsync;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use verbatim_proto::Fault;

/// Files flushed at the same time.
const FLUSHES_MAX: usize = 8;

impl Target {
    /// Makes a batch durable under its final names: one answer per target, in order.
    pub fn commit(batch: &[Arc<Self>]) -> Vec<Result<(), Fault>> {
        let mut answers = flush_all(batch);
        let mut folders: Vec<&Arc<OpenFolder>> = Vec::new();
        for (target, answer) in batch.iter().zip(&mut answers) {
            if answer.is_ok() {
                *answer = target.rename();
                let known = folders.iter().any(|known| Arc::ptr_eq(known, target.folder()));
                if answer.is_ok() && !known {
                    folders.push(target.folder());
                }
            }
        }
        for folder in folders {
            if let Err(error) = fsync(&**folder) {
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
    for (index, answer) in flush_slow(batch, &slow) {
        answers[index] = answer;
    }
    answers
}

/// Flushes these files of a batch side by side.
fn flush_slow(batch: &[Arc<Target>], slow: &[usize]) -> Vec<(usize, Result<(), Fault>)> {
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
        let flushers: Vec<_> =
            (0..FLUSHES_MAX.min(slow.len())).map(|_| scope.spawn(flush)).collect();
        let results = flushers.into_iter().map(|flusher| flusher.join());
        results.flat_map(|result| result.expect("flushing does not panic")).collect()
    })
}
