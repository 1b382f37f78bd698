//! Sizes, offsets and numbers of our declarations of libibverbs, compared twice:
//! with `ibverbs-sys`, which generates its own from a copy of the headers, and
//! with the header installed here, through a C program made from the same list.
//! The second has all of it; the first writes `ibv_wc` by hand and keeps it
//! private, and leaves out what is a macro, so these are compared with the header only.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::process::Command;
use verbatim_fabric::verbs::ffi;

/// One thing to compare: an expression of C, our value, and that of `ibverbs-sys`.
struct Item {
    c: String,
    ours: u64,
    theirs: Option<u64>,
    /// Whether ours may be more: room for what newer headers append.
    grows: bool,
}

/// How a structure is compared: `whole` with its size, `grows` with at least its size, `prefix`
/// only up to the fields we declare, `header` with its size but not with `ibverbs-sys`. A field that is called otherwise in C is
/// written `ours = c`, and `ours = c | sys` where a union has no name.
macro_rules! structures {
    ($($kind:ident $ours:ident: $c:ident { $($field:ident $(= $($path:ident).+ $(| $($sys:ident).+)?)?),* $(,)? })*) => {{
        let mut items = Vec::new();
        $(
            structures!(@size $kind items $ours $c);
            $(structures!(@field $kind items $ours $c $field [$($($path).+ $(| $($sys).+)?)?]);)*
        )*
        items
    }};
    (@size prefix $items:ident $ours:ident $c:ident) => {};
    (@size whole $items:ident $ours:ident $c:ident) => {
        $items.push(Item {
            c: format!("sizeof(struct {})", stringify!($c)),
            ours: size_of::<ffi::$ours>() as u64,
            theirs: Some(size_of::<ibverbs_sys::$c>() as u64),
            grows: false,
        });
    };
    (@size grows $items:ident $ours:ident $c:ident) => {
        $items.push(Item {
            c: format!("sizeof(struct {})", stringify!($c)),
            ours: size_of::<ffi::$ours>() as u64,
            theirs: Some(size_of::<ibverbs_sys::$c>() as u64),
            grows: true,
        });
    };
    (@size header $items:ident $ours:ident $c:ident) => {
        $items.push(Item {
            c: format!("sizeof(struct {})", stringify!($c)),
            ours: size_of::<ffi::$ours>() as u64,
            theirs: None,
            grows: false,
        });
    };
    (@field header $items:ident $ours:ident $c:ident $field:ident []) => {
        $items.push(Item {
            c: format!("offsetof(struct {}, {})", stringify!($c), stringify!($field)),
            ours: offset_of!(ffi::$ours, $field) as u64,
            theirs: None,
            grows: false,
        });
    };
    (@field $kind:ident $items:ident $ours:ident $c:ident $field:ident []) => {
        structures!(@both $items $ours $c $field [$field] [$field]);
    };
    (@field $kind:ident $items:ident $ours:ident $c:ident $field:ident [$($path:ident).+]) => {
        structures!(@both $items $ours $c $field [$($path).+] [$($path).+]);
    };
    (@field $kind:ident $items:ident $ours:ident $c:ident $field:ident
        [$($path:ident).+ | $($sys:ident).+]) => {
        structures!(@both $items $ours $c $field [$($path).+] [$($sys).+]);
    };
    (@both $items:ident $ours:ident $c:ident $field:ident [$($path:ident).+] [$($sys:ident).+]) => {
        $items.push(Item {
            c: format!("offsetof(struct {}, {})", stringify!($c), stringify!($($path).+)),
            ours: offset_of!(ffi::$ours, $field) as u64,
            theirs: Some(offset_of!(ibverbs_sys::$c, $($sys).+) as u64),
            grows: false,
        });
    };
}

