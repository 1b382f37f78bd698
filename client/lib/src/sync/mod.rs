//! `rdma-sync`: makes one tree equal to another, one of them on a server. This module has the
//! options, checks both ends before anything is written, and locks the target; a session does the
//! rest (`tree_sync`). Called by the commands and by tests; reports everything to an observer.

mod atomic;
pub mod follow;
pub mod follow_loop;
mod lock_keeper;
pub mod wait;

use crate::session::Session;
use crate::session::command_error::{CopyError, Running, Stop};
use crate::session::overlap::is_here;
use crate::session::retry;
use crate::session::work::Work;
use crate::tree_sync::spec::{AtomicTarget, Direction, Mirror};
use std::path::Path;
use std::sync::Arc;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::connection::options::SessionOptions;
use verbatim_engine::model::copy_policy::{CopyPolicy, Task};
use verbatim_engine::model::delete_limit::DeleteLimit;
use verbatim_engine::model::location::{Location, Remote};
use verbatim_engine::model::report::{Observer, Summary};
use verbatim_files::Folder;
use verbatim_files::hold::{Hold, NotHeld, above, describe_process, which};
pub use verbatim_proto::chosen;
use verbatim_proto::chosen::Chosen;
use verbatim_proto::mirror::About;
use verbatim_proto::{Code, Digest, Fault, Filter, Twin, WirePath, plan};

/// The options of a sync.
#[derive(Clone)]
pub struct SyncOptions {
    /// The source tree.
    pub source: Location,
    /// The target tree, which is changed.
    pub target: Location,
    /// What makes entries equal, and whether extraneous entries of the target are deleted.
    pub plan: plan::Options,
    /// Patterns to leave out on both sides.
    pub filter: Filter,
    /// The paths to compare, unless it is the whole tree (`--files-from`).
    pub chosen: Option<Arc<Chosen>>,
    /// The limit of deletions.
    pub limit: DeleteLimit,
    /// Whether changes are only reported.
    pub dry_run: bool,
    /// Whether the new tree replaces the target atomically (`--atomic`).
    pub atomic: bool,
    /// Whether owners keep their numeric ids, whatever names these have at the target.
    pub numeric_ids: bool,
    /// Whether times count as different that the target cannot tell apart. For a file that is known
    /// to have changed, such a small difference may be the only one.
    pub exact: bool,
}

/// Finds the server: one side, and only one, must be remote.
pub fn server_of(options: &SyncOptions) -> Result<&Remote, CopyError> {
    match (&options.source, &options.target) {
        (Location::Remote(remote), Location::Local(_))
        | (Location::Local(_), Location::Remote(remote)) => Ok(remote),
        (Location::Remote(_), Location::Remote(_)) => usage(
            "source and target are both remote",
            "run rdma-sync on one of the two, so that data crosses the network once",
        ),
        (Location::Local(_), Location::Local(_)) => usage(
            "neither source nor target is remote",
            "write the remote side as HOST:/EXPORT/PATH; rsync -a does it on one machine",
        ),
        _ => usage("a pipe is no tree", "rdma-cp copies standard input and to standard output"),
    }
}

fn usage<T>(cause: &str, hint: &str) -> Result<T, CopyError> {
    Err(CopyError::Usage { cause: cause.into(), hint: Some(hint.into()) })
}

/// Makes the target equal to the source. Returns a summary once the target was opened, even if
/// entries failed.
pub fn sync<'a>(
    options: &'a SyncOptions,
    session: SessionOptions,
    observer: &'a mut dyn Observer,
    stop: impl Future<Output = ()> + 'a,
) -> Running<'a, Summary> {
    sync_until(options, session, observer, Box::pin(stop))
}

/// Does the same, boxed: so this crate compiles the session, and not each program that mirrors.
fn sync_until<'a>(
    options: &'a SyncOptions,
    session: SessionOptions,
    observer: &'a mut dyn Observer,
    stop: Stop<'a>,
) -> Running<'a, Summary> {
    Box::pin(sync_once(options, session, observer, stop))
}

