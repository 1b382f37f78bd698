//! Runs every target of `hostile` on the inputs that are kept in `tests/fuzz/corpus`, on those
//! with a few bytes changed, and on seeded ones. A bounded number of cases: a long run is
//! `tests/fuzz/run`. What fails names its target and seed, and SEED=N runs that
//! one alone, VERBATIM_TRIALS=N so many times as many.

#![forbid(unsafe_code)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use verbatim_tests::dice::Dice;
use verbatim_tests::hostile::TARGETS;
use verbatim_tests::process::trials;

/// Seeded cases of a target that is only logic.
const CASES: u64 = 3000;
/// Seeded cases of one that writes to a disk.
const CASES_ON_DISK: u64 = 60;
/// The longest input.
const INPUT_BYTES_MAX: usize = 2048;
/// What is kept of all targets together.
const KEPT_BYTES_MAX: usize = 300 << 10;

/// Runs one target on all of its inputs.
fn try_all(name: &str) {
    let (_, target) = TARGETS.iter().find(|(is, _)| *is == name).expect("a target");
    let kept = kept(name);
    assert!(!kept.is_empty(), "nothing is kept for {name}: tests/fuzz/run 60 {name}");
    for (path, bytes) in &kept {
        attempt(name, path, *target, bytes);
    }
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse().ok());
    let on_disk = matches!(name, "journal" | "digest_cache");
    let cases = trials(if on_disk { CASES_ON_DISK } else { CASES });
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..cases,
    };
    for seed in seeds {
        attempt(name, &format!("seed {seed}"), *target, &input(name, seed, &kept));
    }
}

/// Runs one case, and says which it was if it fails.
fn attempt(name: &str, case: &str, target: fn(&[u8]), bytes: &[u8]) {
    let ended = catch_unwind(AssertUnwindSafe(|| target(bytes)));
    // To be kept, under a name, in the corpus.
    let input: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    assert!(ended.is_ok(), "{name}, {case}: failed on {} bytes: {input}", bytes.len());
}

/// What is kept for a target, in a steady order.
fn kept(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut kept = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        kept.push((path.display().to_string(), fs::read(&path).expect("a kept input")));
    }
    kept.sort();
    kept
}

/// The input of a seed: noise, or something kept with a few bytes changed.
fn input(name: &str, seed: u64, kept: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut dice = Dice::new(name, seed);
    let mut next = || dice.roll();
    let base = match (kept, seed % 2) {
        ([], _) | (_, 0) => {
            let len = next() % INPUT_BYTES_MAX;
            return (0..len).map(|_| next() as u8).collect();
        }
        (kept, _) => &kept[next() % kept.len()].1,
    };
    let mut bytes = base.clone();
    for _ in 0..=next() % 8 {
        let at = next() % (bytes.len() + 1);
        match next() % 4 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, next() as u8),
            _ if at < bytes.len() => bytes[at] ^= 1 << (next() % 8),
            _ => bytes.push(next() as u8),
        }
    }
    bytes
}

#[test]
fn what_is_kept_is_small() {
    let inputs = TARGETS.iter().flat_map(|(name, _)| kept(name));
    let bytes: usize = inputs.map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes <= KEPT_BYTES_MAX, "{bytes} bytes are kept");
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            try_all(stringify!($name));
        })*

        #[test]
        fn every_target_is_run() {
            let run = [$(stringify!($name)),*];
            assert_eq!(run.to_vec(), TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        }
    };
}

targets!(frames paths config read_server write_server read_client write_client journal digest_cache);
