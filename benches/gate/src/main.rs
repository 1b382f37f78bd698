//! Fixed pieces of work, done once and named by the only argument. `run` beside
//! this counts their instructions under callgrind and compares them with
//! `baseline`: a count does not depend on how busy a machine is. Only code that is
//! the same on every processor is in it: no file is hashed, which picks its
//! instructions at run time (digests are joined, which does not). Each piece checks
//! its result, so that it cannot become quick by doing nothing.

#![forbid(unsafe_code)]

mod codec;
mod extents;
mod plan;
mod scheduler;

use std::process::ExitCode;

/// A name, and the work.
const WORK: [(&str, fn()); 5] = [
    ("codec", codec::run),
    ("extents", extents::run),
    ("plan", plan::run),
    ("scheduler-large", scheduler::large),
    ("scheduler-small", scheduler::small),
];

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1);
    match WORK.iter().find(|(name, _)| wanted.as_deref() == Some(name)) {
        Some((_, work)) => {
            work();
            ExitCode::SUCCESS
        }
        None => ExitCode::from(2),
    }
}
