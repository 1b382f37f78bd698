//! The transport of a session's links: verbs over every port that works on both sides, else TCP,
//! with the reason. A port that fails backs off and others carry its work; if all back off, TCP
//! does. When a port works again, links return to it. A session that began on TCP stays there.
//! Never waits; `links` calls it, `port_scheduler` decides.

use crate::connection::port_scheduler::PortScheduler;
use crate::model::report::{Port, RdmaCounters};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use verbatim_fabric::proof::{PROOF_TIME_MAX, Proof};
use verbatim_fabric::sim::SimNet;
use verbatim_fabric::verbs::{
    self, ADDRESS_BYTES, Address, DISTANCE_LOCAL, DomainLimits, Options, Place, VerbsDomain,
    VerbsEndpoint, VerbsLink, Wish,
};
use verbatim_fabric::{FabricError, Link};
use verbatim_proto::message::{LinkId, LinkOffer};
use verbatim_proto::rails::RAILS_MAX;

/// The transport that the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// RDMA where it works, else TCP.
    #[default]
    Auto,
    /// RDMA, or an error.
    Verbs,
    /// TCP.
    Tcp,
}

/// The options of the transport.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarrierOptions {
    /// The transport that the user wants.
    pub transport: Transport,
    /// The device, port and address that the user wants.
    pub wish: Wish,
    /// The number of queue pairs; by default that of the streams.
    pub qps: Option<u16>,
    /// The traffic class of RDMA packets.
    pub traffic_class: u8,
    /// Whether workers poll instead of sleeping.
    pub busy_poll: bool,
}

/// The transport of the links of one connection.
pub enum Carrier {
    /// A simulated network.
    Sim(SimNet),
    /// RDMA ports of this machine; TCP while all of them back off.
    Verbs(Box<Rdma>),
    /// TCP, and why not RDMA.
    Tcp {
        /// The user asked for TCP, or what RDMA lacks here.
        reason: String,
    },
}

/// The RDMA ports, and the queue pairs that wait for the server's half.
pub struct Rdma {
    devices: Vec<Device>,
    rails: PortScheduler,
    wish: Wish,
    options: Options,
    /// Whether the user requires RDMA.
    requires_rdma: bool,
    offered: HashMap<LinkId, VerbsEndpoint>,
    /// Why links last moved to TCP.
    reason: Option<String>,
}

/// A port of this machine, and its protection domain.
struct Device {
    domain: Arc<VerbsDomain>,
    place: Place,
    /// Why the server forbids data on this port.
    refused: Option<String>,
}

impl Carrier {
    /// Chooses the transport for a server at this address; the buffers of the links need this many
    /// bytes in all. Fails only if the user requires RDMA.
    pub fn choose(
        options: &CarrierOptions,
        sim: Option<&SimNet>,
        server: SocketAddr,
        (buffer_bytes, links): (usize, usize),
    ) -> Result<Self, FabricError> {
        if let Some(sim) = sim {
            return Ok(Self::Sim(sim.clone()));
        }
        if options.transport == Transport::Tcp {
            return Ok(Self::tcp("TCP was asked for".into()));
        }
        match Rdma::open(options, server, buffer_bytes, links) {
            Ok(rdma) => Ok(Self::Verbs(Box::new(rdma))),
            Err(error) if options.transport == Transport::Verbs => Err(error),
            Err(error) => Ok(Self::tcp(error.with_hint())),
        }
    }

    fn tcp(reason: String) -> Self {
        Self::Tcp { reason }
    }

    /// Switches to TCP, because the server requires encrypted links. Fails if the user requires
    /// RDMA.
    pub(crate) fn seal(&mut self, reason: &str) -> Result<(), FabricError> {
        match self {
            Self::Verbs(rdma) if rdma.requires_rdma => Err(FabricError::Limit(reason.to_owned())),
            _ => {
                *self = Self::tcp(reason.to_owned());
                Ok(())
            }
        }
    }

