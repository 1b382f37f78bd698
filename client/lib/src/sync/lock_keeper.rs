//! An idle session that keeps the server's lock on a target between two passes, so that no other
//! run takes it. If the session is lost, the next pass connects another one first. Called by
//! `follow` for remote targets.

use crate::session::Session;
use crate::session::backoff::random;
use tokio::task::JoinHandle;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::connection::options::SessionOptions;
use verbatim_engine::connection::transport::{CarrierOptions, Transport};
use verbatim_proto::{Digest, WirePath};

/// Keeps the lock on a remote target until it is dropped.
pub(crate) struct LockKeeper {
    key: Digest,
    task: Option<JoinHandle<()>>,
}

impl LockKeeper {
    pub fn new() -> Self {
        let words = [(); 4].map(|()| random().to_le_bytes());
        Self { key: Digest::of(words.as_flattened()), task: None }
    }

    /// The key by which the sessions of this run share the lock.
    pub fn key(&self) -> Digest {
        self.key
    }

    /// Connects the session, unless it is alive. Without it no pass could connect either.
    pub async fn connect(&mut self, options: &SessionOptions) -> Result<(), ClientError> {
        if self.task.as_ref().is_some_and(|task| !task.is_finished()) {
            return Ok(());
        }
        // No data moves over it.
        let carrier = CarrierOptions { transport: Transport::Tcp, ..options.carrier.clone() };
        let options = SessionOptions { streams: 1, carrier, trace: None, ..options.clone() };
        let mut session = Session::connect(options).await?;
        session.share(self.key);
        // Requests are answered in order, so an answer to this one means that the key was received.
        drop(session.stat(&WirePath::root()).await?);
        self.task = Some(tokio::spawn(async move { session.keep_alive().await }));
        Ok(())
    }
}

impl Drop for LockKeeper {
    fn drop(&mut self) {
        self.task.iter().for_each(JoinHandle::abort);
    }
}
