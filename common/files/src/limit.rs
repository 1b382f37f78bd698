//! How many files this process may have open. The usual limit is lower than
//! what a copy of many small files needs; raising it to what the system allows
//! anyway costs nothing. Called once by each driver.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as are ever needed.
const FILES_MAX: u64 = 65_536;

/// Raises the limit of open files to what the system allows, `FILES_MAX` at most, and says what
/// it is now.
pub fn raise_open_files() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(FILES_MAX, |maximum| maximum.min(FILES_MAX));
    if current.is_some_and(|current| current < wanted) {
        // A refusal leaves the limit as it was.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(FILES_MAX).min(FILES_MAX) as usize
}