    /// The offer for a link: over RDMA a new queue pair, which waits for [`Carrier::connect`].
    /// Fails only if the user requires RDMA.
    pub fn offer(&mut self, link: LinkId, now: Duration) -> Result<LinkOffer, FabricError> {
        match self {
            Self::Sim(_) => Ok(LinkOffer::Sim),
            Self::Tcp { .. } => Ok(LinkOffer::Tcp),
            Self::Verbs(rdma) => rdma.offer(link, now),
        }
    }

    /// Connects the offered queue pair to that of the server at `peer`. The caller must prove the
    /// link before use; servers before 0.2 offer no page to read. Fails for a link that was not
    /// offered.
    pub fn connect(&mut self, link: LinkId, peer: &[u8]) -> Result<UnprovenLink, FabricError> {
        let offered = match self {
            Self::Verbs(rdma) => rdma.offered.remove(&link),
            Self::Sim(_) | Self::Tcp { .. } => None,
        };
        let unexpected = || FabricError::Protocol("a queue pair that was not asked for".into());
        let endpoint = offered.ok_or_else(unexpected)?;
        let (address, proof) = peer.split_at(peer.len().min(ADDRESS_BYTES));
        let link = endpoint.connect(&Address::from_bytes(address)?)?;
        let proof = if proof.is_empty() { None } else { Some(Proof::from_bytes(proof)?) };
        Ok(UnprovenLink { link, proof })
    }

    /// Whether RDMA ports were chosen, even if all of them back off now.
    pub fn is_verbs(&self) -> bool {
        matches!(self, Self::Verbs(_))
    }

    /// Whether the next link would use RDMA.
    pub(crate) fn has_rail(&self) -> bool {
        matches!(self, Self::Verbs(rdma) if rdma.rails.pick().is_some())
    }

    /// Starts the backoff of a rail on which a link could not connect or stay.
    pub(crate) fn fail(&mut self, link: LinkId, reason: &str, now: Duration) {
        if let Self::Verbs(rdma) = self {
            rdma.offered.remove(&link);
            if let Some(rail) = rdma.rails.remove(link) {
                rdma.back_off(rail, reason, now);
            }
        }
    }

    /// Forbids the rail of a link for the rest of the session, because the server does.
    pub(crate) fn forbid(&mut self, link: LinkId, reason: &str) {
        if let Self::Verbs(rdma) = self {
            rdma.offered.remove(&link);
            if let Some(rail) = rdma.rails.remove(link) {
                rdma.rails.forbid(rail);
                // Links are requested in parallel, and the server refuses each.
                if rdma.devices[rail].refused.replace(reason.to_owned()).is_none() {
                    rdma.log_fallback(rail, reason);
                }
            }
        }
    }

    /// Counts a lost link. Returns whether its rail backs off now.
    pub(crate) fn lost(
        &mut self,
        link: LinkId,
        losses_max: usize,
        reason: &str,
        now: Duration,
    ) -> bool {
        let Self::Verbs(rdma) = self else { return false };
        let Some(rail) = rdma.rails.remove(link) else { return false };
        let too_many = rdma.rails.lost(rail, losses_max);
        if too_many {
            rdma.back_off(rail, reason, now);
        }
        too_many
    }

    /// Removes a link that will reconnect elsewhere.
    pub(crate) fn remove_link(&mut self, link: LinkId) {
        if let Self::Verbs(rdma) = self {
            rdma.offered.remove(&link);
            rdma.rails.remove(link);
        }
    }

    /// Notes that a link was proven.
    pub(crate) fn proven(&mut self, link: LinkId) {
        if let Self::Verbs(rdma) = self {
            rdma.rails.proven(link);
        }
    }

    /// Notes that a link carried a chunk.
    pub(crate) fn carried(&mut self, link: LinkId) {
        if let Self::Verbs(rdma) = self {
            rdma.rails.carried(link);
        }
    }

