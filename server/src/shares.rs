//! How many threads for file work a client may keep busy, with all its sessions: not
//! all there are, so that one that asks for much, or for what takes long, leaves
//! some to the others. Owns who counts as one client, as `paces` does.

use crate::doorstep::network_of;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::Semaphore;

/// Threads for file work: opening, hashing, flushing.
pub const FILE_THREADS_MAX: usize = 32;

/// Of these, for one client.
const CLIENT_THREADS_MAX: usize = FILE_THREADS_MAX / 4 * 3;

/// The shares of all clients that are here.
#[derive(Default)]
pub(crate) struct Shares {
    clients: Mutex<HashMap<(String, IpAddr), Weak<Semaphore>>>,
}

impl Shares {
    /// The share of a client.
    pub fn of(&self, who: &str, address: IpAddr) -> Arc<Semaphore> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // No more than there are sessions.
        clients.retain(|_, share| share.strong_count() > 0);
        let known = clients.entry((who.to_owned(), network_of(address))).or_default();
        let share = known.upgrade();
        let share = share.unwrap_or_else(|| Arc::new(Semaphore::new(CLIENT_THREADS_MAX)));
        *known = Arc::downgrade(&share);
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_one_client_have_one_share_and_others_another() {
        let shares = Shares::default();
        let [here, there] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let first = shares.of("alice", here);
        assert!(Arc::ptr_eq(&first, &shares.of("alice", here)));
        let others = [shares.of("bob", here), shares.of("alice", there)];
        assert!(others.iter().all(|other| !Arc::ptr_eq(&first, other)));
        assert!(first.available_permits() < FILE_THREADS_MAX, "some are left to others");
        drop((first, others));
        shares.of("carol", here);
        assert_eq!(shares.clients.lock().unwrap().len(), 1, "who is gone is forgotten");
    }
}
