//! Who is opening which file for the first time: the others wait for their turn, and
//! find what the first has brought. Holds only those that somebody waits for. Used by
//! `content`.

use super::cache::Key;
use std::collections::HashMap;
use std::sync::Arc;
use verbatim_engine::local_io::range_buffer::Haste;

/// The files that are being opened.
#[derive(Default)]
pub(crate) struct OpenOnce(HashMap<Key, Arc<OpenTurn>>);

/// The turn of one file.
#[derive(Default)]
pub(crate) struct OpenTurn {
    pub lock: tokio::sync::Mutex<()>,
    /// Whether a reader waits for what it brings.
    pub priority: Haste,
}

impl OpenOnce {
    /// The turn of a file, to be waited for.
    pub fn turn_of(&mut self, key: Key) -> Arc<OpenTurn> {
        // Those that nobody waits for are done with.
        self.0.retain(|_, turn| Arc::strong_count(turn) > 1);
        self.0.entry(key).or_default().clone()
    }
}
