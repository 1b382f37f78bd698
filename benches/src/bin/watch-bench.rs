//! What being watched costs: a large file, a mix of files of 20 to 200 KiB, and a
//! tree of small ones, downloaded while nobody looks, with one thing switched on
//! at a time, and with everything on. Everything is: metrics scraped every second,
//! the page open, a JSON log at info into a file, a client that writes its timeline
//! and its numbers and logs as JSON. Interleaved, the order turned every round, best
//! of several and by pairs. Page cache to tmpfs.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verbatim_benches::compare::work::fill_mixed;
use verbatim_benches::crowd::get;
use verbatim_benches::table::{Table, Way};
use verbatim_benches::{Common, Serve, SmallFiles, Watch, bins, fill, fill_tree, let_settle, run};

/// Measure what metrics, logs and traces cost a copy.
#[derive(Parser)]
struct Flags {
    /// Size of the large file in MiB; 0 leaves it out, as it does with the number of files.
    #[arg(long, default_value_t = 2048)]
    size_mib: u64,
    /// How many files the mix has.
    #[arg(long, default_value_t = 5000)]
    mixed: usize,
    /// Measure nothing between nobody looking and everything on.
    #[arg(long)]
    ends: bool,
    #[command(flatten)]
    small: SmallFiles,
    /// Where the sources are, on a disk: they are read from the page cache.
    #[arg(long, default_value = "/var/tmp")]
    source: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// The port of the first server; the others follow.
const PORT: u16 = 21_492;

/// Where a server that is looked at shows its metrics: so far above its own port.
const METRICS_ABOVE: u16 = 100;

/// How often the metrics are scraped, and the page asks for the status.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is switched on.
#[derive(Clone, Copy)]
struct Switches {
    name: &'static str,
    /// The server shows metrics and the page, and both are asked for.
    shown: bool,
    /// The server logs at info, as JSON.
    logged: bool,
    /// The client writes a timeline and its numbers, and logs as JSON.
    recorded: bool,
}

const NOTHING: Switches =
    Switches { name: "nobody looks", shown: false, logged: false, recorded: false };

const ALL: [Switches; 5] = [
    NOTHING,
    Switches { name: "metrics and page", shown: true, ..NOTHING },
    Switches { name: "a log at info", logged: true, ..NOTHING },
    Switches { name: "timeline and numbers", recorded: true, ..NOTHING },
    Switches { name: "everything is on", shown: true, logged: true, recorded: true },
];

fn main() {
    let flags = Flags::parse();
    let source = tempfile::tempdir_in(&flags.source).expect("a source folder");
    let target = tempfile::tempdir_in(&flags.common.target).expect("a target folder");
    fill(&source.path().join("big"), flags.size_mib);
    fill_mixed(&source.path().join("mix"), flags.mixed);
    fill_tree(&source.path().join("tree"), flags.small.files, flags.small.bytes);
    let_settle();
    let state = tempfile::tempdir().expect("a state folder");
    let all = if flags.ends { vec![ALL[0], ALL[ALL.len() - 1]] } else { ALL.to_vec() };
    let served = all.iter().enumerate();
    let serves: Vec<_> =
        served.map(|(at, of)| serve(*of, PORT + at as u16, source.path(), state.path())).collect();
    let shown = serves.iter().zip(&all).filter(|(_, of)| of.shown);
    let scraper = Scraper::start(shown.map(|(serve, _)| serve.port + METRICS_ABOVE).collect());

    let mut figures = serde_json::Map::new();
    let copied =
        [("big", flags.size_mib > 0), ("mix", flags.mixed > 0), ("tree", flags.small.files > 0)];
    for (what, _) in copied.into_iter().filter(|(_, wanted)| *wanted) {
        println!("\n{what}");
        let goal = |of: &Switches| if of.shown && of.logged { 0.98 } else { 1.0 };
        let mut ways: Vec<_> = all.iter().map(|of| Way::new(of.name, goal(of))).collect();
        for round in 0..=flags.common.rounds {
            for turn in 0..all.len() {
                let at = (round + turn) % all.len();
                let out = target.path().join(what);
                let mut copy = client(all[at], &serves[at], what, &out, state.path());
                let watch = Watch::start(serves[at].pid());
                let took = run(&mut copy);
                let used = watch.stop();
                let _ = std::fs::remove_file(&out);
                let _ = std::fs::remove_dir_all(&out);
                // The first one fills the digest cache.
                if round > 0 {
                    ways[at].add(round - 1, took, used);
                }
            }
        }
        let mut table = Table::of(&ways);
        table.pairs(&ways);
        figures.insert(what.to_owned(), table.into_json());
    }
    println!("scraped {} times", scraper.stop());
    let mut table = Table::empty();
    table.note("copies", figures.into());
    table.note("size_mib", flags.size_mib.into());
    table.note("mixed", flags.mixed.into());
    table.note("files", flags.small.files.into());
    table.note("bytes", flags.small.bytes.into());
    table.note("rounds", flags.common.rounds.into());
    table.write(flags.common.json.as_deref());
}

/// A server that shows and logs what it should.
fn serve(of: Switches, port: u16, source: &Path, state: &Path) -> Serve {
    let export = format!("src={}", source.display());
    let config = state.join(format!("{port}.toml"));
    let level = if of.logged { "info" } else { "error" };
    std::fs::write(&config, format!("[log]\nlevel = \"{level}\"\n")).expect("a configuration");
    let config = config.display().to_string();
    let metrics = match of.shown {
        true => format!("127.0.0.1:{}", port + METRICS_ABOVE),
        false => "off".into(),
    };
    let log = File::create(state.join(format!("{port}.log"))).expect("a log");
    let flags = ["--config", &config, "--metrics", &metrics, "--log-format", "json", &export];
    Serve::start_logged(&bins(), &state.join(port.to_string()), port, &flags, log.into())
}

/// A copy that records what it should.
fn client(of: Switches, serve: &Serve, what: &str, out: &Path, state: &Path) -> Command {
    let from = format!("rdma://127.0.0.1:{}/src/{what}", serve.port);
    let (trace, numbers) = (state.join("trace.json"), state.join("run.prom"));
    let mut copy = serve.cp(&["-q", "-r", &from]);
    copy.arg(out);
    if of.recorded {
        copy.arg("--trace").arg(trace).arg("--metrics-file").arg(numbers);
        copy.args(["--log-format", "json"]).env("RUST_LOG", "info");
    }
    copy
}

/// Asks servers for the metrics and the status every second, as Prometheus and an open page do.
struct Scraper {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u32>,
}

impl Scraper {
    fn start(ports: Vec<u16>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                for &port in &ports {
                    let asked = ["/metrics", "/api/v1/status"].map(|path| get(port, path));
                    count += u32::from(asked.iter().all(Result::is_ok));
                }
                std::thread::sleep(LOOK_EVERY);
            }
            count
        });
        Self { stop, thread }
    }

    fn stop(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("scraping does not panic")
    }
}
