//! The links of a session: made on request, handed to a worker each, killed on
//! request or when they die. A link's name is used once. Those of a device are made
//! by jobs (`qp_setup`). What other activities are to do about a link waits as `LinkNews`,
//! which the dispatcher takes after each call.
//!
//! Also owns the memory for a client that tries its links: `rdma-doctor` reads and writes it, and
//! nobody looks at what is in it. One probe a session, of a mebibyte each way at most, counted
//! against the pin budget; it goes with the session's domain.

mod event;
pub(crate) mod port_admission;
mod qp_setup;

use super::client::Client;
use super::end::End;
use crate::exports::client_view::Passage;
use crate::net::data_tickets::{Arrived, Joined};
use crate::rdma::pin_budget::PinEvent;
use crate::rdma::registrations::ConnectedQp;
use crate::worker::{Command, LinkEvent};
pub(crate) use event::PairEvent;
use qp_setup::{ENDING_TIMES, QpSetup, answer_of};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use verbatim_fabric::tcp::TcpLink;
use verbatim_fabric::worker::LinkKey;
use verbatim_fabric::{FabricError, Link, Memory, SharedSlot};
use verbatim_proto::message::{
    JoinSecret, LinkAnswer, LinkId, LinkOffer, SealedAnswer, ServerMessage,
};
use verbatim_proto::probing::{PROBE_BYTES_MAX, ProbeRequest, Probed};
use verbatim_proto::{Code, Fault};
use verbatim_serve::{EventPort, Jobs};
use verbatim_telemetry::labels::{Fallback, Transport};

/// Where the links of a session are.
pub(super) struct Links {
    /// Where workers report them.
    events: EventPort<LinkEvent>,
    /// Where data connections come that were expected.
    tickets: EventPort<Joined>,
    live: HashMap<LinkId, LiveLink>,
    pub setup: QpSetup,
    /// The newest epoch of each stream.
    epochs: HashMap<u16, u16>,
    /// The streams that had a queue pair.
    paired: HashSet<u16>,
    /// Links that ended by themselves and are not counted as lost yet, by stream: a client that
    /// says goodbye closes its links, and the server may see that before the goodbye.
    ended: HashMap<u16, (Transport, Instant)>,
    /// Whether the client was lent memory to try them with.
    probed: bool,
    /// What no other activity knows yet.
    news: VecDeque<LinkNews>,
}

/// What other activities are to know of links.
pub(super) enum LinkNews {
    /// Chunks may be written over this link from now on.
    Up(LinkId),
    /// Nothing of this link can land any more.
    Dead(LinkId),
    /// A device joined: windows are registered there as well from now on.
    DeviceJoined,
    /// The client can write straight into files.
    KnowsDirectWrites,
}

/// Where a live link is.
struct LiveLink {
    key: LinkKey,
    worker: usize,
    transport: Transport,
    /// Whether its end was asked for.
    ending: bool,
    /// The rail it ends at, and what counts the client's port as used for as long as it lives;
    /// none for links without a device.
    port: Option<(u16, Passage)>,
}

/// A link that ended by itself this long ago was lost, if its session goes on.
const LOST_AFTER: Duration = Duration::from_secs(1);

impl Links {
    /// None yet. Workers report to `events`, data connections to `tickets`, the pin budget to
    /// `bell`.
    pub fn new(
        events: EventPort<LinkEvent>,
        tickets: EventPort<Joined>,
        jobs: Jobs<PairEvent>,
        on_pin_event: EventPort<PinEvent>,
    ) -> Self {
        Self {
            events,
            tickets,
            live: HashMap::new(),
            setup: QpSetup::new(jobs, on_pin_event),
            epochs: HashMap::new(),
            paired: HashSet::new(),
            ended: HashMap::new(),
            probed: false,
            news: VecDeque::new(),
        }
    }

    /// The next thing that other activities are to know.
    pub fn next_news(&mut self) -> Option<LinkNews> {
        self.news.pop_front()
    }

    /// Where workers report links, and what they do with them.
    pub fn events(&self) -> EventPort<LinkEvent> {
        self.events.clone()
    }

