//! A mirror that is ended at any moment, in any way, loses nothing: what is under
//! a final name is whole, and the next run makes the trees equal. Moments are
//! random; a failing seed is printed.

use crate::process::{Serve, Signal};
use crate::{BOTH, World, changes, tree, write};
use std::fs;
use std::time::Duration;

/// Moments, other ones in every run.
fn moments(count: usize) -> (u64, Vec<Duration>) {
    let seed = match std::env::var("SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => u64::from(std::process::id()),
    };
    let bytes = tree::content(seed, count * 2);
    let millis = |pair: &[u8]| u64::from(u16::from_le_bytes([pair[0], pair[1]])) % 300;
    (seed, bytes.chunks(2).map(|pair| Duration::from_millis(millis(pair))).collect())
}

/// A tree that takes a few hundred milliseconds, and one to replace.
fn fill(world: &World) {
    let source = world.source();
    tree::sample(&source, 3);
    tree::small_files(&source.join("many"), 1200, 3_000, 4);
    write(source.join("large"), &tree::content(5, 24 << 20));
    fs::hard_link(source.join("large"), source.join("large too")).expect("links");
}

/// Changes the tree; says what the large file has now.
fn change(world: &World, round: u64) -> Vec<u8> {
    let source = world.source();
    let folder = source.join(format!("many/{:02}", round % 12));
    let _ = fs::remove_dir_all(&folder);
    write(source.join(format!("new/{round}/file")), &tree::content(round, 70_000));
    let large = tree::content(round, 24 << 20);
    write(source.join("large"), &large);
    large
}

/// Every file of the target that the source has too is, byte for byte, one version of it; of
/// the large one these are known.
fn is_whole(world: &World, way: crate::Way, versions: &[Vec<u8>]) {
    for name in ["large", "large too"] {
        if let Ok(large) = fs::read(world.target(way).join(name)) {
            assert!(versions.contains(&large), "{way:?}: {name} is no version of it");
        }
    }
    for path in tree::walk(&world.target(way)) {
        let name = path.strip_prefix(world.target(way)).expect("below");
        let shown = name.display().to_string();
        if path.is_file() && shown.starts_with("many") && !shown.contains(".verbatim") {
            let Ok(source) = fs::read(world.source().join(name)) else { continue };
            assert_eq!(fs::read(&path).expect("reads"), source, "{shown} is not whole");
        }
    }
}

#[test]
fn killed_at_any_moment_the_next_run_makes_it_equal() {
    for way in BOTH {
        let world = World::new();
        fill(&world);
        let mut versions = vec![tree::content(5, 24 << 20)];
        let (seed, moments) = moments(8);
        for (round, moment) in moments.into_iter().enumerate() {
            let signal = if round % 2 == 0 { Signal::KILL } else { Signal::INT };
            let mut run = world.start(way, &["--delete", "--max-delete", "100%"]);
            std::thread::sleep(moment);
            if !run.has_ended() {
                run.signal(signal);
            }
            let ended = run.end();
            let fine = matches!(ended.code, None | Some(0) | Some(130));
            assert!(fine, "seed {seed}, {way:?}, round {round}: {ended:?}");
            is_whole(&world, way, &versions);
            if round % 3 == 2 {
                versions.push(change(&world, round as u64));
            }
        }
        world.sync(way, &["--delete", "--max-delete", "100%"]).done();
        tree::assert_same_content(&world.source(), &world.target(way));
        assert_eq!(
            tree::parts(&world.target(way)),
            [""; 0].map(std::path::PathBuf::from),
            "seed {seed}"
        );
        let again = changes(&world.sync(way, &["--delete", "--json"]).done());
        assert_eq!(again, [""; 0], "seed {seed}, {way:?}");
    }
}

#[test]
fn a_server_that_is_killed_and_comes_back_is_gone_on_with() {
    for way in BOTH {
        let mut world = World::new();
        fill(&world);
        let address = world.serve.address.to_string();
        let mut run = world.start(way, &["--delete", "--bwlimit", "30M", "--json"]);
        crate::process::wait_for("it moves data", Duration::from_secs(20), || {
            assert!(!run.has_ended(), "{way:?}: it ended early");
            (tree::walk(&world.target(way)).len() > 100).then_some(())
        });
        world.serve.signal(Signal::KILL);
        let exports = crate::exports(world.dir.path());
        let spare = Serve::start(&exports);
        std::mem::replace(&mut world.serve, spare).end();
        world.serve = Serve::of(&world.home, &address, &exports);
        let ended = run.end().done();
        assert!(ended.stdout.contains("\"event\":\"reconnected\""), "{ended:?}");
        let told = changes(&ended);
        let once: std::collections::BTreeSet<_> = told.iter().collect();
        assert_eq!(told.len(), once.len(), "{way:?}: a change is told once");
        assert_eq!(crate::summary(&ended)["changes"], told.len(), "{way:?}");
        tree::assert_same_content(&world.source(), &world.target(way));
    }
}

#[test]
fn deletes_stop_when_somebody_asks_for_it() {
    const MANY: usize = 40_000;
    let world = World::new();
    write(world.source().join("a"), b"");
    let gone = world.target(crate::Way::Down).join("gone");
    fs::create_dir_all(&gone).expect("makes");
    for number in 0..MANY {
        fs::File::create(gone.join(format!("{number:05}"))).expect("makes");
    }
    let mut run = world.start(crate::Way::Down, &["--delete", "--max-delete", "100%"]);
    // The last goes first.
    let last = gone.join(format!("{:05}", MANY - 1));
    crate::process::wait_for("it deletes", Duration::from_secs(60), || {
        assert!(!run.has_ended(), "it ended early");
        (!last.exists()).then_some(())
    });
    run.signal(Signal::INT);
    assert_eq!(run.end().code, Some(130));
    assert!(gone.join("00000").exists(), "all of it was deleted before anybody was heard");
}
