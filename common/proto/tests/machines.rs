//! Client and server machines in pairs, on a virtual clock, with seeded faults:
//! corruption, lost and duplicated completions, dying links, sources that
//! change, files that cannot be opened or written, holes. No bytes move: a grain's
//! content is a version number, so a thousand schedules take seconds.
//!
//! A failing seed prints itself; `SEED=n cargo test -p verbatim-proto --test
//! machines` replays it exactly.

#![allow(clippy::print_stdout)] // a failing seed prints itself

mod world;

use world::{Faults, World};

/// Schedules of each kind; VERBATIM_TRIALS=N runs N times as many.
const SEEDS: u64 = 400;

fn seeds() -> Vec<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    match number("SEED") {
        Some(seed) => vec![seed],
        None => (0..SEEDS * number("VERBATIM_TRIALS").unwrap_or(1)).collect(),
    }
}

fn run_all(faults: Faults, check: impl Fn(&World)) {
    run_each(|seed| World::new(seed, faults), check);
}

fn run_each(make: impl Fn(u64) -> World, check: impl Fn(&World)) {
    for seed in seeds() {
        println!("SEED={seed}");
        let mut world = make(seed);
        world.run();
        check(&world);
    }
}

#[test]
fn without_faults_every_file_arrives_whole_both_ways() {
    let (resumed, zeroed) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let taken = std::cell::Cell::new(0);
    run_all(Faults::default(), |world| {
        assert_eq!(world.finished(), world.file_count());
        assert_eq!(world.mismatches(), 0);
        resumed.set(resumed.get() + world.resumed());
        zeroed.set(zeroed.get() + world.zeroed());
        taken.set(taken.get() + world.taken());
    });
    assert!(resumed.get() > SEEDS || std::env::var("SEED").is_ok(), "nothing was resumed");
    assert!(zeroed.get() > SEEDS || std::env::var("SEED").is_ok(), "no hole was named");
    assert!(taken.get() > SEEDS || std::env::var("SEED").is_ok(), "nothing was taken");
}

#[test]
fn corruption_is_fetched_or_sent_again() {
    let faults = Faults { corrupt_ppm: 30_000, ..Faults::default() };
    let found = std::cell::Cell::new(0);
    run_all(faults, |world| found.set(found.get() + world.mismatches()));
    assert!(found.get() > SEEDS || std::env::var("SEED").is_ok(), "no corruption happened");
}

#[test]
fn corruption_that_never_ends_fails_the_file_and_never_finishes_it() {
    let faults = Faults { corrupt_ppm: 1_000_000, ..Faults::default() };
    run_all(faults, |world| {
        let there = (world.resumed() + world.taken()) as usize;
        assert!(world.finished() <= world.unmoved_files() + there);
        assert_eq!(world.finished() + world.failed(), world.file_count());
    });
}

#[test]
fn lost_completions_end_their_link_and_the_work_goes_on() {
    let faults = Faults { lose_ppm: 20_000, ..Faults::default() };
    let deaths = std::cell::Cell::new(0);
    run_all(faults, |world| {
        deaths.set(deaths.get() + world.deaths());
        assert_eq!(world.finished(), world.file_count());
    });
    assert!(deaths.get() > 0 || std::env::var("SEED").is_ok(), "no completion was lost");
}

#[test]
fn dying_links_lose_nothing_and_store_nothing_late() {
    let faults = Faults { death_ppm: 20_000, duplicate_ppm: 50_000, ..Faults::default() };
    let (deaths, at_once) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    run_all(faults, |world| {
        deaths.set(deaths.get() + world.deaths());
        at_once.set(at_once.get() + world.stored_at_once());
        assert_eq!(world.finished(), world.file_count());
    });
    assert!(deaths.get() > SEEDS / 4 || std::env::var("SEED").is_ok(), "no link died");
    assert!(at_once.get() > SEEDS / 4 || std::env::var("SEED").is_ok(), "nothing was expected");
}

#[test]
fn a_source_that_changes_ends_as_one_version_or_as_a_failure() {
    let faults = Faults { change_ppm: 300_000, ..Faults::default() };
    run_all(faults, |world| {
        assert_eq!(world.finished() + world.failed(), world.file_count());
    });
}

#[test]
fn everything_at_once_ends_with_whole_files_or_clear_failures() {
    let faults = Faults {
        corrupt_ppm: 10_000,
        lose_ppm: 5_000,
        duplicate_ppm: 20_000,
        death_ppm: 10_000,
        change_ppm: 50_000,
        refuse_ppm: 20_000,
    };
    run_all(faults, |world| {
        assert_eq!(world.finished() + world.failed(), world.file_count());
    });
}

#[test]
fn what_is_written_into_files_is_never_written_to_once_it_is_verified() {
    let faults = Faults {
        corrupt_ppm: 20_000,
        lose_ppm: 5_000,
        duplicate_ppm: 20_000,
        death_ppm: 50_000,
        refuse_ppm: 30_000,
        ..Faults::default()
    };
    let counts = std::cell::Cell::new([0; 4]);
    run_all(faults, |world| {
        assert_eq!(world.finished() + world.failed(), world.file_count());
        let [made, refused, ended, late] = world.spots.counts();
        let sum = counts.get();
        counts.set([sum[0] + made, sum[1] + refused, sum[2] + ended, sum[3] + late]);
    });
    let all = counts.get().iter().all(|count| *count > SEEDS / 20);
    assert!(all || std::env::var("SEED").is_ok(), "made, refused, ended, late: {counts:?}");
}

#[test]
fn a_file_in_order_arrives_whole_however_slowly_it_is_taken() {
    run_each(
        |seed| World::ordered(seed, Faults::default()),
        |world| assert_eq!(world.finished(), 1, "a slow taker is not a silent server"),
    );
}

#[test]
fn a_file_in_order_that_cannot_arrive_fails_and_nothing_hangs() {
    let faults = Faults {
        corrupt_ppm: 50_000,
        lose_ppm: 5_000,
        duplicate_ppm: 20_000,
        death_ppm: 10_000,
        change_ppm: 100_000,
        refuse_ppm: 20_000,
    };
    run_each(
        |seed| World::ordered(seed, faults),
        |world| assert_eq!(world.finished() + world.failed(), 1),
    );
}
