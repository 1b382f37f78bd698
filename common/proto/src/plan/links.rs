//! Hard links: files and symbolic links with several names, called files here. The first name of
//! one that the merge meets is copied or made; the others become links to it. At the target a file
//! with several names is kept only for one file of the source: whoever comes
//! second gets a file of its own, or a change to one would change the other.
//!
//! Held: one path for each such file of the source, and two numbers for each of
//! the target, `LINKED_MAX` of both, and `LINKED_PATH_BYTES_MAX` of paths. A file beyond them is copied for each of its
//! names, which is right but takes more room.

use crate::WirePath;
use crate::tree::Twin;
use std::collections::{HashMap, HashSet};

/// How many files with several names are told apart.
pub(super) const LINKED_MAX: usize = 1 << 18;

/// How many bytes their paths may have together: 128 for each, and the other side may tell paths
/// of 32 KiB.
const LINKED_PATH_BYTES_MAX: usize = 32 << 20;

#[derive(Debug, Default)]
pub(super) struct Links {
    /// By the file of the source: its first name, and the file of the target it is kept as.
    leaders: HashMap<Twin, (WirePath, Option<Twin>)>,
    /// How long these names are together.
    path_bytes: usize,
    /// Files of the target that are kept for a file of the source.
    claimed: HashSet<Twin>,
}

/// What is to become of a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It is a file of its own, or the first name of one.
    Leader,
    /// It is another name of this one.
    Follower(WirePath),
    /// It is another name already, and right.
    Right,
}

impl Links {
    /// Says what a name of the source is, where this file is at the target now.
    pub fn role(&self, source: Option<Twin>, target: Option<Twin>) -> Role {
        match source.and_then(|twin| self.leaders.get(&twin)) {
            None => Role::Leader,
            Some((_, kept)) if kept.is_some() && *kept == target => Role::Right,
            Some((path, _)) => Role::Follower(path.clone()),
        }
    }

    /// Whether a file of the target may be kept: nobody else has it.
    pub fn may_keep(&self, target: Option<Twin>) -> bool {
        let full = self.claimed.len() >= LINKED_MAX;
        target.is_none_or(|twin| !self.claimed.contains(&twin) && !full)
    }

    /// Notes the first name of a file, and which file of the target it stays, if any.
    pub fn lead(&mut self, path: &WirePath, source: Option<Twin>, kept: Option<Twin>) {
        self.claimed.extend(kept);
        let bytes = self.path_bytes + path.as_bytes().len();
        if let Some(twin) = source
            && self.leaders.len() < LINKED_MAX
            && bytes <= LINKED_PATH_BYTES_MAX
        {
            self.leaders.insert(twin, (path.clone(), kept));
            self.path_bytes = bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_take_no_more_memory_however_long_they_are() {
        let name = "n".repeat(255);
        let long = WirePath::parse(vec![name.as_str(); 120].join("/").as_bytes()).expect("plain");
        let mut links = Links::default();
        let twin = |inode| Some(Twin { device: 1, inode });
        for inode in 0..2000 {
            links.lead(&long, twin(inode), None);
        }
        let bytes: usize = links.leaders.values().map(|(path, _)| path.as_bytes().len()).sum();
        assert!(bytes <= LINKED_PATH_BYTES_MAX, "{bytes} bytes of {} paths", links.leaders.len());
        assert_eq!(links.role(twin(0), None), Role::Follower(long), "the first ones are known");
        assert_eq!(links.role(twin(1999), None), Role::Leader, "the last is a file of its own");
    }
}
