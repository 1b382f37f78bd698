//! The flags of `rdma-cp`, and the one place where they become options. Nobody
//! behind this file sees a flag.

use crate::carrier::CarrierFlags;
use crate::show::Exit;
use clap::Parser;
use clap::builder::PossibleValuesParser;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use verbatim_client::location::{Location, Remote};
use verbatim_client::pace::fit;
use verbatim_client::rules::{self, Replace, Rules};
use verbatim_client::size::{parse_bytes, show_bytes};
use verbatim_client::{CopyOptions, SessionOptions};
use verbatim_control::{ClientSettings, ConnectOptions, Fingerprint};
use verbatim_proto::Excludes;
use verbatim_proto::units::{
    CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, LINKS_MAX, is_chunk_size,
};
use verbatim_telemetry::Format;

/// Copy files to and from rdma-serve, verified chunk by chunk.
///
/// One side is remote: HOST:/EXPORT/PATH or rdma://HOST[:PORT]/EXPORT/PATH, IPv6
/// addresses in brackets. A file appears under its name whole, durable and
/// verified, or not at all. Targets follow the rules of cp. A remote source may
/// have wildcards (*, ?, [a-z]): quote them, so that the shell leaves them alone.
///
/// Fifos, sockets and devices in a tree are named, skipped, and no failure.
///
/// A single - as the source is standard input, as the target standard output:
/// tar c . | rdma-cp - HOST:/EXPORT/x.tar, rdma-cp HOST:/EXPORT/x.tar - | tar x.
/// What goes through a pipe is verified like any file, and cannot be resumed.
///
/// Exit codes: 0 done, 1 some files failed, 2 bad usage, 3 cannot connect or not
/// let in, 4 a digest mismatch that survived retries or that --verify found, 130
/// interrupted.
#[derive(Parser)]
#[command(name = "rdma-cp", version, max_term_width = 100)]
pub struct Flags {
    /// Sources, then the target.
    #[arg(value_name = "SOURCE... TARGET", required_unless_present = "new_token")]
    paths: Vec<OsString>,

    /// Copy folders and what is in them.
    #[arg(short, long)]
    pub recursive: bool,

    /// Keep modes, times, extended attributes, access control lists and owners.
    ///
    /// Without it a copy has the permission bits of its source, as the umask allows,
    /// and the time of now. Owners are kept where the receiving side is root: this
    /// command, or a server whose export says owner = "client". A server drops setuid
    /// bits and security attributes unless its export allows them; what is not kept is
    /// counted at the end.
    #[arg(short, long)]
    preserve: bool,

    /// Copy what links in a tree lead to, instead of the links.
    ///
    /// Links on the server are followed within their export; one that leads out of
    /// it, nowhere, or to a folder it is in is an error. Here they may lead anywhere.
    /// Links that are named as sources are always followed.
    #[arg(short = 'L', long)]
    dereference: bool,

    /// Leave files alone that are there.
    #[arg(short, long, conflicts_with = "force")]
    no_clobber: bool,

    /// Leave files alone that are as new as the source, or newer.
    ///
    /// By the time of last change, as each machine has it: size and content are not
    /// compared. A target that a copy without times made is as new as that copy; so
    /// what is copied again is what changed since. Clocks that disagree show.
    #[arg(short, long)]
    update: bool,

    /// Remove a file that is where a folder must go.
    ///
    /// Files are always replaced, those you may not write to as well: the new one
    /// takes the name when it is whole. A folder is never removed for a file.
    #[arg(short, long)]
    force: bool,

    /// Leave out what matches GLOB; may be given many times.
    ///
    /// A pattern without a slash is of a name at any depth, the sources' own names
    /// included; one with a slash is of a path from the root of each tree, where **
    /// is any number of folders. A slash at the end means folders only. A folder
    /// that is left out is not walked, on the server neither.
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<OsString>,

    /// Print what would be copied, and create nothing on either side.
    ///
    /// One line for each file, link and folder: SOURCE -> TARGET. Rights and free
    /// space are not tried.
    #[arg(long, conflicts_with = "verify")]
    dry_run: bool,

    /// Compare sources and targets by their digests, and write nothing.
    ///
    /// The server hashes its side and sends digests, no data. A file that differs
    /// ends with exit code 4, one that is missing with 1. What is only at the target
    /// is not looked for.
    #[arg(long, conflicts_with_all = ["no_clobber", "update", "force"])]
    verify: bool,

    /// Copy standard input to TARGET; the same as - for the source.
    ///
    /// The end of the input ends the file: a producer that dies looks like one that is
    /// done, so check its exit code too (set -o pipefail).
    #[arg(long)]
    stdin: bool,

    /// List a remote folder, or with HOST:/ the exports, instead of copying.
    ///
    /// With -r, everything below it.
    #[arg(long)]
    list: bool,

