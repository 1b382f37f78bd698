//! A session that does nothing but stay: with it a server keeps a target for a run
//! between two passes, so that no other run takes it meanwhile. Where it is lost,
//! the next pass makes another first. Called by `follow` for targets on a server.

use crate::session::Session;
use crate::session::backoff::random;
use tokio::task::JoinHandle;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::connection::options::SessionOptions;
use verbatim_engine::connection::transport::{CarrierOptions, Transport};
use verbatim_proto::{Digest, WirePath};

/// What stays between two passes, until this is dropped.
pub(crate) struct LockKeeper {
    key: Digest,
    task: Option<JoinHandle<()>>,
}

impl LockKeeper {
    pub fn new() -> Self {
        let words = [(); 4].map(|()| random().to_le_bytes());
        Self { key: Digest::of(words.as_flattened()), task: None }
    }

    /// What the sessions of this run say to be known as such.
    pub fn key(&self) -> Digest {
        self.key
    }

    /// Makes the session where there is none. Where it cannot be had no pass can be made either.
    pub async fn connect(&mut self, options: &SessionOptions) -> Result<(), ClientError> {
        if self.task.as_ref().is_some_and(|task| !task.is_finished()) {
            return Ok(());
        }
        // No data moves over it.
        let carrier = CarrierOptions { transport: Transport::Tcp, ..options.carrier.clone() };
        let options = SessionOptions { streams: 1, carrier, trace: None, ..options.clone() };
        let mut session = Session::connect(options).await?;
        session.share(self.key);
        // What is asked behind that is answered behind it; what the answer is does not matter.
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
