//! The line to the server: one session at a time, made anew when it is lost, for as
//! long as the mount lives. Questions that it loses are asked again until their
//! deadline; while there is no server they are answered at once, so that nobody waits
//! for longer than that.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use verbatim_client::model::location::peer;
use verbatim_client::remote_fs::service::{Ask, Carried};
use verbatim_client::remote_fs::{Listing, Seen};
use verbatim_client::session::Session;
use verbatim_client::session::backoff::{Backoff, Next};
use verbatim_client::{ClientError, SessionOptions};
use verbatim_engine::local_io::buffer_pool::Spares;
use verbatim_engine::local_io::range_buffer::{Haste, Landed, PartBuffer};
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Part;
use verbatim_proto::{Code, Fault, Kept, WirePath};

/// Questions that may wait for the session.
const REQUESTS_MAX: usize = 1024;

/// How long a question waits for a server that has been away for longer than the timeout.
const WAIT_MIN: Duration = Duration::from_secs(1);

/// How soon a question that was lost is asked again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The line.
pub(crate) struct Connection {
    asks: mpsc::Sender<Ask>,
    condition: Arc<Mutex<ConnectionStatus>>,
    timeout: Duration,
    spares: Arc<Spares>,
}

/// How the line is.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionStatus {
    /// Whether there is a session.
    pub up: bool,
    /// Whether there never will be one.
    pub offline: bool,
    /// What data moves over, or moved over last.
    pub carried: Carried,
    /// Why there is none.
    pub cause: Option<String>,
    /// Since when there is none.
    pub down_since: Option<Instant>,
    /// How often another one was made.
    pub reconnects: u64,
}

/// A part that came, and what is known of its file.
pub(crate) struct FetchedPart {
    pub info: FileInfo,
    pub meta: Kept,
    pub landed: Landed,
}

impl Connection {
    /// A line over this session and those that follow it; without one there is only the cache.
    pub fn start(session: Option<Session>, options: SessionOptions) -> Self {
        let (asks, receiver) = mpsc::channel(REQUESTS_MAX);
        let timeout = options.timeout;
        let offline = session.is_none();
        let cause = offline.then(|| "the mount is offline".to_owned());
        let condition =
            ConnectionStatus { up: !offline, offline, cause, ..ConnectionStatus::default() };
        let condition = Arc::new(Mutex::new(condition));
        tokio::spawn(keep(session, options, receiver, condition.clone()));
        Self { asks, condition, timeout, spares: Arc::default() }
    }

    /// How it is.
    pub fn condition(&self) -> ConnectionStatus {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether there is a session.
    pub fn is_up(&self) -> bool {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner).up
    }

    /// What is at a path; a link is not followed.
    pub async fn look(&self, path: &WirePath) -> Result<Seen, Fault> {
        self.patiently(|answer| Ask::Look(path.clone(), answer)).await
    }

    /// What is in a folder.
    pub async fn list(&self, path: &WirePath) -> Result<Listing, Fault> {
        self.patiently(|answer| Ask::List(path.clone(), answer)).await
    }

    /// The metadata of a folder.
    pub async fn describe(&self, path: &WirePath) -> Result<Kept, Fault> {
        self.patiently(|answer| Ask::Describe(path.clone(), answer)).await
    }

    /// A part of a file, verified, of a file that did not change.
    pub async fn fetch(
        &self,
        path: &WirePath,
        part: Part,
        haste: Haste,
    ) -> Result<FetchedPart, Fault> {
        self.fetch_by(self.deadline(), path, part, haste).await
    }

    /// The same until a deadline.
    pub async fn fetch_by(
        &self,
        deadline: Instant,
        path: &WirePath,
        part: Part,
        haste: Haste,
    ) -> Result<FetchedPart, Fault> {
        loop {
            match self.fetch_once(path, part, haste.clone(), deadline).await {
                Err(fault) if self.may_ask_again(&fault, deadline) => sleep(RETRY_DELAY).await,
                answer => return answer,
            }
        }
    }

    /// The same, which does not wait for a server that is away.
    pub async fn fetch_now(&self, path: &WirePath, part: Part) -> Result<FetchedPart, Fault> {
        self.fetch_once(path, part, Haste::default(), self.deadline()).await
    }

    /// Until when a question that is asked now waits. A server that has been away for long is
    /// not waited for by each reader anew.
    pub fn deadline(&self) -> Instant {
        let now = Instant::now();
        let whole = now + self.timeout;
        let down = self.condition().down_since.map(|since| since + self.timeout);
        down.map_or(whole, |until| until.clamp(now + WAIT_MIN.min(self.timeout), whole))
    }

    async fn fetch_once(
        &self,
        path: &WirePath,
        part: Part,
        haste: Haste,
        deadline: Instant,
    ) -> Result<FetchedPart, Fault> {
        // A worker that is late writes into the buffer of its own try.
        let buffer = Arc::new(PartBuffer::new(part, haste, &self.spares));
        let ask = |answer| Ask::Fetch(path.clone(), buffer.clone(), answer);
        let meta = self.once(ask, deadline).await?;
        let unsaid = || Fault::new(Code::Protocol, "the server did not say what it opened");
        let info = buffer.info().ok_or_else(unsaid)?;
        let holed = || Fault::new(Code::Protocol, "the server ended a part before all was there");
        Ok(FetchedPart { info, meta, landed: buffer.take().ok_or_else(holed)? })
    }

