//! Grants: a slot is lent to the client under a tag that was never used before. A
//! driver whose client sends faster than it may holds grants back; slots rest
//! meanwhile, and go with their link as others do.

use super::{LinkState, Slot, Use, WriteServer};
use crate::message::{Grant, Tag, WriteReply};
use crate::write::types::{ServerEffect, SlotId};

/// Slots that are not lent because the driver holds grants back.
#[derive(Default)]
pub(super) struct Resting {
    holding: bool,
    slots: Vec<SlotId>,
}

impl WriteServer {
    /// Holds grants back from now on, or gives all that were held back.
    pub fn hold_grants(&mut self, hold: bool) {
        self.resting.holding = hold;
        if !hold {
            for id in std::mem::take(&mut self.resting.slots) {
                self.lend(id);
            }
            self.flush();
        }
    }

    /// Whether a slot waits for grants to be given again.
    pub fn holds_grants(&self) -> bool {
        !self.resting.slots.is_empty()
    }

    /// Grants a slot, or has it rest; one whose link is over is not lent again.
    pub(super) fn lend(&mut self, id: SlotId) {
        let Some(&Slot { link, region, bytes }) = self.slots.get(&id) else { return };
        if self.links.get(&link) != Some(&LinkState::Provisioned) {
            return;
        }
        if self.resting.holding {
            return self.resting.slots.push(id);
        }
        let tag = Tag(self.next_tag);
        // After 4,294,967,296 chunks of one session no tag is free: nothing more is granted.
        let Some(next) = self.next_tag.checked_add(1) else { return };
        self.next_tag = next;
        self.uses.insert(tag, Use::new(id, link));
        self.grants.push(Grant { tag, link, region, bytes });
    }

    /// Tells the client of verdicts and grants.
    pub(super) fn flush(&mut self) {
        if self.verdicts.is_empty() && self.grants.is_empty() {
            return;
        }
        let verdicts = std::mem::take(&mut self.verdicts);
        let grants = std::mem::take(&mut self.grants);
        self.effects.push_back(ServerEffect::Send(WriteReply::Granted { verdicts, grants }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holes::Holes;
    use crate::message::{
        CreateFile, FileId, FileInfo, LinkId, Piece, Region, SentChunk, Tag, Verdict, WriteRequest,
    };
    use crate::units::{GRAIN_BYTES, HOLES_MAX, RANGES_MAX};
    use crate::{Code, Digest, Extent, WirePath};

    const LINK: LinkId = LinkId { index: 0, epoch: 0 };

    /// How many grants the client hears of.
    fn granted(machine: &mut WriteServer) -> usize {
        let mut count = 0;
        while let Some(effect) = machine.next_effect() {
            if let ServerEffect::Send(WriteReply::Granted { grants, .. }) = effect {
                count += grants.len();
            }
        }
        count
    }

    fn with_slots(count: u32, held: bool) -> WriteServer {
        let mut machine = WriteServer::new();
        machine.hold_grants(held);
        machine.writing = true;
        machine.link_up(LINK);
        let slot = |id| (SlotId(id), Region { key: u64::from(id), base: 0 }, 1 << 20);
        machine.provisioned(LINK, (0..count).map(slot).collect());
        machine
    }

    #[test]
    fn what_is_held_back_is_granted_later_and_once() {
        let mut machine = with_slots(3, true);
        assert_eq!(granted(&mut machine), 0);
        assert!(machine.holds_grants());
        machine.hold_grants(false);
        assert_eq!(granted(&mut machine), 3);
        machine.hold_grants(false);
        assert_eq!(granted(&mut machine), 0, "each slot is lent once");
        assert_eq!(granted(&mut with_slots(3, false)), 3, "and at once where nothing is held");
    }

    #[test]
    fn a_link_is_ended_once_however_often_a_fence_is_asked_for() {
        let mut machine = with_slots(1, false);
        (0..1000).for_each(|_| machine.fence(LINK));
        let effects: Vec<_> = std::iter::from_fn(|| machine.next_effect()).collect();
        let kills = effects.iter().filter(|effect| **effect == ServerEffect::Kill(LINK)).count();
        assert_eq!(kills, 1);
        machine.killed(LINK);
        let fenced = std::iter::from_fn(|| machine.next_effect());
        assert_eq!(fenced.filter(|effect| *effect == ServerEffect::Fenced(LINK)).count(), 1);
    }

    #[test]
    fn a_machine_is_busy_until_what_was_sent_is_judged_and_a_fence_answered() {
        let mut machine = with_slots(1, false);
        let (file, path) = (FileId(1), WirePath::root());
        let info =
            FileInfo { size: 1000, mode: 0o644, mtime_ns: 0, allocated: 1000, version: None };
        let create = CreateFile { file, path, info, stream: false };
        machine.request(WriteRequest::Create { files: vec![create] });
        machine.created(vec![(file, Ok(None))]);
        assert!(!machine.is_busy());
        let extent = Extent { offset: 0, len: 1000 };
        let piece = Piece { file, extent, digests: vec![Digest::of(b"")] };
        let chunks = vec![SentChunk { tag: Tag(0), pieces: vec![piece] }];
        machine.request(WriteRequest::Sent { chunks });
        machine.notified(LINK, Tag(0));
        machine.fence(LINK);
        assert!(machine.is_busy(), "the driver is at it");
        machine.absorbed(Tag(0), vec![Verdict::Stored]);
        assert!(machine.is_busy(), "the link is not dead yet");
        machine.killed(LINK);
        assert!(!machine.is_busy());
    }

    #[test]
    fn holes_are_not_named_in_endless_fragments() {
        let mut machine = WriteServer::new();
        let size = 1 << 40;
        let info = FileInfo { size, mode: 0o644, mtime_ns: 0, allocated: 0, version: None };
        let (file, path) = (FileId(1), WirePath::root());
        let create = CreateFile { file, path, info, stream: false };
        machine.request(WriteRequest::Create { files: vec![create] });
        machine.created(vec![(file, Ok(None))]);
        let mut broken = None;
        for list in 0..2 * RANGES_MAX / HOLES_MAX {
            let hole = |at: usize| {
                Extent::new(2 * (list * HOLES_MAX + at) as u64 * GRAIN_BYTES, GRAIN_BYTES)
            };
            let extents: Vec<_> = (0..HOLES_MAX).map(hole).collect();
            machine.request(WriteRequest::Holes(Holes { file, extents }));
            while let Some(effect) = machine.next_effect() {
                match effect {
                    ServerEffect::Zero { file, extent } => {
                        machine.zeroed(file, extent, Ok(vec![Digest([0; 32])]));
                    }
                    ServerEffect::Broken(fault) => broken = Some(fault),
                    _ => {}
                }
            }
        }
        assert_eq!(broken.map(|fault| fault.code), Some(Code::Limit));
    }

    #[test]
    fn what_rests_goes_with_its_link() {
        let mut machine = with_slots(3, true);
        machine.killed(LINK);
        machine.hold_grants(false);
        assert_eq!(granted(&mut machine), 0, "a slot of a dead link was lent");
        assert!(!machine.holds_grants());
    }
}
