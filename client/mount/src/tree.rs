//! Names and what is behind them: what the kernel asks by number becomes paths of the
//! server, and what the server says becomes numbers. While the server is away, what is
//! known is answered, and what is not is an error behind a deadline.

use super::cache::CacheFile;
use super::connection::is_connection_fault;
use super::content::{Content, OpenError, blocking};
use super::dir_cache::DirCache;
use super::handles::OpenFile;
use super::nodes::{Nodes, ROOT};
use super::offline_names::OfflineNames;
use super::passthrough::Passthrough;
use super::walk::Walk;
use fuser::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use verbatim_client::remote_fs::attributes::{Facts, Kind};
use verbatim_client::remote_fs::listing::{Listing, is_target};
use verbatim_proto::message::EntryKind;
use verbatim_proto::meta::Xattr;
use verbatim_proto::{Code, Fault, WirePath};

/// How long the kernel believes what it was told.
const TTL: Duration = Duration::from_secs(1);

/// How long it does while changes are told.
const TTL_WATCHED: Duration = Duration::from_secs(30);

/// The permission bits of a root of which nothing is known: others may not have been let in.
const UNKNOWN_ROOT_MODE: u16 = 0o700;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum TreeError {
    /// It is not what the kernel was told of: look again.
    Stale,
    /// Bytes of an open file cannot be had.
    Read(Fault),
    /// Anything else.
    Server(Fault),
}

impl From<Fault> for TreeError {
    fn from(fault: Fault) -> Self {
        Self::Server(fault)
    }
}

impl TreeError {
    /// What the kernel is told.
    pub fn errno(&self, code: Code) -> Errno {
        match (self, code) {
            // The version that is open is gone, with its name or without.
            (Self::Read(_), Code::NotFound | Code::Changed) => Errno::ESTALE,
            (_, Code::NotFound) => Errno::ENOENT,
            (_, Code::Changed) => Errno::ESTALE,
            (_, Code::Denied) => Errno::EACCES,
            (_, Code::IsFolder) => Errno::EISDIR,
            (_, Code::NotFolder) => Errno::ENOTDIR,
            (_, Code::BadPath) => Errno::ENAMETOOLONG,
            (_, Code::NoSpace) => Errno::ENOSPC,
            (_, Code::Limit) => Errno::EFBIG,
            (_, Code::Special) => Errno::EOPNOTSUPP,
            _ => Errno::EIO,
        }
    }
}

/// The tree that is mounted.
pub(super) struct Tree {
    pub content: Arc<Content>,
    pub passthrough: Passthrough,
    nodes: Mutex<Nodes>,
    dir_cache: DirCache,
    offline_names: Arc<OfflineNames>,
    base: WirePath,
    /// Whether changes are told as they happen.
    pub watched: AtomicBool,
}

impl Tree {
    pub fn new(content: Arc<Content>, base: WirePath, passthrough: Passthrough) -> Self {
        let offline_names = Arc::new(OfflineNames::new(content.clone()));
        let unknown = Facts::unknown(Kind::Folder, UNKNOWN_ROOT_MODE, 4096, 0);
        let nodes = Mutex::new(Nodes::new(offline_names.load_root(&base).unwrap_or(unknown)));
        let (dir_cache, watched) = (DirCache::default(), AtomicBool::new(false));
        Self { content, passthrough, nodes, dir_cache, offline_names, base, watched }
    }

    /// All of it, entry by entry; what is come to is remembered.
    pub fn walk(&self) -> Walk {
        Walk::new(self.base.clone()).storing_names(self.offline_names.clone())
    }

    /// Waits until what is to be remembered of it is kept.
    pub async fn flush(&self) {
        self.offline_names.flush().await;
    }

    /// How long the kernel may believe what it is told now.
    pub fn ttl(&self) -> Duration {
        if self.watched.load(Ordering::Relaxed) { TTL_WATCHED } else { TTL }
    }

    /// Something changed: what was listed is old.
    pub fn invalidate_listings(&self) {
        self.dir_cache.invalidate();
    }

