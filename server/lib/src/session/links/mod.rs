//! Owns the links of a session: makes them on request, hands each to a worker, and ends them on
//! request or when they die. A link's name is used once. Never moves data, and calls no other
//! activity: news wait as `LinkNews`, which the dispatcher fetches after each call. Above it stand
//! `writing` and the dispatcher, below it the workers; `qp_setup` makes the links of devices.
//!
//! Also owns the memory that `rdma-doctor` reads and writes to probe links: one probe per session,
//! at most a mebibyte each way, counted against the pin budget and freed with the session's domain.

mod event;
pub(crate) mod port_admission;
mod qp_setup;

use super::client::Client;
use super::end::End;
use crate::exports::client_view::GidUse;
use crate::net::data_tickets::{DataConnection, DataStream};
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

/// The links of a session.
pub(super) struct Links {
    /// Where workers report links.
    events: EventPort<LinkEvent>,
    /// Where `net` delivers data connections that a ticket admitted.
    tickets: EventPort<DataConnection>,
    live: HashMap<LinkId, LiveLink>,
    pub setup: QpSetup,
    /// The newest epoch of each stream.
    epochs: HashMap<u16, u16>,
    /// The streams that ever had a queue pair.
    paired: HashSet<u16>,
    /// Links that ended by themselves and are not counted as lost yet, by stream: a client that
    /// leaves closes its links, and the server may see that before its `Bye`.
    ended: HashMap<u16, (Transport, Instant)>,
    /// Whether the client has had its probe.
    probed: bool,
    /// News that the dispatcher has not fetched.
    news: VecDeque<LinkNews>,
}

/// What other activities must know of links.
pub(super) enum LinkNews {
    /// The link is up: chunks may be written over it.
    Up(LinkId),
    /// The link is dead: no write of it can land any more.
    Dead(LinkId),
    /// A device joined: windows are registered there from now on, too.
    DeviceJoined,
    /// The client supports direct writes into files.
    DirectWritesSupported,
}

/// A link that a worker has.
struct LiveLink {
    key: LinkKey,
    worker: usize,
    transport: Transport,
    /// Whether the session has asked the worker to end it.
    ending: bool,
    /// The rail that it ends at, and the guard that counts the client's port as used; none for
    /// links without a device.
    port: Option<(u16, GidUse)>,
}

/// A link that ended by itself counts as lost if its session is still there after this time.
const LOST_AFTER: Duration = Duration::from_secs(1);

impl Links {
    /// No link yet. Workers report to `events`, data connections to `tickets`, the pin budget to
    /// `on_pin_event`.
    pub fn new(
        events: EventPort<LinkEvent>,
        tickets: EventPort<DataConnection>,
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

    /// The next news for other activities.
    pub fn next_news(&mut self) -> Option<LinkNews> {
        self.news.pop_front()
    }

    /// The port where workers report links and chunks.
    pub fn events(&self) -> EventPort<LinkEvent> {
        self.events.clone()
    }

    /// The links of devices, live or pending, and the client's port of each.
    pub fn gids(&self) -> impl Iterator<Item = (LinkId, [u8; 16])> {
        let live = self.live.iter();
        let live =
            live.filter_map(|(link, live_link)| Some((*link, live_link.port.as_ref()?.1.gid)));
        live.chain(self.setup.gids())
    }

    /// The number of links that are not ending, and of all.
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

    /// Records the epoch of a link, unless it is over or there are too many links.
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

    /// Ends older epochs of the same stream, so that there are never more links than streams: a
    /// client that asks for the next epoch no longer uses the last one, fenced or not.
    fn end_older(&mut self, client: &Client, link: LinkId) -> Result<(), End> {
        let live = self.live.iter();
        let older = live.filter(|(id, live_link)| id.index == link.index && !live_link.ending);
        let older: Vec<LinkId> = older.map(|(id, _)| *id).collect();
        older.into_iter().try_for_each(|id| self.kill(client, id))?;
        self.setup.abandon_older(client, link)
    }

    /// Makes a link, or starts to: then the client gets its answer later.
    fn make_link(
        &mut self,
        client: &Client,
        link: LinkId,
        offer: LinkOffer,
    ) -> Result<Option<LinkAnswer>, Fault> {
        // Whatever the client offered: an export that requires encryption allows only sealed
        // connections.
        if let Some(reason) = client.reach.must_seal() {
            let secret = random_secret()?;
            client.view.fell_back(Fallback::Encrypted);
            client.services.joins.issue(secret, link, self.tickets.clone(), true);
            let secret = JoinSecret(secret);
            return Ok(Some(LinkAnswer::Sealed(SealedAnswer { secret, reason })));
        }
        Ok(Some(match offer {
            LinkOffer::Tcp => {
                let secret = random_secret()?;
                // A lost queue pair may be made again: a stream falls back when TCP replaces it.
                client.view.fell_back(match self.paired.contains(&link.index) {
                    true => Fallback::Lost,
                    false => client.services.observatory.why_tcp(),
                });
                client.services.joins.issue(secret, link, self.tickets.clone(), false);
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
                    self.news.push_back(LinkNews::DirectWritesSupported);
                }
                return Ok(None);
            }
        }))
    }

