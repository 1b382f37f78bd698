//! How a verbs link is to be: depths, sizes, timeouts, lanes. What a device cannot do is
//! lowered where the link is made, not here.

/// How a link is to be. The defaults are for chunks of a mebibyte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Operations in flight.
    pub depth_max: usize,
    /// Requests in flight: operations longer than a piece take several.
    pub requests_max: u32,
    /// Notifications of the peer that may be under way: as many as it has grants.
    pub receives: u32,
    /// Bytes of one request.
    pub piece_bytes: u32,
    /// Reads in flight that are asked for; both devices may lower it.
    pub reads_max: u8,
    /// Writes up to this long travel in the request itself.
    pub inline_bytes: u32,
    /// How long an answer may take: 4.096 microseconds times two to this, times the retries.
    /// 16 makes about 2 seconds in all.
    pub timeout_exponent: u8,
    /// The lane on InfiniBand, from 0 to 15; on RoCE the priority of frames in a VLAN.
    pub service_level: u8,
    /// The traffic class of packets that are routed: on RoCE the IP header's DSCP and ECN bits.
    pub traffic_class: u8,
    /// Which partition of the port, by its place in the table.
    pub pkey_index: u16,
    /// The largest packet in bytes, where the port would take larger ones.
    pub mtu_bytes_max: u32,
    /// Never sleep: poll for ever, at the price of a core.
    pub busy_poll: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            depth_max: 64,
            requests_max: 256,
            receives: 128,
            piece_bytes: 1 << 20,
            reads_max: 16,
            inline_bytes: 64,
            timeout_exponent: 16,
            service_level: 0,
            traffic_class: 0,
            pkey_index: 0,
            mtu_bytes_max: 4096,
            busy_poll: false,
        }
    }
}
