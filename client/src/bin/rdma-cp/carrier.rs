//! The flags that say what data moves over. Without any of them the best that
//! works is used, and the summary says which and why.

use clap::{Args, ValueEnum};
use verbatim_client::session::{CarrierOptions, Transport};
use verbatim_fabric::verbs::Wish;

/// What data moves over.
#[derive(Args)]
pub struct CarrierFlags {
    /// Move data over RDMA (verbs), TCP, or the best that works [default: auto].
    ///
    /// auto takes RDMA where both sides have a device that works, goes on over TCP
    /// when it fails, and says why. verbs fails instead. tcp never tries.
    #[arg(long, value_name = "KIND", default_value = "auto", hide_default_value = true)]
    transport: Kind,

    /// Use this RDMA device (rdma link lists them).
    ///
    /// Without it: the one whose address routes to the server.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Use this port of the device, counted from 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    port: Option<u8>,

    /// Use this entry of the port's GID table (ibv_devinfo -v shows it).
    ///
    /// Without it: RoCE v2 over v1, the address that routes to the server first.
    #[arg(long, value_name = "N")]
    gid_index: Option<u8>,

    /// Poll RDMA links without sleeping.
    ///
    /// Takes a core for each stream; for when microseconds matter more.
    #[arg(long)]
    busy_poll: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Auto,
    Verbs,
    Tcp,
}

impl CarrierFlags {
    /// The same as options.
    pub fn options(&self) -> CarrierOptions {
        let transport = match self.transport {
            Kind::Auto => Transport::Auto,
            Kind::Verbs => Transport::Verbs,
            Kind::Tcp => Transport::Tcp,
        };
        let (device, port, gid_index) = (self.device.clone(), self.port, self.gid_index);
        let wish = Wish { device, port, gid_index, ..Wish::default() };
        CarrierOptions { transport, wish, busy_poll: self.busy_poll }
    }
}
