//! Copies whose server goes away and comes back while they run: the running
//! client finishes by itself, tells each file once, and says what happened. A
//! server that never comes back ends it in time, and Ctrl-C ends it at once.

use crate::process::{Home, Running, Signal, seen, wait_for};
use crate::resuming::{BIG_BYTES, SLOWLY, make_settled, told};
use crate::resuming::{wait_for_big_alone, wait_for_growth};
use crate::stopping::{BEGIN_MAX, make_sparse, wait_for_bytes};
use crate::{assert_same, bytes, text};
use serde_json::Value;
use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbatim_tests::place::Place;

fn events(stdout: &str, event: &str) -> Vec<Value> {
    let lines = stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["event"] == event).collect()
}

#[test]
fn a_server_that_is_killed_and_restarted_does_not_end_the_copy() {
    for up in [false, true] {
        let (place, mut serve) = Place::new();
        let (from, landing) = match up {
            true => (place.path("big"), place.path("in")),
            false => (place.path("data/big"), place.path("out")),
        };
        make_settled(&from);
        let command = match up {
            true => ["--json".to_owned(), SLOWLY.into(), text(&from), serve.at("in")],
            false => ["--json".to_owned(), SLOWLY.into(), serve.at("data/big"), text(&landing)],
        };
        let mut copy = serve.start_cp(&command);
        let mut journal = 0;
        for _ in 0..2 {
            journal = wait_for_growth(&mut copy, &landing, journal);
            place.kill(serve);
            std::thread::sleep(Duration::from_millis(300));
            copy.assert_runs("the copy does not wait for the server");
            serve = place.serve();
        }
        let ended = copy.end().done();
        assert_eq!(told(&ended.stdout, "reconnects"), 2, "{ended:?}");
        assert_eq!(told(&ended.stdout, "resumed_bytes"), 0, "no earlier run copied anything");
        assert_eq!(told(&ended.stdout, "bytes"), BIG_BYTES as u64);
        assert!(!events(&ended.stdout, "retrying").is_empty(), "{ended:?}");
        assert_eq!(events(&ended.stdout, "reconnected").len(), 2, "{ended:?}");
        assert_eq!(events(&ended.stdout, "file").len(), 1, "{ended:?}");
        assert_same(&from, &landing.join("big"));
        wait_for_big_alone(&landing);
    }
}

#[test]
fn a_tree_of_small_files_is_told_once_each_whatever_happens_to_the_server() {
    const FILES: usize = 3000;
    for up in [false, true] {
        let (place, mut serve) = Place::new();
        let (from, landing) = match up {
            true => (place.path("tree"), place.path("in/tree")),
            false => (place.path("data/tree"), place.path("out/tree")),
        };
        for number in 0..FILES {
            let folder = from.join(format!("{}", number / 300));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(format!("{number}")), bytes(number as u64, number % 9000))
                .unwrap();
        }
        rustix::fs::mknodat(
            rustix::fs::CWD,
            from.join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let command = match up {
            true => ["--json".to_owned(), "-r".into(), text(&from), serve.at("in")],
            false => ["--json".to_owned(), "-r".into(), serve.at("data/tree"), place.text("out")],
        };
        let mut copy = serve.start_cp(&command);
        let arrived = || {
            let folders = fs::read_dir(&landing).into_iter().flatten().flatten();
            let whole = |folder: fs::DirEntry| {
                let entries = fs::read_dir(folder.path()).into_iter().flatten().flatten();
                entries.filter(|e| !e.file_name().to_string_lossy().starts_with('.')).count()
            };
            folders.map(whole).sum::<usize>()
        };
        let mut restarts = 0;
        for count in [1, FILES / 3, 2 * FILES / 3] {
            wait_for(&format!("{count} files have arrived"), BEGIN_MAX, || {
                let now = arrived();
                seen(now >= count, (now, copy.report()))
            });
            if copy.has_ended() {
                break;
            }
            place.kill(serve);
            serve = place.serve();
            restarts += 1;
        }
        assert!(restarts > 0, "the copy was over too soon");
        let ended = copy.end();
        assert_eq!(ended.code, Some(0), "only the fifo is not copied: {}", ended.stderr);
        let files = events(&ended.stdout, "file");
        let paths: HashSet<_> = files.iter().map(|f| f["path"].as_str().unwrap()).collect();
        assert_eq!((files.len(), paths.len()), (FILES, FILES), "each file is told once");
        assert!(events(&ended.stdout, "error").is_empty(), "{ended:?}");
        let skipped = events(&ended.stdout, "skipped");
        assert_eq!(skipped.len(), 1, "{skipped:?}");
        assert!(skipped[0]["path"].as_str().unwrap().ends_with("fifo"), "{skipped:?}");
        assert_eq!(told(&ended.stdout, "files"), FILES as u64);
        for number in 0..FILES {
            let name = format!("{}/{number}", number / 300);
            assert_same(&from.join(&name), &landing.join(&name));
        }
    }
}

