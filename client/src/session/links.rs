//! The links of a session: made side by side, made anew with a pause when one
//! is lost, given up when new ones die without carrying a chunk. Those of a
//! device that fails are made anew over TCP.

use super::carrier::{Carrier, Transport};
use super::{Core, Event, READS_PER_LINK};
use crate::rules::Task;
use crate::worker::Command;
use std::collections::HashSet;
use std::time::Duration;
use verbatim_fabric::tcp::{TcpLink, join};
use verbatim_fabric::{FabricError, Link, SoftDomain};
use verbatim_proto::message::{ClientMessage, JoinSecret, LinkAnswer, LinkId, Verdict, WriteReply};
use verbatim_proto::read::Outcome;
use verbatim_proto::{Code, Fault};

/// Links lost in a row, without a chunk between them, before the session gives up.
const LOSSES_MAX: u32 = 10;

/// Links of a device lost in a row, without a chunk between them, for each stream, before the
/// session goes on over TCP.
const DEVICE_LOSSES_PER_STREAM_MAX: usize = 2;

/// The pause before a lost link is made anew, doubled with each loss in a row.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Links {
    up: HashSet<LinkId>,
    /// Asked for, or on the way back.
    coming: HashSet<LinkId>,
    losses_in_a_row: u32,
    pub lost: u64,
    pub transport: Option<String>,
}

impl Links {
    pub fn up_count(&self) -> usize {
        self.up.len()
    }

    /// Notes what a new link runs over.
    fn carried_by(&mut self, transport: &str) {
        match &mut self.transport {
            None => self.transport = Some(transport.to_owned()),
            Some(known) if known.ends_with(transport) => {}
            Some(known) => *known = format!("{known}, then {transport}"),
        }
    }

    /// A read ended; one that landed shows that links work.
    pub fn used(&mut self, outcome: &Outcome) {
        if matches!(outcome, Outcome::Landed(_)) {
            self.losses_in_a_row = 0;
        }
    }

    /// The server answered; one that says a chunk is stored shows that links work. That it was
    /// posted does not.
    pub fn stored(&mut self, reply: &WriteReply) {
        let stored = |(_, verdicts): &(_, Vec<Verdict>)| verdicts.contains(&Verdict::Stored);
        if matches!(reply, WriteReply::Granted { verdicts, .. } if verdicts.iter().any(stored)) {
            self.losses_in_a_row = 0;
        }
    }
}

impl Core {
    /// Asks for all links, unless they were asked for before.
    pub(super) fn attach_all(&mut self) {
        match self.rules.task {
            Task::Copy => {}
            Task::DryRun => return,
            Task::Verify => return self.pretend_links(),
        }
        if self.links.up.is_empty() && self.links.coming.is_empty() {
            for index in 0..self.workers.len() as u16 {
                self.attach(LinkId { index, epoch: 0 });
            }
        }
    }

    pub(super) fn attach(&mut self, link: LinkId) {
        self.links.coming.insert(link);
        match self.carrier.offer(link) {
            Ok(offer) => self.sending.push_back(ClientMessage::Attach { link, offer }),
            Err(error) => self.fall_back(link, error.with_hint()),
        }
    }

    pub(super) fn attached(&mut self, link: LinkId, answer: Result<LinkAnswer, Fault>) {
        match answer {
            Ok(LinkAnswer::Tcp { secret: JoinSecret(secret) }) => {
                let (address, timeout) = (self.address, self.options.timeout);
                self.job(move || {
                    let made = join(address, &secret, timeout)
                        .and_then(|stream| TcpLink::new(stream, SoftDomain::new()))
                        .map(|link| Box::new(link) as Box<dyn Link>);
                    Event::LinkMade { link, made }
                });
            }
            Ok(LinkAnswer::Sim { endpoint }) => {
                let Carrier::Sim(sim) = &self.carrier else {
                    return self.link_refused(link, "the server offers another kind of link");
                };
                let end = sim.take_end(endpoint, SoftDomain::new());
                let made = end.map(|end| Box::new(end) as Box<dyn Link>);
                self.link_made(link, made.ok_or(FabricError::Closed));
            }
            Ok(LinkAnswer::Verbs { address }) => match self.carrier.connect(link, &address) {
                Ok(unproven) => self.job(move || match unproven.prove() {
                    Ok(made) => Event::LinkMade { link, made: Ok(made) },
                    Err(error) => Event::LinkUnproven { link, error },
                }),
                Err(error) => self.fall_back(link, error.with_hint()),
            },
            // More queue pairs than the server gives one client: those there are will do.
            Err(fault) if fault.code == Code::Limit && self.has_others(link) => {
                tracing::debug!(?link, fault = fault.text, "link refused");
                self.links.coming.remove(&link);
            }
            Err(fault) if self.carrier.is_verbs() => {
                self.fall_back(link, format!("the server: {}", fault.text));
            }
            Err(fault) => self.link_refused(link, &fault.text),
        }
    }

