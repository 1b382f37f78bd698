//! Making a link in two steps, because each side needs the other's address: an
//! endpoint is a queue pair that can be told about and not yet be used; with the
//! peer's address it becomes a link. Nothing is sent here, and what a peer says of
//! itself is checked.

use super::address::{Address, NUMBER_MASK};
use super::context::Footing;
use super::domain::VerbsDomain;
use super::ffi::{self, Plain as _};
use super::link::VerbsLink;
use super::options::Options;
use super::queue::{Depths, Queue};
use super::request::RECEIVE;
use crate::error::FabricError;
use crate::memory::random_u64;
use crate::ports::{GidInfo, GidKind, LinkLayer, Place};
use std::net::Ipv6Addr;

/// How often a request is sent again without an answer. Not 7, the most there is: Soft-RoCE
/// takes that for ever, and a dead peer is then never noticed.
const RETRIES: u8 = 6;

/// How often a request is sent again when the peer has no receive posted. Never 7, which means
/// for ever.
const RNR_RETRIES: u8 = 6;

/// What we make a peer wait that finds no receive posted, or a page that our device has to ask
/// for: 41 ms. Receives are posted before what uses them is granted, and pages are mapped before
/// they are registered, so this is for accidents.
const RNR_TIMER: u8 = 24;

/// Routers a packet may pass.
const HOPS_MAX: u8 = 64;

/// A queue pair that is not connected yet.
///
/// Nothing can be posted to it:
/// ```compile_fail,E0599
/// use verbatim_fabric::{Buffer, Link, Op, RemoteRange, Ticket, verbs::VerbsEndpoint};
/// fn early(mut endpoint: VerbsEndpoint, from: RemoteRange, into: Buffer) {
///     let _ = endpoint.submit(Ticket(1), Op::Read { from, into });
/// }
/// ```
/// and it is used up by connecting:
/// ```compile_fail,E0382
/// use verbatim_fabric::verbs::{Address, VerbsEndpoint};
/// fn twice(endpoint: VerbsEndpoint, first: Address, second: Address) {
///     let _ = endpoint.connect(&first);
///     let _ = endpoint.connect(&second);
/// }
/// ```
#[derive(Debug)]
pub struct VerbsEndpoint {
    queue: Queue,
    place: Place,
    options: Options,
    address: Address,
    /// Events of the device that were known before.
    happened: u64,
}

impl VerbsEndpoint {
    /// Makes a queue pair that can receive but not be reached.
    pub fn new(domain: &VerbsDomain, place: &Place, options: Options) -> Result<Self, FabricError> {
        let context = domain.context().clone();
        let happened = context.happened();
        let port = context.expect_active(place.port)?;
        context.expect_address(place.port, &place.gid)?;
        let options = Options { piece_bytes: options.piece_bytes.min(port.max_msg_sz), ..options };
        let depths = Depths {
            sends: options.requests_max,
            receives: options.receives,
            inline_bytes: options.inline_bytes,
        };
        let mut queue = Queue::new(domain.pd(), depths)?;
        let failed = |step: &str, error: std::io::Error| set_up(place, step, &error);
        let mut attr = ffi::QpAttr::zeroed();
        attr.qp_state = ffi::IBV_QPS_INIT;
        attr.port_num = place.port;
        attr.pkey_index = options.pkey_index;
        // What a peer may do is decided by its regions.
        attr.qp_access_flags = (ffi::IBV_ACCESS_REMOTE_READ | ffi::IBV_ACCESS_REMOTE_WRITE) as u32;
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_PKEY_INDEX
            | ffi::IBV_QP_PORT
            | ffi::IBV_QP_ACCESS_FLAGS;
        queue.modify(&mut attr, mask).map_err(|e| failed("begin", e))?;
        let receives = queue.depths.receives;
        queue.post_receives(receives as usize, RECEIVE).map_err(|e| failed("post receives", e))?;
        let limits = *context.limits();
        let address = Address {
            link_layer: place.link_layer,
            gid_kind: place.gid.kind,
            gid: place.gid.raw,
            lid: port.lid,
            pkey: context.query_pkey(place.port, options.pkey_index)?,
            queue_pair: queue.number() & NUMBER_MASK,
            packet: random_u64()? as u32 & NUMBER_MASK,
            mtu: mtu_within(port.active_mtu, options.mtu_bytes_max),
            reads_posted_max: limits.reads_posted_max.min(options.reads_max),
            reads_served_max: limits.reads_served_max.min(options.reads_max),
            receives,
            proves: false,
            spots: false,
            by_gid: needs_gid(&port),
        };
        Ok(Self { queue, place: place.clone(), options, address, happened })
    }