    /// Move data over N connections at a time [default: 4].
    ///
    /// Chunks of one file and different files alike are spread over them; each has
    /// a thread that verifies what it carries.
    #[arg(short = 'j', long, value_name = "N", default_value_t = 4, hide_default_value = true,
          value_parser = clap::value_parser!(u16).range(1..=LINKS_MAX as i64))]
    streams: u16,

    /// Move data in chunks of SIZE [default: 1M].
    ///
    /// A power of two from 256K to 16M. Each stream holds a few chunks in memory, on
    /// both sides. Larger ones help where every operation is slow.
    #[arg(long, value_name = "SIZE", value_parser = chunk_size)]
    chunk_size: Option<u32>,

    /// Move at most RATE bytes a second, over all streams.
    ///
    /// With K, M or G for powers of 1,024: 50M is 50 MiB/s. A rate that is low for
    /// --timeout takes fewer streams and smaller chunks.
    #[arg(long, value_name = "RATE", value_parser = parse_bytes)]
    bwlimit: Option<u64>,

    /// Print the BLAKE3 digest of every file, as b3sum does.
    #[arg(long)]
    pub digest: bool,

    /// Print JSON lines: one per file, one per error, and a summary.
    #[arg(long)]
    pub json: bool,

    /// Print errors only.
    #[arg(short, long)]
    pub quiet: bool,

    /// Print every file; twice, also what happens inside.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Log for people (human), as JSON lines, or to the journal.
    ///
    /// Without it: JSON with --json, else human, or journald under systemd. Logs go to
    /// standard error; RUST_LOG, or -vv, says how much.
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(Format::NAMES))]
    log_format: Option<String>,

    /// Write the timeline of chunks to FILE, for chrome://tracing or ui.perfetto.dev.
    ///
    /// When each chunk was under way on which connection, and when it was hashed and
    /// stored: about 400 bytes a chunk.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Write what the copy did to FILE, for the textfile collector of node_exporter.
    ///
    /// Written at the end, atomically. Its name without .prom is the label run, so
    /// that several commands can each have a file in one folder.
    #[arg(long, value_name = "FILE")]
    pub metrics_file: Option<PathBuf>,

    /// Give the server up after S seconds without an answer [default: 60].
    ///
    /// A server that is lost while a copy runs is tried again, with growing pauses,
    /// until S seconds have passed without progress. One that cannot be reached at
    /// the start is not.
    #[arg(long, value_name = "S", default_value_t = 60, hide_default_value = true,
          value_parser = clap::value_parser!(u64).range(2..=86_400))]
    timeout: u64,

    /// Accept only the server with this fingerprint (SHA256:...).
    ///
    /// rdma-serve logs it when it starts.
    #[arg(long, value_name = "SHA256:...")]
    fingerprint: Option<Fingerprint>,

    /// Accept an unknown server now, and only the same one later.
    ///
    /// Without it, somebody at a terminal is shown the fingerprint and asked; a script
    /// is refused. Servers that were accepted are in known_servers in
    /// $XDG_CONFIG_HOME/verbatim. One that has changed is refused either way.
    #[arg(long)]
    trust_on_first_use: bool,

    /// Prove the key in FILE to the server.
    ///
    /// The file holds one token and may be readable by you alone. Without it the token
    /// is that of the file RDMA_TOKEN_FILE names, of RDMA_TOKEN, or of this server in
    /// $XDG_CONFIG_HOME/verbatim/client.toml, whichever is found first.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Make a key: write its token to the new FILE, print the line that lets it in.
    ///
    /// The line goes into authorized_keys on the server, the file to --token-file here.
    #[arg(long, value_name = "FILE", conflicts_with = "paths")]
    new_token: Option<PathBuf>,

    /// Look for the local server's key in DIR [default: $XDG_STATE_HOME/verbatim].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    #[command(flatten)]
    pub carrier: CarrierFlags,
}

/// What is to be done.
pub enum Task {
    /// List this.
    List(Remote),
    /// Copy this.
    Copy(CopyOptions),
    /// Make a key, and write its token here.
    NewToken(PathBuf),
}

/// What is wrong with the flags.
pub struct FlagError {
    pub cause: String,
    pub hint: Option<String>,
    pub exit: Exit,
}

impl FlagError {
    fn usage(cause: impl Into<String>, hint: Option<String>) -> Self {
        Self { cause: cause.into(), hint, exit: Exit::Usage }
    }
}

impl Flags {
    /// Whether standard output is for data alone.
    pub fn to_stdout(&self) -> bool {
        self.paths.len() > 1 && self.paths.last().is_some_and(|path| path == "-")
    }

