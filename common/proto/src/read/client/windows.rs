//! Links of the reading client, and the rails they end at: each chunk is read by
//! the name that its window has on the rail of the link it is given. What a dead
//! link had in flight is done on another.

use super::ReadClient;
use crate::message::LinkId;
use crate::rails::{RAILS_MAX, WindowRails};
use crate::read::chunk::Chunk;
use crate::units::WINDOWS_MAX;
use crate::{Code, Fault};
use std::time::Duration;

impl ReadClient {
    /// A link is ready that ends at the server's first device.
    pub fn link_up(&mut self, id: LinkId) {
        self.link_up_on(id, 0);
    }

    /// A link is ready that ends at this rail.
    pub fn link_up_on(&mut self, id: LinkId, rail: u16) {
        self.slots.link_up(id, rail);
    }

    /// A link is dead and nothing on it will complete any more.
    pub fn link_down(&mut self, id: LinkId, now: Duration) {
        self.touch(now);
        self.slots.link_down(id);
        let lost: Vec<_> = self.flights.keys().filter(|(link, _)| *link == id).copied().collect();
        for key in lost {
            let flight = self.flights.remove(&key).expect("the key was just listed");
            self.ready.push_front(flight.chunk);
        }
    }

    /// The server told the names of a window that it will lease next.
    pub(super) fn rails(&mut self, told: WindowRails) -> Result<(), Fault> {
        let WindowRails { window, regions } = told;
        let many = self.rails.len() >= WINDOWS_MAX || regions.len() > RAILS_MAX;
        if many || self.windows.contains_key(&window) {
            return Err(Fault::new(Code::Protocol, "server names a window twice, or too many"));
        }
        self.rails.insert(window, regions);
        Ok(())
    }

    /// Says if the server has given more windows, or lists of holes, than it may.
    pub(super) fn check_room(&self) -> Result<(), Fault> {
        if self.windows.len() < WINDOWS_MAX {
            return Ok(());
        }
        let text = format!("server leased more than {WINDOWS_MAX} windows at a time");
        Err(Fault::new(Code::Protocol, text))
    }

    /// The chunk by the names it has on the rail of a link.
    pub(super) fn named_on(&self, chunk: &Chunk, link: LinkId) -> Result<Chunk, Fault> {
        let rail = usize::from(self.slots.rail_of(link));
        if rail == 0 {
            return Ok(chunk.clone());
        }
        let window = &self.windows[&chunk.window];
        let region = window.rails.get(rail - 1).ok_or_else(|| {
            Fault::new(Code::Protocol, format!("server named no window on rail {rail}"))
        })?;
        let address = region.base.wrapping_add(chunk.address.wrapping_sub(window.base));
        Ok(Chunk { key: region.key, address, ..chunk.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FileId, FileInfo, Lease, Piece, ReadReply, Region, WindowId};
    use crate::read::{ClientEffect, ClientOptions, Fetch};
    use crate::units::GRAIN_BYTES;
    use crate::{Digest, Extent, WirePath};

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
