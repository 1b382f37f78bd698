//! The walks of a session: a tree in order, sent in pages as the client asks, unless the client has
//! a page with the same digest. Jobs prefetch the next pages, so that neither side waits; not where
//! file digests are wanted, which cost more than the wait. `mirror` calls it.

use crate::exports::client_view::ClientView;
use crate::exports::open::ExportFolder;
use crate::exports::open::open_source;
use crate::limits::client_limits::ClientLimits;
use crate::limits::fair_pool::Permit;
use crate::limits::memory_budget::{WALK_BYTES, out_of_budget};
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

/// Walks that one client may have.
pub(in crate::session) const WALKS_MAX: usize = 4;

/// Pages of a walk that are prefetched: a busy client asks unevenly.
const AHEAD_PAGES: usize = 2;

/// The open walks of a session, by request.
pub(super) struct Walks {
    open: HashMap<u32, OpenWalk>,
    jobs: Jobs<WalkedPage>,
}

/// The progress of a walk.
struct OpenWalk {
    /// Whether the client waits for a page, and the page that it has already.
    requested: Option<Option<KnownPage>>,
    /// Prefetched pages, each with whether it is the last.
    ready: VecDeque<(TreePage, bool)>,
    /// The walk, while no job makes a page of it; none when it is over.
    paused: Option<Box<PausedWalk>>,
    /// The memory of its pages.
    _memory: Permit,
}

/// A page that the client has.
#[derive(Clone, Copy)]
pub(super) struct KnownPage {
    pub digest: Digest,
    /// Whether the digest covers owners.
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

/// A page that a job made.
pub(crate) struct WalkedPage {
    request: u32,
    page: TreePage,
    /// The rest of the walk.
    paused: Option<Box<PausedWalk>>,
}

impl Walks {
    /// No walk yet.
    pub fn new(jobs: Jobs<WalkedPage>) -> Self {
        Self { open: HashMap::new(), jobs }
    }

    /// Whether no walk is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// How many pages of a walk are ready and not sent.
    #[cfg(test)]
    pub fn ready_pages(&self, request: u32) -> usize {
        self.open[&request].ready.len()
    }

    /// Drops all walks.
    pub fn clear(&mut self) {
        self.open.clear();
    }

    /// Begins a walk. For a staging tree, `open_beside` opens its target.
    pub fn begin(
        &mut self,
        client: &Client,
        request: u32,
        (scan, all): (TreeScan, WalkScope),
        open_beside: impl FnOnce() -> Option<OwnedFd> + Send + 'static,
    ) -> Result<(), End> {
        if self.open.len() >= WALKS_MAX || self.open.contains_key(&request) {
            let text = format!("a session may have {WALKS_MAX} walks");
            return Err(End::refused(Code::Limit, text));
        }
        let memory = client.memory.take(WALK_BYTES);
        let memory = memory.ok_or_else(|| End::Refused(out_of_budget("another walk")))?;
        let (requested, ready) = (Some(None), VecDeque::new());
        let walk = OpenWalk { requested, ready, paused: None, _memory: memory };
        self.open.insert(request, walk);
        let reach = client.reach.clone();
        self.make_page(client, request, scan.digests, move |hasher| {
            match begin_walk(hasher, &reach, scan, all, open_beside()) {
                Ok(paused) => page_of(hasher, paused),
                Err(fault) => {
                    let found = vec![Err((WirePath::root(), fault))];
                    (None, TreePage { found, ..TreePage::default() })
                }
            }
        });
        Ok(())
    }

    /// Starts a job that makes a page. A walk that hashes first waits for a permit of its client
    /// and one of all such walks, and only then for a thread.
    fn make_page(
        &self,
        client: &Client,
        request: u32,
        digests: bool,
        make: impl FnOnce(&Hasher) -> NewPage + Send + 'static,
    ) {
        let (services, over) = (client.services.clone(), client.cancel.flag());
        let hasher = Hasher { services, over, meter: client.share.name.pattern_steps.meter() };
        let work = move || {
            let (paused, page) = make(&hasher);
            WalkedPage { request, page, paused }
        };
        match digests {
            true => {
                let ClientLimits { name, hashed_walks, threads, .. } = &*client.share;
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
                return Err(End::refused(Code::Protocol, text));
            }
        }
        self.advance(client, disclosed_owners, request)
    }

    /// Adds a page that a job made.
    pub fn walked(
        &mut self,
        client: &Client,
        disclosed_owners: &mut DisclosedOwners,
        WalkedPage { request, page, paused }: WalkedPage,
    ) -> Result<(), End> {
        if let Some(walk) = self.open.get_mut(&request) {
            walk.ready.push_back((page, paused.is_none()));
            walk.paused = paused;
        }
        self.advance(client, disclosed_owners, request)
    }

    /// Prefetches a page where too few are ready, and sends the next one if the client waits.
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
        let lacks = |paused: &mut Box<PausedWalk>| match paused.digests {
            true => walk.requested.is_some() && ready == 0,
            false => ready < AHEAD_PAGES,
        };
        if let Some(paused) = walk.paused.take_if(lacks) {
            let digests = paused.digests;
            self.make_page(client, request, digests, move |hasher| page_of(hasher, paused));
        }
        let Some((unless, (page, done))) = next else { return Ok(()) };
        if done {
            self.open.remove(&request);
        }
        // Also for a page that the client has: it may ask for the same owners.
        let owners = page.found.iter().flatten().map(|node| of_meta(&node.meta));
        disclosed_owners.note(owners);
        client.send(ServerMessage::Mirror(reply_of(request, page, done, unless)))
    }
}

/// The message for a page; short if the client has the page.
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

/// Which part of a tree a walk covers.
pub(super) enum WalkScope {
    /// Everything that is compared of every entry.
    Told,
    /// The same without the extended attributes of files.
    Plain,
    /// Only these paths, and the folders above them.
    Only(Arc<Chosen>),
}

fn begin_walk(
    hasher: &Hasher,
    reach: &ClientView,
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

/// Hashes files until the client is gone.
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

/// The rest of the walk, and its next page.
type NewPage = (Option<Box<PausedWalk>>, TreePage);

fn page_of(hasher: &Hasher, mut paused: Box<PausedWalk>) -> NewPage {
    let PausedWalk { export, base, walk, digests } = &mut *paused;
    let mut digest = |path: &WirePath| -> Result<Digest, Fault> {
        hasher.root(&open_source(export, &base.join(path))?)
    };
    let (page, more) = match digests {
        true => next_page(walk, Some(&mut digest)),
        false => next_page(walk, None),
    };
    (more.then_some(paused), page)
}
