//! Runs the scheduler on modelled rails and writes what it kept of them: a table to
//! standard output and, with `--docs FOLDER`, the table into performance.md there and
//! a plot beside it. Virtual time: every machine gets the same figures.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use verbatim_benches::marks::write_between;
use verbatim_benches::plot::{Panel, draw};
use verbatim_benches::scale::Model;

/// Models the scheduler on 8 x 400 Gb/s.
#[derive(Parser)]
struct Flags {
    /// Write performance.md and scale.svg in this folder.
    ///
    /// The table goes between the two marks in performance.md, which must be there.
    #[arg(long, value_name = "FOLDER")]
    docs: Option<PathBuf>,
}

fn main() -> io::Result<()> {
    let flags = Flags::parse();
    let mut table = String::from(
        "| varied | value | read, GB/s | written, GB/s | possible | kept reading | kept writing |\n\
         | --- | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let base = Model::default();
    let sweeps: [(&str, Vec<(String, Model)>); 4] = [
        ("rails", [1, 2, 4, 8].map(|rails| (rails.to_string(), Model { rails, ..base })).into()),
        (
            "queue pairs a rail",
            [1, 2, 4, 8]
                .map(|links_per_rail| {
                    (links_per_rail.to_string(), Model { links_per_rail, ..base })
                })
                .into(),
        ),
        (
            "chunk",
            [256 << 10, 1 << 20, 4 << 20, 16 << 20]
                .map(|chunk_bytes| {
                    (format!("{} KiB", chunk_bytes >> 10), Model { chunk_bytes, ..base })
                })
                .into(),
        ),
        ("cores", [8, 16, 32, 64].map(|cores| (cores.to_string(), Model { cores, ..base })).into()),
    ];
    let panels: Vec<Panel> =
        sweeps.iter().map(|(title, models)| sweep(title, models, &mut table)).collect();
    print!("{table}");
    flags.docs.map_or(Ok(()), |folder| write_docs(&folder, &table, &panels))
}

fn sweep(title: &str, models: &[(String, Model)], table: &mut String) -> Panel {
    let (mut read, mut written, mut possible) = (Vec::new(), Vec::new(), Vec::new());
    for (value, model) in models {
        let (down, up) = (model.run(), model.run_up());
        let rates = [&down, &up].map(|figures| figures.bytes_per_s / 1e9);
        // The same both ways: what a server prepares is the limit in no row.
        let most = down.possible_bytes_per_s.max(up.possible_bytes_per_s) / 1e9;
        let percents = rates.map(|rate| 100.0 * rate / most);
        let _ = writeln!(
            table,
            "| {title} | {value} | {:.0} | {:.0} | {most:.0} | {:.0} % | {:.0} % |",
            rates[0], rates[1], percents[0], percents[1]
        );
        read.push(rates[0]);
        written.push(rates[1]);
        possible.push(most);
    }
    Panel {
        title: title.into(),
        ticks: models.iter().map(|(value, _)| value.clone()).collect(),
        lines: vec![
            ("read".into(), read),
            ("written".into(), written),
            ("possible".into(), possible),
        ],
        unit: "GB/s".into(),
        caption: Vec::new(),
    }
}

fn write_docs(folder: &Path, table: &str, panels: &[Panel]) -> io::Result<()> {
    write_between(&folder.join("performance.md"), "scale-bench", table)?;
    std::fs::write(folder.join("scale.svg"), draw(panels))
}
