//! Who may come in now: keys and tokens as their files say, looked at four times
//! a second while the server runs. Owns the policy of the door and tells the
//! sessions when it changes, so that a key that is taken away ends what runs
//! under it. A file that cannot be read changes nothing and is complained about:
//! a slip of an editor must not end everybody's work.

use crate::config::Config;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use verbatim_control::{Acceptor, AuthorizedKeys, ControlError, Policy, Token, TokenStore};

/// How often the files are looked at. A change counts when it is seen twice the same, so that
/// a file that is just being written is not taken for an empty one.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long their file system may take before that is complained about.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// The files that say who may come in.
#[derive(Clone)]
pub(crate) struct Keyring {
    authorized_keys: PathBuf,
    tokens: TokenStore,
    /// Those that are in no file, and live as long as this process.
    passing: Vec<Token>,
}

impl Keyring {
    pub fn new(config: &Config, passing: Vec<Token>) -> Self {
        let tokens = TokenStore::in_dir(&config.state_dir());
        Self { authorized_keys: config.authorized_keys_path(), tokens, passing }
    }

    /// Reads the files into a policy that is otherwise like `base`.
    pub fn policy(&self, base: &Policy) -> Result<Policy, ControlError> {
        let authorized = AuthorizedKeys::load(&self.authorized_keys)?;
        let mut tokens = self.tokens.load()?;
        self.passing.iter().for_each(|token| tokens.insert(token.clone()));
        Ok(Policy { authorized, tokens, ..base.clone() })
    }

    fn stamps(&self) -> [Stamp; 2] {
        [stamp(&self.authorized_keys), stamp(self.tokens.path())]
    }

    /// Looks at the files from now on, for as long as the returned watch lives.
    pub fn watch(self, acceptor: Arc<Acceptor>) -> Watch {
        let (policies, _) = watch::channel(acceptor.policy());
        let sender = policies.clone();
        let task = tokio::spawn(async move {
            // What was read before may be older than what is there now: look once more.
            let (mut known, mut last) = (None, None);
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let (ring, base) = (self.clone(), acceptor.policy());
                let mut job = tokio::task::spawn_blocking(move || ring.look(known, last, &base));
                // A file system that does not answer keeps the job, and nobody else.
                let looked = match timeout(LOOK_MAX, &mut job).await {
                    Ok(looked) => looked,
                    Err(_) => {
                        tracing::error!("keys not read: their files do not answer");
                        job.await
                    }
                };
                let Ok((now, read)) = looked else { return };
                if let Some(read) = read {
                    known = Some(now);
                    change(read, &acceptor, &sender);
                }
                last = Some(now);
            }
        });
        Watch { policies, task }
    }

    /// Looks at the files, and reads them when they changed and are seen twice the same.
    fn look(
        &self,
        known: Option<[Stamp; 2]>,
        last: Option<[Stamp; 2]>,
        base: &Policy,
    ) -> ([Stamp; 2], Option<Result<Policy, ControlError>>) {
        let now = self.stamps();
        let changed = Some(now) != known && Some(now) == last;
        (now, changed.then(|| self.policy(base)))
    }
}

/// Lets in by what was read, if it is other than before.
fn change(
    read: Result<Policy, ControlError>,
    acceptor: &Acceptor,
    sessions: &watch::Sender<Arc<Policy>>,
) {
    let before = acceptor.policy();
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
            let hint = error.hint().unwrap_or_default();
            tracing::error!(%error, hint, "keys not read: those of before count");
        }
    }
}

/// A running look at the files; dropping it ends it.
pub(crate) struct Watch {
    /// What counts now.
    pub policies: watch::Sender<Arc<Policy>>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What changes when a file does; none for no file.
type Stamp = Option<(u64, u64, i64, i64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    let (changed, written) = (found.ctime(), found.mtime());
    Some((found.ino(), found.size(), changed, found.ctime_nsec(), written, found.mtime_nsec()))
}
