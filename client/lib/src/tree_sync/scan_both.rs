//! Scans both sides of a mirror ahead of the comparison: requests pages of the server's tree, reads
//! pages of the local one in jobs, and skips equal pages. Leaves out paths that were not selected,
//! and reduces the metadata of the source to what the target can store.

use crate::tree_sync::delta_candidates::DeltaCandidates;
use crate::tree_sync::id_map::{IdMap, SourcePage, unknown_owners};
use crate::tree_sync::page_match::{LocalPage, PageMatch, PageRequest};
use crate::tree_sync::spec::{AtomicTarget, Direction, Mirror, Spec};
use std::collections::HashSet;
use std::time::Instant;
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::jobs::Jobs;
use verbatim_engine::local_io::spool::Spool;
use verbatim_engine::local_io::waker::Waker;
use verbatim_engine::model::copy_policy::Task;
use verbatim_engine::transfer::id_translation::IdTranslation;
use verbatim_files::TreeWalk;
use verbatim_files::paging::{TreePage, hash_file, next_page};
use verbatim_proto::alike::digest_of;
use verbatim_proto::chosen::Chosen;
use verbatim_proto::message::{ClientMessage, EntryKind};
use verbatim_proto::mirror::{ALIKE_VERSION, MirrorRequest, PLAIN_VERSION, TreeScan};
use verbatim_proto::plan::{Diff, Side};
use verbatim_proto::tree::{Found, LINK_TWINS_VERSION, path_of};
use verbatim_proto::units::PAGE_ENTRIES_MAX;
use verbatim_proto::{Code, Digest, Fault, Node, WirePath};

/// The most leftovers that are remembered, in a file; the rest waits for the next run.
const LEFTOVERS_MAX: u64 = 1 << 20;

/// Scan ahead until this many entries of a side wait for the comparison: several pages, so that
/// neither side idles while the other is scanned.
const AHEAD_ENTRIES: usize = 4 * PAGE_ENTRIES_MAX;

/// The tree on the server.
#[derive(Default)]
pub(crate) struct RemoteSide {
    request: Option<u32>,
    /// Whether a page is in flight.
    pub asked: bool,
    /// Whether the page was requested with the digest of the local one.
    unless: bool,
    pub done: bool,
}

impl RemoteSide {
    /// Accepts a page of this request, if one is in flight.
    pub fn accept_page(&mut self, request: u32, done: bool) -> bool {
        let takes = self.request == Some(request) && std::mem::take(&mut self.asked);
        self.done |= takes && done;
        takes
    }

    /// Accepts the answer that the page equals the local one, if that was asked.
    pub fn accept_matching_page(&mut self, request: u32, done: bool) -> bool {
        self.unless && self.accept_page(request, done)
    }
}

/// The tree on this machine.
#[derive(Default)]
pub(crate) struct LocalSide {
    walk: Option<Box<TreeWalk>>,
    begun: bool,
    /// Whether a job reads a page.
    busy: bool,
    /// Whether a page was read.
    paged: bool,
    done: bool,
}

/// A page of the local tree, and the walk for the next one.
struct WalkedPage {
    walk: Option<Box<TreeWalk>>,
    page: TreePage,
    /// The digest of the page, if the server may be asked about it.
    digest: Option<Digest>,
}

/// A page of one side.
pub(crate) struct SidePage {
    pub side: Side,
    pub found: Vec<Found>,
    pub leftovers: Vec<WirePath>,
    pub done: bool,
}

/// Both sides of a mirror, and the comparison that gets their pages.
pub(crate) struct ScanBoth {
    pub diff: Diff,
    remote: RemoteSide,
    local: LocalSide,
    page_match: PageMatch,
    pub candidates: DeltaCandidates,
    /// How many entries of the target were scanned, with its root.
    target_entries: usize,
    pub leftovers: Spool<WirePath>,
    /// Paths of `--files-from` that were found.
    listed: HashSet<WirePath>,
    owners: IdMap,
    jobs: Jobs<WalkedPage>,
}

