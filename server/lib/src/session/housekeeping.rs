//! What a session looks after once a second: whether its client may stay and is
//! there, and what takes so long that the client should hear of it; and what else it
//! tells unasked. With it the budgets of pins and memory, and the pace: what goes on when the
//! session may have more, when it has waited in vain, and when it keeps what others wait for.
//! `rdma::pin_budget` decides; windows are made by the service of reads, slots in `writing`.

use super::Session;
use super::end::End;
use super::links::port_admission::HeldMessage;
use super::mirror::MIRROR_IDLE_MAX;
use crate::rdma::pin_budget::PinEvent;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use verbatim_control::{Policy, unix_now};
use verbatim_proto::message::ServerMessage;
use verbatim_proto::{Code, Fault};

/// How long a session waits that has nothing in hand because there is no memory for it.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(60);

impl Session {
    /// Whether the client may stay; asked when keys change, and every second for its time.
    pub(super) fn check_standing(&self, policy: &watch::Receiver<Arc<Policy>>) -> Result<(), End> {
        let standing = policy.borrow().standing(&self.client.who, unix_now());
        standing.map_err(|text| End::Refused(Fault::new(Code::NotAuthenticated, text)))
    }

    /// Whether nothing is under way for the client, and nothing of it is open.
    pub(super) fn is_idle(&self) -> bool {
        self.limits.under_way() == 0
            && self.held_message.is_none()
            && self.reading.is_idle()
            && self.writing.machine.is_idle()
    }

    /// Looks after what takes time; `silent` is how long nothing was heard.
    pub(super) fn tick(&mut self, silent: Duration) -> Result<(), End> {
        if self.limits.has_lost_event() {
            let text = "more happened at a time than the server can take";
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        self.links.count_lost_before(&self.client, Instant::now());
        self.retry_pins()?;
        self.held_message.as_ref().map_or(Ok(()), HeldMessage::check)?;
        self.time_out_opening();
        let works = self.limits.under_way() > 0
            || self.held_message.is_some()
            || self.writing.machine.is_busy();
        if works || self.fd_queue.waits() || self.waits_for_pins() || self.is_paced() {
            self.client.send(ServerMessage::Working)?;
        }
        // A mirror's client may have much to hash on its own side before it asks again.
        let idle = self.client.services.idle;
        let idle = if self.mirrors.is_open() { idle.max(MIRROR_IDLE_MAX) } else { idle };
        if self.is_idle() && silent > idle {
            let text = format!("nothing was heard for {} s", idle.as_secs());
            return Err(End::Refused(Fault::new(Code::TimedOut, text)));
        }
        Ok(())
    }

    /// Whether anything waits only because the client was too fast.
    fn is_paced(&self) -> bool {
        self.pacing.waits() || self.writing.machine.holds_grants()
    }

    /// How long until what waits may go on; none where nothing does.
    pub(super) fn pace_wait(&self) -> Option<Duration> {
        if self.is_paced() { self.pacing.wait() } else { None }
    }

    /// Holds grants back while the client owes.
    pub(super) fn pace_grants(&mut self) {
        if self.pacing.owes() {
            self.writing.machine.hold_grants(true);
        }
    }

    /// Goes on with what waited, unless another session of the client was quicker.
    pub(super) fn resume_paced(&mut self) -> Result<(), End> {
        if self.pacing.owes() {
            return Ok(());
        }
        self.writing.machine.hold_grants(false);
        if self.pacing.take_deferred() {
            self.reading.lease_deferred(&self.pacing);
        }
        Ok(())
    }

    /// The bell of the budget rang.
    pub(super) fn pins_event(&mut self, event: PinEvent) -> Result<(), End> {
        match event {
            PinEvent::Available => {
                let since = self.client.memory_wait.take();
                self.lease_more();
                self.writing.provision_more(&mut self.client, &mut self.links)?;
                self.carry_link_news();
                self.run_effects()?;
                let wait = &mut self.client.memory_wait;
                *wait = wait.map(|now| since.unwrap_or(now));
                Ok(())
            }
            // Its client may come back.
            PinEvent::Hoarding => {
                let text = "it kept registered memory for too long unread, and others wait";
                Err(End::Refused(Fault::new(Code::TimedOut, text)))
            }
        }
    }

    /// More may be pinned, or less is wanted by others.
    pub(super) fn lease_more(&mut self) {
        self.reading.lease_more(&self.pacing);
    }

    /// Whether windows or slots wait until more may be pinned.
    pub(super) fn waits_for_pins(&self) -> bool {
        self.reading.waits() || self.writing.waits()
    }

    /// Looks again, once a second: a bell may be missed, and a hoarder must be found.
    pub(super) fn retry_pins(&mut self) -> Result<(), End> {
        if self.waits_for_pins() {
            // Now, not later: who is refused again waits, and that is looked at next.
            self.pins_event(PinEvent::Available)?;
        }
        // Who has some goes on with that, more slowly.
        let stands = self.reading.waits() && !self.reading.has_windows()
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
