//! Mirrors over loopback TCP against an rsync daemon and `cp -a`, interleaved, best
//! of several: the first copy of a tree of small files, the same with nothing
//! changed, and a large file of which one chunk in a hundred changed, with what
//! is on the wire counted by a relay. With `--files 1000000 --rounds 1
//! --large-mib 0` it shows what memory a million entries take.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use verbatim_benches::compare::work::{change, scrambled};
use verbatim_benches::relay::Relay;
use verbatim_benches::rsync::Daemon;
use verbatim_benches::table::{Table, Way};
use verbatim_benches::{Common, Serve, SmallFiles, Watch, bins, fill_tree, let_settle, run};

/// The unit of transfer.
const CHUNK_BYTES: usize = 1 << 20;

/// Measure mirrors against an rsync daemon and cp -a.
#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    small: SmallFiles,
    /// How long the large file is; 0 leaves it out.
    #[arg(long, default_value_t = 4096)]
    large_mib: usize,
    #[command(flatten)]
    common: Common,
}

/// The servers, and the folders that they serve.
struct World {
    serve: Serve,
    daemon: Daemon,
    source: PathBuf,
    target: PathBuf,
}

/// How a tree is copied.
#[derive(Clone, Copy)]
enum How {
    Cp,
    Rsync,
    Down,
    Up,
}

fn main() {
    let flags = Flags::parse();
    let bins = bins();
    let top = tempfile::tempdir_in(&flags.common.target).expect("a folder");
    let state = tempfile::tempdir().expect("a state folder");
    let (source, target) = (top.path().join("source"), top.path().join("target"));
    for folder in [&source, &target] {
        std::fs::create_dir(folder).expect("a folder");
    }
    let export = format!("src={}", source.display());
    let landing = format!("up={}:rw", target.display());
    let serve = Serve::start(&bins, state.path(), 21_494, &[&export, &landing]);
    let daemon = Daemon::start(&[("m", top.path())], state.path(), 21_495);
    let world = World { serve, daemon, source, target };
    let mut figures = Vec::new();
    if flags.small.files > 0 {
        figures.push(("tree", small_files(&world, &flags)));
    }
    if flags.large_mib > 0 {
        figures.push(("large", large_file(&world, &flags)));
    }
    let Some(path) = &flags.common.json else { return };
    let all: serde_json::Map<_, _> =
        figures.into_iter().map(|(name, table)| (name.to_owned(), table.into_json())).collect();
    let text = format!("{:#}\n", serde_json::Value::Object(all));
    std::fs::write(path, text).expect("the figures can be written");
}

impl World {
    /// What copies the tree `name` to the target of the same name; `relay` counts it.
    fn command(&self, how: How, name: &str, relay: Option<&Relay>) -> Command {
        let (source, target) = (self.source.join(name), self.target.join(name));
        let (source, target) = (source.display().to_string(), target.display().to_string());
        let port = |own: u16| relay.map_or(own, |relay| relay.port);
        let ours = |path: &str| format!("rdma://127.0.0.1:{}/{path}", port(self.serve.port));
        let mut command = match how {
            How::Cp => {
                let mut command = Command::new("cp");
                command.args(["-a", &source, &target]);
                command
            }
            How::Rsync => {
                let from = format!("rsync://127.0.0.1:{}/m/source/{name}/", port(self.daemon.port));
                let mut command = Command::new("rsync");
                command.args(["-a", &from, &target]);
                command
            }
            How::Down => self.serve.sync(&["-q", &ours(&format!("src/{name}")), &target]),
            How::Up => self.serve.sync(&["-q", &source, &ours(&format!("up/{name}"))]),
        };
        if relay.is_some() && matches!(how, How::Down | How::Up) {
            self.serve.introduce(&mut command);
        }
        command
    }

    fn pid(&self, how: How) -> u32 {
        if matches!(how, How::Rsync) { self.daemon.pid() } else { self.serve.pid() }
    }

