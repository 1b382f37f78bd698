//! The comparison of a watched tree with its watches. An event that never came
//! cannot be seen, so every folder is looked at again and again, slowly: a folder
//! without a watch, a watch without its folder, and a name whose change time is
//! newer than what was told of it are told as if an event had come. Memory: a few
//! words for each folder, and the names that were told since the last round. Never
//! believes a difference at once: its event may be on the way. Called by `mod.rs`;
//! `watcher` and `folders` say what came, went and was told.

mod doubts;

use super::coalesce::Timing;
use super::folders::descend;
use super::tree::Key;
use super::watcher::Watcher;
use crate::folder::stat_name;
use crate::identity::nanoseconds;
use crate::reap::is_leftover;
use doubts::{Doubt, Of};
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
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

/// A time of the file system's clock: nanoseconds since 1970.
type Stamp = i64;

/// What a comparison knows of a tree, and how far it is.
pub(super) struct Comparison {
    /// Between the beginnings of two rounds; none is never.
    every: Option<Duration>,
    /// How long a difference waits for its event.
    doubt: Duration,
    hasher: RandomState,
    folders: HashMap<i32, Known>,
    /// The change times that names had when they were told, and when that was.
    told: HashMap<(i32, u64), (Stamp, Stamp)>,
    /// When all of the tree was told last.
    all_told: Stamp,
    /// When something is to be done again, and when the next round begins.
    due: Duration,
    next_round: Duration,
    round: Round,
    doubts: Vec<Doubt>,
    /// Differences that no event told: how many since they were taken last, and the first.
    pub healed: Option<(u64, WirePath)>,
}

/// What is known of a watched folder.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// When it was looked at last.
    looked: Stamp,
    /// When all that is in it was told last.
    all_told: Stamp,
    /// A sum of its names, as it was looked at last.
    names: Option<u64>,
    /// Whether an event said since then that a name came or went.
    stirred: bool,
}

/// Which folders are looked at next.
#[derive(Default)]
enum Round {
    /// None: the round is over.
    #[default]
    Over,
    /// The one behind this one.
    Behind(Option<Key>),
    /// This one, of which some names were looked at.
    In(Look),
}

/// A folder that is being looked at.
struct Look {
    at: Option<Key>,
    folder: i32,
    path: WirePath,
    dir: Dir,
    began: Stamp,
    names: u64,
    /// Whether a name came or went between the last look and this one.
    stirred: bool,
}

impl Comparison {
    pub fn new(timing: &Timing) -> Self {
        Self {
            every: timing.compare,
            doubt: timing.doubt,
            hasher: RandomState::new(),
            folders: HashMap::new(),
            told: HashMap::new(),
            all_told: now(),
            due: timing.compare.unwrap_or_default(),
            next_round: Duration::ZERO,
            round: Round::Over,
            doubts: Vec::new(),
            healed: None,
        }
    }

    /// When there is something to do; none is never.
    pub fn due(&self) -> Option<Duration> {
        self.every.map(|_| self.due)
    }

    /// A folder is watched from now on: what is in it is told.
    pub fn came(&mut self, folder: i32) {
        let known = Known { looked: 0, all_told: now(), names: None, stirred: false };
        if self.every.is_some() {
            self.folders.entry(folder).or_insert(known);
        }
    }

    /// A folder is not watched any more.
    pub fn went(&mut self, folder: i32) {
        self.folders.remove(&folder);
    }

    /// An event said that a name came or went.
    pub fn stir(&mut self, folder: i32) {
        if let Some(known) = self.folders.get_mut(&folder) {
            known.stirred = true;
        }
    }

    /// Every watch was ended, and all of the tree is told.
    pub fn begin_again(&mut self) {
        self.folders.clear();
        self.round = Round::Over;
        self.tell_all();
    }

    /// All of the tree is told.
    fn tell_all(&mut self) {
        self.told.clear();
        self.doubts.clear();
        self.all_told = now();
    }

    /// When all that is in a folder was told last.
    fn all_told(&self, folder: i32) -> Stamp {
        // One that is not known here is watched since a moment ago.
        let own = self.folders.get(&folder).map_or(Stamp::MAX, |known| known.all_told);
        own.max(self.all_told)
    }

    /// Until when nothing in a folder can be news.
    fn known_until(&self, folder: i32) -> Stamp {
        let looked = self.folders.get(&folder).map_or(Stamp::MAX, |known| known.looked);
        looked.max(self.all_told(folder))
    }

    fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }

    /// Whether this change of a name was told.
    fn is_told(&self, folder: i32, name: &[u8], changed: Stamp) -> bool {
        self.told.get(&(folder, self.hash(name))).is_some_and(|(told, _)| *told == changed)
    }

    fn heal(&mut self, path: &WirePath) {
        self.healed.get_or_insert_with(|| (0, path.clone())).0 += 1;
    }
}

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
}

/// The time, as a file that changes now has it.
fn now() -> Stamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Stamp::try_from(since.as_nanos()).unwrap_or(Stamp::MAX)
}
