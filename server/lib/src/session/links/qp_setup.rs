//! Queue pairs that are being made, by jobs: to look at all ports and to open a device
//! takes a while, and to find a peer that does not answer for its address a second.
//! First the device joins that serves the client's port; nothing else is heard meanwhile,
//! because what is said next may need the device. Then queue pairs are connected, one at
//! a time, in the order in which they were asked for. One that nobody wants any more is
//! never handed to a worker, and its client's port counts as used until it is destroyed.
//! Every one is answered once. Those that are made are in `Links`, which calls this.

use super::PairEvent;
use crate::exports::client_view::Passage;
use crate::rdma::pin_budget::PinEvent;
use crate::rdma::registrations::{ConnectedQp, LinkRequirements};
use crate::session::client::Client;
use crate::session::end::End;
use std::collections::VecDeque;
use verbatim_fabric::FabricError;
use verbatim_fabric::verbs::Address;
use verbatim_proto::message::{LinkAnswer, LinkId, RailAnswer, ServerMessage};
use verbatim_proto::{Code, Fault};
use verbatim_serve::{EventPort, Jobs};
use verbatim_telemetry::labels::Fallback;

/// How many times as many links as it may have a client can have while old ones end.
pub(super) const ENDING_TIMES: usize = 2;

/// The queue pairs of a session that are being made, in the order they were asked for. At most
/// as many as there may be links that have not ended.
pub(crate) struct QpSetup {
    pending: VecDeque<PendingQp>,
    /// Its jobs, which a test may hold back.
    pub jobs: Jobs<PairEvent>,
    /// Where the pin budget rings.
    on_pin_event: EventPort<PinEvent>,
}

struct PendingQp {
    link: LinkId,
    peer: Address,
    /// Counts the client's port as used.
    passage: Passage,
    step: SetupStep,
    /// Whether its client was told that there will be none.
    abandoned: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SetupStep {
    /// A job sees to the device.
    Joins,
    /// It is to end at this rail, when others are made.
    Waits(u16),
    /// A job connects it, or destroys it.
    Connects,
}

impl QpSetup {
    /// No queue pair is being made.
    pub fn new(jobs: Jobs<PairEvent>, on_pin_event: EventPort<PinEvent>) -> Self {
        Self { pending: VecDeque::new(), jobs, on_pin_event }
    }

    /// Whether a device is being joined.
    pub fn joins(&self) -> bool {
        self.pending.iter().any(|qp| qp.step == SetupStep::Joins)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.pending.len()
    }

    /// Each of them, and its client's port.
    pub fn gids(&self) -> impl Iterator<Item = (LinkId, [u8; 16])> {
        self.pending.iter().map(|qp| (qp.link, qp.passage.gid))
    }

    fn index_of(&self, link: LinkId) -> usize {
        let index = self.pending.iter().position(|qp| qp.link == link);
        index.expect("what a job is at is kept until it tells")
    }

    fn take(&mut self, link: LinkId) -> PendingQp {
        let index = self.index_of(link);
        self.pending.remove(index).expect("it was just there")
    }

    /// The next one to connect, and its rail.
    fn next(&mut self) -> Option<(LinkId, Address, u16)> {
        if self.pending.iter().any(|qp| qp.step == SetupStep::Connects) {
            return None;
        }
        self.pending.iter_mut().find_map(|qp| {
            let SetupStep::Waits(rail) = qp.step else { return None };
            qp.step = SetupStep::Connects;
            Some((qp.link, qp.peer, rail))
        })
    }

    /// Begins to make a queue pair, beside those that are live; whether the client knows direct
    /// writes.
    pub fn begin(
        &mut self,
        client: &Client,
        link: LinkId,
        peer: &[u8],
        live: usize,
    ) -> Result<bool, Fault> {
        let qps_max = client.services.rdma.qps_max;
        let too_many = live + self.count() >= ENDING_TIMES * usize::from(qps_max);
        if link.index >= qps_max || too_many {
            let text = format!("a session may have {qps_max} queue pairs (rdma.qps)");
            return Err(Fault::new(Code::Limit, text));
        }
        let peer = Address::from_bytes(peer);
        let peer = peer.map_err(|error| Fault::new(Code::Protocol, error.to_string()))?;
        // Before there is a queue pair, because files are opened meanwhile; given back by all
        // that fails.
        let passage = client.reach.use_gid(peer.gid)?;
        self.pending.push_back(PendingQp {
            link,
            peer,
            passage,
            step: SetupStep::Joins,
            abandoned: false,
        });
        let events = self.on_pin_event.clone();
        // A bell that is not heard is made up for by the next tick.
        let on_pin_event = move |event| {
            let _ = events.try_send(event);
        };
        let (services, domain, requirements) =
            (client.services.clone(), client.domain.clone(), requirements(client));
        self.jobs.run(move || {
            let rail = domain.join(&services.rdma, &requirements, peer.gid, on_pin_event);
            PairEvent::Joined(link, rail)
        });
        Ok(peer.spots)
    }

