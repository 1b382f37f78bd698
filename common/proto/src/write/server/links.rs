//! Links that die: what they had not finished is void, and the client is told
//! once nothing of it can be stored any more, nor land in a spot.

use super::{LinkState, Use, WriteServer};
use crate::LinkId;
use crate::write::types::ServerEffect;

impl WriteServer {
    /// Whether something that was sent is not judged yet, or a fence is not answered: the client
    /// hears of neither before that is done.
    pub fn is_busy(&self) -> bool {
        !self.fences.is_empty() || self.uses.values().any(|used| used.sent.is_some())
    }

    /// The driver found a link dead, or killed it.
    pub fn killed(&mut self, link: LinkId) {
        if let Some(state) = self.links.get_mut(&link) {
            *state = LinkState::Dead;
            self.settle(link);
        }
    }

    /// The client asks that a link be dead.
    pub fn fence(&mut self, link: LinkId) {
        match self.links.get(&link) {
            // Asked for once, however often the client does.
            Some(_) => {
                if self.fences.insert(link) {
                    self.effects.push_back(ServerEffect::Kill(link));
                }
            }
            None => self.effects.push_back(ServerEffect::Fenced(link)),
        }
    }

    /// Voids what a dead link has not finished; says so once nothing of it is absorbing.
    pub(super) fn settle(&mut self, link: LinkId) {
        if self.links.get(&link) != Some(&LinkState::Dead) {
            return;
        }
        let on_link = |used: &Use| used.link == link;
        let busy = |used: &Use| used.absorbing || used.awaits_spot();
        if self.uses.values().any(|used| on_link(used) && busy(used)) {
            return;
        }
        self.end_spots(link);
        let void: Vec<Use> =
            self.uses.extract_if(|_, used| on_link(used)).map(|(_, used)| used).collect();
        for piece in void.into_iter().flat_map(|used| used.sent.unwrap_or_default()) {
            if let Some(file) = self.files.get_mut(&piece.file) {
                file.absorbing -= 1;
                file.unclaimed.insert(piece.extent);
            }
        }
        let before = self.slots.len();
        self.slots.retain(|_, slot| slot.link != link);
        if self.slots.len() < before {
            self.effects.push_back(ServerEffect::Free(link));
        }
        self.flush();
        // The client asks for a fence when it finds the link dead; answer only then.
        if self.fences.remove(&link) {
            self.links.remove(&link);
            self.effects.push_back(ServerEffect::Fenced(link));
        }
        self.discard_idle();
    }
}
