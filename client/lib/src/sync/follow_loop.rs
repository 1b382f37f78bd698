//! The loop of a mirror that follows its source: a first pass makes the target equal, and each
//! change of the source starts another. This file decides when; the caller's [`PassRunner`] runs
//! them. A failed pass is retried with growing pauses; a lost source is waited for. The loop
//! reports its status to the status file, to systemd and to the observer.

use crate::session::backoff::{Backoff, RetryDecision};
use crate::watch::{SourceWatch, WatchEvent};
use std::time::{Instant, SystemTime};
use tokio::sync::watch;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::model::follow_status::{
    FollowState, FollowStatus, HEARTBEAT_INTERVAL, StatusFile, unix_seconds,
};
use verbatim_proto::{Changes, Fault};
use verbatim_telemetry::notify::Notifier;

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PassResult {
    /// How many entries the pass changed at the target.
    pub changes: u64,
    /// How many bytes of files it copied.
    pub bytes: u64,
    /// How many entries failed.
    pub failed: u64,
    /// The first failure, or why the whole pass failed.
    pub error: Option<String>,
    /// Whether the pass compared the whole trees, though only a part was requested.
    pub whole: bool,
}

/// Runs the passes of a mirror.
pub trait PassRunner {
    /// Copies these changes to the target. An error is permanent: another pass would fail too.
    fn pass(&mut self, changes: &Changes) -> impl Future<Output = Result<PassResult, ClientError>>;

    /// Receives the status whenever it changes.
    fn status_changed(&mut self, _status: &FollowStatus) {}
}

/// The loop of a mirror that follows its source.
pub struct FollowLoop<P> {
    passes: P,
    status: FollowStatus,
    file: StatusFile,
    notifier: Notifier,
    /// Whether systemd has been sent `READY=1`.
    ready: bool,
    /// Whether the last write of the status file failed.
    unwritten: bool,
    /// Why the source is lost, until it sends changes again.
    lost: Option<String>,
    retry: PassRetry,
}

impl<P: PassRunner> FollowLoop<P> {
    /// A loop over these passes, which reports its status to this file and to systemd.
    pub fn new(passes: P, status: FollowStatus, file: StatusFile, notifier: Notifier) -> Self {
        let (ready, unwritten, lost, retry) = (false, false, None, PassRetry::default());
        Self { passes, status, file, notifier, ready, unwritten, lost, retry }
    }

    /// Runs until `stop` is true, or an error is permanent. Waits for a pass that is running then:
    /// the runner stops it early.
    pub async fn run(
        &mut self,
        watching: &mut SourceWatch,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), FollowError> {
        // Write it first: a status file that cannot be written is an error before the first pass,
        // and only a warning later.
        self.file.write(&mut self.status)?;
        self.report_state(FollowState::Starting, None);
        let ended = self.run_until_stopped(watching, &mut stop).await;
        let error = ended.as_ref().err().map(ToString::to_string);
        self.notifier.tell(&["STOPPING=1"], error.as_deref().unwrap_or("stopped"));
        self.report_state(FollowState::Stopped, error);
        ended
    }

    async fn run_until_stopped(
        &mut self,
        watching: &mut SourceWatch,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), FollowError> {
        loop {
            let retry = self.retry.due();
            let heard = tokio::select! {
                biased;
                // Stop if the sender is gone: it cannot stop the loop later.
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                heard = watching.next() => Some(heard?),
                () = tokio::time::sleep_until(retry.into()) => {
                    if !self.retry.is_due() {
                        // Nothing has changed; only renew the heartbeat.
                        self.report_state(self.status.state, self.status.error.clone());
                        continue;
                    }
                    None
                }
            };
            match heard {
                None => self.pass(&Changes::rescan(), stop).await?,
                Some(WatchEvent::Lost(fault)) => {
                    self.lost = Some(fault.to_string());
                    self.report_state(FollowState::Lost, self.lost.clone());
                }
                Some(WatchEvent::Healed(count)) => self.status.healed += count,
                Some(WatchEvent::Changed(changes)) => {
                    self.lost = None;
                    self.pass(&changes, stop).await?;
                }
            }
        }
    }

    /// Runs a pass, and renews the heartbeat meanwhile.
    async fn run_pass(&mut self, changes: &Changes) -> Result<PassResult, FollowError> {
        let Self { passes, status, file, notifier, unwritten, .. } = self;
        let work = passes.pass(changes);
        tokio::pin!(work);
        loop {
            tokio::select! {
                pass = &mut work => return Ok(pass?),
                () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {
                    write(file, status, unwritten);
                    notifier.tell(&["WATCHDOG=1"], &sentence(status));
                }
            }
        }
    }

