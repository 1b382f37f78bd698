//! Links of the writing client: those the driver can write to, those that are dead, and those that
//! it was told to drop. A name of a link is used once.

use crate::LinkId;
use std::collections::HashSet;

/// The links.
#[derive(Default)]
pub(super) struct Links {
    /// Links the driver can write to; a grant may come before its link is made.
    up: HashSet<LinkId>,
    dead: HashSet<LinkId>,
    dropping: HashSet<LinkId>,
}

impl Links {
    pub fn up(&mut self, link: LinkId) {
        self.up.insert(link);
    }

    pub fn down(&mut self, link: LinkId) {
        self.up.remove(&link);
        self.dead.insert(link);
    }

    pub fn is_up(&self, link: LinkId) -> bool {
        self.up.contains(&link)
    }

    pub fn is_dead(&self, link: LinkId) -> bool {
        self.dead.contains(&link)
    }

    /// Whether it is dead, or will be.
    pub fn is_ending(&self, link: LinkId) -> bool {
        self.is_dead(link) || self.dropping.contains(&link)
    }

    /// The driver is told to drop it; false where it is ending already.
    pub fn drop_link(&mut self, link: LinkId) -> bool {
        !self.is_dead(link) && self.dropping.insert(link)
    }
}
