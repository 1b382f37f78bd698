//! Changes as they happen: the server tells them, as it does to `rdma-sync --watch`, and
//! the kernel is told to forget what it knows of them. While that goes on the kernel may
//! believe what it was told for longer. What is open keeps its version all the same.

use super::nodes::ROOT;
use super::tree::Tree;
use fuser::{INodeNo, Notifier};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use verbatim_client::remote_fs::attributes::Kind;
use verbatim_client::watch::{Heard, Watching};
use verbatim_proto::{Changes, WirePath};

/// Follows the changes of a tree until nothing can be heard any more.
pub(super) async fn follow(tree: Arc<Tree>, notifier: Notifier, mut watching: Watching) {
    let kernel = Arc::new(notifier);
    loop {
        match watching.next().await {
            Ok(Heard::Changed(changes)) => {
                // Before the kernel asks again.
                tree.invalidate_listings();
                for path in affected_paths(&tree, &changes) {
                    invalidate(&tree, &kernel, path).await;
                }
                tree.watched.store(true, Ordering::Relaxed);
            }
            // Of local folders alone, and told as a change.
            Ok(Heard::Healed(_)) => {}
            Ok(Heard::Lost(fault)) => {
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

/// What the kernel knows of what changed, and of the folders that it is in.
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
        // Who writes to a file by one of its names writes to all.
        paths.extend(nodes.find(&change.path).map(|it| nodes.hard_links(it)).unwrap_or_default());
    }
    paths.retain(|path| nodes.find(path).is_some());
    paths.sort();
    paths.dedup();
    paths
}

/// Has the kernel forget a name. A folder that is still there is only told anew: whoever is in it
/// stays where they are.
async fn invalidate(tree: &Tree, kernel: &Arc<Notifier>, path: WirePath) {
    let known = {
        let nodes = tree.nodes();
        let number = nodes.find(&path);
        let parent = nodes.find(&path.parent()).or(path.parent().is_root().then_some(ROOT));
        number.zip(parent).and_then(|(number, parent)| {
            let kind = nodes.facts(number)?.kind;
            Some((number, parent, kind))
        })
    };
    let Some((number, parent, kind)) = known else { return };
    // The root has no name that could be forgotten.
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

/// Tells the kernel, which may wait for an answer of ours first. What it does not know is no harm.
async fn notify_kernel(
    kernel: &Arc<Notifier>,
    notice: impl FnOnce(&Notifier) -> std::io::Result<()> + Send + 'static,
) {
    let kernel = kernel.clone();
    let _ = super::content::blocking(move || notice(&kernel)).await;
}
