//! The queue of tests: a few threads take one each, the slowest of earlier runs first, so
//! that no run ends with a single long test on an idle machine.

use crate::programs::Test;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Runs these tests, so many at a time; returns what became of each, in the order they ended.
pub(crate) fn run<T: Send>(
    tests: &[Test],
    jobs: usize,
    durations: &HashMap<String, Duration>,
    run: impl Fn(&Test) -> T + Sync,
) -> Vec<T> {
    let queue = Mutex::new(in_order(tests, durations).into_iter());
    let outcomes = Mutex::new(Vec::with_capacity(tests.len()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(tests.len()) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(test) = next else { return };
                    let outcome = run(test);
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The slowest first, as far as an earlier run has told.
fn in_order<'a>(tests: &'a [Test], durations: &HashMap<String, Duration>) -> Vec<&'a Test> {
    let mut tests: Vec<&Test> = tests.iter().collect();
    let duration = |test: &Test| durations.get(&test.full_name()).copied().unwrap_or_default();
    tests.sort_by_key(|test| std::cmp::Reverse(duration(test)));
    tests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::Program;
    use std::sync::Arc;

    fn tests(names: &[&str]) -> Vec<Test> {
        let program = Program { name: "p".into(), executable: "p".into(), folder: "/".into() };
        let program = Arc::new(program);
        let test = |name: &&str| Test { program: program.clone(), name: (*name).to_owned() };
        names.iter().map(test).collect()
    }

    #[test]
    fn each_test_runs_once_and_the_slowest_begin_first() {
        let durations = [("p b", 3), ("p d", 9)];
        let durations =
            durations.map(|(name, seconds)| (name.to_owned(), Duration::from_secs(seconds)));
        let all = tests(&["a", "b", "c", "d"]);
        let durations = HashMap::from(durations);
        let name = |test: &Test| test.name.clone();
        let order = |jobs| run(&all, jobs, &durations, name);
        assert_eq!(order(1), ["d", "b", "a", "c"]);
        let mut three = order(3);
        three.sort();
        assert_eq!(three, ["a", "b", "c", "d"]);
        assert!(run(&[], 3, &durations, name).is_empty());
    }
}