/// What the library hands out.
fn objects() -> Vec<Item> {
    structures! {
        prefix Device: ibv_device {
            ops = _ops, node_type, transport_type,
        }
        whole ContextOps: ibv_context_ops {
            before_poll_cq = _compat_query_device, poll_cq, req_notify_cq,
            before_post_send = _compat_cq_event, post_send, post_recv,
            after_post_recv = _compat_create_ah,
        }
        prefix Context: ibv_context {
            device, ops, cmd_fd, async_fd,
        }
        whole Pd: ibv_pd {
            context, handle,
        }
        whole Mr: ibv_mr {
            context, pd, addr, length, handle, lkey, rkey,
        }
        prefix CompChannel: ibv_comp_channel {
            context, fd,
        }
        prefix Cq: ibv_cq {
            context, channel, cq_context, handle, cqe,
        }
        prefix Qp: ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type,
        }
        whole DeviceAttr: ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
            hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe,
            max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
            max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp,
            max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah,
            max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys,
            local_ca_ack_delay, phys_port_cnt,
        }
        grows PortAttr: ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
            port_cap_flags2,
        }
        whole AsyncEvent: ibv_async_event {
            element, event_type,
        }
    }
}

/// What we hand to it.
fn work() -> Vec<Item> {
    structures! {
        whole QpCap: ibv_qp_cap {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
        }
        whole QpInitAttr: ibv_qp_init_attr {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
        }
        whole GlobalRoute: ibv_global_route {
            dgid, flow_label, sgid_index, hop_limit, traffic_class,
        }
        whole AhAttr: ibv_ah_attr {
            grh, dlid, sl, src_path_bits, static_rate, is_global, port_num,
        }
        whole QpAttr: ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit,
        }
        whole Sge: ibv_sge {
            addr, length, lkey,
        }
        whole SendWr: ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags,
            imm_data = imm_data | __bindgen_anon_1.imm_data, remote_addr = wr.rdma.remote_addr,
            rkey = wr.rdma.rkey, remote_srqn = qp_type.xrc.remote_srqn,
            bind_mw = bind_mw | __bindgen_anon_2.bind_mw,
        }
        whole RecvWr: ibv_recv_wr {
            wr_id, next, sg_list, num_sge,
        }
        header Wc: ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits,
        }
    }
}

macro_rules! numbers {
    ($($name:ident = $theirs:expr,)*) => {
        BTreeMap::from([$((stringify!($name), $theirs as u64),)*])
    };
}

/// Numbers of `ibverbs-sys` that we hand to the library.
fn numbers_in() -> BTreeMap<&'static str, u64> {
    use ibverbs_sys::*;
    numbers! {
        IBV_PORT_ACTIVE = ibv_port_state::IBV_PORT_ACTIVE,
        IBV_LINK_LAYER_UNSPECIFIED = IBV_LINK_LAYER_UNSPECIFIED,
        IBV_LINK_LAYER_INFINIBAND = IBV_LINK_LAYER_INFINIBAND,
        IBV_LINK_LAYER_ETHERNET = IBV_LINK_LAYER_ETHERNET,
        IBV_MTU_256 = IBV_MTU_256,
        IBV_MTU_4096 = IBV_MTU_4096,
        IBV_GID_TYPE_IB = IBV_GID_TYPE_IB,
        IBV_GID_TYPE_ROCE_V1 = IBV_GID_TYPE_ROCE_V1,
        IBV_GID_TYPE_ROCE_V2 = IBV_GID_TYPE_ROCE_V2,
        IBV_ACCESS_LOCAL_WRITE = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
        IBV_ACCESS_REMOTE_WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        IBV_ACCESS_REMOTE_READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
        IBV_ACCESS_ON_DEMAND = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0,
        IBV_ACCESS_RELAXED_ORDERING = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0,
        IBV_QPT_RC = ibv_qp_type::IBV_QPT_RC,
        IBV_QPS_INIT = ibv_qp_state::IBV_QPS_INIT,
        IBV_QPS_RTR = ibv_qp_state::IBV_QPS_RTR,
        IBV_QPS_RTS = ibv_qp_state::IBV_QPS_RTS,
        IBV_QPS_ERR = ibv_qp_state::IBV_QPS_ERR,
        IBV_QP_STATE = ibv_qp_attr_mask::IBV_QP_STATE.0,
        IBV_QP_ACCESS_FLAGS = ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0,
        IBV_QP_PKEY_INDEX = ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0,
        IBV_QP_PORT = ibv_qp_attr_mask::IBV_QP_PORT.0,
        IBV_QP_AV = ibv_qp_attr_mask::IBV_QP_AV.0,
        IBV_QP_PATH_MTU = ibv_qp_attr_mask::IBV_QP_PATH_MTU.0,
        IBV_QP_TIMEOUT = ibv_qp_attr_mask::IBV_QP_TIMEOUT.0,
        IBV_QP_RETRY_CNT = ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0,
        IBV_QP_RNR_RETRY = ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0,
        IBV_QP_RQ_PSN = ibv_qp_attr_mask::IBV_QP_RQ_PSN.0,
        IBV_QP_MAX_QP_RD_ATOMIC = ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0,
        IBV_QP_MIN_RNR_TIMER = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0,
        IBV_QP_SQ_PSN = ibv_qp_attr_mask::IBV_QP_SQ_PSN.0,
        IBV_QP_MAX_DEST_RD_ATOMIC = ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0,
        IBV_QP_DEST_QPN = ibv_qp_attr_mask::IBV_QP_DEST_QPN.0,
        IBV_WR_RDMA_WRITE = ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_READ = ibv_wr_opcode::IBV_WR_RDMA_READ,
        IBV_SEND_SIGNALED = ibv_send_flags::IBV_SEND_SIGNALED.0,
        IBV_SEND_INLINE = ibv_send_flags::IBV_SEND_INLINE.0,
    }
}

