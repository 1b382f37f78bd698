//! The flags of `rdma-doctor`, turned into the options of a report and of a server
//! probe. Only this file parses them.

use crate::shared::connection::ConnectionFlags;
use crate::shared::exit::FlagError;
use crate::shared::output::OutputFlags;
use clap::Parser;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use verbatim_client::model::location::{Location, PORT_DEFAULT, Remote};
use verbatim_fabric::ports::Wish;

/// The default address of a server's status.
pub const STATUS_DEFAULT: &str = "127.0.0.1:9469";

/// Say what keeps RDMA from working, or from being quick, and what mends it.
///
/// Without HOST: the devices, ports, addresses and limits of this machine. Each
/// finding says what is, what should be, why it matters, and the command or file
/// that mends it. With HOST (also HOST:PORT, or rdma://HOST:PORT): the way there as
/// well, and each transport to that server for real, with its latency and what it
/// carries. Nothing is changed, here or there.
///
/// Exit codes: 0 all well, 1 something limits speed, 2 RDMA cannot work or bad usage,
/// 3 the server's status cannot be had (--server-status), or what was asked for cannot
/// be written.
#[derive(Parser)]
#[command(name = "rdma-doctor", version, max_term_width = 100,
    // The probe decides on links and rates itself.
    mut_arg("streams", |arg| arg.hide(true)), mut_arg("bwlimit", |arg| arg.hide(true)),
    mut_arg("json", |arg| arg.help("Print the report as one JSON object").long_help(None)))]
pub struct Flags {
    /// The server to try, where rdma-serve listens.
    ///
    /// HOST:/EXPORT tries it as copies of that export would go: one whose data moves
    /// encrypted only takes no RDMA, and others do.
    #[arg(value_name = "HOST")]
    host: Option<OsString>,

    /// Print the fixes as a shell script, to read and then run.
    #[arg(long, conflicts_with_all = ["env", "server_status"])]
    pub fix_script: bool,

    /// Print exports for NCCL that make it use what would be used here.
    ///
    /// For eval: NCCL_IB_HCA and NCCL_IB_GID_INDEX of the port and address that the
    /// commands of Verbatim choose, towards HOST where one is given.
    #[arg(long, conflicts_with = "server_status")]
    pub env: bool,

    /// Write findings and port counters to FILE, for node_exporter's textfile collector.
    ///
    /// For nodes that run no server: one that does has the counters in its metrics and the
    /// findings in its status. The file is replaced as a whole. Run it from a timer.
    #[arg(long, value_name = "FILE", conflicts_with = "server_status")]
    pub prom: Option<PathBuf>,

    /// Print the status of a server instead [default HOST: 127.0.0.1:9469].
    ///
    /// HOST, or HOST:PORT of its metrics. Who is in, what moves, which devices are ill,
    /// what went wrong lately. With --json as the server tells it.
    #[arg(long, value_name = "HOST", num_args = 0..=1, default_missing_value = STATUS_DEFAULT,
          conflicts_with = "host")]
    pub server_status: Option<String>,

    /// Look at this folder as an export too; may be given many times.
    ///
    /// Its free space and file system, and whether the kernel lets its files be
    /// registered as they are.
    #[arg(long, value_name = "DIR")]
    export: Vec<PathBuf>,

    /// Measure how quick the disk of DIR takes data too, with HOST.
    ///
    /// 64 MiB are written to a file without a name, and gone with it.
    #[arg(long, value_name = "DIR", requires = "host")]
    pub disk: Option<PathBuf>,

    /// Watch the counters of ports for S seconds [default: 1].
    #[arg(long, value_name = "S", default_value_t = 1.0, hide_default_value = true,
          value_parser = seconds)]
    pub sample: f64,

    /// Look at a recorded machine: a folder with its sys, proc, dev and etc.
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub root: PathBuf,

    #[command(flatten)]
    pub output: OutputFlags,

    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl Flags {
    /// The device, port and address that the user names, with hints from the environment.
    pub fn wish(&self) -> Wish {
        self.connection.transport.wish()
    }

    /// Folders to check as exports, by their absolute paths.
    pub fn exports(&self) -> Vec<PathBuf> {
        let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        self.export.iter().map(whole).collect()
    }

    /// How long port counters are sampled.
    pub fn pause(&self) -> Duration {
        Duration::from_secs_f64(self.sample)
    }

    /// The server to probe.
    pub fn remote(&self) -> Result<Option<Remote>, FlagError> {
        let Some(text) = &self.host else { return Ok(None) };
        let usage = |cause: String| FlagError::usage(cause, Some("give HOST or HOST:PORT".into()));
        let plain = text.to_str().ok_or_else(|| usage("HOST is not text".into()))?;
        // HOST, HOST:PORT and [V6]:PORT are not locations yet.
        let named = match plain.rsplit_once(':') {
            _ if plain.starts_with("rdma://") || plain.contains('/') => plain.to_owned(),
            Some((host, port)) if port.parse::<u16>().is_ok() && !host.contains(':') => {
                format!("rdma://{host}:{port}/")
            }
            Some((host, port)) if host.ends_with(']') => format!("rdma://{host}:{port}/"),
            Some(_) if !plain.starts_with('[') => format!("rdma://[{plain}]:{PORT_DEFAULT}/"),
            _ => format!("rdma://{plain}/"),
        };
        match Location::parse(named.as_ref()).map_err(|error| usage(error.to_string()))? {
            Location::Remote(remote) => Ok(Some(remote)),
            Location::Local(_) | Location::Pipe => Err(usage(format!("{plain} is no server"))),
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().map_err(|error| error.to_string())?;
    match (0.0..=60.0).contains(&number) {
        true => Ok(number),
        false => Err("it must be from 0 to 60".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_parsed_from_all_usual_notations() {
        let remote = |host: &str| {
            let flags = Flags::try_parse_from(["rdma-doctor", host]).expect("flags");
            flags.remote().ok().flatten().map(|remote| (remote.host, remote.port))
        };
        let of = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(remote("node7"), of("node7", 20490));
        assert_eq!(remote("node7:99"), of("node7", 99));
        assert_eq!(remote("10.0.0.1"), of("10.0.0.1", 20490));
        assert_eq!(remote("rdma://node7:99/x"), of("node7", 99));
        assert_eq!(remote("node7:/data"), of("node7", 20490));
        assert_eq!(remote("[fe80::1]:99"), of("fe80::1", 99));
        assert_eq!(remote("fe80::1"), of("fe80::1", 20490));
        assert_eq!(remote("./file"), None);
    }
}
