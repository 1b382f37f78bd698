//! Followers of a source that changes at random while they work: names that are
//! exchanged, moved in, moved out, linked and removed. When it is quiet the target
//! is what the source is, and what is watched are the folders of the source. No
//! comparison may have helped: that is asserted. Seeds are printed, `SEED=n` replays
//! one, `VERBATIM_TRIALS=n` tries n times as many.

use crate::following::Following;
use crate::process::{Running, Signal, seen, trials, wait_for};
use crate::{BOTH, Way, World, text, tree, write};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;
use verbatim_tests::churn::Churn;

/// Sources that are tried, each way.
const SOURCES: u64 = 2;

/// How often a source changes, and how many of these changes come at once.
const STEPS: usize = 900;
const BURST: usize = 30;

/// Between two bursts: as long as it takes to tell what changed, so that some of it is copied.
const PAUSE: Duration = Duration::from_millis(60);

/// How often all is quiet, where both sides are compared then.
const QUIETS: usize = 6;

/// The longest that the watches may differ from the folders when all is quiet.
const QUIET_MAX: Duration = Duration::from_secs(30);

/// What a comparison says of the first thing that it finds.
const HEALED: &str = "change found that no event told";

/// Seeds to try, other ones in every run.
fn seeds() -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => {
            (0..trials(SOURCES)).map(|n| n * 100_000 + u64::from(std::process::id())).collect()
        }
    }
}

/// A server and its folders. Neither source is ever empty: then nothing would be removed.
fn world() -> World {
    let world = World::new();
    for folder in ["src", "in/origin"] {
        write(world.path(folder).join("kept"), b"kept");
    }
    world
}

/// Changes a tree until it was changed often enough.
fn churn(root: PathBuf, outside: PathBuf, seed: u64) -> JoinHandle<()> {
    fs::create_dir_all(&outside).expect("a folder");
    std::thread::spawn(move || {
        let mut churn = Churn::new(&root, &outside, seed);
        for _ in 0..STEPS / BURST {
            (0..BURST).for_each(|_| churn.step());
            std::thread::sleep(PAUSE);
        }
    })
}

/// The inodes of a folder and of all below it.
fn folders(root: &Path) -> BTreeSet<u64> {
    let below = tree::walk(root).into_iter().filter(|path| path.is_dir() && !path.is_symlink());
    let inodes = below.chain([root.to_owned()]).map(|path| fs::metadata(path).map(|it| it.ino()));
    inodes.collect::<Result<_, _>>().expect("it is quiet")
}

/// The inodes of the folders that a process watches.
fn watched(process: u32) -> BTreeSet<u64> {
    let infos = fs::read_dir(format!("/proc/{process}/fdinfo")).expect("the kernel tells");
    // Descriptors come and go while this looks.
    let texts = infos.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let lines: Vec<String> =
        texts.flat_map(|it| it.lines().map(String::from).collect::<Vec<_>>()).collect();
    let inodes = lines.iter().filter(|line| line.starts_with("inotify ")).filter_map(|line| {
        let inode = line.split(' ').find_map(|word| word.strip_prefix("ino:"))?;
        u64::from_str_radix(inode, 16).ok()
    });
    inodes.collect()
}

impl Following {
    /// The process that watches the source.
    fn watcher(&self) -> u32 {
        if self.way == Way::Down { self.world.serve.id() } else { self.run.id() }
    }

    /// Waits until all is quiet, and says what is not as it should be then.
    #[track_caller]
    fn settles(&mut self, what: &str) {
        self.follows(what);
        let (watcher, source) = (self.watcher(), self.world.source());
        wait_for(
            &format!("{what}: the watched folders are those of the source"),
            QUIET_MAX,
            || {
                let (there, watched) = (folders(&source), watched(watcher));
                let unlike: Vec<_> = there.symmetric_difference(&watched).copied().collect();
                seen(unlike.is_empty(), format!("inodes {unlike:?}; {} folders", there.len()))
            },
        );
        self.was_told(what);
    }

    /// Asserts that nothing was found by a comparison.
    #[track_caller]
    fn was_told(&mut self, what: &str) {
        let logs = format!("{}{:?}", self.world.serve.log(), self.run.report());
        assert!(!logs.contains(HEALED), "{what}: a comparison found something: {logs}");
    }
}

#[test]
fn a_source_that_changes_at_random_is_followed() {
    for seed in seeds() {
        for way in BOTH {
            let what = format!("SEED={seed}, {way:?}");
            let mut following = Following::start(world(), way);
            let (source, outside) = (following.world.source(), following.world.path("outside"));
            fs::create_dir_all(&outside).expect("a folder");
            let mut churn = Churn::new(&source, &outside, seed);
            for round in 1..=QUIETS {
                for _ in 0..STEPS / BURST / QUIETS {
                    (0..BURST).for_each(|_| churn.step());
                    std::thread::sleep(PAUSE);
                }
                following.settles(&format!("{what}, quiet {round}"));
            }
            // What is watched is told.
            for folder in tree::walk(&following.world.source()).iter().filter(|it| it.is_dir()) {
                write(folder.join("last"), what.as_bytes());
            }
            following.settles(&format!("{what}: a file in each folder"));
        }
    }
}

#[test]
fn a_source_that_changes_while_its_server_is_killed_is_followed() {
    for seed in seeds() {
        for way in BOTH {
            let what = format!("SEED={seed}, {way:?}");
            let mut following = Following::start(world(), way);
            let world = &following.world;
            let churning = churn(world.source(), world.path("outside"), seed);
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(150 + seed % 200));
                following.was_told(&what);
                following.world.serve.signal(Signal::KILL);
                following.world.serve_again();
            }
            churning.join().expect("changes");
            following.settles(&what);
        }
    }
}

/// A mirror that is made with `--atomic` whenever its source changes, in the source of another.
#[test]
fn a_chain_of_followers_ends_equal() {
    for seed in seeds() {
        for way in BOTH {
            let what = format!("SEED={seed}, {way:?}, a chain");
            let world = world();
            let (origin, mirror) = (world.path("in/origin"), world.source().join("mirror"));
            let from = world.serve.at("in/origin");
            let flags = ["--watch", "--atomic", "--delete", "--max-delete", "100%"];
            let there = text(&mirror);
            let words = [&[from.as_str(), there.as_str()][..], &flags].concat();
            let mut first = Running::start(world.home.command("rdma-sync", &words));
            let mut following = Following::start(world, way);
            let churning = churn(origin.clone(), following.world.path("outside"), seed);
            churning.join().expect("changes");
            wait_for(&format!("{what}: the mirror is its origin"), QUIET_MAX, || {
                let different = match mirror.is_dir() {
                    true => tree::differences(&origin, &mirror),
                    false => vec!["there is no mirror".to_owned()],
                };
                seen(different.is_empty(), (different, first.report()))
            });
            following.follows(&what);
            following.was_told(&what);
            let report = format!("{:?}", first.report());
            assert!(!report.contains(HEALED), "{what}: a comparison found something: {report}");
        }
    }
}
