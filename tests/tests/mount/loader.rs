//! Loaders of a training run: sixteen processes read shuffled lists of files, epoch
//! after epoch. What each gets is compared by its digest, while the fill is at work,
//! while the server is killed and comes back, and while the dataset is replaced under
//! its readers.

use super::*;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use verbatim_tests::dice::Dice;

const WORKERS: usize = 16;
const FILES: usize = 240;
const FILE_BYTES_MAX: usize = 200_000;

/// The digests of files, by their names.
type Digests = BTreeMap<String, String>;

/// A dataset: files of all sizes up to a bound, in folders.
fn fill(dir: &Path) {
    let mut dice = Dice::new("loader", 12);
    for number in 0..FILES {
        let folder = dir.join(format!("{}", number % 7));
        fs::create_dir_all(&folder).expect("makes");
        let content = noise(dice.below(FILE_BYTES_MAX), number as u64 + 1);
        fs::write(folder.join(format!("sample-{number}")), content).expect("writes");
    }
}

fn names() -> Vec<String> {
    (0..FILES).map(|number| format!("{}/sample-{number}", number % 7)).collect()
}

/// Starts a process that reads these files and tells their digests.
fn read(folder: &Path, names: &[String]) -> Running {
    let mut command = Command::new("sha256sum");
    command.current_dir(folder).args(names);
    Running::start(command)
}

/// What it told.
fn digests(running: Running) -> Digests {
    let said = running.end().done().stdout;
    let pair = |line: &str| line.split_once("  ").map(|(sum, name)| (name.into(), sum.into()));
    said.lines().filter_map(pair).collect()
}

/// Sixteen processes, each with all files in an order of its own.
fn start_epoch(mounted: &Mounted, seed: u64) -> Vec<Running> {
    let mut dice = Dice::new("epoch", seed);
    let worker = |_| {
        let mut names = names();
        for at in (1..names.len()).rev() {
            names.swap(at, dice.below(at + 1));
        }
        read(&mounted.path(""), &names)
    };
    (0..WORKERS).map(worker).collect()
}

/// Waits for all of them; each must have read all files as they are at the source.
fn end_epoch(workers: Vec<Running>, expected: &Digests) {
    for worker in workers {
        assert!(digests(worker) == *expected, "a worker read something else");
    }
}

fn whole_bytes(source: &Source) -> u64 {
    names().iter().map(|name| fs::metadata(source.path(name)).expect("is there").len()).sum()
}

#[test]
fn sixteen_processes_that_shuffle_read_what_the_source_has_and_fetch_it_once() {
    if !can_mount("sixteen_processes_that_shuffle_read_what_the_source_has_and_fetch_it_once") {
        return;
    }
    let source = Source::new(fill);
    let expected = digests(read(&source.path(""), &names()));
    assert_eq!(expected.len(), FILES);
    // What is younger is looked at more than once.
    std::thread::sleep(SETTLED);
    let cache = Arc::new(tempfile::tempdir().expect("a folder"));
    let mounted = source.mount_with(&cache, &["--fill"]);
    end_epoch(start_epoch(&mounted, 1), &expected);
    let told = mounted.status();
    assert_eq!(told["fetched_bytes"], whole_bytes(&source), "each block came once: {told}");
    mounted.end();
    // The next run finds all of it, verifies it, and fetches nothing.
    let mounted = source.mount_with(&cache, &[]);
    end_epoch(start_epoch(&mounted, 2), &expected);
    let told = mounted.status();
    assert_eq!((&told["fetched_bytes"], &told["failures"]), (&0.into(), &0.into()), "{told}");
    mounted.end();
}

