//! `rdma-sync --watch`: a mirror that follows its source. It watches the source (`watch`) and runs
//! a pass for every change; a pass is one `sync`. Called by the commands and by tests.

use crate::session::backoff::is_transient;
use crate::session::command_error::{CopyError, Running};
use crate::sync::chosen::Chosen;
use crate::sync::follow_loop::{FollowError, FollowLoop, PassResult, PassRunner};
use crate::sync::lock_keeper::LockKeeper;
use crate::sync::{SyncOptions, TargetHold, server_of, sync_held};
use crate::watch::SourceWatch;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::connection::options::SessionOptions;
use verbatim_engine::model::follow_status::{FollowStatus, StatusFile};
use verbatim_engine::model::location::Location;
use verbatim_engine::model::report::{
    Altered, Failure, FileDone, Observer, Planned, Progress, Retry, Skipped, Summary,
};
use verbatim_proto::{Changes, Code, Excludes, Fault, Watch};
use verbatim_telemetry::notify::Notifier;

/// Makes the target equal to the source, and keeps it so until `stop` is true. A failure before the
/// first success is an error; later ones are retried.
pub fn follow<'a>(
    options: &'a SyncOptions,
    session: SessionOptions,
    status_file: Option<PathBuf>,
    observer: &'a mut dyn Observer,
    stop: watch::Receiver<bool>,
) -> Running<'a, ()> {
    Box::pin(follow_until(options, session, status_file, observer, stop))
}

async fn follow_until(
    options: &SyncOptions,
    session: SessionOptions,
    status_file: Option<PathBuf>,
    observer: &mut dyn Observer,
    stop: watch::Receiver<bool>,
) -> Result<(), CopyError> {
    let remote = server_of(options)?;
    let exclude = excludes(options);
    let mut watching = match &options.source {
        Location::Local(path) => {
            let excludes = Excludes::parse(exclude).map_err(ClientError::Fault)?;
            SourceWatch::local(path.clone(), excludes)
        }
        _ => {
            let watch = Watch { path: remote.path.clone(), exclude };
            SourceWatch::remote(session.connect.clone(), session.timeout, watch)
        }
    };
    let status = FollowStatus::new(shown(&options.source), shown(&options.target));
    let passes = SyncPasses {
        options: options.clone(),
        session,
        observer,
        stop: stop.clone(),
        begun: false,
        keeper: matches!(options.target, Location::Remote(_)).then(LockKeeper::new),
        held: TargetHold::default(),
    };
    let file = StatusFile::new(status_file);
    let mut follow_loop = FollowLoop::new(passes, status, file, Notifier::from_environment());
    follow_loop.run(&mut watching, stop).await.map_err(|error| match error {
        FollowError::Client(error) => error.into(),
        FollowError::Status(fault) => CopyError::Status(fault),
    })
}

fn shown(location: &Location) -> String {
    match location {
        Location::Local(path) => path.display().to_string(),
        Location::Remote(remote) => remote.to_string(),
        Location::Pipe => "-".into(),
    }
}

/// The patterns that the watch may exclude. If a pattern includes something again, the watch
/// excludes nothing, and the passes apply the patterns.
fn excludes(options: &SyncOptions) -> Vec<Vec<u8>> {
    let texts = options.filter.texts();
    if texts.iter().any(|text| text.starts_with(b"!")) { Vec::new() } else { texts.to_vec() }
}

/// Runs the passes of a mirror.
struct SyncPasses<'a> {
    options: SyncOptions,
    session: SessionOptions,
    observer: &'a mut dyn Observer,
    stop: watch::Receiver<bool>,
    /// Whether a pass has ever compared the trees.
    begun: bool,
    /// The session that keeps the lock on a remote target between two passes.
    keeper: Option<LockKeeper>,
    /// The lock on the target, kept between two passes, so that no other run takes it.
    held: TargetHold,
}

impl PassRunner for SyncPasses<'_> {
    async fn pass(&mut self, changes: &Changes) -> Result<PassResult, ClientError> {
        let mut part = PassResult::default();
        // Ignore the times: another write within the same second is reported as well.
        let exact = !changes.rescan && self.begun;
        if exact && self.options.chosen.is_none() {
            let chosen = Some(Arc::new(Chosen::changed(changes)));
            let options = SyncOptions { chosen, exact, ..self.options.clone() };
            part = self.compare(&options, true).await?;
            if part.error.is_none() || *self.stop.borrow() {
                return Ok(part);
            }
            // A failure of a partial pass may not affect a full one: the limit of deletions, or
            // hard links of which only one was compared.
        }
        let options = SyncOptions { exact, ..self.options.clone() };
        let all = self.compare(&options, false).await?;
        Ok(combine(&part, all))
    }

    fn status_changed(&mut self, status: &FollowStatus) {
        self.observer.followed(status);
    }
}

