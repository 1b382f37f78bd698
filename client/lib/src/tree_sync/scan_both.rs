//! The two sides of a mirror: pages of the server's tree are asked for, pages of
//! the local one are walked by a job, both ahead of the comparison, and those that
//! are alike are not told. What is not to be looked at is left out here, and the
//! metadata of the source becomes what the target may keep of it.

use crate::tree_sync::delta_candidates::Likely;
use crate::tree_sync::id_map::{IdMap, SourcePage, unknown_owners};
use crate::tree_sync::page_match::{Ask, Beside, Held};
use crate::tree_sync::spec::{Aside, Mirror, Spec, Way};
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
pub(crate) struct Remote {
    request: Option<u32>,
    /// Whether a page is on its way.
    pub asked: bool,
    /// Whether it may be the local one that waits.
    unless: bool,
    pub done: bool,
}

impl Remote {
    /// Whether a page of this request was asked for; then it is there.
    pub fn takes(&mut self, request: u32, done: bool) -> bool {
        let takes = self.request == Some(request) && std::mem::take(&mut self.asked);
        self.done |= takes && done;
        takes
    }

    /// The same of a page that is the local one.
    pub fn takes_alike(&mut self, request: u32, done: bool) -> bool {
        self.unless && self.takes(request, done)
    }
}

/// The tree on this machine.
#[derive(Default)]
pub(crate) struct Local {
    walk: Option<Box<TreeWalk>>,
    begun: bool,
    /// Whether a job walks it.
    busy: bool,
    /// Whether a page of it was there.
    paged: bool,
    done: bool,
}

/// A page of the local tree, and the walk to go on with.
struct TreePaged {
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
    remote: Remote,
    local: Local,
    beside: Beside,
    pub likely: Likely,
    /// How many entries of the target were looked at, its root among them.
    there: usize,
    pub leftovers: Spool<WirePath>,
    /// Listed paths that were found.
    listed: HashSet<WirePath>,
    owners: IdMap,
    jobs: Jobs<TreePaged>,
}

impl ScanBoth {
    pub fn new(of: &Mirror, waker: &Waker) -> Self {
        Self {
            diff: Diff::new(of.options),
            remote: Remote::default(),
            local: Local::default(),
            beside: Beside::default(),
            likely: Likely::new(of.options.habits.resolution),
            there: 0,
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
            self.tree_paged(paged);
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
            return engine.unasked("names of owners");
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
            return engine.unasked("numbers of owners");
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
            self.take_page(engine, spec, ids, SidePage { side, found, leftovers, done });
        }
    }

    /// The server sent a page of its tree.
    pub fn walked(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        request: u32,
        page: SidePage,
    ) {
        if !self.remote.takes(request, page.done) {
            return engine.unasked("a page of a tree");
        }
        self.beside.told(&page.found);
        self.paged(engine, spec, ids, page);
    }

    /// The server has the local page that it was asked about.
    pub fn walked_alike(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        request: u32,
        done: bool,
    ) {
        if !self.remote.takes_alike(request, done) {
            return engine.unasked("a page that is the same");
        }
        self.paged_alike(engine, spec, ids, done);
    }

    /// Whether all of the target was looked at, and nothing is in it. Then nothing of the source is
    /// compared with anything, whatever comes to be there later.
    fn target_is_empty(&self) -> bool {
        self.likely.complete && self.there <= 1
    }

    /// Asks both sides for more, where little of theirs is left.
    pub fn feed(&mut self, engine: &mut Engine, spec: &Spec, ids: &mut IdTranslation) {
        let (local, remote) = (spec.side_of_local(), spec.side_of_remote());
        // One page of the source waits for its owners at a time.
        let waits = |side: Side| side == Side::Source && self.owners.is_waiting();
        let lacks = |side: Side, held: usize| {
            self.diff.waiting(side) + held < AHEAD_ENTRIES && !waits(side)
        };
        let (local, remote) = (lacks(local, self.beside.waiting()), lacks(remote, 0));
        if local && !self.local.busy && !self.local.done {
            self.walk_page(engine, spec, ids);
        }
        // How a source is walked depends on whether anything is at the target, so that of the
        // server waits for the first page of this one, which is soon there.
        let knows = spec.of.way == Way::Up || self.local.paged;
        if remote && knows && !self.remote.asked && !self.remote.done {
            self.ask_page(engine, spec, ids);
        }
    }

