//! A copy over as many sessions as it needs. When the server is lost, the copy reconnects with
//! growing pauses and the next session resumes. After the timeout without progress the rest fails
//! with the cause. Called by `cp` and `sync`. The first connection is not retried, because a wrong
//! address should fail at once. The exception is a server that is overloaded with handshakes: it
//! accepts the client a little later.

use crate::session::Session;
use crate::session::backoff::{Backoff, RetryDecision, SessionProgress, may_resume};
use crate::session::command_error::CopyError;
use crate::session::run::SessionResult;
use crate::session::work::Work;
use std::time::{Duration, Instant};
use verbatim_control::ControlError;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::connection::error::fault_of;
use verbatim_engine::connection::ledger::Ledger;
use verbatim_engine::connection::options::SessionOptions;
use verbatim_engine::model::copy_policy::CopyPolicy;
use verbatim_engine::model::location::peer;
use verbatim_engine::model::report::{Failure, NO_TRANSPORT, Observer, Retry, Summary};
use verbatim_proto::{Code, Fault};

/// The shortest timeout of one connection attempt, even if less of the whole timeout is left.
const CONNECT_MIN: Duration = Duration::from_secs(1);

/// The part of the whole timeout that this may be at most, so that the copy ends soon after it.
const CONNECT_PART: u32 = 10;

/// A session, and what was prepared over it.
pub(crate) struct FirstSession<T> {
    pub session: Session,
    /// The result of the preparation.
    pub found: T,
    /// How often the server was lost meanwhile.
    pub reconnects: u64,
}

/// Connects the first session and prepares the copy over it; over another session if the server is
/// lost meanwhile, because nothing is written yet. The inner fault means that a session was
/// connected and the copy did not start.
pub(crate) async fn connect_and_prepare<T>(
    options: &SessionOptions,
    observer: &mut dyn Observer,
    stop: &mut (impl Future<Output = ()> + Unpin),
    mut prepare: impl AsyncFnMut(&mut Session) -> Result<T, CopyError>,
) -> Result<Result<FirstSession<T>, Fault>, CopyError> {
    let interrupted = || Ok(Err(Fault::new(Code::Interrupted, "interrupted")));
    let peer = peer(&options.connect.host, options.connect.port);
    let connected = tokio::select! {
        biased;
        () = &mut *stop => return interrupted(),
        connected = Session::connect(options.clone()) => connected,
    };
    let mut session = match connected {
        Ok(session) => session,
        Err(error @ ClientError::Control(ControlError::SentAway { .. })) => {
            let mut backoff = Backoff::copy(options.timeout, Instant::now());
            let mut reconnect =
                Reconnect { peer: &peer, options, backoff: &mut backoff, work: &[] };
            match reconnect.connect(fault_of(&error), observer, stop).await {
                Ok(session) => session,
                Err(fault) => return Ok(Err(fault)),
            }
        }
        Err(error) => return Err(error.into()),
    };
    let mut options = options.clone();
    options.connect.fingerprint = Some(session.server());
    let mut backoff = Backoff::copy(options.timeout, Instant::now());
    let mut reconnects = 0;
    loop {
        let stands = Instant::now();
        let found = tokio::select! {
            biased;
            () = &mut *stop => return interrupted(),
            found = prepare(&mut session) => found,
        };
        let lost = match found {
            Ok(found) => return Ok(Ok(FirstSession { session, found, reconnects })),
            Err(CopyError::Client(error)) if may_resume(fault_of(&error).code) => fault_of(&error),
            Err(error) => return Err(error),
        };
        let (uptime, silent) = (stands.elapsed(), session.silent_for());
        drop(session);
        backoff.session_ended(
            SessionProgress { uptime, silent, ..SessionProgress::default() },
            Instant::now(),
        );
        let mut reconnect =
            Reconnect { peer: &peer, options: &options, backoff: &mut backoff, work: &[] };
        match reconnect.connect(lost, observer, stop).await {
            Ok(next) => session = next,
            Err(fault) => return Ok(Err(fault)),
        }
        reconnects += 1;
        observer.reconnected();
    }
}

/// Reports each path as failed, because the copy did not start.
pub(crate) fn report_not_started(
    what: impl Iterator<Item = String>,
    peer: &str,
    fault: Fault,
    observer: &mut dyn Observer,
) -> Summary {
    let mut summary = Summary { transport: NO_TRANSPORT.into(), ..Summary::default() };
    for path in what {
        observer.failed(&Failure { path, peer: peer.to_owned(), fault: fault.clone() });
        summary.failed += 1;
    }
    Summary { broken: Some(fault), ..summary }
}

