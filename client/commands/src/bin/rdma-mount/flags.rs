//! The flags of `rdma-mount`, turned into options of the library. Only this file parses
//! them.

use crate::fstab;
use crate::shared::connection::ConnectionFlags;
use crate::shared::exit::FlagError;
use crate::shared::output::OutputFlags;
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use verbatim_client::model::location::{Location, Remote};
use verbatim_client::model::size::parse_bytes;
use verbatim_mount::{Fill, MountOptions};

/// The default size of the cache.
const CACHE_BYTES: &str = "16G";

/// The smallest useful cache: the blocks that a few readers fetch at once.
const CACHE_BYTES_MIN: u64 = 64 << 20;

/// Show a tree of a server as a folder of this machine.
///
/// All of it is there at once. What is read and not here yet is fetched, verified, and
/// kept on local disk; what is here is read at the speed of that disk. Read-only.
///
/// A reader keeps the version of a file that it opened, or gets ESTALE; a file that
/// changed is new when it is opened the next time. While the server is away, what is
/// here is served on, and what is not is an error after --timeout.
///
/// Goes into the background when the mount stands, and ends with umount MOUNTPOINT.
///
/// Exit codes: 0 done, 1 cannot mount, 2 bad usage, 3 cannot connect or not let in, 130
/// interrupted before it stood.
#[derive(Parser)]
#[command(name = "rdma-mount", version, max_term_width = 100)]
#[command(override_usage = "rdma-mount [OPTIONS] HOST:/EXPORT[/PATH] MOUNTPOINT
       rdma-mount --status MOUNTPOINT")]
pub struct Flags {
    /// What to mount: HOST:/EXPORT[/PATH], or HOST:/ for all exports.
    #[arg(value_name = "SOURCE", required_unless_present = "status")]
    source: Option<OsString>,

    /// The empty folder where it appears.
    #[arg(value_name = "MOUNTPOINT", required_unless_present = "status")]
    mountpoint: Option<PathBuf>,

    /// Print the status of a mount instead.
    ///
    /// The connection to the server, bytes fetched and cached, progress of the fill, and
    /// whether the kernel reads complete cached files by itself (FUSE passthrough), or why
    /// not. With --json in the daemon's own format.
    #[arg(long, value_name = "MOUNTPOINT", conflicts_with_all = ["source", "mountpoint"])]
    pub status: Option<PathBuf>,

