//! Slots of a session: memory that its links write to. Made when a link is ready, as
//! many as may be pinned; they go with their link. A device that refuses them is
//! left, and not the session.

use super::super::Session;
use super::super::end::{End, go_on_if};
use crate::limits::fair_pool::Place;
use std::sync::atomic::Ordering;
use verbatim_fabric::{FabricError, Memory, SharedSlot, SparePages};
use verbatim_proto::message::{LinkId, ServerMessage};
use verbatim_proto::write::SlotId;
use verbatim_proto::{Code, Fault};
use verbatim_telemetry::labels::Fallback;

/// Memory that a client writes to over one link.
pub(super) struct Slot {
    pub link: LinkId,
    /// What takes it back from the link.
    pub number: u64,
    pub memory: SharedSlot,
    _taken: Place,
}

impl Session {
    /// Makes slots for a link: as many as may be pinned, the others later.
    pub(super) fn provision(&mut self, link: LinkId, count: u16) -> Result<(), End> {
        let refused = |error: FabricError| {
            End::Refused(Fault::new(Code::Limit, format!("cannot register slots: {error}")))
        };
        let mut slots = Vec::new();
        let in_turns = SparePages::new(self.client.chunk_bytes as usize);
        self.writing.wanting.remove(&link);
        for made in 0..count {
            if !self.has_room_for_slot() {
                // Others of its links have them all; it gets some when one of those has ended.
                if made == 0 && !self.has_slots(link) {
                    self.writing.wanting.insert(link, count);
                }
                break;
            }
            let Some(taken) = self.client.memory.take(self.client.chunk_bytes as usize) else {
                self.client.lacks_memory();
                self.writing.wanting.insert(link, count - made);
                break;
            };
            let rail = self.links.rail_of(link);
            let Some(pin) = self.client.domain.pin_slot(rail, u64::from(self.client.chunk_bytes))
            else {
                self.writing.wanting.insert(link, count - made);
                break;
            };
            let memory = match rail {
                Some(_) => SharedSlot::for_device(self.client.chunk_bytes as usize),
                None => in_turns.slot(),
            };
            let made = memory.and_then(|memory| {
                let upload = Memory::Upload(memory.clone());
                Ok((self.client.domain.offer_on(rail, upload, pin)?, memory))
            });
            let (offered, memory) = match made {
                Ok(made) => made,
                Err(error) if !slots.is_empty() || self.has_slots(link) => {
                    let hint = error.hint();
                    tracing::warn!(session = self.client.id, %error, hint, "a link has fewer slots");
                    break;
                }
                Err(error) if rail.is_some() => {
                    self.leave_device(link, &error)?;
                    break;
                }
                Err(error) => return Err(refused(error)),
            };
            let id = SlotId(self.writing.next_slot);
            self.writing.next_slot += 1;
            let slot = Slot { link, number: offered.number, memory, _taken: taken };
            self.writing.slots.insert(id, slot);
            slots.push((id, offered.region, self.client.chunk_bytes));
        }
        self.show_slots();
        self.writing.machine.provisioned(link, slots);
        Ok(())
    }

    /// Nothing can be written over a link: its client is told why, and leaves the rail.
    fn leave_device(&mut self, link: LinkId, error: &FabricError) -> Result<(), End> {
        self.client.view.fell_back(Fallback::Refused);
        self.links.kill(&self.client, link)?;
        let text = format!("cannot register slots: {}", error.with_hint());
        self.client
            .send(ServerMessage::Attached { link, answer: Err(Fault::new(Code::Denied, text)) })
    }

    fn has_slots(&self, link: LinkId) -> bool {
        self.writing.slots.values().any(|slot| slot.link == link)
    }

    /// Whether another slot is within what uploads of a session may take. One always is.
    fn has_room_for_slot(&self) -> bool {
        let count = self.writing.slots.len() as u64 + 1;
        count * u64::from(self.client.chunk_bytes) <= self.client.shared.rdma.upload_bytes_max
    }

    /// Makes slots that could not be pinned before, those of the first link first.
    pub(in crate::session) fn provision_more(&mut self) -> Result<(), End> {
        for (link, count) in std::mem::take(&mut self.writing.wanting) {
            self.provision(link, count)?;
        }
        Ok(())
    }

    pub(super) fn free_slots(&mut self, link: LinkId) -> Result<(), End> {
        let of_link = self.writing.slots.extract_if(|_, slot| slot.link == link);
        // All of them, also behind one that could not be taken back.
        let kept = of_link.filter(|(_, slot)| !self.client.domain.take_back(slot.number)).count();
        self.show_slots();
        go_on_if(kept == 0)
    }

    fn show_slots(&self) {
        self.client.view.slots.store(self.writing.slots.len() as u64, Ordering::Relaxed);
    }
}
