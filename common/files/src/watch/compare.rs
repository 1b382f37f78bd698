//! The comparison of a watched tree with its watches. An event that never came
//! cannot be seen, so every folder is looked at again and again, slowly: a folder
//! without a watch, a watch without its folder, and a name whose change time is
//! newer than what was told of it are told as if an event had come. Never believes a
//! difference at once, because its event may be on the way: it waits, is looked at
//! again, and is told and counted if it is still there. Called by `mod.rs`; `watcher`
//! says what came, went and was told, `comparison` keeps it.

use super::coalesce::Sign;
use super::comparison::{Doubt, Look, Of, Round, Stamp, now};
use super::tree::Key;
use super::watcher::{Notice, Watcher, descend};
use crate::folder::stat_name;
use crate::identity::nanoseconds;
use crate::reap::is_leftover;
use crate::walk::DEPTH_MAX;
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use verbatim_proto::{Changes, Fault, WirePath};

/// Names that are compared in a second: a million in nine minutes, for half a percent of a
/// processor while the kernel remembers them.
const NAMES_PER_SECOND: u32 = 2000;

/// How often some of them are.
const STEP: Duration = Duration::from_millis(250);

/// Names of one step.
const STEP_NAMES: u32 = NAMES_PER_SECOND * STEP.as_millis() as u32 / 1000;

/// Told names whose change times are kept, about 16 MiB. Beyond that all of them are forgotten,
/// and only what changes later is compared.
const TOLD_MAX: usize = 256 << 10;

/// Differences that may wait for their events: more than may wait to be told, so that too many
/// become one look at everything.
const DOUBTS_MAX: usize = 8192;

/// What a file system's clock may be behind: a tick of the kernel.
const TICK: Stamp = 20_000_000;

impl Watcher {
    /// Notes that changes are told, and what they are now: whoever is told looks later.
    pub fn told(&mut self, changes: &Changes) {
        if self.compared.every.is_none() {
            return;
        }
        if changes.rescan {
            return self.compared.tell_all();
        }
        for change in &changes.changes {
            if let (true, Some(folder)) = (change.below, self.tree.find(&change.path)) {
                for folder in self.tree.with_all_below(folder) {
                    self.compared.folders.entry(folder).and_modify(|it| it.all_told = now());
                }
            }
            let folder = self.tree.find(&change.path.parent());
            let (Some(folder), Some(name)) = (folder, change.path.name()) else { continue };
            if self.compared.told.len() >= TOLD_MAX {
                self.compared.told.clear();
                self.compared.all_told = now();
            }
            let at = now();
            if let Some((changed, _)) = self.changed(folder, name) {
                let key = (folder, self.compared.hash(name));
                // A clock that is ahead is another machine's: it is waited for.
                self.compared.told.insert(key, (changed, at.max(changed)));
            }
        }
    }

    /// When a name changed, and when its content did; none for one that is gone.
    fn changed(&mut self, folder: i32, name: &[u8]) -> Option<(Stamp, Stamp)> {
        let stat = stat_name(self.open(folder)?, OsStr::from_bytes(name)).ok()?;
        Some((nanoseconds(&stat.stx_ctime), nanoseconds(&stat.stx_mtime)))
    }

    /// Compares some more, if it is time for that.
    pub fn compare(&mut self, now: Duration) -> Result<(), Fault> {
        let Some(every) = self.compared.every.filter(|_| self.compared.due <= now) else {
            return Ok(());
        };
        self.resolve(now)?;
        let is_over = |watcher: &Self| matches!(watcher.compared.round, Round::Over);
        // What is in doubt is settled before its folder is looked at again.
        let idle = is_over(self) && self.compared.doubts.is_empty();
        if idle && self.compared.next_round <= now {
            self.compared.round = Round::Behind(None);
            let root = self.tree.root();
            self.enter(None, root, WirePath::root(), now);
        }
        let was_over = is_over(self);
        let mut left = STEP_NAMES;
        while left > 0 && self.compared.doubts.len() < DOUBTS_MAX {
            left -= 1;
            match std::mem::take(&mut self.compared.round) {
                Round::Over => break,
                Round::In(look) => self.next_name(look, now),
                Round::Behind(at) => self.next_folder(at, now),
            }
        }
        if is_over(self) && !was_over {
            self.compared.next_round = now + every;
        }
        let idle = is_over(self) && self.compared.doubts.is_empty();
        self.compared.due = if idle { self.compared.next_round } else { now + STEP.min(every) };
        Ok(())
    }