impl SyncPasses<'_> {
    /// Runs one pass. The failures of a partial pass are not reported yet.
    async fn compare(
        &mut self,
        options: &SyncOptions,
        part: bool,
    ) -> Result<PassResult, ClientError> {
        if let Some(keeper) = &mut self.keeper {
            self.held.share = Some(keeper.key());
            let stays = tokio::select! {
                stays = keeper.connect(&self.session) => stays,
                _ = self.stop.wait_for(|stop| *stop) => Ok(()),
            };
            if let Err(error) = stays {
                return self.failed_pass(error);
            }
        }
        let mut first_failure = FirstFailure { observer: self.observer, first: None, part };
        let stop = self.stop.wait_for(|stop| *stop);
        let stopped = Box::pin(async { drop(stop.await) });
        let session = self.session.clone();
        let done = sync_held(options, session, &mut self.held, &mut first_failure, stopped).await;
        let first = first_failure.first;
        match done {
            Ok(summary) => {
                self.begun = true;
                Ok(pass_result(&summary, first))
            }
            Err(CopyError::Client(error)) => self.failed_pass(error),
            Err(CopyError::Usage { cause, .. }) => Err(Fault::new(Code::BadPath, cause).into()),
            Err(CopyError::Status(fault)) => Err(fault.into()),
        }
    }

    /// The result of a pass that failed before the comparison.
    fn failed_pass(&self, error: ClientError) -> Result<PassResult, ClientError> {
        if self.begun && is_transient(&error) {
            return Ok(PassResult {
                failed: 1,
                error: Some(error.to_string()),
                ..PassResult::default()
            });
        }
        Err(error)
    }
}

/// The result of a pass, from the summary of its sync.
fn pass_result(summary: &Summary, first: Option<String>) -> PassResult {
    let broken = summary.broken.as_ref().map(ToString::to_string);
    let failed = (summary.failed > 0).then(|| format!("{} not done", summary.failed));
    PassResult {
        changes: summary.changes,
        bytes: summary.bytes,
        failed: summary.failed,
        error: broken.or(first).or(failed),
        whole: false,
    }
}

/// Adds the result of a partial pass to that of the full pass after it, which retried the failures
/// of the first.
fn combine(part: &PassResult, all: PassResult) -> PassResult {
    PassResult {
        changes: part.changes + all.changes,
        bytes: part.bytes + all.bytes,
        whole: true,
        ..all
    }
}

/// Forwards all reports, and remembers the first failure.
struct FirstFailure<'a> {
    observer: &'a mut dyn Observer,
    first: Option<String>,
    /// Whether failures are left to the full pass that follows.
    part: bool,
}

impl Observer for FirstFailure<'_> {
    fn wants_per_file_events(&self) -> bool {
        self.observer.wants_per_file_events()
    }

    fn file_done(&mut self, file: &FileDone) {
        self.observer.file_done(file);
    }

    fn failed(&mut self, failure: &Failure) {
        let text = || format!("{}: {}", failure.path, failure.fault);
        self.first.get_or_insert_with(text);
        if !self.part {
            self.observer.failed(failure);
        }
    }

    fn skipped(&mut self, skipped: &Skipped) {
        self.observer.skipped(skipped);
    }

    fn planned(&mut self, planned: &Planned) {
        self.observer.planned(planned);
    }

    fn altered(&mut self, altered: &Altered) {
        self.observer.altered(altered);
    }

    fn progress(&mut self, progress: &Progress) {
        self.observer.progress(progress);
    }

    fn retrying(&mut self, retry: &Retry) {
        self.observer.retrying(retry);
    }

    fn reconnected(&mut self) {
        self.observer.reconnected();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_pass_and_the_full_pass_after_it_are_summed() {
        let none = PassResult::default();
        let part =
            PassResult { changes: 2, bytes: 20, failed: 3, error: Some("no".into()), ..none };
        let all = PassResult { changes: 1, bytes: 10, ..PassResult::default() };
        let both = PassResult { changes: 3, bytes: 30, whole: true, ..PassResult::default() };
        assert_eq!(combine(&part, all), both);
    }
}
