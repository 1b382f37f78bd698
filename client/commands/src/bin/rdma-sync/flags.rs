//! The flags of `rdma-sync`, turned into options of the library. Only this file knows
//! the flags.

use crate::shared::connection::ConnectionFlags;
use crate::shared::exit::FlagError;
use crate::shared::output::OutputFlags;
use crate::shared::records::RecordFlags;
use clap::{ArgAction, ArgMatches, FromArgMatches, Parser};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use verbatim_client::model::delete_limit::DeleteLimit;
use verbatim_client::model::location::Location;
use verbatim_client::sync::SyncOptions;
use verbatim_client::sync::chosen::Chosen;
use verbatim_proto::{Filter, plan};

/// Make one folder equal to another, one of them on a server.
///
/// TARGET becomes equal to SOURCE, with or without a slash at its end: contents,
/// modes, times, links, hard links, holes, extended attributes, access control
/// lists, and owners where the receiving side is root. One side is remote:
/// HOST:/EXPORT/PATH or rdma://HOST[:PORT]/EXPORT/PATH. What differs in size or time
/// is copied; what is only at TARGET stays, unless --delete says otherwise.
///
/// Every file appears whole, durable and verified, or not at all. An interrupted
/// run loses nothing: run it again. Fifos, sockets and devices are named and
/// skipped. One run at a time may change a target.
///
/// Exit codes: 0 done, 1 some files failed, or --check found a difference, 2 bad
/// usage, 3 cannot connect or not let in, 4 a digest mismatch that survived retries,
/// or contents that --check found to differ, 130 interrupted.
#[derive(Parser)]
#[command(name = "rdma-sync", version, max_term_width = 100)]
#[command(override_usage = "rdma-sync [OPTIONS] SOURCE TARGET
       rdma-sync --wait STATUS [--wait-timeout S]")]
pub struct Flags {
    /// The folder that TARGET is to equal.
    #[arg(value_name = "SOURCE", required_unless_present = "wait")]
    source: Option<OsString>,

    /// The folder that is changed; made if it is missing.
    #[arg(value_name = "TARGET", required_unless_present = "wait")]
    target: Option<OsString>,

    /// Accept -a of rsync, which changes nothing: all of it is always kept.
    ///
    /// So are -r, -l, -p, -t, -g, -o, -D, -H, -A, -X and -S; but devices, fifos and sockets
    /// are named and skipped.
    #[arg(short, long, action = ArgAction::Count)]
    #[arg(short_aliases = ['r', 'l', 'p', 't', 'g', 'o', 'D', 'H', 'A', 'X', 'S'])]
    archive: u8,

    /// Delete what is not in the source.
    ///
    /// After everything else is done. An empty source, or one of which something cannot
    /// be read, deletes nothing. A file that is where a folder goes, or a folder where a
    /// file goes, is removed too; without this it is an error.
    #[arg(long)]
    delete: bool,

    /// Delete nothing if more than N entries, or P% of the target's, would go [default: 10%].
    ///
    /// A part is rounded up. Look at what would go with -n, and then give a number.
    #[arg(long, value_name = "N|P%", requires = "delete")]
    max_delete: Option<DeleteLimit>,

    /// Compare contents by their digests, not by size and time.
    ///
    /// Both sides hash all of their files.
    #[arg(short, long)]
    checksum: bool,

    /// Print what would be done, and why, and change nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Compare both trees by digest, print what differs, and change nothing.
    ///
    /// What is only at the target counts. A content that differs ends with exit code 4,
    /// any other difference with 1.
    #[arg(long, conflicts_with_all = ["delete", "dry_run"])]
    check: bool,

    /// Make the new tree visible at once, when all of it is there.
    ///
    /// It is built beside TARGET, in a folder .NAME.KEY.verbatim-part: what did not change
    /// is a reflink, or a hard link, to what TARGET has. Then both are exchanged, and the
    /// old one is removed. Who reads sees the old tree or the new one, and never some of
    /// each. If anything cannot be copied, or somebody else changes TARGET meanwhile, it
    /// stays as it was; the next run goes on with what is there, unless TARGET changed.
    /// Not for a mount point, a folder with one in it, an export itself, or a file system
    /// that cannot exchange two folders. With --watch all of the tree is linked anew for every
    /// change.
    #[arg(long, conflicts_with = "check")]
    atomic: bool,

    /// Keep the numbers of owners and groups, not their names.
    ///
    /// Without it, what belongs to a user or group of the source belongs to the one of
    /// the same name at TARGET, where owners are kept at all: the receiving side is root,
    /// and on a server the export says owner = "client". Names are those of /etc/passwd
    /// and /etc/group; one that is unknown on either side keeps its number, as root does,
    /// and as do the numbers in access control lists.
    #[arg(long)]
    numeric_ids: bool,

    /// Leave out what matches GLOB, on both sides; may be given many times.
    ///
    /// As in a .gitignore: a pattern without a slash is of a name at any depth, one with
    /// a slash is of a path from the root, where ** is any number of folders; a slash at
    /// the end means folders only. Of all --include and --exclude the last that matches
    /// decides. What is left out is not deleted either.
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<OsString>,

