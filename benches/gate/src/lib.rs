//! Fixed pieces of work: the codec, extents, the plan of a mirror, the scheduler. Only
//! code that is the same on every processor is in it: no file is hashed, which picks its
//! instructions at run time (digests are joined, which does not). Each piece checks
//! its result, so that it cannot become quick by doing nothing. The program beside this
//! does one of them for counting, `benches/micro.rs` times them.

#![forbid(unsafe_code)]

mod codec;
mod extents;
mod plan;
mod scheduler;

/// A name, and the work.
pub const WORK: [(&str, fn()); 5] = [
    ("codec", codec::run),
    ("extents", extents::run),
    ("plan", plan::run),
    ("scheduler-large", scheduler::large),
    ("scheduler-small", scheduler::small),
];
