//! A power cut without a power switch. `trace` has the kernel's tracer write down
//! what a command does to its files, `disk` makes a list of changes of it, and
//! `crash` samples what of that list a disk may have after the power is cut:
//! what was flushed is there, of the rest anything. Nothing of the commands is
//! replaced for it: they are the ones that users run.

pub mod crash;
pub mod disk;
pub mod trace;

pub use crash::{Manner, State};
pub use disk::Disk;
