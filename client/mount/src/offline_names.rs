//! What is remembered of names while the server is away: every folder that was listed,
//! every folder and link that was looked at, and the root, is kept in the cache by a
//! thread of its own, and told from there when nobody else can. Bounded by what waits;
//! what does not fit is not remembered. Of what is not, nobody but who mounts may read
//! anything. A mount that ends waits for what it has. Called by `Tree` and `Walk`.

use super::cache::Key;
use super::content::Content;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use verbatim_client::remote_fs::attributes::{Facts, Kind, Seen};
use verbatim_client::remote_fs::listing::Listing;
use verbatim_proto::WirePath;

/// Things that may wait to be kept.
const JOBS_MAX: usize = 64;

/// How long a mount that ends waits for them.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// The kind of file that the root is kept in.
const ROOT_KIND: &str = "root";

/// The name that something has in what is kept of itself.
const SELF_NAME: &[u8] = b"itself";

/// The permission bits of a file of which only the content is known: others may not have been
/// let in. A million files may be looked at, which would be as many notes.
const UNKNOWN_MODE: u16 = 0o400;

/// What is remembered.
pub(super) struct OfflineNames {
    content: Arc<Content>,
    jobs: mpsc::Sender<StoreJob>,
}

/// What the thread is to do.
enum StoreJob {
    Names(Key, Arc<Listing>),
    Root(Key, Listing),
    /// Say that all before it is kept.
    Flush(oneshot::Sender<()>),
}

impl OfflineNames {
    /// Begins to remember; needs a tokio runtime.
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

    /// A folder was listed.
    pub fn store_listing(&self, path: &WirePath, listing: &Arc<Listing>) {
        // Where too much waits it is not remembered.
        let _ = self.jobs.try_send(StoreJob::Names(self.key(path, "in"), listing.clone()));
    }

    /// A folder was listed by who has nothing removed for it.
    pub fn store_listing_if_room(&self, path: &WirePath, listing: &Arc<Listing>) {
        let (used, most, _) = self.content.cache.usage();
        if used.saturating_add(listing.encoded_bytes() as u64) <= most {
            self.store_listing(path, listing);
        }
    }

    /// The root was looked at.
    pub fn store_root(&self, path: &WirePath, seen: Seen) {
        if let Ok(listing) = Listing::of(SELF_NAME, seen) {
            let _ = self.jobs.try_send(StoreJob::Root(self.key(path, "at"), listing));
        }
    }

    /// Something was looked at by itself. What is known of files is in their versions, but not
    /// which of them have several names.
    pub fn store_entry(&self, path: &WirePath, seen: Seen) {
        let facts = seen.facts();
        if (facts.kind != Kind::File || facts.tied.file.is_some())
            && let Ok(listing) = Listing::of(SELF_NAME, seen)
        {
            let _ = self.jobs.try_send(StoreJob::Names(self.key(path, "at"), Arc::new(listing)));
        }
    }

    /// Waits until all that was told so far is kept, or that takes too long.
    pub async fn flush(&self) {
        let (done, kept) = oneshot::channel();
        let all = async {
            if self.jobs.send(StoreJob::Flush(done)).await.is_ok() {
                let _ = kept.await;
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

    /// What the root was. Reads files, as all of these do.
    pub fn load_root(&self, path: &WirePath) -> Option<Facts> {
        let kept = Listing::decode(
            &self.content.cache.load_source_fact(ROOT_KIND, &self.key(path, "at"))?,
        )?;
        kept.find(SELF_NAME).filter(|facts| facts.kind == Kind::Folder)
    }

    /// What was in a folder.
    pub fn load_listing(&self, path: &WirePath) -> Option<Listing> {
        self.load(path, "in")
    }

    /// What something in a folder was.
    pub fn load_facts(&self, folder: &WirePath, name: &[u8]) -> Option<Facts> {
        let path = folder.with(name).ok()?;
        let listed = self.load_listing(folder).and_then(|listing| listing.find(name));
        let itself = || self.load(&path, "at")?.find(SELF_NAME);
        let stored = listed.or_else(itself);
        if stored.is_some_and(|facts| facts.kind != Kind::File) {
            return stored;
        }
        let content = &self.content;
        // A file is what there is of it, where there is something. What is kept under a name was
        // opened by it when it was its only one, and by no other since.
        if let Some(file) = content.cache.find(&content.keys.of_path(&path, "")) {
            let known = stored.unwrap_or(Facts::unknown(Kind::File, UNKNOWN_MODE, 0, 0));
            return Some(Facts { size: file.size, mtime_ns: file.mtime_ns, ..known.alone() });
        }
        let is_here = |facts: &Facts| {
            let kept = content.cache.find(&content.keys.of_content(&path, facts));
            facts.shared().is_some() && kept.is_some_and(|file| facts.may_be(file.version))
        };
        listed.filter(is_here).or_else(|| itself().filter(is_here)).or(stored)
    }

    /// Where a link pointed to.
    pub fn load_link_target(&self, folder: &WirePath, name: &[u8]) -> Option<Vec<u8>> {
        let path = folder.with(name).ok()?;
        let listed = || self.load_listing(folder)?.target(name).map(<[u8]>::to_vec);
        let itself = || self.load(&path, "at")?.target(SELF_NAME).map(<[u8]>::to_vec);
        itself().or_else(listed)
    }
}

fn log_failure(kept: std::io::Result<()>) {
    if let Err(error) = kept {
        tracing::debug!(cause = %error, "names not kept");
    }
}
