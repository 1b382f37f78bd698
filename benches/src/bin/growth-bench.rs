//! How time grows: time a byte of one file of more and more bytes, time a file of a
//! tree of more and more files; down and up, beside cp, interleaved, best of several.
//! Down also into a sink that keeps nothing, for sizes that no tmpfs holds. Prints
//! captions; writes JSON and a plot, of the times and beside cp. Page cache to tmpfs.
//! `benches/compare --growth` builds and runs it.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use verbatim_benches::growth::{Growth, Line};
use verbatim_benches::plot::draw;
use verbatim_benches::{Serve, bins, fill, fill_tree, let_settle, run};

/// Measure how time grows with bytes and with files.
#[derive(Parser)]
struct Flags {
    /// Sizes of the file in MiB.
    #[arg(long, value_delimiter = ',', default_value = "256,512,1024,2048,4096,8192,16384")]
    sizes_mib: Vec<u64>,
    /// What is longer than this, in MiB, goes only into a sink.
    #[arg(long, default_value_t = 8192)]
    kept_mib: u64,
    /// Numbers of files of 4 KiB.
    #[arg(long, value_delimiter = ',', default_value = "10000,30000,100000,300000,1000000")]
    files: Vec<usize>,
    /// Rounds; the best of each counts. What takes long is measured once.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Where sources are made, on a disk: they are read from the page cache.
    #[arg(long, default_value = "/var/tmp")]
    source: PathBuf,
    /// Where copies go: a tmpfs.
    #[arg(long, default_value = "/dev/shm")]
    target: PathBuf,
    /// Write FOLDER/growth.json and FOLDER/growth.svg.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
}

const PORT: u16 = 21_550;

/// Ways in the order of their lines.
const WAYS: [&str; 4] = ["cp", "download", "upload", "sink"];
const FILE_BYTES: usize = 4096;

/// A size whose round takes longer than this is measured once.
const SLOW_S: f64 = 60.0;

/// What is left free of the disk with the sources.
const SPARE_BYTES: u64 = 2 << 30;

struct Bench {
    serve: Serve,
    source: PathBuf,
    target: PathBuf,
    rounds: usize,
}

fn main() {
    let flags = Flags::parse();
    let source = tempfile::tempdir_in(&flags.source).expect("a source folder");
    let target = tempfile::tempdir_in(&flags.target).expect("a target folder");
    let state = tempfile::tempdir().expect("a state folder");
    let export = format!("src={}", source.path().display());
    let landing = format!("up={}:rw", target.path().display());
    let serve = Serve::start(&bins(), state.path(), PORT, &[&export, &landing]);
    let (rounds, target) = (flags.rounds, target.path().to_owned());
    let bench = Bench { serve, source: source.path().to_owned(), target, rounds };
    let growths = [bench.bytes(&flags.sizes_mib, flags.kept_mib), bench.files(&flags.files)];
    let panels: Vec<_> = growths.iter().flat_map(Growth::panels).collect();
    for panel in &panels {
        println!("\n{}, by {}", panel.unit, panel.title);
        panel.caption.iter().for_each(|line| println!("  {line}"));
    }
    let Some(folder) = flags.results else { return };
    let json: Vec<_> = growths.iter().map(Growth::to_json).collect();
    let json = json!({ "rounds": rounds, "growth": json });
    fs::write(folder.join("growth.json"), format!("{json:#}\n")).expect("it can be written");
    fs::write(folder.join("growth.svg"), draw(&panels)).expect("it can be written");
}

impl Bench {
    fn bytes(&self, sizes_mib: &[u64], kept_mib: u64) -> Growth {
        let gib = |mib: &u64| *mib as f64 / 1024.0;
        let lines = self.measure(sizes_mib.len(), |index| {
            let mib = sizes_mib[index];
            let room = rustix::fs::statvfs(&self.source).expect("the source has a file system");
            if room.f_bavail * room.f_frsize < (mib << 20) + SPARE_BYTES {
                println!("no room for one file of {mib} MiB: it is left out");
                return &[];
            }
            println!("making one file of {mib} MiB");
            let folder = self.source.join("work");
            fs::create_dir(&folder).expect("a folder");
            fill(&folder.join("file"), mib);
            if mib > kept_mib { &[3] } else { &[0, 1, 2, 3] }
        });
        let tick = |mib: &u64| match mib % 1024 {
            0 => format!("{} GiB", mib / 1024),
            _ => format!("{mib} MiB"),
        };
        Growth {
            title: "size of one file",
            unit: "ms a GiB",
            parts: 1e3,
            ticks: sizes_mib.iter().map(tick).collect(),
            units: sizes_mib.iter().map(gib).collect(),
            lines,
        }
    }

    fn files(&self, counts: &[usize]) -> Growth {
        let mut lines = self.measure(counts.len(), |index| {
            println!("making {} files", counts[index]);
            fill_tree(&self.source.join("work"), counts[index], FILE_BYTES);
            &[0, 1, 2]
        });
        lines.truncate(3);
        Growth {
            title: "number of files of 4 KiB",
            unit: "µs a file",
            parts: 1e6,
            ticks: counts.iter().map(ToString::to_string).collect(),
            units: counts.iter().map(|count| *count as f64).collect(),
            lines,
        }
    }

    /// Measures each size: `make` makes it and says which ways copy it.
    fn measure(&self, sizes: usize, make: impl Fn(usize) -> &'static [usize]) -> Vec<Line> {
        let mut lines: Vec<Line> = WAYS.iter().map(|name| Line::new(name, sizes)).collect();
        for index in 0..sizes {
            let ways = make(index);
            if ways.is_empty() {
                continue;
            }
            // What is still to be written would be while we measure.
            run(&mut Command::new("sync"));
            let_settle();
            // Who hashes once has done so by now.
            self.copy(if ways.contains(&1) { 1 } else { 3 });
            for _ in 0..self.rounds {
                let mut round_s = 0.0;
                for &way in ways {
                    let seconds = self.copy(way);
                    println!("{:10} {seconds:8.3} s", WAYS[way]);
                    round_s += seconds;
                    lines[way].add(index, seconds);
                }
                if round_s > SLOW_S {
                    break;
                }
            }
            fs::remove_dir_all(self.source.join("work")).expect("it can be removed");
        }
        lines
    }

    /// One copy, removed again; says how long it took.
    fn copy(&self, way: usize) -> f64 {
        let to = self.target.join("work");
        fs::create_dir(&to).expect("a folder");
        let seconds = run(&mut self.command(way, &to)).time.as_secs_f64();
        fs::remove_dir_all(&to).expect("it can be removed");
        seconds
    }

    fn command(&self, way: usize, to: &Path) -> Command {
        let remote = |export: &str| format!("rdma://127.0.0.1:{}/{export}/work", self.serve.port);
        let (from, to) = (format!("{}/work/.", self.source.display()), to.display().to_string());
        match WAYS[way] {
            "cp" => {
                let mut cp = Command::new("cp");
                cp.args(["-a", &from, &to]);
                cp
            }
            "download" => self.serve.cp(&["-q", "-r", "-p", &format!("{}/.", remote("src")), &to]),
            "upload" => self.serve.cp(&["-q", "-r", "-p", &from, &remote("up")]),
            // Standard output of what is run here is thrown away.
            _ => self.serve.cp(&["-q", &format!("{}/file", remote("src")), "-"]),
        }
    }
}
