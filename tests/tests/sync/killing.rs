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

fn change(world: &World, round: u64) {
    let source = world.source();
    let folder = source.join(format!("many/{:02}", round % 12));
    let _ = fs::remove_dir_all(&folder);
    write(source.join(format!("new/{round}/file")), &tree::content(round, 70_000));
    write(source.join("large"), &tree::content(round, 24 << 20));
}

/// Every file of the target that the source has too is, byte for byte, one version of it.
fn is_whole(world: &World, way: crate::Way) {
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
            is_whole(&world, way);
            if round % 3 == 2 {
                change(&world, round as u64);
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
        let mut run = world.start(way, &["--delete", "--bwlimit", "30M"]);
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
        assert!(ended.stderr.contains("the server was lost and reached again"), "{ended:?}");
        tree::assert_same_content(&world.source(), &world.target(way));
    }
}
