//! The links of a session: made on request, handed to a worker each, killed on
//! request or when they die. A link's name is used once. Those of a device are made
//! by jobs (`making`).

use super::Session;
use super::end::End;
use super::making::{ENDING_TIMES, Making};
use crate::exports::client_view::Passage;
use crate::net::data_tickets::{Arrived, Joined};
use crate::worker::{Command, LinkEvent};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use verbatim_fabric::tcp::TcpLink;
use verbatim_fabric::worker::LinkKey;
use verbatim_fabric::{FabricError, Link};
use verbatim_proto::message::{
    JoinSecret, LinkAnswer, LinkId, LinkOffer, SealedAnswer, ServerMessage,
};
use verbatim_proto::{Code, Fault};
use verbatim_serve::EventPort;
use verbatim_telemetry::labels::{Fallback, Transport};

/// Where the links of a session are.
pub(super) struct Links {
    /// Where workers tell of them.
    pub events: EventPort<LinkEvent>,
    /// Where data connections come that were expected.
    tickets: EventPort<Joined>,
    live: HashMap<LinkId, Place>,
    pub making: Making,
    /// The newest epoch of each stream.
    epochs: HashMap<u16, u16>,
    /// The streams that had a queue pair.
    paired: HashSet<u16>,
    /// Links that ended by themselves and are not counted as lost yet, by stream: a client that
    /// says goodbye closes its links, and the server may see that before the goodbye.
    ended: HashMap<u16, (Transport, Instant)>,
    /// Whether the client was lent memory to try them with.
    pub probed: bool,
}

pub(super) struct Place {
    pub key: LinkKey,
    pub worker: usize,
    pub transport: Transport,
    /// Whether its end was asked for.
    pub ending: bool,
    /// The rail it ends at, and what counts the client's port as used for as long as it lives;
    /// none for links without a device.
    port: Option<(u16, Passage)>,
}

/// A link that ended by itself this long ago was lost, if its session goes on.
const LOST_AFTER: Duration = Duration::from_secs(1);

impl Links {
    /// None yet.
    pub fn new(events: EventPort<LinkEvent>, tickets: EventPort<Joined>) -> Self {
        Self {
            events,
            tickets,
            live: HashMap::new(),
            making: Making::default(),
            epochs: HashMap::new(),
            paired: HashSet::new(),
            ended: HashMap::new(),
            probed: false,
        }
    }

    /// The links that have a device, or will, and the client's port of each.
    pub fn gids(&self) -> impl Iterator<Item = (LinkId, [u8; 16])> {
        let live = self.live.iter();
        let live = live.filter_map(|(link, place)| Some((*link, place.port.as_ref()?.1.gid)));
        live.chain(self.making.gids())
    }

    /// How many have a device, or will.
    pub fn pair_count(&self) -> usize {
        self.live.values().filter(|place| place.transport == Transport::Verbs).count()
            + self.making.count()
    }

    /// How many there are that nobody asked to end, and how many in all.
    #[cfg(test)]
    pub fn count(&self) -> (usize, usize) {
        let up = self.live.values().filter(|place| !place.ending).count();
        (up, self.live.len())
    }
}

impl Session {
    /// A worker tells of a link.
    pub(super) fn link_event(&mut self, event: LinkEvent) -> Result<(), End> {
        match event {
            LinkEvent::Notified { link, tag } => self.notified(link, tag),
            LinkEvent::Absorbed { tag, bytes, verdicts } => {
                self.absorbed(tag, bytes, verdicts);
                Ok(())
            }
            LinkEvent::Spot(event) => self.spot_event(event),
            LinkEvent::Dead { link, why } => {
                self.link_dead(link, why);
                self.go_on_if_left()
            }
        }
    }

    /// Answers a request for a link.
    pub(super) fn attach(&mut self, link: LinkId, offer: LinkOffer) -> Result<(), End> {
        self.count_lost(link.index);
        let answer = match self.begin_epoch(link) {
            Ok(()) => {
                self.end_older(link)?;
                self.make_link(link, offer)
            }
            Err(fault) => Err(fault),
        };
        match answer.transpose() {
            Some(answer) => self.client.send(ServerMessage::Attached { link, answer }),
            None => Ok(()),
        }
    }