    /// The same on a port that may have been set up anew since it was chosen: where the place does
    /// not work, what `find` has for the port takes its place, if it may.
    pub fn at(
        domain: &VerbsDomain,
        place: &mut Place,
        options: Options,
        find: impl FnOnce(&Place) -> Result<Option<Place>, FabricError>,
    ) -> Result<Self, FabricError> {
        Self::new(domain, place, options).or_else(|error| {
            let found = find(place)?.filter(|found| may_follow(&found.gid, &place.gid));
            *place = found.ok_or(error)?;
            tracing::info!(%place, "the port has another address");
            Self::new(domain, place, options)
        })
    }

    /// Has both ends name their ports in every packet, if so, or if this port needs it anyway.
    pub fn by_gid(mut self, by_gid: bool) -> Self {
        self.address.by_gid |= by_gid;
        self
    }

    /// What the peer must be told.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Connects to a peer's endpoint, which must do the same. Nothing is sent.
    pub fn connect(self, peer: &Address) -> Result<VerbsLink, FabricError> {
        let agreed = agree(&self.address, peer)?;
        let failed = |step: &str, error: std::io::Error| set_up(&self.place, step, &error);
        let mut attr = ffi::QpAttr::zeroed();
        attr.qp_state = ffi::IBV_QPS_RTR;
        attr.path_mtu = agreed.mtu;
        attr.dest_qp_num = peer.queue_pair;
        attr.rq_psn = peer.packet;
        attr.max_dest_rd_atomic = agreed.reads_served;
        attr.min_rnr_timer = RNR_TIMER;
        attr.ah_attr = path(&self.address, peer, &self.place, &self.options);
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_AV
            | ffi::IBV_QP_PATH_MTU
            | ffi::IBV_QP_DEST_QPN
            | ffi::IBV_QP_RQ_PSN
            | ffi::IBV_QP_MAX_DEST_RD_ATOMIC
            | ffi::IBV_QP_MIN_RNR_TIMER;
        self.queue.modify(&mut attr, mask).map_err(|e| failed("find the peer", e))?;
        let mut attr = ffi::QpAttr::zeroed();
        attr.qp_state = ffi::IBV_QPS_RTS;
        attr.timeout = self.options.timeout_exponent;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RNR_RETRIES;
        attr.sq_psn = self.address.packet;
        attr.max_rd_atomic = agreed.reads_posted;
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_TIMEOUT
            | ffi::IBV_QP_RETRY_CNT
            | ffi::IBV_QP_RNR_RETRY
            | ffi::IBV_QP_SQ_PSN
            | ffi::IBV_QP_MAX_QP_RD_ATOMIC;
        self.queue.modify(&mut attr, mask).map_err(|e| failed("connect", e))?;
        let footing = Footing {
            port: self.place.port,
            gid: (self.place.gid.index, self.place.gid.raw),
            queues: self.queue.names(),
        };
        Ok(VerbsLink::new(self.queue, &self.place, &self.options, footing, self.happened))
    }
}