    /// Goes on with the folder behind this one.
    fn next_folder(&mut self, at: Option<Key>, now: Duration) {
        let Some((key, folder)) = self.tree.behind(at.as_ref()) else {
            // What was told before this round began was compared in it.
            let oldest = self.compared.folders.values().map(|it| it.looked.max(it.all_told)).min();
            let oldest = oldest.unwrap_or_default();
            self.compared.told.retain(|_, (_, told)| *told >= oldest);
            return;
        };
        self.compared.round = Round::Behind(Some(key.clone()));
        if let Some(path) = self.tree.path(folder) {
            self.enter(Some(key), folder, path, now);
        }
    }

    /// Looks into a folder, if its watch is where it should be.
    fn enter(&mut self, at: Option<Key>, folder: i32, path: WirePath, now: Duration) {
        match descend(&self.root, &path) {
            Ok(fd) if self.is_watch_of(folder, fd.as_fd()) => {
                let Ok(dir) = Dir::new(fd) else { return };
                let known = self.compared.folders.get_mut(&folder);
                let stirred = known.is_none_or(|known| std::mem::take(&mut known.stirred));
                let look =
                    Look { at, folder, path, dir, began: self::now() - TICK, names: 0, stirred };
                self.compared.round = Round::In(look);
            }
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                self.doubt(path, Of::Watch, now);
            }
            // One that cannot be read is told when it changes.
            Err(_) => {}
        }
    }

    /// Looks at the next name of a folder.
    fn next_name(&mut self, mut look: Look, now: Duration) {
        let name = match look.dir.next() {
            Some(Ok(entry)) => entry.file_name().to_bytes().to_vec(),
            Some(Err(_)) => return self.compared.round = Round::Behind(look.at),
            None => return self.leave(look, now),
        };
        let path = look.path.with(&name).ok().filter(|_| name != b"." && name != b"..");
        if let (Some(path), Ok(fd)) = (path, look.dir.fd()) {
            let stat = stat_name(fd, OsStr::from_bytes(&name));
            if let (false, Ok(stat)) = (is_leftover(&name), stat) {
                let mode = FileType::from_raw_mode(stat.stx_mode.into());
                let is_folder = mode == FileType::Directory;
                // A path that takes too long to match ends the watch when it is planted.
                if self.watched.excludes.excludes(&path, is_folder) == Ok(false) {
                    look.names = look.names.wrapping_add(self.compared.hash(&name));
                    if is_folder {
                        self.look_at_folder(&look, &name, path, now);
                    } else {
                        let changed = nanoseconds(&stat.stx_ctime);
                        self.look_at_file(&look, &name, path, changed, now);
                    }
                }
            }
        }
        self.compared.round = Round::In(look);
    }

    fn look_at_file(
        &mut self,
        look: &Look,
        name: &[u8],
        path: WirePath,
        changed: Stamp,
        now: Duration,
    ) {
        let until = self.compared.known_until(look.folder);
        // One of the future is of a clock that nothing is known about.
        let is_news = changed > until && changed <= self::now();
        if is_news && !self.compared.is_told(look.folder, name, changed) {
            self.doubt(path, Of::Name(until), now);
        }
    }

    fn look_at_folder(&mut self, look: &Look, name: &[u8], path: WirePath, now: Duration) {
        // A folder that is watched is looked at in its turn.
        if self.tree.child(look.folder, name).is_none() && self.lacks_watch(&path) {
            self.doubt(path, Of::Watch, now);
        }
    }

    /// Ends the look into a folder.
    fn leave(&mut self, look: Look, now: Duration) {
        let all_told = self.compared.all_told(look.folder);
        let known = self.compared.folders.get_mut(&look.folder);
        let differs = known.is_some_and(|known| {
            let last = std::mem::replace(&mut known.looked, look.began);
            let before = known.names.replace(look.names);
            let excused = look.stirred || known.stirred || all_told > last;
            !excused && before.is_some_and(|before| before != look.names)
        });
        if differs {
            self.doubt(look.path, Of::Names, now);
        }
        self.compared.round = Round::Behind(look.at);
    }

    fn doubt(&mut self, path: WirePath, of: Of, at: Duration) {
        if !self.pending.waits(&path) {
            self.compared.doubts.push(Doubt { path, of, at, found: self::now() });
        }
    }

    /// Whether a folder that has no watch should have one.
    fn lacks_watch(&self, path: &WirePath) -> bool {
        if self.unread.contains(path) || path.names().count() >= DEPTH_MAX {
            return false;
        }
        let Ok(fd) = descend(&self.root, path) else { return false };
        // A folder that is mounted at two places has one watch.
        self.number_of(fd.as_fd()).is_none_or(|other| !self.stands(other))
    }

    /// Whether a watch is that of the folder at its place.
    fn stands(&self, folder: i32) -> bool {
        let fd = self.tree.path(folder).and_then(|path| descend(&self.root, &path).ok());
        fd.is_some_and(|fd: OwnedFd| self.is_watch_of(folder, fd.as_fd()))
    }

    /// Tells the differences whose events had time to come.
    fn resolve(&mut self, now: Duration) -> Result<(), Fault> {
        let doubts = std::mem::take(&mut self.compared.doubts);
        for doubt in doubts {
            if now.saturating_sub(doubt.at) < self.compared.doubt {
                self.compared.doubts.push(doubt);
            } else if !self.pending.waits(&doubt.path) {
                self.settle(doubt, now)?;
            }
        }
        Ok(())
    }

    fn settle(&mut self, doubt: Doubt, now: Duration) -> Result<(), Fault> {
        let Doubt { path, of, found, .. } = doubt;
        let folder = self.tree.find(&path);
        let parent = self.tree.find(&path.parent()).zip(path.name());
        match (of, folder, parent) {
            (Of::Watch, None, Some((parent, name))) if self.lacks_watch(&path) => {
                self.pending.note(path.clone(), Sign::Below, now);
                self.compared.heal(&path);
                self.look_again(parent, name, &path, Notice::None, now)
            }
            (Of::Watch, Some(folder), Some((parent, name))) if !self.stands(folder) => {
                self.pending.note(path.clone(), Sign::Below, now);
                self.compared.heal(&path);
                self.look_again(parent, name, &path, Notice::None, now)
            }
            (Of::Names, Some(folder), _) => {
                let known = self.compared.folders.get(&folder);
                let stirred = known.is_none_or(|known| known.stirred);
                if !stirred && self.compared.all_told(folder) < found {
                    self.compared.heal(&path);
                    self.pending.note(path, Sign::Below, now);
                }
                Ok(())
            }
            (Of::Name(until), _, Some((parent, name))) => {
                let Some((changed, written)) = self.changed(parent, name) else { return Ok(()) };
                let told = self.compared.is_told(parent, name, changed);
                if !told && self.compared.all_told(parent) < found {
                    // Another name of the file that comes or goes elsewhere changes it as well:
                    // that is compared, and is nothing that was missed.
                    if written > until {
                        self.compared.heal(&path);
                    }
                    self.pending.note(path, Sign::Complete, now);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
