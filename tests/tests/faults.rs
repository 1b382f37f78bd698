//! Copies over networks that misbehave: whatever happens, a file under its final
//! name is its source's, and every copy ends. Simulated links have seeded
//! faults, and every seed is printed; the proxy does to real sockets what
//! networks do.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use verbatim_client::Summary;
use verbatim_client::session::command_error::CopyError;
use verbatim_fabric::sim::{Faults, SimClock, SimCounts, SimNet};
use verbatim_proto::Code;
use verbatim_proto::units::CHUNK_BYTES_MIN;
use verbatim_tests::pair::{Backend, Copied, Job, Pair, read};
use verbatim_tests::process::{trials, wait_for, when};
use verbatim_tests::proxy::{Direction, Harm, Kind, Proxy, Rule};
use verbatim_tests::tree;

/// Seeds each kind of fault is tried with.
const SEEDS: u64 = 20;

/// Seeds tried at the same time: many of them wait.
const SEEDS_AT_ONCE: usize = 5;

/// How long a peer may be silent in tests of silence. Short, because they wait for it; so it is
/// also over where a busy machine takes a second for what nobody delays.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same where all must arrive though something falls silent: what is only slow is not.
const PATIENCE_WHOLE: Duration = Duration::from_secs(3);

/// The same where nothing falls silent: whatever happens is seen at once, and nothing waits.
const PATIENCE_LONG: Duration = Duration::from_secs(20);

/// What a seed, or all seeds, met.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    sim: SimCounts,
    mismatches: u64,
    links_lost: u64,
}

impl Met {
    fn add(self, other: Self) -> Self {
        let (a, b) = (self.sim, other.sim);
        let sim = SimCounts {
            ops: a.ops + b.ops,
            bytes: a.bytes + b.bytes,
            corrupted: a.corrupted + b.corrupted,
            lost: a.lost + b.lost,
            duplicated: a.duplicated + b.duplicated,
            reordered: a.reordered + b.reordered,
            deaths: a.deaths + b.deaths,
        };
        let mismatches = self.mismatches + other.mismatches;
        Self { sim, mismatches, links_lost: self.links_lost + other.links_lost }
    }
}

/// Copies an 8 MiB file and 200 small ones down and up again, under these faults.
fn there_and_back(seed: u64, faults: Faults) -> Met {
    // Only what is lost must be waited for.
    let patience = if faults.lose_ppm > 0 { 2 * PATIENCE } else { PATIENCE_LONG };
    let net = SimNet::new(seed, faults, SimClock::Real);
    let pair = Pair::in_memory(Backend::Sim(net.clone()));
    let source = pair.served("ro/all");
    tree::write(&source.join("big"), &tree::content(seed, 8 << 20));
    tree::small_files(&source, 200, 3000, seed);
    let small_chunks = |mut job: Job| {
        job.session.connect.chunk_bytes = CHUNK_BYTES_MIN;
        job.timeout(patience).run().whole()
    };
    let down = small_chunks(pair.down(&["ro/all"], "all"));
    tree::assert_same(&source, &pair.local("all"));
    let up = small_chunks(pair.up(&["all"], "rw/all"));
    tree::assert_same(&source, &pair.served("rw/all"));
    Met {
        sim: net.counts(),
        mismatches: down.summary.mismatches + up.summary.mismatches,
        links_lost: down.summary.links_lost + up.summary.links_lost,
    }
}

/// Runs every seed, or the one in `SEED`; says what all of them met together.
fn all_seeds(faults: impl Fn(u64) -> Faults + Sync) -> Met {
    let only = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    let seeds: Vec<u64> = only.map_or_else(|| (1..=trials(SEEDS)).collect(), |seed| vec![seed]);
    let mut met = Met::default();
    for group in seeds.chunks(SEEDS_AT_ONCE) {
        let run = |&seed: &u64| {
            let faults = faults(seed);
            // The thread's name is in front of everything it says.
            let thread = std::thread::Builder::new().name(format!("SEED={seed}"));
            thread.spawn(move || there_and_back(seed, faults)).expect("starts a thread")
        };
        let threads: Vec<_> = group.iter().map(run).collect();
        for (seed, thread) in group.iter().zip(threads) {
            met = met.add(thread.join().unwrap_or_else(|_| panic!("SEED={seed} failed")));
        }
    }
    met
}

