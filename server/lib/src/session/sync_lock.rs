//! Locks of sync targets: one session locks a folder, and all sessions can name the client that has
//! it. A job that still changes the folder keeps the lock after its session has ended. Sessions of
//! one run (`--watch`) hand the lock to each other, so the target stays locked between two passes.
//!
//! Owns these locks and the time that a request waits for one. `mirror` asks for them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use verbatim_files::hold::{Hold, NotHeld, describe_process, which};
use verbatim_proto::{Code, Digest, Fault, Twin, WirePath};

/// How long a request waits for a lock that an earlier session has not released.
pub(super) const HELD_MAX: Duration = Duration::from_secs(2);

/// How often a request retries the lock.
pub(super) const HELD_LOOK_EVERY: Duration = Duration::from_millis(20);

/// The locks of all sessions.
#[derive(Default)]
pub(crate) struct LockRegistry {
    /// The client that locked each folder.
    holders: Mutex<HashMap<Twin, String>>,
    /// The locks of runs, by client and key of the run; at least one session has each.
    keepers: Mutex<HashMap<(String, Digest), Weak<RunLock>>>,
}

impl LockRegistry {
    /// Lists a folder as locked by a client.
    pub fn list(&self, folder: Twin, who: &str) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        holders.insert(folder, who.to_owned());
    }

    /// Lists a folder as not locked.
    pub fn unlist(&self, folder: Twin) {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner).remove(&folder);
    }
}

/// The lock of a run on its target, while none of its sessions uses the target.
pub(crate) struct RunLock {
    who: String,
    key: Digest,
    hold: Mutex<Option<Hold>>,
    registry: Arc<LockRegistry>,
}

impl RunLock {
    /// The lock of a run, which all of its sessions share.
    pub fn of(registry: &Arc<LockRegistry>, who: &str, key: Digest) -> Arc<Self> {
        let mut keepers = registry.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = keepers.get(&(who.to_owned(), key)).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let (who, hold) = (who.to_owned(), Mutex::default());
            let run = Arc::new(Self { who, key, hold, registry: registry.clone() });
            keepers.insert((run.who.clone(), key), Arc::downgrade(&run));
            run
        })
    }

    /// Takes the lock, if it is of this folder.
    fn take(&self, folder: Twin) -> Option<Hold> {
        let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        hold.take_if(|hold| hold.folder == folder)
    }

    /// Keeps a lock for the next session, and releases the one before.
    pub fn put(&self, hold: Hold) {
        let folder = hold.folder;
        let mut kept = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        self.registry.list(folder, &self.who);
        let old = kept.replace(hold);
        drop(kept);
        // Unlisted before its release: the next owner lists itself.
        old.iter().for_each(|old| self.registry.unlist(old.folder));
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        let hold = self.hold.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        hold.iter().for_each(|hold| self.registry.unlist(hold.folder));
        let mut keepers = self.registry.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (self.who.clone(), self.key);
        // Another session of the run may have registered a new one meanwhile.
        if keepers.get(&name).is_some_and(|run| run.strong_count() == 0) {
            keepers.remove(&name);
        }
    }
}

/// The lock of a session on a target. The registry lists its client.
pub(crate) struct SyncLock {
    pub folder: Twin,
    hold: Option<Hold>,
    run: Option<Arc<RunLock>>,
    registry: Arc<LockRegistry>,
}

impl Drop for SyncLock {
    fn drop(&mut self) {
        match (self.hold.take(), &self.run) {
            (Some(hold), Some(run)) => run.put(hold),
            _ => self.registry.unlist(self.folder),
        }
    }
}

/// A staging tree, as jobs that change it see it.
pub(super) trait StagingTree: Send + Sync {
    /// The path of the tree, export first.
    fn path(&self) -> &WirePath;

    /// Restores an entry of the tree to the target's version: `path` is below the export, `below`
    /// is below the tree.
    fn revert(&self, path: &WirePath, below: &WirePath) -> Result<(), Fault>;
}

/// The locks that a job keeps while it changes a target: no other client may lock the target before
/// the job is done, even if its session has ended.
pub(super) struct LockCarrier {
    /// Whether the client is gone.
    pub cancelled: Arc<AtomicBool>,
    pub _locks: Vec<Arc<SyncLock>>,
    pub trees: Vec<Arc<dyn StagingTree>>,
}

