//! A session and the pin budget: what it does when it may pin more, when it has
//! waited in vain, and when it keeps what others wait for. `pins` decides; windows
//! and slots are made in `reading` and `writing`.

use super::{End, Session};
use crate::pins::Ring;
use verbatim_proto::{Code, Fault};

impl Session {
    /// The bell of the budget rang.
    pub(super) fn pins_rang(&mut self, ring: Ring) -> Result<(), End> {
        match ring {
            Ring::Free => {
                self.lease_more();
                self.provision_more()
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
            self.pins_rang(Ring::Free)?;
            // Now, not later: who is refused again waits, and that is looked at next.
            self.run_effects()?;
        }
        // Who has some goes on with that, more slowly.
        let stands = self.reading.waits && !self.reading.has_windows()
            || self.writing.waits() && !self.writing.has_slots();
        if stands {
            self.domain.evict();
        }
        Ok(())
    }
}
