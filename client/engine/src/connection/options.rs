//! How a session is made: whom it connects to, over how many links, and what is kept of metadata.
//! Values alone; the commands fill them in.

use crate::connection::transport::CarrierOptions;
use crate::local_io::trace::Trace;
use std::sync::Arc;
use std::time::Duration;
use verbatim_control::ConnectOptions;
use verbatim_fabric::sim::SimNet;

/// How to make a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Whom to connect to, and as whom.
    pub connect: ConnectOptions,
    /// Links, and threads that move data.
    pub streams: u16,
    /// After how long without an answer the peer is given up.
    pub timeout: Duration,
    /// What data moves over.
    pub carrier: CarrierOptions,
    /// Whether chunks over a device may be of another size than `connect.chunk_bytes`.
    pub chunk_by_carrier: bool,
    /// Whether modes, times, attributes and owners are kept.
    pub preserve: bool,
    /// How many bytes of data may go in a second; none for all there is.
    pub bytes_per_second: Option<u64>,
    /// A simulated network to make links on, for tests.
    pub sim: Option<SimNet>,
    /// Where the timeline of chunks is written.
    pub trace: Option<Arc<Trace>>,
}
