//! What a completion's status means to people: its cause and what to do. The
//! first failed request of a queue pair tells the cause; those behind it are
//! flushed and tell nothing.

use super::ffi;
use crate::error::FabricError;

/// A status explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its number in libibverbs.
    pub code: u32,
    /// What tools call it.
    pub name: &'static str,
    /// What it means here.
    pub cause: &'static str,
    /// What to do.
    pub hint: &'static str,
}

/// Explains a status; one from a newer library gets a general answer.
pub fn explain(code: u32) -> Status {
    let known = STATUSES.iter().find(|status| status.code == code);
    known.copied().unwrap_or(Status { code, ..UNKNOWN })
}

/// The error of a request that completed with this status.
pub(super) fn error_of(code: u32, vendor: u32, what: &str) -> FabricError {
    let status = explain(code);
    let vendor = if vendor == 0 { String::new() } else { format!(", vendor code {vendor:#x}") };
    let cause = format!("{} ({}{vendor})", status.cause, status.name);
    FabricError::device(what, cause, status.hint)
}

const fn status(code: u32, name: &'static str, cause: &'static str, hint: &'static str) -> Status {
    Status { code, name, cause, hint }
}

const REPORT: &str = "please report it, with the log of both sides";
const RECONNECT: &str = "run the command again; it goes on where it stopped";
const DATAGRAM: &str = "this transport is not used; update the driver";
const UNKNOWN: Status = status(u32::MAX, "unknown status", "the device failed", "see dmesg");

#[rustfmt::skip]
const STATUSES: &[Status] = &[
    status(ffi::IBV_WC_SUCCESS, "success", "no failure", "nothing to do"),
    status(ffi::IBV_WC_LOC_LEN_ERR, "local length error",
        "a message is longer than the port takes", REPORT),
    status(ffi::IBV_WC_LOC_QP_OP_ERR, "local QP operation error",
        "the queue pair cannot do this request", REPORT),
    status(ffi::IBV_WC_LOC_EEC_OP_ERR, "local EE context operation error",
        "an answer of a transport that was not asked for", DATAGRAM),
    status(ffi::IBV_WC_LOC_PROT_ERR, "local protection error",
        "the device may not use a local buffer",
        "an IOMMU in translated mode refuses it: boot with iommu=pt, or see dmesg"),
    status(ffi::IBV_WC_WR_FLUSH_ERR, "work request flushed",
        "the link failed before its turn", "the first error of the link tells why"),
    status(ffi::IBV_WC_MW_BIND_ERR, "memory window bind error",
        "a memory window was not bound", REPORT),
    status(ffi::IBV_WC_BAD_RESP_ERR, "bad response error",
        "the peer answered what no peer may answer",
        "check that both sides run the same version, and the cable"),
    status(ffi::IBV_WC_LOC_ACCESS_ERR, "local access error",
        "the peer wrote where it may not", "the link was ended; see the peer's log"),
    status(ffi::IBV_WC_REM_INV_REQ_ERR, "remote invalid request error",
        "the peer's device calls the request invalid",
        "the peer may offer fewer reads at a time, or no room for the message"),
    status(ffi::IBV_WC_REM_ACCESS_ERR, "remote access error",
        "the peer's device refuses the key or the range",
        "the server took the region back, or it is not this client's; run the command again"),
    status(ffi::IBV_WC_REM_OP_ERR, "remote operation error",
        "the peer's device could not do it", "see dmesg on the peer"),
    status(ffi::IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded",
        "the peer does not answer",
        "the peer is gone, or its GID, the MTU or a firewall (UDP 4791) is wrong: try ibv_rc_pingpong"),
    status(ffi::IBV_WC_RNR_RETRY_EXC_ERR, "RNR retry counter exceeded",
        "the peer posts no receives", "the peer is overloaded or hangs; see its log"),
    status(ffi::IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation error",
        "an answer of a transport that was not asked for", DATAGRAM),
    status(ffi::IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request",
        "an answer of a transport that was not asked for", DATAGRAM),
    status(ffi::IBV_WC_REM_ABORT_ERR, "remote aborted error",
        "the peer ended the operation", RECONNECT),
    status(ffi::IBV_WC_INV_EECN_ERR, "invalid EE context number",
        "an answer of a transport that was not asked for", DATAGRAM),
    status(ffi::IBV_WC_INV_EEC_STATE_ERR, "invalid EE context state",
        "an answer of a transport that was not asked for", DATAGRAM),
    status(ffi::IBV_WC_FATAL_ERR, "fatal error",
        "the device failed", "see dmesg; its driver may have to be loaded again"),
    status(ffi::IBV_WC_RESP_TIMEOUT_ERR, "response timeout error",
        "the peer takes too long", "the peer is overloaded or hangs; see its log"),
    status(ffi::IBV_WC_GENERAL_ERR, "general error",
        "the device gives no cause", "see dmesg"),
    status(ffi::IBV_WC_TM_ERR, "tag matching error",
        "tag matching, which is not used, failed", DATAGRAM),
    status(ffi::IBV_WC_TM_RNDV_INCOMPLETE, "tag matching incomplete",
        "tag matching, which is not used, failed", DATAGRAM),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_cause_and_a_hint() {
        for (at, status) in STATUSES.iter().enumerate() {
            assert_eq!(status.code, at as u32, "the table has no gap");
            assert!(!status.name.is_empty() && !status.cause.is_empty(), "{status:?}");
            assert!(!status.hint.is_empty(), "{status:?}");
        }
        assert_eq!(STATUSES.len() as u32, ffi::IBV_WC_TM_RNDV_INCOMPLETE + 1);
        assert_eq!(explain(99).name, "unknown status");
    }

    #[test]
    fn an_error_names_the_status_and_keeps_the_hint() {
        let error = error_of(ffi::IBV_WC_LOC_PROT_ERR, 0x51, "READ over verbs rxe0/1");
        let text = error.to_string();
        assert!(text.contains("READ over verbs rxe0/1: "), "{text}");
        assert!(text.contains("(local protection error, vendor code 0x51)"), "{text}");
        assert!(error.hint().expect("hint").contains("IOMMU"));
    }
}
