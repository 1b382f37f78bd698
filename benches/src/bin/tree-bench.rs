//! A tree of many small files over loopback TCP against `cp -a`, interleaved,
//! best of several, both ways; with processor time and memory of both sides. With
//! `--files 1000000 --rounds 1` it shows that memory stays flat.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use std::path::PathBuf;
use std::process::Command;
use verbatim_benches::table::{Table, Way};
use verbatim_benches::{Common, Serve, SmallFiles, Watch, bins, fill_tree, let_settle, run};

/// Measure a tree of small files against cp -a.
#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    small: SmallFiles,
    /// Where the tree is.
    #[arg(long, default_value = "/dev/shm")]
    source: PathBuf,
    #[command(flatten)]
    common: Common,
}

fn main() {
    let flags = Flags::parse();
    let bins = bins();
    let source = tempfile::tempdir_in(&flags.source).expect("a source folder");
    let target = tempfile::tempdir_in(&flags.common.target).expect("a target folder");
    let tree = source.path().join("tree");
    println!("writing {} files of {} bytes", flags.small.files, flags.small.bytes);
    fill_tree(&tree, flags.small.files, flags.small.bytes);
    let_settle();

    let export = format!("src={}", source.path().display());
    let landing = format!("up={}:rw", target.path().display());
    let state = tempfile::tempdir().expect("a state folder");
    let serve = Serve::start(&bins, state.path(), 21_492, &[&export, &landing]);
    let mut ways = [Way::new("cp -a", 1.0), Way::new("download", 0.5), Way::new("upload", 0.5)];
    let out = target.path().join("copy");
    let (from, to) = (tree.display().to_string(), out.display().to_string());
    let (down, up) = (url(&serve, "src/tree"), url(&serve, "up/copy"));
    for round in 0..flags.common.rounds {
        for (index, way) in ways.iter_mut().enumerate() {
            let mut command = match index {
                0 => {
                    let mut cp = Command::new("cp");
                    cp.args(["-a", &from, &to]);
                    cp
                }
                1 => serve.cp(&["-q", "-r", &down, &to]),
                _ => serve.cp(&["-q", "-r", &from, &up]),
            };
            let watch = Watch::start(serve.pid());
            way.add(round, run(&mut command), watch.stop());
            std::fs::remove_dir_all(&out).expect("the copy can be removed");
        }
    }
    let mut table = Table::of(&ways);
    table.note("files", flags.small.files.into());
    table.note("bytes", flags.small.bytes.into());
    table.note("rounds", flags.common.rounds.into());
    table.write(flags.common.json.as_deref());
}

fn url(serve: &Serve, path: &str) -> String {
    format!("rdma://127.0.0.1:{}/{path}", serve.port)
}
