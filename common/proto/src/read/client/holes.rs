//! Holes of files that are read: taken like a lease, made zeros in the target by
//! the driver a step at a time, counted in like chunks, and given back.

use super::{File, ReadClient};
use crate::batch::unexpected;
use crate::holes::WindowHoles;
use crate::message::WindowId;
use crate::read::types::{ClientEffect, Zero};
use crate::{Code, Digest, Fault, FileId};
use std::time::Duration;

impl ReadClient {
    /// A range is zeros in its target, or could not be made so. The digests are of zeros there.
    pub fn zeroed(&mut self, zero: Zero, answer: Result<Vec<Digest>, Fault>, now: Duration) {
        self.touch(now);
        self.zeros.ended();
        if let Some(file) = self.files.get_mut(&zero.file) {
            file.end_pending();
            if file.is_wanted() {
                match answer {
                    Ok(digests) => {
                        file.verified(zero.extent, &digests);
                        self.came(zero.extent);
                    }
                    Err(fault) => {
                        file.fail(fault);
                        self.sift = true;
                    }
                }
            }
        }
        self.chunk_done(zero.window);
    }

    /// Whether zeros of holes are hashed, or wait for it.
    pub fn is_hashing_holes(&self) -> bool {
        !self.zeros.is_idle()
    }

    pub(super) fn holes(&mut self, list: WindowHoles) -> Result<(), Fault> {
        let WindowHoles { window, holes } = list;
        if self.windows.contains(window) {
            return Err(Fault::new(Code::Protocol, "server named holes as a window it leased"));
        }
        self.windows.check_room()?;
        let file = self.files.get_mut(&holes.file).filter(|file| !file.is_opening());
        let file = file.ok_or_else(|| unexpected("list of holes", holes.file))?;
        holes.check(file.size())?;
        for extent in &holes.extents {
            file.lease(holes.file, *extent, "hole that was leased before")?;
        }
        // None of them before all are known to be good: what waits to be zeroed is counted below.
        for extent in &holes.extents {
            self.zeros.push((window, holes.file), *extent);
        }
        file.add_pending(holes.extents.len());
        self.sift |= !file.is_wanted();
        self.windows.add_holes(window, holes.extents.len());
        Ok(())
    }

    /// Forgets holes that nobody wants any more.
    pub(super) fn drop_doomed_holes(&mut self) {
        let files = &self.files;
        let unwanted = |(_, id): &(WindowId, FileId)| !files.get(id).is_some_and(File::is_wanted);
        for (window, id) in self.zeros.forget(unwanted) {
            if let Some(file) = self.files.get_mut(&id) {
                file.end_pending();
            }
            self.chunk_done(window);
        }
    }

    /// Has the driver zero what may be.
    pub(super) fn zero_holes(&mut self) {
        while let Some(step) = self.zeros.begin() {
            let (window, file) = step.of;
            if step.was_cut {
                self.windows.add_part(window);
                self.files.get_mut(&file).expect("a hole keeps its file").add_pending(1);
            }
            let zero = Zero { window, file, extent: step.extent };
            self.effects.push_back(ClientEffect::Zero(zero));
        }
    }
}
