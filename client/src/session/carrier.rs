//! What carries the links of a session: verbs where both sides have a device
//! that works, else TCP, with the reason. Begins with the best and only goes
//! down: once on TCP a session stays there. Never waits; the session's own file
//! for links drives it.

use crate::report::Posted;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use verbatim_fabric::proof::{PROOF_TIME_MAX, Proof};
use verbatim_fabric::sim::SimNet;
use verbatim_fabric::verbs::{
    self, ADDRESS_BYTES, Address, DomainLimits, Options, Place, VerbsDomain, VerbsEndpoint,
    VerbsLink, Wish,
};
use verbatim_fabric::{FabricError, Link};
use verbatim_proto::message::{LinkId, LinkOffer};

/// What the user wants data to move over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// RDMA where it works, else TCP.
    #[default]
    Auto,
    /// RDMA, or not at all.
    Verbs,
    /// TCP.
    Tcp,
}

/// How data is to move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarrierOptions {
    /// Over what.
    pub transport: Transport,
    /// Which device, port and address.
    pub wish: Wish,
    /// How many queue pairs; without it as many as streams.
    pub qps: Option<u16>,
    /// The class of its traffic.
    pub traffic_class: u8,
    /// Whether workers poll for ever instead of sleeping.
    pub busy_poll: bool,
}

/// What carries links.
pub(super) enum Carrier {
    /// A simulated network.
    Sim(SimNet),
    /// A device of this machine.
    Verbs(Box<Rdma>),
    /// TCP, and why it is not RDMA.
    Tcp {
        reason: String,
        /// What was posted before it came to that.
        posted: Posted,
        /// What had been chosen.
        places: Vec<Place>,
    },
}

/// A device, and the queue pairs on it that wait for the server's half.
pub(super) struct Rdma {
    domain: Arc<VerbsDomain>,
    place: Place,
    wish: Wish,
    options: Options,
    offered: HashMap<LinkId, VerbsEndpoint>,
}

impl Carrier {
    /// Chooses for a server at this address and buffers of so many bytes in all. Fails only
    /// where the user insists on RDMA.
    pub fn choose(
        options: &CarrierOptions,
        sim: Option<&SimNet>,
        server: SocketAddr,
        buffer_bytes: usize,
    ) -> Result<Self, FabricError> {
        if let Some(sim) = sim {
            return Ok(Self::Sim(sim.clone()));
        }
        if options.transport == Transport::Tcp {
            return Ok(Self::tcp("TCP was asked for".into()));
        }
        match Rdma::open(options, server, buffer_bytes) {
            Ok(rdma) => Ok(Self::Verbs(Box::new(rdma))),
            Err(error) if options.transport == Transport::Verbs => Err(error),
            Err(error) => Ok(Self::tcp(error.with_hint())),
        }
    }

    fn tcp(reason: String) -> Self {
        Self::Tcp { reason, posted: Posted::default(), places: Vec::new() }
    }

    /// What to ask the server for.
    pub fn offer(&mut self, link: LinkId) -> Result<LinkOffer, FabricError> {
        match self {
            Self::Sim(_) => Ok(LinkOffer::Sim),
            Self::Tcp { .. } => Ok(LinkOffer::Tcp),
            Self::Verbs(rdma) => {
                let endpoint = rdma.endpoint()?;
                let address = Address { proves: true, ..endpoint.address() };
                let address = address.to_bytes().to_vec();
                rdma.offered.insert(link, endpoint);
                Ok(LinkOffer::Verbs { address })
            }
        }
    }

    /// Connects what was offered to the server's half. It is to be proven before it is used;
    /// servers before 0.2 offer no proof.
    pub fn connect(&mut self, link: LinkId, peer: &[u8]) -> Result<Unproven, FabricError> {
        let offered = match self {
            Self::Verbs(rdma) => rdma.offered.remove(&link),
            Self::Sim(_) | Self::Tcp { .. } => None,
        };
        let unasked = || FabricError::Protocol("a queue pair that was not asked for".into());
        let endpoint = offered.ok_or_else(unasked)?;
        let (address, proof) = peer.split_at(peer.len().min(ADDRESS_BYTES));
        let link = endpoint.connect(&Address::from_bytes(address)?)?;
        let proof = if proof.is_empty() { None } else { Some(Proof::from_bytes(proof)?) };
        Ok(Unproven { link, proof })
    }

    /// Whether there is something to fall back from.
    pub fn is_verbs(&self) -> bool {
        matches!(self, Self::Verbs(_))
    }

    /// Moves to TCP for good.
    pub fn fall_back(&mut self, reason: String) {
        let places = self.places().to_vec();
        *self = Self::Tcp { reason, posted: self.posted(), places };
    }

    /// What was asked of the device.
    pub fn posted(&self) -> Posted {
        match self {
            Self::Sim(_) => Posted::default(),
            Self::Tcp { posted, .. } => *posted,
            Self::Verbs(rdma) => {
                let counters = rdma.domain.counters();
                Posted { reads: counters.reads(), writes: counters.writes() }
            }
        }
    }

    /// The ports that were chosen.
    pub fn places(&self) -> &[Place] {
        match self {
            Self::Sim(_) => &[],
            Self::Verbs(rdma) => std::slice::from_ref(&rdma.place),
            Self::Tcp { places, .. } => places,
        }
    }

    /// Why data moves over TCP, where it does.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Tcp { reason, .. } => Some(reason),
            Self::Sim(_) | Self::Verbs(_) => None,
        }
    }
}

impl Rdma {
    fn open(
        options: &CarrierOptions,
        server: SocketAddr,
        buffer_bytes: usize,
    ) -> Result<Self, FabricError> {
        let local = verbs::local_address_towards(server);
        let wish = Wish { local: options.wish.local.or(local), ..options.wish.clone() };
        let place = verbs::find_place(&wish)?;
        let domain = VerbsDomain::open(&place, DomainLimits::default())?;
        domain.try_pinning(buffer_bytes)?;
        tell(&place, server);
        let CarrierOptions { busy_poll, traffic_class, .. } = *options;
        let options = Options { busy_poll, traffic_class, ..Options::default() };
        Ok(Self { domain, place, wish, options, offered: HashMap::new() })
    }

    /// A queue pair. A port that was down may have other addresses now, so where the known one
    /// does not work, it is chosen anew, on the same device.
    fn endpoint(&mut self) -> Result<VerbsEndpoint, FabricError> {
        VerbsEndpoint::new(&self.domain, &self.place, self.options).or_else(|_| {
            let device = Some(self.place.device.clone());
            self.place = verbs::find_place(&Wish { device, ..self.wish.clone() })?;
            tracing::info!(place = %self.place, "the port has another address");
            VerbsEndpoint::new(&self.domain, &self.place, self.options)
        })
    }
}

/// A link that is connected, and has not carried anything.
pub(super) struct Unproven {
    link: VerbsLink,
    proof: Option<Proof>,
}

impl Unproven {
    /// Reads a page of the server over it. Blocks; a link that fails is taken apart here.
    pub fn prove(mut self) -> Result<Box<dyn Link>, FabricError> {
        if let Some(proof) = self.proof {
            proof.check(&mut self.link, PROOF_TIME_MAX)?;
        }
        Ok(Box::new(self.link))
    }
}

/// Says what was chosen, and why.
fn tell(place: &Place, server: SocketAddr) {
    let Place { device, port, gid, why, .. } = place;
    let (gid_index, address, kind) = (gid.index, gid.ip(), gid.kind);
    tracing::info!(%server, device, port, gid_index, %address, %kind, why, "RDMA port chosen");
}
