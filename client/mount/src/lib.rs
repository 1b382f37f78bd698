//! `rdma-mount` as a library: shows a tree of a server as a read-only FUSE file system
//! with a cache on local disk. `fuse` answers the kernel, `tree` resolves names,
//! `content` reads bytes, `connection` keeps a session with the server, `cache` stores
//! blocks. Never touches the terminal.

#![forbid(unsafe_code)]

mod block_fetch;
mod cache;
mod cache_keys;
mod cache_origin;
mod connection;
mod content;
mod counters;
mod detach;
mod dir_cache;
mod fill;
mod fill_window;
mod fuse;
mod fuse_types;
mod handles;
mod inflight;
pub mod metrics;
mod mountpoint;
mod nodes;
mod offline_names;
mod open_once;
mod passthrough;
mod priority_gate;
mod read_ahead;
mod readdir;
mod recent_blocks;
pub mod status;
mod tree;
mod walk;
mod watch;

pub use cache::CacheError;
pub use fill::Fill;
pub use mountpoint::MountpointError;

use cache::Cache;
use connection::Connection;
use content::Content;
use detach::Detach;
use fuse::FuseFs;
use fuser::{Config, MountOption, SessionACL};
use handles::Handles;
use passthrough::Passthrough;
use status::StatusHandle;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tree::Tree;
use verbatim_client::model::location::Remote;
use verbatim_client::session::Session;
use verbatim_client::session::backoff::may_come_back;
use verbatim_client::watch::SourceWatch;
use verbatim_client::{ClientError, SessionOptions};
use verbatim_proto::message::EntryKind;
use verbatim_proto::{Code, Fault, Watch};

/// Threads that read FUSE requests.
const FUSE_THREADS: usize = 4;

/// How long an unmount waits for readers to close their files.
const UNMOUNT_MAX: Duration = Duration::from_secs(2);

/// The pause between two tries to unmount.
const UNMOUNT_RETRY: Duration = Duration::from_millis(100);

/// The source, the mount point and the options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The folder of the server that is mounted.
    pub remote: Remote,
    /// The source as the user wrote it: mount(8) matches lines of fstab against this name.
    pub name: String,
    /// The folder that the tree is mounted on.
    pub mountpoint: PathBuf,
    /// The folder of the cache.
    pub cache: PathBuf,
    /// The most bytes that the cache stores.
    pub cache_bytes: u64,
    /// Whether other users may access the mount.
    pub allow_other: bool,
    /// Whether programs in the mount cannot be executed.
    pub noexec: bool,
    /// Whether the kernel reads complete files by FUSE passthrough.
    pub passthrough: bool,
    /// Whether all files are fetched in the background.
    pub fill: Fill,
    /// Whether the mount becomes a plain folder when the fill is complete.
    pub detach: bool,
    /// Whether the mount serves only the cache and never connects.
    pub offline: bool,
    /// Whether the server reports changes as they happen.
    pub watch: bool,
}

/// Why a mount did not start, or did not end.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The server cannot be reached, or rejects this client.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The mount point or the FUSE device cannot be used.
    #[error("{0}")]
    Mountpoint(#[from] MountpointError),
    /// The cache cannot be used.
    #[error("{0}")]
    Cache(#[from] CacheError),
    /// The source cannot be used.
    #[error("{0}")]
    Fault(#[from] Fault),
}

impl MountError {
    /// Whether a signal stopped the command before the file system was mounted.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Self::Fault(fault) if fault.code == Code::Interrupted)
    }

    /// The next step for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Client(error) => error.hint(),
            Self::Mountpoint(error) => Some(error.hint()),
            Self::Cache(error) => error.hint(),
            Self::Fault(fault) if fault.code == Code::LinkLost => {
                Some("mount it once while the server is there, with the same --cache".into())
            }
            Self::Fault(_) => None,
        }
    }
}

/// A mounted file system.
pub struct Mount {
    options: MountOptions,
    unmounter: fuser::SessionUnmounter,
    ended: oneshot::Receiver<()>,
    detach: Option<Detach>,
    status_handle: StatusHandle,
}

