//! Holes of files that are sent: named to the server a list at a time, and
//! hashed here as zeros, because the root must be of all of the file. The next
//! list of a file goes out when the last one is done with on both sides.

use super::file::File;
use crate::FileId;
use crate::holes::{Holes, Zeros};
use crate::message::WriteRequest;
use crate::touched::Files;
use crate::units::HOLE_LISTS_MAX;
use crate::write::types::ClientEffect;
use std::collections::VecDeque;

/// The lists of all files, and the zeros that are hashed for them.
#[derive(Default)]
pub(super) struct HoleLists {
    zeros: Zeros<FileId>,
    /// Lists that are not answered.
    unanswered: usize,
}

impl HoleLists {
    /// Whether no zeros are hashed, nor wait for it.
    pub fn is_idle(&self) -> bool {
        self.zeros.is_idle()
    }

    /// Whether the server has holes to make and to hash.
    pub fn has_unanswered(&self) -> bool {
        self.unanswered > 0
    }

    /// The server answered a list.
    pub fn answered(&mut self) {
        self.unanswered -= 1;
    }

    /// Zeros were hashed.
    pub fn hashed(&mut self) {
        self.zeros.ended();
    }

    /// Forgets holes of files that have failed.
    pub fn forget(&mut self, files: &mut Files<File>) {
        let failed = |id: &FileId| files.get(id).is_none_or(File::is_doomed);
        for id in self.zeros.forget(failed) {
            if let Some(file) = files.get_mut(&id) {
                file.end_hole();
            }
        }
    }

    /// Names holes, looks for more where all data is sent, and has zeros hashed.
    pub fn name(
        &mut self,
        touched: &[FileId],
        files: &mut Files<File>,
        effects: &mut VecDeque<ClientEffect>,
    ) {
        let mut waiting = Vec::new();
        for &id in touched {
            let Some(file) = files.look_at(id).filter(|file| file.is_wanted()) else { continue };
            if file.may_name_holes() && self.unanswered == HOLE_LISTS_MAX {
                // Another file's list is in the way: nothing of this one will tell when it is not.
                waiting.push(id);
            } else if file.may_name_holes()
                && let Some(extents) = file.name_holes()
            {
                extents.iter().for_each(|extent| self.zeros.push(id, *extent));
                self.unanswered += 1;
                let holes = WriteRequest::Holes(Holes { file: id, extents });
                effects.push_back(ClientEffect::Send(holes));
            }
            if let Some(from) = file.find_holes() {
                effects.push_back(ClientEffect::FindHoles { file: id, from });
            }
        }
        waiting.into_iter().for_each(|id| files.touch(id));
        while let Some(step) = self.zeros.begin() {
            if step.was_cut {
                files.get_mut(&step.of).expect("a hole keeps its file").add_hole();
            }
            let (file, extent) = (step.of, step.extent);
            effects.push_back(ClientEffect::HashZeros { file, extent });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holes::Survey;
    use crate::message::{FileInfo, WriteReply};
    use crate::units::GRAIN_BYTES;
    use crate::write::{ClientOptions, WriteClient};
    use crate::{Digest, Extent, RootBuilder, WirePath};
    use std::time::Duration;

    const SIZE: u64 = 2 * GRAIN_BYTES;

    #[test]
    fn a_file_whose_holes_wait_for_those_of_others_gets_its_turn() {
        let count = HOLE_LISTS_MAX as u32 + 5;
        let options = ClientOptions { chunk_bytes: 1 << 20, timeout: Duration::from_secs(9) };
        let mut machine = WriteClient::new(options);
        let ids: Vec<FileId> = (0..count).map(FileId).collect();
        let hole = Extent::new(0, SIZE);
        let info = FileInfo { size: SIZE, mode: 0o644, mtime_ns: 0, allocated: 0, version: None };
        for &id in &ids {
            let survey = Survey { holes: vec![hole], until: SIZE };
            machine.create(id, WirePath::root(), info, survey, Duration::ZERO);
        }
        let files = ids.iter().map(|&id| (id, Ok(Vec::new()))).collect();
        machine.reply(WriteReply::Created { files }, Duration::ZERO);
        let digests: Vec<Digest> = (0..2).map(|grain| Digest([grain; 32])).collect();
        let mut root = RootBuilder::new(SIZE);
        root.insert_run(0, &digests);
        let mut whole = Vec::new();
        machine.advance(Duration::ZERO);
        while let Some(effect) = machine.next_effect() {
            match effect {
                ClientEffect::Send(WriteRequest::Holes(holes)) => {
                    let zeroed = WriteReply::Zeroed { file: holes.file, answer: Ok(()) };
                    machine.reply(zeroed, Duration::ZERO);
                }
                ClientEffect::HashZeros { file, extent } => {
                    assert_eq!(extent, hole);
                    machine.zeros_hashed(file, extent, &digests, Duration::ZERO);
                }
                ClientEffect::CheckSource { file, root: told } => {
                    assert_eq!(Some(told), root.finish());
                    whole.push(file);
                }
                _ => {}
            }
            machine.advance(Duration::ZERO);
        }
        whole.sort();
        assert_eq!(whole, ids);
    }
}
