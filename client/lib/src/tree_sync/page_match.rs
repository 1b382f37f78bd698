//! Matches pages of the local tree with the server's by digest, so that equal pages are neither
//! sent nor compared. A local page that may equal the server's next one waits until the server was
//! asked. Whether it may follows from the last paths of the pages before. Pure.

use std::cmp::Ordering;
use std::collections::VecDeque;
use verbatim_files::paging::TreePage;
use verbatim_proto::tree::{Found, path_of};
use verbatim_proto::{Digest, WirePath};

/// A page of the local tree.
pub(crate) struct LocalPage {
    pub page: TreePage,
    /// The digest of the page, if the server may be asked about it.
    pub digest: Option<Digest>,
    /// Whether it is the last page.
    pub done: bool,
}

/// The request for the server's next page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PageRequest {
    /// Requests the page.
    More,
    /// Requests the page, unless its digest is that of the local page.
    Unless(Digest),
}

#[derive(Default)]
pub(crate) struct PageMatch {
    pages: VecDeque<LocalPage>,
    /// The last path of the local pages that no longer wait.
    local: Option<WirePath>,
    /// The last path of the server's pages.
    remote: Option<WirePath>,
}

impl PageMatch {
    /// Adds a local page.
    pub fn push(&mut self, page: LocalPage) {
        self.pages.push_back(page);
    }

    /// Notes a page that the server sent.
    pub fn note_remote_page(&mut self, found: &[Found]) {
        self.remote = found.last().map(|found| path_of(found).clone()).or(self.remote.take());
    }

    /// How many local entries wait. Leftovers count too, so that both are bounded.
    pub fn waiting(&self) -> usize {
        let entries = |held: &LocalPage| held.page.found.len() + held.page.leftovers.len();
        self.pages.iter().map(entries).sum()
    }

    /// Takes the next local page if it cannot equal one of the server's: it begins before the
    /// server's next page, or that one does not exist.
    pub fn take_unmatched(&mut self, remote_done: bool) -> Option<LocalPage> {
        let is_apart = remote_done || self.local.is_none() || self.order().is_lt();
        if is_apart { self.pop() } else { None }
    }

    /// The request for the server's next page after the first. `None` until the local page that may
    /// equal it is known; `local_done` says that no more will come.
    pub fn next_request(&self, local_done: bool) -> Option<PageRequest> {
        match (self.order(), self.pages.front()) {
            (Ordering::Greater, _) => Some(PageRequest::More),
            (Ordering::Equal, Some(held)) => {
                Some(held.digest.map_or(PageRequest::More, PageRequest::Unless))
            }
            (Ordering::Less, Some(_)) => None,
            (_, None) => local_done.then_some(PageRequest::More),
        }
    }

    /// Takes the waiting local page, which equals the server's next one.
    pub fn take_matching(&mut self) -> Option<LocalPage> {
        let held = self.pop()?;
        self.note_remote_page(&held.page.found);
        Some(held)
    }

    /// The order of the last local path and the last path of the server.
    fn order(&self) -> Ordering {
        match (&self.local, &self.remote) {
            (Some(local), Some(remote)) => local.tree_cmp(remote),
            (local, remote) => local.is_some().cmp(&remote.is_some()),
        }
    }

    /// Takes the oldest waiting page.
    pub fn pop(&mut self) -> Option<LocalPage> {
        let held = self.pages.pop_front()?;
        let last = held.page.found.last().map(|found| path_of(found).clone());
        self.local = last.or(self.local.take());
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_proto::Node;
    use verbatim_proto::message::EntryKind;

    fn found(name: &str) -> Found {
        let path = WirePath::parse(name.as_bytes()).expect("plain");
        let (kind, meta) = (EntryKind::File, Default::default());
        Ok(Box::new(Node { path, kind, size: 0, meta, twin: None, digest: None }))
    }

    fn held(names: &[&str]) -> LocalPage {
        let found: Vec<Found> = names.iter().map(|name| found(name)).collect();
        let digest = verbatim_proto::alike::digest_of(&found, true);
        LocalPage { page: TreePage { found, ..TreePage::default() }, digest, done: false }
    }

    fn unless(names: &[&str]) -> Option<PageRequest> {
        held(names).digest.map(PageRequest::Unless)
    }

    fn told(page_match: &mut PageMatch, names: &[&str]) {
        page_match.note_remote_page(&held(names).page.found);
    }

    /// Two trees whose first pages end at `b`, and a second local page.
    fn page_match(second: &[&str]) -> PageMatch {
        let mut page_match = PageMatch::default();
        page_match.push(held(&["a", "b"]));
        assert!(page_match.take_unmatched(false).is_some(), "the first is compared as it comes");
        told(&mut page_match, &["a", "b"]);
        page_match.push(held(second));
        assert!(page_match.take_unmatched(false).is_none(), "it may be one of the server's");
        page_match
    }

    #[test]
    fn a_local_page_that_may_equal_the_next_one_of_the_server_waits() {
        let mut page_match = page_match(&["c", "d"]);
        assert_eq!(
            (page_match.next_request(false), page_match.waiting()),
            (unless(&["c", "d"]), 2)
        );
        let page = page_match.take_matching().expect("it waited").page;
        assert_eq!((page.found.len(), page_match.waiting()), (2, 0));
        assert!(page_match.take_unmatched(false).is_none());
    }

    #[test]
    fn a_different_page_is_compared_and_later_pages_may_match_again() {
        let mut page_match = page_match(&["c", "e"]);
        told(&mut page_match, &["c", "d", "e"]);
        assert_eq!(page_match.next_request(false), None, "it is compared first");
        assert!(page_match.take_unmatched(false).is_some());
        assert_eq!(page_match.next_request(false), None, "the next local page is awaited");
        page_match.push(held(&["f"]));
        assert_eq!(page_match.next_request(false), unless(&["f"]));
        // Here the server has fewer entries than the local tree, and there more.
        told(&mut page_match, &["ea"]);
        assert!(page_match.take_unmatched(false).is_some(), "it begins before what comes next");
        assert_eq!(
            page_match.next_request(false),
            Some(PageRequest::More),
            "nothing local begins behind that"
        );
        told(&mut page_match, &["k"]);
        page_match.push(held(&["k"]));
        assert!(page_match.take_unmatched(false).is_some());
        page_match.push(held(&["l"]));
        assert_eq!(page_match.next_request(false), unless(&["l"]));
    }

    #[test]
    fn no_page_waits_for_a_tree_that_has_ended() {
        let mut ended = page_match(&["c"]);
        assert!(ended.take_unmatched(true).is_some(), "the server has no more pages");
        let mut ended = page_match(&["c"]);
        assert!(ended.take_matching().is_some());
        assert_eq!(ended.next_request(false), None, "there may be another local page");
        assert_eq!(
            ended.next_request(true),
            Some(PageRequest::More),
            "there is no local page to wait for"
        );
    }

    #[test]
    fn a_page_without_a_digest_is_requested_unconditionally() {
        let mut page_match = page_match(&["c"]);
        page_match.pages[0].digest = None;
        assert_eq!(page_match.next_request(false), Some(PageRequest::More));
    }
}
