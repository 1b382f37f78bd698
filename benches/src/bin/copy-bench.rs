//! One large file over loopback TCP against cp, interleaved, best of several:
//! download with cached digests, first download (the server hashes), upload
//! (both hash). Page cache to tmpfs. Also the anonymous memory of both sides,
//! for this file and for a large sparse one. Prints a table, writes JSON.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use verbatim_benches::table::{Table, Way};
use verbatim_benches::{Common, Serve, Watch, bins, fill, let_settle, run};

/// Measure one large file against cp.
#[derive(Parser)]
struct Flags {
    /// Size of the file in MiB.
    #[arg(long, default_value_t = 4096)]
    size_mib: u64,
    /// Size of the sparse file in GiB; 0 leaves it out.
    #[arg(long, default_value_t = 64)]
    sparse_gib: u64,
    /// Where the source is, on a disk: it is read from the page cache.
    #[arg(long, default_value = "/var/tmp")]
    source: PathBuf,
    #[command(flatten)]
    common: Common,
}

fn main() {
    let flags = Flags::parse();
    let bins = bins();
    let source = tempfile::tempdir_in(&flags.source).expect("a source folder");
    let target = tempfile::tempdir_in(&flags.common.target).expect("a target folder");
    let file = source.path().join("big");
    println!("writing {} MiB to {}", flags.size_mib, file.display());
    fill(&file, flags.size_mib);
    let_settle();

    let export = format!("big={}", source.path().display());
    let landing = format!("up={}:rw", target.path().display());
    let state = tempfile::tempdir().expect("a state folder");
    let no_cache = state.path().join("no-cache.toml");
    std::fs::write(&no_cache, "[cache]\nenabled = false\n").expect("a configuration");
    let no_cache = no_cache.display().to_string();
    let cached = Serve::start(&bins, &state.path().join("a"), 21_490, &[&export, &landing]);
    let fresh = ["--config", &no_cache, &export, &landing];
    let fresh = Serve::start(&bins, &state.path().join("b"), 21_491, &fresh);

    let mut ways = [
        Way::new("cp", 1.0),
        Way::new("download, digests cached", 0.8),
        Way::new("first download", 0.6),
        Way::new("upload", 0.6),
    ];
    let out = target.path().join("copy");
    let (from, to) = (file.display().to_string(), out.display().to_string());
    let down =
        |serve: &Serve| serve.cp(&["-q", &format!("rdma://127.0.0.1:{}/big/big", serve.port), &to]);
    run(&mut down(&cached));
    for round in 0..flags.common.rounds {
        for (index, way) in ways.iter_mut().enumerate() {
            let _ = std::fs::remove_file(&out);
            let serve = if index == 1 { &cached } else { &fresh };
            let watch = Watch::start(serve.pid());
            let mut command = match index {
                0 => {
                    let mut cp = Command::new("cp");
                    cp.args([&from, &to]);
                    cp
                }
                1 | 2 => down(serve),
                _ => {
                    let up = format!("rdma://127.0.0.1:{}/up/copy", serve.port);
                    serve.cp(&["-q", &from, &up])
                }
            };
            way.add(round, run(&mut command), watch.stop());
        }
    }
    let _ = std::fs::remove_file(&out);
    let sparse = (flags.sparse_gib > 0).then(|| sparse(&flags, source.path(), &cached));
    report(&flags, &ways, sparse);
}

/// Downloads a large sparse file; its copy is sparse too.
fn sparse(flags: &Flags, source: &Path, serve: &Serve) -> (u64, u64) {
    let path = source.join("sparse");
    let file = File::create(&path).expect("a sparse file");
    file.set_len(flags.sparse_gib << 30).expect("a sparse file");
    let_settle();
    let out = source.join("sparse.copy").display().to_string();
    let watch = Watch::start(serve.pid());
    let url = format!("rdma://127.0.0.1:{}/big/sparse", serve.port);
    let client = run(&mut serve.cp(&["-q", &url, &out]));
    println!("sparse {} GiB {:.1} s", flags.sparse_gib, client.time.as_secs_f64());
    (client.used.rss_anon_kib, watch.stop().rss_anon_kib)
}

fn report(flags: &Flags, ways: &[Way], sparse: Option<(u64, u64)>) {
    let mut table = Table::of(ways);
    table.note("size_mib", flags.size_mib.into());
    table.note("rounds", flags.common.rounds.into());
    if let Some((client, server)) = sparse {
        let (client, server) = (client / 1024, server / 1024);
        println!(
            "sparse {} GiB: RssAnon client {client} MiB, server {server} MiB",
            flags.sparse_gib
        );
        let figures = serde_json::json!({
            "gib": flags.sparse_gib, "client_rss_anon_mib": client, "server_rss_anon_mib": server,
        });
        table.note("sparse", figures);
    }
    table.write(flags.common.json.as_deref());
}
