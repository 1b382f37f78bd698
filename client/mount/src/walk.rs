//! Walks a tree entry by entry. Lists folders as it reaches them, so memory holds one
//! listing and the queue of unlisted folders. Used by the fill and by detach.

use super::content::Content;
use super::offline_names::OfflineNames;
use std::sync::Arc;
use verbatim_client::remote_fs::attributes::{Facts, Kind};
use verbatim_client::remote_fs::listing::Listing;
use verbatim_proto::{Code, Fault, WirePath};

/// The most bytes for paths of queued folders: about three million folders with a common parent. A
/// server may present an endless tree.
const QUEUE_BYTES_MAX: usize = 256 << 20;

/// A walk in progress.
pub(super) struct Walk {
    folders: Vec<WirePath>,
    /// The bytes that the queued paths take.
    queue_bytes: usize,
    /// Whether the caller got the error that folders were left out.
    is_truncated: bool,
    listing: Arc<Listing>,
    folder: WirePath,
    index: usize,
    /// Stores listings for offline use, if set.
    offline_names: Option<Arc<OfflineNames>>,
}

impl Walk {
    /// Queues a folder to be listed; a caller uses it to retry one.
    pub fn queue_folder(&mut self, folder: WirePath) {
        self.queue_bytes += queued_bytes(&folder);
        self.folders.push(folder);
    }

    fn has_room(&self, folder: &WirePath) -> bool {
        self.queue_bytes + queued_bytes(folder) <= QUEUE_BYTES_MAX
    }

    /// Walks everything below a path of the server.
    pub fn new(base: WirePath) -> Self {
        let (listing, folder) = (Arc::default(), base.clone());
        let (folders, queue_bytes) = (vec![base], queued_bytes(&folder));
        Self {
            folders,
            queue_bytes,
            is_truncated: false,
            listing,
            folder,
            index: 0,
            offline_names: None,
        }
    }

    /// Also stores each listing for offline use.
    pub fn storing_names(self, offline_names: Arc<OfflineNames>) -> Self {
        Self { offline_names: Some(offline_names), ..self }
    }

    /// The next entry; a folder comes before its entries. Returns an error for a folder that cannot
    /// be listed, and for the first that does not fit the queue.
    pub async fn next(
        &mut self,
        content: &Content,
    ) -> Option<Result<(WirePath, Facts), (WirePath, Fault)>> {
        loop {
            while let Some((name, facts)) = self.listing.at(self.index) {
                self.index += 1;
                let Ok(path) = self.folder.with(name) else { continue };
                if facts.kind == Kind::Folder && !self.has_room(&path) {
                    if std::mem::replace(&mut self.is_truncated, true) {
                        continue;
                    }
                    let text = format!("the folders to list take more than {QUEUE_BYTES_MAX} B");
                    return Some(Err((path, Fault::new(Code::Limit, text))));
                }
                if facts.kind == Kind::Folder {
                    self.queue_folder(path.clone());
                }
                return Some(Ok((path, facts)));
            }
            self.folder = self.folders.pop()?;
            self.queue_bytes -= queued_bytes(&self.folder);
            (self.listing, self.index) = (Arc::default(), 0);
            match content.connection.list(&self.folder).await {
                Ok(listing) => {
                    self.listing = Arc::new(listing);
                    self.offline_names
                        .iter()
                        .for_each(|it| it.store_listing_if_room(&self.folder, &self.listing));
                }
                Err(fault) => return Some(Err((self.folder.clone(), fault))),
            }
        }
    }
}

/// The bytes that a queued path takes.
fn queued_bytes(folder: &WirePath) -> usize {
    size_of::<WirePath>() + folder.as_bytes().len()
}