/// Whether links of a port may go on at one address when another is gone. One that ends at the
/// switch, as RoCE has before it has any other, may lead to nobody: TCP does better meanwhile.
fn may_follow(found: &GidInfo, gone: &GidInfo) -> bool {
    found.raw == gone.raw || found.kind == GidKind::Ib || !found.is_link_local()
}

/// Whether a port takes no queue pair whose packets do not name both ends in full: one of a
/// virtual function, say.
fn needs_gid(port: &ffi::PortAttr) -> bool {
    port.flags & ffi::IBV_QPF_GRH_REQUIRED != 0
}

/// The largest packet, as `IBV_MTU_*`, of a port whose own is `active`, that has no more bytes.
fn mtu_within(active: u32, bytes_max: u32) -> u8 {
    let fits = bytes_max.max(256).ilog2() - 7;
    active.min(fits).clamp(ffi::IBV_MTU_256, ffi::IBV_MTU_4096) as u8
}

/// What both sides can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Agreed {
    mtu: u32,
    reads_posted: u8,
    reads_served: u8,
}

/// Finds what both sides can do, or why they cannot be connected.
fn agree(local: &Address, peer: &Address) -> Result<Agreed, FabricError> {
    let wrong = |text: &str| Err(FabricError::Protocol(format!("address of a link: {text}")));
    if peer.queue_pair > NUMBER_MASK || peer.packet > NUMBER_MASK {
        return wrong("a number has more than 24 bits");
    }
    let mtu = u32::from(peer.mtu);
    if !(ffi::IBV_MTU_256..=ffi::IBV_MTU_4096).contains(&mtu) {
        return wrong("there is no such MTU");
    }
    let kinds = |of: &Address| (of.link_layer, of.gid_kind);
    if kinds(local) != kinds(peer) {
        return Err(FabricError::device(
            "cannot connect a queue pair",
            format!("this port is {:?}, the peer's is {:?}", local.gid_kind, peer.gid_kind),
            "name a device of the same kind on both sides",
        ));
    }
    let families = [local, peer].map(|of| Ipv6Addr::from(of.gid).to_canonical());
    if local.gid_kind != GidKind::Ib && families[0].is_ipv4() != families[1].is_ipv4() {
        return Err(FabricError::device(
            "cannot connect a queue pair",
            format!("the address of this port is {}, the peer's is {}", families[0], families[1]),
            "name addresses of one IP version on both sides, or none and let them be chosen",
        ));
    }
    // Between subnets a packet goes to a router first, and only the subnet manager knows which.
    if local.link_layer == LinkLayer::Infiniband && local.gid[..8] != peer.gid[..8] {
        let [here, there] = [local, peer].map(|of| Ipv6Addr::from(of.gid));
        return Err(FabricError::device(
            "cannot connect a queue pair",
            format!("this port is {here}, the peer's is {there}: not in one InfiniBand subnet"),
            "put both ports in one subnet, or let data move over TCP",
        ));
    }
    // The highest bit only says whether the partition is full or limited.
    if local.pkey & 0x7fff != peer.pkey & 0x7fff {
        return Err(FabricError::device(
            "cannot connect a queue pair",
            format!("partition {:#06x} here, {:#06x} on the peer", local.pkey, peer.pkey),
            "put both ports in one InfiniBand partition",
        ));
    }
    Ok(Agreed {
        mtu: mtu.min(u32::from(local.mtu)),
        reads_posted: local.reads_posted_max.min(peer.reads_served_max),
        reads_served: local.reads_served_max.min(peer.reads_posted_max),
    })
}

