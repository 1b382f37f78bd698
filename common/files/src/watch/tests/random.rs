//! Names that change at random under a watcher that works meanwhile: exchanged,
//! moved in and out, linked, removed and made. When it is quiet the watches, here
//! and in the kernel, are those of the folders of the tree. Never compares: what a
//! comparison would heal must not be there. `SEED=n` replays one,
//! `VERBATIM_TRIALS=n` tries n times as many.

use super::exchange::{exchange, take_all, unlike_the_tree};
use super::*;

/// Trees that are tried.
const TREES: u64 = 24;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Changes a tree, and a folder beside it; most changes fail now and then.
fn stir(root: &Path, outside: &Path, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    for step in 0..1500 {
        let mut path = || {
            let mut path = if random(6) == 0 { outside.to_owned() } else { root.to_owned() };
            (0..=random(4)).for_each(|_| path.push(["a", "b", "c"][random(3)]));
            path
        };
        let (one, two) = (path(), path());
        let _ = match random(10) {
            0..=2 => fs::create_dir_all(&one),
            3 => fs::write(&one, format!("{step}")),
            4 => fs::rename(&one, &two),
            5 | 6 => exchange(&one, &two),
            7 => fs::hard_link(&one, &two),
            8 => fs::remove_file(&one),
            _ => fs::remove_dir_all(&one),
        };
    }
}

fn try_tree(seed: u64) {
    let dir = tempfile::tempdir().expect("folder");
    let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
    fs::create_dir(&root).expect("makes");
    fs::create_dir(&outside).expect("makes");
    let mut watcher = watcher(&root, Excludes::default());
    let stirring = {
        let (root, outside) = (root.clone(), outside.clone());
        std::thread::spawn(move || stir(&root, &outside, seed))
    };
    while !stirring.is_finished() {
        let happened = watcher.kernel.read().expect("reads");
        let lost = watcher.take(happened, Duration::ZERO);
        let lost = lost.unwrap_or_else(|fault| panic!("SEED={seed}: {fault}"));
        assert!(!lost, "SEED={seed}: the kernel lost count");
    }
    stirring.join().expect("changes");
    take_all(&mut watcher);
    let unlike = unlike_the_tree(&watcher, &root);
    assert!(unlike.is_empty(), "SEED={seed}: {unlike:?}");
}

#[test]
fn the_watched_folders_are_those_of_a_tree_that_changed_at_random() {
    let seeds = match number("SEED") {
        Some(seed) => vec![seed],
        None => (0..TREES * number("VERBATIM_TRIALS").unwrap_or(1)).collect(),
    };
    seeds.into_iter().for_each(try_tree);
}