    /// Do not leave out what matches GLOB, though an --exclude before it does.
    ///
    /// What is in a folder that is left out is not looked at.
    #[arg(long, value_name = "GLOB")]
    include: Vec<OsString>,

    /// Look only at the paths that FILE lists, one a line, relative to SOURCE.
    ///
    /// A folder means all in it. One that is not in the source is an error.
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,

    /// Keep TARGET equal: follow every change of the source until this is ended.
    ///
    /// The server watches its folder, or this machine where the source is here, and what
    /// changed is copied at once; a file when its writer closes it, or has not written
    /// for 2 seconds. A server that restarts is waited for. Tells systemd when TARGET is
    /// equal for the first time (Type=notify). Not seen: stores through a shared mapping,
    /// and what another machine does to a network file system.
    #[arg(long, conflicts_with_all = ["dry_run", "check"])]
    pub watch: bool,

    /// Write how it is to FILE, as JSON, whenever that changes and every 3 seconds.
    ///
    /// It is replaced as a whole. Its "state" is starting, syncing, current, behind, lost
    /// or stopped.
    #[arg(long, value_name = "FILE", requires = "watch")]
    pub status_file: Option<PathBuf>,

    /// Wait until the rdma-sync --watch that writes STATUS has made its target current.
    ///
    /// For a job that needs the data. Nothing else is done; SOURCE and TARGET are not
    /// given. Ends with 0 when it is current, with 1 when --wait-timeout has passed.
    #[arg(long, value_name = "STATUS", conflicts_with_all = ["source", "target", "watch"])]
    pub wait: Option<PathBuf>,

    /// Wait for S seconds at most [default: 86400].
    #[arg(
        long,
        value_name = "S",
        requires = "wait",
        default_value_t = 86_400,
        hide_default_value = true
    )]
    pub wait_timeout: u64,

    #[command(flatten)]
    pub records: RecordFlags,

    #[command(flatten)]
    pub output: OutputFlags,

    #[command(flatten)]
    pub connection: ConnectionFlags,

    /// The patterns in the order they were given.
    #[arg(skip)]
    patterns: Vec<Vec<u8>>,
}

impl Flags {
    /// Parses the command line; prints errors and exits, as clap does.
    pub fn read() -> Self {
        let matches = verbatim_usage::matches::<Self>();
        let mut flags = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        flags.patterns = patterns_in_order(&matches);
        flags
    }

    /// Whether every change is printed.
    pub fn prints_changes(&self) -> bool {
        self.dry_run || self.check || self.output.verbose > 0
    }

    /// Whether the trees are only compared.
    pub fn is_check(&self) -> bool {
        self.check
    }

    /// Whether the run changes nothing.
    pub fn changes_nothing(&self) -> bool {
        self.check || self.dry_run
    }

    /// The options of the sync.
    pub fn options(&self) -> Result<SyncOptions, FlagError> {
        let usage = |cause: String| FlagError::usage(cause, None);
        if self.watch && self.records.metrics_file.is_some() {
            let hint = "--status-file says how a followed target is";
            let cause = "--metrics-file is written at the end, which --watch has not";
            return Err(FlagError::usage(cause, Some(hint.into())));
        }
        let place = |text: &Option<OsString>| {
            let text = text.clone().unwrap_or_default();
            Location::parse(&text).map_err(|e| usage(e.to_string()))
        };
        let filter = Filter::parse(self.patterns.clone())
            .map_err(|fault| usage(format!("--include, --exclude: {fault}")))?;
        let chosen = match &self.files_from {
            None => None,
            Some(path) => {
                let what = format!("--files-from {}", path.display());
                let text = std::fs::read(path).map_err(|e| usage(format!("{what}: {e}")))?;
                let chosen = Chosen::parse(&text).map_err(|e| usage(format!("{what}: {e}")))?;
                Some(Arc::new(chosen))
            }
        };
        // A comparison also reports entries that only the target has.
        let plan = plan::Options {
            delete: self.delete || self.check,
            checksum: self.checksum || self.check,
            ..plan::Options::default()
        };
        Ok(SyncOptions {
            source: place(&self.source)?,
            target: place(&self.target)?,
            plan,
            filter,
            chosen,
            limit: self.max_delete.unwrap_or_default(),
            dry_run: self.changes_nothing(),
            atomic: self.atomic,
            numeric_ids: self.numeric_ids,
            exact: false,
        })
    }
}

/// The patterns of --exclude and --include in the order given; an included one starts with `!`.
fn patterns_in_order(matches: &ArgMatches) -> Vec<Vec<u8>> {
    let of = |flag: &str, mark: &[u8]| {
        let places = matches.indices_of(flag).into_iter().flatten();
        let texts = matches.get_many::<OsString>(flag).into_iter().flatten();
        let marked = |text: &OsString| match (mark, text.as_bytes()) {
            // A literal `!` at the start is escaped.
            (b"", bytes @ [b'!', ..]) => [b"\\", bytes].concat(),
            (mark, bytes) => [mark, bytes].concat(),
        };
        places.zip(texts.map(marked)).collect::<Vec<_>>()
    };
    let mut all = of("exclude", b"");
    all.extend(of("include", b"!"));
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, text)| text).collect()
}
