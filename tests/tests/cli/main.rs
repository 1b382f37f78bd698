//! The command line, tested as a user meets it: real processes, real sockets,
//! real exit codes, and the words that are printed. One module a subject; what
//! they share is here. Library tests say whether bytes arrive; these say
//! whether a person or a script is told the truth about it.

#![forbid(unsafe_code)]

mod copying;
mod habits;
mod hardship;
mod keeping;
mod keys;
mod large;
mod logging;
mod names;
mod pipes;
mod reconnecting;
mod resuming;
mod serving;
mod silent;
mod space;
mod stopping;
mod telling;
mod trust;
mod watching;

use process::{Home, Serve};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use verbatim_tests::{http, process};

/// A server with some files, and a folder to copy to.
struct World {
    serve: Serve,
    dir: TempDir,
}

impl World {
    /// Exports `data`, read-only, with `a.bin`, `b.bin` and a folder `sub`; and `in`, writable
    /// and empty.
    fn new() -> Self {
        Self::of(tempfile::tempdir().expect("a temporary folder"), Home::new())
    }

    /// The same in memory, for short waits, which a disk that flushes for somebody else would
    /// exceed.
    fn in_memory() -> Self {
        Self::of(process::memory(), Home::in_memory())
    }

    fn of(dir: TempDir, home: Home) -> Self {
        make_samples(dir.path());
        let serve = Serve::of(&Arc::new(home), "127.0.0.1:0", &exports(dir.path()));
        Self { serve, dir }
    }

    /// A path of this world on disk.
    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// The same, as text for a command.
    fn text(&self, below: &str) -> String {
        text(&self.path(below))
    }
}

/// Makes the folders of a world: `data`, `in`, and `out` to copy to.
fn make_samples(dir: &Path) {
    for folder in ["data/sub/deep", "in", "out"] {
        fs::create_dir_all(dir.join(folder)).expect("a folder");
    }
    // Three chunks and a bit; one byte; nothing.
    fs::write(dir.join("data/a.bin"), bytes(1, (3 << 20) + 17)).expect("a file");
    fs::write(dir.join("data/b.bin"), b"b").expect("a file");
    fs::write(dir.join("data/sub/empty"), b"").expect("a file");
    fs::write(dir.join("data/sub/deep/c.bin"), bytes(3, 70_000)).expect("a file");
}

fn exports(dir: &Path) -> [String; 2] {
    [format!("data={}", text(&dir.join("data"))), format!("in={}:rw", text(&dir.join("in")))]
}

fn text(path: &Path) -> String {
    path.to_str().expect("temporary folders have plain names").to_owned()
}

/// Bytes that no run of zeros and no repetition can be mistaken for.
fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

#[track_caller]
fn assert_same(left: &Path, right: &Path) {
    let read = |path: &Path| {
        fs::read(path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))
    };
    assert!(read(left) == read(right), "{} and {} differ", left.display(), right.display());
}

/// The names in a folder, hidden ones too, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("an entry").file_name().to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

/// Whether this process may do what only root may.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a command is installed and this succeeds.
fn works(command: &str, arguments: &[&str]) -> bool {
    let output = std::process::Command::new(command).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