    /// The links that have a device, or will, and the client's port of each.
    pub fn gids(&self) -> impl Iterator<Item = (LinkId, [u8; 16])> {
        let live = self.live.iter();
        let live =
            live.filter_map(|(link, live_link)| Some((*link, live_link.port.as_ref()?.1.gid)));
        live.chain(self.setup.gids())
    }

    /// How many there are that nobody asked to end, and how many in all.
    #[cfg(test)]
    pub fn count(&self) -> (usize, usize) {
        let up = self.live.values().filter(|live_link| !live_link.ending).count();
        (up, self.live.len())
    }

    /// Answers a request for a link.
    pub fn attach(&mut self, client: &Client, link: LinkId, offer: LinkOffer) -> Result<(), End> {
        self.count_lost(client, link.index);
        let answer = match self.begin_epoch(client, link) {
            Ok(()) => {
                self.end_older(client, link)?;
                self.make_link(client, link, offer)
            }
            Err(fault) => Err(fault),
        };
        match answer.transpose() {
            Some(answer) => client.send(ServerMessage::Attached { link, answer }),
            None => Ok(()),
        }
    }

    /// Takes the name of a link, unless it is over or there is no room.
    fn begin_epoch(&mut self, client: &Client, link: LinkId) -> Result<(), Fault> {
        if link.index >= client.services.links_max {
            let text = format!("a session may have {} links", client.services.links_max);
            return Err(Fault::new(Code::Limit, text));
        }
        let newest = self.epochs.get(&link.index);
        if newest.is_some_and(|&newest| newest >= link.epoch) {
            return Err(Fault::new(Code::Protocol, "the link's epoch is over"));
        }
        let count = self.live.len() + self.setup.count();
        if count >= ENDING_TIMES * usize::from(client.services.links_max) {
            return Err(Fault::new(Code::Limit, "too many links have not ended yet"));
        }
        self.epochs.insert(link.index, link.epoch);
        Ok(())
    }

    /// Ends what had the name before, so that there are never more links than names: a client
    /// that asks for the next epoch uses the last no more, fenced or not.
    fn end_older(&mut self, client: &Client, link: LinkId) -> Result<(), End> {
        let live = self.live.iter();
        let older = live.filter(|(id, live_link)| id.index == link.index && !live_link.ending);
        let older: Vec<LinkId> = older.map(|(id, _)| *id).collect();
        older.into_iter().try_for_each(|id| self.kill(client, id))?;
        self.setup.abandon_older(client, link)
    }

    /// Makes a link, or begins to: of that its client hears later.
    fn make_link(
        &mut self,
        client: &Client,
        link: LinkId,
        offer: LinkOffer,
    ) -> Result<Option<LinkAnswer>, Fault> {
        // Whatever was offered: an export that moves encrypted only leaves no choice.
        if let Some(reason) = client.reach.must_seal() {
            let secret = random_secret()?;
            client.view.fell_back(Fallback::Encrypted);
            client.services.joins.expect(secret, link, self.tickets.clone(), true);
            let secret = JoinSecret(secret);
            return Ok(Some(LinkAnswer::Sealed(SealedAnswer { secret, reason })));
        }
        Ok(Some(match offer {
            LinkOffer::Tcp => {
                let secret = random_secret()?;
                // One that is lost may be made anew: a stream falls back when TCP takes its place.
                client.view.fell_back(match self.paired.contains(&link.index) {
                    true => Fallback::Lost,
                    false => client.services.observatory.why_tcp(),
                });
                client.services.joins.expect(secret, link, self.tickets.clone(), false);
                LinkAnswer::Tcp { secret: JoinSecret(secret) }
            }
            LinkOffer::Sim => {
                let sim = client.services.sim.clone();
                let sim = sim.ok_or_else(|| Fault::new(Code::NotFound, "no simulated network"))?;
                let (endpoint, end) = sim.listen_end(client.domain.soft().clone());
                self.adopt(client, link, Box::new(end), None);
                LinkAnswer::Sim { endpoint }
            }
            LinkOffer::Verbs { address } => {
                let pairs =
                    self.live.values().filter(|live_link| live_link.transport == Transport::Verbs);
                let live = pairs.count();
                if self.setup.begin(client, link, &address, live)? {
                    self.news.push_back(LinkNews::KnowsDirectWrites);
                }
                return Ok(None);
            }
        }))
    }

