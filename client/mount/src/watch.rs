//! Applies changes that the server reports, as it does for `rdma-sync --watch`: makes
//! the kernel drop changed names and attributes. Meanwhile the kernel may cache answers
//! for longer. Open files keep their versions.

use super::nodes::ROOT;
use super::tree::Tree;
use fuser::{INodeNo, Notifier};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use verbatim_client::remote_fs::attributes::Kind;
use verbatim_client::watch::{SourceWatch, WatchEvent};
use verbatim_proto::{Changes, WirePath};

/// Follows the changes of a tree until the watch ends for good.
pub(super) async fn follow(tree: Arc<Tree>, notifier: Notifier, mut watching: SourceWatch) {
    let kernel = Arc::new(notifier);
    loop {
        match watching.next().await {
            Ok(WatchEvent::Changed(changes)) => {
                // First, so that the kernel's next request gets a new listing.
                tree.invalidate_listings();
                for path in affected_paths(&tree, &changes) {
                    invalidate(&tree, &kernel, path).await;
                }
                tree.watched.store(true, Ordering::Relaxed);
            }
            // Only a local watch reports this, and as a change too.
            Ok(WatchEvent::Healed(_)) => {}
            Ok(WatchEvent::Lost(fault)) => {
                tree.watched.store(false, Ordering::Relaxed);
                tracing::warn!(cause = fault.text, "changes are not told for now");
            }
            Err(error) => {
                tree.watched.store(false, Ordering::Relaxed);
                tracing::warn!(cause = %error, "changes are not told any more");
                tree.invalidate_listings();
                for path in affected_paths(&tree, &Changes::rescan()) {
                    invalidate(&tree, &kernel, path).await;
                }
                return;
            }
        }
    }
}

/// The known paths that a change affects: changed names and their parents.
fn affected_paths(tree: &Tree, changes: &Changes) -> Vec<WirePath> {
    let nodes = tree.nodes();
    if changes.rescan {
        let all = nodes.below(&WirePath::root());
        return std::iter::once(WirePath::root()).chain(all).collect();
    }
    let mut paths = Vec::new();
    for change in &changes.changes {
        if change.below {
            paths.extend(nodes.below(&change.path));
        }
        paths.extend([change.path.parent(), change.path.clone()]);
        // A write to one hard link changes all of them.
        paths.extend(nodes.find(&change.path).map(|it| nodes.hard_links(it)).unwrap_or_default());
    }
    paths.retain(|path| nodes.find(path).is_some());
    paths.sort();
    paths.dedup();
    paths
}

/// Makes the kernel drop a name. For a folder that still exists only attributes are dropped, so
/// that processes in it keep their working directory.
async fn invalidate(tree: &Tree, kernel: &Arc<Notifier>, path: WirePath) {
    let node = {
        let nodes = tree.nodes();
        let number = nodes.find(&path);
        let parent = nodes.find(&path.parent()).or(path.parent().is_root().then_some(ROOT));
        number.zip(parent).and_then(|(number, parent)| {
            let kind = nodes.facts(number)?.kind;
            Some((number, parent, kind))
        })
    };
    let Some((number, parent, kind)) = node else { return };
    // The root has no name to drop.
    if kind == Kind::Folder && (tree.refresh_folder(number).await || number == ROOT) {
        notify_kernel(kernel, move |kernel| kernel.inval_inode(INodeNo(number), -1, 0)).await;
        return;
    }
    let name = path.name().unwrap_or_default().to_vec();
    notify_kernel(kernel, move |kernel| {
        kernel.inval_inode(INodeNo(number), -1, 0)?;
        kernel.inval_entry(INodeNo(parent), OsStr::from_bytes(&name))
    })
    .await;
}

/// Sends a notification to the kernel. It may block until this process answers a request; an error
/// means that the kernel does not know the node.
async fn notify_kernel(
    kernel: &Arc<Notifier>,
    notice: impl FnOnce(&Notifier) -> std::io::Result<()> + Send + 'static,
) {
    let kernel = kernel.clone();
    let _ = super::content::blocking(move || notice(&kernel)).await;
}
