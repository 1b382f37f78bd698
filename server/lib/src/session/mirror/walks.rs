//! The walks of a session: trees that are told in order, a page when it is asked
//! for, unless the client has the same page. The next ones are made meanwhile, so that
//! neither side waits for the other; not where digests are wanted, which cost more
//! than waiting does. Called by `mirror`.

use crate::exports::client_view::Reach;
use crate::exports::open::ExportFolder;
use crate::exports::open::open_source;
use crate::limits::client_limits::Share;
use crate::limits::fair_pool::Place;
use crate::limits::memory_budget::{WALK_BYTES, refusal};
use crate::session::Services;
use crate::session::client::Client;
use crate::session::disclosed_owners::{DisclosedOwners, of_meta};
use crate::session::end::End;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use verbatim_files::paging::{TreePage, next_page, root_of};
use verbatim_files::{Source, TreeWalk};
use verbatim_proto::alike::digest_of;
use verbatim_proto::chosen::Chosen;
use verbatim_proto::message::ServerMessage;
use verbatim_proto::mirror::TreeScan;
use verbatim_proto::tree::Found;
use verbatim_proto::units::WINDOW_BYTES;
use verbatim_proto::{Code, Digest, Fault, Filter, Meter, MirrorReply, WirePath};
use verbatim_serve::Jobs;

/// Walks one client may have at a time.
pub(in crate::session) const WALKS_MAX: usize = 4;

/// Pages of a walk that are made before they are asked for: a client that is at one thing has its
/// pages unevenly.
const AHEAD_PAGES: usize = 2;

/// The walks of a session that are not over, by the requests that began them.
pub(super) struct Walks {
    open: HashMap<u32, OpenWalk>,
    jobs: Jobs<WalkedPage>,
}

/// How far a walk is.
struct OpenWalk {
    /// Whether the client waits for a page, unless it is one that it has.
    requested: Option<Option<KnownPage>>,
    /// Pages that are made and not told, and whether they are the last.
    ready: VecDeque<(TreePage, bool)>,
    /// The walk, while no job makes a page of it; none when it is over.
    paused: Option<Box<PausedWalk>>,
    /// For the pages.
    _memory: Place,
}

/// A page that the client has.
#[derive(Clone, Copy)]
pub(super) struct KnownPage {
    pub digest: Digest,
    /// Whether owners are compared.
    pub owners: bool,
}

impl KnownPage {
    fn is(&self, found: &[Found]) -> bool {
        digest_of(found, self.owners) == Some(self.digest)
    }
}

/// A walk between two pages.
struct PausedWalk {
    export: Arc<ExportFolder>,
    base: WirePath,
    walk: TreeWalk,
    digests: bool,
}

/// A page that a job made of a walk.
pub(crate) struct WalkedPage {
    request: u32,
    page: TreePage,
    /// The walk to go on with.
    walking: Option<Box<PausedWalk>>,
}

