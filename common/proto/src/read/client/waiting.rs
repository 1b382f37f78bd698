//! How long the reading client waits, and for whom: a chunk has a deadline, and
//! so has a silent server. Work of this side is not waited for with a clock.

use super::ReadClient;
use crate::read::types::ClientEffect;
use crate::{Code, Fault};
use std::time::Duration;

impl ReadClient {
    /// When `advance` must be called at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        if self.flights.is_empty() {
            return self.awaits_server().then(|| self.heard + self.options.timeout);
        }
        let waiting = self.flights.iter().filter(|((id, _), _)| !self.slots.is_dropping(*id));
        waiting.map(|(_, flight)| flight.deadline).min()
    }

    pub(super) fn expire(&mut self, now: Duration) {
        for ((id, _), flight) in &self.flights {
            if flight.deadline <= now && self.slots.drop_link(*id) {
                self.effects.push_back(ClientEffect::DropLink { link: *id });
            }
        }
        if self.awaits_server()
            && self.flights.is_empty()
            && self.heard + self.options.timeout <= now
        {
            let seconds = self.options.timeout.as_secs();
            let text = format!("server said nothing for {seconds} s");
            self.effects.push_back(ClientEffect::Broken(Fault::new(Code::TimedOut, text)));
            self.heard = now;
        }
    }

    /// Whether something is left to do and not all of it is this side's to do.
    pub fn awaits_server(&self) -> bool {
        !self.is_idle() && self.zeros.is_idle() && !self.awaits_taker()
    }
}