    /// A data connection came in.
    pub fn joined(&mut self, client: &Client, Joined { link, arrived }: Joined) {
        if self.epochs.get(&link.index) != Some(&link.epoch) {
            return tracing::debug!(session = client.id, ?link, "link came too late");
        }
        let domain = client.domain.soft().clone();
        let made = match arrived {
            Arrived::Plain(stream) => TcpLink::new(stream, domain),
            Arrived::Sealed(sealed) => TcpLink::sealed(sealed.0, sealed.1, domain),
        };
        match made {
            Ok(made) => self.adopt(client, link, Box::new(made), None),
            Err(error) => tracing::warn!(session = client.id, ?link, %error, "link not made"),
        }
    }

    /// Hands a link to a worker.
    pub fn adopt(
        &mut self,
        client: &Client,
        id: LinkId,
        link: Box<dyn Link>,
        port: Option<(u16, Passage)>,
    ) {
        let number = client.services.next_link.fetch_add(1, Ordering::Relaxed);
        let key = LinkKey(number);
        let transport = Transport::of(link.transport());
        let workers = match transport {
            Transport::Verbs => client.services.device_workers,
            _ => client.services.workers.len(),
        };
        let worker = number as usize % workers;
        tracing::debug!(session = client.id, ?id, transport = link.transport(), "link made");
        let session = self.events.clone();
        let told = client.services.workers[worker].send(Command::Adopt { key, id, link, session });
        if let Err(error) = told {
            tracing::error!(session = client.id, %error, "worker takes no link");
            return;
        }
        if transport == Transport::Verbs {
            self.paired.insert(id.index);
        }
        self.live.insert(id, LiveLink { key, worker, port, transport, ending: false });
        self.show(client);
        self.news.push_back(LinkNews::Up(id));
    }

    /// A link died, or was killed.
    pub fn died(&mut self, client: &Client, link: LinkId, why: Option<FabricError>) {
        let live_link = self.live.remove(&link);
        if let (Some(error), Some(&LiveLink { transport, .. })) = (why, live_link.as_ref()) {
            tracing::debug!(session = client.id, ?link, %error, "link ended");
            self.count_lost(client, link.index);
            self.ended.insert(link.index, (transport, Instant::now()));
        }
        self.show(client);
        self.news.push_back(LinkNews::Dead(link));
    }

    /// Counts the link of a stream as lost, if it ended by itself: its client noticed as well.
    pub fn count_lost(&mut self, client: &Client, index: u16) {
        if let Some((transport, _)) = self.ended.remove(&index) {
            client.view.link_lost(transport);
        }
    }

    /// Counts the links as lost that ended by themselves a while ago: their session goes on.
    pub fn count_lost_before(&mut self, client: &Client, now: Instant) {
        let is_lost = |at: &Instant| now.duration_since(*at) >= LOST_AFTER;
        let ended = self.ended.iter();
        let lost: Vec<u16> = ended.filter(|(_, (_, at))| is_lost(at)).map(|(i, _)| *i).collect();
        lost.into_iter().for_each(|index| self.count_lost(client, index));
    }

    /// Ends a link; `LinkEvent::Dead` comes back when nothing of it can land any more.
    pub fn kill(&mut self, client: &Client, id: LinkId) -> Result<(), End> {
        match self.live.get_mut(&id) {
            // Its worker knows, and answers once.
            Some(live_link) if live_link.ending => Ok(()),
            Some(live_link) => {
                live_link.ending = true;
                let (key, worker) = (live_link.key, live_link.worker);
                self.show(client);
                let session = self.events.clone();
                client.send_to_worker(worker, Command::Kill { key, id, session })
            }
            None => {
                self.died(client, id, None);
                Ok(())
            }
        }
    }