impl Walks {
    /// None yet.
    pub fn new(jobs: Jobs<WalkedPage>) -> Self {
        Self { open: HashMap::new(), jobs }
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// How many pages of a walk are made and not told.
    #[cfg(test)]
    pub fn ready_pages(&self, request: u32) -> usize {
        self.open[&request].ready.len()
    }

    /// Forgets all walks.
    pub fn clear(&mut self) {
        self.open.clear();
    }

    /// Begins a walk. Where the tree is built beside a target, `open_beside` opens that target.
    pub fn begin(
        &mut self,
        client: &Client,
        request: u32,
        (scan, all): (TreeScan, WalkScope),
        open_beside: impl FnOnce() -> Option<OwnedFd> + Send + 'static,
    ) -> Result<(), End> {
        if self.open.len() >= WALKS_MAX || self.open.contains_key(&request) {
            let text = format!("a session may have {WALKS_MAX} walks");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        let memory = client.memory.take(WALK_BYTES);
        let memory = memory.ok_or_else(|| End::Refused(refusal("another walk")))?;
        let (requested, ready) = (Some(None), VecDeque::new());
        let walk = OpenWalk { requested, ready, paused: None, _memory: memory };
        self.open.insert(request, walk);
        let reach = client.reach.clone();
        self.make_page(client, request, scan.digests, move |hasher| {
            match begin_walk(hasher, &reach, scan, all, open_beside()) {
                Ok(walking) => page_of(hasher, walking),
                Err(fault) => {
                    let found = vec![Err((WirePath::root(), fault))];
                    (None, TreePage { found, ..TreePage::default() })
                }
            }
        });
        Ok(())
    }

    /// Has a page made; those who hash wait for a place among those of the client, and among all
    /// that do, before they take one of its threads.
    fn make_page(
        &self,
        client: &Client,
        request: u32,
        digests: bool,
        make: impl FnOnce(&Hasher) -> NewPage + Send + 'static,
    ) {
        let (services, over) = (client.services.clone(), client.cancel.flag());
        let hasher = Hasher { services, over, meter: client.share.name.matching.meter() };
        let work = move || {
            let (walking, page) = make(&hasher);
            WalkedPage { request, page, walking }
        };
        match digests {
            true => {
                let Share { name, hashed_walks, threads, .. } = &*client.share;
                let all = &client.services.hashed_walks;
                let rooms = [hashed_walks, &name.hashed_walks, all, threads, &name.threads];
                self.jobs.run_within(rooms.map(Arc::clone), work);
            }
            false => self.jobs.run(work),
        }
    }

    /// The client asks for the next page, unless it is this one.
    pub fn ask(
        &mut self,
        client: &Client,
        disclosed_owners: &mut DisclosedOwners,
        request: u32,
        unless: Option<KnownPage>,
    ) -> Result<(), End> {
        match self.open.get_mut(&request) {
            Some(walk) if walk.requested.is_none() => walk.requested = Some(unless),
            _ => {
                let text = "the client asked for more of a walk that is not open";
                return Err(End::Refused(Fault::new(Code::Protocol, text)));
            }
        }
        self.advance(client, disclosed_owners, request)
    }

    /// A page is made.
    pub fn walked(
        &mut self,
        client: &Client,
        disclosed_owners: &mut DisclosedOwners,
        WalkedPage { request, page, walking }: WalkedPage,
    ) -> Result<(), End> {
        if let Some(walk) = self.open.get_mut(&request) {
            walk.ready.push_back((page, walking.is_none()));
            walk.paused = walking;
        }
        self.advance(client, disclosed_owners, request)
    }

    /// Has a page made where too few are ready, and sends the next where it is asked for.
    fn advance(
        &mut self,
        client: &Client,
        disclosed_owners: &mut DisclosedOwners,
        request: u32,
    ) -> Result<(), End> {
        let Some(walk) = self.open.get_mut(&request) else { return Ok(()) };
        let next = walk.requested.and_then(|unless| Some((unless, walk.ready.pop_front()?)));
        if next.is_some() {
            walk.requested = None;
        }
        let ready = walk.ready.len();
        let lacks = |walking: &mut Box<PausedWalk>| match walking.digests {
            true => walk.requested.is_some() && ready == 0,
            false => ready < AHEAD_PAGES,
        };
        if let Some(walking) = walk.paused.take_if(lacks) {
            let digests = walking.digests;
            self.make_page(client, request, digests, move |hasher| page_of(hasher, walking));
        }
        let Some((unless, (page, done))) = next else { return Ok(()) };
        if done {
            self.open.remove(&request);
        }
        // Also of a page that the client has: what it asks about those owners is the same.
        let owners = page.found.iter().flatten().map(|node| of_meta(&node.meta));
        disclosed_owners.note(owners);
        client.send(ServerMessage::Mirror(reply_of(request, page, done, unless)))
    }
}

/// How a page is told, unless the client has it.
fn reply_of(
    request: u32,
    TreePage { found, leftovers }: TreePage,
    done: bool,
    unless: Option<KnownPage>,
) -> MirrorReply {
    let is_known = leftovers.is_empty() && unless.is_some_and(|known| known.is(&found));
    match is_known {
        true => MirrorReply::Alike { request, done },
        false => MirrorReply::Walked { request, found, leftovers, done },
    }
}

/// What of a tree is told.
pub(super) enum WalkScope {
    /// All that is compared of every entry.
    Told,
    /// The same but for the attributes of files.
    Plain,
    /// All of these, and of the folders they are in.
    Only(Arc<Chosen>),
}

fn begin_walk(
    hasher: &Hasher,
    reach: &Reach,
    scan: TreeScan,
    all: WalkScope,
    beside: Option<OwnedFd>,
) -> Result<Box<PausedWalk>, Fault> {
    let filter = Filter::parse(scan.filter)?.metered(hasher.meter.clone());
    let (export, base) = reach.resolve(&scan.path)?;
    let trusted = export.rules.privileged_xattrs;
    let walk = TreeWalk::new(export.folder.open_folder(&base)?, filter, trusted);
    let walk = walk.crossing(export.folder.crosses());
    let walk = walk.knowing(hasher.services.bare.clone()).until(hasher.over.clone());
    let mut walk = walk.avoiding(scan.avoid).beside(beside);
    match all {
        WalkScope::Told => {}
        WalkScope::Plain => walk.tell_plain(),
        WalkScope::Only(chosen) => walk = walk.only(Some(chosen)),
    }
    Ok(Box::new(PausedWalk { export, base, walk, digests: scan.digests }))
}

/// Tells digests of files as long as somebody waits for them.
struct Hasher {
    services: Arc<Services>,
    over: Arc<AtomicBool>,
    meter: Meter,
}

impl Hasher {
    fn root(&self, source: &Source) -> Result<Digest, Fault> {
        root_of(source, |source, extent| match self.over.load(Ordering::Relaxed) {
            true => Err(Fault::new(Code::Interrupted, "the client is gone")),
            false => self.services.hashing.digests(source, extent, WINDOW_BYTES, false),
        })
    }
}

/// The walk to go on with, and the page that was made of it.
type NewPage = (Option<Box<PausedWalk>>, TreePage);

fn page_of(hasher: &Hasher, mut walking: Box<PausedWalk>) -> NewPage {
    let PausedWalk { export, base, walk, digests } = &mut *walking;
    let mut digest = |path: &WirePath| -> Result<Digest, Fault> {
        hasher.root(&open_source(export, &base.join(path))?)
    };
    let (page, more) = match digests {
        true => next_page(walk, Some(&mut digest)),
        false => next_page(walk, None),
    };
    (more.then_some(walking), page)
}
