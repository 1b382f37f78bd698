//! A target that is kept current: a pass makes it equal to its source, and every
//! time the source changes another one follows. This file decides when; what a
//! pass is, is for the caller to say. A pass that fails is tried again with
//! growing pauses, a source that is lost is waited for. What is known is told:
//! to the status file, to systemd, and to whoever observes.

pub mod notify;
pub mod status;
pub mod wait;

use crate::session::ClientError;
use crate::watching::{Heard, Watching};
use notify::Notifier;
use status::{BEAT, State, Status, StatusFile, seconds};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use verbatim_proto::{Changes, Fault};

/// The pause before a pass that failed is tried again, the first time and at most.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What became of a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// What was changed at the target.
    pub changes: u64,
    /// The bytes of files that were copied.
    pub bytes: u64,
    /// How much could not be done.
    pub failed: u64,
    /// Why, of the first of them; also where all of it failed.
    pub error: Option<String>,
}

/// Something that makes the target equal to the source.
pub trait Passes {
    /// Makes what changed equal. An error is one that no other pass would mend.
    fn pass(&mut self, changes: &Changes) -> impl Future<Output = Result<Pass, ClientError>>;

    /// Hears how it is, whenever that changes.
    fn told(&mut self, _status: &Status) {}
}

/// Keeps a target current.
pub struct Current<P> {
    passes: P,
    status: Status,
    file: StatusFile,
    notifier: Notifier,
    /// Whether systemd knows that the service is ready.
    ready: bool,
    retry: Retry,
}

impl<P: Passes> Current<P> {
    /// What keeps it, and where that is told.
    pub fn new(passes: P, status: Status, file: StatusFile, notifier: Notifier) -> Self {
        Self { passes, status, file, notifier, ready: false, retry: Retry::default() }
    }

    /// Goes on until `stop` says so, or nothing can be done any more. A pass that is under way
    /// then is waited for: whoever makes passes ends them early.
    pub async fn run(
        &mut self,
        watching: &mut Watching,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), CurrentError> {
        // Told at once: a file that cannot be written is found out before the first pass.
        self.tell(State::Starting, None)?;
        let ended = self.keep(watching, &mut stop).await;
        let error = ended.as_ref().err().map(ToString::to_string);
        self.notifier.tell(&["STOPPING=1"], error.as_deref().unwrap_or("stopped"));
        // What ended it matters more than that this cannot be told.
        let told = self.tell(State::Stopped, error);
        ended.and(told.map_err(CurrentError::from))
    }

    async fn keep(
        &mut self,
        watching: &mut Watching,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), CurrentError> {
        loop {
            let retry = self.retry.due();
            let heard = tokio::select! {
                biased;
                // One that is gone will not say it later.
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                heard = watching.next() => heard?,
                () = tokio::time::sleep_until(retry.into()) => {
                    if !self.retry.is_due() {
                        // Nothing is to be done; it is only to be seen that we are here.
                        self.tell(self.status.state, self.status.error.clone())?;
                        continue;
                    }
                    Heard::Changed(Changes::rescan())
                }
            };
            match heard {
                Heard::Lost(fault) => self.tell(State::Lost, Some(fault.to_string()))?,
                Heard::Changed(changes) => self.pass(&changes, stop).await?,
            }
        }
    }

    /// Does the work of a pass. While that takes long, it is still seen that we are here.
    async fn work(&mut self, changes: &Changes) -> Result<Pass, CurrentError> {
        let Self { passes, status, file, notifier, .. } = self;
        let work = passes.pass(changes);
        tokio::pin!(work);
        loop {
            tokio::select! {
                pass = &mut work => return Ok(pass?),
                () = tokio::time::sleep(BEAT) => {
                    file.write(status)?;
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
    ) -> Result<(), CurrentError> {
        let state = if self.ready { State::Syncing } else { State::Starting };
        self.tell(state, None)?;
        // What failed before is in this pass only if it looks at everything.
        let all = Changes::rescan();
        let changes = if self.retry.at.is_some() { &all } else { changes };
        let begin = Instant::now();
        let pass = self.work(changes).await?;
        self.status.passes += 1;
        self.status.changes += pass.changes;
        self.status.bytes += pass.bytes;
        self.status.failed = pass.failed;
        self.status.pass_seconds = begin.elapsed().as_secs_f64();
        match pass.error {
            None => {
                self.retry = Retry::default();
                self.status.current = Some(seconds(SystemTime::now()));
                Ok(self.tell(State::Current, None)?)
            }
            // It was ended, and is not behind.
            Some(_) if *stop.borrow() => Ok(()),
            error => {
                self.retry.failed(Instant::now());
                Ok(self.tell(State::Behind, error)?)
            }
        }
    }

    fn tell(&mut self, state: State, error: Option<String>) -> Result<(), Fault> {
        let news = self.status.state != state || self.status.error != error;
        (self.status.state, self.status.error) = (state, error);
        self.file.write(&mut self.status)?;
        let states: &[&str] = match state {
            State::Current if !self.ready => &["READY=1", "WATCHDOG=1"],
            _ => &["WATCHDOG=1"],
        };
        self.ready |= state == State::Current;
        self.notifier.tell(states, &sentence(&self.status));
        if news {
            self.passes.told(&self.status);
        }
        Ok(())
    }
}

/// How it is, in words.
fn sentence(status: &Status) -> String {
    let Status { source, target, .. } = status;
    let error = status.error.as_deref().unwrap_or("for no reason that is known");
    match status.state {
        State::Starting => format!("copying {source} to {target}"),
        State::Syncing => format!("copying what changed in {source}"),
        State::Current => format!("{target} is current"),
        State::Behind => format!("{target} is behind: {error}"),
        State::Lost => format!("{source} is lost: {error}"),
        State::Stopped => "stopped".into(),
    }
}

/// Why a target is kept current no longer.
#[derive(Debug, thiserror::Error)]
pub enum CurrentError {
    /// The source cannot be watched, or the passes cannot go on.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The status cannot be told.
    #[error("{0}")]
    Status(#[from] Fault),
}

impl CurrentError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Client(error) => error.hint(),
            Self::Status(_) => Some("give a --status-file in a folder that is there".into()),
        }
    }
}

/// When a pass that failed is tried again.
#[derive(Debug, Default)]
struct Retry {
    at: Option<Instant>,
    pause: Duration,
}

impl Retry {
    fn failed(&mut self, now: Instant) {
        self.pause = (self.pause * 2).clamp(RETRY_MIN, RETRY_MAX);
        self.at = Some(now + self.pause);
    }

