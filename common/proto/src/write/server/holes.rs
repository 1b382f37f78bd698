//! Holes of files that are sent: claimed like chunks, made zeros in the
//! temporary file by the driver a step at a time, and answered list by list.

use super::{File, WriteServer};
use crate::batch::unexpected;
use crate::holes::Holes;
use crate::message::WriteReply;
use crate::units::{HOLE_LISTS_MAX, RANGES_MAX};
use crate::write::types::ServerEffect;
use crate::{Code, Digest, Extent, Fault, FileId};

/// A list of holes that is being worked on.
pub(super) struct List {
    parts: usize,
    answer: Result<(), Fault>,
}

impl WriteServer {
    /// A range is zeros in its temporary file, or could not be made so. The digests are of
    /// zeros there.
    pub fn zeroed(&mut self, id: FileId, extent: Extent, answer: Result<Vec<Digest>, Fault>) {
        self.zeros.ended();
        let file = self.files.get_mut(&id).expect("a file stays while it is zeroed");
        match answer {
            Ok(digests) => {
                file.unstored_bytes -= extent.len;
                file.root.insert_run(extent.offset, &digests);
            }
            Err(fault) => file.list().answer = Err(fault),
        }
        self.part_done(id);
        self.zero_holes();
        self.discard_idle();
    }

    pub(super) fn holes(&mut self, holes: Holes) -> Result<(), Fault> {
        let lists = self.files.values().filter(|file| file.holes.is_some()).count();
        let file = self.files.get_mut(&holes.file).filter(|file| file.open && !file.discarded);
        let file = file.ok_or_else(|| unexpected("list of holes", holes.file))?;
        holes.check(file.info.size)?;
        if file.holes.is_some() || lists >= HOLE_LISTS_MAX {
            let text = format!(
                "client named more than {HOLE_LISTS_MAX} lists of holes, or two of one file"
            );
            return Err(Fault::new(Code::Limit, text));
        }
        for extent in &holes.extents {
            if !file.unclaimed.take(*extent) {
                return Err(unexpected("hole where it sent data", holes.file));
            }
            self.zeros.push(holes.file, *extent);
        }
        if file.unclaimed.range_count() > RANGES_MAX {
            return Err(Fault::new(
                Code::Limit,
                "client names a file's holes in too many fragments",
            ));
        }
        file.absorbing += 1;
        file.holes = Some(List { parts: holes.extents.len(), answer: Ok(()) });
        self.zero_holes();
        Ok(())
    }

    /// Has the driver zero what may be; a file that failed, or is given up, is not worth it.
    pub(super) fn zero_holes(&mut self) {
        let files = &self.files;
        let unwanted = |id: &FileId| {
            let failed = |list: &List| list.answer.is_err();
            let file = files.get(id);
            file.is_none_or(|file| file.discarded || file.holes.as_ref().is_none_or(failed))
        };
        for id in self.zeros.forget(unwanted) {
            self.part_done(id);
        }
        while let Some(step) = self.zeros.begin() {
            let (id, extent) = (step.of, step.extent);
            if step.was_cut {
                let file = self.files.get_mut(&id).expect("a hole keeps its file");
                file.list().parts += 1;
            }
            self.effects.push_back(ServerEffect::Zero { file: id, extent });
        }
    }

    fn part_done(&mut self, id: FileId) {
        let file = self.files.get_mut(&id).expect("a hole keeps its file");
        file.list().parts -= 1;
        if file.list().parts > 0 {
            return;
        }
        let list = file.holes.take().expect("it was just there");
        file.absorbing -= 1;
        let reply = WriteReply::Zeroed { file: id, answer: list.answer };
        self.effects.push_back(ServerEffect::Send(reply));
    }
}

impl File {
    fn list(&mut self) -> &mut List {
        self.holes.as_mut().expect("a part belongs to a list")
    }
}