async fn sync_once(
    options: &SyncOptions,
    session: SessionOptions,
    observer: &mut dyn Observer,
    mut stop: Stop<'_>,
) -> Result<Summary, CopyError> {
    let (remote, session) = checked(options, session)?;
    let mut held = TargetHold::default();
    let make = async |first: &mut Session| prepare(options, &remote, first, &mut held).await;
    let begun = match retry::connect_and_prepare(&session, observer, &mut stop, make).await? {
        Ok(begun) => begun,
        Err(fault) => {
            let source = std::iter::once(options.source.to_string());
            return Ok(retry::report_not_started(source, &remote.peer(), fault, observer));
        }
    };
    let (first, reconnects) = (begun.session, begun.reconnects);
    let summary = run(options, begun.found, (first, session), &mut held, observer, stop).await;
    Ok(Summary { reconnects: summary.reconnects + reconnects, ..summary })
}

/// The lock on a target between the passes of a run.
#[derive(Default)]
struct TargetHold {
    /// The lock on a local target.
    local: Option<Hold>,
    /// The key by which the sessions of this run share the lock of the server.
    share: Option<Digest>,
}

/// Does one pass of a followed source, whose target may be locked already. Unlike `sync` it does
/// not reconnect before the copy begins: the caller retries.
async fn sync_held(
    options: &SyncOptions,
    session: SessionOptions,
    held: &mut TargetHold,
    observer: &mut dyn Observer,
    mut stop: Stop<'_>,
) -> Result<Summary, CopyError> {
    let (remote, session) = checked(options, session)?;
    let begin = async {
        let mut first = Session::connect(session.clone()).await?;
        let prepared = prepare(options, &remote, &mut first, held).await?;
        Ok::<_, CopyError>((first, prepared))
    };
    let (first, prepared) = tokio::select! {
        biased;
        () = &mut stop => {
            let broken = Some(Fault::new(Code::Interrupted, "interrupted"));
            return Ok(Summary { broken, ..Summary::default() });
        }
        begun = begin => begun?,
    };
    Ok(run(options, prepared, (first, session), held, observer, stop).await)
}

/// Checks the remote path, and completes the options of the session.
fn checked(
    options: &SyncOptions,
    session: SessionOptions,
) -> Result<(Remote, SessionOptions), CopyError> {
    let remote = server_of(options)?.clone();
    if remote.path.is_root() {
        return usage("the path names no export", "write HOST:/EXPORT or HOST:/EXPORT/PATH");
    }
    Ok((remote, SessionOptions { preserve: !options.dry_run, ..session }))
}

/// The mirror, and the lock if the target is local.
type Prepared = (Mirror, Option<Hold>);

async fn prepare(
    options: &SyncOptions,
    remote: &Remote,
    first: &mut Session,
    held: &mut TargetHold,
) -> Result<Prepared, CopyError> {
    let (mirror, hold) = match (&options.source, &options.target) {
        (_, Location::Local(target)) => {
            down(options, remote, target, first, held.local.take()).await?
        }
        (Location::Local(source), _) => {
            (up(options, source, remote, first, held.share).await?, None)
        }
        _ => return usage("a pipe is no tree", "rdma-cp copies standard input"),
    };
    if mirror.options.fold_case && mirror.options.delete {
        return usage(
            "the target takes names that differ only in case for one, so nothing can be deleted",
            "run it without --delete",
        );
    }
    Ok((mirror, hold))
}

