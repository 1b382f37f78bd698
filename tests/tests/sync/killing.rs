//! A mirror that is ended at any moment, in any mode, loses nothing: what is under
//! a final name is whole, and the next run makes the trees equal and leaves
//! nothing else. Moments are random; a failing seed is printed, and `SEED=n`
//! replays it. `VERBATIM_TRIALS=n` tries n times as many.

use crate::process::{Running, Signal, seen, trials, wait_for};
use crate::{BOTH, Way, World, changes, is_held, text, tree, write};
use std::fs;
use std::time::{Duration, Instant};
use verbatim_proto::Digest;
use verbatim_tests::holding::Holding;

/// How often each mode is killed.
const KILLS: u64 = 30;

/// The last moment that is tried.
const WHOLE_MAX: Duration = Duration::from_millis(700);

/// What is killed: which way, and how it is run.
#[derive(Clone, Copy, Debug)]
struct Mode {
    way: Way,
    flags: &'static [&'static str],
}

impl Mode {
    fn is(self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }
}

/// Moments within a run that takes so long, other ones in every run.
fn moments(whole: Duration) -> (u64, Vec<Duration>) {
    let seed = match std::env::var("SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => u64::from(std::process::id()),
    };
    let count = trials(KILLS) as usize;
    let bytes = tree::content(seed, count * 2);
    let part = |pair: &[u8]| f64::from(u16::from_le_bytes([pair[0], pair[1]])) / 65_536.0;
    (seed, bytes.chunks(2).map(|pair| whole.mul_f64(part(pair))).collect())
}

/// A tree that takes a few hundred milliseconds, and one to replace.
fn fill(world: &World) {
    let source = world.source();
    tree::sample(&source, 3);
    tree::small_files(&source.join("many"), 600, 3_000, 4);
    write(source.join("large"), &tree::content(5, 24 << 20));
    fs::hard_link(source.join("large"), source.join("large too")).expect("links");
}

/// Changes the tree; says what the large file has now.
fn change(world: &World, round: u64) -> Digest {
    let source = world.source();
    let folder = source.join(format!("many/{:02}", round % 12));
    let _ = fs::remove_dir_all(&folder);
    write(source.join(format!("new/{round}/file")), &tree::content(round, 70_000));
    let large = tree::content(round, 24 << 20);
    write(source.join("large"), &large);
    write(source.join("zz version"), format!("{round}").as_bytes());
    Digest::of(&large)
}

