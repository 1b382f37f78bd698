//! The paths of `--files-from`: what a mirror looks at, and nothing else. A
//! folder that is listed means all in it; the folders that a listed path is in
//! are looked at too. Pure; held as one sorted set.

use std::collections::BTreeSet;
use verbatim_proto::{Code, Fault, WirePath};

/// How many paths may be listed.
pub const CHOSEN_MAX: usize = 1 << 20;

/// Listed paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    paths: BTreeSet<WirePath>,
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
        Ok(Self { paths })
    }

    /// Whether a path is looked at.
    pub fn sees(&self, path: &WirePath) -> bool {
        self.listed(path).is_some() || self.is_above(path)
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
        self.paths.range(from..).next().is_some_and(|listed| listed.is_below(path))
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
        assert!(Chosen::parse(b"../a").is_err());
    }
}