async fn run(
    options: &SyncOptions,
    (mirror, hold): Prepared,
    (first, session): (Session, SessionOptions),
    held: &mut TargetHold,
    observer: &mut dyn Observer,
    stop: Stop<'_>,
) -> Summary {
    let task = if options.dry_run { Task::DryRun } else { Task::Copy };
    let rules = CopyPolicy { task, ..CopyPolicy::default() };
    let stage = match &mirror.atomic_target {
        Some(AtomicTarget::Local(stage)) => Some(stage.clone()),
        _ => None,
    };
    let work = [Work::Mirror(Box::new(mirror))];
    let summary = retry::copy(&work, &rules, first, session, observer, stop).await;
    drop(work);
    held.local = hold.or_else(|| stage.and_then(Arc::into_inner)?.into_target());
    summary
}

/// Prepares a download into a local folder, which it locks.
async fn down(
    options: &SyncOptions,
    remote: &Remote,
    target: &Path,
    session: &mut Session,
    held: Option<Hold>,
) -> Result<(Mirror, Option<Hold>), CopyError> {
    let about = begin(session, remote, false).await?;
    let Some(root) = about.root else {
        let text = format!("there is no {remote}");
        return Err(ClientError::Fault(Fault::new(Code::NotFound, text)).into());
    };
    let fault = |fault: Fault| CopyError::from(ClientError::Fault(fault));
    let looked = |folder: &Folder| {
        which(&**folder.fd()).map_err(|e| fault(Fault::from_io("cannot look", &e)))
    };
    let places = |here: Twin| match is_here(&about) {
        true => check_places(root, &about.above, here).map(|()| Some(here)),
        false => Ok(None),
    };
    let (folder, hold, atomic_target, avoid) = if options.is_atomic() {
        // Check the target before the staging tree is built.
        let there = Folder::open(target).ok().map(|folder| looked(&folder)).transpose()?;
        let avoid = there.map(places).transpose()?.flatten();
        let key = options.key(&remote.to_string());
        let (folder, stage) = crate::sync::atomic::prepare(session, target, key, held).await?;
        (Some(folder), None, Some(AtomicTarget::Local(Arc::new(stage))), avoid)
    } else {
        let folder = open_target(target, options.dry_run).map_err(fault)?;
        let here = folder.as_ref().map(looked).transpose()?;
        let hold = match (&folder, held.filter(|held| Some(held.folder) == here)) {
            (_, Some(held)) => Some(held),
            (Some(folder), None) if !options.dry_run => Some(hold(folder, target).map_err(fault)?),
            _ => None,
        };
        (folder, hold, None, here.map(places).transpose()?.flatten())
    };
    let at = &WirePath::root();
    let folds = folder.as_ref().is_some_and(|folder| !options.dry_run && folder.folds_case(at));
    let habits = folder.as_ref().map(|folder| folder.habits(at, options.tries()));
    let habits = habits.unwrap_or_default();
    let (source, target) = (remote.to_string(), target.display().to_string());
    let rules = verbatim_files::Rules::of_user();
    let mirror = Mirror {
        direction: Direction::Down,
        folder: folder.map(Arc::new),
        remote: remote.path.clone(),
        remote_is_missing: false,
        source,
        target,
        options: options.plan_with(folds, habits, atomic_target.is_some()),
        filter: options.filter.clone(),
        chosen: options.chosen.clone(),
        avoid,
        limit: options.limit,
        rules,
        by_name: !options.numeric_ids,
        share: None,
        atomic_target,
    };
    Ok((mirror, hold))
}