    /// Retries a rail whose backoff has expired. Returns a link that should move to a restored
    /// rail.
    pub(crate) fn misplaced(
        &mut self,
        up: impl Iterator<Item = LinkId>,
        now: Duration,
    ) -> Option<LinkId> {
        let Self::Verbs(rdma) = self else { return None };
        if let Some(rail) = rdma.rails.due_for_retry(now) {
            match rdma.endpoint(rail) {
                Ok(_) => {
                    tracing::info!(place = %rdma.devices[rail].place, "a rail is tried again");
                    rdma.rails.restore(rail);
                }
                Err(error) => rdma.back_off(rail, &error.with_hint(), now),
            }
        }
        rdma.rails.misplaced(up)
    }

    /// The reads and writes posted to the devices and completed by them.
    pub fn posted(&self) -> RdmaCounters {
        let Self::Verbs(rdma) = self else { return RdmaCounters::default() };
        let counters = || rdma.devices.iter().map(|device| device.domain.counters());
        RdmaCounters {
            reads: counters().map(|it| it.reads()).sum(),
            writes: counters().map(|it| it.writes()).sum(),
            reads_done: counters().map(|it| it.reads_done()).sum(),
            writes_done: counters().map(|it| it.writes_done()).sum(),
        }
    }

    /// The RDMA ports that were chosen, and why the server forbids one.
    pub fn ports(&self) -> Vec<Port> {
        let Self::Verbs(rdma) = self else { return Vec::new() };
        let port = |Device { place, refused, .. }: &Device| {
            let (place, refused) = (place.clone(), refused.clone());
            Port { place, refused }
        };
        rdma.devices.iter().map(port).collect()
    }

    /// Why data moves over TCP, or last did; `None` if it never did.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Tcp { reason } => Some(reason),
            Self::Verbs(rdma) => rdma.reason.as_deref(),
            Self::Sim(_) => None,
        }
    }
}

