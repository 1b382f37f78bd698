//! Targets that mirrors hold: one session has a folder, all know whose it is, and a
//! job that still changes it keeps it when its session is over. Owns these holds;
//! what is done in a target is said by `mirror` and `staging`.

use super::Shared;
use super::staging::Staging;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
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

/// Holds a folder for a client, who is named to all others that want it.
pub(super) fn take_hold(
    shared: &Arc<Shared>,
    who: &str,
    path: &WirePath,
    fd: OwnedFd,
) -> Result<Held, Fault> {
    let mut holders = shared.holders.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = which(&fd).map_err(|e| Fault::from_io(format!("cannot look at {path}"), &e))?;
    match Hold::take(fd, &format!("cannot hold {path}")) {
        Ok(hold) => {
            holders.insert(folder, who.to_owned());
            drop(holders);
            Ok(Held { hold, shared: shared.clone() })
        }
        Err(NotHeld::Fault(fault)) => Err(fault),
        Err(NotHeld::By(process)) => Err(held_by(&holders, Some(folder), process, path)),
    }
}

/// Says who has a target.
pub(super) fn held_by(
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
