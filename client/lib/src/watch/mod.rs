//! A source that is watched, remote or local alike: a stream of what changed in
//! it. The first batch, and the first after anything may have been missed, says
//! `rescan`. A server that restarts, and a folder that is replaced, are waited
//! for; what cannot be watched at all, and whoever is not let in, is an error.
//! Called by who keeps a copy current.

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

/// What is heard of a watched source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// What changed.
    Changed(Changes),
    /// So many changes of a local folder were found that no event told; they are told next.
    Healed(u64),
    /// Nothing can be heard just now, and why. It is tried again, and then begins with `rescan`.
    Lost(Fault),
}

/// A source that is watched until this is dropped.
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
    /// Watches a remote folder, over a session of its own. A server that is silent for
    /// `timeout` is lost. Needs a tokio runtime.
    pub fn remote(connect: ConnectOptions, timeout: Duration, watch: Watch) -> Self {
        Self::of(Source::Remote(Box::new(RemoteWatch::new(connect, timeout, watch))))
    }

    /// Watches a local folder. Needs a tokio runtime.
    pub fn local(path: PathBuf, excludes: Excludes) -> Self {
        Self::of(Source::Local(LocalWatch::new(path, excludes)))
    }

    fn of(source: Source) -> Self {
        // What is not taken yet waits where it is collected, which knows how much may.
        let (out, heard) = mpsc::channel(1);
        tokio::spawn(watch_with_retry(source, out));
        Self { heard }
    }

    /// What is heard next. An error is the end of it.
    pub async fn next(&mut self) -> Result<WatchEvent, ClientError> {
        let over = || Err(Fault::new(Code::Bug, "watching has ended").into());
        self.heard.recv().await.unwrap_or_else(over)
    }
}

/// Watches for as long as somebody listens, beginning again when the source was lost.
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
        // Nobody listens any more.
        let Err(error) = attended else { return };
        let RetryDecision::After(pause) = backoff.failed(&error, Instant::now()) else {
            return drop(out.send(Err(error)).await);
        };
        // Once for each time it is lost.
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