#[test]
fn a_loader_whose_server_is_killed_and_comes_back_reads_all_of_it_without_an_error() {
    if !can_mount("a_loader_whose_server_is_killed_and_comes_back_reads_all_of_it_without_an_error")
    {
        return;
    }
    let mut source = Source::new(fill);
    let expected = digests(read(&source.path(""), &names()));
    std::thread::sleep(SETTLED);
    // So slow that the server dies in the middle.
    let mounted = source.mount(&["--bwlimit", "8M"]);
    let workers = start_epoch(&mounted, 3);
    let fetched = || mounted.status()["fetched_bytes"].as_u64().expect("a number");
    for part in [6, 3] {
        let some = whole_bytes(&source) / part;
        mounted.wait_for_status(&format!("more than {some} bytes are fetched"), |status| {
            status["fetched_bytes"].as_u64().expect("a number") > some
        });
        source.kill();
        mounted.wait_for_status("the status says that the server is not up", |status| {
            status["server"]["up"] == false
        });
        source.start();
    }
    assert!(fetched() < whole_bytes(&source), "it was over before the server died");
    end_epoch(workers, &expected);
    assert!(mounted.status()["server"]["reconnects"].as_u64() >= Some(2), "{}", mounted.status());
    mounted.end();
}

/// A file that says throughout which one it is, and of which version. Several blocks long: who
/// reads it fetches them one after the other.
fn marked(number: usize, version: u64) -> Vec<u8> {
    let words = 786_432 + number * 12_500;
    ((number as u64) << 32 | version).to_le_bytes().repeat(words)
}

/// Reads a file twice through one open file; returns its version. An error is an answer: the
/// version went while it was read.
fn version_of(path: &Path, number: usize) -> Option<u64> {
    let file = fs::File::open(path).ok()?;
    let mut bytes = vec![0; marked(number, 0).len() + 8];
    let mut seen = Vec::new();
    for _ in 0..2 {
        // What was read before an error is of one version too.
        let (mut len, mut gone) = (0, false);
        loop {
            match file.read_at(&mut bytes[len..], len as u64) {
                Ok(0) => break,
                Ok(count) => len += count,
                Err(_) => {
                    gone = true;
                    break;
                }
            }
        }
        if len == 0 && gone {
            return None;
        }
        let first = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let version = first & u64::from(u32::MAX);
        let whole = marked(number, version);
        assert!(bytes[..len] == whole[..len], "{} is a mixture", path.display());
        if gone {
            return None;
        }
        assert_eq!(len, whole.len(), "{} is cut short", path.display());
        seen.push(version);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(seen[0], seen[1], "{} changed under its reader", path.display());
    Some(seen[0])
}

#[test]
fn a_loader_whose_dataset_is_replaced_gets_each_file_of_one_version() {
    if !can_mount("a_loader_whose_dataset_is_replaced_gets_each_file_of_one_version") {
        return;
    }
    const MANY: usize = 12;
    const LAST: u64 = 3;
    let write = |dir: &Path, version: u64| {
        for number in 0..MANY {
            // By a new file under its name, in most; in place, in some.
            let (path, next) = (dir.join(format!("{number}")), dir.join("next"));
            let place = if number % 4 == 0 { &path } else { &next };
            fs::write(place, marked(number, version)).expect("writes");
            if place == &next {
                fs::rename(&next, &path).expect("renames");
            }
        }
    };
    let source = Source::new(|dir| write(dir, 0));
    std::thread::sleep(SETTLED);
    // Less than all of it: what was open before fetches blocks after.
    let mounted = source.mount(&["--cache-size", "64M"]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = |worker: u64| {
            let mut dice = Dice::new("replaced", worker);
            let mut read = 0;
            while !done.load(Ordering::Relaxed) {
                let number = dice.below(MANY);
                let seen = version_of(&mounted.path(&format!("{number}")), number);
                read += usize::from(seen.is_some());
            }
            read
        };
        let readers: Vec<_> =
            (0..WORKERS as u64).map(|worker| scope.spawn(move || reader(worker))).collect();
        for version in 1..=LAST {
            std::thread::sleep(SETTLED + Duration::from_millis(500));
            write(source.dir.path(), version);
        }
        std::thread::sleep(SETTLED);
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().expect("no mixture") > 0, "it read nothing");
        }
    });
    for number in 0..MANY {
        let path = mounted.path(&format!("{number}"));
        let what = format!("the file {number} can be read, as its last version {LAST}");
        wait_for(&what, STAND_MAX, || when(version_of(&path, number), |it| *it == Some(LAST)));
    }
    mounted.end();
}