#[test]
fn flipped_bits_are_found_and_fetched_again() {
    // Four flips of one chunk in a row end its copy, so more trials have the rates of the first.
    let ppm = |seed: u64| 10_000 + 2_000 * (seed % SEEDS) as u32;
    let met = all_seeds(|seed| Faults { corrupt_ppm: ppm(seed), ..Faults::default() });
    println!("{met:?}");
    assert!(met.sim.corrupted > 0, "{met:?}");
    assert_eq!(met.mismatches, met.sim.corrupted, "every flip is seen, and nothing else");
}

#[test]
fn lost_operations_end_their_link_and_are_done_on_another() {
    let met = all_seeds(|_| Faults { lose_ppm: 8_000, ..Faults::default() });
    println!("{met:?}");
    assert!(met.sim.lost > 0 && met.links_lost > 0, "{met:?}");
}

#[test]
fn links_that_die_at_random_are_made_anew() {
    let met = all_seeds(|_| Faults { death_ppm: 20_000, ..Faults::default() });
    println!("{met:?}");
    assert!(met.sim.deaths > 0 && met.links_lost >= met.sim.deaths, "{met:?}");
}

#[test]
fn links_that_wear_out_in_the_middle_of_a_chunk_are_made_anew() {
    let met = all_seeds(|seed| Faults {
        die_after_bytes: Some((1 << 20) + 77_777 * seed),
        ..Faults::default()
    });
    println!("{met:?}");
    assert!(met.sim.deaths > 0 && met.links_lost >= met.sim.deaths, "{met:?}");
}

#[test]
fn notifications_that_come_twice_and_late_do_no_harm() {
    let met = all_seeds(|_| Faults {
        duplicate_ppm: 500_000,
        reorder_ppm: 300_000,
        reorder_ns: 3_000_000,
        jitter_ns: 1_000_000,
        ..Faults::default()
    });
    println!("{met:?}");
    assert!(met.sim.duplicated > 0 && met.sim.reordered > 0, "{met:?}");
    assert_eq!((met.mismatches, met.links_lost), (0, 0), "{met:?}");
}

#[test]
fn all_faults_together_do_no_harm() {
    let met = all_seeds(|_| Faults {
        corrupt_ppm: 10_000,
        lose_ppm: 2_000,
        duplicate_ppm: 100_000,
        reorder_ppm: 100_000,
        reorder_ns: 1_000_000,
        death_ppm: 5_000,
        ..Faults::default()
    });
    println!("{met:?}");
    assert!(met.sim.corrupted > 0 && met.sim.deaths > 0 && met.sim.duplicated > 0, "{met:?}");
}

#[test]
fn a_network_that_always_corrupts_ends_in_a_mismatch_and_no_file() {
    let faults = Faults { corrupt_ppm: 1_000_000, ..Faults::default() };
    let pair = Pair::in_memory(Backend::Sim(SimNet::new(1, faults, SimClock::Real)));
    let old = tree::content(9, 1000);
    for root in [pair.served("ro"), pair.local("up")] {
        tree::write(&root.join("big"), &tree::content(1, 3 << 20));
        tree::write(&root.join("small"), &tree::content(2, 3000));
    }
    for root in [pair.local("down"), pair.served("rw")] {
        tree::write(&root.join("small"), &old);
    }
    for copied in [
        pair.down(&["ro/big", "ro/small"], "down").run(),
        pair.up(&["up/big", "up/small"], "rw").run(),
    ] {
        assert_eq!((copied.summary.files, copied.summary.failed), (0, 2), "{copied:?}");
        assert!(copied.summary.mismatch && copied.summary.broken.is_none(), "{copied:?}");
        let codes = copied.failed.iter().map(|failure| failure.fault.code);
        assert!(codes.into_iter().all(|code| code == Code::Mismatch), "{copied:?}");
    }
    for root in [pair.local("down"), pair.served("rw")] {
        assert!(!root.join("big").exists(), "no file of this name was verified");
        assert_eq!(read(&root.join("small")), old, "the old one is still there");
    }
}

/// A pair over sockets, with a large file on each side and an old one in its place on the other.
struct Wired {
    pair: Pair,
    old: Vec<u8>,
    new: Vec<u8>,
}

const BIG_BYTES: usize = 24 << 20;

/// Both ways a copy can go.
const WAYS: [Direction; 2] = [Direction::Down, Direction::Up];

