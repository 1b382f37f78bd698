//! Connects the links of a session in parallel, reconnects lost ones after a pause, and gives up
//! when new ones keep dying without a chunk. Links of a failed rail move to another rail or to TCP,
//! and return when the rail works again.

use crate::connection::event::WorkerEvent;
use crate::connection::transport::Carrier;
use crate::connection::worker::Command;
use crate::connection::{Engine, READS_PER_LINK, jobs};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use verbatim_control::join_sealed;
use verbatim_fabric::tcp::{SEALED_MAGIC, TcpLink, join};
use verbatim_fabric::{FabricError, Link, SoftDomain};
use verbatim_proto::message::{
    ClientMessage, JoinSecret, LinkAnswer, LinkId, LinkOffer, RailAnswer, SealedAnswer, Verdict,
    WriteReply,
};
use verbatim_proto::read::Outcome;
use verbatim_proto::{Code, Fault};

/// Links lost in a row, without a chunk in between, before the session gives up.
const LOSSES_MAX: u32 = 10;

/// Links of a device lost in a row for each stream, without a chunk in between, before they leave
/// the rail for another one or for TCP.
const DEVICE_LOSSES_PER_STREAM_MAX: usize = 2;

/// The first pause before a lost link reconnects; doubled with each loss in a row.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Separates successive transports of a copy in the summary.
const THEN: &str = ", then ";

/// The most successive transports that the summary names.
const PHASES_MAX: usize = 4;

/// The longest pause before a lost link reconnects.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The links of one connection: which are up, which are connecting, and their transport.
#[derive(Default)]
pub struct Links {
    up: HashSet<LinkId>,
    /// Links that are requested, or wait to reconnect.
    connecting: HashSet<LinkId>,
    /// Links requested without an answer yet, and whether the offer was a queue pair.
    unanswered: HashMap<LinkId, bool>,
    /// The server's rail of each connecting link.
    server_rails: HashMap<LinkId, u16>,
    /// A link that was dropped to reconnect on a better rail.
    moving: Option<LinkId>,
    /// The read machine has slots without links, for a comparison.
    virtual_links: bool,
    consecutive_losses: u32,
    /// Links lost so far, without those moved to a better port.
    pub lost: u64,
    /// The transports of the links, in order; `None` until a link is up.
    pub transport: Option<String>,
}

impl Links {
    /// How many links are up.
    pub fn up_count(&self) -> usize {
        self.up.len()
    }

    /// Notes the transport of a new link: transports in order, ports of a kind together.
    fn note_transport(&mut self, transport: &str) {
        let Some(known) = &mut self.transport else {
            self.transport = Some(transport.to_owned());
            return;
        };
        let (before, last) = known.rsplit_once(THEN).map_or(("", known.as_str()), |it| it);
        let (kind, port) = transport.split_once(' ').unwrap_or((transport, ""));
        let same_kind = last.split(' ').next() == Some(kind);
        if same_kind && (port.is_empty() || last.split([' ', ',']).any(|it| it == port)) {
            return;
        }
        // A copy that moves to and fro names only its first transports.
        if same_kind {
            known.push_str(&format!(", {port}"));
        } else if before.matches(THEN).count() < PHASES_MAX {
            known.push_str(&format!("{THEN}{transport}"));
        }
    }
}

impl Engine {
    /// Notes the outcome of a read; a chunk that arrived shows that its link works.
    pub(crate) fn note_fetch(&mut self, link: LinkId, outcome: &Outcome) {
        if matches!(outcome, Outcome::Landed(_)) {
            self.clock.received();
            self.links.consecutive_losses = 0;
            self.carrier.carried(link);
        }
    }

    /// Notes the chunks that the server has stored, which shows that their links work. A posted
    /// chunk does not.
    pub(crate) fn note_stored_chunks(&mut self, reply: &WriteReply) {
        let WriteReply::Granted { verdicts, .. } = reply else { return };
        for (tag, _) in verdicts.iter().filter(|(_, all)| all.contains(&Verdict::Stored)) {
            if let Some(link) = self.write.link_of(*tag) {
                self.links.consecutive_losses = 0;
                self.carrier.carried(link);
            }
        }
    }

