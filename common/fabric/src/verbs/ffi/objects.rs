//! What libibverbs hands out: devices, contexts, domains, regions, queues, and what it
//! says about them; and the queue pair that is asked for, which names some of them. Only
//! the library makes what it hands out by pointer, and only the fields we read are
//! declared.

use super::Plain;
use super::work::{QpCap, RecvWr, SendWr, Wc};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`, up to its transport.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    /// Calls of the library's own, not ours to make.
    pub ops: [*mut c_void; 2],
    /// What stands at the end of the cable.
    pub node_type: c_int,
    /// `IBV_TRANSPORT_*`.
    pub transport_type: c_int,
}

/// `struct ibv_context_ops`: the calls that are made too often to go through the library. The
/// entries between them are of no use to us.
#[repr(C)]
#[derive(Debug)]
pub struct ContextOps {
    /// Entries before `poll_cq`.
    pub before_poll_cq: [*mut c_void; 11],
    /// Takes completions off a queue; returns how many, negative on failure.
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    /// Asks for an event with the next completion.
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    /// Entries before `post_send`.
    pub before_post_send: [*mut c_void; 12],
    /// Posts requests; returns an errno, and the first that was not taken.
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    /// Posts receives; returns an errno, and the first that was not taken.
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    /// Entries after `post_recv`.
    pub after_post_recv: [*mut c_void; 5],
}

/// `struct ibv_context`, up to its descriptors: an open device.
#[repr(C)]
#[derive(Debug)]
pub struct Context {
    /// Which one.
    pub device: *mut Device,
    /// The frequent calls.
    pub ops: ContextOps,
    /// The descriptor of the device.
    pub cmd_fd: c_int,
    /// The descriptor that asynchronous events come from.
    pub async_fd: c_int,
}

/// `struct ibv_pd`: a protection domain.
#[repr(C)]
#[derive(Debug)]
pub struct Pd {
    /// The device it is of.
    pub context: *mut Context,
    /// The kernel's name of it.
    pub handle: u32,
}

/// `struct ibv_mr`: registered memory.
#[repr(C)]
#[derive(Debug)]
pub struct Mr {
    /// The device it is registered with.
    pub context: *mut Context,
    /// The domain it is in.
    pub pd: *mut Pd,
    /// Where it begins.
    pub addr: *mut c_void,
    /// How long it is.
    pub length: usize,
    /// The kernel's name of it.
    pub handle: u32,
    /// The key for own work requests.
    pub lkey: u32,
    /// The key for a peer's.
    pub rkey: u32,
}

/// `struct ibv_comp_channel`, up to its descriptor: where events of completion queues arrive.
#[repr(C)]
#[derive(Debug)]
pub struct CompChannel {
    /// The device it is of.
    pub context: *mut Context,
    /// The descriptor to wait on.
    pub fd: c_int,
}

/// `struct ibv_cq`, up to its size: a completion queue.
#[repr(C)]
#[derive(Debug)]
pub struct Cq {
    /// The device it is of.
    pub context: *mut Context,
    /// Where its events arrive.
    pub channel: *mut CompChannel,
    /// Ours to use: our name of it.
    pub cq_context: *mut c_void,
    /// The kernel's name of it.
    pub handle: u32,
    /// How many completions it holds.
    pub cqe: c_int,
}

/// `struct ibv_qp`, up to its type: a queue pair.
#[repr(C)]
#[derive(Debug)]
pub struct Qp {
    /// The device it is of.
    pub context: *mut Context,
    /// Ours to use: our name of it.
    pub qp_context: *mut c_void,
    /// The domain its requests are checked in.
    pub pd: *mut Pd,
    /// Where its requests complete.
    pub send_cq: *mut Cq,
    /// Where its receives complete.
    pub recv_cq: *mut Cq,
    /// A shared receive queue; we have none.
    pub srq: *mut c_void,
    /// The kernel's name of it.
    pub handle: u32,
    /// Its number, by which the peer addresses it.
    pub qp_num: u32,
    /// `IBV_QPS_*`, as the library last set it.
    pub state: c_uint,
    /// `IBV_QPT_*`.
    pub qp_type: c_uint,
}

/// `struct ibv_qp_init_attr`: the queue pair to make.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QpInitAttr {
    /// Ours to use: our name of it.
    pub qp_context: *mut c_void,
    /// Where requests complete.
    pub send_cq: *mut Cq,
    /// Where receives complete.
    pub recv_cq: *mut Cq,
    /// A shared receive queue; we have none.
    pub srq: *mut c_void,
    /// How much it holds; the library writes what it really holds.
    pub cap: QpCap,
    /// `IBV_QPT_*`.
    pub qp_type: c_uint,
    /// Whether every request is signalled.
    pub sq_sig_all: c_int,
}

// SAFETY: integers and pointers only.
unsafe impl Plain for QpInitAttr {}

/// `struct ibv_device_attr`: what a device can do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named as in the headers; those we read are explained in device.rs")]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

// SAFETY: bytes and integers only.
unsafe impl Plain for DeviceAttr {}

/// `struct ibv_port_attr`: the state of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named as in the headers; those we read are explained in device.rs")]
pub struct PortAttr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// Room for what newer libraries append; older ones leave it alone.
    pub later: u32,
}

// SAFETY: bytes and integers only.
unsafe impl Plain for PortAttr {}

/// `struct ibv_async_event`: something happened to a device, a port or a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AsyncEvent {
    /// A pointer to the queue pair, or the number of the port: as the type says.
    pub element: u64,
    /// `IBV_EVENT_*`.
    pub event_type: c_uint,
}

// SAFETY: integers only.
unsafe impl Plain for AsyncEvent {}
