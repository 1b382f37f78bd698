//! Keeps keys and tokens out of core dumps: a process that dies leaves no file with
//! its memory in it. Called by every command before it reads anything. Never changes
//! what a debugger or another process of the same user may look at.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Has the kernel write no core dump of this process, nor of those that it starts. What a handler
/// of core dumps gets through a pipe is up to the handler: that of systemd looks at this limit.
pub fn forbid_core_dumps() {
    // Less than before is always allowed.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}
