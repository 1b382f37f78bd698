//! Keeps keys, tokens and contents of files out of core dumps: a process that dies leaves
//! no file with its memory in it, and starts no handler. One that is made after all, by a
//! debugger or because an administrator raised the limit, has no memory in it either.
//! Called by every command before it reads anything. Never changes what a debugger or
//! another process of the same user may look at.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Has the kernel write no core dump of this process, nor of those that it starts, give none to a
/// handler, and leave all memory out of one that is made after all.
pub fn forbid_core_dumps() {
    let limited = |bytes| {
        setrlimit(Resource::Core, Rlimit { current: Some(bytes), maximum: Some(bytes) }).is_ok()
    };
    // No file is as short as one byte. A handler behind a pipe is started whatever the limit is,
    // with the environment and all memory at hand, but not where it is 1. Less than before is
    // always allowed, and nothing is less than 0.
    if !limited(1) {
        limited(0);
    }
    // `gcore` follows it as well, and whoever wants more can set it back. Where nobody may write
    // to it the limit still holds.
    let _ = std::fs::write("/proc/self/coredump_filter", "0");
}
