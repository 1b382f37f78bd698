//! A tree, entry by entry: folders are listed as they are come to, so that no more is
//! held than one listing and the folders still to be listed. For whoever brings or
//! places all of it.

use super::content::Content;
use super::recall::Recall;
use std::sync::Arc;
use verbatim_client::remote_fs::attributes::{Facts, Kind};
use verbatim_client::remote_fs::listing::Listing;
use verbatim_proto::{Fault, WirePath};

/// A walk that is under way.
pub(super) struct Walk {
    folders: Vec<WirePath>,
    listing: Arc<Listing>,
    folder: WirePath,
    index: usize,
    /// By whom what is listed is remembered.
    recall: Option<Arc<Recall>>,
}

impl Walk {
    /// Lists a folder again, which could not be.
    pub fn again(&mut self, folder: WirePath) {
        self.folders.push(folder);
    }

    /// Everything below a path of the server.
    pub fn new(base: WirePath) -> Self {
        let (listing, folder) = (Arc::default(), base.clone());
        Self { folders: vec![base], listing, folder, index: 0, recall: None }
    }

    /// The same, and what is listed is remembered.
    pub fn remembered(self, recall: Arc<Recall>) -> Self {
        Self { recall: Some(recall), ..self }
    }

    /// What comes next; a folder before what is in it. A folder that cannot be listed is told.
    pub async fn next(
        &mut self,
        content: &Content,
    ) -> Option<Result<(WirePath, Facts), (WirePath, Fault)>> {
        loop {
            while let Some((name, facts)) = self.listing.at(self.index) {
                self.index += 1;
                let Ok(path) = self.folder.with(name) else { continue };
                if facts.kind == Kind::Folder {
                    self.folders.push(path.clone());
                }
                return Some(Ok((path, facts)));
            }
            self.folder = self.folders.pop()?;
            (self.listing, self.index) = (Arc::default(), 0);
            match content.line.list(&self.folder).await {
                Ok(listing) => {
                    self.listing = Arc::new(listing);
                    self.recall.iter().for_each(|it| it.passed(&self.folder, &self.listing));
                }
                Err(fault) => return Some(Err((self.folder.clone(), fault))),
            }
        }
    }
}
