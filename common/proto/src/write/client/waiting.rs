//! How long the writing client waits, and for whom: a chunk has a deadline, and
//! so has a silent server. Work of this side is not waited for with a clock.

use super::WriteClient;
use crate::message::Tag;
use crate::write::types::ClientEffect;
use crate::{Code, Fault, LinkId};
use std::collections::HashSet;
use std::time::Duration;

impl WriteClient {
    /// The link that a chunk was written over, until the server has judged it.
    pub fn link_of(&self, tag: Tag) -> Option<LinkId> {
        self.flights.get(&tag).map(|flight| flight.grant.link)
    }

    /// When `advance` must be called at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        if self.flights.is_empty() {
            return self.awaits_server().then(|| self.heard + self.options.timeout);
        }
        let waiting = self.flights.values().filter(|flight| !self.is_ending(flight.grant.link));
        waiting.map(|flight| flight.deadline).min().or(Some(self.heard + self.options.timeout))
    }

    fn is_ending(&self, link: LinkId) -> bool {
        self.dead.contains(&link) || self.dropping.contains(&link)
    }

    pub(super) fn expire(&mut self, now: Duration) {
        let none_waits = self.flights.values().all(|flight| self.is_ending(flight.grant.link));
        if self.awaits_server() && none_waits && self.heard + self.options.timeout <= now {
            let seconds = self.options.timeout.as_secs();
            let text = format!("server said nothing for {seconds} s");
            self.effects.push_back(ClientEffect::Broken(Fault::new(Code::TimedOut, text)));
            self.heard = now;
        }
        let late = self.flights.values().filter(|flight| flight.deadline <= now);
        let late: HashSet<LinkId> = late.map(|flight| flight.grant.link).collect();
        for link in late {
            if !self.is_ending(link) {
                self.dropping.insert(link);
                // The server has a while to fence it, from now on.
                self.heard = now;
                self.effects.push_back(ClientEffect::DropLink { link });
            }
        }
    }

    /// Whether something is left to do and not all of it is this side's to do.
    pub fn awaits_server(&self) -> bool {
        let waits = self.files.values().any(|file| !file.awaits_source());
        waits && self.zeros.is_idle()
    }
}
