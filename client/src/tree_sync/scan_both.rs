//! The two sides of a mirror: pages of the server's tree are asked for, pages of
//! the local one are walked by a job, both ahead of the comparison, and those that
//! are alike are not told. What is not to be looked at is left out here, and the
//! metadata of the source becomes what the target may keep of it.

use crate::model::copy_policy::Task;
use crate::session::Event;
use crate::session::dispatch::Core;
use crate::sync::chosen::Chosen;
use crate::tree_sync::Mirroring;
use crate::tree_sync::page_match::{Ask, Held};
use crate::tree_sync::spec::{Aside, Way};
use std::time::Instant;
use verbatim_files::TreeWalk;
use verbatim_files::meta::{Kind, expected};
use verbatim_files::paging::{TreePage, hash_file, next_page};
use verbatim_proto::alike::digest_of;
use verbatim_proto::message::{ClientMessage, EntryKind};
use verbatim_proto::mirror::{ALIKE_VERSION, MirrorRequest, PLAIN_VERSION, TreeScan};
use verbatim_proto::plan::Side;
use verbatim_proto::tree::{Found, LINK_TWINS_VERSION, path_of};
use verbatim_proto::units::PAGE_ENTRIES_MAX;
use verbatim_proto::{Code, Digest, Fault, Meta, Node, WirePath};

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
pub(crate) struct TreePaged {
    walk: Option<Box<TreeWalk>>,
    page: TreePage,
    /// What the page says, where the server may be asked for that.
    digest: Option<Digest>,
}

impl Core {
    /// Asks both sides for more, where little of theirs is left.
    pub(crate) fn feed(&mut self, mirror: &mut Mirroring) {
        let (local, remote) = (mirror.side_of_local(), mirror.side_of_remote());
        // One page of the source waits for its owners at a time.
        let waits = |side: Side| side == Side::Source && mirror.parked.is_some();
        let lacks = |side: Side, held: usize| {
            mirror.diff.waiting(side) + held < AHEAD_ENTRIES && !waits(side)
        };
        let (local, remote) = (lacks(local, mirror.beside.waiting()), lacks(remote, 0));
        if local && !mirror.local.busy && !mirror.local.done {
            self.walk_page(mirror);
        }
        // How a source is walked depends on whether anything is at the target, so that of the
        // server waits for the first page of this one, which is soon there.
        let knows = mirror.of.way == Way::Up || mirror.local.paged;
        if remote && knows && !mirror.remote.asked && !mirror.remote.done {
            self.ask_page(mirror);
        }
    }

    fn ask_page(&mut self, mirror: &mut Mirroring) {
        if mirror.of.remote_is_missing {
            mirror.remote.done = true;
            let side = mirror.side_of_remote();
            return self.paged(mirror, side, Vec::new(), Vec::new(), true);
        }
        let message = match mirror.remote.request {
            Some(request) => {
                let ask = match self.may_be_alike(mirror) {
                    // A page that both have is compared when those before it are.
                    true => {
                        mirror.beside.ask(mirror.local.done).filter(|_| mirror.parked.is_none())
                    }
                    false => Some(Ask::More),
                };
                let Some(ask) = ask else { return };
                self.quiet_since = Instant::now();
                mirror.remote.unless = ask != Ask::More;
                match ask {
                    Ask::More => MirrorRequest::WalkMore { request },
                    Ask::Unless(alike) => {
                        let owners = mirror.of.rules.give_away;
                        MirrorRequest::WalkUnless { request, alike, owners }
                    }
                }
            }
            None => {
                let request = self.request();
                mirror.remote.request = Some(request);
                let (path, filter) = (mirror.of.remote.clone(), mirror.of.filter.texts().to_vec());
                let avoid = mirror.of.avoid.filter(|_| mirror.of.way == Way::Down);
                let walk = TreeScan { path, filter, digests: mirror.of.options.checksum, avoid };
                let plain = self.version >= PLAIN_VERSION && mirror.target_is_empty();
                match mirror.of.chosen.as_ref().and_then(|chosen| chosen.changes()) {
                    Some(only) => MirrorRequest::WalkOnly { request, walk, only },
                    None if plain => MirrorRequest::WalkPlain { request, walk },
                    None => MirrorRequest::Walk { request, walk },
                }
            }
        };
        mirror.remote.asked = true;
        self.sending.push_back(ClientMessage::Mirror(message));
    }

