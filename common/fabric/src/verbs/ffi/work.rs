//! What we hand to libibverbs: the state of a queue pair and its path, work requests,
//! and the completions it hands back. These we make ourselves, so that every byte of
//! them is declared, also those of unions we use one side of.

use super::Plain;
use std::ffi::{c_int, c_uint};

/// `struct ibv_qp_cap`: how much a queue pair holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QpCap {
    /// Requests outstanding.
    pub max_send_wr: u32,
    /// Receives outstanding.
    pub max_recv_wr: u32,
    /// Pieces of memory in a request.
    pub max_send_sge: u32,
    /// Pieces of memory in a receive.
    pub max_recv_sge: u32,
    /// Bytes that may travel in the request itself.
    pub max_inline_data: u32,
}

/// `union ibv_gid`: an address of a port. Aligned as its other side, two long integers.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its bytes.
    pub raw: [u8; 16],
}

// SAFETY: bytes only.
unsafe impl Plain for Gid {}

/// `struct ibv_global_route`: the part of a path that is routed by GID.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's address.
    pub dgid: Gid,
    /// For routers that spread flows.
    pub flow_label: u32,
    /// Which of our addresses.
    pub sgid_index: u8,
    /// Routers it may pass.
    pub hop_limit: u8,
    /// The class of traffic.
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`: the path to the peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhAttr {
    /// By GID: RoCE always, InfiniBand between subnets.
    pub grh: GlobalRoute,
    /// The peer's local identifier: InfiniBand.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// Which of the identifiers of our port.
    pub src_path_bits: u8,
    /// A limit on the rate; none.
    pub static_rate: u8,
    /// Whether `grh` counts.
    pub is_global: u8,
    /// Our port.
    pub port_num: u8,
}

// SAFETY: integers only.
unsafe impl Plain for AhAttr {}

/// `struct ibv_qp_attr`: what a queue pair is set to. Which fields count, a mask says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QpAttr {
    /// The state to move to.
    pub qp_state: c_uint,
    /// The state it is in.
    pub cur_qp_state: c_uint,
    /// The largest packet, `IBV_MTU_*`.
    pub path_mtu: c_uint,
    /// Unused.
    pub path_mig_state: c_uint,
    /// Unused: of datagrams.
    pub qkey: u32,
    /// The peer's first packet number.
    pub rq_psn: u32,
    /// Our first packet number.
    pub sq_psn: u32,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// What the peer may do, `IBV_ACCESS_*`.
    pub qp_access_flags: c_uint,
    /// Unused.
    pub cap: QpCap,
    /// The path to the peer.
    pub ah_attr: AhAttr,
    /// Unused.
    pub alt_ah_attr: AhAttr,
    /// Where in the port's table the partition key is.
    pub pkey_index: u16,
    /// Unused.
    pub alt_pkey_index: u16,
    /// Unused.
    pub en_sqd_async_notify: u8,
    /// Unused.
    pub sq_draining: u8,
    /// Reads we have outstanding.
    pub max_rd_atomic: u8,
    /// Reads of the peer that are served at a time.
    pub max_dest_rd_atomic: u8,
    /// What the peer waits when no receive is posted.
    pub min_rnr_timer: u8,
    /// Our port.
    pub port_num: u8,
    /// How long an answer may take: 4.096 microseconds times two to this.
    pub timeout: u8,
    /// How often to ask again without an answer.
    pub retry_cnt: u8,
    /// How often to ask again when no receive is posted; 7 means for ever.
    pub rnr_retry: u8,
    /// Unused.
    pub alt_port_num: u8,
    /// Unused.
    pub alt_timeout: u8,
    /// Unused.
    pub rate_limit: u32,
}

// SAFETY: integers only.
unsafe impl Plain for QpAttr {}

/// `struct ibv_sge`: a piece of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sge {
    /// Where it begins.
    pub addr: u64,
    /// How long it is.
    pub length: u32,
    /// The key of its region.
    pub lkey: u32,
}

/// `struct ibv_send_wr`: a request. Of its unions, the side of RDMA is declared.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SendWr {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// The next one of the chain.
    pub next: *mut SendWr,
    /// The memory.
    pub sg_list: *mut Sge,
    /// How many pieces of memory.
    pub num_sge: c_int,
    /// `IBV_WR_*`.
    pub opcode: c_uint,
    /// `IBV_SEND_*`.
    pub send_flags: c_uint,
    /// What the peer is told, in network byte order.
    pub imm_data: u32,
    /// The peer's memory.
    pub remote_addr: u64,
    /// The key of the peer's region.
    pub rkey: u32,
    /// The rest of that union: atomics and datagrams.
    pub wr_rest: [u32; 5],
    /// Of extended connections; unused.
    pub remote_srqn: u32,
    /// Of memory windows and segmentation; unused.
    pub bind_mw: [u64; 6],
}

// SAFETY: integers and pointers only.
unsafe impl Plain for SendWr {}

/// `struct ibv_recv_wr`: a receive.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecvWr {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// The next one of the chain.
    pub next: *mut RecvWr,
    /// The memory; none for an immediate.
    pub sg_list: *mut Sge,
    /// How many pieces of memory.
    pub num_sge: c_int,
}

// SAFETY: integers and pointers only.
unsafe impl Plain for RecvWr {}

/// `struct ibv_wc`: a completion.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Wc {
    /// Of the request or receive.
    pub wr_id: u64,
    /// `IBV_WC_*`. When it is not success, only this, `wr_id`, `qp_num` and `vendor_err` count.
    pub status: c_uint,
    /// What completed.
    pub opcode: c_uint,
    /// What the vendor says about a failure.
    pub vendor_err: u32,
    /// How many bytes arrived.
    pub byte_len: u32,
    /// What the peer said, in network byte order.
    pub imm_data: u32,
    /// The queue pair.
    pub qp_num: u32,
    /// Of datagrams.
    pub src_qp: u32,
    /// What else counts.
    pub wc_flags: c_uint,
    /// Of datagrams.
    pub pkey_index: u16,
    /// Of datagrams.
    pub slid: u16,
    /// Of datagrams.
    pub sl: u8,
    /// Of datagrams.
    pub dlid_path_bits: u8,
}

// SAFETY: integers only.
unsafe impl Plain for Wc {}
