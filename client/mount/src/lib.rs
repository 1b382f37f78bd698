//! `rdma-mount` as a library: a tree of a server as a file system of this machine,
//! read-only, with a cache on local disk. `fuse` speaks with the kernel, `tree` knows
//! names, `content` knows bytes, `connection` keeps a session with the server, `cache` keeps
//! what came. Never touches the terminal.

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
use verbatim_client::watch::Watching;
use verbatim_client::{ClientError, SessionOptions};
use verbatim_proto::message::EntryKind;
use verbatim_proto::{Code, Fault, Watch};

/// Threads that take the kernel's questions.
const FUSE_THREADS: usize = 4;

/// How long readers get to let go of a mount that ends.
const UNMOUNT_MAX: Duration = Duration::from_secs(2);

/// How often that is tried.
const UNMOUNT_RETRY: Duration = Duration::from_millis(100);

/// What is mounted where, and how.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What.
    pub remote: Remote,
    /// What it was called: mount(8) finds by this that a line of fstab is mounted.
    pub name: String,
    /// Where.
    pub mountpoint: PathBuf,
    /// Where what came is kept.
    pub cache: PathBuf,
    /// How much of it.
    pub cache_bytes: u64,
    /// Whether other users may use it.
    pub allow_other: bool,
    /// Whether nothing there may be executed.
    pub noexec: bool,
    /// Whether complete files are read past this process.
    pub passthrough: bool,
    /// Whether all of it is brought.
    pub fill: Fill,
    /// Whether it becomes a plain folder when all is here.
    pub detach: bool,
    /// Whether no server is asked: only what is in the cache is there.
    pub offline: bool,
    /// Whether the server tells changes as they happen.
    pub watch: bool,
}

/// Why there is no mount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The server cannot be reached, or does not let this client in.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The mount point or the device is not what it must be.
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
    /// Whether it was told to end before it stood.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Self::Fault(fault) if fault.code == Code::Interrupted)
    }

    /// What to do about it.
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

/// A mount that stands.
pub struct Mount {
    options: MountOptions,
    unmounter: fuser::SessionUnmounter,
    ended: oneshot::Receiver<()>,
    detach: Option<Detach>,
    status_handle: StatusHandle,
}

