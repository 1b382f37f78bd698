//! Which large files have no holes, looked for once: a client that reads a file in parts
//! opens it for each, and to look for holes takes as long as the file is on a file system
//! in memory. Bounded; kept by identity. Where there are holes they are looked for each
//! time: a store through a mapping fills one without changing the identity, and nothing
//! verifies a hole. One that is not seen costs time, never a byte. Called by jobs of
//! sessions.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbatim_files::{Identity, Source};
use verbatim_proto::Survey;
use verbatim_proto::units::WINDOW_BYTES;

/// Looks that are kept.
const KEPT_MAX: usize = 64;

/// Files below this are looked at each time: they are opened a few times at most.
const FILE_BYTES_MIN: u64 = WINDOW_BYTES;

/// A file has no hole from the first place to the second.
type Look = (Identity, u64, u64);

/// What is known, that which was asked for last behind the rest.
#[derive(Default)]
pub(crate) struct Surveys(Mutex<VecDeque<Look>>);

impl Surveys {
    fn looks(&self) -> MutexGuard<'_, VecDeque<Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The holes of a source from `from` on: known, or looked for.
    pub fn of(&self, source: &Source, from: u64) -> Survey {
        let identity = source.identity();
        // A young source itself remembers what it told of its holes.
        if source.is_racy() || identity.size < FILE_BYTES_MIN {
            return source.find_holes(from);
        }
        if let Some(until) = self.find(identity, from) {
            return Survey { holes: Vec::new(), until };
        }
        let survey = source.find_holes(from);
        if survey.holes.is_empty() {
            self.keep((*identity, from, survey.until));
        }
        survey
    }

    fn find(&self, identity: &Identity, from: u64) -> Option<u64> {
        let mut looks = self.looks();
        let is_it = |look: &Look| look.0 == *identity && look.1 == from;
        let at = looks.iter().rposition(is_it)?;
        let look = looks.remove(at)?;
        looks.push_back(look);
        Some(look.2)
    }

    pub(crate) fn keep(&self, look: Look) {
        let mut looks = self.looks();
        // Others may have looked at the same time.
        looks.retain(|known| (known.0, known.1) != (look.0, look.1));
        looks.push_back(look);
        if looks.len() > KEPT_MAX {
            looks.pop_front();
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
    fn lie_about(file: &File) -> Surveys {
        let surveys = Surveys::default();
        surveys.keep((*source(file).identity(), 0, FILE_BYTES_MIN));
        surveys
    }

    #[test]
    fn a_file_without_holes_is_looked_at_once_while_it_stays() {
        let file = settled(|file| file.set_len(FILE_BYTES_MIN).expect("grows"));
        let surveys = lie_about(&file);
        assert_eq!(surveys.of(&source(&file), 0), Survey::dense(FILE_BYTES_MIN), "looked at again");
        // One that changed is another, and is not known while a write could hide.
        file.set_len(2 * FILE_BYTES_MIN).expect("grows");
        let hole = Extent::new(0, 2 * FILE_BYTES_MIN);
        let truth = Survey { holes: vec![hole], until: hole.len };
        assert_eq!(surveys.of(&source(&file), 0), truth);
    }

    #[test]
    fn what_is_dense_is_kept_and_holes_are_not() {
        let bytes = vec![7; FILE_BYTES_MIN as usize];
        let dense = settled(|file| file.write_all_at(&bytes, 0).expect("writes"));
        let surveys = Surveys::default();
        assert_eq!(surveys.of(&source(&dense), 0), Survey::dense(FILE_BYTES_MIN));
        assert_eq!(surveys.looks().len(), 1, "it is known");
        let sparse = settled(|file| file.set_len(FILE_BYTES_MIN).expect("grows"));
        assert_eq!(surveys.of(&source(&sparse), 0).holes.len(), 1);
        assert_eq!(surveys.looks().len(), 1, "a hole may be filled through a mapping");
    }

    #[test]
    fn what_was_asked_for_longest_ago_goes_first_and_there_is_a_bound() {
        let file = settled(|file| file.set_len(FILE_BYTES_MIN).expect("grows"));
        let (surveys, identity) = (lie_about(&file), *source(&file).identity());
        for from in 1..KEPT_MAX as u64 {
            surveys.keep((identity, from, FILE_BYTES_MIN));
        }
        assert!(surveys.find(&identity, 0).is_some());
        surveys.keep((identity, u64::MAX, u64::MAX));
        assert_eq!(surveys.looks().len(), KEPT_MAX);
        assert!(surveys.find(&identity, 0).is_some(), "it was asked for just now");
        assert!(surveys.find(&identity, 1).is_none());
    }
}
