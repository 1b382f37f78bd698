//! Ranges that are offered to the server, or will be once they are hashed: a bounded number of
//! them over all files. A file whose ranges must wait is looked at again.

use super::file::File;
use crate::FileId;
use crate::touched::Files;
use crate::units::OFFERS_MAX;
use crate::write::types::ClientEffect;
use std::collections::VecDeque;

/// How many there are.
#[derive(Default)]
pub(super) struct Offers {
    count: usize,
}

impl Offers {
    /// Has ranges hashed that are to be offered.
    pub fn begin(
        &mut self,
        touched: &[FileId],
        files: &mut Files<File>,
        effects: &mut VecDeque<ClientEffect>,
    ) {
        let mut waiting = Vec::new();
        for &id in touched {
            let Some(file) = files.look_at(id).filter(|file| file.is_wanted()) else { continue };
            while let Some(extent) = file.next_to_offer() {
                if self.count == OFFERS_MAX {
                    // Nothing of this file will tell when another one's is answered.
                    waiting.push(id);
                    break;
                }
                file.begin_offer(extent);
                self.count += 1;
                effects.push_back(ClientEffect::HashOffer { file: id, extent });
            }
        }
        waiting.into_iter().for_each(|id| files.touch(id));
    }

    /// One is answered, or is not made after all.
    pub fn end(&mut self) {
        self.count -= 1;
    }
}