    fn is_due(&self) -> bool {
        self.at.is_some_and(|at| at <= Instant::now())
    }

    /// When there is something to do: another try, or to show that we are here.
    fn due(&self) -> Instant {
        let beat = Instant::now() + BEAT;
        self.at.map_or(beat, |at| at.min(beat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use verbatim_proto::Excludes;

    /// Passes that go as they are told to, and say what they heard.
    struct Scripted {
        outcomes: Vec<Option<String>>,
        looks: Vec<bool>,
        states: Vec<State>,
    }

    impl Passes for Scripted {
        async fn pass(&mut self, changes: &Changes) -> Result<Pass, ClientError> {
            self.looks.push(changes.rescan);
            let error = self.outcomes.remove(0);
            if error.as_deref() == Some("final") {
                return Err(Fault::new(verbatim_proto::Code::Denied, "not let in").into());
            }
            let failed = u64::from(error.is_some());
            Ok(Pass { changes: 1, bytes: 10, failed, error })
        }

        fn told(&mut self, status: &Status) {
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
            let status = wait::wait(path, Duration::from_secs(20)).await.expect("current");
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
        let passes = Scripted { outcomes: vec![None], looks: Vec::new(), states: Vec::new() };
        let (status, file) = (Status::new(String::new(), String::new()), Some(path.clone()));
        let mut current = Current::new(passes, status, StatusFile::new(file), Notifier::default());
        std::fs::create_dir(dir.path().join("source")).expect("makes");
        let mut watching = Watching::local(dir.path().join("source"), Excludes::default());
        let (go_on, stop) = watch::channel(false);
        tokio::spawn({
            let path = path.clone();
            async move {
                wait_for_passes(&path, 1).await;
                go_on.send_replace(true);
            }
        });
        let run = current.run(&mut watching, stop);
        let ended = tokio::time::timeout(Duration::from_secs(60), run).await;
        ended.expect("in time").expect("it was told to");
        let status = Status::read(&path).expect("reads").expect("there");
        assert_eq!((status.state, status.error), (State::Stopped, None));
    }

    #[tokio::test]
    async fn a_pass_follows_every_change_and_one_that_failed_is_tried_again() {
        let dir = tempfile::tempdir().expect("folder");
        let (source, path) = (dir.path().join("source"), dir.path().join("status"));
        std::fs::create_dir(&source).expect("makes");
        let socket = UnixDatagram::bind(dir.path().join("notify")).expect("binds");
        let notifier = Notifier::at(dir.path().join("notify").as_os_str());
        let outcomes = vec![Some("disk full".to_owned()), None, None, Some("final".into())];
        let passes = Scripted { outcomes, looks: Vec::new(), states: Vec::new() };
        let status = Status::new("source".into(), "target".into());
        let file = StatusFile::new(Some(path.clone()));
        let mut current = Current::new(passes, status, file, notifier);
        let mut watching = Watching::local(source.clone(), Excludes::default());
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
        let run = current.run(&mut watching, stop);
        let ended = tokio::time::timeout(Duration::from_secs(60), run);
        let error = ended.await.expect("in time").expect_err("not let in");
        assert_eq!(error.to_string(), "not let in");
        changer.await.expect("what it waited for came");
        let Scripted { looks, states, .. } = current.passes;
        assert_eq!(looks, [true, true, false, false], "all, all again, and what changed");
        use State::{Behind, Current as Equal, Starting, Stopped, Syncing};
        let expected = [Behind, Starting, Equal, Syncing, Equal, Syncing, Stopped];
        assert_eq!(states, expected);
        let told = told(&socket);
        assert_eq!(told.matches("READY=1").count(), 1, "{told}");
        assert!(told.contains("STATUS=target is behind: disk full"), "{told}");
        assert!(told.contains("STOPPING=1\nSTATUS=not let in"), "{told}");
        let status = Status::read(&path).expect("reads").expect("there");
        assert_eq!((status.state, status.error.as_deref()), (Stopped, Some("not let in")));
        assert!(status.current.is_some());
    }

    #[test]
    fn pauses_between_tries_grow_up_to_a_bound() {
        let mut retry = Retry::default();
        assert!(!retry.is_due());
        let now = Instant::now();
        for expected_ms in [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] {
            retry.failed(now);
            assert_eq!(retry.at, Some(now + Duration::from_millis(expected_ms)));
        }
    }
}