impl ScanBoth {
    pub fn new(mirror: &Mirror, waker: &Waker) -> Self {
        Self {
            diff: Diff::new(mirror.options),
            remote: RemoteSide::default(),
            local: LocalSide::default(),
            page_match: PageMatch::default(),
            candidates: DeltaCandidates::new(mirror.options.habits.resolution),
            target_entries: 0,
            leftovers: Spool::default(),
            listed: HashSet::new(),
            owners: IdMap::new(waker),
            jobs: Jobs::new(waker),
        }
    }

    /// Whether the server owes a page, or an answer about owners.
    pub fn awaits(&self) -> bool {
        self.remote.asked || self.owners.awaits_server()
    }

    /// Whether a path of `--files-from` was found.
    pub fn has_found(&self, path: &WirePath) -> bool {
        self.listed.contains(path)
    }

    /// Handles the answers of jobs.
    pub fn take_answers(&mut self, engine: &mut Engine, spec: &Spec, ids: &mut IdTranslation) {
        while let Some(paged) = self.jobs.next_answer() {
            self.local_page_walked(paged);
        }
        let page = self.owners.take_answers(engine, spec, ids);
        self.take_source(engine, spec, ids, page);
    }

    /// Handles the names of the waiting page's owners.
    pub fn named(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        request: u32,
        names: Vec<Option<String>>,
    ) {
        if !self.owners.awaits(request, names.len()) {
            return engine.protocol_violation("names of owners");
        }
        let page = self.owners.named(engine, spec, ids, names);
        self.take_source(engine, spec, ids, page);
    }

    /// Handles the ids of the waiting page's owners.
    pub fn numbered(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        request: u32,
        numbers: Vec<Option<u32>>,
    ) {
        if !self.owners.awaits(request, numbers.len()) {
            return engine.protocol_violation("numbers of owners");
        }
        let page = self.owners.numbered(ids, numbers);
        self.take_source(engine, spec, ids, page);
    }

    /// Passes on a page of the source whose owners are known.
    fn take_source(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &IdTranslation,
        page: Option<SourcePage>,
    ) {
        if let Some(SourcePage { found, done }) = page {
            let (side, leftovers) = (Side::Source, Vec::new());
            self.feed_page(engine, spec, ids, SidePage { side, found, leftovers, done });
        }
    }

    /// Handles a page of the server's tree.
    pub fn remote_page(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        request: u32,
        page: SidePage,
    ) {
        if !self.remote.accept_page(request, page.done) {
            return engine.protocol_violation("a page of a tree");
        }
        self.page_match.note_remote_page(&page.found);
        self.add_page(engine, spec, ids, page);
    }

    /// Handles the answer that the server's page equals the local one.
    pub fn remote_page_matches(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        request: u32,
        done: bool,
    ) {
        if !self.remote.accept_matching_page(request, done) {
            return engine.protocol_violation("a page-unchanged reply");
        }
        self.compare_matching_page(engine, spec, ids, done);
    }

    /// Whether the whole target was scanned and is empty. Then no entry of the source has a
    /// counterpart, whatever appears later.
    fn target_is_empty(&self) -> bool {
        self.candidates.complete && self.target_entries <= 1
    }

    /// Requests more pages of the sides with few waiting entries.
    pub fn feed(&mut self, engine: &mut Engine, spec: &Spec, ids: &mut IdTranslation) {
        let (local, remote) = (spec.side_of_local(), spec.side_of_remote());
        // Only one page of the source waits for its owners at a time.
        let waits = |side: Side| side == Side::Source && self.owners.is_waiting();
        let lacks = |side: Side, queued: usize| {
            self.diff.waiting(side) + queued < AHEAD_ENTRIES && !waits(side)
        };
        let (local, remote) = (lacks(local, self.page_match.waiting()), lacks(remote, 0));
        if local && !self.local.busy && !self.local.done {
            self.walk_page(engine, spec, ids);
        }
        // The scan of the source depends on whether the target is empty, so a remote source waits
        // for the first page of the local target.
        let knows = spec.mirror.direction == Direction::Up || self.local.paged;
        if remote && knows && !self.remote.asked && !self.remote.done {
            self.request_page(engine, spec, ids);
        }
    }