    fn has_others(&self, link: LinkId) -> bool {
        !self.links.up.is_empty() || self.links.coming.iter().any(|it| *it != link)
    }

    /// A link was made and carries nothing.
    pub(super) fn link_unproven(&mut self, link: LinkId, error: &FabricError) {
        // The server may have granted slots on it, and must take them back.
        self.write.link_down(link, self.now());
        self.sending.push_back(ClientMessage::Fence { link });
        self.fall_back(link, error.with_hint());
    }

    /// A link cannot be made on the device, or not kept: this one and all to come use TCP.
    /// Links of the device that still work are left to.
    fn fall_back(&mut self, link: LinkId, reason: String) {
        self.links.coming.remove(&link);
        if self.carrier.is_verbs() {
            if self.options.carrier.transport == Transport::Verbs {
                // Not a lost link, which would be tried again: it would be refused again.
                return self.broke(Fault::new(Code::Limit, reason));
            }
            tracing::warn!(peer = self.peer, reason, "data moves over TCP");
            self.carrier.fall_back(reason);
        }
        let Some(epoch) = link.epoch.checked_add(1) else {
            return self.broke(Fault::new(Code::LinkLost, "a link was lost too often"));
        };
        self.attach(LinkId { epoch, ..link });
    }

    pub(super) fn link_made(&mut self, id: LinkId, made: Result<Box<dyn Link>, FabricError>) {
        let link = match made {
            Ok(link) => link,
            Err(error) => {
                tracing::debug!(?id, %error, "link not made");
                return self.revive(id, &error.to_string());
            }
        };
        self.links.coming.remove(&id);
        self.links.up.insert(id);
        self.links.carried_by(link.transport());
        let chunk_bytes = self.options.connect.chunk_bytes as usize;
        self.tell(id, Command::Adopt { id, link, slots: READS_PER_LINK, chunk_bytes });
        self.read.link_up(id);
        self.write.link_up(id);
    }

    /// A link died: its reads are done elsewhere at once, its writes after the fence.
    pub(super) fn link_lost(&mut self, id: LinkId, error: &FabricError) {
        tracing::debug!(?id, %error, "link lost");
        self.links.up.remove(&id);
        self.links.lost += 1;
        let now = self.now();
        self.read.link_down(id, now);
        self.write.link_down(id, now);
        self.sending.push_back(ClientMessage::Fence { link: id });
        self.revive(id, &error.with_hint());
    }

    pub(super) fn fenced(&mut self, link: LinkId) {
        self.write.fenced(link);
    }

    /// Asks for the link's next epoch after a pause, or gives up.
    fn revive(&mut self, id: LinkId, cause: &str) {
        self.links.coming.remove(&id);
        self.links.losses_in_a_row += 1;
        let device_losses_max = DEVICE_LOSSES_PER_STREAM_MAX * self.workers.len();
        if self.carrier.is_verbs() && self.links.losses_in_a_row as usize > device_losses_max {
            self.links.losses_in_a_row = 0;
            return self.fall_back(id, cause.to_owned());
        }
        if self.links.losses_in_a_row > LOSSES_MAX && !self.carrier.is_verbs() {
            let text = format!("links keep dying: {cause}");
            return self.broke(Fault::new(Code::LinkLost, text));
        }
        let Some(epoch) = id.epoch.checked_add(1) else {
            return self.broke(Fault::new(Code::LinkLost, "a link was lost too often"));
        };
        let link = LinkId { epoch, ..id };
        self.links.coming.insert(link);
        let doublings = self.links.losses_in_a_row.min(16);
        let pause = PAUSE_MIN.saturating_mul(1 << doublings).min(PAUSE_MAX);
        let events = self.events.clone();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            // A session that is gone needs no link.
            let _ = events.try_send(Event::LinkWanted { link });
        });
    }

    fn link_refused(&mut self, id: LinkId, cause: &str) {
        tracing::warn!(?id, cause, "link refused");
        self.links.coming.remove(&id);
        if self.links.up.is_empty() && self.links.coming.is_empty() {
            let text = format!("the server makes no link: {cause}");
            self.broke(Fault::new(Code::LinkLost, text));
        }
    }
}
