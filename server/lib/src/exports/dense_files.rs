//! Cache of large files without holes, by identity, bounded. A client that reads a file in
//! parts opens it for each part, and on tmpfs a search for holes takes time that grows with the
//! file. Holes themselves are searched for each time: a store through a mapping fills a hole
//! without changing the identity, and no digest verifies a hole. A hole missed costs time, never
//! a byte. Called by jobs of sessions.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbatim_files::{Identity, Source};
use verbatim_proto::Survey;
use verbatim_proto::units::WINDOW_BYTES;

/// Ranges kept.
const DENSE_RANGES_MAX: usize = 64;

/// Smaller files are searched each time: they are opened a few times at most.
const FILE_BYTES_MIN: u64 = WINDOW_BYTES;

/// A file without a hole from the first offset to the second.
type DenseRange = (Identity, u64, u64);

/// The known ranges, the most recently used last.
#[derive(Default)]
pub(crate) struct DenseFiles(Mutex<VecDeque<DenseRange>>);

impl DenseFiles {
    fn ranges(&self) -> MutexGuard<'_, VecDeque<DenseRange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The holes of a source from `from` on: from the cache, or searched for.
    pub fn holes(&self, source: &Source, from: u64) -> Survey {
        let identity = source.identity();
        // A young source caches its own reported holes.
        if source.is_racy() || identity.size < FILE_BYTES_MIN {
            return source.find_holes(from);
        }
        if let Some(until) = self.find(identity, from) {
            return Survey { holes: Vec::new(), until };
        }
        let survey = source.find_holes(from);
        if survey.holes.is_empty() {
            self.remember((*identity, from, survey.until));
        }
        survey
    }

    fn find(&self, identity: &Identity, from: u64) -> Option<u64> {
        let mut ranges = self.ranges();
        let is_it = |range: &DenseRange| range.0 == *identity && range.1 == from;
        let at = ranges.iter().rposition(is_it)?;
        let range = ranges.remove(at)?;
        ranges.push_back(range);
        Some(range.2)
    }

    pub(crate) fn remember(&self, range: DenseRange) {
        let mut ranges = self.ranges();
        // Another job may have searched at the same time.
        ranges.retain(|known| (known.0, known.1) != (range.0, range.1));
        ranges.push_back(range);
        if ranges.len() > DENSE_RANGES_MAX {
            ranges.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, Instant};
    use verbatim_proto::Extent;

    fn source(file: &File) -> Source {
        Source::new(file.try_clone().expect("a descriptor"), "big").expect("a source")
    }

    /// A file that was not written to for a while.
    fn settled(make: impl FnOnce(&File)) -> File {
        let file = tempfile::tempfile().expect("a file");
        make(&file);
        let until = Instant::now() + Duration::from_secs(10);
        while source(&file).is_racy() {
            assert!(Instant::now() < until, "it never settles");
            std::thread::sleep(Duration::from_millis(50));
        }
        file
    }

    /// What is known of a file that is one hole, so that it shows whether it is looked at.
    fn lie_about(file: &File) -> DenseFiles {
        let surveys = DenseFiles::default();
        surveys.remember((*source(file).identity(), 0, FILE_BYTES_MIN));
        surveys
    }

    #[test]
    fn a_file_without_holes_is_looked_at_once_while_it_stays() {
        let file = settled(|file| file.set_len(FILE_BYTES_MIN).expect("grows"));
        let surveys = lie_about(&file);
        assert_eq!(
            surveys.holes(&source(&file), 0),
            Survey::dense(FILE_BYTES_MIN),
            "looked at again"
        );
        // One that changed is another, and is not known while a write could hide.
        file.set_len(2 * FILE_BYTES_MIN).expect("grows");
        let hole = Extent::new(0, 2 * FILE_BYTES_MIN);
        let truth = Survey { holes: vec![hole], until: hole.len };
        assert_eq!(surveys.holes(&source(&file), 0), truth);
    }

    #[test]
    fn what_is_dense_is_kept_and_holes_are_not() {
        let bytes = vec![7; FILE_BYTES_MIN as usize];
        let dense = settled(|file| file.write_all_at(&bytes, 0).expect("writes"));
        let surveys = DenseFiles::default();
        assert_eq!(surveys.holes(&source(&dense), 0), Survey::dense(FILE_BYTES_MIN));
        assert_eq!(surveys.ranges().len(), 1, "it is known");
        let sparse = settled(|file| file.set_len(FILE_BYTES_MIN).expect("grows"));
        assert_eq!(surveys.holes(&source(&sparse), 0).holes.len(), 1);
        assert_eq!(surveys.ranges().len(), 1, "a hole may be filled through a mapping");
    }

    #[test]
    fn what_was_asked_for_longest_ago_goes_first_and_there_is_a_bound() {
        let file = settled(|file| file.set_len(FILE_BYTES_MIN).expect("grows"));
        let (surveys, identity) = (lie_about(&file), *source(&file).identity());
        for from in 1..DENSE_RANGES_MAX as u64 {
            surveys.remember((identity, from, FILE_BYTES_MIN));
        }
        assert!(surveys.find(&identity, 0).is_some());
        surveys.remember((identity, u64::MAX, u64::MAX));
        assert_eq!(surveys.ranges().len(), DENSE_RANGES_MAX);
        assert!(surveys.find(&identity, 0).is_some(), "it was asked for just now");
        assert!(surveys.find(&identity, 1).is_none());
    }
}
