//! The comparison: our commands and those that people use today, on the same
//! workloads, interleaved, best of several. Prints Markdown tables; writes JSON and
//! a plot. `benches/compare` installs the peers, builds and runs it.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;
use verbatim_benches::compare::peers::{Peer, World};
use verbatim_benches::compare::work::{Scale, Work, make};
use verbatim_benches::compare::{Figure, limits, measure};
use verbatim_benches::plot::{Bars, draw_bars};
use verbatim_benches::{bins, let_settle};

/// Compare with cp, tar, rsync, rclone and scp.
#[derive(Parser)]
struct Flags {
    /// Rounds; the best of each counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Smaller workloads, for a look in five minutes.
    #[arg(long)]
    quick: bool,
    /// Only the workloads of these names.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Where workloads are made, on a disk: they are read from the page cache.
    #[arg(long, default_value = "/var/tmp")]
    source: PathBuf,
    /// Where copies go: a tmpfs.
    #[arg(long, default_value = "/dev/shm")]
    target: PathBuf,
    /// Write FOLDER/compare.json and FOLDER/compare.svg.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
}

fn main() {
    let flags = Flags::parse();
    let scale = match flags.quick {
        true => Scale { large_mib: 1024, small: 20_000, mixed: 5000, sparse_gib: 8 },
        false => Scale { large_mib: 4096, small: 100_000, mixed: 25_000, sparse_gib: 64 },
    };
    let top = tempfile::tempdir_in(&flags.source).expect("a source folder");
    let target = tempfile::tempdir_in(&flags.target).expect("a target folder");
    let state = tempfile::tempdir().expect("a state folder");
    let source = top.path().join("source");
    std::fs::create_dir(&source).expect("a source folder");
    println!("making the workloads under {}", source.display());
    let mut works = make(&source, &scale);
    works.retain(|work| flags.only.is_empty() || flags.only.iter().any(|name| name == work.name));
    let_settle();
    let world = World::start(&bins(), &source, target.path(), state.path());
    let limits = works.iter().find(|work| work.name == "one").map(|work| limits(&world, work));
    let measured: Vec<(Work, Vec<Figure>)> = works
        .into_iter()
        .map(|work| {
            let figures = measure(&world, &work, flags.rounds);
            (work, figures)
        })
        .collect();
    if let Some((wire, hash)) = limits {
        println!(
            "\nlimits: iperf3 {:.2} GB/s, b3sum on one core {:.2} GB/s",
            wire / 1e9,
            hash / 1e9
        );
    }
    measured.iter().for_each(|(work, figures)| print_table(work, figures));
    let Some(folder) = flags.results else { return };
    let all = json!({
        "machine": machine(), "versions": versions(), "rounds": flags.rounds,
        "limits_bytes_per_second": limits.map(|(wire, hash)| json!({ "iperf3": wire, "b3sum": hash })),
        "workloads": measured.iter().map(to_json).collect::<Vec<_>>(),
    });
    std::fs::write(folder.join("compare.json"), format!("{all:#}\n")).expect("it can be written");
    let bars: Vec<Bars> = measured.iter().map(|(work, figures)| to_bars(work, figures)).collect();
    std::fs::write(folder.join("compare.svg"), draw_bars(&bars)).expect("it can be written");
}

fn print_table(work: &Work, figures: &[Figure]) {
    println!("\n{}\n", work.title);
    println!("| | s | GB/s | files/s | cpu s/GB | client MiB | server MiB | on the wire |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let gb = work.bytes as f64 / 1e9;
    for figure in figures {
        let seconds = figure.time.as_secs_f64();
        // Of a few bytes it says nothing.
        let cpu = match work.bytes > 100_000_000 {
            true => format!("{:.2}", figure.cpu.as_secs_f64() / gb),
            false => "-".to_owned(),
        };
        let (client, server) = (figure.rss_kib.0 / 1024, figure.rss_kib.1 / 1024);
        println!(
            "| {} | {seconds:.3} | {:.2} | {:.0} | {cpu} | {client} | {server} | {:.1} MB |",
            figure.peer.name(),
            gb / seconds,
            work.files as f64 / seconds,
            figure.wire_bytes as f64 / 1e6,
        );
    }
}

fn to_json((work, figures): &(Work, Vec<Figure>)) -> serde_json::Value {
    let row = |figure: &Figure| {
        json!({
            "way": figure.peer.name(), "best_s": figure.time.as_secs_f64(),
            "cpu_s": figure.cpu.as_secs_f64(), "runs": figure.runs,
            "client_rss_anon_kib": figure.rss_kib.0, "server_rss_anon_kib": figure.rss_kib.1,
            "wire_bytes": figure.wire_bytes,
        })
    };
    let rows: Vec<_> = figures.iter().map(row).collect();
    json!({
        "name": work.name, "title": work.title, "bytes": work.bytes, "files": work.files,
        "ways": rows,
    })
}

fn to_bars(work: &Work, figures: &[Figure]) -> Bars {
    let bar = |figure: &Figure| {
        (figure.peer.name().to_owned(), figure.time.as_secs_f64(), Peer::is_ours(figure.peer))
    };
    Bars { title: work.title.clone(), unit: "s".into(), bars: figures.iter().map(bar).collect() }
}

fn machine() -> serde_json::Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    json!({
        "processor": field(&read("/proc/cpuinfo"), "model name"), "cores": cores,
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "date": first_line(Command::new("date").arg("+%F")),
    })
}

fn versions() -> serde_json::Value {
    let ours = bins().join("rdma-cp");
    json!({
        "verbatim": first_line(Command::new(ours).arg("--version")),
        "cp": first_line(Command::new("cp").arg("--version")),
        "tar": first_line(Command::new("tar").arg("--version")),
        "rsync": first_line(Command::new("rsync").arg("--version")),
        "rclone": first_line(Command::new("rclone").arg("version")),
        "ssh": first_line(Command::new("sh").args(["-c", "ssh -V 2>&1"])),
    })
}

fn first_line(command: &mut Command) -> String {
    let said = command.output().map(|out| out.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_owned()
}
