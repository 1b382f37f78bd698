//! Pages of the local tree beside those of the server's. One that may be the next
//! of the server's too waits until the server was asked whether it is: then neither
//! is told, nor compared. Which may be is known by where the pages before ended. Pure.

use std::cmp::Ordering;
use std::collections::VecDeque;
use verbatim_files::paging::TreePage;
use verbatim_proto::tree::{Found, path_of};
use verbatim_proto::{Digest, WirePath};

/// A page of the local tree.
pub(crate) struct Held {
    pub page: TreePage,
    /// What it says, where the server may be asked for that.
    pub digest: Option<Digest>,
    /// Whether it is the last.
    pub done: bool,
}

/// How the next page of the server is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Whatever it is.
    More,
    /// Unless it is the local page that waits.
    Unless(Digest),
}

#[derive(Default)]
pub(crate) struct Beside {
    held: VecDeque<Held>,
    /// Where the local pages end that wait no more.
    local: Option<WirePath>,
    /// Where the pages of the server end.
    remote: Option<WirePath>,
}

impl Beside {
    /// A local page is there.
    pub fn hold(&mut self, page: Held) {
        self.held.push_back(page);
    }

    /// The server told a page.
    pub fn told(&mut self, found: &[Found]) {
        self.remote = found.last().map(|found| path_of(found).clone()).or(self.remote.take());
    }

    /// How many local entries wait; what copies left counts, so that there is an end to both.
    pub fn waiting(&self) -> usize {
        let entries = |held: &Held| held.page.found.len() + held.page.leftovers.len();
        self.held.iter().map(entries).sum()
    }

    /// The next local page that is none of the server's: it begins before the next of the server,
    /// or that one has no more.
    pub fn next_apart(&mut self, remote_done: bool) -> Option<Held> {
        let is_apart = remote_done || self.local.is_none() || self.order().is_lt();
        if is_apart { self.pass() } else { None }
    }

    /// How the server is asked for its next page, behind the first; not before it is known whether
    /// the local tree, of which all may have been walked, has one that begins there.
    pub fn ask(&self, local_done: bool) -> Option<Ask> {
        match (self.order(), self.held.front()) {
            (Ordering::Greater, _) => Some(Ask::More),
            (Ordering::Equal, Some(held)) => Some(held.digest.map_or(Ask::More, Ask::Unless)),
            (Ordering::Less, Some(_)) => None,
            (_, None) => local_done.then_some(Ask::More),
        }
    }

    /// The page that the server was asked for is the local one that waits.
    pub fn alike(&mut self) -> Option<Held> {
        let held = self.pass()?;
        self.told(&held.page.found);
        Some(held)
    }

    /// Where the local pages end, by where those of the server do.
    fn order(&self) -> Ordering {
        match (&self.local, &self.remote) {
            (Some(local), Some(remote)) => local.tree_cmp(remote),
            (local, remote) => local.is_some().cmp(&remote.is_some()),
        }
    }

    /// Takes the local page that waits longest.
    pub fn pass(&mut self) -> Option<Held> {
        let held = self.held.pop_front()?;
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

    fn held(names: &[&str]) -> Held {
        let found: Vec<Found> = names.iter().map(|name| found(name)).collect();
        let digest = verbatim_proto::alike::digest_of(&found, true);
        Held { page: TreePage { found, ..TreePage::default() }, digest, done: false }
    }

    fn unless(names: &[&str]) -> Option<Ask> {
        held(names).digest.map(Ask::Unless)
    }

    fn told(beside: &mut Beside, names: &[&str]) {
        beside.told(&held(names).page.found);
    }

    /// Two trees whose first pages end at `b`, and a second local page.
    fn beside(second: &[&str]) -> Beside {
        let mut beside = Beside::default();
        beside.hold(held(&["a", "b"]));
        assert!(beside.next_apart(false).is_some(), "the first is compared as it comes");
        told(&mut beside, &["a", "b"]);
        beside.hold(held(second));
        assert!(beside.next_apart(false).is_none(), "it may be one of the server's");
        beside
    }

    #[test]
    fn a_page_that_begins_where_one_of_the_server_does_waits_for_its_answer() {
        let mut beside = beside(&["c", "d"]);
        assert_eq!((beside.ask(false), beside.waiting()), (unless(&["c", "d"]), 2));
        let page = beside.alike().expect("it waited").page;
        assert_eq!((page.found.len(), beside.waiting()), (2, 0));
        assert!(beside.next_apart(false).is_none());
    }

    #[test]
    fn a_page_that_the_server_has_not_is_compared_and_later_ones_may_be_the_same_again() {
        let mut beside = beside(&["c", "e"]);
        told(&mut beside, &["c", "d", "e"]);
        assert_eq!(beside.ask(false), None, "it is compared first");
        assert!(beside.next_apart(false).is_some());
        assert_eq!(beside.ask(false), None, "the next local page is awaited");
        beside.hold(held(&["f"]));
        assert_eq!(beside.ask(false), unless(&["f"]));
        // Here the server has less, and there more, than the local tree.
        told(&mut beside, &["ea"]);
        assert!(beside.next_apart(false).is_some(), "it begins before what comes next");
        assert_eq!(beside.ask(false), Some(Ask::More), "nothing local begins behind that");
        told(&mut beside, &["k"]);
        beside.hold(held(&["k"]));
        assert!(beside.next_apart(false).is_some());
        beside.hold(held(&["l"]));
        assert_eq!(beside.ask(false), unless(&["l"]));
    }

    #[test]
    fn nothing_waits_for_a_tree_that_ended() {
        let mut ended = beside(&["c"]);
        assert!(ended.next_apart(true).is_some(), "the server has no more pages");
        let mut ended = beside(&["c"]);
        assert!(ended.alike().is_some());
        assert_eq!(ended.ask(false), None, "there may be another local page");
        assert_eq!(ended.ask(true), Some(Ask::More), "there is no local page to wait for");
    }

    #[test]
    fn a_page_of_which_something_has_to_be_told_is_asked_for_as_it_is() {
        let mut beside = beside(&["c"]);
        beside.held[0].digest = None;
        assert_eq!(beside.ask(false), Some(Ask::More));
    }
}