/// The path to the peer: by GID on RoCE and where either end asks for it, else by LID. A device
/// drops what names another port than its own, or than its queue pair expects.
fn path(local: &Address, peer: &Address, place: &Place, options: &Options) -> ffi::AhAttr {
    let mut path = ffi::AhAttr::zeroed();
    path.port_num = place.port;
    path.sl = options.service_level;
    if local.link_layer == LinkLayer::Infiniband {
        path.dlid = peer.lid;
    }
    let asked_for = local.by_gid || peer.by_gid;
    if local.link_layer == LinkLayer::Ethernet || asked_for {
        path.is_global = 1;
        path.grh.dgid.raw = peer.gid;
        path.grh.sgid_index = place.gid.index;
        path.grh.hop_limit = HOPS_MAX;
        path.grh.traffic_class = options.traffic_class;
    }
    path
}

fn set_up(place: &Place, step: &str, error: &std::io::Error) -> FabricError {
    let what = format!("cannot set up a queue pair on {}/{}: {step}", place.device, place.port);
    let cause = error.to_string();
    let cause = cause.split(" (os error").next().unwrap_or(&cause).to_owned();
    let hint = "check that the peer's address can be reached from this port: ibv_rc_pingpong";
    FabricError::device(what, cause, hint)
}

#[cfg(test)]
mod tests {
    use super::super::address::tests::address;
    use super::*;

    fn place() -> Place {
        Place {
            device: "mlx5_0".into(),
            port: 2,
            gid: GidInfo { index: 3, raw: [1; 16], kind: GidKind::RoceV2, netdev: None },
            link_layer: LinkLayer::Ethernet,
            netdev: None,
            rate_mbit: 100_000,
            numa_node: None,
            numa_distance: None,
            why: String::new(),
        }
    }

    #[test]
    fn both_sides_agree_on_what_the_weaker_one_can() {
        let strong = Address { mtu: 5, ..address() };
        let weak = Address { mtu: 2, reads_posted_max: 1, reads_served_max: 4, ..address() };
        let here = agree(&strong, &weak).expect("agreed");
        assert_eq!(here, Agreed { mtu: 2, reads_posted: 4, reads_served: 1 });
        let there = agree(&weak, &strong).expect("agreed");
        assert_eq!(there, Agreed { mtu: 2, reads_posted: 1, reads_served: 4 });
    }

    #[test]
    fn an_address_that_cannot_be_is_refused() {
        let refused = |peer: Address| agree(&address(), &peer).expect_err("refused").to_string();
        for peer in [
            Address { queue_pair: 1 << 24, ..address() },
            Address { packet: u32::MAX, ..address() },
            Address { mtu: 0, ..address() },
            Address { mtu: 6, ..address() },
        ] {
            assert!(refused(peer).contains("address of a link"), "{peer:?}");
        }
        let infiniband = Address { link_layer: LinkLayer::Infiniband, ..address() };
        assert!(refused(infiniband).contains("this port is"));
        let older = Address { gid_kind: GidKind::RoceV1, ..address() };
        assert!(refused(older).contains("this port is RoceV2, the peer's is RoceV1"));
        assert!(refused(Address { pkey: 0x8001, ..address() }).contains("partition 0xffff"));
        let limited = Address { pkey: 0x7fff, ..address() };
        assert!(agree(&address(), &limited).is_ok(), "limited membership is the same partition");
    }

    #[test]
    fn links_go_on_at_the_same_address_elsewhere_or_at_one_that_is_routed() {
        let gid = |index, text: &str, kind| {
            let ip: Ipv6Addr = text.parse().expect("an address");
            GidInfo { index, raw: ip.octets(), kind, netdev: None }
        };
        let roce = |index, text| gid(index, text, GidKind::RoceV2);
        let gone = roce(3, "::ffff:10.9.0.1");
        let follows = |found| may_follow(&found, &gone);
        assert!(follows(roce(5, "::ffff:10.9.0.1")), "the network device was set up anew");
        assert!(follows(roce(3, "::ffff:10.9.0.2")) && follows(roce(3, "2001:db8::1")));
        assert!(!follows(roce(1, "fe80::1")), "it ends at the switch");
        assert!(may_follow(&roce(1, "fe80::1"), &roce(0, "fe80::1")), "as it did before");
        let [one, other] = ["fe80::1", "fe80::2"].map(|text| gid(0, text, GidKind::Ib));
        assert!(may_follow(&one, &other), "all of a subnet of InfiniBand have that");
    }