    /// Takes the name of a link, unless it is over or there is no room.
    fn begin_epoch(&mut self, link: LinkId) -> Result<(), Fault> {
        if link.index >= self.client.shared.links_max {
            let text = format!("a session may have {} links", self.client.shared.links_max);
            return Err(Fault::new(Code::Limit, text));
        }
        let newest = self.links.epochs.get(&link.index);
        if newest.is_some_and(|&newest| newest >= link.epoch) {
            return Err(Fault::new(Code::Protocol, "the link's epoch is over"));
        }
        let count = self.links.live.len() + self.links.making.count();
        if count >= ENDING_TIMES * usize::from(self.client.shared.links_max) {
            return Err(Fault::new(Code::Limit, "too many links have not ended yet"));
        }
        self.links.epochs.insert(link.index, link.epoch);
        Ok(())
    }

    /// Ends what had the name before, so that there are never more links than names: a client
    /// that asks for the next epoch uses the last no more, fenced or not.
    fn end_older(&mut self, link: LinkId) -> Result<(), End> {
        let live = self.links.live.iter();
        let older = live.filter(|(id, place)| id.index == link.index && !place.ending);
        let older: Vec<LinkId> = older.map(|(id, _)| *id).collect();
        older.into_iter().try_for_each(|id| self.kill(id))?;
        self.unmake_older(link)
    }

    /// Makes a link, or begins to: of that its client hears later.
    fn make_link(&mut self, link: LinkId, offer: LinkOffer) -> Result<Option<LinkAnswer>, Fault> {
        // Whatever was offered: an export that moves encrypted only leaves no choice.
        if let Some(reason) = self.client.reach.must_seal() {
            let secret = random_secret()?;
            self.client.view.fell_back(Fallback::Encrypted);
            self.client.shared.joins.expect(secret, link, self.links.tickets.clone(), true);
            let secret = JoinSecret(secret);
            return Ok(Some(LinkAnswer::Sealed(SealedAnswer { secret, reason })));
        }
        Ok(Some(match offer {
            LinkOffer::Tcp => {
                let secret = random_secret()?;
                // One that is lost may be made anew: a stream falls back when TCP takes its place.
                self.client.view.fell_back(match self.links.paired.contains(&link.index) {
                    true => Fallback::Lost,
                    false => self.client.shared.observatory.why_tcp(),
                });
                self.client.shared.joins.expect(secret, link, self.links.tickets.clone(), false);
                LinkAnswer::Tcp { secret: JoinSecret(secret) }
            }
            LinkOffer::Sim => {
                let sim = self.client.shared.sim.clone();
                let sim = sim.ok_or_else(|| Fault::new(Code::NotFound, "no simulated network"))?;
                let (endpoint, end) = sim.listen_end(self.client.domain.soft().clone());
                self.adopt(link, Box::new(end), None);
                LinkAnswer::Sim { endpoint }
            }
            LinkOffer::Verbs { address } => {
                self.make_pair(link, &address)?;
                return Ok(None);
            }
        }))
    }

    /// A data connection came in.
    pub(super) fn joined(&mut self, Joined { link, arrived }: Joined) {
        if self.links.epochs.get(&link.index) != Some(&link.epoch) {
            return tracing::debug!(session = self.client.id, ?link, "link came too late");
        }
        let domain = self.client.domain.soft().clone();
        let made = match arrived {
            Arrived::Plain(stream) => TcpLink::new(stream, domain),
            Arrived::Sealed(sealed) => TcpLink::sealed(sealed.0, sealed.1, domain),
        };
        match made {
            Ok(made) => self.adopt(link, Box::new(made), None),
            Err(error) => tracing::warn!(session = self.client.id, ?link, %error, "link not made"),
        }
    }

