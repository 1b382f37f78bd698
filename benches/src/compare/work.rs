//! Workloads: what is copied, and by whom. Each is a folder under the source; what
//! is in it does not repeat, so that nothing can be saved but by looking.

use super::contender::Peer::{
    self, Cp, Down, FirstDown, RawDown, RawUp, Rclone, Rsync, RsyncUp, Scp, SyncDown, SyncUp, Tar,
    Up,
};
use crate::{fill, fill_tree};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Something to copy.
pub struct Work {
    /// Its folder.
    pub name: &'static str,
    /// What it is, for people.
    pub title: String,
    /// How long its files are together.
    pub bytes: u64,
    /// How many files it has.
    pub files: usize,
    /// What is there already.
    pub before: Before,
    /// Who copies it.
    pub peers: &'static [Peer],
}

/// What the target has before the clock starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Nothing.
    Nothing,
    /// All of it.
    Same,
    /// All but one chunk in a hundred, all of which differs.
    OneInHundred,
}

/// How much of everything.
pub struct Scale {
    /// A large file, in MiB.
    pub large_mib: u64,
    /// Small files.
    pub small: usize,
    /// Files like those of ImageNet.
    pub mixed: usize,
    /// A file of holes, in GiB.
    pub sparse_gib: u64,
}

const ONE: &[Peer] = &[Cp, Tar, Rsync, RsyncUp, Rclone, Scp, RawDown, RawUp, Down, FirstDown, Up];
const WHOLE: &[Peer] = &[Cp, Tar, Rsync, Rclone, Scp, Down, FirstDown, Up];
const SMALL: &[Peer] = &[Cp, Tar, Rsync, Rclone, Scp, Down, Up];
const MIXED: &[Peer] = &[Cp, Tar, Rsync, RsyncUp, Rclone, Scp, Down, Up];
const AGAIN: &[Peer] = &[Rsync, RsyncUp, Rclone, SyncDown, SyncUp];
const PARTS: &[Peer] = &[Rsync, SyncDown, SyncUp];
const COLD: &[Peer] = &[Cp, Rsync, Rclone, Scp, Down, Up];
const HOLES: &[Peer] = &[Cp, Tar, Rsync, Down];

/// The shards of a checkpoint.
const SHARDS: u64 = 8;

/// The length of a small file.
const SMALL_BYTES: usize = 4096;

/// The workloads at this scale; none is made yet.
pub fn plan(scale: &Scale) -> Vec<Work> {
    let Scale { large_mib, small, mixed, sparse_gib } = *scale;
    let (large, shards) = (large_mib << 20, SHARDS as usize);
    let small_bytes = (small * SMALL_BYTES) as u64;
    let mixed_bytes = (0..mixed).map(mixed_len).sum::<usize>() as u64;
    let work = |name, title, bytes, files, before, peers| Work {
        name,
        title,
        bytes,
        files,
        before,
        peers,
    };
    let nothing = Before::Nothing;
    vec![
        work("one", format!("one file of {large_mib} MiB"), large, 1, nothing, ONE),
        work(
            "shards",
            format!("a checkpoint, {SHARDS} x {} MiB", large_mib / SHARDS),
            large,
            shards,
            nothing,
            WHOLE,
        ),
        work("small", format!("{small} files of 4 KiB"), small_bytes, small, nothing, SMALL),
        work(
            "mixed",
            format!("{mixed} files of 20 to 200 KiB"),
            mixed_bytes,
            mixed,
            nothing,
            MIXED,
        ),
        work(
            "same",
            format!("{small} files of 4 KiB, nothing changed"),
            small_bytes,
            small,
            Before::Same,
            AGAIN,
        ),
        work(
            "part",
            format!("one file of {large_mib} MiB, 1 % changed"),
            large,
            1,
            Before::OneInHundred,
            PARTS,
        ),
        work("cold", "one file of 4 KiB".into(), SMALL_BYTES as u64, 1, nothing, COLD),
        work(
            "holes",
            format!("a sparse file of {sparse_gib} GiB"),
            sparse_gib << 30,
            1,
            nothing,
            HOLES,
        ),
    ]
}

impl Work {
    /// Makes the folder it will be in. All are there from the start: a server may remember which
    /// there were.
    pub fn begin(&self, source: &Path) {
        fs::create_dir(source.join(self.name)).expect("a folder");
    }

    /// Makes what is copied, in its folder under `source`.
    pub fn make(&self, source: &Path) {
        let folder = source.join(self.name);
        let mib = self.bytes >> 20;
        match self.name {
            "one" | "part" => fill(&folder.join("file"), mib),
            "shards" => {
                (0..SHARDS).for_each(|n| fill(&folder.join(format!("shard-{n}")), mib / SHARDS));
            }
            "mixed" => fill_mixed(&folder, self.files),
            "holes" => fill_holes(&folder.join("file"), self.bytes),
            _ => fill_tree(&folder, self.files, SMALL_BYTES),
        }
    }

    /// Removes it, so that the next one has the memory.
    pub fn remove(&self, source: &Path) {
        fs::remove_dir_all(source.join(self.name)).expect("it can be removed");
    }
}

