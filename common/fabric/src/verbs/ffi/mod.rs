//! Our own declarations of the part of libibverbs we use: structures, numbers,
//! nothing else. They are checked against the real headers, size by size and
//! offset by offset, in `tests/softroce/abi`; whoever adds a field adds it there.
//! Enumerations of C are plain integers here: a newer library may know more
//! values than we do, and a Rust enum with an unknown value would be undefined.
//!
//! A structure that only the library makes (a context, a queue pair) is declared
//! up to the last field we read; we never make or copy one.

mod objects;
mod work;

pub use objects::*;
pub use work::*;

use std::ffi::{c_int, c_uint};

/// A structure of which all-zero bytes are a value.
///
/// # Safety
/// Every field must be an integer, a raw pointer, an optional function pointer, or made of these.
pub unsafe trait Plain: Sized {
    /// The structure with every byte zero, as C code makes it with `= {}`.
    fn zeroed() -> Self {
        // SAFETY: whoever implements the trait vouches that zeros are a value.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $kind:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $kind = $value;)*

        /// Every number declared here, by its name in the headers, for the check of the ABI.
        pub const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $name as u64),)*];
    };
}

constants! {
    /// A port that carries traffic.
    IBV_PORT_ACTIVE: c_uint = 4;
    /// The link layer of a port is not told; older drivers of InfiniBand devices do that.
    IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
    /// InfiniBand.
    IBV_LINK_LAYER_INFINIBAND: u8 = 1;
    /// Ethernet: RoCE.
    IBV_LINK_LAYER_ETHERNET: u8 = 2;
    /// Every address of the port must be told in full, also within a subnet: a bit of `flags`.
    IBV_QPF_GRH_REQUIRED: u8 = 1;
    /// The path MTU of 256 bytes; each next number doubles it.
    IBV_MTU_256: c_uint = 1;
    /// The path MTU of 4096 bytes, the largest.
    IBV_MTU_4096: c_uint = 5;
    /// A GID of InfiniBand.
    IBV_GID_TYPE_IB: u32 = 0;
    /// A GID of RoCE version 1, which is not routed.
    IBV_GID_TYPE_ROCE_V1: u32 = 1;
    /// A GID of RoCE version 2, over UDP.
    IBV_GID_TYPE_ROCE_V2: u32 = 2;

    /// The device may write to the region for this side's own work requests.
    IBV_ACCESS_LOCAL_WRITE: c_int = 1;
    /// A peer may write to the region.
    IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
    /// A peer may read the region.
    IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;
    /// Pages are not pinned but looked for when they are wanted.
    IBV_ACCESS_ON_DEMAND: c_int = 1 << 6;
    /// Data may arrive in any order before its completion; ignored where it is not known.
    IBV_ACCESS_RELAXED_ORDERING: c_int = 1 << 20;

    /// A reliable connection.
    IBV_QPT_RC: c_uint = 2;
    /// Receives may be posted.
    IBV_QPS_INIT: c_uint = 1;
    /// Requests of the peer are served.
    IBV_QPS_RTR: c_uint = 2;
    /// Requests may be posted.
    IBV_QPS_RTS: c_uint = 3;
    /// Everything posted is flushed.
    IBV_QPS_ERR: c_uint = 6;

    /// `qp_state` is set.
    IBV_QP_STATE: c_int = 1;
    /// `qp_access_flags` is set.
    IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
    /// `pkey_index` is set.
    IBV_QP_PKEY_INDEX: c_int = 1 << 4;
    /// `port_num` is set.
    IBV_QP_PORT: c_int = 1 << 5;
    /// `ah_attr` is set.
    IBV_QP_AV: c_int = 1 << 7;
    /// `path_mtu` is set.
    IBV_QP_PATH_MTU: c_int = 1 << 8;
    /// `timeout` is set.
    IBV_QP_TIMEOUT: c_int = 1 << 9;
    /// `retry_cnt` is set.
    IBV_QP_RETRY_CNT: c_int = 1 << 10;
    /// `rnr_retry` is set.
    IBV_QP_RNR_RETRY: c_int = 1 << 11;
    /// `rq_psn` is set.
    IBV_QP_RQ_PSN: c_int = 1 << 12;
    /// `max_rd_atomic` is set.
    IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    /// `min_rnr_timer` is set.
    IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
    /// `sq_psn` is set.
    IBV_QP_SQ_PSN: c_int = 1 << 16;
    /// `max_dest_rd_atomic` is set.
    IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    /// `dest_qp_num` is set.
    IBV_QP_DEST_QPN: c_int = 1 << 20;

    /// A request that writes to the peer's memory.
    IBV_WR_RDMA_WRITE: c_uint = 0;
    /// The same, and the peer's receive queue is told.
    IBV_WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
    /// A request that reads the peer's memory.
    IBV_WR_RDMA_READ: c_uint = 4;
    /// A completion is wanted in the good case, too.
    IBV_SEND_SIGNALED: c_uint = 1 << 1;
    /// The bytes are copied into the request when it is posted.
    IBV_SEND_INLINE: c_uint = 1 << 3;

    /// A peer's write with an immediate arrived.
    IBV_WC_RECV_RDMA_WITH_IMM: c_uint = 129;
    /// The request did what it should.
    IBV_WC_SUCCESS: c_uint = 0;
    /// A buffer is longer or shorter than its message.
    IBV_WC_LOC_LEN_ERR: c_uint = 1;
    /// The queue pair is not fit for the request.
    IBV_WC_LOC_QP_OP_ERR: c_uint = 2;
    /// The end-to-end context is not fit for the request.
    IBV_WC_LOC_EEC_OP_ERR: c_uint = 3;
    /// A local buffer is not registered for this.
    IBV_WC_LOC_PROT_ERR: c_uint = 4;
    /// The queue pair failed before this request's turn.
    IBV_WC_WR_FLUSH_ERR: c_uint = 5;
    /// A memory window could not be bound.
    IBV_WC_MW_BIND_ERR: c_uint = 6;
    /// The peer answered what no peer may answer.
    IBV_WC_BAD_RESP_ERR: c_uint = 7;
    /// The peer's write found local memory it may not write.
    IBV_WC_LOC_ACCESS_ERR: c_uint = 8;
    /// The peer calls the request invalid.
    IBV_WC_REM_INV_REQ_ERR: c_uint = 9;
    /// The peer's device refuses the access.
    IBV_WC_REM_ACCESS_ERR: c_uint = 10;
    /// The peer could not carry out the request.
    IBV_WC_REM_OP_ERR: c_uint = 11;
    /// The peer never answered.
    IBV_WC_RETRY_EXC_ERR: c_uint = 12;
    /// The peer had no receive posted, again and again.
    IBV_WC_RNR_RETRY_EXC_ERR: c_uint = 13;
    /// Of the reliable datagram transport.
    IBV_WC_LOC_RDD_VIOL_ERR: c_uint = 14;
    /// Of the reliable datagram transport.
    IBV_WC_REM_INV_RD_REQ_ERR: c_uint = 15;
    /// The peer ended the operation.
    IBV_WC_REM_ABORT_ERR: c_uint = 16;
    /// Of the reliable datagram transport.
    IBV_WC_INV_EECN_ERR: c_uint = 17;
    /// Of the reliable datagram transport.
    IBV_WC_INV_EEC_STATE_ERR: c_uint = 18;
    /// The device failed.
    IBV_WC_FATAL_ERR: c_uint = 19;
    /// The peer took too long.
    IBV_WC_RESP_TIMEOUT_ERR: c_uint = 20;
    /// The device gives no cause.
    IBV_WC_GENERAL_ERR: c_uint = 21;
    /// Tag matching failed.
    IBV_WC_TM_ERR: c_uint = 22;
    /// Tag matching is left to software.
    IBV_WC_TM_RNDV_INCOMPLETE: c_uint = 23;

    /// The completion queue overran.
    IBV_EVENT_CQ_ERR: c_uint = 0;
    /// The queue pair failed.
    IBV_EVENT_QP_FATAL: c_uint = 1;
    /// The peer sent an invalid request.
    IBV_EVENT_QP_REQ_ERR: c_uint = 2;
    /// The peer named memory it may not use.
    IBV_EVENT_QP_ACCESS_ERR: c_uint = 3;
    /// The device failed.
    IBV_EVENT_DEVICE_FATAL: c_uint = 8;
    /// A port carries traffic again.
    IBV_EVENT_PORT_ACTIVE: c_uint = 9;
    /// A port went down.
    IBV_EVENT_PORT_ERR: c_uint = 10;
    /// A GID was added or removed.
    IBV_EVENT_GID_CHANGE: c_uint = 18;
}
