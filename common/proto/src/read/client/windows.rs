//! Windows that the server leased, and lists of holes, which count as windows: how much of each is
//! not done with, and by which names it is read on each rail. A chunk is read by the name that its
//! window has on the rail of the link it is given.

use super::Chunk;
use crate::message::{FileId, Region, WindowId};
use crate::rails::{RAILS_MAX, WindowRails};
use crate::units::WINDOWS_MAX;
use crate::{Code, Extent, Fault};
use std::collections::HashMap;

struct Window {
    /// Chunks, or parts of holes, that are not done with.
    parts: usize,
    refresh: Vec<(FileId, Extent)>,
    base: u64,
    rails: Vec<Region>,
}

/// The windows of a machine.
#[derive(Default)]
pub(super) struct Windows {
    leased: HashMap<WindowId, Window>,
    /// Names of windows to come.
    rails: HashMap<WindowId, Vec<Region>>,
}

impl Windows {
    pub fn contains(&self, id: WindowId) -> bool {
        self.leased.contains_key(&id)
    }

    /// The server told the names of a window that it will lease next.
    pub fn name_rails(&mut self, told: WindowRails) -> Result<(), Fault> {
        let WindowRails { window, regions } = told;
        let many = self.rails.len() >= WINDOWS_MAX || regions.len() > RAILS_MAX;
        if many || self.contains(window) {
            return Err(Fault::new(Code::Protocol, "server names a window twice, or too many"));
        }
        self.rails.insert(window, regions);
        Ok(())
    }

    /// Says if the server has given more windows, or lists of holes, than it may.
    pub fn check_room(&self) -> Result<(), Fault> {
        if self.leased.len() < WINDOWS_MAX {
            return Ok(());
        }
        let text = format!("server leased more than {WINDOWS_MAX} windows at a time");
        Err(Fault::new(Code::Protocol, text))
    }

    /// Adds a window of so many chunks, which begins at `base` on the first rail.
    pub fn add(&mut self, id: WindowId, base: u64, chunks: usize) {
        let rails = self.rails.remove(&id).unwrap_or_default();
        self.leased.insert(id, Window { parts: chunks, refresh: Vec::new(), base, rails });
    }

    /// Adds a list of so many holes.
    pub fn add_holes(&mut self, id: WindowId, holes: usize) {
        let (refresh, rails) = (Vec::new(), Vec::new());
        self.leased.insert(id, Window { parts: holes, refresh, base: 0, rails });
    }

    /// A chunk is to be read again, or a hole was cut in two.
    pub fn add_part(&mut self, id: WindowId) {
        self.get_mut(id).parts += 1;
    }

    /// A range is to be leased anew when the rest of its window is done with.
    pub fn refresh(&mut self, id: WindowId, file: FileId, extent: Extent) {
        self.get_mut(id).refresh.push((file, extent));
    }

    /// One part of a window is done with. The last one ends the window: then these ranges of it
    /// are to be leased anew.
    pub fn end_part(&mut self, id: WindowId) -> Option<Vec<(FileId, Extent)>> {
        let window = self.get_mut(id);
        window.parts -= 1;
        if window.parts > 0 {
            return None;
        }
        self.leased.remove(&id).map(|window| window.refresh)
    }

    /// The chunk by the names it has on a rail.
    pub fn chunk_on(&self, chunk: &Chunk, rail: u16) -> Result<Chunk, Fault> {
        let rail = usize::from(rail);
        if rail == 0 {
            return Ok(chunk.clone());
        }
        let window = &self.leased[&chunk.window];
        let region = window.rails.get(rail - 1).ok_or_else(|| {
            Fault::new(Code::Protocol, format!("server named no window on rail {rail}"))
        })?;
        let address = region.base.wrapping_add(chunk.address.wrapping_sub(window.base));
        Ok(Chunk { key: region.key, address, ..chunk.clone() })
    }

    fn get_mut(&mut self, id: WindowId) -> &mut Window {
        self.leased.get_mut(&id).expect("a part keeps its window")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FileInfo, Lease, LinkId, Piece, ReadReply};
    use crate::read::{ClientEffect, ClientOptions, Fetch, ReadClient};
    use crate::units::GRAIN_BYTES;
    use crate::{Digest, WirePath};
    use std::time::Duration;

    const LINKS: [LinkId; 2] = [LinkId { index: 0, epoch: 0 }, LinkId { index: 1, epoch: 0 }];
    const BYTES: u64 = 8 * GRAIN_BYTES;

