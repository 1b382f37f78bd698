//! The names of trees beside a target: a run finds the tree that an earlier one left by
//! its name alone, and nobody else's has it. Never opens a tree. Called by `stage`.

use crate::identity::nanoseconds;
use crate::names::Names;
use crate::naming::{TEMPORARY_SUFFIX, hidden_name};
use crate::opened::OpenFolder;
use crate::reap::is_leftover;
use crate::stamp::Stamp;
use crate::tree::FOLDER;
use rustix::fs::{Mode, Statx, openat};
use verbatim_proto::{Digest, Fault};

/// How the trees beside a target are named: by what is copied, which folder the target is (not
/// its device, which has another number after a boot), and how far they are.
pub(super) struct Labels<'a> {
    pub name: &'a [u8],
    pub key: &'a Digest,
    pub target: Option<Statx>,
}

/// How far a tree is.
pub(super) enum State {
    /// It has all that a target has that looks like this.
    Filled(Stamp),
    Filling,
    /// Empty, to be exchanged with another.
    Trying,
}

impl Labels<'_> {
    pub fn of(&self, state: State) -> Vec<u8> {
        let which = self.target.map_or((0, 0), |stat| (stat.stx_ino, nanoseconds(&stat.stx_btime)));
        let mut bytes = self.key.0.to_vec();
        match state {
            State::Filled(Stamp(digest)) => bytes.extend(digest.0),
            State::Filling => bytes.push(1),
            State::Trying => bytes.push(2),
        }
        bytes.extend(which.0.to_le_bytes());
        bytes.extend(which.1.to_le_bytes());
        let unique = Digest::of(&bytes).to_string();
        hidden_name(self.name, &unique[..UNIQUE_BYTES], TEMPORARY_SUFFIX)
    }

    /// The trees of any run beside the target.
    pub fn left(&self, parent: &OpenFolder) -> Result<Vec<Vec<u8>>, Fault> {
        let what = "cannot look for what earlier runs left";
        let fd = openat(parent, c".", FOLDER, Mode::empty());
        let fd = fd.map_err(|e| Fault::from_io(what, &e.into()))?;
        let mut names = Names::read(&fd, what)?;
        // All but the part that tells them apart.
        let like = hidden_name(self.name, &"0".repeat(UNIQUE_BYTES), TEMPORARY_SUFFIX);
        let front = &like[..like.len() - UNIQUE_BYTES - TEMPORARY_SUFFIX.len()];
        let ours = |name: &Vec<u8>| {
            is_leftover(name) && name.len() == like.len() && name.starts_with(front)
        };
        Ok(std::iter::from_fn(|| names.take()).filter(ours).take(LEFT_MAX).collect())
    }
}

/// How many trees of earlier runs are looked at; what is more is left to the next run.
const LEFT_MAX: usize = 1024;

/// How long the part of a name is that tells trees apart.
const UNIQUE_BYTES: usize = 16;