/// Every file of the target that the source has too is, byte for byte, one version of it; of
/// the large one these are known, if any are.
fn is_whole(world: &World, way: crate::Way, versions: &[Digest]) {
    for name in ["large", "large too"] {
        if let Ok(large) = fs::read(world.target(way).join(name)) {
            let known = versions.is_empty() || versions.contains(&Digest::of(&large));
            assert!(known, "{way:?}: {name} is no version of it");
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

/// Runs a mode and kills it at every moment, then makes it equal.
fn kill_at_any_moment(mode: Mode) {
    let Mode { way, flags } = mode;
    let world = World::new();
    let before = Holding::of(world.serve.id());
    fill(&world);
    // How long it takes when nobody ends it: a machine may be slow, or busy.
    let begin = Instant::now();
    world.sync(way, &[]).done();
    let (seed, moments) = moments(begin.elapsed().min(WHOLE_MAX));
    fs::remove_dir_all(world.target(way)).expect("removes");
    // Who follows may see a file while it is written.
    let first = (!mode.is("--watch")).then(|| Digest::of(&tree::content(5, 24 << 20)));
    let mut versions: Vec<Digest> = first.into_iter().collect();
    let status = text(&world.path("status"));
    let delete = ["--delete", "--max-delete", "100%"];
    let mut all = [&delete[..], flags].concat();
    if mode.is("--watch") {
        all.extend(["--status-file", &status]);
    }
    for (round, moment) in moments.into_iter().enumerate() {
        let place = format!("SEED={seed}, {mode:?}, round {round}, after {moment:?}");
        // Not INT: a shell that runs this in the background has it ignored until it is handled.
        let signal = if round % 5 == 4 { Signal::TERM } else { Signal::KILL };
        let mut run = world.start(way, &all);
        std::thread::sleep(moment);
        if mode.is("--watch") && round % 3 == 0 {
            change(&world, round as u64);
            std::thread::sleep(moment / 2);
        }
        if !run.has_ended() {
            run.signal(signal);
        }
        let ended = run.end();
        let fine = matches!(ended.code, None | Some(0) | Some(130));
        assert!(fine || is_held(&ended), "{place}: {ended:?}");
        is_whole(&world, way, &versions);
        if mode.is("--watch") && round % 3 == 0 {
            // A pass may have seen some of a change; this version is of a tree that stands still.
            write(world.source().join("zz version"), format!("{round}, all of it").as_bytes());
        }
        let version = |root: std::path::PathBuf| fs::read(root.join("zz version")).ok();
        let is_new = version(world.source()) == version(world.target(way));
        if mode.is("--atomic") && is_new && world.target(way).exists() {
            let different = tree::differences(&world.source(), &world.target(way));
            assert_eq!(different, [""; 0], "{place}: a tree that is not whole is in place");
        }
        if !mode.is("--watch") && round % 3 == 2 {
            versions.push(change(&world, round as u64));
        }
    }
    let last: Vec<&str> = all.iter().copied().filter(|flag| *flag == "--atomic").collect();
    let last = [&delete[..], &last].concat();
    world.sync_again(way, &last).done();
    tree::assert_same_content(&world.source(), &world.target(way));
    if mode.is("--watch") {
        follow_once(&world, way, &status);
    }
    let left = tree::walk(&world.path(".")).into_iter();
    let left: Vec<_> = left.filter(|path| path.to_string_lossy().contains(".verbatim-")).collect();
    assert!(left.is_empty(), "SEED={seed}, {mode:?}: {left:?}");
    let again = changes(&world.sync(way, &["--delete", "--json"]).done());
    assert_eq!(again, [""; 0], "SEED={seed}, {mode:?}");
    before.comes_back(&world.serve);
}

/// Follows until all is current: what was half written of a status goes with the next one.
fn follow_once(world: &World, way: Way, status: &str) {
    // What the killed ones said last is not to be waited for.
    let _ = fs::remove_file(status);
    // In place: a tree that is followed as a whole keeps the one before.
    let run = world.start(way, &["--delete", "--watch", "--status-file", status]);
    let flags = ["--wait", status, "--wait-timeout", "30"];
    Running::start(world.home.command("rdma-sync", &flags)).end().done();
    run.signal(Signal::INT);
    assert_eq!(run.end().code, Some(130), "{way:?}");
}

#[test]
fn killed_on_the_way_down() {
    kill_at_any_moment(Mode { way: Way::Down, flags: &[] });
}

#[test]
fn killed_on_the_way_up() {
    kill_at_any_moment(Mode { way: Way::Up, flags: &[] });
}

#[test]
fn killed_while_a_tree_is_exchanged_here() {
    kill_at_any_moment(Mode { way: Way::Down, flags: &["--atomic"] });
}

#[test]
fn killed_while_a_tree_is_exchanged_there() {
    kill_at_any_moment(Mode { way: Way::Up, flags: &["--atomic"] });
}

#[test]
fn killed_while_it_follows_down() {
    kill_at_any_moment(Mode { way: Way::Down, flags: &["--watch"] });
}

#[test]
fn killed_while_it_follows_up_with_whole_trees() {
    kill_at_any_moment(Mode { way: Way::Up, flags: &["--watch", "--atomic"] });
}

#[test]
fn a_server_that_is_killed_and_comes_back_is_gone_on_with() {
    for way in BOTH {
        let mut world = World::new();
        fill(&world);
        let mut run = world.start(way, &["--delete", "--bwlimit", "30M", "--json"]);
        let what = "rdma-sync has made more than 100 entries in the target";
        wait_for(what, Duration::from_secs(20), || {
            run.assert_runs(&format!("{way:?}: it ended early"));
            let made = tree::walk(&world.target(way)).len();
            seen(made > 100, (made, run.report()))
        });
        world.serve.signal(Signal::KILL);
        world.serve_again();
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
    wait_for("rdma-sync has deleted the last file", Duration::from_secs(60), || {
        run.assert_runs("rdma-sync ended early");
        if last.exists() {
            return Err(run.report());
        }
        // At once: every moment is one in which more is deleted.
        run.signal(Signal::INT);
        Ok(())
    });
    assert_eq!(run.end().code, Some(130));
    assert!(gone.join("00000").exists(), "all of it was deleted before anybody was heard");
}
