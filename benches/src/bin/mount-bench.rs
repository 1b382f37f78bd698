//! A mounted tree against the local file system and against copying first, as root,
//! interleaved, best of several: what is all here, in order and at random, through the
//! kernel's passthrough; a file that arrives while it is read, against `rdma-cp`; the
//! first byte of a random file of a million, and the memory of the daemon that knows
//! them all, also while a large file arrives; the first epoch of a shuffled loader on a
//! limited link while the fill is at work, against `rdma-sync` and then reading.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use verbatim_benches::mounted::Mounted;
use verbatim_benches::table::{Table, Way};
use verbatim_benches::{Common, Run, Serve, Used, Watch, bins, fill, fill_tree, let_settle, run};

/// Measure a mounted tree.
#[derive(Parser)]
struct Flags {
    /// Size of the large file in MiB; 0 leaves it out.
    #[arg(long, default_value_t = 1024)]
    size_mib: u64,
    /// Reads of 4 KiB at random in each round.
    #[arg(long, default_value_t = 200_000)]
    random_reads: usize,
    /// Files of the large tree; 0 leaves it out.
    #[arg(long, default_value_t = 1_000_000)]
    entries: usize,
    /// Files that the loader reads; 0 leaves it out.
    #[arg(long, default_value_t = 20_000)]
    samples: usize,
    /// How long each of them is.
    #[arg(long, default_value_t = 100 << 10)]
    sample_bytes: usize,
    /// What one of sixteen workers does with a sample, in milliseconds. The link is made so slow
    /// that fetching all samples takes as long as all of that.
    #[arg(long, default_value_t = 25)]
    work_ms: u64,
    /// Where source and cache are that are compared with the local file system: on a disk.
    #[arg(long, default_value = "/var/tmp")]
    disk: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// Processes of a loader.
const WORKERS: usize = 16;

/// What a loader's samples are read and a sequential reader reads with.
const BUFFER_BYTES: usize = 1 << 20;

/// The least that is goal and bound.
const FIRST_BYTE_MS_MAX: f64 = 50.0;
const RSS_ANON_MIB_MAX: u64 = 200;

/// The servers' ports begin here.
const PORT: u16 = 21_500;

fn main() {
    let flags = Flags::parse();
    let mut table = Table::empty();
    if flags.size_mib > 0 {
        let (warm, random, cold) = large_file(&flags);
        table.note("warm_sequential", warm.into_json());
        table.note("warm_random", random.into_json());
        table.note("cold_sequential", cold.into_json());
    }
    if flags.entries > 0 {
        table.note("entries", many_entries(&flags).into_json());
    }
    if flags.samples > 0 {
        table.note("loader", loader(&flags).into_json());
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    table.note("load_at_end", load.trim().into());
    table.note("rounds", flags.common.rounds.into());
    table.write(flags.common.json.as_deref());
}

/// A folder, and a server that shows it as `src`.
struct World {
    source: TempDir,
    serve: Serve,
    _state: TempDir,
}

impl World {
    fn new(place: &Path, port: u16) -> Self {
        let source = tempfile::tempdir_in(place).expect("a source folder");
        let state = tempfile::tempdir().expect("a state folder");
        let export = format!("src={}", source.path().display());
        let quiet = state.path().join("quiet.toml");
        std::fs::write(&quiet, "[log]\nlevel = \"error\"\n").expect("a configuration");
        let arguments = ["--config", &quiet.display().to_string(), "--metrics", "off", &export];
        let serve = Serve::start(&bins(), state.path(), port, &arguments);
        Self { source, serve, _state: state }
    }

    /// Runs something that reads a mount, and says what it took of time and of the daemon.
    fn measure(&self, way: &mut Way, round: usize, pid: Option<u32>, work: impl FnOnce()) {
        let (server, daemon) = (Watch::start(self.serve.pid()), pid.map(Watch::start));
        let begin = Instant::now();
        work();
        let time = begin.elapsed();
        let used = daemon.map_or_else(Used::default, Watch::stop);
        way.add(round, Run { time, used }, server.stop());
    }
}

/// The large file: all here, in order and at random; and while it arrives.
fn large_file(flags: &Flags) -> (Table, Table, Table) {
    let world = World::new(&flags.disk, PORT);
    println!("writing {} MiB", flags.size_mib);
    fill(&world.source.path().join("big"), flags.size_mib);
    let cache = tempfile::tempdir_in(&flags.disk).expect("a cache");
    let local = tempfile::tempdir_in(&flags.disk).expect("a folder");
    let local = local.path().join("big");
    std::fs::copy(world.source.path().join("big"), &local).expect("copies");
    let_settle();
    let mounted = Mounted::start(&world.serve, "src", cache.path(), &[]);
    let through = mounted.path("big");
    // All of it comes, and is opened again when all of it is here.
    for path in [&through, &through, &local] {
        read_all(path);
    }
    let told = mounted.status();
    println!("passthrough: {}", told["passthrough"]);
    let mut in_order = [Way::new("local file system", 1.0), Way::new("mounted, all here", 0.95)];
    let mut random = [Way::new("local, 4 KiB at random", 1.0), Way::new("mounted, 4 KiB", 0.8)];
    for round in 0..flags.common.rounds {
        for turn in 0..2 {
            let at = (round + turn) % 2;
            let path = [&local, &through][at];
            let pid = (at == 1).then(|| mounted.pid());
            world.measure(&mut in_order[at], round, pid, || read_all(path));
            let reads = flags.random_reads;
            world.measure(&mut random[at], round, pid, || read_at_random(path, reads));
        }
    }
    let (mut warm, random) = (Table::of(&in_order), Table::of(&random));
    warm.note("passthrough", mounted.status()["passthrough"].clone());
    warm.note("size_mib", flags.size_mib.into());
    drop(mounted);
    (warm, random, cold(flags, &world))
}

/// The same file while it arrives, and copied; in memory, so that no disk is measured.
fn cold(flags: &Flags, world: &World) -> Table {
    let mut ways = [Way::new("rdma-cp", 1.0), Way::new("mounted, as it arrives", 0.8)];
    for round in 0..=flags.common.rounds {
        for turn in 0..2 {
            let at = (round + turn) % 2;
            let target = tempfile::tempdir_in(&flags.common.target).expect("a target");
            // The first round has the server hash it.
            let way = &mut ways[at];
            let mut spare = Way::new("not counted", 0.0);
            let way = if round == 0 { &mut spare } else { way };
            if at == 0 {
                let from = format!("rdma://127.0.0.1:{}/src/big", world.serve.port);
                let to = target.path().join("big").display().to_string();
                let watch = Watch::start(world.serve.pid());
                let took = run(&mut world.serve.cp(&["-q", "--transport", "tcp", &from, &to]));
                way.add(round, took, watch.stop());
            } else {
                let mounted = Mounted::start(&world.serve, "src", target.path(), &[]);
                let path = mounted.path("big");
                world.measure(way, round, Some(mounted.pid()), || read_all(&path));
            }
        }
    }
    Table::of(&ways)
}

/// A tree of very many files: the first byte of one, and what the daemon that knows all takes.
fn many_entries(flags: &Flags) -> Table {
    let world = World::new(&flags.common.target, PORT + 1);
    println!("writing {} files", flags.entries);
    fill_tree(&world.source.path().join("tree"), flags.entries, 16);
    fill(&world.source.path().join("big"), flags.size_mib);
    let_settle();
    let mut took_ms = Vec::new();
    for round in 0..flags.common.rounds {
        let cache = tempfile::tempdir_in(&flags.common.target).expect("a cache");
        let mounted = Mounted::start(&world.serve, "src", cache.path(), &[]);
        let index = dice(round as u64 + 1) as usize % flags.entries;
        let path = mounted.path(&format!("tree/{:04}/file-{index}", index / 1000));
        let begin = Instant::now();
        let mut byte = [0];
        File::open(&path).and_then(|mut file| file.read_exact(&mut byte)).expect("reads");
        took_ms.push(begin.elapsed().as_secs_f64() * 1000.0);
    }
    took_ms.sort_by(f64::total_cmp);
    println!("first byte, ms: {took_ms:.2?}, at most {FIRST_BYTE_MS_MAX}");
    let cache = tempfile::tempdir_in(&flags.common.target).expect("a cache");
    let mounted = Mounted::start(&world.serve, "src", cache.path(), &[]);
    let watch = Watch::start(mounted.pid());
    let begin = Instant::now();
    let seen = walk(&mounted.path(""));
    let walked = begin.elapsed().as_secs_f64();
    let rss_mib = watch.stop().rss_anon_kib >> 10;
    let known = mounted.status()["known_entries"].clone();
    println!("{seen} entries in {walked:.1} s, {known} known, {rss_mib} MiB of {RSS_ANON_MIB_MAX}");
    // What is known and what is under way, together.
    let watch = Watch::start(mounted.pid());
    read_all(&mounted.path("big"));
    let both_mib = watch.stop().rss_anon_kib >> 10;
    let still = mounted.status()["known_entries"].clone();
    println!("and while {} MiB arrive, {still} known: {both_mib} MiB", flags.size_mib);
    let mut table = Table::empty();
    table.note("first_byte_ms", took_ms.into());
    table.note("first_byte_ms_max", FIRST_BYTE_MS_MAX.into());
    table.note("seen", seen.into());
    table.note("walked_s", walked.into());
    table.note("known", known);
    table.note("rss_anon_mib", rss_mib.into());
    table.note("known_while_reading", still);
    table.note("rss_anon_mib_while_reading", both_mib.into());
    table.note("rss_anon_mib_max", RSS_ANON_MIB_MAX.into());
    table
}

/// The first epoch of a loader: after a mirror was made, and while the fill is at work.
fn loader(flags: &Flags) -> Table {
    let world = World::new(&flags.common.target, PORT + 2);
    println!("writing {} samples of {} bytes", flags.samples, flags.sample_bytes);
    fill_tree(&world.source.path().join("tree"), flags.samples, flags.sample_bytes);
    let_settle();
    let work_s = flags.samples as f64 * flags.work_ms as f64 / 1000.0 / WORKERS as f64;
    let rate = (flags.samples as f64 * flags.sample_bytes as f64 / work_s) as u64;
    println!("{work_s:.1} s of work, a link of {} MB/s", rate / 1_000_000);
    let limit = format!("--bwlimit={rate}");
    let mut ways = [Way::new("rdma-sync, then read", 1.0), Way::new("mounted, with --fill", 1.6)];
    for round in 0..flags.common.rounds {
        for turn in 0..2 {
            let at = (round + turn) % 2;
            let target = tempfile::tempdir_in(&flags.common.target).expect("a target");
            if at == 0 {
                let from = format!("rdma://127.0.0.1:{}/src/tree", world.serve.port);
                let to = target.path().join("tree");
                world.measure(&mut ways[0], round, None, || {
                    let to = to.display().to_string();
                    let words = ["-q", "--transport", "tcp", &limit, &from, &to];
                    run(&mut world.serve.sync(&words));
                    epoch(&target.path().join("tree"), flags, round as u64);
                });
            } else {
                let words = ["--fill", &limit];
                let mounted = Mounted::start(&world.serve, "src", target.path(), &words);
                let tree = mounted.path("tree");
                world.measure(&mut ways[1], round, Some(mounted.pid()), || {
                    epoch(&tree, flags, round as u64);
                });
                println!("        {}", mounted.status()["fill"]);
            }
        }
    }
    let mut table = Table::of(&ways);
    table.note("samples", flags.samples.into());
    table.note("sample_bytes", flags.sample_bytes.into());
    table.note("work_s", work_s.into());
    table.note("bytes_per_second", rate.into());
    table
}

/// Reads all samples once, in an order of this epoch, and does something with each.
fn epoch(tree: &Path, flags: &Flags, seed: u64) {
    let mut order: Vec<usize> = (0..flags.samples).collect();
    let mut number = dice(seed + 77);
    for at in (1..order.len()).rev() {
        number = dice(number);
        order.swap(at, number as usize % (at + 1));
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let mut bytes = Vec::with_capacity(flags.sample_bytes);
                while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let path = tree.join(format!("{:04}/file-{index}", index / 1000));
                    bytes.clear();
                    let mut file = File::open(&path).expect("the sample is there");
                    file.read_to_end(&mut bytes).expect("it can be read");
                    assert_eq!(bytes.len(), flags.sample_bytes, "{}", path.display());
                    std::thread::sleep(Duration::from_millis(flags.work_ms));
                }
            });
        }
    });
}

/// Reads a file from its beginning to its end.
fn read_all(path: &Path) {
    let mut file = File::open(path).expect("it is there");
    let mut buffer = vec![0; BUFFER_BYTES];
    while file.read(&mut buffer).expect("it can be read") > 0 {}
}

/// Reads pages of a file here and there.
fn read_at_random(path: &Path, reads: usize) {
    let file = File::open(path).expect("it is there");
    let pages = file.metadata().expect("it has a size").len() / 4096;
    let (mut page, mut number) = ([0; 4096], 1);
    for _ in 0..reads {
        number = dice(number);
        file.read_exact_at(&mut page, number % pages * 4096).expect("it can be read");
    }
}

/// Looks at all that is below a folder; says how many there are.
fn walk(folder: &Path) -> usize {
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("it can be listed").flatten() {
        seen += 1;
        let found = entry.metadata().expect("it is there");
        if found.is_dir() {
            seen += walk(&entry.path());
        }
    }
    seen
}

/// The number that follows another one, in no order that can be seen.
fn dice(number: u64) -> u64 {
    let mut number = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    number ^= number << 13;
    number ^= number >> 7;
    number ^ number << 17
}
