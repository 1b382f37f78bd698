//! Who may come in now: keys and tokens as their files say, looked at four times
//! a second while the server runs. Owns the policy of the door and tells the
//! sessions when it changes, so that a key that is taken away ends what runs
//! under it. A file that cannot be read changes nothing and is complained about:
//! a slip of an editor must not end everybody's work.

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
        let (looks, mut looked) = mpsc::channel(1);
        let door = acceptor.clone();
        // A thread of its own: those for files may all be at work for somebody whose key was just
        // taken away, and a file system that does not answer keeps nobody else.
        let looking = Builder::new().name("keys".into()).spawn(move || self.follow(&door, &looks));
        if let Err(error) = looking {
            tracing::error!(%error, "keys are not followed: those of now count until a restart");
        }
        let task = tokio::spawn(async move {
            let mut complaint = String::new();
            loop {
                let read = match timeout(LOOK_EVERY + LOOK_MAX, looked.recv()).await {
                    Ok(read) => read,
                    Err(_) => {
                        tracing::error!("keys not read: their files do not answer");
                        looked.recv().await
                    }
                };
                let Some(read) = read else { return };
                if let Some(read) = read {
                    change(read, &acceptor, &sender, &mut complaint);
                }
            }
        });
        Watch { policies, task }
    }

    /// Looks at the files, and tells what it read, until nobody wants to know.
    fn follow(self, acceptor: &Acceptor, looks: &mpsc::Sender<Option<Read>>) {
        // What was read before may be older than what is there now: look once more.
        let (mut known, mut last) = (None, None);
        // Whoever took all other descriptors hides no key that was taken away from him.
        let mut spare = None;
        loop {
            spare = spare.or_else(|| std::io::stdin().as_fd().try_clone_to_owned().ok());
            std::thread::sleep(LOOK_EVERY);
            let (now, read) = self.look(known, last, &acceptor.policy(), &mut spare);
            // What could not be read may be the next time, and be no other.
            if let Some(read) = &read {
                known = read.is_ok().then_some(now);
            }
            last = Some(now);
            if looks.blocking_send(read).is_err() {
                return;
            }
        }
    }

    /// Looks at the files, and reads them when they changed and are seen twice the same. They are
    /// opened one after the other, in the place of the spare descriptor.
    fn look(
        &self,
        known: Option<[Stamp; 2]>,
        last: Option<[Stamp; 2]>,
        base: &Policy,
        spare: &mut Option<OwnedFd>,
    ) -> ([Stamp; 2], Option<Read>) {
        let now = self.stamps();
        let changed = Some(now) != known && Some(now) == last;
        let read = changed.then(|| {
            drop(spare.take());
            self.policy(base)
        });
        (now, read)
    }
}

/// What came of reading the files.
type Read = Result<Policy, ControlError>;

/// Lets in by what was read, if it is other than before. What is complained about is said once.
fn change(
    read: Read,
    acceptor: &Acceptor,
    sessions: &watch::Sender<Arc<Policy>>,
    complaint: &mut String,
) {
    let before = acceptor.policy();
    let said = std::mem::take(complaint);
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
            *complaint = error.to_string();
            if *complaint != said {
                let hint = error.hint().unwrap_or_default();
                tracing::error!(%error, hint, "keys not read: those of before count");
            }
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
