//! A session and the budgets of pins and memory: what it does when it may have more, when it
//! has waited in vain, and when it keeps what others wait for. `rdma::pin_budget` decides; windows
//! and slots are made in `reading` and `writing`.

use super::Session;
use super::end::End;
use crate::rdma::pin_budget::Ring;
use std::time::Duration;
use verbatim_proto::{Code, Fault};

/// How long a session waits that has nothing in hand because there is no memory for it.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(60);

impl Session {
    /// The bell of the budget rang.
    pub(super) fn pins_rang(&mut self, ring: Ring) -> Result<(), End> {
        match ring {
            Ring::Free => {
                let since = self.client.memory_wait.take();
                self.lease_more();
                self.provision_more()?;
                self.run_effects()?;
                let wait = &mut self.client.memory_wait;
                *wait = wait.map(|now| since.unwrap_or(now));
                Ok(())
            }
            // Its client may come back.
            Ring::Hoards => {
                let text = "it kept registered memory for too long unread, and others wait";
                Err(End::Refused(Fault::new(Code::TimedOut, text)))
            }
        }
    }

    /// Whether windows or slots wait until more may be pinned.
    pub(super) fn waits_for_pins(&self) -> bool {
        self.reading.waits || self.writing.waits()
    }

    /// Looks again, once a second: a bell may be missed, and a hoarder must be found.
    pub(super) fn look_for_pins(&mut self) -> Result<(), End> {
        if self.waits_for_pins() {
            // Now, not later: who is refused again waits, and that is looked at next.
            self.pins_rang(Ring::Free)?;
        }
        // Who has some goes on with that, more slowly.
        let stands = self.reading.waits && !self.reading.has_windows()
            || self.writing.waits() && !self.writing.has_slots();
        match self.client.memory_wait {
            // Then nobody's pins are in the way.
            Some(since) if stands && since.elapsed() >= MEMORY_WAIT_MAX => {
                let text = format!(
                    "the server had no memory for what this session moves in {} s: this client \
                     has its share of it, or others have the rest; run fewer copies at a time, \
                     with shorter chunks, or raise limits.memory_mb of the server",
                    MEMORY_WAIT_MAX.as_secs()
                );
                return Err(End::Refused(Fault::new(Code::Limit, text)));
            }
            Some(_) => {}
            None if stands => self.client.domain.evict(),
            None => {}
        }
        Ok(())
    }
}