impl Mount {
    /// Connects and mounts. The server must answer now; later the mount survives its absence. If
    /// `stop` completes before the kernel mounts, nothing is mounted; later `run_until` handles it.
    pub async fn start(
        mut options: MountOptions,
        mut session: SessionOptions,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<Self, MountError> {
        // Each open version takes two descriptors, also without a session, which would raise the
        // limit.
        verbatim_files::limit::raise_open_files();
        // The server sends extended attributes only with the metadata of files.
        session.preserve = true;
        // The kernel names mounts by their real path, never by a symlink.
        let requested = std::mem::take(&mut options.mountpoint);
        options.mountpoint = content::blocking(move || mountpoint::resolve(&requested)).await;
        let (cache, server, first) = tokio::select! {
            () = stop => return Err(Fault::new(Code::Interrupted, "interrupted").into()),
            ready = prepare(&options, &session) => ready?,
        };
        let connection = Connection::start(first, session.clone());
        let content = Arc::new(Content::new(connection, cache, server));
        let counted = content.clone();
        tokio::task::spawn_blocking(move || counted.cache.count());
        let passthrough = Passthrough::new(options.passthrough);
        let tree = Arc::new(Tree::new(content, options.remote.path.clone(), passthrough));
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let (handles, runtime) = (Arc::new(Handles::default()), tokio::runtime::Handle::current());
        let fill_progress = Arc::new(fill::FillProgress::default());
        // Without a server there is nothing to fetch.
        if let (Fill::On(rate), false) = (options.fill, options.offline) {
            tokio::spawn(fill::fill(
                tree.content.clone(),
                tree.walk(),
                rate,
                fill_progress.clone(),
            ));
        }
        let watching = options.watch.then(|| {
            let watch = Watch { path: options.remote.path.clone(), exclude: Vec::new() };
            (tree.clone(), SourceWatch::remote(session.connect.clone(), session.timeout, watch))
        });
        let detach = options.detach.then(|| {
            let (content, fill_progress) = (tree.content.clone(), fill_progress.clone());
            Detach { content, fill_progress, session }
        });
        let fuse_fs =
            FuseFs { tree, handles, fill_progress, runtime, owner, validates_attrs: false };
        let mount = Self::mount(options, fuse_fs, watching).await?;
        Ok(Self { detach, ..mount })
    }

    async fn mount(
        options: MountOptions,
        fuse_fs: FuseFs,
        watching: Option<(Arc<Tree>, SourceWatch)>,
    ) -> Result<Self, MountError> {
        let status_handle = StatusHandle {
            tree: fuse_fs.tree.clone(),
            fill_progress: fuse_fs.fill_progress.clone(),
        };
        let (config, at) = (config(&options), options.mountpoint.clone());
        let make = move || {
            let session = fuser::Session::new(fuse_fs, &at, &config)?;
            // The kernel has answered INIT by now; it would overwrite a setting made earlier.
            if let Err(error) = mountpoint::set_read_ahead(&at, fuse::KERNEL_READAHEAD_BYTES) {
                tracing::debug!(cause = %error, "the kernel reads ahead as it does by itself");
            }
            Ok(session)
        };
        let mounted = content::blocking(make).await;
        let mut session =
            mounted.map_err(|error| mountpoint::mount_error(&options.mountpoint, error))?;
        let unmounter = session.unmount_callable();
        if let Some((tree, watching)) = watching {
            tokio::spawn(watch::follow(tree, session.notifier(), watching));
        }
        let (end_sender, ended) = oneshot::channel();
        let run = move || {
            if let Err(error) = session.run() {
                tracing::debug!(cause = %error, "the kernel ended the mount");
            }
            let _ = end_sender.send(());
        };
        let thread = std::thread::Builder::new().name("mount".into()).spawn(run);
        thread.map_err(|error| Fault::from_io("cannot start a thread", &error))?;
        Ok(Self { options, unmounter, ended, detach: None, status_handle })
    }

    /// A handle that reads the status while the file system is mounted.
    pub fn status_handle(&self) -> StatusHandle {
        self.status_handle.clone()
    }

    /// Runs until the file system is unmounted. Unmounts it when `stop` completes. With `detach`,
    /// replaces it by a plain folder when the fill is complete.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> Result<(), MountError> {
        tokio::pin!(stop);
        let detach = self.detach.take();
        let tree = async {
            let Some(detach) = &detach else { return std::future::pending().await };
            match detach.build_tree(&self.options).await {
                Ok(tree) => tree,
                Err(fault) => {
                    tracing::error!(
                        cause = fault.text,
                        "the tree cannot be detached, and stays mounted"
                    );
                    std::future::pending().await
                }
            }
        };
        let tree = tokio::select! {
            _ = &mut self.ended => {
                self.status_handle.tree.flush().await;
                return Ok(());
            }
            () = &mut stop => None,
            tree = tree => Some(tree),
        };
        match (tree, &detach) {
            (Some(tree), Some(detach)) => {
                if let Some(waited) = self.unmount_when_unused(&mut stop).await {
                    let at = self.options.mountpoint.clone();
                    content::blocking(move || detach::replace_mountpoint(&tree, &at)).await?;
                    if waited {
                        detach.catch_up(&self.options, &mut stop).await;
                    }
                }
            }
            _ => self.unmount_or_detach().await?,
        }
        self.wait_for_kernel().await;
        Ok(())
    }

