//! Whether this is inside of a container: by what its runtime left there, by the name
//! of its control group, or by its mounts. With control groups of the second kind a
//! pod sees its own at the top, without a name; what its files are made of is told.

use crate::tree::Tree;

/// Files that runtimes put there.
const MARKS: &[&str] = &[".dockerenv", "run/.containerenv"];

/// What runtimes call control groups.
const GROUPS: &[&str] = &["kubepods", "docker"];

/// Folders of runtimes that a container's file system is made of.
const LAYERS: &[&str] = &["/containerd/", "/docker/", "/containers/"];

/// Folders of the node that files of a container come from: its hosts, its name.
const GIVEN: &[&str] = &["/kubelet/pods/", "/containers/"];

pub(super) fn is_here(tree: &Tree) -> bool {
    let group = tree.text("proc/1/cgroup").unwrap_or_default();
    let mounts = tree.text("proc/self/mountinfo").unwrap_or_default();
    MARKS.iter().any(|mark| tree.has(mark))
        || has(&group, GROUPS)
        || mounts.lines().any(|line| is_of_container(line).unwrap_or(false))
}

/// `30 22 8:1 /var/lib/kubelet/pods/ID/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw`: what of a
/// file system, where, and behind the dash its kind, its device and its options.
fn is_of_container(line: &str) -> Option<bool> {
    let (place, kind) = line.split_once(" - ")?;
    let mut words = place.split(' ').skip(3);
    let (part, at) = (words.next()?, words.next()?);
    // An overlay alone says nothing: some systems boot from one.
    let layered = at == "/" && kind.starts_with("overlay ") && has(kind, LAYERS);
    // The node has such mounts too, where containers are kept.
    let given = has(part, GIVEN) && !has(at, GIVEN);
    Some(layered || given)
}

fn has(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::is_of_container;

    #[test]
    fn a_pod_is_known_by_its_mounts_and_a_node_is_not_one() {
        let is = |line: &str| is_of_container(line).unwrap_or(false);
        for line in [
            "9 1 0:9 / / rw - overlay overlay rw,lowerdir=/var/lib/containerd/io.x/snapshots/1/fs",
            "9 1 0:9 / / rw - overlay overlay rw,lowerdir=/var/lib/containers/storage/overlay/l/A",
            "9 1 8:1 /var/lib/kubelet/pods/1f/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw",
            "9 1 8:1 /var/lib/docker/containers/1f/hostname /etc/hostname rw - ext4 /dev/sda1 rw",
        ] {
            assert!(is(line), "{line}");
        }
        for line in [
            "9 1 8:1 / / rw - ext4 /dev/sda1 rw",
            "9 1 0:9 / / ro - overlay composefs ro,lowerdir=/run/ostree/.private/cfsroot-lower",
            "9 1 0:9 / / rw - overlay root rw,lowerdir=/host,upperdir=/room/upper",
            "9 1 0:9 / /run/containerd/1f/rootfs rw - overlay overlay lowerdir=/var/lib/containerd/s",
            "9 1 0:9 / /var/lib/kubelet/pods/1f/volumes/token rw - tmpfs tmpfs rw",
            "9 1 8:1 /var/lib/kubelet/pods/1f/a /var/lib/kubelet/pods/1f/b rw - ext4 /dev/sda1 rw",
            "9 1",
        ] {
            assert!(!is(line), "{line}");
        }
    }
}