impl Wired {
    fn start() -> Self {
        let (pair, old, new) =
            (Pair::in_memory(Backend::Tcp), tree::content(1, 100_000), tree::content(2, BIG_BYTES));
        for path in [pair.served("ro/big"), pair.local("big")] {
            tree::write(&path, &new);
        }
        for path in [pair.local("target"), pair.served("rw/target")] {
            tree::write(&path, &old);
        }
        Self { pair, old, new }
    }

    fn job(&self, way: Direction) -> Job {
        let mut job = match way {
            Direction::Down => self.pair.down(&["ro/big"], "target"),
            Direction::Up => self.pair.up(&["big"], "rw/target"),
        };
        // Small chunks, so that harm that comes again and again does not hit one four times.
        job.session.connect.chunk_bytes = CHUNK_BYTES_MIN;
        job.timeout(PATIENCE)
    }

    fn target(&self, way: Direction) -> PathBuf {
        match way {
            Direction::Down => self.pair.local("target"),
            Direction::Up => self.pair.served("rw/target"),
        }
    }

    /// Copies through a proxy with one rule; all of it must arrive.
    fn arrives(&self, way: Direction, rule: Rule) -> (Copied, Proxy) {
        let proxy = Proxy::start(self.pair.port(), &[rule]);
        // An end that is cut off hears of it, and one that gets wrong data sees it.
        let patience = match rule.harm {
            Harm::CutAfter(_) => PATIENCE_LONG,
            Harm::FlipEvery(_) if rule.direction == way => PATIENCE_LONG,
            Harm::FlipEvery(_) | Harm::StallAfter(_) | Harm::FreezeAfter(_) => PATIENCE_WHOLE,
        };
        let copied = self.job(way).timeout(patience).through(&proxy).run().whole();
        assert!(read(&self.target(way)) == self.new, "what arrived is not what was sent");
        fs::write(self.target(way), &self.old).expect("writes");
        (copied, proxy)
    }

    /// Copies both ways with nothing in the way: what was left of broken copies is gone on with,
    /// and nothing of it stays (the pair looks for that).
    fn goes_on(&self) {
        for way in WAYS {
            self.job(way).timeout(PATIENCE_LONG).run().whole();
            assert!(read(&self.target(way)) == self.new, "what arrived is not what was sent");
        }
    }

    /// Copies through a proxy that harms the control connection. Says whether the copy had begun
    /// and broke; if it did, the old target must be there.
    fn breaks(&self, way: Direction, harm: Harm) -> bool {
        let proxy = Proxy::start(self.pair.port(), &[Rule::all(Kind::Control, way, harm)]);
        let mut job = self.job(way).through(&proxy);
        job.session.connect.timeout = PATIENCE;
        let begin = Instant::now();
        let (result, still) = last_moved(&proxy, job);
        let (sessions, took) = (proxy.counts().control, begin.elapsed());
        let most = 1 + took.div_duration_f64(BETWEEN_SESSIONS) as u64;
        let most = most.min(SESSIONS_A_CHUNK * (1 + BIG_BYTES as u64 / u64::from(CHUNK_BYTES_MIN)));
        assert!(sessions <= most, "{harm:?}: {sessions} sessions in {took:?}: {result:?}");
        assert!(still < Duration::from_secs(8), "{harm:?}: {still:?} of nothing: {result:?}");
        let begun = proxy.counts().data > 0;
        // The server hears of the end as the proxy goes.
        drop(proxy);
        let target = read(&self.target(way));
        match result {
            // It was over before anything happened.
            Ok(copied) if copied.summary.broken.is_none() => {
                copied.whole();
                assert!(target == self.new, "{harm:?}");
                fs::write(self.target(way), &self.old).expect("writes");
                return false;
            }
            Ok(copied) => assert_eq!(copied.summary.failed, 1, "{harm:?}: {copied:?}"),
            Err(error) => assert!(!begun, "{harm:?}: {error}"),
        }
        // What the server has committed is there even if it could not say so.
        assert!(target == self.old || target == self.new, "{harm:?}");
        fs::write(self.target(way), &self.old).expect("writes");
        begun && target == self.old
    }
}

/// The least time between two sessions of a copy that is broken again and again.
const BETWEEN_SESSIONS: Duration = Duration::from_millis(125);

/// The most sessions for one more chunk: four may move something and leave nothing behind, four
/// more are tried within `PATIENCE`.
const SESSIONS_A_CHUNK: u64 = 9;