/// Prepares an upload of a local folder; the server locks the target.
async fn up(
    options: &SyncOptions,
    source: &Path,
    remote: &Remote,
    session: &mut Session,
    share: Option<Digest>,
) -> Result<Mirror, CopyError> {
    let fault = |fault: Fault| CopyError::from(ClientError::Fault(fault));
    let folder = Folder::open(source).map_err(only_folders).map_err(fault)?;
    share.into_iter().for_each(|key| session.share(key));
    let (about, path, atomic_target) = if options.is_atomic() {
        let (target, key) =
            (remote.path.clone(), options.key(&folder.path().display().to_string()));
        let staged = session.stage(&target, key).await?;
        let staged = staged.map_err(only_folders).map_err(fault)?;
        (staged.about, staged.path, Some(AtomicTarget::Remote { target, key }))
    } else {
        (begin(session, remote, !options.dry_run).await?, remote.path.clone(), None)
    };
    if is_here(&about) {
        let here = which(&**folder.fd()).map_err(|e| fault(Fault::from_io("cannot look", &e)))?;
        if let Some(root) = about.root {
            check_places(here, &above(&**folder.fd()), root)?;
        }
    }
    let habits = session.habits_of(&path, options.tries()).await?;
    Ok(Mirror {
        direction: Direction::Up,
        folder: Some(Arc::new(folder)),
        remote: path,
        remote_is_missing: about.root.is_none() && atomic_target.is_none(),
        source: source.display().to_string(),
        target: remote.to_string(),
        options: options.plan_with(about.folds_case, habits, atomic_target.is_some()),
        filter: options.filter.clone(),
        chosen: options.chosen.clone(),
        avoid: about.root.filter(|_| is_here(&about)),
        limit: options.limit,
        rules: about.keeps.into(),
        by_name: !options.numeric_ids,
        share,
        atomic_target,
    })
}

async fn begin(session: &mut Session, remote: &Remote, hold: bool) -> Result<About, CopyError> {
    let answer = session.describe_dir(&remote.path, hold).await?;
    Ok(answer.map_err(only_folders).map_err(ClientError::Fault)?)
}

/// Adds a hint to a fault about something that is not a folder.
fn only_folders(fault: Fault) -> Fault {
    match fault.code {
        Code::NotFolder => Fault::new(
            Code::NotFolder,
            format!("{}; rdma-sync makes folders equal, rdma-cp copies a file", fault.text),
        ),
        _ => fault,
    }
}

/// Opens a local target; creates it if it is missing, unless nothing is to be written.
fn open_target(target: &Path, dry_run: bool) -> Result<Option<Folder>, Fault> {
    let what = || format!("cannot make folder {}", target.display());
    match std::fs::symlink_metadata(target) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if dry_run {
                return Ok(None);
            }
            std::fs::create_dir(target).map_err(|e| Fault::from_io(what(), &e))?;
        }
        _ => {}
    }
    let folder = Folder::open(target).map_err(only_folders)?;
    // The tree is scanned without following links, so nothing may be written through one either.
    folder.plain_below(&WirePath::root()).map(Some)
}

/// Locks a local target, or says which process has locked it.
fn hold(folder: &Folder, target: &Path) -> Result<Hold, Fault> {
    let what = format!("cannot hold {}", target.display());
    let fd = folder.open_folder(&WirePath::root())?;
    let hold = Hold::take(fd, &what).map_err(|error| not_held(error, target))?;
    // A staging tree may have replaced it meanwhile.
    let is = Folder::open(target).ok().and_then(|folder| which(&**folder.fd()).ok());
    if is == Some(hold.folder) {
        return Ok(hold);
    }
    Err(Fault::new(Code::Limit, format!("{what}: another run finished just now; run it again")))
}

/// Says which process has locked a local target.
fn not_held(error: NotHeld, target: &Path) -> Fault {
    match error {
        NotHeld::Fault(fault) => fault,
        NotHeld::By(process) => {
            let by = process.map_or_else(|| "another process".into(), describe_process);
            let text = format!("{} is being synchronised by {by}", target.display());
            Fault::new(Code::Limit, text)
        }
    }
}

/// Refuses to mirror a tree onto itself, or onto a folder that contains it.
fn check_places(source: Twin, above_source: &[Twin], target: Twin) -> Result<(), CopyError> {
    if source == target {
        return usage("source and target are the same folder", "name two different ones");
    }
    if above_source.contains(&target) {
        let hint = "to make a folder equal to what is in it would delete it";
        return usage("the source lies in the target", hint);
    }
    Ok(())
}
