//! Holes of files that are read: taken like a lease, made zeros in the target by
//! the driver a step at a time, counted in like chunks, and given back.

use super::{File, ReadClient, Stage, Window};
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
            file.pending -= 1;
            if file.is_wanted() {
                match answer {
                    Ok(digests) => {
                        file.unverified_bytes -= zero.extent.len;
                        file.root.insert_run(zero.extent.offset, &digests);
                        self.came(zero.extent);
                    }
                    Err(fault) => (file.doom, self.sift) = (Some(fault), true),
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
        if self.windows.contains_key(&window) {
            return Err(Fault::new(Code::Protocol, "server named holes as a window it leased"));
        }
        self.check_room()?;
        let file = self.files.get_mut(&holes.file).filter(|file| file.stage != Stage::Opening);
        let file = file.ok_or_else(|| unexpected("list of holes", holes.file))?;
        holes.check(file.size)?;
        for extent in &holes.extents {
            if !file.unleased.take(*extent) {
                return Err(unexpected("hole that was leased before", holes.file));
            }
        }
        // None of them before all are known to be good: what waits to be zeroed is counted below.
        for extent in &holes.extents {
            self.zeros.push((window, holes.file), *extent);
        }
        file.pending += holes.extents.len();
        self.sift |= !file.is_wanted();
        let parts =
            Window { chunks: holes.extents.len(), refresh: Vec::new(), base: 0, rails: Vec::new() };
        self.windows.insert(window, parts);
        Ok(())
    }

    /// Forgets holes that nobody wants any more.
    pub(super) fn drop_doomed_holes(&mut self) {
        let files = &self.files;
        let unwanted = |(_, id): &(WindowId, FileId)| !files.get(id).is_some_and(File::is_wanted);
        for (window, id) in self.zeros.forget(unwanted) {
            if let Some(file) = self.files.get_mut(&id) {
                file.pending -= 1;
            }
            self.chunk_done(window);
        }
    }

    /// Has the driver zero what may be.
    pub(super) fn zero_holes(&mut self) {
        while let Some(step) = self.zeros.begin() {
            let (window, file) = step.of;
            if step.was_cut {
                self.windows.get_mut(&window).expect("a hole keeps its window").chunks += 1;
                self.files.get_mut(&file).expect("a hole keeps its file").pending += 1;
            }
            let zero = Zero { window, file, extent: step.extent };
            self.effects.push_back(ClientEffect::Zero(zero));
        }
    }
}