    fn measure(&self, way: &mut Way, round: usize, how: How, name: &str, relay: Option<&Relay>) {
        let watch = Watch::start(self.pid(how));
        let run = run(&mut self.command(how, name, relay));
        way.add(round, run, watch.stop());
    }

    fn remove(&self, name: &str) {
        std::fs::remove_dir_all(self.target.join(name)).expect("the copy can be removed");
    }
}

/// The first copy of a tree, and the next one, for which there is nothing to do.
fn small_files(world: &World, flags: &Flags) -> Table {
    println!("writing {} files of {} bytes", flags.small.files, flags.small.bytes);
    fill_tree(&world.source.join("tree"), flags.small.files, flags.small.bytes);
    let_settle();
    let mut ways = [
        (How::Rsync, Way::new("rsync -a", 1.0), Some(Way::new("rsync -a, nothing new", 1.0))),
        (How::Cp, Way::new("cp -a", 1.0), None),
        (How::Down, Way::new("sync down", 1.0), Some(Way::new("sync down, nothing new", 2.0))),
        (How::Up, Way::new("sync up", 1.0), Some(Way::new("sync up, nothing new", 2.0))),
    ];
    for round in 0..flags.common.rounds {
        for (how, first, again) in &mut ways {
            world.measure(first, round, *how, "tree", None);
            if let Some(again) = again {
                world.measure(again, round, *how, "tree", None);
            }
            world.remove("tree");
        }
    }
    let (firsts, agains): (Vec<Way>, Vec<Option<Way>>) =
        ways.into_iter().map(|(_, first, again)| (first, again)).unzip();
    let mut table = Table::of(&firsts);
    let agains: Vec<Way> = agains.into_iter().flatten().collect();
    table.note("nothing_new", Table::of(&agains).into_json());
    table.note("files", flags.small.files.into());
    table.note("bytes", flags.small.bytes.into());
    table.note("rounds", flags.common.rounds.into());
    table
}

/// A large file of which one chunk in a hundred changes, and what then is on the wire.
fn large_file(world: &World, flags: &Flags) -> Table {
    let (folder, chunks) = (world.source.join("large"), flags.large_mib);
    println!("writing a file of {chunks} MiB");
    std::fs::create_dir(&folder).expect("a folder");
    let path = folder.join("file");
    let file = std::fs::File::create(&path).expect("a file");
    for chunk in 0..chunks {
        let bytes = scrambled(chunk as u64, CHUNK_BYTES);
        file.write_all_at(&bytes, (chunk * CHUNK_BYTES) as u64).expect("writes");
    }
    let mut ways = [
        (How::Rsync, Way::new("rsync -a, 1 % changed", 1.0), 0.0_f64),
        (How::Down, Way::new("sync down, 1 % changed", 1.0), 0.0),
        (How::Up, Way::new("sync up, 1 % changed", 1.0), 0.0),
    ];
    let whole = (chunks * CHUNK_BYTES) as f64;
    for round in 0..flags.common.rounds {
        for (how, way, most) in &mut ways {
            let port = if matches!(how, How::Rsync) { world.daemon.port } else { world.serve.port };
            let relay = Relay::start(port);
            run(&mut world.command(*how, "large", None));
            // Of no other round and of nobody else: what is there already would not be sent.
            change(&path, (round as u64) << 8 | *how as u64);
            world.measure(way, round, *how, "large", Some(&relay));
            let part = relay.take_bytes() as f64 / whole * 100.0;
            println!("        {part:.3} % of the file on the wire");
            *most = most.max(part);
            assert!(same(&path, &world.target.join("large/file")), "the copy differs");
            world.remove("large");
        }
    }
    let wire = ways.each_ref().map(|(_, _, most)| *most);
    let mut table = Table::of(&ways.map(|(_, way, _)| way));
    table.note("wire_percent", serde_json::json!(wire));
    table.note("mib", chunks.into());
    table
}

fn same(one: &Path, other: &Path) -> bool {
    let status = Command::new("cmp").arg("-s").args([one, other]).status();
    status.expect("cmp is there").success()
}