/// Runs a copy through a proxy; says how long nothing had moved when it ended. How long all of
/// it takes is for the machine to say: every session that moves something may be followed.
fn last_moved(proxy: &Proxy, job: Job) -> (Result<Copied, CopyError>, Duration) {
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| job.try_run());
        let (mut moved, mut since) = (0, Instant::now());
        // It ends: whoever runs it sees to that.
        while !copy.is_finished() {
            let now = proxy.counts().data_bytes;
            if now > moved {
                (moved, since) = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let still = since.elapsed();
        (copy.join().expect("the copy ends"), still)
    })
}

#[test]
fn bits_flipped_on_data_connections_are_found_and_the_file_arrives() {
    let wired = Wired::start();
    for way in WAYS {
        let rule = Rule::all(Kind::Data, way, Harm::FlipEvery(5_000_011));
        let (copied, proxy) = wired.arrives(way, rule);
        assert!(proxy.counts().flips > 1, "{:?}", proxy.counts());
        let seen = copied.summary.mismatches + copied.summary.links_lost;
        assert!(seen > 0 && copied.summary.mismatches > 0, "{:?}", copied.summary);
    }
}

#[test]
fn bits_flipped_in_requests_and_acknowledgements_end_links_and_the_file_arrives() {
    let wired = Wired::start();
    for (way, other) in [(Direction::Down, Direction::Up), (Direction::Up, Direction::Down)] {
        // A frame is 40 bytes: this hits its kind, length, tag, ticket, key and address.
        let mut lost = 0;
        for every in [281, 286, 291, 298, 306, 313] {
            let rule = Rule::all(Kind::Data, other, Harm::FlipEvery(every));
            let (copied, proxy) = wired.arrives(way, rule);
            assert!(proxy.counts().flips > 0, "{:?}", proxy.counts());
            lost += copied.summary.links_lost;
        }
        assert!(lost > 2, "{way:?}: {lost} links were lost");
    }
}

#[test]
fn data_connections_that_are_cut_are_made_anew() {
    let wired = Wired::start();
    for way in WAYS {
        let rule = Rule::all(Kind::Data, way, Harm::CutAfter(3_333_333));
        let (copied, proxy) = wired.arrives(way, rule);
        assert!(proxy.counts().cuts >= 5, "{:?}", proxy.counts());
        assert!(copied.summary.links_lost >= 5, "{:?}", copied.summary);
    }
}

#[test]
fn a_data_connection_that_falls_silent_is_given_up_for_another() {
    let wired = Wired::start();
    for way in WAYS {
        for harm in [Harm::StallAfter(1_500_000), Harm::FreezeAfter(1_500_000)] {
            let (copied, proxy) = wired.arrives(way, Rule::first(Kind::Data, way, harm));
            assert_eq!(proxy.counts().stalls, 1);
            assert!(copied.summary.links_lost >= 1, "{:?}", copied.summary);
            assert!(copied.summary.elapsed < 5 * PATIENCE_WHOLE, "{:?}", copied.summary);
        }
    }
}

#[test]
fn the_only_data_connection_that_falls_silent_is_made_anew() {
    let wired = Wired::start();
    for way in WAYS {
        // Nothing else is heard meanwhile, so the silence of the link is that of the server.
        let harm = Harm::FreezeAfter(100);
        let proxy = Proxy::start(wired.pair.port(), &[Rule::first(Kind::Data, way, harm)]);
        // Long enough that the link made anew is not slow enough to be given up too.
        let job = wired.job(way).streams(1).timeout(5 * PATIENCE);
        let copied = job.through(&proxy).run().whole();
        assert!(read(&wired.target(way)) == wired.new);
        assert_eq!((copied.summary.links_lost, proxy.counts().data), (1, 2), "{copied:?}");
    }
}

#[test]
fn a_server_whose_data_connections_are_refused_is_given_up() {
    let wired = Wired::start();
    for way in WAYS {
        let proxy = Proxy::start_refusing(wired.pair.port(), &[], Some(0));
        let copied = wired.job(way).streams(8).timeout(5 * PATIENCE).through(&proxy).run();
        let broken = copied.summary.broken.as_ref().expect("it cannot go on");
        assert!(matches!(broken.code, Code::LinkLost | Code::TimedOut), "{broken:?}");
        assert!(proxy.counts().refused >= 8, "{:?}", proxy.counts());
        assert!(read(&wired.target(way)) == wired.old);
    }
    wired.goes_on();
}