/// Where a file of holes has data, and how much of it.
const DATA_EVERY: usize = 1 << 30;
const DATA_BYTES: usize = 1 << 20;

/// A file of holes with a chunk of data in every GiB.
fn fill_holes(path: &Path, bytes: u64) {
    let file = File::create(path).expect("a file");
    file.set_len(bytes).expect("it grows");
    for (number, at) in (0..bytes).step_by(DATA_EVERY).enumerate() {
        file.write_all_at(&scrambled(number as u64, DATA_BYTES), at).expect("writes");
    }
}

/// Compares the data of two files of holes. What is not data must be holes: reading all of their
/// zeros would take longer than everything else.
///
/// # Errors
/// What differs.
pub fn same_holes(source: &Path, target: &Path) -> Result<(), String> {
    let open = |path: &Path| File::open(path).map_err(|error| error.to_string());
    let (source, target) = (open(source)?, open(target)?);
    let about = |file: &File| file.metadata().map_err(|error| error.to_string());
    let (bytes, copied) = (about(&source)?.len(), about(&target)?);
    if copied.len() != bytes {
        return Err(format!("{} bytes long, not {bytes}", copied.len()));
    }
    let (mut ours, mut theirs) = (vec![0; DATA_BYTES], vec![0; DATA_BYTES]);
    for at in (0..bytes).step_by(DATA_EVERY) {
        source.read_exact_at(&mut ours, at).map_err(|error| error.to_string())?;
        target.read_exact_at(&mut theirs, at).map_err(|error| error.to_string())?;
        if ours != theirs {
            return Err(format!("other bytes at {at}"));
        }
    }
    // Twice, for file systems that have large pages.
    let most = bytes.div_ceil(DATA_EVERY as u64) * DATA_BYTES as u64 * 2;
    let stored = copied.blocks() * 512;
    (stored <= most).then_some(()).ok_or_else(|| format!("{stored} bytes of it are no holes"))
}

/// How long a file of the mix is.
fn mixed_len(number: usize) -> usize {
    let kib = 20 + (number as u64).wrapping_mul(0x9E37_79B9) % 181;
    (kib << 10) as usize
}

/// Files of 20 to 200 KiB, a thousand in a folder.
pub fn fill_mixed(folder: &Path, files: usize) {
    for number in 0..files {
        let class = folder.join(format!("n{:08}", number / 1000));
        if number % 1000 == 0 {
            fs::create_dir_all(&class).expect("a folder");
        }
        let bytes = scrambled(number as u64, mixed_len(number));
        fs::write(class.join(format!("{number}.jpeg")), &bytes).expect("a file");
    }
}

/// Changes one chunk in a hundred of a file, all of it.
pub fn change(path: &Path, seed: u64) {
    let file = File::options().write(true).open(path).expect("the file opens");
    let chunks = file.metadata().expect("a size").len() >> 20;
    for chunk in (0..chunks).step_by(100) {
        file.write_all_at(&scrambled((seed + 1) << 32 | chunk, 1 << 20), chunk << 20)
            .expect("writes");
    }
}

/// Bytes that no other seed has.
pub fn scrambled(seed: u64, len: usize) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = vec![0; len];
    for word in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_made_is_as_long_as_it_was_planned() {
        let scale = Scale { large_mib: 16, small: 30, mixed: 40, sparse_gib: 1 };
        let source = tempfile::tempdir().expect("a folder");
        for work in plan(&scale) {
            work.begin(source.path());
            work.make(source.path());
            let mut find = Command::new("find");
            find.arg(source.path()).args(["-type", "f", "-printf", "%s\\n"]);
            let found = find.output().expect("find is there").stdout;
            let sizes = String::from_utf8(found).expect("numbers");
            let sizes: Vec<u64> = sizes.lines().map(|line| line.parse().expect("a size")).collect();
            assert_eq!(sizes.len(), work.files, "{}", work.name);
            assert_eq!(sizes.iter().sum::<u64>(), work.bytes, "{}", work.name);
            work.remove(source.path());
        }
    }

    #[test]
    fn a_copy_of_holes_has_their_data_and_is_sparse() {
        let folder = tempfile::tempdir().expect("a folder");
        let [source, copy] = ["source", "copy"].map(|name| folder.path().join(name));
        fill_holes(&source, 2 << 30);
        fill_holes(&copy, 2 << 30);
        assert_eq!(same_holes(&source, &copy), Ok(()));
        let file = File::options().write(true).open(&copy).expect("it opens");
        file.write_all_at(b"?", (1 << 30) + 7).expect("writes");
        assert_eq!(same_holes(&source, &copy), Err("other bytes at 1073741824".into()));
        fill_holes(&copy, 2 << 30);
        // Zeros where there were holes.
        file.write_all_at(&vec![0; 8 << 20], 512 << 20).expect("writes");
        assert!(same_holes(&source, &copy).is_err_and(|why| why.contains("no holes")));
        file.set_len(1 << 30).expect("it shrinks");
        assert!(same_holes(&source, &copy).is_err_and(|why| why.contains("bytes long")));
    }
}
