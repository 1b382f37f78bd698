//! Watches a source, remote or local: a stream of its changes. The first batch says `rescan`, and
//! so does the first one after changes may have been missed. The watch waits for a server that
//! restarts and a folder that is replaced. A source that cannot be watched, and a rejected client,
//! are errors. Used by mirrors that follow a source, and by mounts.

pub mod local;
pub mod remote;

use crate::session::backoff::{Backoff, RetryDecision};
use crate::watch::local::LocalWatch;
use crate::watch::remote::RemoteWatch;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use verbatim_control::ConnectOptions;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::connection::error::fault_of;
use verbatim_proto::{Changes, Code, Excludes, Fault, Watch};

/// An event of a watched source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// Changes of the source.
    Changed(Changes),
    /// A scan of a local folder found this many changes that no event had reported; the changes
    /// follow.
    Healed(u64),
    /// The source is lost, with the cause. The watch retries, and then continues with `rescan`.
    Lost(Fault),
}

/// A watch of a source, until it is dropped.
#[derive(Debug)]
pub struct SourceWatch {
    heard: mpsc::Receiver<Result<WatchEvent, ClientError>>,
}

type EventSender = mpsc::Sender<Result<WatchEvent, ClientError>>;

enum Source {
    Remote(Box<RemoteWatch>),
    Local(LocalWatch),
}

impl SourceWatch {
    /// Watches a remote folder over a session of its own. After `timeout` without a message the
    /// server is lost. Needs a tokio runtime.
    pub fn remote(connect: ConnectOptions, timeout: Duration, watch: Watch) -> Self {
        Self::of(Source::Remote(Box::new(RemoteWatch::new(connect, timeout, watch))))
    }

    /// Watches a local folder. Needs a tokio runtime.
    pub fn local(path: PathBuf, excludes: Excludes) -> Self {
        Self::of(Source::Local(LocalWatch::new(path, excludes)))
    }

    fn of(source: Source) -> Self {
        // Changes that wait are merged where they are collected, within a bound.
        let (out, heard) = mpsc::channel(1);
        tokio::spawn(watch_with_retry(source, out));
        Self { heard }
    }

    /// Waits for the next event. An error is the last one.
    pub async fn next(&mut self) -> Result<WatchEvent, ClientError> {
        let over = || Err(Fault::new(Code::Bug, "watching has ended").into());
        self.heard.recv().await.unwrap_or_else(over)
    }
}

/// Watches until the receiver is dropped, and retries when the source is lost.
async fn watch_with_retry(mut source: Source, out: EventSender) {
    let (mut backoff, mut loss_reported) = (Backoff::watch(Instant::now()), false);
    loop {
        let mut began = false;
        let attended = match &mut source {
            Source::Remote(remote) => remote.run(&out, &mut began).await,
            Source::Local(local) => local.run(&out, &mut began).await,
        };
        if began {
            backoff.succeeded();
            loss_reported = false;
        }
        // The receiver was dropped.
        let Err(error) = attended else { return };
        let RetryDecision::After(pause) = backoff.failed(&error, Instant::now()) else {
            return drop(out.send(Err(error)).await);
        };
        // Reported once for each loss.
        if !loss_reported && out.send(Ok(WatchEvent::Lost(fault_of(&error)))).await.is_err() {
            return;
        }
        loss_reported = true;
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = out.closed() => {}
        }
    }
}
