//! Which slots of which links are free. The fullest choice wins: the link with
//! the most free slots gets the next chunk, so that all links share the work.
//! Only numbers; the driver has the buffers.

use crate::message::LinkId;
use crate::turns::Turns;

/// The slots of all links.
pub(super) struct Slots {
    links: Vec<LinkSlots>,
    per_link: u16,
    /// Which file each link is at.
    pub turns: Turns,
}

struct LinkSlots {
    id: LinkId,
    rail: u16,
    free: Vec<u16>,
    /// It gave no answer in time, and the driver was told to end it.
    dropping: bool,
}

impl Slots {
    pub fn new(per_link: u16) -> Self {
        Self { links: Vec::new(), per_link, turns: Turns::default() }
    }

    pub fn link_up(&mut self, id: LinkId, rail: u16) {
        let free = (0..self.per_link).rev().collect();
        self.links.push(LinkSlots { id, rail, free, dropping: false });
    }

    /// The rail that a link ends at.
    pub fn rail_of(&self, id: LinkId) -> u16 {
        self.links.iter().find(|link| link.id == id).map_or(0, |link| link.rail)
    }

    pub fn link_down(&mut self, id: LinkId) {
        self.links.retain(|link| link.id != id);
        self.turns.link_down(id);
    }

    /// Takes a free slot of a link that works.
    pub fn take(&mut self) -> Option<(LinkId, u16)> {
        let usable = self.links.iter_mut().filter(|link| !link.dropping);
        let link = usable.max_by_key(|link| link.free.len())?;
        Some((link.id, link.free.pop()?))
    }

    /// Gives a slot back; one of a link that is gone goes with it.
    pub fn give_back(&mut self, id: LinkId, slot: u16) {
        if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
            link.free.push(slot);
        }
    }

    /// Marks a link as to be ended; false when it is gone or marked already.
    pub fn drop_link(&mut self, id: LinkId) -> bool {
        let link = self.links.iter_mut().find(|link| link.id == id && !link.dropping);
        link.is_some_and(|link| {
            link.dropping = true;
            true
        })
    }

    pub fn is_dropping(&self, id: LinkId) -> bool {
        self.links.iter().any(|link| link.id == id && link.dropping)
    }
}