/// Starts a download of a file that takes a while, and kills its server in the middle.
fn abandoned(flags: &[&str]) -> (Place, Running) {
    let (place, serve) = Place::in_memory();
    make_sparse(&place.path("data/big"), 8);
    let (from, to) = (serve.at("data/big"), place.text("out"));
    let mut copy = serve.start_cp(&[flags, &[from.as_str(), to.as_str()]].concat());
    wait_for_bytes(&mut copy, &place.path("out"));
    place.kill(serve);
    (place, copy)
}

#[test]
fn a_server_that_stays_away_ends_the_copy_in_time() {
    let (place, copy) = abandoned(&["--timeout", "3"]);
    let begin = Instant::now();
    let said = [
        "data/big",
        &place.address,
        "trying again in ",
        "tried again for 3 s without progress",
        "cannot connect",
        "hint: run the same command again",
        "1 not copied",
    ];
    copy.end().refused(3, &said);
    assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
    assert!(!place.path("out/big").exists(), "a partial file has the final name");
}

#[test]
fn a_quiet_copy_says_only_the_end_and_json_says_it_in_lines() {
    let (_place, copy) = abandoned(&["--timeout", "2", "-q"]);
    let ended = copy.end().refused(3, &["tried again for 2 s"]);
    assert!(!ended.stderr.contains("trying again"), "{ended:?}");
    let (place, copy) = abandoned(&["--timeout", "2", "--json"]);
    let ended = copy.end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.is_empty(), "{ended:?}");
    let retries = events(&ended.stdout, "retrying");
    assert_eq!(retries[0]["attempt"], 1, "{retries:?}");
    assert_eq!(retries[0]["peer"], place.address.as_str());
    assert!(retries[0]["pause_seconds"].as_f64().is_some_and(|s| s <= 0.25), "{retries:?}");
    assert_eq!(events(&ended.stdout, "error").len(), 1, "{ended:?}");
    assert_eq!(told(&ended.stdout, "exit"), 3);
}

#[test]
fn ctrl_c_in_a_pause_ends_the_copy_at_once() {
    let (place, copy) = abandoned(&["--timeout", "60"]);
    // By now it waits, or is refused again and again.
    std::thread::sleep(Duration::from_millis(1500));
    let begin = Instant::now();
    copy.signal(Signal::INT);
    let ended = copy.end().refused(130, &["data/big", "interrupted"]);
    assert!(begin.elapsed() < Duration::from_secs(2), "it took {:?}: {ended:?}", begin.elapsed());
    assert!(!place.path("out/big").exists(), "a partial file has the final name");
}

#[test]
fn a_server_that_is_another_one_now_is_not_gone_on_with() {
    let (place, copy) = abandoned(&["--timeout", "30"]);
    let other = Arc::new(Home::new());
    let _impostor = place.serve_as(&other, &["--insecure-no-auth"]);
    let begin = Instant::now();
    copy.end().refused(3, &["data/big", "cannot trust"]);
    assert!(begin.elapsed() < Duration::from_secs(15), "it took {:?}", begin.elapsed());
}
