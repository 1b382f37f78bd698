//! Folders as they were listed last, for a moment: whoever lists a folder looks at what
//! is in it next, and need not ask the server for each name. Bounded by entries; the
//! oldest go first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use verbatim_client::remote_fs::attributes::Facts;
use verbatim_client::remote_fs::listing::Listing;

/// How long a listing answers for its names.
pub(crate) const LISTING_TTL: Duration = Duration::from_secs(1);

/// The most entries that are kept, of all folders.
const ENTRIES_MAX: usize = 1 << 20;

/// The folders.
#[derive(Default)]
pub(crate) struct DirCache(Mutex<Listings>);

#[derive(Default)]
struct Listings {
    listings: HashMap<u64, (Instant, Arc<Listing>)>,
    order: VecDeque<(Instant, u64)>,
    entries: usize,
    /// How often something changed.
    changes: u64,
}

impl DirCache {
    /// How often something changed so far; what is listed is as old as that.
    pub fn changes(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).changes
    }

    /// Keeps a listing of a folder that was asked for after so many changes; one that is older
    /// than the last answers for nothing.
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
                let gone = cached.listings.remove(&oldest);
                cached.entries -= gone.map_or(0, |(_, listing)| listing.len());
            }
        }
    }

    /// What a fresh listing says of a name; none where there is no fresh one.
    pub fn find(&self, folder: u64, name: &[u8], now: Instant) -> Option<Option<Facts>> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, listing) = cached.listings.get(&folder)?;
        (now.duration_since(*since) <= LISTING_TTL).then(|| listing.find(name))
    }

    /// Forgets all: something changed.
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