    async fn patiently<T>(
        &self,
        ask: impl Fn(oneshot::Sender<Result<T, Fault>>) -> Ask,
    ) -> Result<T, Fault> {
        let deadline = self.deadline();
        loop {
            match self.once(&ask, deadline).await {
                Err(fault) if self.may_ask_again(&fault, deadline) => sleep(RETRY_DELAY).await,
                answer => return answer,
            }
        }
    }

    async fn once<T>(
        &self,
        ask: impl Fn(oneshot::Sender<Result<T, Fault>>) -> Ask,
        deadline: Instant,
    ) -> Result<T, Fault> {
        let (answer, asked) = oneshot::channel();
        let sent = timeout_at(deadline, self.asks.send(ask(answer))).await;
        let late = || Fault::new(Code::TimedOut, self.told("no answer in time"));
        match sent {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Fault::new(Code::Stopping, "the mount is ending")),
            Err(_) => return Err(late()),
        }
        match timeout_at(deadline, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Fault::new(Code::LinkLost, self.told("the server was lost"))),
            Err(_) => Err(late()),
        }
    }

    fn may_ask_again(&self, fault: &Fault, deadline: Instant) -> bool {
        is_away(fault) && !self.condition().offline && Instant::now() + RETRY_DELAY < deadline
    }

    /// What to say when there is no answer.
    fn told(&self, otherwise: &str) -> String {
        self.condition().cause.unwrap_or_else(|| otherwise.to_owned())
    }
}

/// Whether a fault is of the line, not of what was asked.
pub(crate) fn is_away(fault: &Fault) -> bool {
    matches!(fault.code, Code::LinkLost | Code::TimedOut | Code::Stopping)
}

/// Keeps a session until nobody asks any more.
async fn keep(
    session: Option<Session>,
    mut options: SessionOptions,
    mut asks: mpsc::Receiver<Ask>,
    condition: Arc<Mutex<ConnectionStatus>>,
) {
    let Some(mut session) = session else {
        return refuse_all(&mut asks, "the mount is offline").await;
    };
    let peer = peer(&options.connect.host, options.connect.port);
    // Another server, however trusted, has other files.
    options.connect.fingerprint = Some(session.server());
    loop {
        let tell = |carried| {
            condition.lock().unwrap_or_else(PoisonError::into_inner).carried = carried;
        };
        let served = session.serve(&mut asks, tell).await;
        let Err(error) = served else { return session.close().await };
        drop(session);
        let cause = format!("lost {peer}: {error}");
        tracing::warn!(peer, cause, "server lost");
        {
            let mut it = condition.lock().unwrap_or_else(PoisonError::into_inner);
            (it.up, it.down_since, it.cause) = (false, Some(Instant::now()), Some(cause));
        }
        let Some(next) = again(&options, &mut asks, &condition).await else { return };
        session = next;
        tracing::warn!(peer, "server is back");
        let mut it = condition.lock().unwrap_or_else(PoisonError::into_inner);
        (it.up, it.down_since, it.cause) = (true, None, None);
        it.reconnects += 1;
    }
}

/// Connects until there is a session, and answers meanwhile; none when nobody asks any more.
async fn again(
    options: &SessionOptions,
    asks: &mut mpsc::Receiver<Ask>,
    condition: &Mutex<ConnectionStatus>,
) -> Option<Session> {
    let mut backoff = Backoff::mount(Instant::now().into_std());
    let mut next = backoff.lost(Instant::now().into_std());
    let mut cause = "the server was lost".to_owned();
    while let Next::After(pause) = next {
        let attempt = async {
            sleep(pause).await;
            Session::connect(options.clone()).await
        };
        tokio::pin!(attempt);
        let made: Result<Session, ClientError> = loop {
            tokio::select! {
                made = &mut attempt => break made,
                ask = asks.recv() => refuse(ask?, &cause),
            }
        };
        match made {
            Ok(session) => return Some(session),
            Err(error) => {
                cause = error.to_string();
                next = backoff.failed(&error, Instant::now().into_std());
                let mut it = condition.lock().unwrap_or_else(PoisonError::into_inner);
                it.cause = Some(cause.clone());
            }
        }
    }
    // A mount never gives up.
    None
}

async fn refuse_all(asks: &mut mpsc::Receiver<Ask>, cause: &str) {
    while let Some(ask) = asks.recv().await {
        refuse(ask, cause);
    }
}

fn refuse(ask: Ask, cause: &str) {
    let fault = Fault::new(Code::LinkLost, cause);
    // Whoever gave up needs no answer.
    match ask {
        Ask::Look(_, answer) => drop(answer.send(Err(fault))),
        Ask::List(_, answer) => drop(answer.send(Err(fault))),
        Ask::Describe(_, answer) => drop(answer.send(Err(fault))),
        Ask::Fetch(_, _, answer) => drop(answer.send(Err(fault))),
    }
}
