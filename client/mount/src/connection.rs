//! The connection to the server: one session at a time, reconnected for as long as the
//! mount lives. Requests that a lost session did not answer are retried until their
//! deadline. While the server is away requests fail at once, so that no reader waits
//! longer than its deadline.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use verbatim_client::model::location::peer;
use verbatim_client::remote_fs::service::{FsRequest, TransportInfo};
use verbatim_client::remote_fs::{Listing, StatInfo};
use verbatim_client::session::Session;
use verbatim_client::session::backoff::{Backoff, RetryDecision};
use verbatim_client::{ClientError, SessionOptions};
use verbatim_engine::local_io::buffer_pool::BufferPool;
use verbatim_engine::local_io::range_buffer::{Priority, RangeBuffer, VerifiedRange};
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Part;
use verbatim_proto::{Code, Fault, Kept, WirePath};

/// Requests that may be queued for the session.
const REQUESTS_MAX: usize = 1024;

/// How long a request waits for a server that was away for longer than the timeout.
const WAIT_MIN: Duration = Duration::from_secs(1);

/// The pause before a request is retried.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The connection of a mount.
pub(crate) struct Connection {
    requests: mpsc::Sender<FsRequest>,
    status: Arc<Mutex<ConnectionStatus>>,
    timeout: Duration,
    buffers: Arc<BufferPool>,
}

/// The state of the connection, as the status reports it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionStatus {
    /// Whether there is a session.
    pub up: bool,
    /// Whether the mount never connects.
    pub offline: bool,
    /// The transport that data moves over, or moved over last.
    pub carried: TransportInfo,
    /// Why there is no session.
    pub cause: Option<String>,
    /// Since when there is no session.
    pub down_since: Option<Instant>,
    /// How often the connection was made again.
    pub reconnects: u64,
}

/// A verified part of a file, with the file's info and metadata.
pub(crate) struct FetchedPart {
    pub info: FileInfo,
    pub meta: Kept,
    pub data: VerifiedRange,
}

impl Connection {
    /// Serves requests over this session and over those that replace it. Without a session every
    /// request fails, and only the cache is served.
    pub fn start(session: Option<Session>, options: SessionOptions) -> Self {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let timeout = options.timeout;
        let offline = session.is_none();
        let cause = offline.then(|| "the mount is offline".to_owned());
        let status =
            ConnectionStatus { up: !offline, offline, cause, ..ConnectionStatus::default() };
        let status = Arc::new(Mutex::new(status));
        tokio::spawn(run_sessions(session, options, receiver, status.clone()));
        Self { requests, status, timeout, buffers: Arc::default() }
    }

    /// The state of the connection now.
    pub fn status(&self) -> ConnectionStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether there is a session.
    pub fn is_up(&self) -> bool {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).up
    }

    /// The entry at a path; a symlink is not followed.
    pub async fn stat(&self, path: &WirePath) -> Result<StatInfo, Fault> {
        self.with_retries(|answer| FsRequest::Stat(path.clone(), answer)).await
    }

    /// The entries of a folder.
    pub async fn list(&self, path: &WirePath) -> Result<Listing, Fault> {
        self.with_retries(|answer| FsRequest::List(path.clone(), answer)).await
    }

    /// The metadata of a folder.
    pub async fn folder_meta(&self, path: &WirePath) -> Result<Kept, Fault> {
        self.with_retries(|answer| FsRequest::Metadata(path.clone(), answer)).await
    }

    /// Fetches a part of a file and verifies it. Fails if the file changed meanwhile.
    pub async fn fetch(
        &self,
        path: &WirePath,
        part: Part,
        priority: Priority,
    ) -> Result<FetchedPart, Fault> {
        self.fetch_until(self.deadline(), path, part, priority).await
    }

    /// Fetches a part like `fetch`, until a deadline of the caller.
    pub async fn fetch_until(
        &self,
        deadline: Instant,
        path: &WirePath,
        part: Part,
        priority: Priority,
    ) -> Result<FetchedPart, Fault> {
        loop {
            match self.try_fetch(path, part, priority.clone(), deadline).await {
                Err(fault) if self.may_retry(&fault, deadline) => sleep(RETRY_DELAY).await,
                answer => return answer,
            }
        }
    }

    /// Fetches a part once; does not wait for a server that is away.
    pub async fn fetch_without_retry(
        &self,
        path: &WirePath,
        part: Part,
    ) -> Result<FetchedPart, Fault> {
        self.try_fetch(path, part, Priority::default(), self.deadline()).await
    }

    /// The deadline of a request sent now. A server that has been away for long costs each reader
    /// at most `WAIT_MIN`.
    pub fn deadline(&self) -> Instant {
        let now = Instant::now();
        let longest = now + self.timeout;
        let down = self.status().down_since.map(|since| since + self.timeout);
        down.map_or(longest, |until| until.clamp(now + WAIT_MIN.min(self.timeout), longest))
    }

    async fn try_fetch(
        &self,
        path: &WirePath,
        part: Part,
        priority: Priority,
        deadline: Instant,
    ) -> Result<FetchedPart, Fault> {
        // A late worker then writes into the buffer of its own attempt.
        let buffer = Arc::new(RangeBuffer::new(part, priority, &self.buffers));
        let request = |answer| FsRequest::Read(path.clone(), buffer.clone(), answer);
        let meta = self.try_once(request, deadline).await?;
        let no_info =
            || Fault::new(Code::Protocol, "the server sent no metadata of the file that it opened");
        let info = buffer.info().ok_or_else(no_info)?;
        let incomplete =
            || Fault::new(Code::Protocol, "the server ended a part before all was there");
        Ok(FetchedPart { info, meta, data: buffer.take().ok_or_else(incomplete)? })
    }

    async fn with_retries<T>(
        &self,
        request: impl Fn(oneshot::Sender<Result<T, Fault>>) -> FsRequest,
    ) -> Result<T, Fault> {
        let deadline = self.deadline();
        loop {
            match self.try_once(&request, deadline).await {
                Err(fault) if self.may_retry(&fault, deadline) => sleep(RETRY_DELAY).await,
                answer => return answer,
            }
        }
    }

    async fn try_once<T>(
        &self,
        request: impl Fn(oneshot::Sender<Result<T, Fault>>) -> FsRequest,
        deadline: Instant,
    ) -> Result<T, Fault> {
        let (answer, receiver) = oneshot::channel();
        let sent = timeout_at(deadline, self.requests.send(request(answer))).await;
        let late = || Fault::new(Code::TimedOut, self.cause_or("no answer in time"));
        match sent {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Fault::new(Code::Stopping, "the mount is ending")),
            Err(_) => return Err(late()),
        }
        match timeout_at(deadline, receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Fault::new(Code::LinkLost, self.cause_or("the server was lost"))),
            Err(_) => Err(late()),
        }
    }

    fn may_retry(&self, fault: &Fault, deadline: Instant) -> bool {
        is_connection_fault(fault)
            && !self.status().offline
            && Instant::now() + RETRY_DELAY < deadline
    }

    /// The cause of the lost session, or a default text.
    fn cause_or(&self, otherwise: &str) -> String {
        self.status().cause.unwrap_or_else(|| otherwise.to_owned())
    }
}

