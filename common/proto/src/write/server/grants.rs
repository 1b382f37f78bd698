//! Grants: a slot is lent to the client under a tag that was never used before. A
//! driver whose client sends faster than it may holds grants back; slots rest
//! meanwhile, and go with their link as others do.

use super::files::Files;
use super::granted::{Granted, protocol};
use super::links::Links;
use crate::Fault;
use crate::message::{Grant, LinkId, Piece, Region, Tag, Verdict, WriteReply};
use crate::write::types::{ServerEffect, SlotId};
use std::collections::{HashMap, VecDeque};

struct Slot {
    link: LinkId,
    region: Region,
    bytes: u32,
}

/// The slots of a machine, and the tags under which they are granted.
#[derive(Default)]
pub(super) struct Grants {
    slots: HashMap<SlotId, Slot>,
    granted: HashMap<Tag, Granted>,
    next_tag: u32,
    /// The driver holds grants back.
    holding: bool,
    /// Slots that are not lent meanwhile.
    resting: Vec<SlotId>,
    /// Verdicts and grants of the next message to the client.
    verdicts: Vec<(Tag, Vec<Verdict>)>,
    grants: Vec<Grant>,
    violations: u64,
}

impl Grants {
    /// Adds the slots that the driver registered for a link, and lends them.
    pub fn add(&mut self, link: LinkId, slots: Vec<(SlotId, Region, u32)>, links: &Links) {
        for (id, region, bytes) in slots {
            self.slots.insert(id, Slot { link, region, bytes });
            self.lend(id, links);
        }
    }

    /// Holds grants back from now on, or gives all that were held back.
    pub fn hold(&mut self, hold: bool, links: &Links) {
        self.holding = hold;
        if !hold {
            for id in std::mem::take(&mut self.resting) {
                self.lend(id, links);
            }
        }
    }

    /// Whether a slot waits for grants to be given again.
    pub fn has_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// Grants a slot, or has it rest; one whose link is over is not lent again.
    fn lend(&mut self, id: SlotId, links: &Links) {
        let Some(&Slot { link, region, bytes }) = self.slots.get(&id) else { return };
        if !links.is_provisioned(link) {
            return;
        }
        if self.holding {
            return self.resting.push(id);
        }
        let tag = Tag(self.next_tag);
        // After 4,294,967,296 chunks of one session no tag is free: nothing more is granted.
        let Some(next) = self.next_tag.checked_add(1) else { return };
        self.next_tag = next;
        self.granted.insert(tag, Granted::new(id, link));
        self.grants.push(Grant { tag, link, region, bytes });
    }

    /// The message that tells the client of verdicts and grants, if there are any.
    pub fn reply(&mut self) -> Option<ServerEffect> {
        if self.verdicts.is_empty() && self.grants.is_empty() {
            return None;
        }
        let verdicts = std::mem::take(&mut self.verdicts);
        let grants = std::mem::take(&mut self.grants);
        Some(ServerEffect::Send(WriteReply::Granted { verdicts, grants }))
    }

    /// A notification came in on a link. A notification without a grant counts as a violation.
    pub fn notified(&mut self, link: LinkId, tag: Tag) -> Option<ServerEffect> {
        let granted = self.granted.get_mut(&tag);
        let known = granted.and_then(|it| it.notify(link).then(|| it.hand_over(tag)));
        self.violations += u64::from(known.is_none());
        known.flatten()
    }

    /// How many notifications named a tag that was not theirs, or named it twice.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// Whether a tag was granted and is judged or void.
    pub fn is_over(&self, tag: Tag) -> bool {
        tag.0 < self.next_tag && !self.granted.contains_key(&tag)
    }

    /// Whether a chunk was sent and is not judged.
    pub fn has_sent(&self) -> bool {
        self.granted.values().any(Granted::is_sent)
    }

    /// A grant that the client names, and the bytes of its slot; none where its link was fenced
    /// while this was on the way.
    pub fn named(&mut self, tag: Tag, fault: &str) -> Result<Option<(&mut Granted, u64)>, Fault> {
        let Some(granted) = self.granted.get_mut(&tag) else {
            return if tag.0 < self.next_tag { Ok(None) } else { Err(protocol(fault)) };
        };
        let room = self.slots.get(&granted.slot()).map_or(0, |slot| u64::from(slot.bytes));
        Ok(Some((granted, room)))
    }

    /// A grant whose spot the driver is making.
    pub fn get_mut(&mut self, tag: Tag) -> Option<&mut Granted> {
        self.granted.get_mut(&tag)
    }

    /// The driver judged a chunk: its slot, its link, and the pieces that the client sent.
    pub fn take_judged(&mut self, tag: Tag) -> (SlotId, LinkId, Vec<Piece>) {
        let granted = self.granted.remove(&tag).expect("the driver answers what it was asked");
        let (slot, link) = (granted.slot(), granted.link());
        (slot, link, granted.into_sent().expect("only sent chunks are absorbed"))
    }

    /// Tells the client how a chunk was judged, and grants its slot again.
    pub fn judged(&mut self, tag: Tag, verdicts: Vec<Verdict>, slot: SlotId, links: &Links) {
        self.verdicts.push((tag, verdicts));
        self.lend(slot, links);
    }

    /// Whether the driver stores a chunk of a link, or makes a spot for it.
    pub fn is_busy(&self, link: LinkId) -> bool {
        self.granted.values().any(|granted| granted.link() == link && granted.is_busy())
    }

    /// Voids the grants of a dead link, and has the driver free its slots.
    pub fn void(&mut self, link: LinkId, files: &mut Files, effects: &mut VecDeque<ServerEffect>) {
        for (tag, granted) in self.granted.extract_if(|_, granted| granted.link() == link) {
            granted.void(tag, files, effects);
        }
        let before = self.slots.len();
        self.slots.retain(|_, slot| slot.link != link);
        if self.slots.len() < before {
            effects.push_back(ServerEffect::Free(link));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holes::Holes;
    use crate::message::{CreateFile, FileId, FileInfo, SentChunk, WriteRequest};
    use crate::units::{GRAIN_BYTES, HOLES_MAX, RANGES_MAX};
    use crate::write::WriteServer;
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
        machine.links.begin_writing(&mut machine.effects);
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
