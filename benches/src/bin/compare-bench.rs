//! The comparison: our commands and those that people use today, on the same
//! workloads, interleaved, best of several. Prints Markdown tables; writes JSON and
//! a plot. `benches/compare` installs the peers, builds and runs it.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use verbatim_benches::compare::goals::{Goal, goals};
use verbatim_benches::compare::guest::Guest;
use verbatim_benches::compare::measured::Measured;
use verbatim_benches::compare::peers::World;
use verbatim_benches::compare::report::{
    goal_table, goals_json, short_table, table, to_bars, to_json,
};
use verbatim_benches::compare::work::{Scale, Work, plan};
use verbatim_benches::compare::{Limits, crowd, limits, measure};
use verbatim_benches::marks::write_between;
use verbatim_benches::plot::{Bars, draw_bars};
use verbatim_benches::{bins, let_settle};
use verbatim_files::limit::processors;

/// Compare with cp, tar, rsync, rclone and scp.
#[derive(Parser)]
struct Flags {
    /// Rounds; the best of each counts. Three, or two with --quick.
    #[arg(long)]
    rounds: Option<usize>,
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
    /// What `benches/verbs` said in a guest.
    #[arg(long, value_name = "FILE")]
    verbs: Option<PathBuf>,
    /// Write the short table into README.md and the goals into docs/performance.md of this
    /// repository, between their marks.
    #[arg(long, value_name = "FOLDER")]
    docs: Option<PathBuf>,
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
    let rounds = flags.rounds.unwrap_or(if flags.quick { 2 } else { 3 });
    let guest = flags.verbs.map(|path| {
        Guest::parse(&std::fs::read_to_string(path).expect("what was said can be read"))
    });
    let top = tempfile::tempdir_in(&flags.source).expect("a source folder");
    let target = tempfile::tempdir_in(&flags.target).expect("a target folder");
    let state = tempfile::tempdir().expect("a state folder");
    let source = top.path().join("source");
    std::fs::create_dir(&source).expect("a source folder");
    let wanted = |name: &str| flags.only.is_empty() || flags.only.iter().any(|only| only == name);
    let mut works = plan(&scale);
    works.retain(|work| wanted(work.name));
    works.iter().for_each(|work| work.begin(&source));
    let mut told = Told { rounds, guest, ..Told::default() };
    if !works.is_empty() {
        let world = World::start(&bins(), &source, target.path(), state.path());
        works.into_iter().for_each(|work| told.compare(&world, work));
    }
    // What follows may fail; what was measured is told by then.
    told.write(flags.results.as_deref());
    if wanted("crowd") {
        let (bins, source, target, state) = (&bins(), &*source, target.path(), state.path());
        let (mib, clients) = (if flags.quick { 128 } else { 256 }, 200);
        let place = crowd::Place { bins, source, target, state, mib, clients };
        told.crowd = Some(crowd::measure(&place, rounds));
    }
    told.guest.iter().for_each(|guest| print!("{}", guest.table()));
    println!("\n{}", goal_table(&told.goals()));
    told.write(flags.results.as_deref());
    if let Some(root) = flags.docs {
        told.write_docs(&root).expect("the tables can be written");
    }
}

/// All that was measured so far.
#[derive(Default)]
struct Told {
    rounds: usize,
    limits: Option<Limits>,
    measured: Vec<Measured>,
    crowd: Option<crowd::Crowd>,
    guest: Option<Guest>,
}

impl Told {
    /// Makes a workload, measures it, and prints its table.
    fn compare(&mut self, world: &World, work: Work) {
        println!("making {}", work.title);
        work.make(&world.source);
        let_settle();
        if work.name == "one" {
            let limits = limits(world, &work);
            println!("{limits}");
            self.limits = Some(limits);
        }
        let figures = measure(world, &work, self.rounds);
        work.remove(&world.source);
        let measured = (work, figures);
        println!("{}", table(&measured, self.rounds));
        self.measured.push(measured);
    }

    fn goals(&self) -> Vec<Goal> {
        let mut goals = goals(&self.measured, self.limits.map(|limits| limits.hashing));
        goals.extend(self.crowd.iter().flat_map(crowd::Crowd::goals));
        goals.extend(self.guest.iter().flat_map(Guest::goals));
        goals
    }

    fn write_docs(&self, root: &Path) -> std::io::Result<()> {
        let about = about(self.rounds);
        let seconds = format!("{about}\n{}", short_table(&self.measured, self.rounds));
        write_between(&root.join("README.md"), "compare", &seconds)?;
        let goals = format!("{about}\n{}", goal_table(&self.goals()));
        write_between(&root.join("docs/performance.md"), "goals", &goals)
    }

    fn write(&self, folder: Option<&Path>) {
        let Some(folder) = folder else { return };
        let all = json!({
            "machine": machine(), "versions": versions(), "rounds": self.rounds,
            "limits": self.limits.map(Limits::to_json),
            "workloads": self.measured.iter().map(to_json).collect::<Vec<_>>(),
            "crowd": self.crowd.as_ref().map(crowd::Crowd::to_json),
            "guest": self.guest.as_ref().map(Guest::to_json),
            "goals": goals_json(&self.goals()),
        });
        let json = folder.join("compare.json");
        std::fs::write(json, format!("{all:#}\n")).expect("it can be written");
        let guest = self.guest.iter().filter_map(Guest::to_bars);
        let bars: Vec<Bars> = self.measured.iter().map(to_bars).chain(guest).collect();
        std::fs::write(folder.join("compare.svg"), draw_bars(&bars)).expect("it can be written");
    }
}

/// When and where, and which build.
fn about(rounds: usize) -> String {
    let (machine, versions) = (machine(), versions());
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    format!(
        "{}, {}, {} cores, kernel {}, TCP by {}, best of {rounds}, {}.\n",
        text(&machine["date"]),
        text(&machine["processor"]),
        machine["cores"],
        text(&machine["kernel"]),
        text(&machine["congestion"]),
        text(&versions["verbatim"]),
    )
}

fn machine() -> serde_json::Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    json!({
        "processor": field(&read("/proc/cpuinfo"), "model name"), "cores": processors(),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "congestion": read("/proc/sys/net/ipv4/tcp_congestion_control").trim(),
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
