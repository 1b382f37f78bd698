//! The flags of `rdma-serve` about RDMA. They are laid over the configuration, which
//! has more keys and checks them all.

use clap::Args;
use verbatim_server::config::Rdma;

/// What of `[rdma]` is set most.
#[derive(Args)]
#[command(next_help_heading = "RDMA")]
pub struct RdmaFlags {
    /// Move all data over TCP.
    #[arg(long, conflicts_with_all = ["device", "port", "gid_index", "qps", "traffic_class"])]
    no_rdma: bool,

    /// Use this RDMA device (rdma link lists them).
    ///
    /// Without it: the one whose address the client connected to, then those that
    /// PCIDEVICE_* or NCCL_IB_HCA name, then the fastest.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Use this port of the device, counted from 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=255))]
    port: Option<u32>,

    /// Use this entry of the port's GID table (ibv_devinfo -v shows it).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=255))]
    gid_index: Option<i32>,

    /// Give one client at most N queue pairs [default: 16].
    #[arg(long, value_name = "N")]
    qps: Option<u32>,

    /// Mark RDMA packets with this traffic class, from 0 to 255 [default: 0].
    #[arg(long, value_name = "N")]
    traffic_class: Option<u32>,
}

impl RdmaFlags {
    /// Lays the flags over the configuration.
    pub fn lay_over(&self, rdma: &mut Rdma) {
        rdma.enable &= !self.no_rdma;
        rdma.device = self.device.clone().unwrap_or(std::mem::take(&mut rdma.device));
        rdma.port = self.port.unwrap_or(rdma.port);
        rdma.gid_index = self.gid_index.unwrap_or(rdma.gid_index);
        rdma.qps = self.qps.unwrap_or(rdma.qps);
        rdma.traffic_class = self.traffic_class.unwrap_or(rdma.traffic_class);
    }
}
