//! A target that is kept current: a pass makes it equal to its source, and every
//! time the source changes another one follows. This file decides when; what a
//! pass is, is for the caller to say. A pass that fails is tried again with
//! growing pauses, a source that is lost is waited for. What is known is told:
//! to the status file, to systemd, and to whoever observes.

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

/// What became of a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PassResult {
    /// What was changed at the target.
    pub changes: u64,
    /// The bytes of files that were copied.
    pub bytes: u64,
    /// How much could not be done.
    pub failed: u64,
    /// Why, of the first of them; also where all of it failed.
    pub error: Option<String>,
    /// Whether all was looked at, though only a part was asked for.
    pub whole: bool,
}

/// Something that makes the target equal to the source.
pub trait PassRunner {
    /// Makes what changed equal. An error is one that no other pass would mend.
    fn pass(&mut self, changes: &Changes) -> impl Future<Output = Result<PassResult, ClientError>>;

    /// Hears how it is, whenever that changes.
    fn status_changed(&mut self, _status: &FollowStatus) {}
}

/// Keeps a target current.
pub struct FollowLoop<P> {
    passes: P,
    status: FollowStatus,
    file: StatusFile,
    notifier: Notifier,
    /// Whether systemd knows that the service is ready.
    ready: bool,
    /// Whether the status file could not be written the last time.
    unwritten: bool,
    /// Why the source cannot be heard, until it is heard again.
    lost: Option<String>,
    retry: PassRetry,
}

impl<P: PassRunner> FollowLoop<P> {
    /// What keeps it, and where that is told.
    pub fn new(passes: P, status: FollowStatus, file: StatusFile, notifier: Notifier) -> Self {
        let (ready, unwritten, lost, retry) = (false, false, None, PassRetry::default());
        Self { passes, status, file, notifier, ready, unwritten, lost, retry }
    }

    /// Goes on until `stop` says so, or nothing can be done any more. A pass that is under way
    /// then is waited for: whoever makes passes ends them early.
    pub async fn run(
        &mut self,
        watching: &mut SourceWatch,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), FollowError> {
        // At once: a file that cannot be written is found out before the first pass. Later that
        // is no reason to copy nothing.
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
                // One that is gone will not say it later.
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                heard = watching.next() => Some(heard?),
                () = tokio::time::sleep_until(retry.into()) => {
                    if !self.retry.is_due() {
                        // Nothing is to be done; it is only to be seen that we are here.
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

    /// Does the work of a pass. While that takes long, it is still seen that we are here.
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

    /// One pass, and what is told before and after it.
    async fn pass(
        &mut self,
        changes: &Changes,
        stop: &watch::Receiver<bool>,
    ) -> Result<(), FollowError> {
        let state = if self.ready { FollowState::Syncing } else { FollowState::Starting };
        let before = self.status.error.clone();
        self.report_state(state, None);
        // What failed before is looked at again with everything, when its pause is over; what
        // changes meanwhile need not wait for that, nor bring it about.
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
            // It was ended, and is not behind.
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

    /// Tells how it is behind a pass: whatever that made equal, of a source that cannot be heard
    /// nobody knows.
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

/// Writes the status; that it cannot be is said once, until it can.
fn write(file: &StatusFile, status: &mut FollowStatus, unwritten: &mut bool) {
    let written = file.write(status);
    if let (Err(fault), false) = (&written, *unwritten) {
        tracing::warn!(cause = %fault, "status not written; the copy goes on");
    }
    *unwritten = written.is_err();
}

/// How it is, in words.
fn sentence(status: &FollowStatus) -> String {
    let FollowStatus { source, target, .. } = status;
    let error = status.error.as_deref().unwrap_or("for no reason that is known");
    match status.state {
        FollowState::Starting => format!("copying {source} to {target}"),
        FollowState::Syncing => format!("copying what changed in {source}"),
        FollowState::Current => format!("{target} is current"),
        FollowState::Behind => format!("{target} is behind: {error}"),
        FollowState::Lost => format!("{source} is lost: {error}"),
        FollowState::Stopped => "stopped".into(),
    }
}

/// Why a target is kept current no longer.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The source cannot be watched, or the passes cannot go on.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The status cannot be told.
    #[error("{0}")]
    Status(#[from] Fault),
}

/// When a pass that failed is tried again.
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
    /// A pass failed. Another one follows, whatever the failure was: one that no other pass would
    /// mend has ended the loop.
    fn failed(&mut self, now: Instant) {
        if let RetryDecision::After(pause) = self.backoff.lost(now) {
            self.at = Some(now + pause);
        }
    }

    fn is_due(&self) -> bool {
        self.at.is_some_and(|at| at <= Instant::now())
    }

    /// When there is something to do: another try, or to show that we are here.
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

    /// Passes that go as they are told to, and say what they heard.
    struct Scripted {
        outcomes: Vec<Option<String>>,
        looks: Vec<bool>,
        states: Vec<FollowState>,
        /// Whether every pass looks at all.
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

    /// Everything that is in a socket.
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
    async fn it_stops_when_it_is_told_to() {
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
    async fn a_pass_follows_every_change_and_one_that_failed_is_tried_again() {
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
    async fn a_lost_source_is_lost_until_it_is_heard_whatever_a_pass_says() {
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
    async fn what_changes_while_a_failure_waits_is_a_part_and_the_failure_stays() {
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
        // A part that could not be done alone became a look at all, and failed: that is all.
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
    async fn a_status_that_cannot_be_written_any_more_ends_nothing() {
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
    fn pauses_between_tries_grow_up_to_a_bound() {
        let mut retry = PassRetry::default();
        assert!(!retry.is_due());
        let now = Instant::now();
        for expected_ms in [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] {
            retry.failed(now);
            assert_eq!(retry.at, Some(now + Duration::from_millis(expected_ms)));
        }
    }
}