    /// How often that was so.
    pub fn changes(&self) -> u64 {
        self.dir_cache.changes()
    }

    pub fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a path of the mount is on the server.
    pub fn server_path(&self, path: &WirePath) -> WirePath {
        self.base.join(path)
    }

    /// What a folder is now, which somebody may be in or hold open; what it was, where nobody says.
    pub async fn folder_facts(&self, number: u64) -> Option<Facts> {
        if self.content.connection.is_up() {
            self.refresh_folder(number).await;
        }
        self.nodes().facts(number)
    }

    /// Looks at a folder again; false where nobody says what it is, or it is none any more.
    pub async fn refresh_folder(&self, number: u64) -> bool {
        let path = self.nodes().path(number);
        let Ok(remote) = path.map(|path| self.server_path(&path)) else { return false };
        let Ok(seen) = self.content.connection.stat(&remote).await else { return false };
        let facts = seen.facts();
        if facts.kind != Kind::Folder {
            return false;
        }
        self.nodes().refresh(number, facts);
        match number {
            ROOT => self.offline_names.store_root(&remote, seen),
            _ => self.offline_names.store_entry(&remote, seen),
        }
        true
    }

    /// The number of a name, and what it is.
    pub async fn look_up(&self, parent: u64, name: &[u8]) -> Result<(u64, Facts), TreeError> {
        let folder = self.nodes().path(parent).map_err(|_| TreeError::Stale)?;
        let folder = self.server_path(&folder);
        let path = folder.with(name)?;
        let facts = match self.dir_cache.find(parent, name, Instant::now()) {
            Some(Some(facts)) => facts,
            _ => match self.facts_if_offline(parent, &folder, name).await {
                Some(facts) => facts,
                None => match self.content.connection.stat(&path).await {
                    Ok(seen) => {
                        let facts = seen.facts();
                        self.offline_names.store_entry(&path, seen);
                        facts
                    }
                    Err(fault) if is_connection_fault(&fault) => {
                        let known = self.facts_if_offline(parent, &folder, name).await;
                        known.ok_or_else(|| self.log_fault(&path, fault))?
                    }
                    Err(fault) => return Err(self.log_fault(&path, fault)),
                },
            },
        };
        Ok((self.nodes().record_lookup(parent, name, facts), facts))
    }

    /// What is known of a name without a server, where there is none.
    async fn facts_if_offline(&self, parent: u64, folder: &WirePath, name: &[u8]) -> Option<Facts> {
        if self.content.connection.is_up() {
            return None;
        }
        if let Some(facts) = self.known_facts(parent, name) {
            return Some(facts);
        }
        let (offline_names, folder, name) =
            (self.offline_names.clone(), folder.clone(), name.to_vec());
        blocking(move || offline_names.load_facts(&folder, &name)).await
    }

    /// What the kernel was told of a name before.
    fn known_facts(&self, parent: u64, name: &[u8]) -> Option<Facts> {
        let nodes = self.nodes();
        nodes.facts(nodes.number_of_name(parent, name))
    }

    /// Notes in the log what a reader will only see as a number.
    fn log_fault(&self, path: &WirePath, fault: Fault) -> TreeError {
        if fault.code != Code::NotFound {
            tracing::warn!(path = %path, cause = fault.text, "cannot be told");
        }
        TreeError::Server(fault)
    }

    /// What is in a folder.
    pub async fn list(&self, number: u64, path: &WirePath) -> Result<Arc<Listing>, TreeError> {
        let remote = self.server_path(path);
        let (asked_at, changes) = (Instant::now(), self.dir_cache.changes());
        let offline_listing = async || {
            let (offline_names, remote) = (self.offline_names.clone(), remote.clone());
            let away = !self.content.connection.is_up();
            if away { blocking(move || offline_names.load_listing(&remote)).await } else { None }
        };
        if let Some(listing) = offline_listing().await {
            return Ok(Arc::new(listing));
        }
        let listing = match self.content.connection.list(&remote).await {
            Ok(listing) => Arc::new(listing),
            Err(fault) => {
                let listing =
                    if is_connection_fault(&fault) { offline_listing().await } else { None };
                return listing.map(Arc::new).ok_or_else(|| self.log_fault(&remote, fault));
            }
        };
        // As old as the question: what changed while it was answered may not be in it.
        self.dir_cache.insert(number, listing.clone(), changes, asked_at);
        self.offline_names.store_listing(&remote, &listing);
        Ok(listing)
    }