    #[test]
    fn a_port_that_needs_its_address_told_in_full_says_so() {
        let port = |flags| ffi::PortAttr { flags, ..ffi::PortAttr::zeroed() };
        assert_eq!([0, 1, 2, 3].map(|flags| needs_gid(&port(flags))), [false, true, false, true]);
    }

    #[test]
    fn a_packet_is_as_large_as_the_port_and_the_user_allow() {
        assert_eq!([mtu_within(5, 4096), mtu_within(3, 4096), mtu_within(5, 1024)], [5, 3, 3]);
        assert_eq!([mtu_within(5, 256), mtu_within(5, 0), mtu_within(0, 4096)], [1, 1, 1]);
    }

    #[test]
    fn addresses_of_two_ip_versions_are_not_connected() {
        let gid = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
        let local = Address { gid: gid("fe80::1"), ..address() };
        let peer = Address { gid: gid("::ffff:10.9.0.1"), ..address() };
        let error = agree(&local, &peer).expect_err("refused");
        let text = "the address of this port is fe80::1, the peer's is 10.9.0.1";
        assert!(error.to_string().contains(text), "{error}");
        let infiniband = |of: Address| {
            let link_layer = LinkLayer::Infiniband;
            Address { gid_kind: GidKind::Ib, link_layer, ..of }
        };
        let other = Address { gid: gid("::1"), ..address() };
        assert!(agree(&infiniband(other), &infiniband(peer)).is_ok(), "it is not addressed by IP");
    }

    #[test]
    fn ports_of_two_infiniband_subnets_are_not_connected() {
        let of = |gid: &str, link_layer, gid_kind| {
            let gid = gid.parse::<Ipv6Addr>().expect("an address").octets();
            Address { gid, link_layer, gid_kind, ..address() }
        };
        let port = |gid| of(gid, LinkLayer::Infiniband, GidKind::Ib);
        let here = port("fe80::2:c903:1");
        assert!(agree(&here, &port("fe80::2:c903:2")).is_ok());
        let error = agree(&here, &port("fec0:0:0:7::2:c903:2")).expect_err("refused");
        assert!(error.to_string().contains("not in one InfiniBand subnet"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("TCP")));
        let routed = |gid| of(gid, LinkLayer::Ethernet, GidKind::RoceV2);
        let (one, other) = (routed("2001:db8:1::1"), routed("2001:db8:2::1"));
        assert!(agree(&one, &other).is_ok(), "IP is routed by address");
    }

    #[test]
    fn roce_goes_by_gid_and_infiniband_by_lid_within_a_subnet_unless_asked() {
        let options = Options { service_level: 3, traffic_class: 106, ..Options::default() };
        let roce = path(&address(), &address(), &place(), &options);
        assert_eq!(roce.grh.traffic_class, 106);
        assert_eq!((roce.is_global, roce.grh.sgid_index, roce.dlid), (1, 3, 0));
        assert_eq!((roce.grh.dgid.raw, roce.port_num, roce.sl), ([1; 16], 2, 3));
        let near = Address { link_layer: LinkLayer::Infiniband, lid: 9, ..address() };
        let path_near = path(&near, &near, &place(), &options);
        assert_eq!((path_near.is_global, path_near.dlid), (0, 9));
        for (here, there) in [(true, false), (false, true)] {
            let (here, there) =
                (Address { by_gid: here, ..near }, Address { by_gid: there, ..near });
            let asked_for = path(&here, &there, &place(), &options);
            assert_eq!((asked_for.is_global, asked_for.dlid), (1, 9));
            assert_eq!((asked_for.grh.dgid.raw, asked_for.grh.sgid_index), ([1; 16], 3));
        }
    }
}
