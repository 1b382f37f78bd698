//! Links of a client: which of them have slots, which are dead, and which the client asked to have
//! fenced. A fence is answered when nothing that its link carried can be stored any more, nor land
//! in a file; the machine says when that is.

use crate::units::{LINKS_MAX, SLOTS_PER_LINK};
use crate::write::types::ServerEffect;
use crate::{Code, Fault, LinkId};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Links that are up, or dead and not fenced.
const UNFENCED_LINKS_MAX: usize = 4 * LINKS_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    Provisioned,
    /// Dead, and the driver still works on what it carried.
    Dead,
}

/// The links of a machine.
#[derive(Default)]
pub(super) struct Links {
    states: HashMap<LinkId, State>,
    fences: BTreeSet<LinkId>,
    /// The client writes: links need slots.
    writing: bool,
}

impl Links {
    /// A link is ready.
    pub fn up(&mut self, link: LinkId, effects: &mut VecDeque<ServerEffect>) {
        self.states.insert(link, State::Up);
        if self.states.len() > UNFENCED_LINKS_MAX {
            let text = "client makes links and never fences those that died";
            effects.push_back(ServerEffect::Broken(Fault::new(Code::Limit, text)));
        }
        self.provision(effects);
    }

    /// The client begins to write.
    pub fn begin_writing(&mut self, effects: &mut VecDeque<ServerEffect>) {
        self.writing = true;
        self.provision(effects);
    }

    /// Asks for slots on every link, once the client has begun to write.
    fn provision(&mut self, effects: &mut VecDeque<ServerEffect>) {
        if !self.writing {
            return;
        }
        for (&link, state) in &mut self.states {
            if *state == State::Up {
                *state = State::Provisioned;
                effects.push_back(ServerEffect::Provision { link, slots: SLOTS_PER_LINK });
            }
        }
    }

    /// Whether its slots may be granted.
    pub fn is_provisioned(&self, link: LinkId) -> bool {
        self.states.get(&link) == Some(&State::Provisioned)
    }

    pub fn is_dead(&self, link: LinkId) -> bool {
        self.states.get(&link) == Some(&State::Dead)
    }

    /// The driver found a link dead, or killed it.
    pub fn killed(&mut self, link: LinkId) {
        if let Some(state) = self.states.get_mut(&link) {
            *state = State::Dead;
        }
    }

    /// The client asks that a link be dead: killed once, however often the client asks.
    pub fn fence(&mut self, link: LinkId) -> Option<ServerEffect> {
        if !self.states.contains_key(&link) {
            return Some(ServerEffect::Fenced(link));
        }
        self.fences.insert(link).then_some(ServerEffect::Kill(link))
    }

    /// Whether a fence is not answered.
    pub fn has_fences(&self) -> bool {
        !self.fences.is_empty()
    }

    /// The grants of a dead link are void: answers its fence, if the client has asked for one.
    /// Otherwise the client asks when it finds the link dead.
    pub fn settled(&mut self, link: LinkId) -> Option<ServerEffect> {
        self.fences.remove(&link).then(|| {
            self.states.remove(&link);
            ServerEffect::Fenced(link)
        })
    }
}