#[test]
fn a_control_connection_that_is_cut_breaks_the_copy_and_leaves_the_target() {
    let wired = Wired::start();
    for way in WAYS {
        let cuts = [100, 600, 700, 900, 1500, 2200, 3000, 4000, 5000, 7000];
        let broke = cuts.iter().filter(|&&at| wired.breaks(way, Harm::CutAfter(at))).count();
        assert!(broke > 0, "{way:?}: no cut hit a copy that had begun");
    }
    wired.goes_on();
}

#[test]
fn a_copy_whose_control_connection_is_cut_reconnects_and_moves_little_twice() {
    let wired = Wired::start();
    // A source that is too young is not gone on with.
    std::thread::sleep(Duration::from_millis(2100));
    for way in WAYS {
        let mut reconnects = 0;
        for at in [2200, 3000, 4000, 5000, 7000] {
            let harm = Harm::CutAfter(at);
            let rule = Rule { kind: Kind::Control, direction: way, harm, connections: 3 };
            let (copied, proxy) = wired.arrives(way, rule);
            let Summary { reconnects: again, resumed_bytes, .. } = copied.summary;
            assert_eq!(again, proxy.counts().control - 1, "{at}: {copied:?}");
            assert_eq!(resumed_bytes, 0, "no earlier run: {copied:?}");
            // Each cut costs what was in flight and not judged; the rest is not moved again.
            let flights = (again + 1) * 2 * 4 * u64::from(CHUNK_BYTES_MIN);
            let moved = proxy.counts().data_bytes;
            assert!(moved < BIG_BYTES as u64 + flights + (1 << 20), "{at}: {moved} {copied:?}");
            reconnects += again;
        }
        assert!(reconnects > 0, "{way:?}: no cut hit a copy that had begun");
    }
}

/// A pair with a folder in which one file is looked for among many: what the server tells of it
/// is far more than a greeting, and less than all of it is told before `LOOKING_BYTES`.
fn looking() -> Pair {
    let pair = Pair::in_memory(Backend::Tcp);
    let many = pair.served("ro/many");
    fs::create_dir(&many).expect("makes a folder");
    (0..8_000).for_each(|at| fs::write(many.join(format!("{at:08}")), b"").expect("writes"));
    tree::write(&many.join("one.bin"), &tree::content(3, 100_000));
    pair
}

const LOOKING_BYTES: u64 = 50_000;

#[test]
fn a_copy_that_is_cut_off_while_it_looks_begins_again() {
    let pair = looking();
    let harm = Harm::CutAfter(LOOKING_BYTES);
    let rule = Rule { kind: Kind::Control, direction: Direction::Down, harm, connections: 2 };
    let proxy = Proxy::start(pair.port(), &[rule]);
    let job = pair.down(&["ro/many/*.bin"], "one").timeout(PATIENCE_LONG).through(&proxy);
    let copied = job.run().whole();
    assert_eq!((copied.summary.files, copied.summary.reconnects), (1, 2), "{copied:?}");
    assert_eq!((proxy.counts().cuts, proxy.counts().control), (2, 3), "{:?}", proxy.counts());
    assert_eq!(read(&pair.local("one")), tree::content(3, 100_000));
    // Where it is cut off every time it ends as any copy does, and in time.
    let rule = Rule::all(Kind::Control, Direction::Down, harm);
    let proxy = Proxy::start(pair.port(), &[rule]);
    // A server that is slow is not to be taken for one that is silent.
    let copied = pair.down(&["ro/many/*.bin"], "two").timeout(5 * PATIENCE).through(&proxy).run();
    assert_eq!(copied.only_failure().fault.code, Code::LinkLost, "{copied:?}");
    assert!(copied.summary.broken.is_some() && !pair.local("two").exists(), "{copied:?}");
    assert!(copied.only_failure().path.ends_with("/ro/many/*.bin"), "{copied:?}");
}