/// Whether the connection failed, not the request.
pub(crate) fn is_connection_fault(fault: &Fault) -> bool {
    matches!(fault.code, Code::LinkLost | Code::TimedOut | Code::Stopping)
}

/// Runs one session after the other until all senders of requests are gone.
async fn run_sessions(
    session: Option<Session>,
    mut options: SessionOptions,
    mut requests: mpsc::Receiver<FsRequest>,
    status: Arc<Mutex<ConnectionStatus>>,
) {
    let Some(mut session) = session else {
        return fail_all(&mut requests, "the mount is offline").await;
    };
    let peer = peer(&options.connect.host, options.connect.port);
    // Another server, even a trusted one, has other files.
    options.connect.fingerprint = Some(session.server());
    loop {
        let set_carried = |carried| {
            status.lock().unwrap_or_else(PoisonError::into_inner).carried = carried;
        };
        let served = session.serve(&mut requests, set_carried).await;
        let Err(error) = served else { return session.close().await };
        drop(session);
        let cause = format!("lost {peer}: {error}");
        tracing::warn!(peer, cause, "server lost");
        {
            let mut it = status.lock().unwrap_or_else(PoisonError::into_inner);
            (it.up, it.down_since, it.cause) = (false, Some(Instant::now()), Some(cause));
        }
        let Some(next) = reconnect(&options, &mut requests, &status).await else { return };
        session = next;
        tracing::warn!(peer, "server is back");
        let mut it = status.lock().unwrap_or_else(PoisonError::into_inner);
        (it.up, it.down_since, it.cause) = (true, None, None);
        it.reconnects += 1;
    }
}

/// Reconnects with backoff and fails requests meanwhile. Returns `None` when all senders of
/// requests are gone.
async fn reconnect(
    options: &SessionOptions,
    requests: &mut mpsc::Receiver<FsRequest>,
    status: &Mutex<ConnectionStatus>,
) -> Option<Session> {
    let mut backoff = Backoff::mount(Instant::now().into_std());
    let mut next = backoff.lost(Instant::now().into_std());
    let mut cause = "the server was lost".to_owned();
    while let RetryDecision::After(pause) = next {
        let attempt = async {
            sleep(pause).await;
            Session::connect(options.clone()).await
        };
        tokio::pin!(attempt);
        let connected: Result<Session, ClientError> = loop {
            tokio::select! {
                connected = &mut attempt => break connected,
                request = requests.recv() => fail_request(request?, &cause),
            }
        };
        match connected {
            Ok(session) => return Some(session),
            Err(error) => {
                cause = error.to_string();
                next = backoff.failed(&error, Instant::now().into_std());
                let mut it = status.lock().unwrap_or_else(PoisonError::into_inner);
                it.cause = Some(cause.clone());
            }
        }
    }
    // The backoff of a mount never gives up.
    None
}

async fn fail_all(requests: &mut mpsc::Receiver<FsRequest>, cause: &str) {
    while let Some(request) = requests.recv().await {
        fail_request(request, cause);
    }
}

fn fail_request(request: FsRequest, cause: &str) {
    let fault = Fault::new(Code::LinkLost, cause);
    // The requester may have timed out.
    match request {
        FsRequest::Stat(_, answer) => drop(answer.send(Err(fault))),
        FsRequest::List(_, answer) => drop(answer.send(Err(fault))),
        FsRequest::Metadata(_, answer) => drop(answer.send(Err(fault))),
        FsRequest::Read(_, _, answer) => drop(answer.send(Err(fault))),
    }
}