    pub fn log_level(&self) -> &'static str {
        match self.verbose {
            0 | 1 => "warn",
            2 => "debug",
            _ => "trace",
        }
    }

    pub fn log_format(&self) -> Format {
        let given = self.log_format.as_deref().and_then(Format::parse);
        given.unwrap_or(if self.json { Format::Json } else { Format::Auto })
    }

    /// Reads the locations.
    pub fn task(&self) -> Result<Task, FlagError> {
        if let Some(path) = &self.new_token {
            return Ok(Task::NewToken(path.clone()));
        }
        let plain = |cause: String| FlagError::usage(cause, None);
        let places: Result<Vec<Location>, FlagError> = self
            .paths
            .iter()
            .map(|path| Location::parse(path).map_err(|e| plain(e.to_string())))
            .collect();
        let mut places = places?;
        if self.stdin {
            places.insert(0, Location::Pipe);
        }
        if self.list {
            return match (places.pop(), places.is_empty()) {
                (Some(Location::Remote(remote)), true) => Ok(Task::List(remote)),
                _ => Err(FlagError::usage(
                    "--list takes one remote folder",
                    Some("rdma-cp --list HOST:/ lists what a server exports".into()),
                )),
            };
        }
        match (places.pop(), places.is_empty()) {
            (Some(Location::Pipe), false) if self.json || self.digest => Err(FlagError::usage(
                "--json and --digest print where the file goes",
                Some("leave them out: the digest is told on standard error".into()),
            )),
            (Some(target), false) => {
                let (recursive, rules) = (self.recursive, self.rules()?);
                Ok(Task::Copy(CopyOptions { sources: places, target, recursive, rules }))
            }
            _ => Err(FlagError::usage(
                "a target is missing",
                Some("rdma-cp SOURCE... TARGET".into()),
            )),
        }
    }

    fn rules(&self) -> Result<Rules, FlagError> {
        let patterns = self.exclude.iter().map(|text| text.as_bytes().to_vec()).collect();
        let exclude = Excludes::parse(patterns)
            .map_err(|fault| FlagError::usage(format!("--exclude: {fault}"), None))?;
        let task = match (self.dry_run, self.verify) {
            (true, _) => rules::Task::DryRun,
            (_, true) => rules::Task::Verify,
            _ => rules::Task::Copy,
        };
        let replace = match (self.no_clobber, self.update) {
            (true, _) => Replace::Never,
            (_, true) => Replace::Older,
            _ => Replace::Always,
        };
        Ok(Rules { task, replace, exclude, follow: self.dereference, force: self.force })
    }

    /// Streams and chunk size, as the rate allows.
    fn sizes(&self) -> Result<(u16, u32), FlagError> {
        let chunk = self.chunk_size.unwrap_or(CHUNK_BYTES_DEFAULT);
        let Some(rate) = self.bwlimit else { return Ok((self.streams, chunk)) };
        let timeout = Duration::from_secs(self.timeout);
        fit(rate, timeout, self.streams, chunk, self.chunk_size.is_some()).map_err(|least| {
            let (rate, least) = (show_bytes(rate), least.div_ceil(1024));
            FlagError::usage(
                format!("--bwlimit {rate} is too low for a timeout of {} s", self.timeout),
                Some(format!("give at least {least}K, or a longer --timeout")),
            )
        })
    }

    /// Makes the options of a session with this server.
    pub fn session(&self, remote: &Remote) -> Result<SessionOptions, FlagError> {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let folder = |variable: &str, below: &str| {
            let set = std::env::var_os(variable).filter(|value| !value.is_empty());
            set.map_or_else(|| home.join(below), PathBuf::from).join("verbatim")
        };
        let config_dir = folder("XDG_CONFIG_HOME", ".config");
        let key = ClientSettings::load(&config_dir).and_then(|settings| {
            let flag = self.token_file.as_deref();
            settings.key(&remote.host, remote.port, flag, |name| std::env::var_os(name))
        });
        let key = key.map_err(|error| FlagError {
            cause: error.to_string(),
            hint: error.hint(),
            exit: Exit::Connect,
        })?;
        let timeout = Duration::from_secs(self.timeout);
        let (streams, chunk_bytes) = self.sizes()?;
        Ok(SessionOptions {
            connect: ConnectOptions {
                host: remote.host.clone(),
                port: remote.port,
                state_dir: self
                    .state
                    .clone()
                    .unwrap_or_else(|| folder("XDG_STATE_HOME", ".local/state")),
                config_dir,
                key,
                fingerprint: self.fingerprint,
                trust_on_first_use: self.trust_on_first_use,
                agent: concat!("rdma-cp ", env!("CARGO_PKG_VERSION")).into(),
                chunk_bytes,
                timeout,
            },
            streams,
            timeout,
            carrier: self.carrier.options(self.bwlimit.map(|_| streams)),
            bytes_per_second: self.bwlimit,
            preserve: self.preserve,
            sim: None,
            trace: None,
        })
    }
}

fn chunk_size(text: &str) -> Result<u32, String> {
    let fits = |bytes: u64| u32::try_from(bytes).ok().filter(|&bytes| is_chunk_size(bytes));
    let (least, most) = (u64::from(CHUNK_BYTES_MIN), u64::from(CHUNK_BYTES_MAX));
    fits(parse_bytes(text)?).ok_or_else(|| {
        format!("it must be a power of two from {} to {}", show_bytes(least), show_bytes(most))
    })
}
