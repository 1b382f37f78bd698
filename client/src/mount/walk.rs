//! A tree, entry by entry: folders are listed as they are come to, so that no more is
//! held than one listing and the folders still to be listed. For whoever brings or
//! places all of it.

use super::content::Content;
use super::facts::{Facts, Kind};
use super::listing::Listing;
use verbatim_proto::{Fault, WirePath};

/// A walk that is under way.
pub(super) struct Walk {
    folders: Vec<WirePath>,
    listing: Listing,
    folder: WirePath,
    index: usize,
}

impl Walk {
    /// Lists a folder again, which could not be.
    pub fn again(&mut self, folder: WirePath) {
        self.folders.push(folder);
    }

    /// Everything below a path of the server.
    pub fn new(base: WirePath) -> Self {
        let (listing, folder) = (Listing::default(), base.clone());
        Self { folders: vec![base], listing, folder, index: 0 }
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
            (self.listing, self.index) = (Listing::default(), 0);
            match content.line.list(&self.folder).await {
                Ok(listing) => self.listing = listing,
                Err(fault) => return Some(Err((self.folder.clone(), fault))),
            }
        }
    }
}