    fn request_page(&mut self, engine: &mut Engine, spec: &Spec, ids: &mut IdTranslation) {
        if spec.mirror.remote_is_missing {
            self.remote.done = true;
            let page = SidePage::empty(spec.side_of_remote());
            return self.add_page(engine, spec, ids, page);
        }
        let message = match self.remote.request {
            Some(request) => {
                let ask = match self.may_match_pages(engine, spec) {
                    // Equal pages are compared after those before them.
                    true => self
                        .page_match
                        .next_request(self.local.done)
                        .filter(|_| !self.owners.is_waiting()),
                    false => Some(PageRequest::More),
                };
                let Some(ask) = ask else { return };
                engine.clock().request_sent_at(Instant::now());
                self.remote.unless = ask != PageRequest::More;
                match ask {
                    PageRequest::More => MirrorRequest::WalkMore { request },
                    PageRequest::Unless(alike) => {
                        let owners = spec.mirror.rules.give_away;
                        MirrorRequest::WalkUnless { request, alike, owners }
                    }
                }
            }
            None => {
                let request = engine.request();
                self.remote.request = Some(request);
                let (path, filter) =
                    (spec.mirror.remote.clone(), spec.mirror.filter.texts().to_vec());
                let avoid = spec.mirror.avoid.filter(|_| spec.mirror.direction == Direction::Down);
                let walk = TreeScan { path, filter, digests: spec.mirror.options.checksum, avoid };
                let plain = engine.version() >= PLAIN_VERSION && self.target_is_empty();
                match spec.mirror.chosen.as_ref().and_then(|chosen| chosen.changes()) {
                    Some(only) => MirrorRequest::WalkOnly { request, walk, only },
                    None if plain => MirrorRequest::WalkPlain { request, walk },
                    None => MirrorRequest::Walk { request, walk },
                }
            }
        };
        self.remote.asked = true;
        engine.send(ClientMessage::Mirror(message));
    }

    fn walk_page(&mut self, engine: &mut Engine, spec: &Spec, ids: &mut IdTranslation) {
        let Some(folder) = spec.mirror.folder.clone() else {
            (self.local.done, self.local.paged) = (true, true);
            let page = SidePage::empty(spec.side_of_local());
            return self.add_page(engine, spec, ids, page);
        };
        self.local.busy = true;
        let begun = std::mem::replace(&mut self.local.begun, true);
        let walk = self.local.walk.take();
        let (filter, digests) = (spec.mirror.filter.clone(), spec.mirror.options.checksum);
        let avoid = spec.mirror.avoid.filter(|_| spec.mirror.direction == Direction::Up);
        let only = spec.mirror.chosen.clone();
        let atomic_target = spec.mirror.atomic_target.clone();
        let plain = spec.mirror.direction == Direction::Up && self.target_is_empty();
        let asks = self.may_match_pages(engine, spec) && !self.remote.done;
        let owners = spec.mirror.rules.give_away;
        // A new staging tree contains no inode that the last run saw.
        let lasts =
            !matches!(atomic_target, Some(AtomicTarget::Local(_))) && only.is_none() && !plain;
        let bare = lasts.then(|| engine.options().connect.state_dir.join("bare"));
        let keeps = engine.policy().task != Task::DryRun;
        self.jobs.run(move || {
            let walk = match (walk, begun) {
                (None, false) => folder.open_folder(&WirePath::root()).map(|fd| {
                    let target_fd = match atomic_target {
                        Some(AtomicTarget::Local(stage)) => stage.open_target(),
                        _ => None,
                    };
                    let mut walk =
                        TreeWalk::new(fd, filter, true).beside(target_fd).avoiding(avoid);
                    if let Some(bare) = bare {
                        walk = walk.recalling(&bare);
                    }
                    Box::new(walk.only(only))
                }),
                (walk, _) => walk.ok_or_else(|| Fault::new(Code::Io, "the walk is over")),
            };
            let mut walk = match walk {
                Ok(walk) => walk,
                Err(fault) => {
                    let found = vec![Err((WirePath::root(), fault))];
                    let page = TreePage { found, ..TreePage::default() };
                    return WalkedPage { walk: None, page, digest: None };
                }
            };
            if plain {
                walk.tell_plain();
            }
            let mut digest =
                |path: &WirePath| -> Result<Digest, Fault> { hash_file(&folder, path) };
            let (page, more) = match digests {
                true => next_page(&mut walk, Some(&mut digest)),
                false => next_page(&mut walk, None),
            };
            if !more && keeps {
                walk.keep();
            }
            let digest = if asks { digest_of(&page.found, owners) } else { None };
            WalkedPage { walk: more.then_some(walk), page, digest }
        });
    }

