//! Files that go through pipes: streams that grow while they are sent, and files
//! that are read in order for somebody who takes his time.

use super::content::is_hole;
use super::{Event, Faults, LINKS, Model, TIMEOUT, World, path_of};
use verbatim_proto::message::{FileId, FileInfo, LinkId};
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, GRAIN_BYTES, ORDERED_AHEAD_BYTES};
use verbatim_proto::{Extent, ExtentSet};

const CHUNK: u64 = CHUNK_BYTES_DEFAULT as u64;

impl World {
    /// A world with one file, which is read in order.
    pub fn ordered(seed: u64, faults: Faults) -> Self {
        Self { in_order: true, ..Self::new(seed, faults) }
    }

    pub(super) fn populate_ordered(&mut self) {
        for index in 0..LINKS {
            self.attach(LinkId { index, epoch: 0 });
        }
        let size = self.roll(96 << 20);
        let id = FileId(self.roll(2) as u32);
        self.files.insert(id, Model { size, taken: Some(0), ..Model::default() });
        self.read_client.open_ordered(id, path_of(id), None, self.now);
        self.later(5, Event::Take(id));
        if self.chance(self.faults.change_ppm) {
            self.later(100, Event::Change(id));
        }
    }

    /// Takes some of what has come, in order; now and then only after a long while.
    pub(super) fn take(&mut self, id: FileId) {
        let most = self.roll(8 << 20);
        let file = self.model(id);
        let (size, mut taken) = (file.size, file.taken.expect("it is in order"));
        let end = (taken + most).min(size);
        while taken < end && file.landed.contains_key(&(taken / GRAIN_BYTES)) {
            taken = ((taken / GRAIN_BYTES + 1) * GRAIN_BYTES).min(size);
        }
        file.taken = Some(taken);
        let waiting = file.landed.range(taken.div_ceil(GRAIN_BYTES)..);
        let kept = waiting.filter(|(grain, _)| !is_hole(id, **grain, 0)).count() as u64;
        let changed = file.version > 0;
        let most = (ORDERED_AHEAD_BYTES + CHUNK) / GRAIN_BYTES;
        assert!(changed || kept <= most, "{kept} grains wait to be taken");
        self.read_client.taken(taken, self.now);
        if taken < size && !self.files[&id].ended {
            let rests = self.roll(20) == 0;
            let ms_max = if rests { 3 * TIMEOUT.as_millis() as u64 } else { 30 };
            self.later(ms_max, Event::Take(id));
        }
    }

    pub(super) fn begin_stream(&mut self, id: FileId) {
        self.model(id).grown = Some(0);
        let info = FileInfo { size: 0, mode: 0o666, mtime_ns: 0, allocated: 0, version: None };
        self.write_client.create_stream(id, path_of(id), info, self.now);
        self.later(30, Event::Grow(id));
    }

    /// The source of a stream gives a chunk, or its end; now and then only after a long while.
    pub(super) fn grow(&mut self, id: FileId) {
        let file = self.model(id);
        let (size, grown) = (file.size, file.grown.expect("it is a stream"));
        let extent = Extent::new(grown, CHUNK.min(size - grown));
        let last = grown + extent.len == size;
        file.grown = Some(grown + extent.len);
        file.kept.insert(extent);
        if last {
            self.write_client.ended(id, size, self.now);
        }
        if extent.len > 0 {
            self.write_client.grew(id, extent, self.now);
        }
        if !last {
            let rests = self.roll(20) == 0;
            let ms_max = if rests { 3 * TIMEOUT.as_millis() as u64 } else { 30 };
            self.later(ms_max, Event::Grow(id));
        }
    }

    /// What is sent of a stream is kept, for it cannot be read again.
    pub(super) fn check_kept(&self, id: FileId, extent: Extent) {
        let file = &self.files[&id];
        assert!(file.grown.is_none() || file.kept.contains(extent), "bytes that are gone are sent");
    }

    pub(super) fn stored(&mut self, id: FileId, extent: Extent) {
        let kept: &mut ExtentSet = &mut self.model(id).kept;
        assert!(kept.take(extent), "stored twice, or what was never there");
    }
}
