//! The flags of `rdma-cp`, turned into options of the library. Only this file knows the
//! flags.

use crate::shared::connection::ConnectionFlags;
use crate::shared::exit::FlagError;
use crate::shared::output::OutputFlags;
use crate::shared::records::RecordFlags;
use clap::Parser;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use verbatim_client::model::copy_policy;
use verbatim_client::model::copy_policy::{CopyPolicy, Replace};
use verbatim_client::model::location::{Location, Remote};
use verbatim_client::model::size::{parse_bytes, show_bytes};
use verbatim_client::{CopyOptions, SessionOptions};
use verbatim_proto::Excludes;
use verbatim_proto::units::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, is_chunk_size};

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
/// What goes through a pipe is verified like any file, and no later run can go on
/// with it; a copy to standard output whose server restarts goes on by itself,
/// unless the file changed, or was not two seconds old.
///
/// Exit codes: 0 done, 1 some files failed, 2 bad usage, 3 cannot connect or not
/// let in, 4 a digest mismatch that survived retries or that --verify found, 130
/// interrupted.
#[derive(Parser)]
#[command(name = "rdma-cp", version, max_term_width = 100)]
#[command(override_usage = "rdma-cp [OPTIONS] SOURCE... TARGET
       rdma-cp [OPTIONS] --list HOST:/[PATH]
       rdma-cp --new-token FILE")]
pub struct Flags {
    /// Sources, then the target.
    #[arg(value_name = "SOURCE... TARGET", required_unless_present = "new_token")]
    paths: Vec<OsString>,

    /// Copy folders and what is in them.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,

    /// Copy folders, and keep what -p keeps: the same as -r -p.
    #[arg(short, long)]
    archive: bool,

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
    ///
    /// Also those that come while the copy is on its way: no file and no link replaces
    /// anything. On a server of an older release what came meanwhile is replaced.
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

    /// Move data in chunks of SIZE [default: 1M, over two queue pairs 2M].
    ///
    /// A power of two from 256K to 16M. Each stream holds a few chunks in memory, on
    /// both sides. Larger ones help where every operation is slow.
    #[arg(long, value_name = "SIZE", value_parser = chunk_size)]
    chunk_size: Option<u32>,

    /// Print the BLAKE3 digest of every file, as b3sum does.
    #[arg(long)]
    pub digest: bool,

    /// Make a key: write its token to the new FILE, print the line that lets it in.
    ///
    /// The line goes into authorized_keys on the server, the file to --token-file here.
    #[arg(long, value_name = "FILE", conflicts_with = "paths")]
    new_token: Option<PathBuf>,

    #[command(flatten)]
    pub records: RecordFlags,

    #[command(flatten)]
    pub output: OutputFlags,

    #[command(flatten)]
    pub connection: ConnectionFlags,
}

/// The task of the command.
pub enum Task {
    /// List a remote folder.
    List(Remote),
    /// Copy files.
    Copy(CopyOptions),
    /// Generate a key and write its token to this file.
    NewToken(PathBuf),
}

impl Flags {
    /// Whether standard output carries the data of a file.
    pub fn to_stdout(&self) -> bool {
        self.paths.len() > 1 && self.paths.last().is_some_and(|path| path == "-")
    }

    /// Parses the locations into the task.
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
            (Some(Location::Pipe), false) if self.output.json || self.digest => {
                Err(FlagError::usage(
                    "--json and --digest print where the file goes",
                    Some("leave them out: the digest is told on standard error".into()),
                ))
            }
            (Some(target), false) => {
                let (recursive, policy) = (self.recursive || self.archive, self.policy()?);
                Ok(Task::Copy(CopyOptions { sources: places, target, recursive, policy }))
            }
            _ => Err(FlagError::usage(
                "a target is missing",
                Some("rdma-cp SOURCE... TARGET".into()),
            )),
        }
    }

    fn policy(&self) -> Result<CopyPolicy, FlagError> {
        let patterns = self.exclude.iter().map(|text| text.as_bytes().to_vec()).collect();
        let exclude = Excludes::parse(patterns)
            .map_err(|fault| FlagError::usage(format!("--exclude: {fault}"), None))?;
        let task = match (self.dry_run, self.verify) {
            (true, _) => copy_policy::Task::DryRun,
            (_, true) => copy_policy::Task::Verify,
            _ => copy_policy::Task::Copy,
        };
        let replace = match (self.no_clobber, self.update) {
            (true, _) => Replace::Never,
            (_, true) => Replace::Older,
            _ => Replace::Always,
        };
        let (follow, force) = (self.dereference, self.force);
        Ok(CopyPolicy { task, replace, exclude, follow, force, ..CopyPolicy::default() })
    }

    /// The options of a session with this server.
    pub fn session(&self, remote: &Remote) -> Result<SessionOptions, FlagError> {
        self.connection.session(remote, self.chunk_size, self.preserve || self.archive)
    }
}

fn chunk_size(text: &str) -> Result<u32, String> {
    let fits = |bytes: u64| u32::try_from(bytes).ok().filter(|&bytes| is_chunk_size(bytes));
    let (least, most) = (u64::from(CHUNK_BYTES_MIN), u64::from(CHUNK_BYTES_MAX));
    fits(parse_bytes(text)?).ok_or_else(|| {
        format!("it must be a power of two from {} to {}", show_bytes(least), show_bytes(most))
    })
}
