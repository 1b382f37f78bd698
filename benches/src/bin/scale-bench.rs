//! Runs the scheduler on modelled rails and writes what it kept of them: a table to
//! standard output and, with `--docs FOLDER`, the table into performance.md there and
//! a plot beside it. Virtual time: every machine gets the same figures.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use clap::Parser;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
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

/// Where the table stands in performance.md.
const BEGIN: &str = "<!-- scale-bench begins -->\n";
const END: &str = "<!-- scale-bench ends -->";

fn main() -> io::Result<()> {
    let flags = Flags::parse();
    let mut table = String::from(
        "| varied | value | GB/s | possible | kept |\n| --- | --- | ---: | ---: | ---: |\n",
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
    let (mut kept, mut possible) = (Vec::new(), Vec::new());
    for (value, model) in models {
        let figures = model.run();
        let (rate, most) = (figures.bytes_per_s / 1e9, figures.possible_bytes_per_s / 1e9);
        let percent = 100.0 * figures.kept();
        let _ = writeln!(table, "| {title} | {value} | {rate:.0} | {most:.0} | {percent:.0} % |");
        kept.push(rate);
        possible.push(most);
    }
    Panel {
        title: title.into(),
        ticks: models.iter().map(|(value, _)| value.clone()).collect(),
        lines: vec![("modelled".into(), kept), ("possible".into(), possible)],
        unit: "GB/s".into(),
    }
}

fn write_docs(folder: &Path, table: &str, panels: &[Panel]) -> io::Result<()> {
    let path = folder.join("performance.md");
    let text = std::fs::read_to_string(&path)?;
    let unmarked = || io::Error::other(format!("{} has no marks for the table", path.display()));
    let (before, rest) = text.split_once(BEGIN).ok_or_else(unmarked)?;
    let (_, behind) = rest.split_once(END).ok_or_else(unmarked)?;
    std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{behind}"))?;
    std::fs::write(folder.join("scale.svg"), draw(panels))
}
