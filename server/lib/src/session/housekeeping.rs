//! Housekeeping, once a second: expired credentials, idle clients, `Working` messages while a job
//! takes long, and files that waited too long for descriptors. Also resumes windows and slots when
//! the pin budget, the memory limit or the rate limit allows more.
//!
//! Ends a session that waited too long for memory, or hoards pins. `rdma::pin_budget` decides who
//! hoards; `ReadService` makes windows, `writing` makes slots.

use super::Session;
use super::end::End;
use super::links::port_admission::HeldMessage;
use super::mirror::MIRROR_IDLE_MAX;
use crate::rdma::pin_budget::PinEvent;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use verbatim_control::{Policy, unix_now};
use verbatim_proto::Code;
use verbatim_proto::message::ServerMessage;

/// How long a session with neither windows nor slots waits for memory.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(60);

impl Session {
    /// Whether the credentials of the client are still valid; checked when keys change, and every
    /// second because they expire.
    pub(super) fn check_standing(&self, policy: &watch::Receiver<Arc<Policy>>) -> Result<(), End> {
        let standing = policy.borrow().standing(&self.client.who, unix_now());
        standing.map_err(|text| End::refused(Code::NotAuthenticated, text))
    }

    /// Whether the session has no job, no held message and no open file.
    pub(super) fn is_idle(&self) -> bool {
        self.limits.under_way() == 0
            && self.held_message.is_none()
            && self.reading.is_idle()
            && self.writing.machine.is_idle()
    }

    /// Runs the housekeeping; `silent` is the time since the last message of the client.
    pub(super) fn tick(&mut self, silent: Duration) -> Result<(), End> {
        if self.limits.has_lost_event() {
            let text = "the event queue of this session is full";
            return Err(End::refused(Code::Limit, text));
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
        // The client of a mirror may hash for hours on its own side before it asks again.
        let idle = self.client.services.idle;
        let idle = if self.mirrors.is_open() { idle.max(MIRROR_IDLE_MAX) } else { idle };
        if self.is_idle() && silent > idle {
            let text = format!("nothing was heard for {} s", idle.as_secs());
            return Err(End::refused(Code::TimedOut, text));
        }
        Ok(())
    }

    /// Whether windows or grants wait only because of the rate limit.
    fn is_paced(&self) -> bool {
        self.pacing.waits() || self.writing.machine.holds_grants()
    }

    /// How long the rate limit delays windows and grants; none where nothing waits.
    pub(super) fn pace_wait(&self) -> Option<Duration> {
        if self.is_paced() { self.pacing.wait() } else { None }
    }

    /// Withholds grants while the client is over its rate.
    pub(super) fn pace_grants(&mut self) {
        if self.pacing.owes() {
            self.writing.machine.hold_grants(true);
        }
    }

    /// Resumes windows and grants, unless another session of the client used up the rate.
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

    /// Handles an event of the pin budget.
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
            // `TimedOut` lets its client reconnect.
            PinEvent::Hoarding => {
                let text = "it kept registered memory for too long unread, and others wait";
                Err(End::refused(Code::TimedOut, text))
            }
        }
    }

    /// Leases windows that the pin budget or the memory limit delayed, or adapts their length.
    pub(super) fn lease_more(&mut self) {
        self.reading.lease_more(&self.pacing);
    }

    /// Whether windows or slots wait for the pin budget.
    pub(super) fn waits_for_pins(&self) -> bool {
        self.reading.waits() || self.writing.waits()
    }

    /// Retries once a second: an event may be lost, and a hoarding client must be found.
    pub(super) fn retry_pins(&mut self) -> Result<(), End> {
        if self.waits_for_pins() {
            // At once: windows that are refused again count as waiting in the check below.
            self.pins_event(PinEvent::Available)?;
        }
        // A session that has some windows or slots continues with them, more slowly.
        let stands = self.reading.waits() && !self.reading.has_windows()
            || self.writing.waits() && !self.writing.has_slots();
        match self.client.memory_wait {
            // The memory limit is the cause, and evicting pins of others would not help.
            Some(since) if stands && since.elapsed() >= MEMORY_WAIT_MAX => {
                let text = format!(
                    "the server had no memory for what this session moves in {} s: this client \
                     has its share of it, or others have the rest; run fewer copies at a time, \
                     with shorter chunks, or raise limits.memory_mb of the server",
                    MEMORY_WAIT_MAX.as_secs()
                );
                return Err(End::refused(Code::Limit, text));
            }
            Some(_) => {}
            None if stands => self.client.domain.evict(),
            None => {}
        }
        Ok(())
    }
}
