//! Directory cache: keeps recent listings for a second, so that the lookups which
//! follow a listing need no requests. Bounded by entries; the oldest listings are
//! dropped first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use verbatim_client::remote_fs::attributes::Facts;
use verbatim_client::remote_fs::listing::Listing;

/// How long a listing answers lookups.
pub(crate) const LISTING_TTL: Duration = Duration::from_secs(1);

/// The most entries in memory, of all folders.
const ENTRIES_MAX: usize = 1 << 20;

/// The cached listings.
#[derive(Default)]
pub(crate) struct DirCache(Mutex<Listings>);

#[derive(Default)]
struct Listings {
    listings: HashMap<u64, (Instant, Arc<Listing>)>,
    order: VecDeque<(Instant, u64)>,
    entries: usize,
    /// How often listings were invalidated.
    changes: u64,
}

impl DirCache {
    /// The number of invalidations so far; a request notes it before it is sent.
    pub fn changes(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).changes
    }

    /// Caches a listing that was requested after this many invalidations. A listing requested
    /// before the last invalidation is dropped.
    pub fn insert(&self, folder: u64, listing: Arc<Listing>, changes: u64, now: Instant) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.changes != changes {
            return;
        }
        cached.entries += listing.len();
        if let Some((_, old)) = cached.listings.insert(folder, (now, listing)) {
            cached.entries -= old.len();
        }
        cached.order.push_back((now, folder));
        while let Some(&(at, oldest)) = cached.order.front()
            && (cached.entries > ENTRIES_MAX || now.duration_since(at) > LISTING_TTL)
        {
            cached.order.pop_front();
            if cached.listings.get(&oldest).is_some_and(|(since, _)| *since == at) {
                let removed = cached.listings.remove(&oldest);
                cached.entries -= removed.map_or(0, |(_, listing)| listing.len());
            }
        }
    }

    /// The attributes of a name in a fresh listing. The outer `None` means that no fresh listing
    /// exists.
    pub fn find(&self, folder: u64, name: &[u8], now: Instant) -> Option<Option<Facts>> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, listing) = cached.listings.get(&folder)?;
        (now.duration_since(*since) <= LISTING_TTL).then(|| listing.find(name))
    }

    /// Drops all listings after a change.
    pub fn invalidate(&self) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *cached = Listings { changes: cached.changes + 1, ..Listings::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_proto::WirePath;
    use verbatim_proto::message::{Entry, EntryKind};

    #[test]
    fn a_listing_answers_lookups_until_it_expires_or_a_change_invalidates_it() {
        let dir_cache = DirCache::default();
        let (mut listing, now) = (Listing::default(), Instant::now());
        let path = WirePath::parse(b"a").expect("plain");
        let (size, mode, mtime_ns) = (5, 0o644, 1);
        let entry = Entry { path, kind: EntryKind::File, size, mode, mtime_ns, meta: None };
        listing.add(vec![entry], &[]).expect("fits");
        listing.seal();
        let listing = Arc::new(listing);
        dir_cache.insert(1, listing.clone(), 0, now);
        assert_eq!(dir_cache.find(1, b"a", now).expect("fresh").expect("there").size, 5);
        assert_eq!(dir_cache.find(1, b"b", now), Some(None), "it says what is not there");
        assert_eq!(dir_cache.find(2, b"a", now), None);
        let later = now + LISTING_TTL + Duration::from_millis(1);
        assert_eq!(dir_cache.find(1, b"a", later), None);
        dir_cache.insert(2, listing.clone(), 0, later);
        assert_eq!(dir_cache.0.lock().expect("whole").entries, 1, "the old one is gone");
        dir_cache.invalidate();
        dir_cache.insert(3, listing.clone(), 0, later);
        assert_eq!(dir_cache.find(3, b"a", later), None, "it was asked for before the change");
        dir_cache.insert(3, listing, dir_cache.changes(), later);
        assert!(dir_cache.find(3, b"a", later).is_some());
    }
}