    fn walk_page(&mut self, mirror: &mut Mirroring) {
        let Some(folder) = mirror.of.folder.clone() else {
            (mirror.local.done, mirror.local.paged) = (true, true);
            let side = mirror.side_of_local();
            return self.paged(mirror, side, Vec::new(), Vec::new(), true);
        };
        mirror.local.busy = true;
        let begun = std::mem::replace(&mut mirror.local.begun, true);
        let walk = mirror.local.walk.take();
        let (filter, digests) = (mirror.of.filter.clone(), mirror.of.options.checksum);
        let avoid = mirror.of.avoid.filter(|_| mirror.of.way == Way::Up);
        let only = mirror.of.chosen.clone();
        let aside = mirror.of.aside.clone();
        let plain = mirror.of.way == Way::Up && mirror.target_is_empty();
        let asks = self.may_be_alike(mirror) && !mirror.remote.done;
        let owners = mirror.of.rules.give_away;
        // A tree that is made anew beside its target has no file that the last run saw.
        let lasts = !matches!(aside, Some(Aside::Here(_))) && only.is_none() && !plain;
        let bare = lasts.then(|| self.options.connect.state_dir.join("bare"));
        let keeps = self.rules.task != Task::DryRun;
        self.job(move || {
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
                    return Event::TreePaged(TreePaged { walk: None, page, digest: None });
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
            Event::TreePaged(TreePaged { walk: more.then_some(walk), page, digest })
        });
    }

    /// A page of the local tree is there.
    pub(crate) fn tree_paged(&mut self, paged: TreePaged) {
        let Some(mut mirror) = self.mirror.take() else { return };
        let TreePaged { walk, page, digest } = paged;
        (mirror.local.busy, mirror.local.paged) = (false, true);
        mirror.local.done = walk.is_none();
        mirror.local.walk = walk;
        let done = mirror.local.done;
        mirror.beside.hold(Held { page, digest, done });
        self.mirror = Some(mirror);
    }

    /// Whether the server may be asked for pages by what the local tree has: not for parts of a
    /// tree, nor for digests.
    fn may_be_alike(&self, mirror: &Mirroring) -> bool {
        let all = mirror.of.chosen.is_none() && !mirror.of.options.checksum;
        self.version >= ALIKE_VERSION && all
    }

    /// Hands on the local pages that wait for no answer of the server, and for no owner.
    pub(crate) fn hand_on(&mut self, mirror: &mut Mirroring) {
        let side = mirror.side_of_local();
        while mirror.parked.is_none() || side == Side::Target {
            let held = match self.may_be_alike(mirror) {
                true => mirror.beside.next_apart(mirror.remote.done),
                false => mirror.beside.pass(),
            };
            let Some(Held { page: TreePage { found, leftovers }, done, .. }) = held else { break };
            self.paged(mirror, side, found, leftovers, done);
        }
    }

    /// The server has the local page that waits as its next one.
    pub(crate) fn paged_alike(&mut self, mirror: &mut Mirroring, remote_done: bool) {
        let Some(Held { page, done, .. }) = mirror.beside.alike() else {
            return self.unasked("a page that is the same");
        };
        let TreePage { found, leftovers } = page;
        // What copies left is the target's to tell, and the server has none in this page.
        let (ended, leftovers) = match mirror.of.way {
            Way::Down => ([remote_done, done], leftovers),
            Way::Up => ([done, remote_done], Vec::new()),
        };
        if !self.stays_alike(mirror, &found) {
            self.paged(mirror, Side::Source, found.clone(), Vec::new(), ended[0]);
            return self.paged(mirror, Side::Target, found, leftovers, ended[1]);
        }
        self.note_target(mirror, &found, leftovers, ended[1]);
        if let Err(fault) = mirror.diff.push_alike(found, ended) {
            self.broke(fault);
        }
    }

