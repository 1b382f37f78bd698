//! Copies one file over loopback with the links and workers of the product and
//! nothing checked: what the comparison measures the cost of checking against.

#![forbid(unsafe_code)]

use clap::Parser;
use std::path::PathBuf;
use verbatim_benches::raw::{Way, copy};

/// Copy a file with nothing checked, to be compared with.
#[derive(Parser)]
struct Flags {
    /// As a download or as an upload.
    way: Way,
    /// The file.
    source: PathBuf,
    /// Its copy.
    target: PathBuf,
}

fn main() {
    let flags = Flags::parse();
    copy(flags.way, &flags.source, &flags.target).expect("it is copied");
}
