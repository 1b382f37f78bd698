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
    waiting: mpsc::Sender<StoreJob>,
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
        let (waiting, mut next) = mpsc::channel(JOBS_MAX);
        let keeper = content.clone();
        tokio::task::spawn_blocking(move || {
            while let Some(next) = next.blocking_recv() {
                match next {
                    StoreJob::Names(key, listing) => {
                        note(keeper.cache.keep_names(&key, &listing.encode()));
                    }
                    StoreJob::Root(key, listing) => {
                        note(keeper.cache.keep_beside(ROOT_KIND, &key, &listing.encode()));
                    }
                    StoreJob::Flush(done) => drop(done.send(())),
                }
            }
        });
        Self { content, waiting }
    }

    /// A folder was listed.
    pub fn listed(&self, path: &WirePath, listing: &Arc<Listing>) {
        // Where too much waits it is not remembered.
        let _ = self.waiting.try_send(StoreJob::Names(self.key(path, "in"), listing.clone()));
    }

    /// A folder was listed by who has nothing removed for it.
    pub fn passed(&self, path: &WirePath, listing: &Arc<Listing>) {
        let (used, most, _) = self.content.cache.usage();
        if used.saturating_add(listing.encoded_bytes() as u64) <= most {
            self.listed(path, listing);
        }
    }

    /// The root was looked at.
    pub fn looked_at_root(&self, path: &WirePath, seen: Seen) {
        if let Ok(listing) = Listing::of(SELF_NAME, seen) {
            let _ = self.waiting.try_send(StoreJob::Root(self.key(path, "at"), listing));
        }
    }

    /// Something was looked at by itself. What is known of files is in their versions, but not
    /// which of them have several names.
    pub fn looked(&self, path: &WirePath, seen: Seen) {
        let facts = seen.facts();
        if (facts.kind != Kind::File || facts.tied.file.is_some())
            && let Ok(listing) = Listing::of(SELF_NAME, seen)
        {
            let _ = self.waiting.try_send(StoreJob::Names(self.key(path, "at"), Arc::new(listing)));
        }
    }

    /// Waits until all that was told so far is kept, or that takes too long.
    pub async fn finish(&self) {
        let (done, kept) = oneshot::channel();
        let all = async {
            if self.waiting.send(StoreJob::Flush(done)).await.is_ok() {
                let _ = kept.await;
            }
        };
        if tokio::time::timeout(FLUSH_MAX, all).await.is_err() {
            tracing::warn!("not all names are kept: the cache takes them too slowly");
        }
    }

    fn key(&self, path: &WirePath, what: &str) -> Key {
        self.content.keys.of(path, what)
    }

    fn read(&self, path: &WirePath, what: &str) -> Option<Listing> {
        Listing::decode(&self.content.cache.names(&self.key(path, what))?)
    }

    /// What the root was. Reads files, as all of these do.
    pub fn root(&self, path: &WirePath) -> Option<Facts> {
        let kept = Listing::decode(&self.content.cache.beside(ROOT_KIND, &self.key(path, "at"))?)?;
        kept.find(SELF_NAME).filter(|facts| facts.kind == Kind::Folder)
    }

    /// What was in a folder.
    pub fn list(&self, path: &WirePath) -> Option<Listing> {
        self.read(path, "in")
    }

    /// What something in a folder was.
    pub fn find(&self, folder: &WirePath, name: &[u8]) -> Option<Facts> {
        let path = folder.with(name).ok()?;
        let listed = self.list(folder).and_then(|listing| listing.find(name));
        let itself = || self.read(&path, "at")?.find(SELF_NAME);
        let told = listed.or_else(itself);
        if told.is_some_and(|facts| facts.kind != Kind::File) {
            return told;
        }
        let content = &self.content;
        // A file is what there is of it, where there is something. What is kept under a name was
        // opened by it when it was its only one, and by no other since.
        if let Some(file) = content.cache.find(&content.keys.of(&path, "")) {
            let known = told.unwrap_or(Facts::unknown(Kind::File, UNKNOWN_MODE, 0, 0));
            return Some(Facts { size: file.size, mtime_ns: file.mtime_ns, ..known.alone() });
        }
        let is_here = |facts: &Facts| {
            let kept = content.cache.find(&content.keys.of_content(&path, facts));
            facts.shared().is_some() && kept.is_some_and(|file| facts.may_be(file.version))
        };
        listed.filter(is_here).or_else(|| itself().filter(is_here)).or(told)
    }

    /// Where a link pointed to.
    pub fn target(&self, folder: &WirePath, name: &[u8]) -> Option<Vec<u8>> {
        let path = folder.with(name).ok()?;
        let listed = || self.list(folder)?.target(name).map(<[u8]>::to_vec);
        let itself = || self.read(&path, "at")?.target(SELF_NAME).map(<[u8]>::to_vec);
        itself().or_else(listed)
    }
}

fn note(kept: std::io::Result<()>) {
    if let Err(error) = kept {
        tracing::debug!(cause = %error, "names not kept");
    }
}