impl Rdma {
    fn open(
        options: &CarrierOptions,
        server: SocketAddr,
        buffer_bytes: usize,
        links: usize,
    ) -> Result<Self, FabricError> {
        let local = verbs::local_address_towards(server);
        let wish = Wish { local: options.wish.local.or(local), ..options.wish.clone() };
        let places = verbs::find_places(&wish)?;
        let count = places.len().min(RAILS_MAX).min(links.max(1));
        let (mut devices, mut refused) = (Vec::new(), None);
        for place in places.into_iter().take(count) {
            let opened = VerbsDomain::open(&place, DomainLimits::default())
                // Pin the full amount on each port: locked memory counts per process, and one rail
                // may have to carry everything.
                .and_then(|domain| domain.try_pinning(buffer_bytes).map(|()| domain));
            match opened {
                Ok(domain) => {
                    log_chosen_port(&place, server);
                    devices.push(Device { domain, place, refused: None });
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        if let Some(error) = refused.filter(|_| devices.is_empty()) {
            return Err(error);
        }
        let rails = PortScheduler::new(devices.iter().map(|device| weight(&device.place)));
        let requires_rdma = options.transport == Transport::Verbs;
        let CarrierOptions { busy_poll, traffic_class, .. } = *options;
        let options = Options { busy_poll, traffic_class, ..Options::default() };
        let (offered, reason) = (HashMap::new(), None);
        Ok(Self { devices, rails, wish, options, requires_rdma, offered, reason })
    }

    /// Creates a queue pair on the best rail; falls back to TCP if all rails back off.
    fn offer(&mut self, link: LinkId, now: Duration) -> Result<LinkOffer, FabricError> {
        while let Some(rail) = self.rails.pick() {
            match self.endpoint(rail) {
                Ok(endpoint) => {
                    let address = Address { proves: true, spots: true, ..endpoint.address() };
                    self.rails.assign(link, rail);
                    self.offered.insert(link, endpoint);
                    return Ok(LinkOffer::Verbs { address: address.to_bytes().to_vec() });
                }
                Err(error) => self.back_off(rail, &error.with_hint(), now),
            }
        }
        match &self.reason {
            Some(reason) if self.requires_rdma => Err(FabricError::Limit(reason.clone())),
            _ => Ok(LinkOffer::Tcp),
        }
    }

    fn back_off(&mut self, rail: usize, reason: &str, now: Duration) {
        self.rails.back_off(rail, now);
        self.log_fallback(rail, reason);
    }

    /// Logs that a rail backs off or is forbidden, and which transport carries its work.
    fn log_fallback(&mut self, rail: usize, reason: &str) {
        let place = &self.devices[rail].place;
        if self.rails.pick().is_some() {
            tracing::warn!(%place, reason, "a rail is left; others carry its work");
        } else {
            tracing::warn!(%place, reason, "data moves over TCP");
            self.reason = Some(reason.to_owned());
        }
    }

    /// Creates a queue pair. A port that was down may have another address now.
    fn endpoint(&mut self, rail: usize) -> Result<VerbsEndpoint, FabricError> {
        let Device { domain, place, .. } = &mut self.devices[rail];
        VerbsEndpoint::at(domain, place, self.options, |known| {
            let (device, port) = (Some(known.device.clone()), Some(known.port));
            verbs::find_place(&Wish { device, port, ..self.wish.clone() }).map(Some)
        })
    }
}

/// The weight of a port: its rate, reduced by its NUMA distance. The distance is a latency, and
/// rates suffer less than proportionally: three quarters remain at 20 (one hop), half at 40.
fn weight(place: &Place) -> u64 {
    let beyond = place.numa_distance.unwrap_or(0).saturating_sub(DISTANCE_LOCAL);
    let (rate, least) = (u64::from(place.rate_mbit.max(1)), u64::from(3 * DISTANCE_LOCAL));
    (rate * 1000 * least / (least + u64::from(beyond))).max(1)
}

/// A queue pair that is connected and not yet proven.
pub struct UnprovenLink {
    link: VerbsLink,
    proof: Option<Proof>,
}

impl UnprovenLink {
    /// Reads a page of the server over the link. Blocks; drops a link that fails.
    pub fn prove(mut self) -> Result<Box<dyn Link>, FabricError> {
        if let Some(proof) = self.proof {
            proof.check(&mut self.link, PROOF_TIME_MAX)?;
        }
        Ok(Box::new(self.link))
    }

    /// Returns the link unproven, for a caller that tests it itself.
    pub fn into_link(self) -> Box<dyn Link> {
        Box::new(self.link)
    }
}

/// Logs the chosen port and the reason.
fn log_chosen_port(place: &Place, server: SocketAddr) {
    let Place { device, port, gid, why, .. } = place;
    let (gid_index, address, kind) = (gid.index, gid.ip(), gid.kind);
    tracing::info!(%server, device, port, gid_index, %address, %kind, why, "RDMA port chosen");
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_fabric::verbs::{GidInfo, GidKind, LinkLayer};

    #[test]
    fn the_weight_of_a_port_follows_its_rate_and_its_distance() {
        let gid = GidInfo { index: 0, raw: [0; 16], kind: GidKind::RoceV2, netdev: None };
        let place = |rate_mbit, numa_distance| Place {
            device: "mlx5_0".into(),
            port: 1,
            gid: gid.clone(),
            link_layer: LinkLayer::Ethernet,
            netdev: None,
            rate_mbit,
            numa_node: None,
            numa_distance,
            why: String::new(),
        };
        let weighs = |rate_mbit, distance| weight(&place(rate_mbit, distance));
        let near = weighs(400_000, Some(10));
        assert_eq!(weighs(400_000, None), near, "a machine that does not tell");
        assert_eq!(weighs(400_000, Some(20)), near * 3 / 4, "one hop");
        assert_eq!(weighs(400_000, Some(40)), near / 2, "and farther");
        assert!(weighs(400_000, Some(12)) < near && weighs(400_000, Some(12)) > near * 9 / 10);
        assert!(weighs(100_000, Some(10)) < weighs(400_000, Some(40)), "the rate tells more");
        assert!(weighs(0, None) > 0 && weighs(0, Some(u32::MAX)) > 0, "an unknown rate is some");
    }
}
