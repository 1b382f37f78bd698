//! Detach: turns a mount into a plain folder. When the fill is complete, copies cached
//! files into a staging tree beside the mount point. A sync with the source fetches and
//! checks the rest. Then the mount ends and the tree is renamed to its place. If
//! processes used the mount meanwhile, another sync follows. A later run resumes a
//! staging tree. The cache stays as it is: other mounts may use it.

use super::MountOptions;
use super::cache::{BLOCK_BYTES, CacheFile};
use super::content::{Content, blocking};
use super::fill::FillProgress;
use super::walk::Walk;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::JoinSet;
use verbatim_client::SessionOptions;
use verbatim_client::model::delete_limit::DeleteLimit;
use verbatim_client::model::location::Location;
use verbatim_client::remote_fs::attributes::Kind;
use verbatim_client::session::command_error::CopyError;
use verbatim_client::sync::{SyncOptions, sync};
use verbatim_files::{Folder, Rules, Target};
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, Filter, Meta, WirePath, plan};

/// Files that are copied at a time: each waits for the disk.
const FILES_MAX: usize = 16;

/// The most hard-linked files that are remembered as copied; the sync fetches those beyond.
const LINKED_FILES_MAX: usize = 1 << 18;

/// The modes until the sync sets the real ones: other users get no access before.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The parts of a mount that detach needs.
pub(super) struct Detach {
    pub content: Arc<Content>,
    pub fill_progress: Arc<FillProgress>,
    pub session: SessionOptions,
}

impl Detach {
    /// Waits for the fill and builds the tree; returns its path.
    pub async fn build_tree(&self, options: &MountOptions) -> Result<PathBuf, Fault> {
        self.fill_progress.ended.notified().await;
        let tree = staging_path(&options.mountpoint);
        let created = make_staging_folder(&tree);
        created
            .map_err(|error| Fault::from_io(format!("cannot make {}", tree.display()), &error))?;
        self.copy_cached_files(&options.remote.path, &tree).await?;
        self.sync_tree(options, &tree, std::future::pending()).await?;
        Ok(tree)
    }

    /// Syncs changes made while the mount was in use. A failure is only logged: the tree was
    /// complete, and rdma-sync can repeat this.
    pub async fn catch_up(&self, options: &MountOptions, stop: impl Future<Output = ()>) {
        let synced = match self.content.connection.is_up() {
            true => self.sync_tree(options, &options.mountpoint, stop).await,
            false => Err(Fault::new(Code::LinkLost, "the server is away")),
        };
        if let Err(fault) = synced {
            tracing::warn!(
                cause = fault.text,
                "not all that changed since the fill is in the folder"
            );
        }
    }

    /// Copies complete cached files into the tree; the sync fetches all others.
    async fn copy_cached_files(&self, base: &WirePath, tree: &Path) -> Result<(), Fault> {
        let tree = Arc::new(Folder::open(tree)?);
        let (mut walk, mut under_way) = (Walk::new(base.clone()), JoinSet::new());
        // Hard-linked files that have one name in the tree: the sync adds the others.
        let mut linked = HashSet::new();
        while let Some(found) = walk.next(&self.content).await {
            // The sync meets the fault again and reports it.
            let Ok((path, facts)) = found else { continue };
            let names: Vec<&[u8]> = path.names().skip(base.names().count()).collect();
            let (tree, below) = (tree.clone(), WirePath::parse(&names.join(&b'/'))?);
            if facts.kind == Kind::Folder {
                let _ = blocking(move || tree.make_folder(&below, FOLDER_MODE, false)).await;
            } else if facts.kind == Kind::File
                && facts
                    .tied
                    .file
                    .is_none_or(|file| linked.len() < LINKED_FILES_MAX && linked.insert(file))
                && let Some(file) = self.content.find_cached(&path, facts).await
            {
                if under_way.len() >= FILES_MAX {
                    under_way.join_next().await;
                }
                under_way.spawn_blocking(move || {
                    if let Err(fault) = copy_if_absent(&file, &tree, &below) {
                        tracing::debug!(path = %below, cause = fault.text, "not placed");
                    }
                });
            }
        }
        while under_way.join_next().await.is_some() {}
        Ok(())
    }

