//! What the comparison of a watched tree knows of it: when each folder was looked at,
//! what was told of its names and when, which differences wait for their events, and
//! how far the round is. Memory: a few words for each folder, and the names that were
//! told since the last round. Looks at no file: `compare` does.

use super::coalesce::Timing;
use super::tree::Key;
use rustix::fs::Dir;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use verbatim_proto::WirePath;

/// A time of the file system's clock: nanoseconds since 1970.
pub(super) type Stamp = i64;

/// What a comparison knows of a tree, and how far it is.
pub(super) struct Comparison {
    /// Between the beginnings of two rounds; none is never.
    pub(super) every: Option<Duration>,
    /// How long a difference waits for its event.
    pub(super) doubt: Duration,
    hasher: RandomState,
    pub(super) folders: HashMap<i32, Known>,
    /// The change times that names had when they were told, and when that was.
    pub(super) told: HashMap<(i32, u64), (Stamp, Stamp)>,
    /// When all of the tree was told last.
    pub(super) all_told: Stamp,
    /// When something is to be done again, and when the next round begins.
    pub(super) due: Duration,
    pub(super) next_round: Duration,
    pub(super) round: Round,
    pub(super) doubts: Vec<Doubt>,
    /// Differences that no event told: how many since they were taken last, and the first.
    pub healed: Option<(u64, WirePath)>,
}

/// What is known of a watched folder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// When it was looked at last.
    pub(super) looked: Stamp,
    /// When all that is in it was told last.
    pub(super) all_told: Stamp,
    /// A sum of its names, as it was looked at last.
    pub(super) names: Option<u64>,
    /// Whether an event said since then that a name came or went.
    pub(super) stirred: bool,
}

/// Which folders are looked at next.
#[derive(Default)]
pub(super) enum Round {
    /// None: the round is over.
    #[default]
    Over,
    /// The one behind this one.
    Behind(Option<Key>),
    /// This one, of which some names were looked at.
    In(Look),
}

/// A folder that is being looked at.
pub(super) struct Look {
    pub(super) at: Option<Key>,
    pub(super) folder: i32,
    pub(super) path: WirePath,
    pub(super) dir: Dir,
    pub(super) began: Stamp,
    pub(super) names: u64,
    /// Whether a name came or went between the last look and this one.
    pub(super) stirred: bool,
}

/// A difference whose event may be on the way.
pub(super) struct Doubt {
    pub(super) path: WirePath,
    pub(super) of: Of,
    /// When it was found, by both clocks.
    pub(super) at: Duration,
    pub(super) found: Stamp,
}

/// What differs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// The watch of a folder.
    Watch,
    /// The names in a folder.
    Names,
    /// A name that changed since then.
    Name(Stamp),
}

impl Comparison {
    pub(super) fn new(timing: &Timing) -> Self {
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
    pub(super) fn due(&self) -> Option<Duration> {
        self.every.map(|_| self.due)
    }

    /// A folder is watched from now on: what is in it is told.
    pub(super) fn came(&mut self, folder: i32) {
        let known = Known { looked: 0, all_told: now(), names: None, stirred: false };
        if self.every.is_some() {
            self.folders.entry(folder).or_insert(known);
        }
    }

    /// A folder is not watched any more.
    pub(super) fn went(&mut self, folder: i32) {
        self.folders.remove(&folder);
    }

    /// An event said that a name came or went.
    pub(super) fn stir(&mut self, folder: i32) {
        if let Some(known) = self.folders.get_mut(&folder) {
            known.stirred = true;
        }
    }

    /// Every watch was ended, and all of the tree is told.
    pub(super) fn begin_again(&mut self) {
        self.folders.clear();
        self.round = Round::Over;
        self.tell_all();
    }

    /// All of the tree is told.
    pub(super) fn tell_all(&mut self) {
        self.told.clear();
        self.doubts.clear();
        self.all_told = now();
    }

    /// When all that is in a folder was told last.
    pub(super) fn all_told(&self, folder: i32) -> Stamp {
        // One that is not known here is watched since a moment ago.
        let own = self.folders.get(&folder).map_or(Stamp::MAX, |known| known.all_told);
        own.max(self.all_told)
    }

    /// Until when nothing in a folder can be news.
    pub(super) fn known_until(&self, folder: i32) -> Stamp {
        let looked = self.folders.get(&folder).map_or(Stamp::MAX, |known| known.looked);
        looked.max(self.all_told(folder))
    }

    pub(super) fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }

    /// Whether this change of a name was told.
    pub(super) fn is_told(&self, folder: i32, name: &[u8], changed: Stamp) -> bool {
        self.told.get(&(folder, self.hash(name))).is_some_and(|(told, _)| *told == changed)
    }

    pub(super) fn heal(&mut self, path: &WirePath) {
        self.healed.get_or_insert_with(|| (0, path.clone())).0 += 1;
    }
}

/// The time, as a file that changes now has it.
pub(super) fn now() -> Stamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Stamp::try_from(since.as_nanos()).unwrap_or(Stamp::MAX)
}