    /// Runs one pass, and reports the status before and after it.
    async fn pass(
        &mut self,
        changes: &Changes,
        stop: &watch::Receiver<bool>,
    ) -> Result<(), FollowError> {
        let state = if self.ready { FollowState::Syncing } else { FollowState::Starting };
        let before = self.status.error.clone();
        self.report_state(state, None);
        // After a failure the next full pass waits for its pause. Changes meanwhile are copied
        // without that wait, and do not shorten it.
        let all = Changes::rescan();
        let is_part = self.retry.at.is_some() && !self.retry.is_due() && !changes.rescan;
        let changes = if self.retry.at.is_some() && !is_part { &all } else { changes };
        let begin = Instant::now();
        let pass = self.run_pass(changes).await?;
        let is_part = is_part && !pass.whole;
        self.status.passes += 1;
        self.status.changes += pass.changes;
        self.status.bytes += pass.bytes;
        self.status.failed = pass.failed + if is_part { self.status.failed } else { 0 };
        self.status.pass_seconds = begin.elapsed().as_secs_f64();
        match pass.error {
            // The pass was stopped, so the target does not count as behind.
            Some(_) if *stop.borrow() => {}
            error if is_part => self.settle(FollowState::Behind, before.or(error)),
            None => {
                self.retry = PassRetry::default();
                self.status.current = Some(unix_seconds(SystemTime::now()));
                self.settle(FollowState::Current, None);
            }
            error => {
                self.retry.failed(Instant::now());
                self.settle(FollowState::Behind, error);
            }
        }
        Ok(())
    }

    /// Reports the status after a pass. While the source is lost, nobody knows whether the target
    /// is current.
    fn settle(&mut self, state: FollowState, error: Option<String>) {
        match self.lost.clone() {
            Some(lost) => self.report_state(FollowState::Lost, Some(lost)),
            None => self.report_state(state, error),
        }
    }

    fn report_state(&mut self, state: FollowState, error: Option<String>) {
        let news = self.status.state != state || self.status.error != error;
        (self.status.state, self.status.error) = (state, error);
        write(&self.file, &mut self.status, &mut self.unwritten);
        let states: &[&str] = match state {
            FollowState::Current if !self.ready => &["READY=1", "WATCHDOG=1"],
            _ => &["WATCHDOG=1"],
        };
        self.ready |= state == FollowState::Current;
        self.notifier.tell(states, &sentence(&self.status));
        if news {
            self.passes.status_changed(&self.status);
        }
    }
}

/// Writes the status; logs a failure once, until a write succeeds.
fn write(file: &StatusFile, status: &mut FollowStatus, unwritten: &mut bool) {
    let written = file.write(status);
    if let (Err(fault), false) = (&written, *unwritten) {
        tracing::warn!(cause = %fault, "status not written; the copy goes on");
    }
    *unwritten = written.is_err();
}

/// The status as a sentence, for systemd.
fn sentence(status: &FollowStatus) -> String {
    let FollowStatus { source, target, .. } = status;
    let error = status.error.as_deref().unwrap_or("unknown cause");
    match status.state {
        FollowState::Starting => format!("copying {source} to {target}"),
        FollowState::Syncing => format!("copying what changed in {source}"),
        FollowState::Current => format!("{target} is current"),
        FollowState::Behind => format!("{target} is behind: {error}"),
        FollowState::Lost => format!("{source} is lost: {error}"),
        FollowState::Stopped => "stopped".into(),
    }
}

/// Why the loop ended.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The source cannot be watched, or a pass failed permanently.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The status file cannot be written.
    #[error("{0}")]
    Status(#[from] Fault),
}

/// When a failed pass is retried.
#[derive(Debug)]
struct PassRetry {
    at: Option<Instant>,
    backoff: Backoff,
}

impl Default for PassRetry {
    fn default() -> Self {
        Self { at: None, backoff: Backoff::passes(Instant::now()) }
    }
}

impl PassRetry {
    /// Schedules the retry of a failed pass. Permanent failures have ended the loop.
    fn failed(&mut self, now: Instant) {
        if let RetryDecision::After(pause) = self.backoff.lost(now) {
            self.at = Some(now + pause);
        }
    }

    fn is_due(&self) -> bool {
        self.at.is_some_and(|at| at <= Instant::now())
    }