    /// The device of a link joined, and the link ends at this rail.
    pub fn joined(&mut self, link: LinkId, rail: u16) {
        let index = self.index_of(link);
        match self.pending[index].abandoned {
            true => drop(self.pending.remove(index)),
            false => self.pending[index].step = SetupStep::Waits(rail),
        }
    }

    /// Connects the next queue pair, unless another is being connected.
    pub fn connect_next(&mut self, client: &Client) {
        let Some((link, peer, rail)) = self.next() else { return };
        let (services, domain, requirements) =
            (client.services.clone(), client.domain.clone(), requirements(client));
        self.jobs.run(move || {
            let made = domain.connect(&services.rdma, &requirements, rail, &peer);
            PairEvent::Made(link, made)
        });
    }

    /// A queue pair could not be made, or was destroyed.
    pub fn refused(
        &mut self,
        client: &Client,
        link: LinkId,
        error: &FabricError,
    ) -> Result<(), End> {
        if self.take(link).abandoned {
            return Ok(());
        }
        client.view.fell_back(Fallback::Refused);
        let answer = Err(Fault::new(Code::NotFound, error.with_hint()));
        client.send(ServerMessage::Attached { link, answer })
    }

    /// A queue pair was made: gives it back with its client's port, or destroys it when nobody
    /// wants it any more.
    pub fn made(
        &mut self,
        client: &Client,
        link: LinkId,
        connected: ConnectedQp,
    ) -> Result<Option<(ConnectedQp, Passage)>, End> {
        let index = self.index_of(link);
        // A file of another export may have been named meanwhile.
        if let Err(fault) = client.reach.use_gid(self.pending[index].passage.gid) {
            self.abandon(client, link, fault)?;
        }
        if self.pending[index].abandoned {
            // Reported as one that was never made, when it is gone.
            self.jobs.run(move || {
                drop(connected);
                PairEvent::Made(link, Err(FabricError::Closed))
            });
            return Ok(None);
        }
        Ok(Some((connected, self.take(link).passage)))
    }

    /// Gives up a link that is being made, and tells its client why; whether it is one. Nothing
    /// was granted on it, and its client has not heard where it ends.
    pub fn abandon(&mut self, client: &Client, link: LinkId, why: Fault) -> Result<bool, End> {
        let Some(index) = self.pending.iter().position(|qp| qp.link == link) else {
            return Ok(false);
        };
        if self.pending[index].abandoned {
            return Ok(true);
        }
        match self.pending[index].step {
            SetupStep::Waits(_) => drop(self.pending.remove(index)),
            SetupStep::Joins | SetupStep::Connects => self.pending[index].abandoned = true,
        }
        client.send(ServerMessage::Attached { link, answer: Err(why) })?;
        Ok(true)
    }

    /// Gives up what has the name of this link and is being made.
    pub fn abandon_older(&mut self, client: &Client, link: LinkId) -> Result<(), End> {
        let links = self.gids().map(|(older, _)| older);
        let older: Vec<LinkId> = links.filter(|older| older.index == link.index).collect();
        for older in older {
            let text = "the next link of its stream was asked for";
            self.abandon(client, older, Fault::new(Code::Limit, text))?;
        }
        Ok(())
    }
}

/// What a rail must serve to be of use to a client.
fn requirements(client: &Client) -> LinkRequirements {
    let slot_bytes = u64::from(client.chunk_bytes);
    LinkRequirements { local: client.local, slot_bytes, by_gid: client.reach.is_picky() }
}

/// The answer to a client whose queue pair ends at a rail.
pub(super) fn answer_of(rail: u16, address: Vec<u8>) -> LinkAnswer {
    match rail {
        0 => LinkAnswer::Verbs { address },
        rail => LinkAnswer::Rail(RailAnswer { rail, address }),
    }
}
