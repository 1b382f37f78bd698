//! Copies as the user asked: turns sources and a target into the work of a session, by the rules of
//! cp. Called by the commands, tests and the quickstart; reports everything to an observer.

pub mod glob;
pub mod list;
mod pipe_plan;
mod plan;

pub use crate::cp::list::list;

use crate::cp::plan::Plan;
use crate::session::Session;
use crate::session::command_error::{CopyError, Running, Stop};
use crate::session::retry;
use verbatim_engine::connection::options::SessionOptions;
use verbatim_engine::model::copy_policy::{CopyPolicy, Task};
use verbatim_engine::model::location::{Location, Remote};
use verbatim_engine::model::report::{Observer, Summary};

/// The options of a copy.
pub struct CopyOptions {
    /// The sources.
    pub sources: Vec<Location>,
    /// The target.
    pub target: Location,
    /// Whether folders are copied (`-r`).
    pub recursive: bool,
    /// Which entries are copied, and whether they are transferred, reported or compared.
    pub policy: CopyPolicy,
}

/// Finds the server of a copy: one side, and only one, must be remote.
pub fn server_of(options: &CopyOptions) -> Result<&Remote, CopyError> {
    crate::cp::pipe_plan::check(options)?;
    let usage = |cause: &str, hint: &str| {
        Err(CopyError::Usage { cause: cause.into(), hint: Some(hint.into()) })
    };
    let remotes: Vec<&Remote> = options.sources.iter().filter_map(remote).collect();
    match (remotes.first(), remote(&options.target)) {
        (Some(_), Some(_)) => usage(
            "source and target are both remote",
            "run rdma-cp on one of the two, so that data crosses the network once",
        ),
        (None, None) => usage(
            "neither source nor target is remote",
            "write the remote side as HOST:/EXPORT/PATH; cp copies on one machine",
        ),
        (None, Some(target)) => Ok(target),
        (Some(first), None) => {
            let same = |other: &&Remote| (&other.host, other.port) == (&first.host, first.port);
            if remotes.len() < options.sources.len() || !remotes.iter().all(same) {
                return usage(
                    "sources are on different machines",
                    "copy from one machine at a time",
                );
            }
            Ok(first)
        }
    }
}

fn remote(location: &Location) -> Option<&Remote> {
    match location {
        Location::Remote(remote) => Some(remote),
        Location::Local(_) | Location::Pipe => None,
    }
}

/// Copies. Returns a summary once a session was connected, even if files failed.
pub fn copy<'a>(
    options: &'a CopyOptions,
    session: SessionOptions,
    observer: &'a mut dyn Observer,
    stop: impl Future<Output = ()> + 'a,
) -> Running<'a, Summary> {
    copy_until(options, session, observer, Box::pin(stop))
}

/// Does the same, boxed: so this crate compiles the session, and not each program that copies.
fn copy_until<'a>(
    options: &'a CopyOptions,
    session: SessionOptions,
    observer: &'a mut dyn Observer,
    stop: Stop<'a>,
) -> Running<'a, Summary> {
    Box::pin(copy_whole(options, session, observer, stop))
}

async fn copy_whole(
    options: &CopyOptions,
    session: SessionOptions,
    observer: &mut dyn Observer,
    mut stop: Stop<'_>,
) -> Result<Summary, CopyError> {
    let peer = server_of(options)?.peer();
    // A dry run or a comparison writes nothing, so it needs no metadata.
    let preserve = session.preserve && options.policy.task == Task::Copy;
    let session = SessionOptions { preserve, ..session };
    let make = async |first: &mut Session| Plan::make(options, &peer, first).await;
    let begun = match retry::connect_and_prepare(&session, observer, &mut stop, make).await? {
        Ok(begun) => begun,
        Err(fault) => {
            let sources = options.sources.iter().map(Location::to_string);
            return Ok(retry::report_not_started(sources, &peer, fault, observer));
        }
    };
    let (plan, first) = (begun.found, begun.session);
    for failure in &plan.failures {
        observer.failed(failure);
    }
    let policy = CopyPolicy { resolution: plan.resolution, ..options.policy.clone() };
    let mut summary = retry::copy(&plan.work, &policy, first, session, observer, stop).await;
    summary.failed += plan.failures.len() as u64;
    summary.reconnects += begun.reconnects;
    Ok(summary)
}
