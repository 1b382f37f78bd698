//! How a file that is sent ends: what the server had of it is hashed, then its
//! source is looked at again; one that cannot be sent is given up, or begun again
//! where it changed.

use super::{Stage, WriteClient};
use crate::units::{FILE_ATTEMPTS_MAX, WINDOW_BYTES};
use crate::write::types::ClientEffect;
use crate::{Code, FileId};

impl WriteClient {
    pub(super) fn end_files(&mut self, touched: &[FileId]) {
        let mut over = Vec::new();
        for &id in touched {
            let Some(file) = self.files.look_at(id) else { continue };
            if file.stage != Stage::Sending || file.pending > 0 || file.hashing {
                continue;
            }
            if file.doom.is_some() {
                over.push(id);
            } else if let Some(extent) = file.unhashed.take_first(WINDOW_BYTES) {
                file.hashing = true;
                self.effects.push_back(ClientEffect::Hash { file: id, extent });
            } else if file.is_all_sent() && file.search.is_over(file.size) && !file.streaming {
                file.stage = Stage::Checking;
                let root = file.root.finish().expect("every grain was stored or hashed");
                self.effects.push_back(ClientEffect::CheckSource { file: id, root });
            }
        }
        for id in over {
            self.give_up(id);
        }
    }

    fn give_up(&mut self, id: FileId) {
        let file = self.files.get_mut(&id).expect("the caller found it");
        let fault = file.doom.take().expect("only doomed files are given up");
        self.to_discard.push(id);
        if fault.code == Code::Changed && file.attempts < FILE_ATTEMPTS_MAX {
            file.attempts += 1;
            file.stage = Stage::Restarting;
            self.effects.push_back(ClientEffect::Restart { file: id });
        } else {
            self.files.remove(&id);
            self.effects.push_back(ClientEffect::Failed { file: id, fault });
        }
    }
}
