//! Names that change under a copy: a thread exchanges a folder with a link that leads out,
//! as fast as it can, while trees are copied through that name. What is outside may neither
//! be read nor written.

use crate::snapshot;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use verbatim_client::session::command_error::CopyError;
use verbatim_tests::pair::{Backend, Copied, Pair};

/// Copies of each kind.
const ROUNDS: usize = 12;
const FILES: usize = 40;

/// How long it may take until one of them brings a file.
const ARRIVE_MAX: Duration = Duration::from_secs(30);

/// Exchanges two names until it is dropped.
struct Swapper {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    fn start(a: PathBuf, b: PathBuf) -> Self {
        let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), swaps.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).expect("exchanges");
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        Self { stop, swaps, thread: Some(thread) }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the swapper failed");
        assert!(self.swaps.load(Ordering::Relaxed) > 0, "nothing was swapped");
    }
}

/// Fills a folder with files that all say the same.
fn fill(folder: &Path, text: &str) {
    fs::create_dir_all(folder.join("sub")).expect("folders");
    for number in 0..FILES {
        let below = if number % 2 == 0 { "" } else { "sub" };
        fs::write(folder.join(below).join(format!("f{number}")), text).expect("a file");
    }
}

/// Every file below says this, or there is none.
fn all_say(folder: &Path, text: &str) {
    for (path, content) in snapshot(folder) {
        if let Some(content) = content {
            assert_eq!(content, text.as_bytes(), "{}", path.display());
        }
    }
}

/// Copies again and again: so often, and until a file has arrived at least, since where every
/// copy fails nothing was tried. That one fails is fine.
fn in_rounds(mut copy: impl FnMut(usize) -> Result<Copied, CopyError>) {
    let until = Instant::now() + ARRIVE_MAX;
    let (mut round, mut arrived) = (0, 0);
    while round < ROUNDS || arrived == 0 {
        assert!(round < ROUNDS || Instant::now() < until, "nothing arrived in {round} copies");
        arrived += copy(round).map_or(0, |copied| copied.summary.files);
        round += 1;
    }
}

#[test]
fn a_folder_of_an_export_that_becomes_a_link_gives_nothing_from_outside() {
    let pair = Pair::in_memory(Backend::Tcp);
    fill(&pair.served("ro/tree/d"), "public");
    fill(&pair.served("outside"), "secret");
    symlink(pair.served("outside"), pair.served("ro/tree/l")).expect("a link");
    let swapper = Swapper::start(pair.served("ro/tree/d"), pair.served("ro/tree/l"));
    in_rounds(|round| {
        let target = format!("copy{round}");
        let copied = pair.down(&["ro/tree/d"], &target).try_run();
        all_say(&pair.local(""), "public");
        copied
    });
    drop(swapper);
}

#[test]
fn a_folder_of_an_export_that_becomes_a_link_takes_nothing_outside() {
    let pair = Pair::in_memory(Backend::Tcp);
    fill(&pair.local("tree"), "new");
    fs::create_dir_all(pair.served("rw/d/sub")).expect("folders");
    fs::create_dir_all(pair.served("outside/sub")).expect("folders");
    symlink(pair.served("outside"), pair.served("rw/l")).expect("a link");
    let before = snapshot(&pair.served("outside"));
    let swapper = Swapper::start(pair.served("rw/d"), pair.served("rw/l"));
    in_rounds(|_| {
        let copied = pair.up(&["tree"], "rw/d").try_run();
        assert_eq!(snapshot(&pair.served("outside")), before, "written outside the export");
        copied
    });
    drop(swapper);
    let left = |folder: &str| verbatim_tests::tree::parts(&pair.served(folder)).len();
    assert_eq!(left("outside"), 0);
}

#[test]
fn a_folder_of_the_target_that_becomes_a_link_takes_nothing_outside() {
    let pair = Pair::in_memory(Backend::Tcp);
    fill(&pair.served("ro/tree/d"), "new");
    fs::create_dir_all(pair.local("all/d/sub")).expect("folders");
    fs::create_dir_all(pair.served("outside/sub")).expect("folders");
    symlink(pair.served("outside"), pair.local("all/l")).expect("a link");
    let before = snapshot(&pair.served("outside"));
    let swapper = Swapper::start(pair.local("all/d"), pair.local("all/l"));
    in_rounds(|_| {
        let copied = pair.down(&["ro/tree/d"], "all").try_run();
        assert_eq!(snapshot(&pair.served("outside")), before, "written outside the target");
        copied
    });
    drop(swapper);
}
