//! The flags of `rdma-cp`, and the one place where they become options. Nobody
//! behind this file sees a flag.

use clap::Parser;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use verbatim_client::location::{Location, Remote};
use verbatim_client::{CopyOptions, SessionOptions};
use verbatim_control::{ClientKey, ConnectOptions, Fingerprint};
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, LINKS_MAX};

/// Copy files to and from rdma-serve, verified chunk by chunk.
///
/// One side is remote: HOST:/EXPORT/PATH or rdma://HOST[:PORT]/EXPORT/PATH, IPv6
/// addresses in brackets. A file appears under its name whole, durable and
/// verified, or not at all. Targets follow the rules of cp.
///
/// Exit codes: 0 done, 1 some files failed, 2 bad usage, 3 cannot connect or not
/// let in, 4 a digest mismatch that survived retries, 130 interrupted.
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

    /// Give the server up after S seconds without an answer [default: 60].
    #[arg(long, value_name = "S", default_value_t = 60, hide_default_value = true,
          value_parser = clap::value_parser!(u64).range(2..=86_400))]
    timeout: u64,

    /// Accept only the server with this fingerprint (SHA256:...).
    ///
    /// rdma-serve logs it when it starts.
    #[arg(long, value_name = "SHA256:...")]
    fingerprint: Option<Fingerprint>,

    /// Accept an unknown server now, and only the same one later.
    #[arg(long)]
    trust_on_first_use: bool,

    /// Prove the key in FILE to the server.
    ///
    /// The file holds one token and may be readable by you alone.
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
}

impl Flags {
    pub fn log_level(&self) -> &'static str {
        match self.verbose {
            0 | 1 => "warn",
            2 => "debug",
            _ => "trace",
        }
    }

    /// Reads the locations.
    pub fn task(&self) -> Result<Task, FlagError> {
        if let Some(path) = &self.new_token {
            return Ok(Task::NewToken(path.clone()));
        }
        let plain = |cause: String| FlagError { cause, hint: None };
        let places: Result<Vec<Location>, FlagError> = self
            .paths
            .iter()
            .map(|path| Location::parse(path).map_err(|e| plain(e.to_string())))
            .collect();
        let mut places = places?;
        if self.list {
            return match (places.pop(), places.is_empty()) {
                (Some(Location::Remote(remote)), true) => Ok(Task::List(remote)),
                _ => Err(FlagError {
                    cause: "--list takes one remote folder".into(),
                    hint: Some("rdma-cp --list HOST:/ lists what a server exports".into()),
                }),
            };
        }
        match (places.pop(), places.is_empty()) {
            (Some(target), false) => {
                Ok(Task::Copy(CopyOptions { sources: places, target, recursive: self.recursive }))
            }
            _ => Err(FlagError {
                cause: "a target is missing".into(),
                hint: Some("rdma-cp SOURCE... TARGET".into()),
            }),
        }
    }

    /// Makes the options of a session with this server.
    pub fn session(&self, remote: &Remote) -> Result<SessionOptions, FlagError> {
        let key = match &self.token_file {
            None => None,
            Some(path) => Some(
                ClientKey::load(path)
                    .map_err(|error| FlagError { cause: error.to_string(), hint: error.hint() })?,
            ),
        };
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let folder = |variable: &str, below: &str| {
            let set = std::env::var_os(variable).filter(|value| !value.is_empty());
            set.map_or_else(|| home.join(below), PathBuf::from).join("verbatim")
        };
        let timeout = Duration::from_secs(self.timeout);
        Ok(SessionOptions {
            connect: ConnectOptions {
                host: remote.host.clone(),
                port: remote.port,
                state_dir: self
                    .state
                    .clone()
                    .unwrap_or_else(|| folder("XDG_STATE_HOME", ".local/state")),
                config_dir: folder("XDG_CONFIG_HOME", ".config"),
                key,
                fingerprint: self.fingerprint,
                trust_on_first_use: self.trust_on_first_use,
                agent: concat!("rdma-cp ", env!("CARGO_PKG_VERSION")).into(),
                chunk_bytes: CHUNK_BYTES_DEFAULT,
                timeout,
            },
            streams: self.streams,
            timeout,
            preserve: self.preserve,
            sim: None,
        })
    }
}

/// Who makes a key, as its line names it to whoever lets it in.
pub fn user_at_host() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => user.unwrap_or_else(|_| "client".into()),
        host => format!("{}@{host}", user.unwrap_or_else(|_| "client".into())),
    }
}
