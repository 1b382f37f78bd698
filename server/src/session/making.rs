//! Queue pairs that are being made, by jobs: to look at all ports and to open a device
//! takes a while, and to find a peer that does not answer for its address a second.
//! First the device joins that serves the client's port; nothing else is heard meanwhile,
//! because what is said next may need the device. Then queue pairs are connected, one at
//! a time, in the order in which they were asked for. One that nobody wants any more is
//! never handed to a worker, and its client's port counts as used until it is destroyed.
//! Every one is answered once. Those that are made are in `links`.

use super::Session;
use super::end::End;
use super::event::Event;
use crate::exports::client_view::Passage;
use crate::rdma::registrations::{Half, Wanted};
use std::collections::VecDeque;
use verbatim_fabric::FabricError;
use verbatim_fabric::verbs::Address;
use verbatim_proto::message::{LinkAnswer, LinkId, RailAnswer, ServerMessage};
use verbatim_proto::{Code, Fault};
use verbatim_serve::EventPort;
use verbatim_telemetry::labels::Fallback;

/// How many times as many links as it may have a client can have while old ones end.
pub(super) const ENDING_TIMES: usize = 2;

/// The queue pairs of a session that are being made, in the order they were asked for. At most
/// as many as there may be links that have not ended.
#[derive(Default)]
pub(super) struct Making {
    pairs: VecDeque<Pair>,
}

struct Pair {
    link: LinkId,
    peer: Address,
    /// Counts the client's port as used.
    passage: Passage,
    step: Step,
    /// Whether its client was told that there will be none.
    over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A job sees to the device.
    Joins,
    /// It is to end at this rail, when others are made.
    Waits(u16),
    /// A job connects it, or destroys it.
    Connects,
}

/// What jobs tell of queue pairs.
pub(crate) enum PairEvent {
    /// A link is to end at this rail, or at none.
    Joined(LinkId, Result<u16, FabricError>),
    /// It was made, or not.
    Made(LinkId, Result<Half, FabricError>),
}

impl Making {
    /// Whether a device is being joined.
    pub fn joins(&self) -> bool {
        self.pairs.iter().any(|pair| pair.step == Step::Joins)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.pairs.len()
    }

    /// Each of them, and its client's port.
    pub fn gids(&self) -> impl Iterator<Item = (LinkId, [u8; 16])> {
        self.pairs.iter().map(|pair| (pair.link, pair.passage.gid))
    }

    fn place_of(&self, link: LinkId) -> usize {
        let place = self.pairs.iter().position(|pair| pair.link == link);
        place.expect("what a job is at is kept until it tells")
    }

    fn take(&mut self, link: LinkId) -> Pair {
        let place = self.place_of(link);
        self.pairs.remove(place).expect("it was just there")
    }

    /// The next one to connect, and its rail.
    fn next(&mut self) -> Option<(LinkId, Address, u16)> {
        if self.pairs.iter().any(|pair| pair.step == Step::Connects) {
            return None;
        }
        self.pairs.iter_mut().find_map(|pair| {
            let Step::Waits(rail) = pair.step else { return None };
            pair.step = Step::Connects;
            Some((pair.link, pair.peer, rail))
        })
    }
}

impl Session {
    /// Begins to make a queue pair.
    pub(super) fn make_pair(&mut self, link: LinkId, peer: &[u8]) -> Result<(), Fault> {
        let qps_max = self.client.shared.rdma.qps_max;
        let too_many = self.links.pair_count() >= ENDING_TIMES * usize::from(qps_max);
        if link.index >= qps_max || too_many {
            let text = format!("a session may have {qps_max} queue pairs (rdma.qps)");
            return Err(Fault::new(Code::Limit, text));
        }
        let peer = Address::from_bytes(peer);
        let peer = peer.map_err(|error| Fault::new(Code::Protocol, error.to_string()))?;
        // Before there is a queue pair, because files are opened meanwhile; given back by all
        // that fails.
        let passage = self.client.reach.use_gid(peer.gid)?;
        self.spots.knows(peer.spots);
        let step = Step::Joins;
        self.links.making.pairs.push_back(Pair { link, peer, passage, step, over: false });
        let events = EventPort::of(&self.events);
        // A bell that is not heard is made up for by the next tick.
        let bell = move |ring| {
            let _ = events.tell(ring);
        };
        let (shared, domain, wanted) =
            (self.client.shared.clone(), self.client.domain.clone(), self.wanted());
        self.jobs.run(move || {
            let rail = domain.join(&shared.rdma, &wanted, peer.gid, bell);
            Event::Pair(PairEvent::Joined(link, rail))
        });
        Ok(())
    }

