//! What goes into the next slot that was granted: a piece of the file that the
//! slot's link is at, or of one that no other link is at. Called by the writing
//! client for each grant; knows nothing of what becomes of it.

use super::{Stage, WriteClient};
use crate::Extent;
use crate::message::{FileId, LinkId};
use crate::units::{GRAIN_BYTES, PACK_FILES_MAX};

impl WriteClient {
    /// The pieces of a link's next chunk: one of a large file, or many small files whole.
    pub(super) fn next_pieces(&mut self, link: LinkId, room: u32) -> Vec<(FileId, Extent)> {
        let grid = u64::from(room) / GRAIN_BYTES * GRAIN_BYTES;
        let mut pieces = Vec::new();
        let mut left = grid;
        let mut at = self.turn_of(link);
        while let Some(&id) = self.queue.get(at) {
            let next = self.files.get_mut(&id).and_then(|file| {
                // A file that was begun again may still stand here from its first try.
                let sending = file.doom.is_none() && file.stage == Stage::Sending;
                file.next_to_send().filter(|_| sending).map(|next| (file, next))
            });
            let Some((file, next)) = next else {
                self.queue.remove(at);
                if pieces.is_empty() {
                    at = self.turn_of(link);
                }
                continue;
            };
            let len = next.len.min(grid - next.offset % grid);
            if len > left || pieces.len() == PACK_FILES_MAX {
                break;
            }
            let extent = Extent::new(next.offset, len);
            assert!(file.claim(extent), "the extent was just listed");
            file.pending += 1;
            left -= len;
            pieces.push((id, extent));
        }
        if let Some(&(file, _)) = pieces.first() {
            self.turns.took(link, file);
        }
        pieces
    }

    /// Where in the queue a link goes on.
    fn turn_of(&self, link: LinkId) -> usize {
        self.turns.choose(link, self.queue.iter().copied())
    }
}
