//! Locks of targets that mirrors write: one session locks a folder, all sessions know which client
//! locked it, and a job that still changes the folder keeps the lock when its session is over.
//! Sessions of one run hand a lock on to one another: a run that follows its source has its target
//! locked between two passes as well, by a session that only stays. Owns these locks and how long a
//! request waits for one; `mirror` asks for them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use verbatim_files::hold::{Hold, NotHeld, describe_process, which};
use verbatim_proto::{Code, Digest, Fault, Twin, WirePath};

/// How long a request waits for what an earlier session still holds, with all its files.
pub(super) const HELD_MAX: Duration = Duration::from_secs(2);

/// How often it is looked whether it still must.
pub(super) const HELD_LOOK_EVERY: Duration = Duration::from_millis(20);

/// The locks of all sessions.
#[derive(Default)]
pub(crate) struct LockRegistry {
    /// Which client locked which folder.
    holders: Mutex<HashMap<Twin, String>>,
    /// What runs keep, by their client and key; at least one session has each.
    keepers: Mutex<HashMap<(String, Digest), Weak<Kept>>>,
}

impl LockRegistry {
    /// Lets all sessions know who holds a folder.
    pub fn list(&self, folder: Twin, who: &str) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        holders.insert(folder, who.to_owned());
    }

    /// Lets all sessions know that nobody does.
    pub fn unlist(&self, folder: Twin) {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner).remove(&folder);
    }
}

/// A target that a run has while none of its sessions is at it.
pub(crate) struct Kept {
    who: String,
    key: Digest,
    hold: Mutex<Option<Hold>>,
    registry: Arc<LockRegistry>,
}

impl Kept {
    /// That of a run; all of its sessions have the same one.
    pub fn of(registry: &Arc<LockRegistry>, who: &str, key: Digest) -> Arc<Self> {
        let mut keepers = registry.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = keepers.get(&(who.to_owned(), key)).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let (who, hold) = (who.to_owned(), Mutex::default());
            let kept = Arc::new(Self { who, key, hold, registry: registry.clone() });
            keepers.insert((kept.who.clone(), key), Arc::downgrade(&kept));
            kept
        })
    }

    /// Takes the hold of this folder, if it is what is kept.
    fn take(&self, folder: Twin) -> Option<Hold> {
        let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        hold.take_if(|hold| hold.folder == folder)
    }

    /// Keeps a hold for the next session, in place of what was kept.
    pub fn put(&self, hold: Hold) {
        let folder = hold.folder;
        let mut kept = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        self.registry.list(folder, &self.who);
        let old = kept.replace(hold);
        drop(kept);
        // Before it is let go of: who has it then is listed by himself.
        old.iter().for_each(|old| self.registry.unlist(old.folder));
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let hold = self.hold.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        hold.iter().for_each(|hold| self.registry.unlist(hold.folder));
        let mut keepers = self.registry.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (self.who.clone(), self.key);
        // Another session of the run may have come meanwhile, and has a new one.
        if keepers.get(&name).is_some_and(|kept| kept.strong_count() == 0) {
            keepers.remove(&name);
        }
    }
}

/// A target that is held, and known to all sessions by who holds it.
pub(crate) struct Held {
    pub folder: Twin,
    hold: Option<Hold>,
    kept: Option<Arc<Kept>>,
    registry: Arc<LockRegistry>,
}

impl Drop for Held {
    fn drop(&mut self) {
        match (self.hold.take(), &self.kept) {
            (Some(hold), Some(kept)) => kept.put(hold),
            _ => self.registry.unlist(self.folder),
        }
    }
}

/// A tree that the server builds beside a target, as jobs know it that change it.
pub(super) trait StagingTree: Send + Sync {
    /// Where the tree is, export first.
    fn path(&self) -> &WirePath;

    /// Makes something of the tree what the target has: at `path` below the export, and at `below`
    /// of the tree.
    fn revert(&self, path: &WirePath, below: &WirePath) -> Result<(), Fault>;
}

/// What a job keeps that changes a target: nobody else may have the target before it is done,
/// also where its session is over.
pub(super) struct Keeping {
    /// Whether nobody waits for answers any more.
    pub over: Arc<AtomicBool>,
    pub _held: Vec<Arc<Held>>,
    pub stages: Vec<Arc<dyn StagingTree>>,
}

impl Keeping {
    /// Refuses what was to be done for a client that is gone: it may come back with other wishes.
    pub fn go_on(&self) -> Result<(), Fault> {
        match self.over.load(Ordering::Relaxed) {
            true => Err(Fault::new(Code::Interrupted, "the client is gone")),
            false => Ok(()),
        }
    }

    /// The tree beside a target that a path is in, and the path from the root of that tree.
    pub fn staging_of(&self, path: &WirePath) -> Option<(&dyn StagingTree, WirePath)> {
        let staging = self.stages.iter().find(|staging| path.is_below(staging.path()))?;
        let below = path.as_bytes().get(staging.path().as_bytes().len()..)?;
        Some((&**staging, WirePath::parse(below).ok()?))
    }
}

/// For whom a target is held.
pub(super) struct Holder<'a> {
    pub registry: &'a Arc<LockRegistry>,
    pub who: &'a str,
    /// What its run keeps between two sessions.
    pub kept: Option<&'a Arc<Kept>>,
}

impl Holder<'_> {
    /// Holds a folder for a client, who is named to all others that want it. What an earlier
    /// session of it has not let go of yet is waited for a little.
    pub fn take(
        &self,
        path: &WirePath,
        open: impl Fn() -> Result<OwnedFd, Fault>,
    ) -> Result<Held, Fault> {
        let what = format!("cannot hold {path}");
        let taken = wait_for_hold(|| {
            let fd = open().map_err(NotHeld::Fault)?;
            let folder = which(&fd).map_err(|e| NotHeld::Fault(Fault::from_io(&what, &e)))?;
            let hold = match self.take_kept(folder) {
                Some(hold) => hold,
                None => self.take_free(fd, &what)?,
            };
            let (kept, registry) = (self.kept.cloned(), self.registry.clone());
            Ok(Held { folder, hold: Some(hold), kept, registry })
        });
        taken.map_err(|error| self.why_not(error, path, open))
    }

    /// Takes what the run kept, if it is this folder.
    pub fn take_kept(&self, folder: Twin) -> Option<Hold> {
        self.kept?.take(folder)
    }

    fn take_free(&self, fd: OwnedFd, what: &str) -> Result<Hold, NotHeld> {
        // Nobody asks in between who holds it.
        let mut holders = self.registry.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let hold = Hold::take(fd, what)?;
        holders.insert(hold.folder, self.who.to_owned());
        Ok(hold)
    }

    /// Says why a target is not held, and by whom it is.
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

/// Tries to hold something until it is held, or has been somebody else's for too long: a client
/// that was cut off is often back before the last change of its session is done.
pub(super) fn wait_for_hold<T>(mut take: impl FnMut() -> Result<T, NotHeld>) -> Result<T, NotHeld> {
    let until = Instant::now() + HELD_MAX;
    loop {
        match take() {
            Err(NotHeld::By(_)) if Instant::now() < until => std::thread::sleep(HELD_LOOK_EVERY),
            taken => return taken,
        }
    }
}

/// Says who has a target.
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
