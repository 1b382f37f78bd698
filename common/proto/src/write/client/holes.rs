//! Holes of files that are sent: named to the server a list at a time, and
//! hashed here as zeros, because the root must be of all of the file. The next
//! list of a file goes out when the last one is done with on both sides.

use super::{File, Stage, WriteClient};
use crate::batch::unexpected;
use crate::holes::{Holes, Survey};
use crate::message::WriteRequest;
use crate::units::HOLE_LISTS_MAX;
use crate::write::types::ClientEffect;
use crate::{Digest, Extent, Fault, FileId};
use std::time::Duration;

impl WriteClient {
    /// The driver looked for holes.
    pub fn found(&mut self, id: FileId, survey: Survey) {
        let file = self.files.get_mut(&id).expect("a file stays while its holes are looked for");
        file.pending -= 1;
        file.search.answer(survey, file.size, &mut file.unsent);
        if !self.queue.contains(&id) {
            self.queue.push_front(id);
        }
    }

    /// Zeros were hashed as a range of a file.
    pub fn zeros_hashed(&mut self, id: FileId, extent: Extent, digests: &[Digest], now: Duration) {
        self.touch(now);
        self.zeros.ended();
        let file = self.files.get_mut(&id).expect("a hole keeps its file");
        file.hole_done();
        file.root.insert_run(extent.offset, digests);
    }

    /// Whether zeros of holes are hashed here, or wait for it.
    pub fn is_hashing_holes(&self) -> bool {
        !self.zeros.is_idle()
    }

    /// Whether the server has holes to make and to hash.
    pub fn awaits_holes(&self) -> bool {
        self.lists > 0
    }

    pub(super) fn zeroed(&mut self, id: FileId, answer: Result<(), Fault>) -> Result<(), Fault> {
        let file = self.files.get_mut(&id).filter(|file| file.naming);
        let file = file.ok_or_else(|| unexpected("answer to holes", id))?;
        file.naming = false;
        file.pending -= 1;
        self.lists -= 1;
        if let Err(fault) = answer {
            self.fail(id, fault);
        }
        Ok(())
    }

    /// Forgets holes of files that have failed.
    pub(super) fn forget_holes(&mut self) {
        let files = &self.files;
        for id in self.zeros.forget(|id| files.get(id).is_none_or(|file| file.doom.is_some())) {
            if let Some(file) = self.files.get_mut(&id) {
                file.hole_done();
            }
        }
    }

    /// Names holes, looks for more where all data is sent, and has zeros hashed.
    pub(super) fn name_holes(&mut self, touched: &[FileId]) {
        let mut waiting = Vec::new();
        for &id in touched {
            let Some(file) = self.files.look_at(id) else { continue };
            if file.stage != Stage::Sending || file.doom.is_some() {
                continue;
            }
            let may_name = !file.naming && file.holes_left == 0;
            if may_name && self.lists == HOLE_LISTS_MAX {
                // Another file's list is in the way: nothing of this one will tell when it is not.
                waiting.push(id);
            } else if may_name && let Some(extents) = file.search.next_list() {
                extents.iter().for_each(|extent| self.zeros.push(id, *extent));
                file.naming = true;
                file.holes_left = extents.len();
                file.pending += 1 + extents.len();
                self.lists += 1;
                let holes = WriteRequest::Holes(Holes { file: id, extents });
                self.effects.push_back(ClientEffect::Send(holes));
            }
            if file.next_unsent().is_none()
                && let Some(from) = file.search.question(file.size)
            {
                file.pending += 1;
                self.effects.push_back(ClientEffect::FindHoles { file: id, from });
            }
        }
        waiting.into_iter().for_each(|id| self.files.touch(id));
        while let Some(step) = self.zeros.begin() {
            if step.was_cut {
                let file = self.files.get_mut(&step.of).expect("a hole keeps its file");
                file.pending += 1;
                file.holes_left += 1;
            }
            let (file, extent) = (step.of, step.extent);
            self.effects.push_back(ClientEffect::HashZeros { file, extent });
        }
    }
}

impl File {
    fn hole_done(&mut self) {
        self.pending -= 1;
        self.holes_left -= 1;
    }

    /// The first range that is to be sent, as far as holes are told from data.
    pub(super) fn next_unsent(&self) -> Option<Extent> {
        let first = self.unsent.iter().next()?;
        let len = self.search.until().saturating_sub(first.offset).min(first.len);
        (len > 0).then_some(Extent::new(first.offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FileInfo, WriteReply};
    use crate::units::GRAIN_BYTES;
    use crate::write::ClientOptions;
    use crate::{RootBuilder, WirePath};

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