    fn wanted(&self) -> Wanted {
        let slot_bytes = u64::from(self.client.chunk_bytes);
        Wanted { local: self.client.local, slot_bytes, by_gid: self.client.reach.is_picky() }
    }

    pub(super) fn pair_event(&mut self, event: PairEvent) -> Result<(), End> {
        match event {
            PairEvent::Joined(link, Ok(rail)) => self.pair_joined(link, rail),
            PairEvent::Joined(link, Err(error)) => self.pair_refused(link, &error)?,
            PairEvent::Made(link, Err(error)) => self.pair_refused(link, &error)?,
            PairEvent::Made(link, Ok(half)) => self.pair_made(link, half)?,
        }
        self.connect_next();
        self.go_on_if_left()
    }

    fn pair_joined(&mut self, link: LinkId, rail: u16) {
        let place = self.links.making.place_of(link);
        let pairs = &mut self.links.making.pairs;
        match pairs[place].over {
            true => drop(pairs.remove(place)),
            false => pairs[place].step = Step::Waits(rail),
        }
        // Windows are registered there as well from now on.
        self.lease_more();
    }

    /// Connects the next queue pair, unless another is being connected.
    fn connect_next(&mut self) {
        let Some((link, peer, rail)) = self.links.making.next() else { return };
        let (shared, domain, wanted) =
            (self.client.shared.clone(), self.client.domain.clone(), self.wanted());
        self.jobs.run(move || {
            let made = domain.connect(&shared.rdma, &wanted, rail, &peer);
            Event::Pair(PairEvent::Made(link, made))
        });
    }

    fn pair_refused(&mut self, link: LinkId, error: &FabricError) -> Result<(), End> {
        if self.links.making.take(link).over {
            return Ok(());
        }
        self.client.view.fell_back(Fallback::Refused);
        let answer = Err(Fault::new(Code::NotFound, error.with_hint()));
        self.client.send(ServerMessage::Attached { link, answer })
    }

    fn pair_made(&mut self, link: LinkId, half: Half) -> Result<(), End> {
        let place = self.links.making.place_of(link);
        // A file of another export may have been named meanwhile.
        if let Err(fault) = self.client.reach.use_gid(self.links.making.pairs[place].passage.gid) {
            self.unmake(link, fault)?;
        }
        if self.links.making.pairs[place].over {
            // Told as one that was never made, when it is gone.
            self.jobs.run(move || {
                drop(half);
                Event::Pair(PairEvent::Made(link, Err(FabricError::Closed)))
            });
            return Ok(());
        }
        let passage = self.links.making.take(link).passage;
        let Half { link: made, address, rail } = half;
        self.adopt(link, made, Some((rail, passage)));
        let answer = match rail {
            0 => LinkAnswer::Verbs { address },
            rail => LinkAnswer::Rail(RailAnswer { rail, address }),
        };
        self.client.send(ServerMessage::Attached { link, answer: Ok(answer) })
    }

    /// Gives up a link that is being made, and tells its client why; whether it is one. Nothing
    /// was granted on it, and its client has not heard where it ends.
    pub(super) fn unmake(&mut self, link: LinkId, why: Fault) -> Result<bool, End> {
        let pairs = &mut self.links.making.pairs;
        let Some(place) = pairs.iter().position(|pair| pair.link == link) else {
            return Ok(false);
        };
        if pairs[place].over {
            return Ok(true);
        }
        match pairs[place].step {
            Step::Waits(_) => drop(pairs.remove(place)),
            Step::Joins | Step::Connects => pairs[place].over = true,
        }
        self.client.send(ServerMessage::Attached { link, answer: Err(why) })?;
        Ok(true)
    }

    /// Gives up what has the name of this link and is being made.
    pub(super) fn unmake_older(&mut self, link: LinkId) -> Result<(), End> {
        let links = self.links.making.gids().map(|(older, _)| older);
        let older: Vec<LinkId> = links.filter(|older| older.index == link.index).collect();
        for older in older {
            let text = "the next link of its stream was asked for";
            self.unmake(older, Fault::new(Code::Limit, text))?;
        }
        Ok(())
    }

    /// The client wants a link dead.
    pub(super) fn fence(&mut self, link: LinkId) -> Result<(), End> {
        self.count_lost(link.index);
        self.unmake(link, Fault::new(Code::LinkLost, "the link ended before it was made"))?;
        self.writing.machine.fence(link);
        Ok(())
    }
}