    /// Makes the tree equal to the source.
    async fn sync_tree(
        &self,
        options: &MountOptions,
        tree: &Path,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Fault> {
        let options = SyncOptions {
            source: Location::Remote(options.remote.clone()),
            target: Location::Local(tree.to_owned()),
            plan: plan::Options { delete: true, ..plan::Options::default() },
            filter: Filter::default(),
            chosen: None,
            limit: DeleteLimit::Percent(100),
            dry_run: false,
            atomic: false,
            numeric_ids: false,
            exact: false,
        };
        let made = sync(&options, self.session.clone(), &mut (), stop).await;
        let summary = made.map_err(|error| match error {
            CopyError::Client(error) => verbatim_client::fault_of(&error),
            CopyError::Usage { cause, .. } => Fault::new(Code::BadPath, cause),
            CopyError::Status(fault) => fault,
        })?;
        match summary.broken {
            Some(fault) => Err(fault),
            None if summary.failed > 0 => {
                let text = format!("{} of the tree could not be brought", summary.failed);
                Err(Fault::new(Code::Io, text))
            }
            None => Ok(()),
        }
    }
}

/// Renames the tree to the mount point, which is unmounted.
pub(super) fn replace_mountpoint(tree: &Path, mountpoint: &Path) -> Result<(), Fault> {
    let cannot = |error: &io::Error| {
        let (tree, at) = (tree.display(), mountpoint.display());
        Fault::from_io(format!("all of it is in {tree}, but cannot become {at}"), error)
    };
    fs::rename(tree, mountpoint).map_err(|error| cannot(&error))?;
    let parent = mountpoint.parent().unwrap_or(Path::new("/"));
    File::open(parent).and_then(|folder| folder.sync_all()).map_err(|error| cannot(&error))
}

/// Creates the staging folder or takes an existing one. Rejects a folder of another user and a
/// symlink.
fn make_staging_folder(tree: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(FOLDER_MODE).create(tree) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(tree)?;
            let ours = found.uid() == rustix::process::geteuid().as_raw();
            if found.is_dir() && ours { Ok(()) } else { Err(error) }
        }
        made => made,
    }
}

/// The path of the staging tree.
fn staging_path(mountpoint: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(mountpoint.file_name().unwrap_or_default());
    name.push(".verbatim-mount");
    mountpoint.with_file_name(name)
}

/// Copies a complete cached version; the file gets its name only when it is durable.
fn copy_if_absent(file: &CacheFile, tree: &Folder, path: &WirePath) -> Result<(), Fault> {
    let matches = |there: Entry| {
        let found = (there.kind, there.size, there.mtime_ns);
        found == (EntryKind::File, file.size, file.mtime_ns)
    };
    if tree.stat(path, false).is_ok_and(matches) {
        return Ok(());
    }
    // A pinned file is not punched.
    if !file.pin() {
        return Err(Fault::new(Code::NotFound, "not all of it is in the cache"));
    }
    let copied = copy(file, tree, path);
    file.unpin();
    copied
}

fn copy(file: &CacheFile, tree: &Folder, path: &WirePath) -> Result<(), Fault> {
    let rules = Rules::of_user();
    let target = Target::create(tree, path, file.size, FILE_MODE)?;
    copy_bytes(file, &target)?;
    // The sync sets the other metadata.
    let ((uid, gid), mtime_ns) = (rules.user, file.mtime_ns);
    let meta = Meta { mode: FILE_MODE, uid, gid, atime_ns: mtime_ns, mtime_ns, xattrs: vec![] };
    target.describe(&meta, &rules)?;
    Target::commit(&[Arc::new(target)]).pop().expect("one answer per target")
}

/// Copies all verified blocks; fails if one is missing.
fn copy_bytes(file: &CacheFile, target: &Target) -> Result<(), Fault> {
    for offset in (0..file.size).step_by(BLOCK_BYTES as usize) {
        let len = BLOCK_BYTES.min(file.size - offset) as usize;
        let not_cached = || io::Error::from(io::ErrorKind::NotFound);
        let read = file.read(offset, len).unwrap_or_else(|| Err(not_cached()));
        let bytes = read.map_err(|error| Fault::from_io("cannot read the cache", &error))?;
        target.write_at(&bytes, offset)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_staging_tree_is_made_beside_the_mountpoint_and_never_through_a_symlink() {
        assert_eq!(staging_path(Path::new("/mnt/data")), Path::new("/mnt/.data.verbatim-mount"));
        let dir = tempfile::tempdir().expect("folder");
        let tree = dir.path().join("tree");
        assert!(
            make_staging_folder(&tree).is_ok() && make_staging_folder(&tree).is_ok(),
            "it is gone on with"
        );
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&tree, &link).expect("links");
        assert!(make_staging_folder(&link).is_err());
        // A folder with entries is not replaced.
        let place = dir.path().join("place");
        fs::create_dir_all(place.join("full")).expect("makes");
        let refused = replace_mountpoint(&tree, &place).expect_err("it is not empty");
        assert!(refused.text.contains("all of it is in"), "{refused}");
        fs::remove_dir(place.join("full")).expect("removes");
        assert!(replace_mountpoint(&tree, &place).is_ok() && !tree.exists());
    }
}
