//! A tree, entry by entry: folders are listed as they are come to, so that no more is
//! held than one listing and the folders still to be listed. For whoever brings or
//! places all of it.

use super::content::Content;
use super::offline_names::OfflineNames;
use std::sync::Arc;
use verbatim_client::remote_fs::attributes::{Facts, Kind};
use verbatim_client::remote_fs::listing::Listing;
use verbatim_proto::{Code, Fault, WirePath};

/// What the paths of folders that wait to be listed may take: those of three million folders of one
/// folder. A server can have a tree that never ends.
const QUEUE_BYTES_MAX: usize = 256 << 20;

/// A walk that is under way.
pub(super) struct Walk {
    folders: Vec<WirePath>,
    /// What these paths take.
    queue_bytes: usize,
    /// Whether it was told that folders are left out, which wait for too much room.
    is_truncated: bool,
    listing: Arc<Listing>,
    folder: WirePath,
    index: usize,
    /// By whom what is listed is remembered.
    offline_names: Option<Arc<OfflineNames>>,
}

impl Walk {
    /// Lists a folder again, which could not be.
    pub fn queue_folder(&mut self, folder: WirePath) {
        self.queue_bytes += queued_bytes(&folder);
        self.folders.push(folder);
    }

    fn has_room(&self, folder: &WirePath) -> bool {
        self.queue_bytes + queued_bytes(folder) <= QUEUE_BYTES_MAX
    }

    /// Everything below a path of the server.
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

    /// The same, and what is listed is remembered.
    pub fn storing_names(self, offline_names: Arc<OfflineNames>) -> Self {
        Self { offline_names: Some(offline_names), ..self }
    }

    /// What comes next; a folder before what is in it. A folder that cannot be listed is told, and
    /// the first of those that are left out because too many wait.
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

/// What a folder that waits takes.
fn queued_bytes(folder: &WirePath) -> usize {
    size_of::<WirePath>() + folder.as_bytes().len()
}
