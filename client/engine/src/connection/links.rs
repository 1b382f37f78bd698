//! The links of a session: made side by side, made anew with a pause when one
//! is lost, given up when new ones die without carrying a chunk. Those of a
//! rail that fails are made anew on another or over TCP, and go back when it works.

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

/// Links lost in a row, without a chunk between them, before the session gives up.
const LOSSES_MAX: u32 = 10;

/// Links of a device lost in a row, without a chunk between them, for each stream, before their
/// rail is left: they go on on another, or over TCP.
const DEVICE_LOSSES_PER_STREAM_MAX: usize = 2;

/// The pause before a lost link is made anew, doubled with each loss in a row.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Between what a transfer ran over before and after.
const THEN: &str = ", then ";

/// How often that is told.
const PHASES_MAX: usize = 4;

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The links of one connection: which are up, which are being made, and what they run over.
#[derive(Default)]
pub struct Links {
    up: HashSet<LinkId>,
    /// Asked for, or on the way back.
    connecting: HashSet<LinkId>,
    /// Asked for and not answered, and whether a queue pair was offered.
    unanswered: HashMap<LinkId, bool>,
    /// The server's rail of links that are being made.
    server_rails: HashMap<LinkId, u16>,
    /// Given up, to be made anew on a better rail.
    moving: Option<LinkId>,
    /// The machine that reads has slots without links.
    virtual_links: bool,
    consecutive_losses: u32,
    /// How many links broke so far; those moved to a better port do not count.
    pub lost: u64,
    /// What links run over, and ran over before; `None` until one is up.
    pub transport: Option<String>,
}

impl Links {
    /// How many links are up.
    pub fn up_count(&self) -> usize {
        self.up.len()
    }

    /// Notes what a new link runs over: what follows on what, several ports of a kind together.
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
        // A transfer that goes to and fro is told by how it began.
        if same_kind {
            known.push_str(&format!(", {port}"));
        } else if before.matches(THEN).count() < PHASES_MAX {
            known.push_str(&format!("{THEN}{transport}"));
        }
    }
}

impl Engine {
    /// A read over a link ended; one that landed shows that its link works.
    pub(crate) fn note_fetch(&mut self, link: LinkId, outcome: &Outcome) {
        if matches!(outcome, Outcome::Landed(_)) {
            self.clock.received();
            self.links.consecutive_losses = 0;
            self.carrier.carried(link);
        }
    }

    /// The server answered; one that says a chunk is stored shows that the link it came over
    /// works. That it was posted does not.
    pub(crate) fn note_stored_chunks(&mut self, reply: &WriteReply) {
        let WriteReply::Granted { verdicts, .. } = reply else { return };
        for (tag, _) in verdicts.iter().filter(|(_, all)| all.contains(&Verdict::Stored)) {
            if let Some(link) = self.write.link_of(*tag) {
                self.links.consecutive_losses = 0;
                self.carrier.carried(link);
            }
        }
    }

    /// Asks the server for all links, unless some are up or on the way.
    pub fn attach_links(&mut self) {
        if self.links.up.is_empty() && self.links.connecting.is_empty() {
            for index in 0..self.streams {
                self.attach(LinkId { index, epoch: 0 });
            }
        }
    }

    /// Gives the machine that reads its slots without links, which a comparison of files needs not.
    pub fn add_virtual_links(&mut self) {
        self.links.virtual_links = true;
        for index in 0..self.streams {
            self.read.link_up(LinkId { index, epoch: 0 });
        }
    }

    /// A machine gives up a link whose work takes too long.
    pub(crate) fn drop_link(&mut self, link: LinkId) {
        if !self.links.virtual_links {
            return self.send_command(link, Command::Drop(link));
        }
        let seconds = self.options.timeout.as_secs();
        let text = format!("reading a chunk on this machine took longer than {seconds} s");
        self.fail_session(Fault::new(Code::TimedOut, text));
    }

    /// Makes or tries a link on the blocking pool.
    fn link_job(&self, work: impl FnOnce() -> WorkerEvent + Send + 'static) {
        let events = self.events.clone();
        // A session that is gone needs no link.
        jobs::run(&self.waker, work, move |event| drop(events.try_send(event)));
    }

    pub(crate) fn attach(&mut self, link: LinkId) {
        self.links.connecting.insert(link);
        match self.carrier.offer(link, self.now()) {
            Ok(offer) => {
                self.links.unanswered.insert(link, matches!(offer, LinkOffer::Verbs { .. }));
                self.send(ClientMessage::Attach { link, offer });
            }
            // Not a lost link, which would be tried again: it would be refused again.
            Err(error) => self.fail_session(Fault::new(Code::Limit, error.to_string())),
        }
    }

    pub(crate) fn attached(&mut self, link: LinkId, answer: Result<LinkAnswer, Fault>) {
        match (self.links.unanswered.remove(&link), &answer) {
            // That data may no more move over it is told of a link that is up.
            (None, Err(fault)) if fault.code == Code::Denied => {}
            // One link would be two, and nothing would bound how many.
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
            // More queue pairs than the server gives one client: those there are will do.
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

    /// Connects inside TLS, to the server that this session is with and no other.
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
            // A session that is gone needs no link.
            let _ = events.try_send(WorkerEvent::LinkMade { link, made });
        });
    }

    /// Connects a queue pair to that of the server, which ends at this rail, and tries it.
    fn prove(&mut self, link: LinkId, rail: u16, address: &[u8]) {
        match self.carrier.connect(link, address) {
            Ok(unproven) => {
                self.links.server_rails.insert(link, rail);
                self.link_job(move || match unproven.prove() {
                    Ok(made) => WorkerEvent::LinkMade { link, made: Ok(made) },
                    Err(error) => WorkerEvent::LinkUnproven { link, error },
                });
            }
            // The server has made its half, and may have granted slots on it.
            Err(error) => self.link_unproven(link, &error),
        }
    }

    /// The server does not let data move over a link: one that is up is ended here too, one that
    /// is being tried will fail at that, and one that was asked for is asked for anew.
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

    /// A link was made and carries nothing.
    pub(crate) fn link_unproven(&mut self, link: LinkId, error: &FabricError) {
        // The server may have granted slots on it, and must take them back.
        self.write.link_down(link, self.now());
        self.send(ClientMessage::Fence { link });
        self.fall_back(link, &error.with_hint());
    }

    /// A link cannot be made on its rail, or not kept: this one and all to come use another, or
    /// TCP. Links of the rail that still work are left to.
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

    /// Moves one link back to a port that works again: drops it, and makes it anew there. Does nothing
    /// while a link is being made.
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

    /// A link died: its reads are done elsewhere at once, its writes after the fence.
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

    /// Asks for the link's next epoch after a pause, or gives up.
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
            // A session that is gone needs no link.
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
    fn what_carried_the_links_is_told_in_order_and_ports_together() {
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
