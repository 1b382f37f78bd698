//! The upload slots of a session: memory that a client writes to over one link. Made when the link
//! is up, as many as the pin budget allows; freed when the link is dead. If a device refuses to
//! register slots, its link ends, and the session goes on.

use crate::limits::fair_pool::Permit;
use crate::session::client::Client;
use crate::session::end::{End, end_if_unreleased};
use crate::session::links::Links;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use verbatim_fabric::{FabricError, Memory, SharedSlot, SparePages};
use verbatim_proto::message::{LinkId, Region, ServerMessage};
use verbatim_proto::write::SlotId;
use verbatim_proto::{Code, Fault};
use verbatim_telemetry::labels::Fallback;

/// The slots of a session, and the links that wait for some.
#[derive(Default)]
pub(super) struct Slots {
    slots: HashMap<SlotId, Slot>,
    next: u32,
    /// How many slots links still want; the pin budget has refused them.
    pending: BTreeMap<LinkId, u16>,
}

/// A slot of one link.
struct Slot {
    link: LinkId,
    /// The number of its registration.
    number: u64,
    memory: SharedSlot,
    _taken: Permit,
}

/// A new slot, its address, and its length.
type NewSlot = (SlotId, Region, u32);

impl Slots {
    /// Whether links wait for slots.
    pub fn waits(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether the session has no slot.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The memory of a slot.
    pub fn memory(&self, slot: SlotId) -> SharedSlot {
        self.slots[&slot].memory.clone()
    }

    /// A link is dead: it gets no more slots.
    pub fn link_died(&mut self, link: LinkId) {
        self.pending.remove(&link);
    }

    /// Removes and returns the links that wait, with how many slots each wants.
    pub fn take_pending(&mut self) -> BTreeMap<LinkId, u16> {
        std::mem::take(&mut self.pending)
    }

    /// Makes slots for a link: as many as may be pinned, the others later.
    pub fn provide(
        &mut self,
        client: &mut Client,
        links: &mut Links,
        link: LinkId,
        count: u16,
    ) -> Result<Vec<NewSlot>, End> {
        let refused = |error: FabricError| {
            End::refused(Code::Limit, format!("cannot register slots: {error}"))
        };
        let mut slots = Vec::new();
        let spare_pages = SparePages::new(client.chunk_bytes as usize);
        self.pending.remove(&link);
        for made in 0..count {
            if !self.has_room(client) {
                // Other links have all slots; this one gets some when one of those ends.
                if made == 0 && !self.has_slots(link) {
                    self.pending.insert(link, count);
                }
                break;
            }
            let Some(taken) = client.memory.take(client.chunk_bytes as usize) else {
                client.lacks_memory();
                self.pending.insert(link, count - made);
                break;
            };
            let rail = links.rail_of(link);
            let Some(pin) = client.domain.pin_slot(rail, u64::from(client.chunk_bytes)) else {
                self.pending.insert(link, count - made);
                break;
            };
            let memory = match rail {
                Some(_) => SharedSlot::for_device(client.chunk_bytes as usize),
                None => spare_pages.slot(),
            };
            let made = memory.and_then(|memory| {
                let upload = Memory::Upload(memory.clone());
                Ok((client.domain.offer_on(rail, upload, pin)?, memory))
            });
            let (offered, memory) = match made {
                Ok(made) => made,
                Err(error) if !slots.is_empty() || self.has_slots(link) => {
                    let hint = error.hint();
                    tracing::warn!(session = client.id, %error, hint, "a link has fewer slots");
                    break;
                }
                Err(error) if rail.is_some() => {
                    leave_device(client, links, link, &error)?;
                    break;
                }
                Err(error) => return Err(refused(error)),
            };
            let id = SlotId(self.next);
            self.next += 1;
            let slot = Slot { link, number: offered.number, memory, _taken: taken };
            self.slots.insert(id, slot);
            slots.push((id, offered.region, client.chunk_bytes));
        }
        self.show(client);
        Ok(slots)
    }

    fn has_slots(&self, link: LinkId) -> bool {
        self.slots.values().any(|slot| slot.link == link)
    }

    /// Whether another slot is within the session's maximum for uploads. The first one always is.
    fn has_room(&self, client: &Client) -> bool {
        let count = self.slots.len() as u64 + 1;
        count * u64::from(client.chunk_bytes) <= client.services.rdma.upload_bytes_max
    }

    /// Deregisters and frees the slots of a dead link.
    pub fn free(&mut self, client: &Client, link: LinkId) -> Result<(), End> {
        let of_link = self.slots.extract_if(|_, slot| slot.link == link);
        // All of them, even after one that the device did not release.
        let kept = of_link.filter(|(_, slot)| !client.domain.take_back(slot.number)).count();
        self.show(client);
        end_if_unreleased(kept == 0)
    }

    fn show(&self, client: &Client) {
        client.view.slots.store(self.slots.len() as u64, Ordering::Relaxed);
    }
}

/// A device refuses slots: ends the link, and tells its client why.
fn leave_device(
    client: &Client,
    links: &mut Links,
    link: LinkId,
    error: &FabricError,
) -> Result<(), End> {
    client.view.fell_back(Fallback::Refused);
    links.kill(client, link)?;
    let text = format!("cannot register slots: {}", error.with_hint());
    client.send(ServerMessage::Attached { link, answer: Err(Fault::new(Code::Denied, text)) })
}