    /// Bring all of it in the background: off, on, or a rate such as 100M [default: off].
    ///
    /// The rate is in bytes a second. Readers go first. It ends when all is here or the
    /// cache is full; it has nothing removed.
    #[arg(long, value_name = "RATE", value_parser = fill, num_args = 0..=1,
          require_equals = true, default_value = "off", default_missing_value = "on",
          hide_default_value = true)]
    fill: Fill,

    /// Become a plain folder when all is here.
    ///
    /// The tree is made beside the mount point, as rdma-sync would make it, of copies of
    /// what is in the cache; when nobody uses the mount it is unmounted, and the tree
    /// takes its place. Needs --fill, and room for all of it.
    #[arg(long, requires = "fill", conflicts_with = "offline")]
    detach_when_complete: bool,

    /// Keep what was fetched in DIR.
    ///
    /// Without it: a folder for each server and path in $XDG_CACHE_HOME/verbatim/mount,
    /// or below /var/cache for root. It lasts: the next mount finds what is there. Several
    /// mounts may use it at once. Everything in it is verified again before it is used.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Keep at most SIZE there; the least recently used goes first [default: 16G].
    #[arg(long, value_name = "SIZE", value_parser = cache_size, default_value = CACHE_BYTES,
          hide_default_value = true)]
    cache_size: u64,

    /// Show what is in the cache, without the server.
    ///
    /// Folders that were listed or gone into, files of which something is here. What is
    /// not here is an error at once.
    #[arg(long, conflicts_with = "fill")]
    offline: bool,

    /// Have changes seen as they happen.
    ///
    /// The server tells them, and the kernel forgets what it knows of them at once.
    /// Without it names and attributes are believed for a second.
    #[arg(long, conflicts_with = "offline")]
    watch: bool,

    /// Let other users of this machine in.
    ///
    /// Files have the owners, by number, and the permission bits of their source, and
    /// the kernel checks them for everybody. An ordinary user needs user_allow_other in
    /// /etc/fuse.conf.
    #[arg(long)]
    allow_other: bool,

    /// Have nothing executed that is there.
    #[arg(long)]
    noexec: bool,

    /// Take OPTIONS as mount(8) gives them, with commas between.
    ///
    /// Every long flag is one, without its dashes: -o allow_other,cache_size=64G. What
    /// mount tells every file system (ro, _netdev, nofail, x-...) is taken too. This is
    /// how mount -t fuse.rdma-mount, fstab and systemd call this command.
    #[arg(short = 'o', value_name = "OPTIONS")]
    mount_options: Vec<String>,

    /// Have all reads go through this process.
    ///
    /// Without it the kernel reads files that are all here straight from the cache,
    /// where it can and this process may (it needs to be root).
    #[arg(long)]
    no_passthrough: bool,

    /// Stay in the foreground, and end with a signal or with umount.
    #[arg(short, long)]
    pub foreground: bool,

    /// Write the log of the background process to FILE.
    ///
    /// Without it there is none, but under systemd the journal has it.
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    pub log_file: Option<PathBuf>,

    /// Write the numbers of the mount to FILE, for the textfile collector of node_exporter.
    ///
    /// Every five seconds, and at the end, atomically. Its name without .prom is the
    /// label run.
    #[arg(long, value_name = "FILE")]
    pub metrics_file: Option<PathBuf>,

    /// Show the numbers of the mount at ADDR:PORT: /metrics, /healthz, /readyz.
    ///
    /// For Prometheus, over plain HTTP, to whoever reaches that address; off unless it
    /// is given. Ready is a mount whose server is there, or that needs none. /status is
    /// what --status --json prints.
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,

    /// Says that this is the background process.
    #[arg(long, hide = true)]
    pub background: bool,

    #[command(flatten)]
    pub output: OutputFlags,

    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl Flags {
    /// Parses the flags together with the options of -o. Exits on a syntax error, as clap does.
    pub fn read() -> Result<Self, (FlagError, bool)> {
        let flags = verbatim_usage::parse::<Self>();
        let options = fstab::to_flags(&flags.mount_options, &Self::command());
        let options = options.map_err(|error| (error, flags.output.json))?;
        let mut arguments = std::env::args_os();
        let name = arguments.next();
        Ok(Self::parse_from(
            name.into_iter().chain(options.into_iter().map(Into::into)).chain(arguments),
        ))
    }

    /// The options of the mount.
    pub fn options(&self) -> Result<MountOptions, FlagError> {
        let hint = || Some("rdma-mount HOST:/EXPORT MOUNTPOINT".to_owned());
        let missing = || FlagError::usage("SOURCE and MOUNTPOINT are missing", hint());
        let source = self.source.as_ref().ok_or_else(missing)?;
        let mountpoint = self.mountpoint.as_ref().ok_or_else(missing)?;
        let location = Location::parse(source);
        let location = location.map_err(|error| FlagError::usage(error.to_string(), hint()))?;
        let Location::Remote(remote) = location else {
            let text = format!("{} is not on a server", source.to_string_lossy());
            return Err(FlagError::usage(text, hint()));
        };
        if self.detach_when_complete && self.fill == Fill::Off {
            let cause = "--detach-when-complete needs --fill";
            return Err(FlagError::usage(cause, None));
        }
        // The background process changes its working directory.
        let absolute_path = |what: &str, path: &Path| {
            let absolute = std::path::absolute(path);
            absolute.map_err(|error| FlagError::usage(format!("{what}: {error}"), None))
        };
        let mountpoint = absolute_path("MOUNTPOINT", mountpoint)?;
        let cache = self.cache.clone().unwrap_or_else(|| default_cache(&remote));
        Ok(MountOptions {
            cache: absolute_path("--cache", &cache)?,
            remote,
            name: source.to_string_lossy().into_owned(),
            mountpoint,
            cache_bytes: self.cache_size,
            allow_other: self.allow_other,
            noexec: self.noexec,
            passthrough: !self.no_passthrough,
            fill: self.fill,
            detach: self.detach_when_complete,
            offline: self.offline,
            watch: self.watch,
        })
    }
}

/// The default cache of a source.
fn default_cache(remote: &Remote) -> PathBuf {
    let set = std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty());
    let base =
        set.map(PathBuf::from).unwrap_or_else(|| match rustix::process::geteuid().is_root() {
            true => PathBuf::from("/var/cache"),
            false => {
                let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
                home.join(".cache")
            }
        });
    let name = format!("{}/{}", remote.peer(), remote.path).replace(['/', ':'], "_");
    base.join("verbatim/mount").join(name)
}

fn fill(text: &str) -> Result<Fill, String> {
    match text {
        "off" => Ok(Fill::Off),
        "on" => Ok(Fill::On(None)),
        rate => match parse_bytes(rate)? {
            0 => Err("it must be off, on, or a rate above 0".into()),
            rate => Ok(Fill::On(Some(rate))),
        },
    }
}

fn cache_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes >= CACHE_BYTES_MIN => Ok(bytes),
        _ => Err("it must be at least 64M".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(arguments: &[&str]) -> Result<Flags, clap::Error> {
        Flags::try_parse_from([&["rdma-mount"], arguments].concat())
    }

    #[test]
    fn a_source_must_be_remote_and_the_cache_large_enough() {
        let options = |source: &str| flags(&[source, "/mnt"]).expect("flags").options();
        let found = options("node7:/data/a").ok().expect("is one");
        assert_eq!((found.remote.port, found.cache_bytes), (20490, 16 << 30));
        assert_eq!(found.remote.path.to_string(), "data/a");
        assert!(options("./data").is_err() && options("-").is_err());
        assert!(flags(&["h:/a", "/mnt", "--cache-size", "1M"]).is_err());
        assert!(flags(&["h:/a"]).is_err());
        let fill = |flag: &str| flags(&["h:/a", "/mnt", flag]).map(|flags| flags.fill).ok();
        assert_eq!(fill("--fill"), Some(Fill::On(None)));
        assert_eq!(fill("--fill=off"), Some(Fill::Off));
        assert_eq!(fill("--fill=2M"), Some(Fill::On(Some(2 << 20))));
        assert_eq!(fill("--fill=0"), None);
        assert!(
            flags(&["--status", "/mnt"]).is_ok() && flags(&["--status", "/m", "h:/a"]).is_err()
        );
    }
}
