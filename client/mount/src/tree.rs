//! Names: turns node numbers of the kernel into paths of the server, and answers of the
//! server into nodes. While the server is away, names come from the kernel's nodes and
//! from the cache; others fail after a deadline.

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

/// How long the kernel may cache attributes and names.
const TTL: Duration = Duration::from_secs(1);

/// How long it may cache them while the server reports changes.
const TTL_WATCHED: Duration = Duration::from_secs(30);

/// The mode of a root with unknown attributes: other users may have no access to it.
const UNKNOWN_ROOT_MODE: u16 = 0o700;

/// Why a request fails.
#[derive(Debug)]
pub(super) enum TreeError {
    /// The node is not current: the kernel must look up the name again.
    Stale,
    /// The bytes of an open file cannot be read.
    Read(Fault),
    /// Any other fault of the server or the connection.
    Server(Fault),
}

impl From<Fault> for TreeError {
    fn from(fault: Fault) -> Self {
        Self::Server(fault)
    }
}

impl TreeError {
    /// The errno of this error for the kernel.
    pub fn errno(&self, code: Code) -> Errno {
        match (self, code) {
            // The open version is gone, whether its name still exists or not.
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

/// The mounted tree.
pub(super) struct Tree {
    pub content: Arc<Content>,
    pub passthrough: Passthrough,
    nodes: Mutex<Nodes>,
    dir_cache: DirCache,
    offline_names: Arc<OfflineNames>,
    base: WirePath,
    /// Whether the server reports changes as they happen.
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

    /// A walk over all entries, which stores the listings for offline use.
    pub fn walk(&self) -> Walk {
        Walk::new(self.base.clone()).storing_names(self.offline_names.clone())
    }

    /// Waits until all names for offline use are stored.
    pub async fn flush(&self) {
        self.offline_names.flush().await;
    }

    /// How long the kernel may cache the present answer.
    pub fn ttl(&self) -> Duration {
        if self.watched.load(Ordering::Relaxed) { TTL_WATCHED } else { TTL }
    }

    /// Drops all cached listings after a change.
    pub fn invalidate_listings(&self) {
        self.dir_cache.invalidate();
    }

    /// How often listings were invalidated.
    pub fn changes(&self) -> u64 {
        self.dir_cache.changes()
    }

    pub fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path on the server of a path in the mount.
    pub fn server_path(&self, path: &WirePath) -> WirePath {
        self.base.join(path)
    }

    /// The attributes of a folder that may be open or a working directory. Without an answer of the
    /// server, the last known ones.
    pub async fn folder_facts(&self, number: u64) -> Option<Facts> {
        if self.content.connection.is_up() {
            self.refresh_folder(number).await;
        }
        self.nodes().facts(number)
    }

    /// Asks the server for the attributes of a folder. False without an answer, or if it is no
    /// folder any more.
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

    /// Looks up a name: its number and its attributes.
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
                        let facts = self.facts_if_offline(parent, &folder, name).await;
                        facts.ok_or_else(|| self.log_fault(&path, fault))?
                    }
                    Err(fault) => return Err(self.log_fault(&path, fault)),
                },
            },
        };
        Ok((self.nodes().record_lookup(parent, name, facts), facts))
    }

    /// The known attributes of a name while the server is away; `None` while it answers.
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

    /// The attributes that the kernel got for a name before.
    fn known_facts(&self, parent: u64, name: &[u8]) -> Option<Facts> {
        let nodes = self.nodes();
        nodes.facts(nodes.number_of_name(parent, name))
    }

    /// Logs a fault, of which the reader only sees an errno.
    fn log_fault(&self, path: &WirePath, fault: Fault) -> TreeError {
        if fault.code != Code::NotFound {
            tracing::warn!(path = %path, cause = fault.text, "request failed");
        }
        TreeError::Server(fault)
    }

    /// The entries of a folder.
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
        // Dated at the request: changes during the answer may not be in it.
        self.dir_cache.insert(number, listing.clone(), changes, asked_at);
        self.offline_names.store_listing(&remote, &listing);
        Ok(listing)
    }

    /// The target of a symlink.
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
                let text = "the server sent a symbolic link whose target is not a valid path";
                Err(self.log_fault(&remote, Fault::new(Code::Protocol, text)))
            }
            _ => Err(TreeError::Stale),
        }
    }

    /// The extended attributes of a file or folder; symlinks have none here.
    pub async fn xattrs(&self, number: u64) -> Result<Vec<Xattr>, TreeError> {
        let (path, facts) = self.path_and_facts(number)?;
        let remote = self.server_path(&path);
        let meta = match facts.kind {
            Kind::File => self.content.meta(&remote, facts).await.map_err(TreeError::Read)?,
            // The root above all exports has no owner and no attributes.
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

    /// Opens the current version of a file, if the kernel knows its attributes.
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

    /// Makes the kernel look up a name again and drops cached listings.
    fn invalidate(&self, number: u64) {
        self.dir_cache.invalidate();
        self.nodes().invalidate(number);
    }

    /// Pins a file in the cache if all of it is verified. Blocks of an earlier mount are verified
    /// as they are read, so a later open pins them.
    pub async fn pin(&self, file: &Arc<CacheFile>) -> bool {
        let file = file.clone();
        blocking(move || file.pin_if_verified()).await
    }

    /// Records a read and prefetches the range that its reader probably wants next.
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