    pub(super) fn adopt(&mut self, id: LinkId, link: Box<dyn Link>, port: Option<(u16, Passage)>) {
        let number = self.client.shared.next_link.fetch_add(1, Ordering::Relaxed);
        let key = LinkKey(number);
        let transport = Transport::of(link.transport());
        let workers = match transport {
            Transport::Verbs => self.client.shared.device_workers,
            _ => self.client.shared.workers.len(),
        };
        let worker = number as usize % workers;
        tracing::debug!(session = self.client.id, ?id, transport = link.transport(), "link made");
        let session = self.links.events.clone();
        let told =
            self.client.shared.workers[worker].send(Command::Adopt { key, id, link, session });
        if let Err(error) = told {
            tracing::error!(session = self.client.id, %error, "worker takes no link");
            return;
        }
        if transport == Transport::Verbs {
            self.links.paired.insert(id.index);
        }
        self.links.live.insert(id, Place { key, worker, port, transport, ending: false });
        self.show_links();
        self.writing.machine.link_up(id);
    }

    /// A link died, or was killed.
    pub(super) fn link_dead(&mut self, link: LinkId, why: Option<FabricError>) {
        let place = self.links.live.remove(&link);
        if let (Some(error), Some(&Place { transport, .. })) = (why, place.as_ref()) {
            tracing::debug!(session = self.client.id, ?link, %error, "link ended");
            self.count_lost(link.index);
            self.links.ended.insert(link.index, (transport, Instant::now()));
        }
        self.writing.wants_no_slots(link);
        self.show_links();
        self.writing.machine.killed(link);
    }

    /// Counts the link of a stream as lost, if it ended by itself: its client noticed as well.
    pub(super) fn count_lost(&mut self, index: u16) {
        if let Some((transport, _)) = self.links.ended.remove(&index) {
            self.client.view.link_lost(transport);
        }
    }

    /// Counts the links as lost that ended by themselves a while ago: their session goes on.
    pub(super) fn count_lost_before(&mut self, now: Instant) {
        let is_lost = |at: &Instant| now.duration_since(*at) >= LOST_AFTER;
        let ended = self.links.ended.iter();
        let lost: Vec<u16> = ended.filter(|(_, (_, at))| is_lost(at)).map(|(i, _)| *i).collect();
        lost.into_iter().for_each(|index| self.count_lost(index));
    }

    /// Ends a link; `LinkDead` comes back when nothing of it can land any more.
    pub(super) fn kill(&mut self, id: LinkId) -> Result<(), End> {
        match self.links.live.get_mut(&id) {
            // Its worker knows, and answers once.
            Some(place) if place.ending => Ok(()),
            Some(place) => {
                place.ending = true;
                let (key, worker) = (place.key, place.worker);
                self.show_links();
                let session = self.links.events.clone();
                self.client.tell(worker, Command::Kill { key, id, session })
            }
            None => {
                self.link_dead(id, None);
                Ok(())
            }
        }
    }

    /// Tells people which links there are.
    fn show_links(&self) {
        let live = self.links.live.values();
        let up = live.clone().filter(|place| !place.ending).map(|place| place.transport);
        let is_ending = |place: &&Place| place.ending && place.transport == Transport::Verbs;
        self.client.view.links(up, live.clone().filter(is_ending).count() as u64);
    }

    /// A link as its worker knows it, that worker, and what carries it; one that no worker has,
    /// when the link is gone.
    pub(super) fn place_of(&self, link: LinkId) -> (LinkKey, usize, Transport) {
        let gone = (LinkKey(u64::MAX), 0, Transport::Tcp);
        let place = self.links.live.get(&link);
        place.map_or(gone, |place| (place.key, place.worker, place.transport))
    }

    /// The rail that a link ends at.
    pub(super) fn rail_of(&self, link: LinkId) -> Option<u16> {
        self.links.live.get(&link).and_then(|place| Some(place.port.as_ref()?.0))
    }

    /// Ends every link; nobody waits for the answers.
    pub(super) fn drop_links(&mut self) {
        for (id, place) in std::mem::take(&mut self.links.live) {
            let (key, session) = (place.key, self.links.events.clone());
            let worker = &self.client.shared.workers[place.worker];
            // One for each link, however much the worker has to do: what is not ended serves on.
            if let Err(error) = worker.send_anyway(Command::Kill { key, id, session }) {
                tracing::error!(session = self.client.id, ?id, %error, "link not ended");
            }
        }
    }
}

fn random_secret() -> Result<[u8; 32], Fault> {
    let mut secret = [0; 32];
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut secret, flags) {
        Ok(got) if got == secret.len() => Ok(secret),
        _ => Err(Fault::new(Code::Io, "the system has no random bytes")),
    }
}
