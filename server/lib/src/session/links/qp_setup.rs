//! Sets up queue pairs, in jobs: reading all ports and opening a device takes a while, and address
//! resolution of a silent peer a second. First the device of the client's port joins the session.
//! The session reads no message meanwhile, because the next may need the device. Then queue pairs
//! are connected, one at a time, in the order of the requests.
//!
//! An abandoned queue pair never reaches a worker, and its client's port counts as used until it is
//! destroyed. Each request is answered once. `Links` calls this, and owns the finished links.

use super::PairEvent;
use crate::exports::client_view::GidUse;
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

/// How many times its maximum of links a client may have while old ones end.
pub(super) const ENDING_TIMES: usize = 2;

/// The pending queue pairs of a session, in the order of their requests, bounded like its links.
pub(crate) struct QpSetup {
    pending: VecDeque<PendingQp>,
    /// Its jobs, which tests delay.
    pub jobs: Jobs<PairEvent>,
    /// Where the pin budget reports.
    on_pin_event: EventPort<PinEvent>,
}

struct PendingQp {
    link: LinkId,
    peer: Address,
    /// Counts the client's port as used.
    passage: GidUse,
    step: SetupStep,
    /// Whether its client got an error for it.
    abandoned: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SetupStep {
    /// A job opens the device.
    Tickets,
    /// Waits for its turn to be connected, at this rail.
    Waits(u16),
    /// A job connects it, or destroys it.
    Connects,
}

impl QpSetup {
    /// No queue pair is being made.
    pub fn new(jobs: Jobs<PairEvent>, on_pin_event: EventPort<PinEvent>) -> Self {
        Self { pending: VecDeque::new(), jobs, on_pin_event }
    }

    /// Whether a device is joining the session.
    pub fn joins(&self) -> bool {
        self.pending.iter().any(|qp| qp.step == SetupStep::Tickets)
    }

    /// The number of pending queue pairs.
    pub fn count(&self) -> usize {
        self.pending.len()
    }

    /// The pending links, and the client's port of each.
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

    /// The next queue pair to connect, and its rail.
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

    /// Starts to set up a queue pair; returns whether the client supports direct writes.
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
        // Before the queue pair exists, because files are opened meanwhile; every failure releases
        // it.
        let passage = client.reach.use_gid(peer.gid)?;
        self.pending.push_back(PendingQp {
            link,
            peer,
            passage,
            step: SetupStep::Tickets,
            abandoned: false,
        });
        let events = self.on_pin_event.clone();
        // Housekeeping makes up for a lost event.
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

    /// The device of a link joined; the link will end at this rail.
    pub fn joined(&mut self, link: LinkId, rail: u16) {
        let index = self.index_of(link);
        match self.pending[index].abandoned {
            true => drop(self.pending.remove(index)),
            false => self.pending[index].step = SetupStep::Waits(rail),
        }
    }

    /// Connects the next queue pair, unless one is being connected.
    pub fn connect_next(&mut self, client: &Client) {
        let Some((link, peer, rail)) = self.next() else { return };
        let (services, domain, requirements) =
            (client.services.clone(), client.domain.clone(), requirements(client));
        self.jobs.run(move || {
            let made = domain.connect(&services.rdma, &requirements, rail, &peer);
            PairEvent::Made(link, made)
        });
    }

    /// A queue pair failed, or an abandoned one was destroyed.
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

    /// A queue pair was made: returns it with its client's port, or destroys it if it was
    /// abandoned.
    pub fn made(
        &mut self,
        client: &Client,
        link: LinkId,
        connected: ConnectedQp,
    ) -> Result<Option<(ConnectedQp, GidUse)>, End> {
        let index = self.index_of(link);
        // The client may have named a file of another export meanwhile.
        if let Err(fault) = client.reach.use_gid(self.pending[index].passage.gid) {
            self.abandon(client, link, fault)?;
        }
        if self.pending[index].abandoned {
            // Reported as failed when it is destroyed.
            self.jobs.run(move || {
                drop(connected);
                PairEvent::Made(link, Err(FabricError::Closed))
            });
            return Ok(None);
        }
        Ok(Some((connected, self.take(link).passage)))
    }

    /// Abandons a pending link and tells its client why; returns whether the link was pending. It
    /// has no grants, and its client does not know its address.
    pub fn abandon(&mut self, client: &Client, link: LinkId, why: Fault) -> Result<bool, End> {
        let Some(index) = self.pending.iter().position(|qp| qp.link == link) else {
            return Ok(false);
        };
        if self.pending[index].abandoned {
            return Ok(true);
        }
        match self.pending[index].step {
            SetupStep::Waits(_) => drop(self.pending.remove(index)),
            SetupStep::Tickets | SetupStep::Connects => self.pending[index].abandoned = true,
        }
        client.send(ServerMessage::Attached { link, answer: Err(why) })?;
        Ok(true)
    }

    /// Abandons pending links with older epochs of this stream.
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

/// What a rail needs to serve a client.
fn requirements(client: &Client) -> LinkRequirements {
    let slot_bytes = u64::from(client.chunk_bytes);
    LinkRequirements { local: client.local, slot_bytes, by_gid: client.reach.restricts_gids() }
}

/// The answer to a client whose queue pair ends at this rail.
pub(super) fn answer_of(rail: u16, address: Vec<u8>) -> LinkAnswer {
    match rail {
        0 => LinkAnswer::Verbs { address },
        rail => LinkAnswer::Rail(RailAnswer { rail, address }),
    }
}