impl LockCarrier {
    /// Refuses changes for a client that is gone: it may reconnect with others.
    pub fn check_client(&self) -> Result<(), Fault> {
        match self.cancelled.load(Ordering::Relaxed) {
            true => Err(Fault::new(Code::Interrupted, "the client is gone")),
            false => Ok(()),
        }
    }

    /// The staging tree that a path is in, and the path below its root.
    pub fn tree_of(&self, path: &WirePath) -> Option<(&dyn StagingTree, WirePath)> {
        let tree = self.trees.iter().find(|tree| path.is_below(tree.path()))?;
        let below = path.as_bytes().get(tree.path().as_bytes().len()..)?;
        Some((&**tree, WirePath::parse(below).ok()?))
    }
}

/// The client that asks for a lock.
pub(super) struct LockOwner<'a> {
    pub registry: &'a Arc<LockRegistry>,
    pub who: &'a str,
    /// The lock that its run keeps between two sessions.
    pub run: Option<&'a Arc<RunLock>>,
}

impl LockOwner<'_> {
    /// Locks a folder, and lists its client. Waits briefly for an earlier session of the client
    /// that has not released the lock.
    pub fn take(
        &self,
        path: &WirePath,
        open: impl Fn() -> Result<OwnedFd, Fault>,
    ) -> Result<SyncLock, Fault> {
        let what = format!("cannot hold {path}");
        let taken = wait_for_lock(|| {
            let fd = open().map_err(NotHeld::Fault)?;
            let folder = which(&fd).map_err(|e| NotHeld::Fault(Fault::from_io(&what, &e)))?;
            let hold = match self.take_kept(folder) {
                Some(hold) => hold,
                None => self.take_free(fd, &what)?,
            };
            let (run, registry) = (self.run.cloned(), self.registry.clone());
            Ok(SyncLock { folder, hold: Some(hold), run, registry })
        });
        taken.map_err(|error| self.why_not(error, path, open))
    }

    /// Takes the lock of the run, if it is of this folder.
    pub fn take_kept(&self, folder: Twin) -> Option<Hold> {
        self.run?.take(folder)
    }

    fn take_free(&self, fd: OwnedFd, what: &str) -> Result<Hold, NotHeld> {
        // No other session may look up the owner in between.
        let mut holders = self.registry.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let hold = Hold::take(fd, what)?;
        holders.insert(hold.folder, self.who.to_owned());
        Ok(hold)
    }

    /// The error that names the owner of the lock.
    pub fn why_not(
        &self,
        error: NotHeld,
        path: &WirePath,
        open: impl Fn() -> Result<OwnedFd, Fault>,
    ) -> Fault {
        match error {
            NotHeld::Fault(fault) => fault,
            NotHeld::By(process) => {
                let folder = open().ok().and_then(|fd| which(fd).ok());
                let holders = self.registry.holders.lock().unwrap_or_else(PoisonError::into_inner);
                held_by(&holders, folder, process, path)
            }
        }
    }
}

/// Retries a lock until `HELD_MAX`: a disconnected client often reconnects before the last change
/// of its session is done.
pub(super) fn wait_for_lock<T>(mut take: impl FnMut() -> Result<T, NotHeld>) -> Result<T, NotHeld> {
    let until = Instant::now() + HELD_MAX;
    loop {
        match take() {
            Err(NotHeld::By(_)) if Instant::now() < until => std::thread::sleep(HELD_LOOK_EVERY),
            taken => return taken,
        }
    }
}

/// The error that names the client or process with the lock.
fn held_by(
    holders: &HashMap<Twin, String>,
    folder: Option<Twin>,
    process: Option<u32>,
    path: &WirePath,
) -> Fault {
    let client = folder.and_then(|folder| holders.get(&folder));
    let client = client.map(|who| format!("client {who}"));
    let process = process.map(|id| format!("{} on the server", describe_process(id)));
    let by = client.or(process).unwrap_or_else(|| "another process".into());
    Fault::new(Code::Limit, format!("{path} is being synchronised by {by}"))
}
