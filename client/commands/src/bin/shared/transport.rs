//! The flags that choose the transport of data. Without them the best working one is
//! used, and the summary names it and the reason.

use clap::{Args, ValueEnum};
use verbatim_client::{CarrierOptions, Transport};
use verbatim_fabric::ports::{Hints, Wish};
use verbatim_proto::units::LINKS_MAX;

/// What data moves over.
#[derive(Args)]
#[command(next_help_heading = "RDMA")]
pub struct TransportFlags {
    /// Move data over RDMA (verbs), TCP, or the best that works [default: auto].
    ///
    /// auto takes RDMA where both sides have a device and a page read over it arrives,
    /// goes on over TCP when it fails, and says why. verbs fails instead. tcp never
    /// tries, and does not load the RDMA library.
    #[arg(long, value_name = "KIND", default_value = "auto", hide_default_value = true)]
    transport: TransportKind,

    /// Use this RDMA device (rdma link lists them).
    ///
    /// Without it: the one whose address routes to the server, then those that
    /// PCIDEVICE_* or NCCL_IB_HCA name, then the fastest.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Use this port of the device, counted from 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    port: Option<u8>,

    /// Use this entry of the port's GID table (ibv_devinfo -v shows it).
    ///
    /// Without it: the address that routes to the server, then NCCL_IB_GID_INDEX, then
    /// RoCE v2 over v1, IPv4 over IPv6.
    #[arg(long, value_name = "N")]
    gid_index: Option<u8>,

    /// Make N queue pairs when data moves over RDMA [default: as --streams, at most one a processor].
    ///
    /// From 1 to 64; the server may give fewer. Several share the work of one device,
    /// and more of them help where one alone cannot fill the wire.
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=LINKS_MAX as i64))]
    qps: Option<u16>,

    /// Mark RDMA packets with this traffic class, from 0 to 255 [default: 0].
    ///
    /// On RoCE it is the byte of the IP header that switches sort by: 4 times the DSCP,
    /// 106 for DSCP 26 with ECN. Ask who runs the network which class is lossless.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    traffic_class: u8,

    /// Poll RDMA links without sleeping.
    ///
    /// Takes a core for each queue pair, or all there are; for when microseconds matter more.
    #[arg(long)]
    busy_poll: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum TransportKind {
    Auto,
    Verbs,
    Tcp,
}

impl TransportFlags {
    /// Whether the user chose TCP, and so needs no reason for it.
    pub fn is_tcp(&self) -> bool {
        matches!(self.transport, TransportKind::Tcp)
    }

    /// The RDMA device, port and GID that the user wants.
    pub fn wish(&self) -> Wish {
        let (device, port, gid_index) = (self.device.clone(), self.port, self.gid_index);
        Wish { device, port, gid_index, hints: Hints::from_env(), ..Wish::default() }
    }

    /// The options of the transport. `qps` is the default number of queue pairs; `qps_max` is the
    /// limit that a rate allows.
    pub fn options(&self, qps: u16, qps_max: Option<u16>) -> CarrierOptions {
        let transport = match self.transport {
            TransportKind::Auto => Transport::Auto,
            TransportKind::Verbs => Transport::Verbs,
            TransportKind::Tcp => Transport::Tcp,
        };
        let qps = Some(self.qps.unwrap_or(qps).min(qps_max.unwrap_or(u16::MAX)));
        let (traffic_class, busy_poll) = (self.traffic_class, self.busy_poll);
        CarrierOptions { transport, wish: self.wish(), qps, traffic_class, busy_poll }
    }
}