/// Numbers of `ibverbs-sys` that the library hands to us.
fn numbers_out() -> BTreeMap<&'static str, u64> {
    use ibverbs_sys::*;
    numbers! {
        IBV_WC_RECV_RDMA_WITH_IMM = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
        IBV_WC_SUCCESS = ibv_wc_status::IBV_WC_SUCCESS,
        IBV_WC_LOC_LEN_ERR = ibv_wc_status::IBV_WC_LOC_LEN_ERR,
        IBV_WC_LOC_QP_OP_ERR = ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
        IBV_WC_LOC_EEC_OP_ERR = ibv_wc_status::IBV_WC_LOC_EEC_OP_ERR,
        IBV_WC_LOC_PROT_ERR = ibv_wc_status::IBV_WC_LOC_PROT_ERR,
        IBV_WC_WR_FLUSH_ERR = ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
        IBV_WC_MW_BIND_ERR = ibv_wc_status::IBV_WC_MW_BIND_ERR,
        IBV_WC_BAD_RESP_ERR = ibv_wc_status::IBV_WC_BAD_RESP_ERR,
        IBV_WC_LOC_ACCESS_ERR = ibv_wc_status::IBV_WC_LOC_ACCESS_ERR,
        IBV_WC_REM_INV_REQ_ERR = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
        IBV_WC_REM_ACCESS_ERR = ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
        IBV_WC_REM_OP_ERR = ibv_wc_status::IBV_WC_REM_OP_ERR,
        IBV_WC_RETRY_EXC_ERR = ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
        IBV_WC_RNR_RETRY_EXC_ERR = ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
        IBV_WC_LOC_RDD_VIOL_ERR = ibv_wc_status::IBV_WC_LOC_RDD_VIOL_ERR,
        IBV_WC_REM_INV_RD_REQ_ERR = ibv_wc_status::IBV_WC_REM_INV_RD_REQ_ERR,
        IBV_WC_REM_ABORT_ERR = ibv_wc_status::IBV_WC_REM_ABORT_ERR,
        IBV_WC_INV_EECN_ERR = ibv_wc_status::IBV_WC_INV_EECN_ERR,
        IBV_WC_INV_EEC_STATE_ERR = ibv_wc_status::IBV_WC_INV_EEC_STATE_ERR,
        IBV_WC_FATAL_ERR = ibv_wc_status::IBV_WC_FATAL_ERR,
        IBV_WC_RESP_TIMEOUT_ERR = ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR,
        IBV_WC_GENERAL_ERR = ibv_wc_status::IBV_WC_GENERAL_ERR,
        IBV_WC_TM_ERR = ibv_wc_status::IBV_WC_TM_ERR,
        IBV_WC_TM_RNDV_INCOMPLETE = ibv_wc_status::IBV_WC_TM_RNDV_INCOMPLETE,
        IBV_EVENT_CQ_ERR = IBV_EVENT_CQ_ERR,
        IBV_EVENT_QP_FATAL = IBV_EVENT_QP_FATAL,
        IBV_EVENT_QP_REQ_ERR = IBV_EVENT_QP_REQ_ERR,
        IBV_EVENT_QP_ACCESS_ERR = IBV_EVENT_QP_ACCESS_ERR,
        IBV_EVENT_DEVICE_FATAL = IBV_EVENT_DEVICE_FATAL,
        IBV_EVENT_PORT_ACTIVE = IBV_EVENT_PORT_ACTIVE,
        IBV_EVENT_PORT_ERR = IBV_EVENT_PORT_ERR,
        IBV_EVENT_GID_CHANGE = IBV_EVENT_GID_CHANGE,
    }
}

