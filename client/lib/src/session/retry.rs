//! A copy over as many sessions as it takes. When the server is lost it is tried
//! again with growing pauses, and the next session goes on where the last one
//! was; when nothing was achieved for too long, what is left fails with the
//! cause. Called by `copy` and `sync`. The first connection is not tried again,
//! because a wrong address should say so at once, unless the server is there and
//! too many come to it at once: then all would be served, a little later.

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

/// The shortest time one try at connecting gets, also where less of the timeout is left.
const CONNECT_MIN: Duration = Duration::from_secs(1);

/// What part of the timeout that may be at most: all of it together ends soon behind it.
const CONNECT_PART: u32 = 10;

/// A copy that can begin.
pub(crate) struct FirstSession<T> {
    pub session: Session,
    /// What was found out for it.
    pub found: T,
    /// How often the server was lost meanwhile.
    pub reconnects: u64,
}

/// Makes the first session, and finds out over it what is to be copied: over another one where
/// the server is lost meanwhile, since nothing has been done yet. The fault is why it is not
/// begun at all, though there was a session.
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

/// Says of each of these that it was not copied, because a copy was not begun.
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

/// Copies all of the work by these rules, over the session that is there and those that follow
/// it.
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
    // Another server, however trusted, has other files: only this one can go on with them.
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
            // Who says nothing for the whole of the timeout hears no goodbye either.
            end if end.as_ref().is_some_and(|fault| fault.code == Code::TimedOut) => break end,
            end => {
                session.close().await;
                break end;
            }
        };
        // Its workers end and its files are let go of before the next one wants them.
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

/// One search for a server that was lost.
struct Reconnect<'a> {
    peer: &'a str,
    options: &'a SessionOptions,
    backoff: &'a mut Backoff,
    /// What is to be gone on with.
    work: &'a [Work],
}

impl Reconnect<'_> {
    /// Waits and connects until there is a session, or says why there will be none.
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
                // Each time: the reader of a pipe may have gone meanwhile.
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

    /// What to say when it was tried for long enough.
    fn exhausted(&self, lost: &Fault, cause: &Fault) -> Fault {
        let seconds = self.options.timeout.as_secs();
        let last = if cause == lost { String::new() } else { format!("; {}", cause.text) };
        let text = format!("{}; tried again for {seconds} s without progress{last}", lost.text);
        Fault::new(Code::LinkLost, text)
    }
}