    /// Handles a page that a job read.
    fn local_page_walked(&mut self, WalkedPage { walk, page, digest }: WalkedPage) {
        (self.local.busy, self.local.paged) = (false, true);
        self.local.done = walk.is_none();
        self.local.walk = walk;
        self.page_match.push(LocalPage { page, digest, done: self.local.done });
    }

    /// Whether the server may be asked about pages by digest: only for whole trees without file
    /// digests.
    fn may_match_pages(&self, engine: &Engine, spec: &Spec) -> bool {
        let all = spec.mirror.chosen.is_none() && !spec.mirror.options.checksum;
        engine.version() >= ALIKE_VERSION && all
    }

    /// Passes on the local pages that wait neither for the server nor for owners.
    pub fn release_local_pages(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
    ) {
        let side = spec.side_of_local();
        while !self.owners.is_waiting() || side == Side::Target {
            let local_page = match self.may_match_pages(engine, spec) {
                true => self.page_match.take_unmatched(self.remote.done),
                false => self.page_match.pop(),
            };
            let Some(LocalPage { page: TreePage { found, leftovers }, done, .. }) = local_page
            else {
                break;
            };
            let page = SidePage { side, found, leftovers, done };
            self.add_page(engine, spec, ids, page);
        }
    }

    /// Handles the waiting local page, which equals the server's next one.
    pub fn compare_matching_page(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        remote_done: bool,
    ) {
        let Some(LocalPage { page, done, .. }) = self.page_match.take_matching() else {
            return engine.protocol_violation("a page-unchanged reply");
        };
        let TreePage { found, leftovers } = page;
        // Leftovers matter only at the target, and the server has none in this page.
        let (ended, leftovers) = match spec.mirror.direction {
            Direction::Down => ([remote_done, done], leftovers),
            Direction::Up => ([done, remote_done], Vec::new()),
        };
        if !self.metadata_survives_target(spec, ids, &found) {
            let (same, of_source) = (found.clone(), Vec::new());
            let page = |side, found, leftovers, done| SidePage { side, found, leftovers, done };
            self.add_page(engine, spec, ids, page(Side::Source, same, of_source, ended[0]));
            let target = page(Side::Target, found, leftovers, ended[1]);
            return self.add_page(engine, spec, ids, target);
        }
        self.note_target(engine, &found, leftovers, ended[1]);
        if let Err(fault) = self.diff.push_alike(found, ended) {
            engine.fail_session(fault);
        }
    }