    /// Unmounts as soon as no process uses the mount. Returns whether it had to wait, or `None`
    /// when `stop` completed first.
    async fn unmount_when_unused(
        &mut self,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Option<bool> {
        let mut waited = false;
        loop {
            let at = self.options.mountpoint.clone();
            if content::blocking(move || mountpoint::unmount(&at)).await.is_ok() {
                return Some(waited);
            }
            waited = true;
            tokio::select! {
                () = tokio::time::sleep(UNMOUNT_RETRY) => {}
                () = &mut *stop => {
                    let _ = self.unmount_or_detach().await;
                    return None;
                }
            }
        }
    }

    /// Unmounts; detaches the mount if it is still in use after `UNMOUNT_MAX`.
    async fn unmount_or_detach(&mut self) -> Result<(), MountError> {
        let at = self.options.mountpoint.clone();
        let deadline = tokio::time::Instant::now() + UNMOUNT_MAX;
        loop {
            let path = at.clone();
            let unmounted = content::blocking(move || mountpoint::unmount(&path)).await;
            match unmounted {
                Ok(()) => return Ok(()),
                Err(_) if tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(UNMOUNT_RETRY).await;
                }
                // Readers get an error when this process ends, and new ones no longer find the
                // mount.
                Err(error) => {
                    tracing::warn!(mountpoint = %at.display(), cause = %error, "still in use");
                    let path = at.clone();
                    return Ok(content::blocking(move || mountpoint::detach(&path)).await?);
                }
            }
        }
    }

    /// Waits until the kernel has released the mount.
    async fn wait_for_kernel(mut self) {
        let _ = tokio::time::timeout(UNMOUNT_MAX, &mut self.ended).await;
        let mut unmounter = self.unmounter;
        // The kernel has released the mount; this drops the state of the unmounter.
        let _ = content::blocking(move || unmounter.unmount()).await;
        self.status_handle.tree.flush().await;
    }
}

/// Prepares everything before the kernel mounts: the mount point, the cache, the identity of the
/// server, and a session unless the mount is offline.
async fn prepare(
    options: &MountOptions,
    session: &SessionOptions,
) -> Result<(Cache, String, Option<Session>), MountError> {
    let (clear, others) = (options.mountpoint.clone(), options.allow_other);
    content::blocking(move || mountpoint::check_and_clear(&clear, others)).await?;
    let (folder, bytes) = (options.cache.clone(), options.cache_bytes);
    let cache = content::blocking(move || Cache::open(&folder, bytes)).await?;
    if options.offline {
        let server = cache_origin::server(&cache, options)?;
        return Ok((cache, server, None));
    }
    let first = connect(options, session).await?;
    let server = first.server().to_string();
    cache_origin::remember(&cache, options, &server);
    Ok((cache, server, Some(first)))
}

/// Connects the first session and checks that the source is a folder.
async fn connect(options: &MountOptions, session: &SessionOptions) -> Result<Session, MountError> {
    let mut first = Session::connect(session.clone()).await?;
    let entry = first.stat(&options.remote.path).await?;
    if entry?.kind != EntryKind::Folder {
        let text = format!("{} is not a folder", options.remote.path);
        return Err(Fault::new(Code::NotFolder, text).into());
    }
    Ok(first)
}

/// Whether the server may answer later, so that an offline mount is worth suggesting.
pub fn is_server_unreachable(error: &ClientError) -> bool {
    may_come_back(error)
}

fn config(options: &MountOptions) -> Config {
    // fusermount3 splits its options at commas.
    let source = options.name.replace(',', "_");
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source),
        // As a custom option it reaches the kernel; fuser passes its own `Subtype` only to
        // fusermount3.
        MountOption::CUSTOM("subtype=rdma-mount".into()),
        MountOption::RO,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    // Without allow_other only the mounting user has access, and the server has checked that user.
    // Modes and owners of another machine are then shown but not enforced.
    let checked = options.allow_other || rustix::process::geteuid().is_root();
    config.mount_options.extend(checked.then_some(MountOption::DefaultPermissions));
    config.mount_options.extend(options.noexec.then_some(MountOption::NoExec));
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(FUSE_THREADS);
    config.clone_fd = true;
    config
}
