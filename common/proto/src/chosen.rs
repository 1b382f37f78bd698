//! What a mirror looks at, and nothing else: the paths of `--files-from`, or what
//! changed in a source that is followed. A folder that is listed means all in it,
//! unless it is listed alone; the folders that a listed path is in are looked at
//! too. Pure; held as sorted sets. Used by both sides for their walks.

use crate::units::{CHANGES_MAX, FRAME_BYTES_MAX};
use crate::{Change, Changes, Code, Fault, WirePath};
use std::collections::BTreeSet;

/// How many paths may be listed.
pub const CHOSEN_MAX: usize = 1 << 20;

/// Listed paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    paths: BTreeSet<WirePath>,
    /// Those that mean nothing but themselves.
    alone: BTreeSet<WirePath>,
    /// Whether a path that is not in the source is none to complain about.
    may_miss: bool,
}

impl Chosen {
    /// Reads a list: a path a line, relative to the source; empty lines mean nothing.
    pub fn parse(text: &[u8]) -> Result<Self, Fault> {
        let mut paths = BTreeSet::new();
        for line in text.split(|&byte| matches!(byte, b'\n' | 0)).filter(|line| !line.is_empty()) {
            paths.insert(WirePath::parse(line.strip_suffix(b"\r").unwrap_or(line))?);
            if paths.len() > CHOSEN_MAX {
                return Err(Fault::new(Code::Limit, format!("more than {CHOSEN_MAX} paths")));
            }
        }
        Ok(Self { paths, ..Self::default() })
    }

    /// What changed in a source: some of it may be gone.
    pub fn changed(changes: &Changes) -> Self {
        let of = |below| {
            let changes = changes.changes.iter().filter(move |change| change.below == below);
            changes.map(|change| change.path.clone()).collect()
        };
        Self { paths: of(true), alone: of(false), may_miss: true }
    }

    /// What it is made of, to be told to the other side; none where that is more than fits.
    pub fn changes(&self) -> Option<Changes> {
        let all = || self.paths.iter().chain(&self.alone);
        let bytes: usize = all().map(|path| path.as_bytes().len() + 8).sum();
        if all().count() > CHANGES_MAX || bytes > FRAME_BYTES_MAX / 2 {
            return None;
        }
        let of = |paths: &BTreeSet<WirePath>, below| {
            paths.iter().map(move |path| Change { path: path.clone(), below }).collect::<Vec<_>>()
        };
        let changes = [of(&self.paths, true), of(&self.alone, false)].concat();
        Some(Changes { changes, rescan: false })
    }

    /// Whether a listed path that is not in the source is an error.
    pub fn must_be_there(&self) -> bool {
        !self.may_miss
    }

    /// Whether a path is looked at.
    pub fn sees(&self, path: &WirePath) -> bool {
        self.listed(path).is_some() || self.alone.contains(path) || self.is_above(path)
    }

    /// The listed path that this is, or is in.
    pub fn listed(&self, path: &WirePath) -> Option<&WirePath> {
        let above =
            std::iter::successors(Some(path.clone()), |at| (!at.is_root()).then(|| at.parent()));
        above.into_iter().find_map(|at| self.paths.get(&at))
    }

    /// Whether a listed path is below this one.
    fn is_above(&self, path: &WirePath) -> bool {
        // What is below begins with the path and a slash; some names sort between the two.
        let from = if path.is_root() { path.clone() } else { path.join(&FIRST) };
        let below = |listed: &BTreeSet<WirePath>| {
            listed.range(&from..).next().is_some_and(|listed| listed.is_below(path))
        };
        below(&self.paths) || below(&self.alone)
    }

    /// All of it, in order.
    pub fn paths(&self) -> impl Iterator<Item = &WirePath> {
        self.paths.iter()
    }
}

/// The name that sorts before every other.
static FIRST: std::sync::LazyLock<WirePath> =
    std::sync::LazyLock::new(|| WirePath::parse(b"\x01").unwrap_or_default());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_alone_is_seen_without_what_is_in_it() {
        let path = |text: &str| WirePath::parse(text.as_bytes()).expect("plain");
        let change = |text: &str, below| Change { path: path(text), below };
        let changes = vec![change("a/b", false), change("moved", true), change("", false)];
        let chosen = Chosen::changed(&Changes { changes, rescan: false });
        for seen in ["", "a", "a/b", "moved", "moved/x/y"] {
            assert!(chosen.sees(&path(seen)), "{seen}");
        }
        for unseen in ["a/b/c", "a/c", "b", "a b"] {
            assert!(!chosen.sees(&path(unseen)), "{unseen}");
        }
        assert!(!chosen.must_be_there());
    }

    #[test]
    fn what_is_listed_is_seen_and_so_is_the_way_there() {
        let chosen = Chosen::parse(b"a/b\n\n./c d/\r\nx\n").expect("plain");
        let sees = |text: &str| chosen.sees(&WirePath::parse(text.as_bytes()).expect("plain"));
        for seen in ["", "a", "a/b", "a/b/c", "c d", "c d/e", "x"] {
            assert!(sees(seen), "{seen}");
        }
        for unseen in ["a/c", "a b", "c", "xx", "a-b"] {
            assert!(!sees(unseen), "{unseen}");
        }
        assert_eq!(chosen.paths().count(), 3);
        let told = chosen.changes().expect("it is short");
        let there = Chosen::changed(&told);
        assert!(told.changes.len() == 3 && !told.rescan);
        for name in ["a/b/c", "a", "x", "a/c", "xx"] {
            assert_eq!(there.sees(&WirePath::parse(name.as_bytes()).expect("plain")), sees(name));
        }
        let list = |lines: usize, name: &str| {
            let lines = (0..lines).map(|number| format!("{name}{number}\n"));
            Chosen::parse(lines.collect::<String>().as_bytes()).expect("plain").changes()
        };
        assert!(list(CHANGES_MAX, "a").is_some() && list(CHANGES_MAX + 1, "a").is_none());
        let long = ["n".repeat(200).as_str(); 20].join("/");
        assert!(list(200, &long).is_none(), "it would not fit a frame");
        assert!(Chosen::parse(b"../a").is_err());
    }
}