    /// Whether the target can store the metadata of these entries, which both sides have.
    fn metadata_survives_target(&self, spec: &Spec, ids: &IdTranslation, found: &[Found]) -> bool {
        let is_kept = |node: &Node| {
            let mut meta = node.meta.clone();
            ids.translate(&mut meta);
            let mut kept = spec.settable_meta(&node.kind, meta);
            if !spec.mirror.rules.give_away {
                (kept.uid, kept.gid) = (node.meta.uid, node.meta.gid);
            }
            if is_link(&node.kind) {
                // The mode of a link is not compared.
                kept.mode = node.meta.mode;
            }
            kept == node.meta
        };
        unknown_owners(spec, ids, found).is_empty()
            && found.iter().all(|found| found.as_ref().is_ok_and(|node| is_kept(node)))
    }

    /// Handles a page of one side; a page of the source may have to wait for its owners.
    fn add_page(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        mut page: SidePage,
    ) {
        if page.side == Side::Source {
            let source = SourcePage { found: std::mem::take(&mut page.found), done: page.done };
            match self.owners.resolve_owners(engine, spec, ids, source) {
                Some(source) => page.found = source.found,
                None => return,
            }
        }
        self.feed_page(engine, spec, ids, page);
    }

    /// Passes a page to the comparison.
    fn feed_page(&mut self, engine: &mut Engine, spec: &Spec, ids: &IdTranslation, page: SidePage) {
        let SidePage { side, mut found, leftovers, done } = page;
        if engine.version() < LINK_TWINS_VERSION {
            // An older server does not detect hard links of symbolic links, so both sides ignore
            // them.
            let links = found.iter_mut().flatten().filter(|node| is_link(&node.kind));
            links.for_each(|node| node.twin = None);
        }
        if side == Side::Target {
            self.note_target(engine, &found, leftovers, done);
        }
        if let Some(chosen) = spec.mirror.chosen.clone() {
            self.keep_subset(engine, spec, &chosen, side, &mut found);
        }
        match side {
            Side::Source => {
                for node in found.iter_mut().flatten() {
                    ids.translate(&mut node.meta);
                    node.meta = spec.settable_meta(&node.kind, std::mem::take(&mut node.meta));
                }
            }
            Side::Target => found.iter_mut().for_each(|found| spec.ignore_unsettable_owner(found)),
        }
        if let Err(fault) = self.diff.push(side, found, done) {
            engine.fail_session(fault);
        }
    }

    /// Notes the leftovers and the basis candidates of the target.
    fn note_target(
        &mut self,
        engine: &mut Engine,
        found: &[Found],
        leftovers: Vec<WirePath>,
        done: bool,
    ) {
        let room = LEFTOVERS_MAX.saturating_sub(self.leftovers.count()) as usize;
        for path in leftovers.iter().take(room) {
            if let Err(fault) = self.leftovers.push(path) {
                return engine.fail_session(fault);
            }
        }
        found.iter().flatten().for_each(|node| self.candidates.note(node));
        self.candidates.complete |= done;
        self.target_entries += found.len();
    }

    fn keep_subset(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        chosen: &Chosen,
        side: Side,
        found: &mut Vec<Found>,
    ) {
        found.retain(|found| chosen.sees(path_of(found)));
        if side == Side::Source && !chosen.must_be_there() {
            let twin = found.iter().flatten().find(|node| node.twin.is_some());
            if let Some(path) = twin.map(|node| node.path.clone()) {
                // Only the written name was reported as changed, and not the others.
                let fault = Fault::new(Code::Changed, "it has other names, which changed with it");
                engine.outcomes().failed(spec.item(&path), spec.shown(&path), fault);
            }
        }
        if side == Side::Source {
            let listed = found.iter().filter_map(|found| chosen.listed(path_of(found)));
            self.listed.extend(listed.cloned());
        }
    }
}

impl SidePage {
    /// The only page of a missing side.
    fn empty(side: Side) -> Self {
        Self { side, found: Vec::new(), leftovers: Vec::new(), done: true }
    }
}

fn is_link(kind: &EntryKind) -> bool {
    matches!(kind, EntryKind::Symlink { .. })
}
