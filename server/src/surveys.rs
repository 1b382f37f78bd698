//! Where the holes of large files are, looked for once: a client that reads a file in
//! parts opens it for each, and to look for holes takes as long as the file is on a file
//! system in memory. Bounded; kept by identity, and never of one that may hide a later
//! write. Called by jobs of sessions.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbatim_files::{Identity, Source};
use verbatim_proto::Survey;
use verbatim_proto::units::WINDOW_BYTES;

/// Looks that are kept, each of at most `HOLES_MAX` holes.
const KEPT_MAX: usize = 64;

/// Files below this are looked at each time: they are opened a few times at most.
const FILE_BYTES_MIN: u64 = WINDOW_BYTES;

/// What was found in a file from a place on.
type Look = (Identity, u64, Survey);

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
        if source.is_racy() || identity.size < FILE_BYTES_MIN {
            return source.find_holes(from);
        }
        if let Some(known) = self.find(identity, from) {
            return known;
        }
        let survey = source.find_holes(from);
        // Only what did not change while it was looked at is worth keeping.
        if Identity::of(source.file()).is_ok_and(|now| now == *identity) {
            self.keep((*identity, from, survey.clone()));
        }
        survey
    }

    /// Forgets what is known of a file.
    pub fn forget(&self, identity: &Identity) {
        self.looks().retain(|(known, ..)| known != identity);
    }

    fn find(&self, identity: &Identity, from: u64) -> Option<Survey> {
        let mut looks = self.looks();
        let is_it = |look: &Look| look.0 == *identity && look.1 == from;
        let at = looks.iter().rposition(is_it)?;
        let look = looks.remove(at)?;
        let survey = look.2.clone();
        looks.push_back(look);
        Some(survey)
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
    use std::time::{Duration, Instant};
    use verbatim_proto::Extent;
    use verbatim_proto::units::GRAIN_BYTES;

    fn source(file: &File) -> Source {
        Source::new(file.try_clone().expect("a descriptor"), "big").expect("a source")
    }

    /// A file that is one hole, and a lie about it, so that it shows what is told.
    fn lied_about() -> (File, Surveys, Survey) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(FILE_BYTES_MIN).expect("grows");
        let until = Instant::now() + Duration::from_secs(10);
        while source(&file).is_racy() {
            assert!(Instant::now() < until, "it never settles");
            std::thread::sleep(Duration::from_millis(50));
        }
        let (surveys, lie) = (Surveys::default(), Survey::dense(FILE_BYTES_MIN));
        surveys.keep((*source(&file).identity(), 0, lie.clone()));
        (file, surveys, lie)
    }

    #[test]
    fn a_look_is_kept_for_a_file_that_stays_and_no_other() {
        let (file, surveys, lie) = lied_about();
        let truth = |size| Survey { holes: vec![Extent::new(0, size)], until: size };
        assert_eq!(surveys.of(&source(&file), 0), lie, "it was looked for again");
        let behind = surveys.of(&source(&file), GRAIN_BYTES);
        assert_eq!(behind.holes[0].offset, GRAIN_BYTES, "that is another look");
        surveys.forget(source(&file).identity());
        assert!(surveys.looks().is_empty());
        assert_eq!(surveys.of(&source(&file), 0), truth(FILE_BYTES_MIN), "it was forgotten");
        assert_eq!(surveys.looks().len(), 1, "and is known again");
        // One that changed is another, and is not known while a write could hide.
        file.set_len(2 * FILE_BYTES_MIN).expect("grows");
        for _ in 0..2 {
            assert_eq!(surveys.of(&source(&file), 0), truth(2 * FILE_BYTES_MIN));
        }
        assert_eq!(surveys.looks().len(), 1, "nothing of a young one is kept");
    }

    #[test]
    fn what_was_asked_for_longest_ago_goes_first_and_there_is_a_bound() {
        let (file, surveys, lie) = lied_about();
        let identity = *source(&file).identity();
        for from in 1..KEPT_MAX as u64 {
            surveys.keep((identity, from, lie.clone()));
        }
        assert!(surveys.find(&identity, 0).is_some());
        surveys.keep((identity, u64::MAX, lie));
        assert_eq!(surveys.looks().len(), KEPT_MAX);
        assert!(surveys.find(&identity, 0).is_some(), "it was asked for just now");
        assert!(surveys.find(&identity, 1).is_none());
    }
}
