//! Reloads authorized keys and tokens: polls their files four times a second while the
//! server runs. Owns the authentication policy, and notifies sessions of changes, so that a
//! revoked key ends the sessions that it began. An unreadable file is logged and changes
//! nothing: an editing mistake must not disconnect all clients. Certificates are not reloaded:
//! `server` reads them once, when it starts.

use crate::config::Config;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use verbatim_control::{Acceptor, AuthorizedKeys, ControlError, Policy, Token, TokenStore};

/// How often the files are polled. A change counts when two polls see the same state, so that a
/// half-written file is not read as an empty one.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How long their file system may take before an error is logged.
const POLL_TIME_MAX: Duration = Duration::from_secs(10);

/// The files of authorized keys and tokens.
#[derive(Clone)]
pub(crate) struct CredentialFiles {
    authorized_keys: PathBuf,
    tokens: TokenStore,
    /// Tokens in no file, valid as long as this process lives.
    ephemeral_tokens: Vec<Token>,
}

impl CredentialFiles {
    pub fn new(config: &Config, ephemeral_tokens: Vec<Token>) -> Self {
        let tokens = TokenStore::in_dir(&config.state_dir());
        Self { authorized_keys: config.authorized_keys_path(), tokens, ephemeral_tokens }
    }

    /// Reads the files into a policy that is otherwise like `base`.
    pub fn policy(&self, base: &Policy) -> Result<Policy, ControlError> {
        let authorized = AuthorizedKeys::load(&self.authorized_keys)?;
        let mut tokens = self.tokens.load()?;
        self.ephemeral_tokens.iter().for_each(|token| tokens.insert(token.clone()));
        Ok(Policy { authorized, tokens, ..base.clone() })
    }

    fn stamps(&self) -> [FileStamp; 2] {
        [file_stamp(&self.authorized_keys), file_stamp(self.tokens.path())]
    }

    /// Polls the files until the returned watch is dropped.
    pub fn watch(self, acceptor: Arc<Acceptor>) -> CredentialsWatch {
        let (policies, _) = watch::channel(acceptor.policy());
        let sender = policies.clone();
        let (results, mut received) = mpsc::channel(1);
        let door = acceptor.clone();
        // A thread of its own: a client whose key was just revoked may occupy all file threads, and
        // a file system that does not answer must block no other work.
        let thread = Builder::new().name("keys".into()).spawn(move || self.poll(&door, &results));
        if let Err(error) = thread {
            tracing::error!(%error, "keys are not followed: those of now count until a restart");
        }
        let task = tokio::spawn(async move {
            let mut last_error = String::new();
            loop {
                let read = match timeout(POLL_INTERVAL + POLL_TIME_MAX, received.recv()).await {
                    Ok(read) => read,
                    Err(_) => {
                        tracing::error!("keys not read: their file system does not answer");
                        received.recv().await
                    }
                };
                let Some(read) = read else { return };
                if let Some(read) = read {
                    apply(read, &acceptor, &sender, &mut last_error);
                }
            }
        });
        CredentialsWatch { policies, task }
    }

    /// Polls the files and sends each result, until the receiver is dropped.
    fn poll(self, acceptor: &Acceptor, results: &mpsc::Sender<Option<LoadResult>>) {
        // The files may have changed since the policy was first read: read them once more.
        let (mut known, mut last) = (None, None);
        // A client that exhausts the descriptors must not prevent the revocation of its key.
        let mut spare = None;
        loop {
            spare = spare.or_else(|| std::io::stdin().as_fd().try_clone_to_owned().ok());
            std::thread::sleep(POLL_INTERVAL);
            let (now, read) = self.poll_once(known, last, &acceptor.policy(), &mut spare);
            // Retry after an error, even if the files stay the same.
            if let Some(read) = &read {
                known = read.is_ok().then_some(now);
            }
            last = Some(now);
            if results.blocking_send(read).is_err() {
                return;
            }
        }
    }

    /// Polls once, and reads the files if they changed and two polls saw the same state. Opens one
    /// file at a time, with the spare descriptor.
    fn poll_once(
        &self,
        known: Option<[FileStamp; 2]>,
        last: Option<[FileStamp; 2]>,
        base: &Policy,
        spare: &mut Option<OwnedFd>,
    ) -> ([FileStamp; 2], Option<LoadResult>) {
        let now = self.stamps();
        let changed = Some(now) != known && Some(now) == last;
        let read = changed.then(|| {
            drop(spare.take());
            self.policy(base)
        });
        (now, read)
    }
}

/// The policy read from the files, or why they could not be read.
type LoadResult = Result<Policy, ControlError>;

/// Applies a changed policy; logs the same error once.
fn apply(
    read: LoadResult,
    acceptor: &Acceptor,
    sessions: &watch::Sender<Arc<Policy>>,
    last_error: &mut String,
) {
    let before = acceptor.policy();
    let previous = std::mem::take(last_error);
    match read {
        Ok(policy) if policy.authorized == before.authorized && policy.tokens == before.tokens => {}
        Ok(policy) => {
            let (keys, tokens) = (policy.authorized.names().count(), policy.tokens.iter().count());
            let policy = Arc::new(policy);
            acceptor.change_policy(policy.clone());
            sessions.send_replace(policy);
            tracing::info!(keys, tokens, "keys read");
        }
        Err(error) => {
            *last_error = error.to_string();
            if *last_error != previous {
                let hint = error.hint().unwrap_or_default();
                tracing::error!(%error, hint, "keys not read: the previous keys stay valid");
            }
        }
    }
}

/// The running poll; dropping it ends it.
pub(crate) struct CredentialsWatch {
    /// The current policy.
    pub policies: watch::Sender<Arc<Policy>>,
    task: JoinHandle<()>,
}

impl Drop for CredentialsWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Inode, size and times of a file; `None` for a missing file.
type FileStamp = Option<(u64, u64, i64, i64, i64, i64)>;

fn file_stamp(path: &Path) -> FileStamp {
    let found = std::fs::metadata(path).ok()?;
    let (changed, written) = (found.ctime(), found.mtime());
    Some((found.ino(), found.size(), changed, found.ctime_nsec(), written, found.mtime_nsec()))
}