    /// Tells people which links there are.
    fn show(&self, client: &Client) {
        let live = self.live.values();
        let up =
            live.clone().filter(|live_link| !live_link.ending).map(|live_link| live_link.transport);
        let is_ending =
            |live_link: &&LiveLink| live_link.ending && live_link.transport == Transport::Verbs;
        client.view.links(up, live.clone().filter(is_ending).count() as u64);
    }

    /// A link as its worker knows it, that worker, and what carries it; one that no worker has,
    /// when the link is gone.
    pub fn worker_of(&self, link: LinkId) -> (LinkKey, usize, Transport) {
        let gone = (LinkKey(u64::MAX), 0, Transport::Tcp);
        let live_link = self.live.get(&link);
        live_link.map_or(gone, |live_link| (live_link.key, live_link.worker, live_link.transport))
    }

    /// The rail that a link ends at.
    pub fn rail_of(&self, link: LinkId) -> Option<u16> {
        self.live.get(&link).and_then(|live_link| Some(live_link.port.as_ref()?.0))
    }

    /// Ends every link; nobody waits for the answers.
    pub fn end_all(&mut self, client: &Client) {
        for (id, live_link) in std::mem::take(&mut self.live) {
            let (key, session) = (live_link.key, self.events.clone());
            let worker = &client.services.workers[live_link.worker];
            // One for each link, however much the worker has to do: what is not ended serves on.
            if let Err(error) = worker.send_anyway(Command::Kill { key, id, session }) {
                tracing::error!(session = client.id, ?id, %error, "link not ended");
            }
        }
    }

    /// A job reports a queue pair that is being made. The next is to be connected then.
    pub fn pair_event(&mut self, client: &Client, event: PairEvent) -> Result<(), End> {
        match event {
            PairEvent::Joined(link, Ok(rail)) => {
                self.setup.joined(link, rail);
                self.news.push_back(LinkNews::DeviceJoined);
            }
            PairEvent::Joined(link, Err(error)) | PairEvent::Made(link, Err(error)) => {
                self.setup.refused(client, link, &error)?;
            }
            PairEvent::Made(link, Ok(connected)) => {
                if let Some((connected, passage)) = self.setup.made(client, link, connected)? {
                    let ConnectedQp { link: made, address, rail } = connected;
                    self.adopt(client, link, made, Some((rail, passage)));
                    let answer = Ok(answer_of(rail, address));
                    client.send(ServerMessage::Attached { link, answer })?;
                }
            }
        }
        Ok(())
    }

    /// The client wants a link dead: gives it up where it is still being made.
    pub fn fence(&mut self, client: &Client, link: LinkId) -> Result<(), End> {
        self.count_lost(client, link.index);
        let text = "the link ended before it was made";
        self.setup.abandon(client, link, Fault::new(Code::LinkLost, text))?;
        Ok(())
    }

    /// Answers a request for memory to try links with.
    pub fn probe(&mut self, client: &Client, request: ProbeRequest) -> Result<(), End> {
        let answer = self.offer_probe(client, request);
        client.send(ServerMessage::Probed(answer))
    }

    fn offer_probe(
        &mut self,
        client: &Client,
        ProbeRequest { link, bytes }: ProbeRequest,
    ) -> Result<Probed, Fault> {
        let limit = |text: &str| Fault::new(Code::Limit, text);
        if bytes == 0 || bytes > PROBE_BYTES_MAX {
            return Err(limit("a probe has from one byte to a mebibyte"));
        }
        if std::mem::replace(&mut self.probed, true) {
            return Err(limit("a session has one probe"));
        }
        let rail = self.rail_of(link);
        let pin = client.domain.pin_slot(rail, 2 * u64::from(bytes));
        let pin = pin.ok_or_else(|| limit("the server may pin no more now"))?;
        let offer = |memory: fn(SharedSlot) -> Memory| {
            let slot = SharedSlot::new(bytes as usize)?;
            client.domain.offer_on(rail, memory(slot), Arc::clone(&pin))
        };
        let offered = offer(Memory::Staged).and_then(|read| Ok((read, offer(Memory::Upload)?)));
        let (read, write) = offered.map_err(|error| limit(&error.with_hint()))?;
        Ok(Probed { read: read.region, write: write.region, bytes })
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
