//! The two sides of a mirror: pages of the server's tree are asked for, pages of
//! the local one are walked by a job, both ahead of the comparison, and those that
//! are alike are not told. What is not to be looked at is left out here, and the
//! metadata of the source becomes what the target may keep of it.

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

/// How many leftovers of copies are kept in mind, in a file; what is more waits for the next run.
const LEFTOVERS_MAX: u64 = 1 << 20;

/// Entries of a side that wait to be compared before no more of it is walked: some pages, so that
/// neither side rests while the other is walked.
const AHEAD_ENTRIES: usize = 4 * PAGE_ENTRIES_MAX;

/// The tree on the server.
#[derive(Default)]
pub(crate) struct RemoteSide {
    request: Option<u32>,
    /// Whether a page is on its way.
    pub asked: bool,
    /// Whether it may be the local one that waits.
    unless: bool,
    pub done: bool,
}

impl RemoteSide {
    /// Whether a page of this request was asked for; then it is there.
    pub fn accept_page(&mut self, request: u32, done: bool) -> bool {
        let takes = self.request == Some(request) && std::mem::take(&mut self.asked);
        self.done |= takes && done;
        takes
    }

    /// The same of a page that is the local one.
    pub fn accept_matching_page(&mut self, request: u32, done: bool) -> bool {
        self.unless && self.accept_page(request, done)
    }
}

/// The tree on this machine.
#[derive(Default)]
pub(crate) struct LocalSide {
    walk: Option<Box<TreeWalk>>,
    begun: bool,
    /// Whether a job walks it.
    busy: bool,
    /// Whether a page of it was there.
    paged: bool,
    done: bool,
}

/// A page of the local tree, and the walk to go on with.
struct WalkedPage {
    walk: Option<Box<TreeWalk>>,
    page: TreePage,
    /// What the page says, where the server may be asked for that.
    digest: Option<Digest>,
}

/// A page of one side.
pub(crate) struct SidePage {
    pub side: Side,
    pub found: Vec<Found>,
    pub leftovers: Vec<WirePath>,
    pub done: bool,
}

/// Both sides of a mirror, and the comparison that they feed.
pub(crate) struct ScanBoth {
    pub diff: Diff,
    remote: RemoteSide,
    local: LocalSide,
    page_match: PageMatch,
    pub candidates: DeltaCandidates,
    /// How many entries of the target were looked at, its root among them.
    target_entries: usize,
    pub leftovers: Spool<WirePath>,
    /// Listed paths that were found.
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

    /// Whether the server owes a page, or names of owners.
    pub fn awaits(&self) -> bool {
        self.remote.asked || self.owners.awaits_server()
    }

    /// Whether a listed path was found.
    pub fn has_found(&self, path: &WirePath) -> bool {
        self.listed.contains(path)
    }

    /// Takes the answers of jobs.
    pub fn take_answers(&mut self, engine: &mut Engine, spec: &Spec, ids: &mut IdTranslation) {
        while let Some(paged) = self.jobs.next_answer() {
            self.local_page_walked(paged);
        }
        let page = self.owners.take_answers(engine, spec, ids);
        self.take_source(engine, spec, ids, page);
    }

    /// The server names the owners of the page that waits.
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

    /// The server numbers the owners of the page that waits.
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

    /// Hands on a page of the source whose owners are known by now.
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

    /// The server sent a page of its tree.
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

    /// The server has the local page that it was asked about.
    pub fn remote_page_matches(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        request: u32,
        done: bool,
    ) {
        if !self.remote.accept_matching_page(request, done) {
            return engine.protocol_violation("a page that is the same");
        }
        self.compare_matching_page(engine, spec, ids, done);
    }

    /// Whether all of the target was looked at, and nothing is in it. Then nothing of the source is
    /// compared with anything, whatever comes to be there later.
    fn target_is_empty(&self) -> bool {
        self.candidates.complete && self.target_entries <= 1
    }

    /// Asks both sides for more, where little of theirs is left.
    pub fn feed(&mut self, engine: &mut Engine, spec: &Spec, ids: &mut IdTranslation) {
        let (local, remote) = (spec.side_of_local(), spec.side_of_remote());
        // One page of the source waits for its owners at a time.
        let waits = |side: Side| side == Side::Source && self.owners.is_waiting();
        let lacks = |side: Side, queued: usize| {
            self.diff.waiting(side) + queued < AHEAD_ENTRIES && !waits(side)
        };
        let (local, remote) = (lacks(local, self.page_match.waiting()), lacks(remote, 0));
        if local && !self.local.busy && !self.local.done {
            self.walk_page(engine, spec, ids);
        }
        // How a source is walked depends on whether anything is at the target, so that of the
        // server waits for the first page of this one, which is soon there.
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
                    // A page that both have is compared when those before it are.
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
        // A tree that is made anew beside its target has no file that the last run saw.
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

    /// A page of the local tree is there.
    fn local_page_walked(&mut self, WalkedPage { walk, page, digest }: WalkedPage) {
        (self.local.busy, self.local.paged) = (false, true);
        self.local.done = walk.is_none();
        self.local.walk = walk;
        self.page_match.push(LocalPage { page, digest, done: self.local.done });
    }

    /// Whether the server may be asked for pages by what the local tree has: not for parts of a
    /// tree, nor for digests.
    fn may_match_pages(&self, engine: &Engine, spec: &Spec) -> bool {
        let all = spec.mirror.chosen.is_none() && !spec.mirror.options.checksum;
        engine.version() >= ALIKE_VERSION && all
    }

    /// Hands on the local pages that wait for no answer of the server, and for no owner.
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

    /// The server has the local page that waits as its next one.
    pub fn compare_matching_page(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        remote_done: bool,
    ) {
        let Some(LocalPage { page, done, .. }) = self.page_match.take_matching() else {
            return engine.protocol_violation("a page that is the same");
        };
        let TreePage { found, leftovers } = page;
        // What copies left is the target's to tell, and the server has none in this page.
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

    /// Whether what is the same on both sides is what the target may keep of the source.
    fn metadata_survives_target(&self, spec: &Spec, ids: &IdTranslation, found: &[Found]) -> bool {
        let is_kept = |node: &Node| {
            let mut meta = node.meta.clone();
            ids.translate(&mut meta);
            let mut kept = spec.settable_meta(&node.kind, meta);
            if !spec.mirror.rules.give_away {
                (kept.uid, kept.gid) = (node.meta.uid, node.meta.gid);
            }
            if is_link(&node.kind) {
                // Nobody compares that of a link.
                kept.mode = node.meta.mode;
            }
            kept == node.meta
        };
        unknown_owners(spec, ids, found).is_empty()
            && found.iter().all(|found| found.as_ref().is_ok_and(|node| is_kept(node)))
    }

    /// A page of a side is there; one of the source may have to wait for its owners.
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

    /// Hands a page to the comparison.
    fn feed_page(&mut self, engine: &mut Engine, spec: &Spec, ids: &IdTranslation, page: SidePage) {
        let SidePage { side, mut found, leftovers, done } = page;
        if engine.version() < LINK_TWINS_VERSION {
            // One side would say which links are one and the other would not.
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

    /// Notes what the target has, beside comparing it.
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
                // Who wrote to one name was told of, and not the others.
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
    /// All of a side that is missing.
    fn empty(side: Side) -> Self {
        Self { side, found: Vec::new(), leftovers: Vec::new(), done: true }
    }
}

fn is_link(kind: &EntryKind) -> bool {
    matches!(kind, EntryKind::Symlink { .. })
}