/// Numbers that `ibverbs-sys` leaves out: they are macros, and compared with the header only.
const NUMBERS_OF_HEADER: &[&str] = &["IBV_QPF_GRH_REQUIRED"];

fn constants() -> Vec<Item> {
    let (numbers_in, numbers_out) = (numbers_in(), numbers_out());
    let declared = ffi::CONSTANTS.iter().map(|&(name, ours)| {
        let theirs = numbers_in.get(name).or(numbers_out.get(name)).copied();
        let compared = theirs.is_some() || NUMBERS_OF_HEADER.contains(&name);
        assert!(compared, "{name} is declared and not compared");
        Item { c: name.to_owned(), ours, theirs, grows: false }
    });
    declared.collect()
}

fn all() -> Vec<Item> {
    let mut items = objects();
    items.extend(work());
    items.extend(constants());
    // The one union.
    let theirs = Some(size_of::<ibverbs_sys::ibv_gid>() as u64);
    let (c, ours) = ("sizeof(union ibv_gid)".to_owned(), size_of::<ffi::Gid>() as u64);
    items.push(Item { c, ours, theirs, grows: false });
    assert!(items.len() > 250, "only {} things to compare", items.len());
    items
}

/// Everything that differs, one a line.
fn differences(items: &[Item], other: impl Fn(&Item) -> Option<u64>) -> Vec<String> {
    let differs = |item: &Item| {
        let (ours, theirs) = (item.ours, other(item)?);
        let fits = ours == theirs || item.grows && ours > theirs;
        (!fits).then(|| format!("{}: {ours} here, {theirs} there", item.c))
    };
    items.iter().filter_map(differs).collect()
}

#[test]
fn our_declarations_are_those_of_ibverbs_sys() {
    let items = all();
    let compared = items.iter().filter(|item| item.theirs.is_some()).count();
    assert!(compared + 20 > items.len(), "only {compared} of {} compared", items.len());
    assert_eq!(differences(&items, |item| item.theirs), Vec::<String>::new());
}

#[test]
fn our_declarations_are_those_of_the_installed_header() {
    let items = all();
    let lines: String = items
        .iter()
        .map(|item| format!("    printf(\"%llu\\n\", (unsigned long long)({}));\n", item.c))
        .collect();
    let source = format!(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         int main(void) {{\n{lines}    return 0;\n}}\n"
    );
    let folder = tempfile::tempdir().expect("folder");
    let (file, program) = (folder.path().join("abi.c"), folder.path().join("abi"));
    std::fs::write(&file, source).expect("writes");
    let built = Command::new("cc").arg(&file).arg("-o").arg(&program).output().expect("cc runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let told = Command::new(&program).output().expect("runs");
    let told = String::from_utf8(told.stdout).expect("numbers");
    let told: Vec<u64> = told.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(told.len(), items.len());
    let by_name: BTreeMap<&str, u64> = items.iter().map(|item| item.c.as_str()).zip(told).collect();
    assert_eq!(
        differences(&items, |item| by_name.get(item.c.as_str()).copied()),
        Vec::<String>::new()
    );
}

#[test]
fn a_difference_is_seen() {
    let items = [Item { c: "sizeof(x)".into(), ours: 1, theirs: Some(2), grows: true }];
    assert_eq!(differences(&items, |item| item.theirs), ["sizeof(x): 1 here, 2 there"]);
}