    /// The time of the next retry or heartbeat.
    fn due(&self) -> Instant {
        let beat = Instant::now() + HEARTBEAT_INTERVAL;
        self.at.map_or(beat, |at| at.min(beat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;
    use verbatim_proto::Excludes;

    /// A runner with scripted outcomes, which records its calls.
    struct Scripted {
        outcomes: Vec<Option<String>>,
        looks: Vec<bool>,
        states: Vec<FollowState>,
        /// Whether every pass compares the whole trees.
        whole: bool,
    }

    impl PassRunner for Scripted {
        async fn pass(&mut self, changes: &Changes) -> Result<PassResult, ClientError> {
            self.looks.push(changes.rescan);
            let error = self.outcomes.remove(0);
            if error.as_deref() == Some("final") {
                return Err(Fault::new(verbatim_proto::Code::Denied, "not let in").into());
            }
            let failed = u64::from(error.is_some());
            Ok(PassResult { changes: 1, bytes: 10, failed, error, whole: self.whole })
        }

        fn status_changed(&mut self, status: &FollowStatus) {
            self.states.push(status.state);
        }
    }

    /// All messages in a socket.
    fn told(socket: &UnixDatagram) -> String {
        socket.set_nonblocking(true).expect("takes it");
        let mut buffer = [0; 4096];
        let mut all = String::new();
        while let Ok(bytes) = socket.recv(&mut buffer) {
            all.push_str(std::str::from_utf8(&buffer[..bytes]).expect("text"));
        }
        all
    }

    async fn wait_for_passes(path: &std::path::Path, passes: u64) {
        loop {
            let status =
                crate::sync::wait::wait(path, Duration::from_secs(20)).await.expect("current");
            if status.passes == passes {
                return assert_eq!(status.bytes, 10 * passes);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn the_loop_ends_when_stop_is_true() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("status");
        let passes =
            Scripted { outcomes: vec![None], looks: Vec::new(), states: Vec::new(), whole: false };
        let (status, file) = (FollowStatus::new(String::new(), String::new()), Some(path.clone()));
        let mut follow_loop =
            FollowLoop::new(passes, status, StatusFile::new(file), Notifier::default());
        std::fs::create_dir(dir.path().join("source")).expect("makes");
        let mut watching = SourceWatch::local(dir.path().join("source"), Excludes::default());
        let (go_on, stop) = watch::channel(false);
        tokio::spawn({
            let path = path.clone();
            async move {
                wait_for_passes(&path, 1).await;
                go_on.send_replace(true);
            }
        });
        let run = follow_loop.run(&mut watching, stop);
        let ended = tokio::time::timeout(Duration::from_secs(60), run).await;
        ended.expect("in time").expect("it was told to");
        let status = FollowStatus::read(&path).expect("reads").expect("there");
        assert_eq!((status.state, status.error), (FollowState::Stopped, None));
    }

    #[tokio::test]
    async fn every_change_starts_a_pass_and_a_failed_pass_is_retried() {
        let dir = tempfile::tempdir().expect("folder");
        let (source, path) = (dir.path().join("source"), dir.path().join("status"));
        std::fs::create_dir(&source).expect("makes");
        let socket = UnixDatagram::bind(dir.path().join("notify")).expect("binds");
        let notifier = Notifier::at(dir.path().join("notify").as_os_str());
        let outcomes = vec![Some("disk full".to_owned()), None, None, Some("final".into())];
        let passes = Scripted { outcomes, looks: Vec::new(), states: Vec::new(), whole: false };
        let status = FollowStatus::new("source".into(), "target".into());
        let file = StatusFile::new(Some(path.clone()));
        let mut follow_loop = FollowLoop::new(passes, status, file, notifier);
        let mut watching = SourceWatch::local(source.clone(), Excludes::default());
        let (_go_on, stop) = watch::channel(false);
        let changer = {
            let (path, source) = (path.clone(), source.clone());
            tokio::spawn(async move {
                for passes in 2..4 {
                    wait_for_passes(&path, passes).await;
                    std::fs::write(source.join(format!("{passes}")), b"").expect("writes");
                }
            })
        };
        let run = follow_loop.run(&mut watching, stop);
        let ended = tokio::time::timeout(Duration::from_secs(60), run);
        let error = ended.await.expect("in time").expect_err("not let in");
        assert_eq!(error.to_string(), "not let in");
        changer.await.expect("what it waited for came");
        let Scripted { looks, states, .. } = follow_loop.passes;
        assert_eq!(looks, [true, true, false, false], "all, all again, and what changed");
        use FollowState::{Behind, Current as Equal, Starting, Stopped, Syncing};
        let expected = [Behind, Starting, Equal, Syncing, Equal, Syncing, Stopped];
        assert_eq!(states, expected);
        let told = told(&socket);
        assert_eq!(told.matches("READY=1").count(), 1, "{told}");
        assert!(told.contains("STATUS=target is behind: disk full"), "{told}");
        assert!(told.contains("STOPPING=1\nSTATUS=not let in"), "{told}");
        let status = FollowStatus::read(&path).expect("reads").expect("there");
        assert_eq!((status.state, status.error.as_deref()), (Stopped, Some("not let in")));
        assert!(status.current.is_some());
    }

    fn scripted(
        outcomes: &[Option<&str>],
        file: Option<std::path::PathBuf>,
    ) -> FollowLoop<Scripted> {
        let outcomes = outcomes.iter().map(|error| error.map(str::to_owned)).collect();
        let passes = Scripted { outcomes, looks: Vec::new(), states: Vec::new(), whole: false };
        let status = FollowStatus::new(String::new(), String::new());
        FollowLoop::new(passes, status, StatusFile::new(file), Notifier::default())
    }

    #[tokio::test]
    async fn a_lost_source_stays_lost_until_it_sends_changes() {
        let mut follow_loop = scripted(&[None, None], None);
        let (_go_on, stop) = watch::channel(false);
        follow_loop.lost = Some("gone".into());
        follow_loop.pass(&Changes::rescan(), &stop).await.expect("goes on");
        assert_eq!(follow_loop.status.state, FollowState::Lost);
        assert_eq!(follow_loop.status.error.as_deref(), Some("gone"));
        follow_loop.lost = None;
        follow_loop.pass(&Changes::rescan(), &stop).await.expect("goes on");
        assert_eq!(follow_loop.status.state, FollowState::Current);
    }

    #[tokio::test]
    async fn changes_before_a_retry_run_a_partial_pass_and_keep_the_failure() {
        let mut follow_loop = scripted(&[Some("no"), None, Some("nor this"), None], None);
        let (_go_on, stop) = watch::channel(false);
        let some = Changes { changes: Vec::new(), rescan: false };
        follow_loop.pass(&Changes::rescan(), &stop).await.expect("goes on");
        follow_loop.retry.at = Some(Instant::now() + Duration::from_secs(600));
        let due = follow_loop.retry.at;
        for _ in 0..2 {
            follow_loop.pass(&some, &stop).await.expect("goes on");
            assert_eq!(follow_loop.status.state, FollowState::Behind);
            assert_eq!(follow_loop.status.error.as_deref(), Some("no"), "the first of them");
            assert_eq!(follow_loop.retry.at, due, "it is put off by nothing");
        }
        assert_eq!(follow_loop.status.failed, 2);
        // A partial pass that failed became a full one and failed too: only that failure counts.
        follow_loop.passes.whole = true;
        follow_loop.passes.outcomes.insert(0, Some("all of it".into()));
        follow_loop.pass(&some, &stop).await.expect("goes on");
        assert_eq!(follow_loop.status.failed, 1);
        assert_eq!(follow_loop.status.error.as_deref(), Some("all of it"));
        follow_loop.retry.at = Some(Instant::now());
        follow_loop.pass(&some, &stop).await.expect("goes on");
        assert_eq!(
            follow_loop.passes.looks,
            [true, false, false, false, true],
            "all, when its time is there"
        );
        assert_eq!(
            (follow_loop.status.state, follow_loop.status.failed),
            (FollowState::Current, 0)
        );
    }

    #[tokio::test]
    async fn a_status_file_that_fails_later_does_not_end_the_loop() {
        let dir = tempfile::tempdir().expect("folder");
        let mut follow_loop = scripted(&[None], Some(dir.path().join("no/status")));
        let (_go_on, stop) = watch::channel(false);
        follow_loop.pass(&Changes::rescan(), &stop).await.expect("goes on");
        assert!(follow_loop.unwritten && follow_loop.status.state == FollowState::Current);
        std::fs::create_dir(dir.path().join("no")).expect("makes");
        follow_loop.report_state(FollowState::Current, None);
        assert!(!follow_loop.unwritten && dir.path().join("no/status").exists());
        let mut follow_loop = scripted(&[], Some(dir.path().join("nor/status")));
        let mut watching = SourceWatch::local(dir.path().to_owned(), Excludes::default());
        let ended = follow_loop.run(&mut watching, stop).await;
        assert!(matches!(ended, Err(FollowError::Status(_))), "found out before the first pass");
    }

    #[test]
    fn pauses_between_retries_grow_up_to_a_bound() {
        let mut retry = PassRetry::default();
        assert!(!retry.is_due());
        let now = Instant::now();
        for expected_ms in [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] {
            retry.failed(now);
            assert_eq!(retry.at, Some(now + Duration::from_millis(expected_ms)));
        }
    }
}
