//! Files with something unsent, in order, and the pieces that fill the next granted slot: of the
//! file that the slot's link is at, or of one that no other link is at. Knows no tags or flights.

use super::file::File;
use crate::Extent;
use crate::message::{FileId, LinkId};
use crate::touched::Files;
use crate::turns::Turns;
use crate::units::{GRAIN_BYTES, PACK_FILES_MAX};
use std::collections::VecDeque;

/// The files.
#[derive(Default)]
pub(super) struct Queue {
    files: VecDeque<FileId>,
    turns: Turns,
}

impl Queue {
    /// Adds a file that was just created; it may still stand here from its first try.
    pub fn push(&mut self, file: FileId) {
        self.files.push_back(file);
    }

    /// A file has something unsent again: it comes next, unless it has a place.
    pub fn ensure_first(&mut self, file: FileId) {
        if !self.files.contains(&file) {
            self.files.push_front(file);
        }
    }

    /// A file has something unsent again: it comes last, unless it has a place.
    pub fn ensure_last(&mut self, file: FileId) {
        if !self.files.contains(&file) {
            self.files.push_back(file);
        }
    }

    /// A link is dead: its file is anyone's.
    pub fn link_down(&mut self, link: LinkId) {
        self.turns.link_down(link);
    }

    /// The pieces of a link's next chunk: one of a large file, or many small files whole.
    pub fn next_pieces(
        &mut self,
        link: LinkId,
        room: u32,
        files: &mut Files<File>,
    ) -> Vec<(FileId, Extent)> {
        let grid = u64::from(room) / GRAIN_BYTES * GRAIN_BYTES;
        let mut pieces = Vec::new();
        let mut left = grid;
        let mut at = self.turn_of(link);
        while let Some(&id) = self.files.get(at) {
            let next = files.get_mut(&id).and_then(|file| Some((file.next_to_send()?, file)));
            let Some((next, file)) = next else {
                self.files.remove(at);
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
            file.begin_piece(extent);
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
        self.turns.choose(link, self.files.iter().copied())
    }
}