    fn ask_page(&mut self, engine: &mut Engine, spec: &Spec, ids: &mut IdTranslation) {
        if spec.of.remote_is_missing {
            self.remote.done = true;
            let page = SidePage::empty(spec.side_of_remote());
            return self.paged(engine, spec, ids, page);
        }
        let message = match self.remote.request {
            Some(request) => {
                let ask = match self.may_be_alike(engine, spec) {
                    // A page that both have is compared when those before it are.
                    true => self.beside.ask(self.local.done).filter(|_| !self.owners.is_waiting()),
                    false => Some(Ask::More),
                };
                let Some(ask) = ask else { return };
                engine.clock().asked_at(Instant::now());
                self.remote.unless = ask != Ask::More;
                match ask {
                    Ask::More => MirrorRequest::WalkMore { request },
                    Ask::Unless(alike) => {
                        let owners = spec.of.rules.give_away;
                        MirrorRequest::WalkUnless { request, alike, owners }
                    }
                }
            }
            None => {
                let request = engine.request();
                self.remote.request = Some(request);
                let (path, filter) = (spec.of.remote.clone(), spec.of.filter.texts().to_vec());
                let avoid = spec.of.avoid.filter(|_| spec.of.way == Way::Down);
                let walk = TreeScan { path, filter, digests: spec.of.options.checksum, avoid };
                let plain = engine.version() >= PLAIN_VERSION && self.target_is_empty();
                match spec.of.chosen.as_ref().and_then(|chosen| chosen.changes()) {
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
        let Some(folder) = spec.of.folder.clone() else {
            (self.local.done, self.local.paged) = (true, true);
            let page = SidePage::empty(spec.side_of_local());
            return self.paged(engine, spec, ids, page);
        };
        self.local.busy = true;
        let begun = std::mem::replace(&mut self.local.begun, true);
        let walk = self.local.walk.take();
        let (filter, digests) = (spec.of.filter.clone(), spec.of.options.checksum);
        let avoid = spec.of.avoid.filter(|_| spec.of.way == Way::Up);
        let only = spec.of.chosen.clone();
        let aside = spec.of.aside.clone();
        let plain = spec.of.way == Way::Up && self.target_is_empty();
        let asks = self.may_be_alike(engine, spec) && !self.remote.done;
        let owners = spec.of.rules.give_away;
        // A tree that is made anew beside its target has no file that the last run saw.
        let lasts = !matches!(aside, Some(Aside::Here(_))) && only.is_none() && !plain;
        let bare = lasts.then(|| engine.options().connect.state_dir.join("bare"));
        let keeps = engine.rules().task != Task::DryRun;
        self.jobs.run(move || {
            let walk = match (walk, begun) {
                (None, false) => folder.open_folder(&WirePath::root()).map(|fd| {
                    let beside = match aside {
                        Some(Aside::Here(stage)) => stage.open_target(),
                        _ => None,
                    };
                    let mut walk = TreeWalk::new(fd, filter, true).beside(beside).avoiding(avoid);
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
                    return TreePaged { walk: None, page, digest: None };
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
            TreePaged { walk: more.then_some(walk), page, digest }
        });
    }

    /// A page of the local tree is there.
    fn tree_paged(&mut self, TreePaged { walk, page, digest }: TreePaged) {
        (self.local.busy, self.local.paged) = (false, true);
        self.local.done = walk.is_none();
        self.local.walk = walk;
        self.beside.hold(Held { page, digest, done: self.local.done });
    }

    /// Whether the server may be asked for pages by what the local tree has: not for parts of a
    /// tree, nor for digests.
    fn may_be_alike(&self, engine: &Engine, spec: &Spec) -> bool {
        let all = spec.of.chosen.is_none() && !spec.of.options.checksum;
        engine.version() >= ALIKE_VERSION && all
    }

    /// Hands on the local pages that wait for no answer of the server, and for no owner.
    pub fn hand_on(&mut self, engine: &mut Engine, spec: &Spec, ids: &mut IdTranslation) {
        let side = spec.side_of_local();
        while !self.owners.is_waiting() || side == Side::Target {
            let held = match self.may_be_alike(engine, spec) {
                true => self.beside.next_apart(self.remote.done),
                false => self.beside.pass(),
            };
            let Some(Held { page: TreePage { found, leftovers }, done, .. }) = held else { break };
            let page = SidePage { side, found, leftovers, done };
            self.paged(engine, spec, ids, page);
        }
    }

    /// The server has the local page that waits as its next one.
    pub fn paged_alike(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        remote_done: bool,
    ) {
        let Some(Held { page, done, .. }) = self.beside.alike() else {
            return engine.unasked("a page that is the same");
        };
        let TreePage { found, leftovers } = page;
        // What copies left is the target's to tell, and the server has none in this page.
        let (ended, leftovers) = match spec.of.way {
            Way::Down => ([remote_done, done], leftovers),
            Way::Up => ([done, remote_done], Vec::new()),
        };
        if !self.stays_alike(spec, ids, &found) {
            let (same, of_source) = (found.clone(), Vec::new());
            let page = |side, found, leftovers, done| SidePage { side, found, leftovers, done };
            self.paged(engine, spec, ids, page(Side::Source, same, of_source, ended[0]));
            let target = page(Side::Target, found, leftovers, ended[1]);
            return self.paged(engine, spec, ids, target);
        }
        self.note_target(engine, &found, leftovers, ended[1]);
        if let Err(fault) = self.diff.push_alike(found, ended) {
            engine.broke(fault);
        }
    }

    /// Whether what is the same on both sides is what the target may keep of the source.
    fn stays_alike(&self, spec: &Spec, ids: &IdTranslation, found: &[Found]) -> bool {
        let is_kept = |node: &Node| {
            let mut meta = node.meta.clone();
            ids.translate(&mut meta);
            let mut kept = spec.kept(&node.kind, meta);
            if !spec.of.rules.give_away {
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
    fn paged(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        mut page: SidePage,
    ) {
        if page.side == Side::Source {
            let source = SourcePage { found: std::mem::take(&mut page.found), done: page.done };
            match self.owners.park(engine, spec, ids, source) {
                Some(source) => page.found = source.found,
                None => return,
            }
        }
        self.take_page(engine, spec, ids, page);
    }

    /// Hands a page to the comparison.
    fn take_page(&mut self, engine: &mut Engine, spec: &Spec, ids: &IdTranslation, page: SidePage) {
        let SidePage { side, mut found, leftovers, done } = page;
        if engine.version() < LINK_TWINS_VERSION {
            // One side would say which links are one and the other would not.
            let links = found.iter_mut().flatten().filter(|node| is_link(&node.kind));
            links.for_each(|node| node.twin = None);
        }
        if side == Side::Target {
            self.note_target(engine, &found, leftovers, done);
        }
        if let Some(chosen) = spec.of.chosen.clone() {
            self.choose_found(engine, spec, &chosen, side, &mut found);
        }
        match side {
            Side::Source => {
                for node in found.iter_mut().flatten() {
                    ids.translate(&mut node.meta);
                    node.meta = spec.kept(&node.kind, std::mem::take(&mut node.meta));
                }
            }
            Side::Target => found.iter_mut().for_each(|found| spec.take_for_ours(found)),
        }
        if let Err(fault) = self.diff.push(side, found, done) {
            engine.broke(fault);
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
                return engine.broke(fault);
            }
        }
        found.iter().flatten().for_each(|node| self.likely.note(node));
        self.likely.complete |= done;
        self.there += found.len();
    }

    fn choose_found(
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
