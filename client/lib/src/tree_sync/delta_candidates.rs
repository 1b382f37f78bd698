//! Finds basis files at the target for a file of the source: the replaced file, or one of the same
//! size, which may have been renamed or copied (rsync's `--fuzzy`). A wrong guess costs one range
//! that is read and hashed, and nothing else: every copied byte is verified. Pure.

use std::collections::BTreeMap;
use verbatim_engine::local_io::delta_source::{BASIS_BYTES_MIN, Basis};
use verbatim_proto::message::EntryKind;
use verbatim_proto::{Digest, Node, Resolution, WirePath};

/// The most files of the target that are remembered; later ones are not.
const FILES_MAX: usize = 1 << 16;

/// The most files of one size that are compared by time or digest.
const COMPARED_MAX: usize = 64;

/// The most files of one size that are tried without other evidence.
const GUESSES_MAX: usize = 8;

/// The large files of the target.
#[derive(Default)]
pub(crate) struct DeltaCandidates {
    files: BTreeMap<(u64, i64), Candidate>,
    /// The resolution of timestamps at the target.
    resolution: Resolution,
    /// Whether the whole target was scanned.
    pub complete: bool,
}

struct Candidate {
    path: WirePath,
    digest: Option<Digest>,
}

impl DeltaCandidates {
    /// For a target with this resolution of timestamps.
    pub fn new(resolution: Resolution) -> Self {
        Self { resolution, ..Self::default() }
    }

    /// Remembers a file of the target.
    pub fn note(&mut self, node: &Node) {
        let large = node.kind == EntryKind::File && node.size >= BASIS_BYTES_MIN;
        if large && self.files.len() < FILES_MAX {
            let (path, digest) = (node.path.clone(), node.digest);
            let candidate = Candidate { path, digest };
            self.files.entry((node.size, node.meta.mtime_ns)).or_insert(candidate);
        }
    }

    /// Whether the rest of the target may contain a better basis for a new file.
    pub fn may_learn(&self, node: &Node) -> bool {
        !self.complete && node.size >= BASIS_BYTES_MIN
    }

    /// The basis files for a file of the source; `there` says that the target has a file of its
    /// name.
    pub fn basis(&self, node: &Node, there: bool) -> Option<Basis> {
        if node.size < BASIS_BYTES_MIN {
            return None;
        }
        let own = there.then(|| node.path.clone());
        let of_size = self.files.range((node.size, i64::MIN)..=(node.size, i64::MAX));
        let others = || {
            let of_size = of_size.clone().take(COMPARED_MAX);
            of_size.filter(|(_, other)| other.path != node.path)
        };
        let known = |other: &Candidate| node.digest.is_some() && node.digest == other.digest;
        let same = |((_, mtime_ns), other): &(&(u64, i64), &Candidate)| {
            let is_kept = self.resolution.is_kept(node.meta.mtime_ns, *mtime_ns);
            known(other) || node.digest.is_none() && is_kept
        };
        let path = |(_, other): (_, &Candidate)| other.path.clone();
        let kept_ns = self.resolution.cut(node.meta.mtime_ns);
        let exact = self.files.get_key_value(&(node.size, kept_ns));
        let exact = exact.filter(|of| of.1.path != node.path && same(of));
        if let Some(found) = exact.or_else(|| others().find(same)).map(path) {
            let paths = [Some(found), own].into_iter().flatten().collect();
            return Some(Basis { paths, fuzzy: true });
        }
        if let Some(own) = own {
            return Some(Basis { paths: vec![own], fuzzy: false });
        }
        // If digests are known, other files of this size differ.
        let any = others().filter(|_| node.digest.is_none()).take(GUESSES_MAX);
        let paths: Vec<WirePath> = any.map(path).collect();
        (!paths.is_empty()).then_some(Basis { paths, fuzzy: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_proto::Meta;

    fn node(name: &str, size: u64, mtime_ns: i64, digest: Option<u8>) -> Node {
        let path = WirePath::parse(name.as_bytes()).expect("plain");
        let meta = Meta { mtime_ns, ..Meta::default() };
        let digest = digest.map(|byte| Digest([byte; 32]));
        Node { path, kind: EntryKind::File, size, meta, twin: None, digest }
    }

    fn candidates(nodes: &[Node]) -> DeltaCandidates {
        let mut candidates = DeltaCandidates::default();
        nodes.iter().for_each(|node| candidates.note(node));
        candidates
    }

    fn of(candidates: &DeltaCandidates, node: &Node, there: bool) -> Option<(String, bool)> {
        let shown = |paths: Vec<WirePath>| paths.iter().map(WirePath::to_string).collect();
        let basis = candidates.basis(node, there)?;
        let names: Vec<String> = shown(basis.paths);
        Some((names.join(" "), basis.fuzzy))
    }

    const SIZE: u64 = BASIS_BYTES_MIN;

    #[test]
    fn a_renamed_file_is_found_by_its_time_and_a_copied_one_by_its_size() {
        let target = [node("a", SIZE, 5, None), node("b", SIZE, 6, None), node("c", 9, 6, None)];
        let candidates = candidates(&target);
        let guess = |name: &str| Some((name.to_owned(), true));
        assert_eq!(of(&candidates, &node("z", SIZE, 6, None), false), guess("b"));
        assert_eq!(of(&candidates, &node("z", SIZE, 7, None), false), guess("a b"));
        assert_eq!(of(&candidates, &node("z", SIZE + 1, 6, None), false), None);
        assert_eq!(of(&candidates, &node("z", 9, 6, None), false), None, "too small to pay");
        let own = Some(("b".to_owned(), false));
        assert_eq!(of(&candidates, &node("b", SIZE, 7, None), true), own, "what it replaces");
        assert_eq!(
            of(&candidates, &node("b", SIZE, 5, None), true),
            guess("a b"),
            "it took a's place"
        );
    }

    #[test]
    fn a_renamed_file_is_found_at_the_resolution_of_the_target() {
        let mut candidates = DeltaCandidates::new(Resolution::Second);
        for (name, seconds) in [("a", 5), ("b", 6)] {
            candidates.note(&node(name, SIZE, seconds * 1_000_000_000, None));
        }
        let new = node("z", SIZE, 6_987_654_321, None);
        assert_eq!(of(&candidates, &new, false), Some(("b".into(), true)));
    }

    #[test]
    fn known_digests_alone_decide() {
        let candidates = candidates(&[node("a", SIZE, 5, Some(1)), node("b", SIZE, 6, Some(2))]);
        let new = |mtime, digest| node("z", SIZE, mtime, Some(digest));
        assert_eq!(of(&candidates, &new(9, 2), false), Some(("b".into(), true)));
        assert_eq!(of(&candidates, &new(5, 2), false), Some(("b".into(), true)));
        assert_eq!(of(&candidates, &new(5, 3), false), None);
    }

    #[test]
    fn the_number_of_remembered_files_is_bounded() {
        let mut candidates = DeltaCandidates::default();
        for time in 0..FILES_MAX as i64 + 5 {
            candidates.note(&node("x", SIZE, time, None));
        }
        assert_eq!(candidates.files.len(), FILES_MAX);
        assert!(candidates.may_learn(&node("y", SIZE, 0, None)));
        candidates.complete = true;
        assert!(!candidates.may_learn(&node("y", SIZE, 0, None)), "all is known");
    }
}