    /// Requests all links from the server, unless some are up or connecting.
    pub fn attach_links(&mut self) {
        if self.links.up.is_empty() && self.links.connecting.is_empty() {
            for index in 0..self.streams {
                self.attach(LinkId { index, epoch: 0 });
            }
        }
    }

    /// Gives the read machine its slots without links: a comparison needs none.
    pub fn add_virtual_links(&mut self) {
        self.links.virtual_links = true;
        for index in 0..self.streams {
            self.read.link_up(LinkId { index, epoch: 0 });
        }
    }

    /// Drops a link whose work takes too long for a machine.
    pub(crate) fn drop_link(&mut self, link: LinkId) {
        if !self.links.virtual_links {
            return self.send_command(link, Command::Drop(link));
        }
        let seconds = self.options.timeout.as_secs();
        let text = format!("reading a chunk on this machine took longer than {seconds} s");
        self.fail_session(Fault::new(Code::TimedOut, text));
    }

    /// Connects or proves a link on the blocking pool.
    fn link_job(&self, work: impl FnOnce() -> WorkerEvent + Send + 'static) {
        let events = self.events.clone();
        // A session that has ended needs no link.
        jobs::run(&self.waker, work, move |event| drop(events.try_send(event)));
    }

    pub(crate) fn attach(&mut self, link: LinkId) {
        self.links.connecting.insert(link);
        match self.carrier.offer(link, self.now()) {
            Ok(offer) => {
                self.links.unanswered.insert(link, matches!(offer, LinkOffer::Verbs { .. }));
                self.send(ClientMessage::Attach { link, offer });
            }
            // Do not retry as for a lost link: the offer would fail again.
            Err(error) => self.fail_session(Fault::new(Code::Limit, error.to_string())),
        }
    }

    pub(crate) fn attached(&mut self, link: LinkId, answer: Result<LinkAnswer, Fault>) {
        match (self.links.unanswered.remove(&link), &answer) {
            // The server may report on a link that is up that data must leave it.
            (None, Err(fault)) if fault.code == Code::Denied => {}
            // A duplicate answer would make a second link, without a bound.
            (None, _) => return self.protocol_violation("a link"),
            (Some(true), Ok(LinkAnswer::Tcp { .. } | LinkAnswer::Sim { .. })) => {
                return self.protocol_violation("a link without a device");
            }
            (Some(_), _) => {}
        }
        match answer {
            Ok(LinkAnswer::Tcp { secret: JoinSecret(secret) }) => {
                let (address, timeout) = (self.address, self.options.timeout);
                self.link_job(move || {
                    let made = join(address, &secret, timeout)
                        .and_then(|stream| TcpLink::new(stream, SoftDomain::new()))
                        .map(|link| Box::new(link) as Box<dyn Link>);
                    WorkerEvent::LinkMade { link, made }
                });
            }
            Ok(LinkAnswer::Sealed(answer)) => self.join_sealed(link, answer),
            Ok(LinkAnswer::Sim { endpoint }) => {
                let Carrier::Sim(sim) = &self.carrier else {
                    return self.link_refused(link, "the server offers another kind of link");
                };
                let end = sim.take_end(endpoint, SoftDomain::new());
                let made = end.map(|end| Box::new(end) as Box<dyn Link>);
                self.link_made(link, made.ok_or(FabricError::Closed));
            }
            Ok(LinkAnswer::Verbs { address }) => self.prove(link, 0, &address),
            Ok(LinkAnswer::Rail(RailAnswer { rail, address })) => self.prove(link, rail, &address),
            // The server limits the queue pairs of one client: the existing ones suffice.
            Err(fault) if fault.code == Code::Limit && self.has_others(link) => {
                tracing::debug!(?link, fault = fault.text, "link refused");
                self.links.connecting.remove(&link);
                self.carrier.remove_link(link);
            }
            Err(fault) if fault.code == Code::Denied && self.carrier.is_verbs() => {
                self.carrier.forbid(link, &format!("the server: {}", fault.text));
                self.drop_forbidden_link(link);
            }
            Err(fault) if self.carrier.is_verbs() => {
                self.fall_back(link, &format!("the server: {}", fault.text));
            }
            Err(fault) => self.link_refused(link, &fault.text),
        }
    }

