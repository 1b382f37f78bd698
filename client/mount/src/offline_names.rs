//! Names for offline use: a thread stores each listing, each looked-up folder and
//! symlink, and the root in the cache. While the server is away they are read from
//! there. The queue is bounded; a name that does not fit is not stored. Files with
//! unknown modes are readable by the mounting user alone. An ending mount waits for the
//! queue. Called by `Tree` and `Walk`.

use super::cache::Key;
use super::content::Content;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use verbatim_client::remote_fs::attributes::{Facts, Kind, StatInfo};
use verbatim_client::remote_fs::listing::Listing;
use verbatim_proto::WirePath;

/// Jobs that may be queued.
const JOBS_MAX: usize = 64;

/// How long an ending mount waits for the queue.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// The kind of cache file that stores the root.
const ROOT_KIND: &str = "root";

/// The name of the single entry in a listing that stores one object.
const SELF_NAME: &[u8] = b"itself";

/// The mode of a file whose content is cached but not its attributes: other users may have no
/// access to it. Storing one for each of a million looked-up files would be too much.
const UNKNOWN_MODE: u16 = 0o400;

/// Stores names and reads them back.
pub(super) struct OfflineNames {
    content: Arc<Content>,
    jobs: mpsc::Sender<StoreJob>,
}

/// A job of the writer thread.
enum StoreJob {
    Names(Key, Arc<Listing>),
    Root(Key, Listing),
    /// Report that all jobs before this one are done.
    Flush(oneshot::Sender<()>),
}

impl OfflineNames {
    /// Starts the writer thread; needs a tokio runtime.
    pub fn new(content: Arc<Content>) -> Self {
        let (jobs, mut next) = mpsc::channel(JOBS_MAX);
        let writer = content.clone();
        tokio::task::spawn_blocking(move || {
            while let Some(next) = next.blocking_recv() {
                match next {
                    StoreJob::Names(key, listing) => {
                        log_failure(writer.cache.store_names(&key, &listing.encode()));
                    }
                    StoreJob::Root(key, listing) => {
                        log_failure(writer.cache.store_source_fact(
                            ROOT_KIND,
                            &key,
                            &listing.encode(),
                        ));
                    }
                    StoreJob::Flush(done) => drop(done.send(())),
                }
            }
        });
        Self { content, jobs }
    }

    /// Stores the listing of a folder.
    pub fn store_listing(&self, path: &WirePath, listing: &Arc<Listing>) {
        // A full queue drops the listing.
        let _ = self.jobs.try_send(StoreJob::Names(self.key(path, "in"), listing.clone()));
    }

    /// Stores the listing of a folder if nothing need be evicted for it.
    pub fn store_listing_if_room(&self, path: &WirePath, listing: &Arc<Listing>) {
        let (used, most, _) = self.content.cache.usage();
        if used.saturating_add(listing.encoded_bytes() as u64) <= most {
            self.store_listing(path, listing);
        }
    }

    /// Stores the attributes of the root.
    pub fn store_root(&self, path: &WirePath, seen: StatInfo) {
        if let Ok(listing) = Listing::of(SELF_NAME, seen) {
            let _ = self.jobs.try_send(StoreJob::Root(self.key(path, "at"), listing));
        }
    }

    /// Stores the attributes of one entry. For files only hard links are stored: their cached
    /// versions have the rest.
    pub fn store_entry(&self, path: &WirePath, seen: StatInfo) {
        let facts = seen.facts();
        if (facts.kind != Kind::File || facts.tied.file.is_some())
            && let Ok(listing) = Listing::of(SELF_NAME, seen)
        {
            let _ = self.jobs.try_send(StoreJob::Names(self.key(path, "at"), Arc::new(listing)));
        }
    }

    /// Waits until all queued names are stored, for `FLUSH_MAX` at most.
    pub async fn flush(&self) {
        let (done, finished) = oneshot::channel();
        let all = async {
            if self.jobs.send(StoreJob::Flush(done)).await.is_ok() {
                let _ = finished.await;
            }
        };
        if tokio::time::timeout(FLUSH_MAX, all).await.is_err() {
            tracing::warn!("not all names are kept: the cache takes them too slowly");
        }
    }

    fn key(&self, path: &WirePath, what: &str) -> Key {
        self.content.keys.of_path(path, what)
    }

    fn load(&self, path: &WirePath, what: &str) -> Option<Listing> {
        Listing::decode(&self.content.cache.load_names(&self.key(path, what))?)
    }

    /// The stored attributes of the root. Reads files, as all functions below do.
    pub fn load_root(&self, path: &WirePath) -> Option<Facts> {
        let listing = Listing::decode(
            &self.content.cache.load_source_fact(ROOT_KIND, &self.key(path, "at"))?,
        )?;
        listing.find(SELF_NAME).filter(|facts| facts.kind == Kind::Folder)
    }

    /// The stored listing of a folder.
    pub fn load_listing(&self, path: &WirePath) -> Option<Listing> {
        self.load(path, "in")
    }

    /// The stored attributes of a name in a folder.
    pub fn load_facts(&self, folder: &WirePath, name: &[u8]) -> Option<Facts> {
        let path = folder.with(name).ok()?;
        let listed = self.load_listing(folder).and_then(|listing| listing.find(name));
        let itself = || self.load(&path, "at")?.find(SELF_NAME);
        let stored = listed.or_else(itself);
        if stored.is_some_and(|facts| facts.kind != Kind::File) {
            return stored;
        }
        let content = &self.content;
        // A cached version knows the size and time of a file. Content under the path's key belongs
        // to a file that had one link when it was opened.
        if let Some(file) = content.cache.find(&content.keys.of_path(&path, "")) {
            let facts = stored.unwrap_or(Facts::unknown(Kind::File, UNKNOWN_MODE, 0, 0));
            return Some(Facts { size: file.size, mtime_ns: file.mtime_ns, ..facts.alone() });
        }
        let is_here = |facts: &Facts| {
            let version = content.cache.find(&content.keys.of_content(&path, facts));
            facts.shared().is_some() && version.is_some_and(|file| facts.may_be(file.version))
        };
        listed.filter(is_here).or_else(|| itself().filter(is_here)).or(stored)
    }

    /// The stored target of a symlink.
    pub fn load_link_target(&self, folder: &WirePath, name: &[u8]) -> Option<Vec<u8>> {
        let path = folder.with(name).ok()?;
        let listed = || self.load_listing(folder)?.target(name).map(<[u8]>::to_vec);
        let itself = || self.load(&path, "at")?.target(SELF_NAME).map(<[u8]>::to_vec);
        itself().or_else(listed)
    }
}

fn log_failure(result: std::io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(cause = %error, "names not kept");
    }
}
