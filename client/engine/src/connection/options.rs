//! The options of a session: server, links, timeout, metadata. Plain values; the commands fill them
//! in.

use crate::connection::transport::CarrierOptions;
use crate::local_io::trace::Trace;
use std::sync::Arc;
use std::time::Duration;
use verbatim_control::ConnectOptions;
use verbatim_fabric::sim::SimNet;

/// The options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The server, and the credentials for it.
    pub connect: ConnectOptions,
    /// The number of TCP links, and of the threads that move their data.
    pub streams: u16,
    /// How long a server may owe an answer before the session gives it up.
    pub timeout: Duration,
    /// The transport of the data.
    pub carrier: CarrierOptions,
    /// Whether RDMA links may use another chunk size than `connect.chunk_bytes`.
    pub chunk_by_carrier: bool,
    /// Whether modes, times, attributes and owners are preserved.
    pub preserve: bool,
    /// The rate limit in bytes per second; without one, data moves as fast as it can.
    pub bytes_per_second: Option<u64>,
    /// A simulated network for tests.
    pub sim: Option<SimNet>,
    /// The trace file of chunks, if the user asked for one.
    pub trace: Option<Arc<Trace>>,
}