    /// Adopts a data connection that the client opened with a ticket.
    pub fn joined(&mut self, client: &Client, DataConnection { link, stream }: DataConnection) {
        if self.epochs.get(&link.index) != Some(&link.epoch) {
            return tracing::debug!(session = client.id, ?link, "link came too late");
        }
        let domain = client.domain.soft().clone();
        let made = match stream {
            DataStream::Plain(stream) => TcpLink::new(stream, domain),
            DataStream::Sealed(sealed) => TcpLink::sealed(sealed.0, sealed.1, domain),
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
        port: Option<(u16, GidUse)>,
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
        let sent = client.services.workers[worker].send(Command::Adopt { key, id, link, session });
        if let Err(error) = sent {
            tracing::error!(session = client.id, %error, "no worker accepts the link");
            return;
        }
        if transport == Transport::Verbs {
            self.paired.insert(id.index);
        }
        self.live.insert(id, LiveLink { key, worker, port, transport, ending: false });
        self.show(client);
        self.news.push_back(LinkNews::Up(id));
    }

    /// Removes a link that died or was killed.
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

    /// Counts the stream's link as lost, if it ended by itself: the client asks for a new one.
    pub fn count_lost(&mut self, client: &Client, index: u16) {
        if let Some((transport, _)) = self.ended.remove(&index) {
            client.view.link_lost(transport);
        }
    }

    /// Counts links as lost that ended by themselves a while ago: their session is still there.
    pub fn count_lost_before(&mut self, client: &Client, now: Instant) {
        let is_lost = |at: &Instant| now.duration_since(*at) >= LOST_AFTER;
        let ended = self.ended.iter();
        let lost: Vec<u16> = ended.filter(|(_, (_, at))| is_lost(at)).map(|(i, _)| *i).collect();
        lost.into_iter().for_each(|index| self.count_lost(client, index));
    }

    /// Ends a link; `LinkEvent::Dead` follows when no write of it can land any more.
    pub fn kill(&mut self, client: &Client, id: LinkId) -> Result<(), End> {
        match self.live.get_mut(&id) {
            // Its worker has the command, and answers once.
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

    /// Updates the counts of links on the status page.
    fn show(&self, client: &Client) {
        let live = self.live.values();
        let up =
            live.clone().filter(|live_link| !live_link.ending).map(|live_link| live_link.transport);
        let is_ending =
            |live_link: &&LiveLink| live_link.ending && live_link.transport == Transport::Verbs;
        client.view.set_links(up, live.clone().filter(is_ending).count() as u64);
    }

    /// A link's key, its worker and its transport; a key that no worker knows when the link is
    /// gone.
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
            // Sent even to a full queue: a link that is not ended would serve on.
            if let Err(error) = worker.send_anyway(Command::Kill { key, id, session }) {
                tracing::error!(session = client.id, ?id, %error, "link not ended");
            }
        }
    }

    /// Handles an event of a job that sets up a queue pair. The caller then connects the next.
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

    /// Abandons a pending link that its client wants dead.
    pub fn fence(&mut self, client: &Client, link: LinkId) -> Result<(), End> {
        self.count_lost(client, link.index);
        let text = "the link ended before it was made";
        self.setup.abandon(client, link, Fault::new(Code::LinkLost, text))?;
        Ok(())
    }

    /// Answers a request for memory to probe links with.
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