    /// Joins inside TLS, and only with the server of this session.
    fn join_sealed(&mut self, link: LinkId, SealedAnswer { secret, reason }: SealedAnswer) {
        if let Err(error) = self.carrier.seal(&reason) {
            return self.fail_session(Fault::new(Code::Denied, error.to_string()));
        }
        let (address, server, time) = (self.address, self.server, self.options.timeout);
        let events = self.events.clone();
        tokio::spawn(async move {
            let joined = join_sealed(address, server, (&SEALED_MAGIC, &secret.0), time).await;
            let made = joined
                .map_err(|error| FabricError::system("cannot join the session", error))
                .and_then(|(stream, tls)| TcpLink::sealed(stream, tls, SoftDomain::new()))
                .map(|link| Box::new(link) as Box<dyn Link>);
            // A session that has ended needs no link.
            let _ = events.try_send(WorkerEvent::LinkMade { link, made });
        });
    }

    /// Connects a queue pair to the server's, on this server rail, and proves it.
    fn prove(&mut self, link: LinkId, rail: u16, address: &[u8]) {
        match self.carrier.connect(link, address) {
            Ok(unproven) => {
                self.links.server_rails.insert(link, rail);
                self.link_job(move || match unproven.prove() {
                    Ok(made) => WorkerEvent::LinkMade { link, made: Ok(made) },
                    Err(error) => WorkerEvent::LinkUnproven { link, error },
                });
            }
            // The server has connected its end and may have granted slots on it.
            Err(error) => self.link_unproven(link, &error),
        }
    }

    /// The server forbids data on a link: drops it if it is up, requests it again if it was only
    /// requested. A link that is being proven will fail at that.
    fn drop_forbidden_link(&mut self, link: LinkId) {
        if self.links.up.contains(&link) {
            self.send_command(link, Command::Drop(link));
        } else if self.links.connecting.contains(&link)
            && !self.links.server_rails.contains_key(&link)
        {
            self.reattach(link);
        }
    }

    fn has_others(&self, link: LinkId) -> bool {
        !self.links.up.is_empty() || self.links.connecting.iter().any(|it| *it != link)
    }

    /// A queue pair was connected but carries no data.
    pub(crate) fn link_unproven(&mut self, link: LinkId, error: &FabricError) {
        // The server may have granted slots on it and must revoke them.
        self.write.link_down(link, self.now());
        self.send(ClientMessage::Fence { link });
        self.fall_back(link, &error.with_hint());
    }

    /// A link cannot connect on its rail, or stay there: it and all later ones use another rail, or
    /// TCP. Working links of the rail stay.
    fn fall_back(&mut self, link: LinkId, reason: &str) {
        self.carrier.fail(link, reason, self.now());
        self.reattach(link);
    }

    fn reattach(&mut self, link: LinkId) {
        self.links.connecting.remove(&link);
        self.links.server_rails.remove(&link);
        let Some(epoch) = link.epoch.checked_add(1) else {
            return self.fail_session(Fault::new(Code::LinkLost, "a link was lost too often"));
        };
        self.attach(LinkId { epoch, ..link });
    }

    /// Moves one link back to a port that works again: drops it and reconnects it there. Does
    /// nothing while a link is connecting.
    pub fn move_links_to_preferred_port(&mut self) {
        if self.links.moving.is_some() || !self.links.connecting.is_empty() {
            return;
        }
        let now = self.now();
        if let Some(link) = self.carrier.misplaced(self.links.up.iter().copied(), now) {
            self.links.moving = Some(link);
            self.send_command(link, Command::Drop(link));
        }
    }