    /// Where a link points to.
    pub async fn read_link(&self, number: u64) -> Result<Vec<u8>, TreeError> {
        let path = self.nodes().path(number).map_err(|_| TreeError::Stale)?;
        let remote = self.server_path(&path);
        if !self.content.connection.is_up() {
            let (offline_names, folder) = (self.offline_names.clone(), remote.parent());
            let name = remote.name().unwrap_or_default().to_vec();
            if let Some(target) =
                blocking(move || offline_names.load_link_target(&folder, &name)).await
            {
                return Ok(target);
            }
        }
        let answer = self.content.connection.stat(&remote).await;
        match answer.map_err(|fault| self.log_fault(&remote, fault))?.entry.kind {
            EntryKind::Symlink { target } if is_target(&target) => Ok(target),
            EntryKind::Symlink { .. } => {
                let text = "the server says that the link leads to what is no path";
                Err(self.log_fault(&remote, Fault::new(Code::Protocol, text)))
            }
            _ => Err(TreeError::Stale),
        }
    }

    /// The extended attributes of a file or folder; those of links are not told.
    pub async fn xattrs(&self, number: u64) -> Result<Vec<Xattr>, TreeError> {
        let (path, facts) = self.path_and_facts(number)?;
        let remote = self.server_path(&path);
        let meta = match facts.kind {
            Kind::File => self.content.meta(&remote, facts).await.map_err(TreeError::Read)?,
            // All exports together are a folder of nobody.
            Kind::Folder if !remote.is_root() => {
                self.content.connection.folder_meta(&remote).await?
            }
            _ => None,
        };
        Ok(meta.map(|meta| meta.xattrs).unwrap_or_default())
    }

    fn path_and_facts(&self, number: u64) -> Result<(WirePath, Facts), TreeError> {
        let nodes = self.nodes();
        let path = nodes.path(number).map_err(|_| TreeError::Stale)?;
        Ok((path, nodes.facts(number).ok_or(TreeError::Stale)?))
    }

    /// Opens a file: the version that is there now, if it is what the kernel was told of.
    pub async fn open(&self, number: u64) -> Result<(WirePath, Arc<CacheFile>), TreeError> {
        let (path, facts) = self.path_and_facts(number)?;
        let opened = self.content.open(&self.server_path(&path), facts, true).await;
        let file = match opened {
            Ok(file) => file,
            Err(OpenError::Stale) => {
                self.invalidate(number);
                return Err(TreeError::Stale);
            }
            Err(OpenError::Fault(fault)) => {
                return Err(self.log_fault(&self.server_path(&path), fault));
            }
        };
        if !self.nodes().open(number, file.version, (file.size, file.mtime_ns)) {
            self.invalidate(number);
            return Err(TreeError::Stale);
        }
        Ok((path, file))
    }

    /// The kernel must look at a name again: what was listed of it is old.
    fn invalidate(&self, number: u64) {
        self.dir_cache.invalidate();
        self.nodes().invalidate(number);
    }

    /// Has all of a file stay, where all of it is there and verified. What an earlier mount left is
    /// verified as it is read, and held when it is opened the next time.
    pub async fn pin(&self, file: &Arc<CacheFile>) -> bool {
        let file = file.clone();
        blocking(move || file.pin_if_verified()).await
    }

    /// Notes a read, and has brought what its reader will want next.
    pub fn read_ahead(&self, open: &OpenFile, offset: u64, len: u64) {
        let mut read_ahead = open.read_ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let next = read_ahead.record(offset, len, open.file.size);
        drop(read_ahead);
        if let Some((offset, len)) = next {
            let remote = self.server_path(&open.path);
            self.content.prefetch(&remote, &open.file, offset, len);
        }
    }
}