    /// Whether what is the same on both sides is what the target may keep of the source.
    fn stays_alike(&self, mirror: &Mirroring, found: &[Found]) -> bool {
        let is_kept = |node: &Node| {
            let mut meta = node.meta.clone();
            self.owners.translate(&mut meta);
            let mut kept = mirror.kept(&node.kind, meta);
            if !mirror.of.rules.give_away {
                (kept.uid, kept.gid) = (node.meta.uid, node.meta.gid);
            }
            if is_link(&node.kind) {
                // Nobody compares that of a link.
                kept.mode = node.meta.mode;
            }
            kept == node.meta
        };
        self.unknown_owners(mirror, found).is_empty()
            && found.iter().all(|found| found.as_ref().is_ok_and(|node| is_kept(node)))
    }

    /// A page of a side is there; one of the source may have to wait for its owners.
    pub(crate) fn paged(
        &mut self,
        mirror: &mut Mirroring,
        side: Side,
        found: Vec<Found>,
        leftovers: Vec<WirePath>,
        done: bool,
    ) {
        let found = match side {
            Side::Source => self.park(mirror, found, done),
            Side::Target => Some(found),
        };
        if let Some(found) = found {
            self.take_page(mirror, side, found, leftovers, done);
        }
    }

    /// Hands a page to the comparison.
    pub(crate) fn take_page(
        &mut self,
        mirror: &mut Mirroring,
        side: Side,
        mut found: Vec<Found>,
        leftovers: Vec<WirePath>,
        done: bool,
    ) {
        if self.version < LINK_TWINS_VERSION {
            // One side would say which links are one and the other would not.
            let links = found.iter_mut().flatten().filter(|node| is_link(&node.kind));
            links.for_each(|node| node.twin = None);
        }
        if side == Side::Target {
            self.note_target(mirror, &found, leftovers, done);
        }
        if let Some(chosen) = mirror.of.chosen.clone() {
            self.choose_found(mirror, &chosen, side, &mut found);
        }
        match side {
            Side::Source => {
                for node in found.iter_mut().flatten() {
                    self.owners.translate(&mut node.meta);
                    node.meta = mirror.kept(&node.kind, std::mem::take(&mut node.meta));
                }
            }
            Side::Target => found.iter_mut().for_each(|found| mirror.take_for_ours(found)),
        }
        if let Err(fault) = mirror.diff.push(side, found, done) {
            self.broke(fault);
        }
    }

    /// Notes what the target has, beside comparing it.
    fn note_target(
        &mut self,
        mirror: &mut Mirroring,
        found: &[Found],
        leftovers: Vec<WirePath>,
        done: bool,
    ) {
        let room = LEFTOVERS_MAX.saturating_sub(mirror.leftovers.count()) as usize;
        for path in leftovers.iter().take(room) {
            if let Err(fault) = mirror.leftovers.push(path) {
                return self.broke(fault);
            }
        }
        found.iter().flatten().for_each(|node| mirror.likely.note(node));
        mirror.likely.complete |= done;
        mirror.there += found.len();
    }

    fn choose_found(
        &mut self,
        mirror: &mut Mirroring,
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
                self.failed(mirror.item(&path), mirror.of.shown(&path), fault);
            }
        }
        if side == Side::Source {
            let listed = found.iter().filter_map(|found| chosen.listed(path_of(found)));
            mirror.listed.extend(listed.cloned());
        }
    }
}

fn is_link(kind: &EntryKind) -> bool {
    matches!(kind, EntryKind::Symlink { .. })
}

impl Mirroring {
    /// Whether all of the target was looked at, and nothing is in it. Then nothing of the source is
    /// compared with anything, whatever comes to be there later.
    fn target_is_empty(&self) -> bool {
        self.likely.complete && self.there <= 1
    }

    /// What the target may keep of the metadata of an entry of the source.
    fn kept(&self, kind: &EntryKind, meta: Meta) -> Meta {
        let kind = match kind {
            EntryKind::File => Kind::File,
            EntryKind::Folder => Kind::Folder,
            EntryKind::Symlink { .. } => Kind::Link,
            EntryKind::Special => return meta,
        };
        let kept = expected(&meta, kind, &self.of.rules);
        match kind {
            // They are not compared, and whoever makes the link counts them as not kept.
            Kind::Link => Meta { xattrs: meta.xattrs, ..kept },
            _ => kept,
        }
    }

    /// Where owners cannot be set none is wrong: a folder may hand down its group.
    fn take_for_ours(&self, found: &mut Found) {
        if let (Ok(node), false) = (found, self.of.rules.give_away) {
            (node.meta.uid, node.meta.gid) = self.of.rules.user;
        }
    }
}