/// Copies the work by this policy, over this session and those that follow it.
pub(crate) async fn copy(
    work: &[Work],
    policy: &CopyPolicy,
    mut session: Session,
    mut options: SessionOptions,
    observer: &mut dyn Observer,
    stop: impl Future<Output = ()>,
) -> Summary {
    tokio::pin!(stop);
    let peer = peer(&options.connect.host, options.connect.port);
    // Another server, even a trusted one, has other files: only this one can resume.
    options.connect.fingerprint = Some(session.server());
    let mut ledger = Ledger::new(&peer);
    let mut backoff = Backoff::copy(options.timeout, Instant::now());
    let broken = loop {
        session.set_policy(policy.clone());
        let copied = session.copy(work, ledger, observer, &mut stop).await;
        let SessionResult { progress_made, broken, .. } = copied;
        ledger = copied.ledger;
        let fault = match broken {
            Some(fault) if may_resume(fault.code) => fault,
            // A server that was silent for the whole timeout receives no goodbye either.
            end if end.as_ref().is_some_and(|fault| fault.code == Code::TimedOut) => break end,
            end => {
                session.close().await;
                break end;
            }
        };
        // Ends the workers and closes the files before the next session opens them.
        drop(session);
        backoff.session_ended(progress_made, Instant::now());
        let (options, backoff) = (&options, &mut backoff);
        let mut reconnect = Reconnect { peer: &peer, options, backoff, work };
        match reconnect.connect(fault, observer, &mut stop).await {
            Ok(next) => session = next,
            Err(fault) => break Some(fault),
        }
        ledger.summary.reconnects += 1;
        observer.reconnected();
    };
    let broken = broken.map(|fault| {
        let given_up = work.iter().fold(fault, |fault, work| work.give_up(fault));
        ledger.fail_unfinished(&given_up).iter().for_each(|failure| observer.failed(failure));
        given_up
    });
    let elapsed = ledger.begin.elapsed();
    let mut summary = Summary { elapsed, broken, ..ledger.summary };
    if summary.transport.is_empty() {
        summary.transport = NO_TRANSPORT.into();
    }
    summary
}

/// The attempts to reconnect to a lost server.
struct Reconnect<'a> {
    peer: &'a str,
    options: &'a SessionOptions,
    backoff: &'a mut Backoff,
    /// The work to resume.
    work: &'a [Work],
}

impl Reconnect<'_> {
    /// Waits and connects until there is a session, or gives up with the cause.
    async fn connect(
        &mut self,
        lost: Fault,
        observer: &mut dyn Observer,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<Session, Fault> {
        let mut cause = lost.clone();
        let mut now = Instant::now();
        let mut next = self.backoff.lost(now);
        loop {
            let pause = match next {
                RetryDecision::Final => return Err(cause),
                // Checked each time: the reader of a pipe may have closed it meanwhile.
                _ if !self.work.iter().all(Work::can_resume) => return Err(lost),
                RetryDecision::Exhausted => return Err(self.exhausted(&lost, &cause)),
                RetryDecision::After(pause) => pause,
            };
            let (attempt, left) = (self.backoff.tries(), self.backoff.left(now));
            let (peer, text) = (self.peer.to_owned(), cause.text.clone());
            tracing::debug!(peer, cause = text, attempt, "server lost");
            observer.retrying(&Retry { peer, cause: text, attempt, pause, left });
            let mut options = self.options.clone();
            let least = CONNECT_MIN.min(self.options.timeout / CONNECT_PART);
            let patient = left.saturating_sub(pause).max(least);
            options.connect.timeout = options.connect.timeout.min(patient);
            let try_it = async {
                tokio::time::sleep(pause).await;
                Session::connect(options).await
            };
            let tried = tokio::select! {
                biased;
                () = &mut *stop => return Err(Fault::new(Code::Interrupted, "interrupted")),
                tried = try_it => tried,
            };
            match tried {
                Ok(session) => return Ok(session),
                Err(error) => {
                    now = Instant::now();
                    (next, cause) = (self.backoff.failed(&error, now), fault_of(&error));
                }
            }
        }
    }

    /// The fault after the timeout without progress.
    fn exhausted(&self, lost: &Fault, cause: &Fault) -> Fault {
        let seconds = self.options.timeout.as_secs();
        let last = if cause == lost { String::new() } else { format!("; {}", cause.text) };
        let text = format!("{}; tried again for {seconds} s without progress{last}", lost.text);
        Fault::new(Code::LinkLost, text)
    }
}
