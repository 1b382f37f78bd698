//! What being watched costs: one large file downloaded from a server that nobody
//! looks at and that logs errors only, against one that is scraped every second
//! and logs everything it usually does, to a client that writes its timeline and
//! its numbers. Interleaved, best of several. Page cache to tmpfs.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verbatim_benches::table::{Table, Way};
use verbatim_benches::{Common, Serve, Watch, bins, fill, let_settle, run};

/// Measure what metrics, logs and traces cost a copy.
#[derive(Parser)]
struct Flags {
    /// Size of the file in MiB.
    #[arg(long, default_value_t = 2048)]
    size_mib: u64,
    /// Where the source is, on a disk: it is read from the page cache.
    #[arg(long, default_value = "/var/tmp")]
    source: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// Where the watched server shows its metrics.
const METRICS: &str = "127.0.0.1:21593";

fn main() {
    let flags = Flags::parse();
    let bins = bins();
    let source = tempfile::tempdir_in(&flags.source).expect("a source folder");
    let target = tempfile::tempdir_in(&flags.common.target).expect("a target folder");
    fill(&source.path().join("big"), flags.size_mib);
    let_settle();

    let export = format!("big={}", source.path().display());
    let state = tempfile::tempdir().expect("a state folder");
    let silent = state.path().join("silent.toml");
    std::fs::write(&silent, "[log]\nlevel = \"error\"\n").expect("a configuration");
    let silent = silent.display().to_string();
    let plain = ["--config", &silent, "--metrics", "off", &export];
    let plain = Serve::start(&bins, &state.path().join("a"), 21_492, &plain);
    let watched = ["--metrics", METRICS, "--log-format", "json", &export];
    let watched = Serve::start(&bins, &state.path().join("b"), 21_493, &watched);

    let out = target.path().join("copy").display().to_string();
    let beside = |name: &str| state.path().join(name).display().to_string();
    let (trace, numbers) = (beside("trace.json"), beside("run.prom"));
    let mut ways = [Way::new("nobody looks", 1.0), Way::new("everything is on", 0.98)];
    let scraper = Scraper::start();
    for round in 0..=flags.common.rounds {
        for (index, way) in ways.iter_mut().enumerate() {
            let _ = std::fs::remove_file(&out);
            let serve = [&plain, &watched][index];
            let from = format!("rdma://127.0.0.1:{}/big/big", serve.port);
            let mut arguments = vec!["-q"];
            if index == 1 {
                let more = ["--trace", &trace, "--metrics-file", &numbers, "--log-format", "json"];
                arguments.extend(more);
            }
            arguments.extend([from.as_str(), out.as_str()]);
            let watch = Watch::start(serve.pid());
            let took = run(&mut serve.cp(&arguments));
            let used = watch.stop();
            // The first one fills the digest cache.
            if round > 0 {
                way.add(round - 1, took, used);
            }
        }
    }
    println!("scraped {} times", scraper.stop());
    let mut table = Table::of(&ways);
    table.note("size_mib", flags.size_mib.into());
    table.note("rounds", flags.common.rounds.into());
    table.write(flags.common.json.as_deref());
}

/// Asks for the metrics and the status every second, as Prometheus and an open page do.
struct Scraper {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u32>,
}

impl Scraper {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                count += u32::from(get("/metrics").is_ok() && get("/api/v1/status").is_ok());
                std::thread::sleep(Duration::from_secs(1));
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

fn get(path: &str) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(METRICS)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {METRICS}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    stream.read_to_end(&mut Vec::new())
}
