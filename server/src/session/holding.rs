//! Targets that mirrors hold: one session has a folder, all know whose it is, and a
//! job that still changes it keeps it when its session is over. Owns these holds;
//! what is done in a target is said by `mirror` and `staging`.

use super::Shared;
use super::staging::Staging;
use super::writing::{HELD_LOOK_EVERY, HELD_MAX};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use verbatim_files::hold::{Hold, NotHeld, describe_process, which};
use verbatim_proto::{Code, Fault, Twin, WirePath};

/// A target that is held, and known to all sessions by who holds it.
pub(crate) struct Held {
    pub hold: Hold,
    shared: Arc<Shared>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut holders = self.shared.holders.lock().unwrap_or_else(PoisonError::into_inner);
        holders.remove(&self.hold.folder);
    }
}

/// What a job keeps that changes a target: nobody else may have the target before it is done,
/// also where its session is over.
pub(super) struct Keeping {
    /// Whether nobody waits for answers any more.
    pub over: Arc<AtomicBool>,
    pub _held: (Vec<Arc<Held>>, Vec<Arc<Staging>>),
}

impl Keeping {
    /// Refuses what was to be done for a client that is gone: it may come back with other wishes.
    pub fn go_on(&self) -> Result<(), Fault> {
        match self.over.load(Ordering::Relaxed) {
            true => Err(Fault::new(Code::Interrupted, "the client is gone")),
            false => Ok(()),
        }
    }
}

/// Who holds which target, over all sessions.
pub(crate) type Holders = std::sync::Mutex<HashMap<Twin, String>>;

/// Holds a folder for a client, who is named to all others that want it. What an earlier session
/// of it has not let go of yet is waited for a little.
pub(super) fn take_hold(
    shared: &Arc<Shared>,
    who: &str,
    path: &WirePath,
    open: impl Fn() -> Result<OwnedFd, Fault>,
) -> Result<Held, Fault> {
    let taken = wait_for_hold(|| {
        let fd = open().map_err(NotHeld::Fault)?;
        // Nobody asks in between who holds it.
        let mut holders = shared.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let hold = Hold::take(fd, &format!("cannot hold {path}"))?;
        holders.insert(hold.folder, who.to_owned());
        drop(holders);
        Ok(Held { hold, shared: shared.clone() })
    });
    taken.map_err(|error| why_not(shared, error, path, open))
}

/// Says why a target is not held, and by whom it is.
pub(super) fn why_not(
    shared: &Shared,
    error: NotHeld,
    path: &WirePath,
    open: impl Fn() -> Result<OwnedFd, Fault>,
) -> Fault {
    match error {
        NotHeld::Fault(fault) => fault,
        NotHeld::By(process) => {
            let folder = open().ok().and_then(|fd| which(fd).ok());
            let holders = shared.holders.lock().unwrap_or_else(PoisonError::into_inner);
            held_by(&holders, folder, process, path)
        }
    }
}

/// Tries to hold something until it is held, or has been somebody else's for too long: a client
/// that was cut off is often back before the last change of its session is done.
pub(super) fn wait_for_hold<T>(take: impl Fn() -> Result<T, NotHeld>) -> Result<T, NotHeld> {
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
