//! Workloads: what is copied, and by whom. Each is a folder under the source; what
//! is in it does not repeat, so that nothing can be saved but by looking.

use super::peers::Peer::{
    self, Cp, Down, FirstDown, Rclone, Rsync, Scp, SyncDown, SyncUp, Tar, Up,
};
use crate::{fill, fill_tree};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
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

const WHOLE: &[Peer] = &[Cp, Tar, Rsync, Rclone, Scp, Down, FirstDown, Up];
const TREE: &[Peer] = &[Cp, Tar, Rsync, Rclone, Scp, Down, Up];
const AGAIN: &[Peer] = &[Rsync, Rclone, SyncDown, SyncUp];
const PARTS: &[Peer] = &[Rsync, SyncDown, SyncUp];
const COLD: &[Peer] = &[Cp, Rsync, Rclone, Scp, Down, Up];
const HOLES: &[Peer] = &[Cp, Tar, Rsync, Down];

/// The shards of a checkpoint.
const SHARDS: u64 = 8;

/// The workloads at this scale, made under `source`.
pub fn make(source: &Path, scale: &Scale) -> Vec<Work> {
    let (large, small) = (scale.large_mib << 20, 4096);
    let mut works = Vec::new();
    let mut work = |name, title: String, bytes, files, before, peers| {
        fs::create_dir(source.join(name)).expect("a folder");
        works.push(Work { name, title, bytes, files, before, peers });
        source.join(name)
    };
    let one = work(
        "one",
        format!("one file of {} MiB", scale.large_mib),
        large,
        1,
        Before::Nothing,
        WHOLE,
    );
    fill(&one.join("file"), scale.large_mib);
    let shards = format!("a checkpoint, {SHARDS} x {} MiB", scale.large_mib / SHARDS);
    let shards = work("shards", shards, large, SHARDS as usize, Before::Nothing, WHOLE);
    (0..SHARDS).for_each(|n| fill(&shards.join(format!("shard-{n}")), scale.large_mib / SHARDS));
    let bytes = (scale.small * small) as u64;
    let title = format!("{} files of 4 KiB", scale.small);
    fill_tree(&work("small", title, bytes, scale.small, Before::Nothing, TREE), scale.small, small);
    let mixed = work("mixed", String::new(), 0, scale.mixed, Before::Nothing, TREE);
    let mixed = fill_mixed(&mixed, scale.mixed);
    let title = format!("{} files of 4 KiB, nothing changed", scale.small);
    fill_tree(&work("same", title, bytes, scale.small, Before::Same, AGAIN), scale.small, small);
    let title = format!("one file of {} MiB, 1 % changed", scale.large_mib);
    let part = work("part", title, large, 1, Before::OneInHundred, PARTS);
    fill(&part.join("file"), scale.large_mib);
    fill_tree(&work("cold", "one file of 4 KiB".into(), 4096, 1, Before::Nothing, COLD), 1, small);
    let title = format!("a sparse file of {} GiB", scale.sparse_gib);
    let holes = work("holes", title, scale.sparse_gib << 30, 1, Before::Nothing, HOLES);
    fill_holes(&holes.join("file"), scale.sparse_gib << 30);
    let found = works.iter_mut().find(|work| work.name == "mixed").expect("it was just made");
    found.bytes = mixed;
    found.title = format!("{} files of 20 to 200 KiB", scale.mixed);
    works
}

/// A file of holes with a chunk of data in every GiB.
fn fill_holes(path: &Path, bytes: u64) {
    let file = File::create(path).expect("a file");
    file.set_len(bytes).expect("it grows");
    for (number, at) in (0..bytes).step_by(1 << 30).enumerate() {
        file.write_all_at(&scrambled(number as u64, 1 << 20), at).expect("writes");
    }
}

/// Files of 20 to 200 KiB, a thousand in a folder; returns how long they are together.
fn fill_mixed(folder: &Path, files: usize) -> u64 {
    let mut all = 0;
    for number in 0..files {
        let class = folder.join(format!("n{:08}", number / 1000));
        if number % 1000 == 0 {
            fs::create_dir(&class).expect("a folder");
        }
        let kib = 20 + (number as u64).wrapping_mul(0x9E37_79B9) % 181;
        let bytes = scrambled(number as u64, (kib << 10) as usize);
        fs::write(class.join(format!("{number}.jpeg")), &bytes).expect("a file");
        all += bytes.len() as u64;
    }
    all
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
