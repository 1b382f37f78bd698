//! What this process may have of its machine: open files, and processors. The usual limit of
//! files is lower than what a copy of many small files needs; raising it to what the system
//! allows anyway costs nothing.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

/// As many as are ever needed.
const FILES_MAX: u64 = 65_536;

/// Raises the limit of open files to what the system allows, `FILES_MAX` at most, and says what
/// it is now. Called once by each driver.
pub fn raise_open_files() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(FILES_MAX, |maximum| maximum.min(FILES_MAX));
    if current.is_some_and(|current| current < wanted) {
        // A refusal leaves the limit as it was.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(FILES_MAX).min(FILES_MAX) as usize
}

/// How many processors this process may use. It is looked up once, in files of the system.
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}