    pub(crate) fn link_made(&mut self, id: LinkId, made: Result<Box<dyn Link>, FabricError>) {
        let link = match made {
            Ok(link) => link,
            Err(error) => {
                tracing::debug!(?id, %error, "link not made");
                return self.reconnect_later(id, &error.to_string());
            }
        };
        self.links.connecting.remove(&id);
        self.links.up.insert(id);
        self.links.note_transport(link.transport());
        self.carrier.proven(id);
        let chunk_bytes = self.options.connect.chunk_bytes as usize;
        self.send_command(id, Command::Adopt { id, link, slots: READS_PER_LINK, chunk_bytes });
        self.read.link_up_on(id, self.links.server_rails.remove(&id).unwrap_or(0));
        self.write.link_up(id);
    }

    /// Handles a lost link: its reads are retried at once, its writes after the fence.
    pub(crate) fn link_lost(&mut self, id: LinkId, error: &FabricError) {
        tracing::debug!(?id, %error, "link lost");
        self.links.up.remove(&id);
        let now = self.now();
        self.read.link_down(id, now);
        self.write.link_down(id, now);
        self.send(ClientMessage::Fence { link: id });
        if self.links.moving.take_if(|moving| *moving == id).is_some() {
            self.carrier.remove_link(id);
            return self.reattach(id);
        }
        self.links.lost += 1;
        self.reconnect_later(id, &error.with_hint());
    }

    /// Requests the link's next epoch after a pause, or gives up.
    fn reconnect_later(&mut self, id: LinkId, cause: &str) {
        self.links.connecting.remove(&id);
        self.links.consecutive_losses += 1;
        self.links.server_rails.remove(&id);
        let losses_max = DEVICE_LOSSES_PER_STREAM_MAX * usize::from(self.streams);
        if self.carrier.lost(id, losses_max, cause, self.now()) {
            self.links.consecutive_losses = 0;
            return self.reattach(id);
        }
        if self.links.consecutive_losses > LOSSES_MAX && !self.carrier.has_rail() {
            let text = format!("links keep dying: {cause}");
            return self.fail_session(Fault::new(Code::LinkLost, text));
        }
        let Some(epoch) = id.epoch.checked_add(1) else {
            return self.fail_session(Fault::new(Code::LinkLost, "a link was lost too often"));
        };
        let link = LinkId { epoch, ..id };
        self.links.connecting.insert(link);
        let doublings = self.links.consecutive_losses.min(16);
        let pause = PAUSE_MIN.saturating_mul(1 << doublings).min(PAUSE_MAX);
        let events = self.events.clone();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            // A session that has ended needs no link.
            let _ = events.try_send(WorkerEvent::LinkWanted { link });
        });
    }

    fn link_refused(&mut self, id: LinkId, cause: &str) {
        tracing::warn!(?id, cause, "link refused");
        self.links.connecting.remove(&id);
        if self.links.up.is_empty() && self.links.connecting.is_empty() {
            let text = format!("the server makes no link: {cause}");
            self.fail_session(Fault::new(Code::LinkLost, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_named_in_order_and_ports_together() {
        let mut links = Links::default();
        for transport in ["verbs rxe0/1", "verbs rxe1/1", "verbs rxe0/1", "tcp", "tcp"] {
            links.note_transport(transport);
        }
        assert_eq!(links.transport.as_deref(), Some("verbs rxe0/1, rxe1/1, then tcp"));
        links.note_transport("verbs rxe1/1");
        links.note_transport("verbs rxe1/1");
        let told = "verbs rxe0/1, rxe1/1, then tcp, then verbs rxe1/1";
        assert_eq!(links.transport.as_deref(), Some(told));
        for _ in 0..100 {
            links.note_transport("tcp");
            links.note_transport("verbs rxe1/1");
        }
        assert!(links.transport.is_some_and(|told| told.len() < 200), "it grows without end");
    }
}
