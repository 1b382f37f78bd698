//! What a crowd costs: ten clients copy from a server that nobody else uses, and
//! again while a thousand others are let in and say nothing. Interleaved, the best of
//! several. Page cache to tmpfs.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::Command;
use verbatim_benches::crowd::{CONFIG, enter};
use verbatim_benches::table::{Table, Way};
use verbatim_benches::{Common, Serve, Watch, bins, fill, let_settle, run_all};

/// Measure what silent clients cost those that copy.
#[derive(Parser)]
struct Flags {
    /// Clients that are let in and say nothing.
    #[arg(long, default_value_t = 1000)]
    idle: usize,
    /// Clients that copy at a time.
    #[arg(long, default_value_t = 10)]
    active: usize,
    /// What each of them copies, in MiB.
    #[arg(long, default_value_t = 128)]
    size_mib: u64,
    /// Where the source is, on a disk: it is read from the page cache.
    #[arg(long, default_value = "/var/tmp")]
    source: PathBuf,
    #[command(flatten)]
    common: Common,
}

const PORT: u16 = 21_496;

fn main() {
    let flags = Flags::parse();
    verbatim_files::limit::raise_open_files();
    let source = tempfile::tempdir_in(&flags.source).expect("a source folder");
    let target = tempfile::tempdir_in(&flags.common.target).expect("a target folder");
    fill(&source.path().join("big"), flags.size_mib);
    let_settle();
    let state = tempfile::tempdir().expect("a state folder");
    let config = state.path().join("serve.toml");
    std::fs::write(&config, CONFIG).expect("a configuration");
    let (config, export) =
        (config.display().to_string(), format!("big={}", source.path().display()));
    let arguments = ["--config", &config, "--metrics", "off", &export];
    let serve = Serve::start(&bins(), &state.path().join("a"), PORT, &arguments);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");

    let mut ways = [Way::new("nobody else", 1.0), Way::new("and a silent crowd", 0.9)];
    for round in 0..=flags.common.rounds {
        // Which comes first changes: what others do to this machine then hits both.
        for index in [round % 2, 1 - round % 2] {
            let count = if index == 1 { flags.idle } else { 0 };
            let crowd = runtime.block_on(enter(&state.path().join("a"), PORT, count));
            assert_eq!(crowd.len(), count, "all are let in");
            let mut copies: Vec<Command> = (0..flags.active)
                .map(|number| copy(&serve, &target.path().join(number.to_string())))
                .collect();
            let watch = Watch::start(serve.pid());
            let took = run_all(&mut copies);
            let used = watch.stop();
            drop(crowd);
            // The first one fills the digest cache.
            if round > 0 {
                ways[index].add(round - 1, took, used);
            }
        }
    }
    let mut table = Table::of(&ways);
    table.note("idle", flags.idle.into());
    table.note("active", flags.active.into());
    table.note("size_mib", flags.size_mib.into());
    table.write(flags.common.json.as_deref());
}

fn copy(serve: &Serve, to: &Path) -> Command {
    let _ = std::fs::remove_file(to);
    let from = format!("rdma://127.0.0.1:{}/big/big", serve.port);
    serve.cp(&["-q", "--transport", "tcp", &from, &to.display().to_string()])
}
