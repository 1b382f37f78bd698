//! Holes of files that are sent: claimed like chunks, made zeros in the
//! temporary file by the driver a step at a time, and answered list by list.

use super::files::Files;
use crate::holes::{Holes, Zeros};
use crate::message::WriteReply;
use crate::numbered::FileMap;
use crate::units::HOLE_LISTS_MAX;
use crate::write::types::ServerEffect;
use crate::{Code, Digest, Extent, Fault, FileId};
use std::collections::VecDeque;

/// A list of holes that is being worked on.
struct List {
    parts: usize,
    answer: Result<(), Fault>,
}

/// The lists of a machine, one for each file at most.
#[derive(Default)]
pub(super) struct HoleLists {
    lists: FileMap<List>,
    zeros: Zeros<FileId>,
}

impl HoleLists {
    /// Takes a list that the client names.
    pub fn add(&mut self, holes: Holes, files: &mut Files) -> Result<(), Fault> {
        let Holes { file: id, extents } = &holes;
        let file = files.wanted(*id, "list of holes")?;
        holes.check(file.size())?;
        if self.lists.contains_key(id) || self.lists.len() >= HOLE_LISTS_MAX {
            let text = format!(
                "client named more than {HOLE_LISTS_MAX} lists of holes, or two of one file"
            );
            return Err(Fault::new(Code::Limit, text));
        }
        file.claim_holes(*id, extents)?;
        extents.iter().for_each(|extent| self.zeros.push(*id, *extent));
        self.lists.insert(*id, List { parts: extents.len(), answer: Ok(()) });
        Ok(())
    }

    /// The driver made a range zeros, or could not. Returns the answer to a list that is done.
    pub fn zeroed(
        &mut self,
        id: FileId,
        extent: Extent,
        answer: Result<Vec<Digest>, Fault>,
        files: &mut Files,
    ) -> Option<ServerEffect> {
        self.zeros.ended();
        let file = files.get_mut(id).expect("a file stays while it is zeroed");
        match answer {
            Ok(digests) => file.store(extent, &digests),
            Err(fault) => self.list(id).answer = Err(fault),
        }
        self.part_done(id, files)
    }

    /// Has the driver zero what may be; a file that failed, or is given up, is not worth it.
    pub fn advance(&mut self, files: &mut Files, effects: &mut VecDeque<ServerEffect>) {
        let lists = &self.lists;
        let failed = |id: &FileId| lists.get(id).is_none_or(|list| list.answer.is_err());
        for id in self.zeros.forget(|id| files.is_given_up(*id) || failed(id)) {
            effects.extend(self.part_done(id, files));
        }
        while let Some(step) = self.zeros.begin() {
            let (id, extent) = (step.of, step.extent);
            if step.was_cut {
                self.list(id).parts += 1;
            }
            effects.push_back(ServerEffect::Zero { file: id, extent });
        }
    }

    /// A part of a list is done with; the last one answers it.
    fn part_done(&mut self, id: FileId, files: &mut Files) -> Option<ServerEffect> {
        self.list(id).parts -= 1;
        if self.list(id).parts > 0 {
            return None;
        }
        let list = self.lists.remove(&id).expect("it was just there");
        files.get_mut(id).expect("a hole keeps its file").end_claim();
        Some(ServerEffect::Send(WriteReply::Zeroed { file: id, answer: list.answer }))
    }

    fn list(&mut self, id: FileId) -> &mut List {
        self.lists.get_mut(&id).expect("a part belongs to a list")
    }
}