impl Mount {
    /// Connects and mounts. The server must be there now; later it may come and go. Where `stop`
    /// completes before the kernel is asked to mount, it is not; later `stay` is to hear of it.
    pub async fn start(
        mut options: MountOptions,
        mut session: SessionOptions,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<Self, MountError> {
        // Each version that is open takes two, also where there is no session to raise it.
        verbatim_files::limit::raise_open_files();
        // Attributes come with the metadata of files.
        session.preserve = true;
        // The kernel names what is mounted by where it is, and not by a link that leads there.
        let given = std::mem::take(&mut options.mountpoint);
        options.mountpoint = content::blocking(move || mountpoint::resolve(&given)).await;
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
        // Without a server there is nothing to bring.
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
            (tree.clone(), Watching::remote(session.connect.clone(), session.timeout, watch))
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
        watching: Option<(Arc<Tree>, Watching)>,
    ) -> Result<Self, MountError> {
        let status_handle = StatusHandle {
            tree: fuse_fs.tree.clone(),
            fill_progress: fuse_fs.fill_progress.clone(),
        };
        let (config, at) = (config(&options), options.mountpoint.clone());
        let make = move || {
            let session = fuser::Session::new(fuse_fs, &at, &config)?;
            // The kernel has said by now how much it would, which ends what is told it before.
            if let Err(error) = mountpoint::set_read_ahead(&at, fuse::KERNEL_READAHEAD_BYTES) {
                tracing::debug!(cause = %error, "the kernel reads ahead as it does by itself");
            }
            Ok(session)
        };
        let made = content::blocking(make).await;
        let mut session =
            made.map_err(|error| mountpoint::mount_error(&options.mountpoint, error))?;
        let unmounter = session.unmount_callable();
        if let Some((tree, watching)) = watching {
            tokio::spawn(watch::follow(tree, session.notifier(), watching));
        }
        let (told, ended) = oneshot::channel();
        let run = move || {
            if let Err(error) = session.run() {
                tracing::debug!(cause = %error, "the kernel ended the mount");
            }
            let _ = told.send(());
        };
        let thread = std::thread::Builder::new().name("mount".into()).spawn(run);
        thread.map_err(|error| Fault::from_io("cannot start a thread", &error))?;
        Ok(Self { options, unmounter, ended, detach: None, status_handle })
    }

    /// Says how it is while it stands.
    pub fn status_handle(&self) -> StatusHandle {
        self.status_handle.clone()
    }

    /// Stays until somebody unmounts it, or `stop` completes and it is unmounted, or all is here
    /// and it becomes a folder, where that was asked for.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> Result<(), MountError> {
        tokio::pin!(stop);
        let detach = self.detach.take();
        let tree = async {
            let Some(detach) = &detach else { return std::future::pending().await };
            match detach.build_tree(&self.options).await {
                Ok(tree) => tree,
                Err(fault) => {
                    tracing::error!(cause = fault.text, "it stays a mount: not all can be kept");
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

    /// Unmounts as soon as nobody uses it, and says whether somebody did; none where that is not
    /// waited for any longer.
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

    /// Unmounts, whoever uses it.
    async fn unmount_or_detach(&mut self) -> Result<(), MountError> {
        let at = self.options.mountpoint.clone();
        let deadline = tokio::time::Instant::now() + UNMOUNT_MAX;
        loop {
            let path = at.clone();
            let gone = content::blocking(move || mountpoint::unmount(&path)).await;
            match gone {
                Ok(()) => return Ok(()),
                Err(_) if tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(UNMOUNT_RETRY).await;
                }
                // Who still reads gets an error when this process ends, and nobody new comes.
                Err(error) => {
                    tracing::warn!(mountpoint = %at.display(), cause = %error, "still in use");
                    let path = at.clone();
                    return Ok(content::blocking(move || mountpoint::detach(&path)).await?);
                }
            }
        }
    }

    /// Waits for the kernel to be done with it.
    async fn wait_for_kernel(mut self) {
        let _ = tokio::time::timeout(UNMOUNT_MAX, &mut self.ended).await;
        let mut unmounter = self.unmounter;
        // Nothing is left of it but what this object remembers.
        let _ = content::blocking(move || unmounter.unmount()).await;
        self.status_handle.tree.flush().await;
    }
}

/// All that comes before the kernel is asked: a place, a cache, who the server is, and a session
/// with it where there is to be one.
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

/// The first session, with a folder to show.
async fn connect(options: &MountOptions, session: &SessionOptions) -> Result<Session, MountError> {
    let mut first = Session::connect(session.clone()).await?;
    let there = first.stat(&options.remote.path).await?;
    if there?.kind != EntryKind::Folder {
        let text = format!("{} is not a folder", options.remote.path);
        return Err(Fault::new(Code::NotFolder, text).into());
    }
    Ok(first)
}

/// Whether a server that was not reached may be another time: what is here can be shown without.
pub fn is_server_unreachable(error: &ClientError) -> bool {
    may_come_back(error)
}

fn config(options: &MountOptions) -> Config {
    // A comma would end it where fusermount3 is told.
    let source = options.name.replace(',', "_");
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source),
        // To the kernel itself: fuser tells only fusermount3 of its own option of that name.
        MountOption::CUSTOM("subtype=rdma-mount".into()),
        MountOption::RO,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    // Where only the user who mounts comes in, the server has said what it may read: bits and
    // owners of another machine are shown, and decide nothing.
    let checked = options.allow_other || rustix::process::geteuid().is_root();
    config.mount_options.extend(checked.then_some(MountOption::DefaultPermissions));
    config.mount_options.extend(options.noexec.then_some(MountOption::NoExec));
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(FUSE_THREADS);
    config.clone_fd = true;
    config
}