    fn fetches(machine: &mut ReadClient) -> Vec<Fetch> {
        machine.advance(Duration::ZERO);
        std::iter::from_fn(|| machine.next_effect())
            .filter_map(|effect| match effect {
                ClientEffect::Fetch(fetch) => Some(fetch),
                ClientEffect::Broken(fault) => panic!("{fault}"),
                _ => None,
            })
            .collect()
    }

    /// A machine with a link on each of two rails, that was leased a window.
    fn leased(names: Vec<Region>) -> ReadClient {
        let mut machine = ReadClient::new(ClientOptions {
            chunk_bytes: GRAIN_BYTES as u32,
            slots_per_link: 4,
            timeout: Duration::from_secs(1),
            describe: false,
        });
        machine.link_up(LINKS[0]);
        machine.link_up_on(LINKS[1], 1);
        machine.open(FileId(1), WirePath::root(), None, Duration::ZERO);
        let info = FileInfo { size: BYTES, mode: 0, mtime_ns: 0, allocated: BYTES, version: None };
        let files = vec![(FileId(1), Ok(info))];
        machine.reply(ReadReply::Opened { files }, Duration::ZERO);
        let window = WindowId(5);
        let rails = WindowRails { window, regions: names };
        machine.reply(ReadReply::Rails(rails), Duration::ZERO);
        let extent = Extent::new(0, BYTES);
        let piece = Piece { file: FileId(1), extent, digests: vec![Digest([0; 32]); 8] };
        let region = Region { key: 70, base: 1000 };
        let lease = Lease { window, region, pieces: vec![piece] };
        machine.reply(ReadReply::Lease(lease), Duration::ZERO);
        machine
    }

    #[test]
    fn a_server_leases_no_more_windows_than_it_may() {
        let mut machine = leased(vec![Region { key: 71, base: 50_000 }]);
        let files: Vec<_> = (10..10 + WINDOWS_MAX as u32).map(FileId).collect();
        let info = FileInfo { size: 1, mode: 0, mtime_ns: 0, allocated: 1, version: None };
        for &file in &files {
            machine.open(file, WirePath::root(), None, Duration::ZERO);
        }
        let answers = files.iter().map(|&file| (file, Ok(info))).collect();
        machine.reply(ReadReply::Opened { files: answers }, Duration::ZERO);
        for (number, &file) in files.iter().enumerate() {
            while let Some(effect) = machine.next_effect() {
                assert!(!matches!(effect, ClientEffect::Broken(_)), "at {number}: {effect:?}");
            }
            let window = WindowId(100 + number as u64);
            let piece = Piece { file, extent: Extent::new(0, 1), digests: vec![Digest([0; 32])] };
            let region = Region { key: 1, base: 0 };
            let lease = Lease { window, region, pieces: vec![piece] };
            machine.reply(ReadReply::Lease(lease), Duration::ZERO);
        }
        let mut effects = std::iter::from_fn(|| machine.next_effect());
        let broken = effects.find(|effect| matches!(effect, ClientEffect::Broken(_)));
        assert!(broken.is_some(), "it has one more than there may be");
    }

    fn offset(fetch: &Fetch, base: u64) -> u64 {
        fetch.chunk.address - base
    }

    #[test]
    fn a_chunk_is_read_by_the_name_of_its_rail_also_after_the_other_died() {
        let mut machine = leased(vec![Region { key: 71, base: 50_000 }]);
        let first = fetches(&mut machine);
        assert_eq!(first.len(), 8);
        for fetch in &first {
            let (key, base) = if fetch.link == LINKS[1] { (71, 50_000) } else { (70, 1000) };
            assert_eq!(fetch.chunk.key, key);
            assert_eq!(offset(fetch, base), fetch.chunk.pieces[0].extent.offset);
        }
        machine.link_down(LINKS[0], Duration::ZERO);
        machine.link_up_on(LinkId { index: 0, epoch: 1 }, 1);
        let again = fetches(&mut machine);
        assert_eq!(again.len(), 4, "what the dead link had");
        for fetch in &again {
            assert_eq!(fetch.chunk.key, 71);
            assert_eq!(offset(fetch, 50_000), fetch.chunk.pieces[0].extent.offset);
        }
    }

    #[test]
    fn a_window_without_a_name_on_a_rail_breaks_the_session() {
        let mut machine = leased(Vec::new());
        machine.advance(Duration::ZERO);
        let mut effects = std::iter::from_fn(|| machine.next_effect());
        assert!(effects.any(|effect| matches!(effect, ClientEffect::Broken(_))));
    }
}