#[test]
fn a_copy_that_is_interrupted_while_it_looks_ends_as_one_that_had_begun() {
    let pair = looking();
    let rule = Rule::all(Kind::Control, Direction::Down, Harm::StallAfter(LOOKING_BYTES));
    let proxy = Proxy::start(pair.port(), &[rule]);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let job = pair.down(&["ro/many/*.bin"], "one").timeout(PATIENCE_LONG).through(&proxy);
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| job.stop_when(stopped).run());
        let what = "the proxy has stalled the answer to what the copy looks at";
        wait_for(what, PATIENCE_LONG, || when(proxy.counts(), |counts| counts.stalls > 0));
        stop.send(()).expect("the copy waits");
        let copied = copy.join().expect("the copy ends");
        assert_eq!(copied.only_failure().fault.code, Code::Interrupted, "{copied:?}");
        let broken = copied.summary.broken.expect("it was not begun");
        assert_eq!(broken.code, Code::Interrupted);
    });
}

#[test]
fn a_control_connection_that_is_always_cut_is_given_up_in_time() {
    // Small files start over each time, so bytes move for ever and nothing is achieved.
    let pair = Pair::in_memory(Backend::Tcp);
    for root in [pair.served("ro/tree"), pair.local("tree")] {
        tree::write(&root.join("a"), &tree::content(1, 15 << 20));
        tree::small_files(&root, 20, 3000, 1);
    }
    for way in WAYS {
        let rule = Rule::all(Kind::Control, way, Harm::CutAfter(2600));
        let proxy = Proxy::start(pair.port(), &[rule]);
        let mut job = match way {
            Direction::Down => pair.down(&["ro/tree"], "down"),
            Direction::Up => pair.up(&["tree"], "rw/up"),
        };
        job.session.connect.chunk_bytes = CHUNK_BYTES_MIN;
        // A server that is slow is not to be taken for one that is silent.
        let copied = job.timeout(5 * PATIENCE).through(&proxy).run();
        let broken = copied.summary.broken.as_ref().expect("it cannot end well");
        assert_eq!(broken.code, Code::LinkLost, "{copied:?}");
        assert!(copied.summary.elapsed < Duration::from_secs(20), "{copied:?}");
        let told: HashSet<_> = copied.done.iter().map(|f| &f.path).collect();
        assert_eq!(told.len(), copied.done.len(), "no file is told twice");
        let failed: HashSet<_> = copied.failed.iter().map(|f| &f.path).collect();
        assert_eq!(failed.len(), copied.failed.len(), "no failure is told twice");
        assert!(failed.iter().any(|path| path.ends_with("/a")), "{copied:?}");
        assert_eq!(copied.summary.failed, copied.failed.len() as u64);
    }
}

#[test]
fn a_control_connection_that_falls_silent_is_given_up_in_time() {
    for way in WAYS {
        let wired = Wired::start();
        let stalls = [700, 900, 1500, 2200, 3500];
        let broke = stalls.iter().filter(|&&at| wired.breaks(way, Harm::StallAfter(at))).count();
        assert!(broke > 0, "{way:?}: no stall hit a copy that had begun");
        wired.goes_on();
    }
}

#[test]
fn a_server_that_falls_silent_before_a_file_is_open_is_given_up_in_time() {
    // Folders alone: only stat, scan and make are asked for.
    let pair = Pair::in_memory(Backend::Tcp);
    for root in [pair.served("ro/tree"), pair.local("tree")] {
        (0..50).for_each(|n| fs::create_dir_all(root.join(format!("{n}"))).expect("folder"));
    }
    std::thread::scope(|scope| {
        for stall in (600..=1000).step_by(50) {
            let pair = &pair;
            scope.spawn(move || {
                let rule = Rule::all(Kind::Control, Direction::Down, Harm::StallAfter(stall));
                let proxy = Proxy::start(pair.port(), &[rule]);
                for mut job in [
                    pair.down(&["ro/tree"], &format!("down-{stall}")),
                    pair.up(&["tree"], &format!("rw/up-{stall}")),
                ] {
                    job.session.connect.timeout = PATIENCE;
                    let begin = Instant::now();
                    let result = job.timeout(PATIENCE).through(&proxy).try_run();
                    let took = begin.elapsed();
                    assert!(took < Duration::from_secs(8), "{stall} took {took:?}: {result:?}");
                }
            });
        }
    });
}

#[test]
fn a_bit_flipped_on_the_control_connection_breaks_the_copy() {
    let wired = Wired::start();
    for way in WAYS {
        let flips = [50, 700, 1700, 2500, 3500];
        let broke = flips.iter().filter(|&&at| wired.breaks(way, Harm::FlipEvery(at))).count();
        assert!(broke > 0, "{way:?}: no flip hit a copy that had begun");
    }
    wired.goes_on();
}
