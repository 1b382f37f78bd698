//! A tree that is changed at random, as quickly as it can be: files and folders that
//! are made, renamed, exchanged, removed and linked, within the tree, into it and
//! out of it. Most changes fail now and then: that is part of it. Never writes to a
//! file through a name outside of the tree, because no event tells that.

use crate::dice::Dice;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What changes a tree.
pub struct Churn {
    root: PathBuf,
    outside: PathBuf,
    dice: Dice,
    step: u64,
}

impl Churn {
    /// Changes `root`; what is exchanged with it is `outside`, on the same file system.
    pub fn new(root: &Path, outside: &Path, seed: u64) -> Self {
        Self {
            root: root.to_owned(),
            outside: outside.to_owned(),
            dice: Dice::new("churn", seed),
            step: 0,
        }
    }

    /// A name that may be there, within the tree; one in six is outside of it.
    fn path(&mut self) -> PathBuf {
        let mut path = match self.dice.below(6) {
            0 => self.outside.clone(),
            _ => self.root.clone(),
        };
        for _ in 0..=self.dice.below(4) {
            path.push(["a", "b", "c"][self.dice.below(3)]);
        }
        path
    }

    /// Makes one change.
    pub fn step(&mut self) {
        self.step += 1;
        let (one, two) = (self.path(), self.path());
        let _ = match self.dice.below(12) {
            0..=2 => fs::create_dir_all(&one),
            3 | 4 => self.write(&one),
            5 => fs::rename(&one, &two),
            6..=8 => renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).map_err(Into::into),
            9 => fs::hard_link(&one, &two),
            10 => fs::remove_file(&one),
            _ => fs::remove_dir_all(&one),
        };
    }

    /// Writes a file anew. Of one with several names one may be in the tree, and another not.
    fn write(&mut self, path: &Path) -> std::io::Result<()> {
        if fs::symlink_metadata(path).is_ok_and(|it| it.is_file() && it.nlink() > 1) {
            fs::remove_file(path)?;
        }
        // Another length each time, so that a size tells what a time may not.
        let length = 1 + self.step as usize % 500;
        fs::write(path, format!("{:0length$}", self.step))
    }
}
