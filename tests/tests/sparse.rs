//! Sparse files, end to end: holes are neither moved nor stored, whatever is
//! around them, and the digest is that of all bytes. What is cut short goes on,
//! and a hole that somebody fills is a change like any other.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use verbatim_fabric::sim::{Faults, SimClock, SimNet};
use verbatim_files::journal;
use verbatim_proto::Extent;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_tests::pair::{Backend, Copied, DEADLINE, Pair, read};
use verbatim_tests::process::{contents, wait_for};
use verbatim_tests::proxy::{Direction, Harm, Kind, Proxy, Rule};
use verbatim_tests::tree;

const GRAIN: u64 = GRAIN_BYTES;

/// What a file system stores as a whole, and how far such blocks lie apart in `fine`.
const BLOCK: u64 = 4096;
const FINE_STEP: u64 = 128 << 10;

/// What a file is made of: its size, and where data of which length is.
struct Layout {
    name: &'static str,
    size: u64,
    data: Vec<(u64, u64)>,
}

impl Layout {
    fn new(name: &'static str, size: u64, data: &[(u64, u64)]) -> Self {
        Self { name, size, data: data.to_vec() }
    }

    /// Makes the file, with a hole wherever there is no data.
    fn make(&self, path: &Path) {
        let file = File::create(path).expect("creates");
        file.set_len(self.size).expect("grows");
        for &(offset, len) in &self.data {
            file.write_all_at(&tree::content(offset, len as usize), offset).expect("writes");
        }
    }

    /// The digest of what `make` makes, of no file: so no hole is read for it.
    fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        for &(offset, len) in &self.data {
            zeros(&mut hasher, offset - at);
            hasher.update(&tree::content(offset, len as usize));
            at = offset + len;
        }
        zeros(&mut hasher, self.size - at);
        hasher.finalize().to_string()
    }

    /// The bytes of all grains that have some data.
    fn data_bytes(&self) -> u64 {
        let mut grains: Vec<u64> = Vec::new();
        for &(offset, len) in &self.data {
            grains.extend(offset / GRAIN..(offset + len).div_ceil(GRAIN));
        }
        grains.dedup();
        grains.iter().map(|grain| GRAIN.min(self.size - grain * GRAIN)).sum()
    }

    /// Fails unless only data was moved and stored, and the digest is that of the source.
    fn check(&self, copied: &Copied, digest: &str, copy: &Path) {
        let Self { name, size, .. } = self;
        let data = self.data_bytes();
        assert_eq!(copied.summary.moved_bytes, data, "{name}: {:?}", copied.summary);
        assert_eq!(copied.summary.hole_bytes, size - data, "{name}");
        assert_eq!(copied.summary.bytes, *size, "{name}");
        assert_eq!(copied.done[0].digest.to_string(), digest, "{name}");
        let stored = fs::metadata(copy).expect("there").blocks() * 512;
        // A file system keeps a few blocks of its own.
        assert!(stored <= data + (64 << 10), "{name} takes {stored} bytes for {data}");
    }
}

fn digest_of(path: &Path) -> String {
    let mut hasher = blake3::Hasher::new();
    std::io::copy(&mut File::open(path).expect("opens"), &mut hasher).expect("reads");
    hasher.finalize().to_string()
}

fn zeros(hasher: &mut blake3::Hasher, mut len: u64) {
    let block = vec![0; 1 << 20];
    while len > 0 {
        let part = len.min(block.len() as u64);
        hasher.update(&block[..part as usize]);
        len -= part;
    }
}

fn layouts() -> Vec<Layout> {
    let many: Vec<(u64, u64)> = (0..300).map(|i| (2 * i * GRAIN + 77, 100)).collect();
    vec![
        Layout::new("one hole", 40 << 20, &[]),
        Layout::new("one hole, one byte over a grain", GRAIN + 1, &[]),
        Layout::new("hole at the start", 40 << 20, &[(30 << 20, 10 << 20)]),
        Layout::new("hole at the end", (40 << 20) + 5, &[(0, 3 << 20)]),
        Layout::new("a few bytes in a hole", (40 << 20) + 5, &[((20 << 20) + 9, 100)]),
        Layout::new("the last byte", (40 << 20) + 5, &[((40 << 20) + 4, 1)]),
        Layout::new("across grains", 40 << 20, &[(5 * GRAIN - 1, 2), (9 * GRAIN, GRAIN)]),
        Layout::new("more holes than a message", 601 * GRAIN - 3, &many),
        Layout::new("no hole", 3 << 20, &[(0, 3 << 20)]),
    ]
}

fn there_and_back(pair: &Pair) {
    for layout in layouts() {
        let (source, copy) = (pair.served("ro").join(layout.name), pair.local(layout.name));
        layout.make(&source);
        let digest = layout.digest();
        let down = pair.down(&[&format!("ro/{}", layout.name)], "").run().whole();
        layout.check(&down, &digest, &copy);
        assert_eq!(digest_of(&copy), digest, "{}, down", layout.name);
        let (up, copy) =
            (pair.up(&[layout.name], "rw").run().whole(), pair.served("rw").join(layout.name));
        layout.check(&up, &digest, &copy);
        assert_eq!(digest_of(&copy), digest, "{}, up", layout.name);
    }
}

#[test]
fn holes_are_neither_moved_nor_stored_over_tcp() {
    there_and_back(&Pair::start(Backend::Tcp));
}

#[test]
fn holes_are_neither_moved_nor_stored_over_sim() {
    there_and_back(&Pair::in_memory(Backend::sim()));
}

#[test]
fn of_five_gib_only_the_data_crosses_the_links() {
    let gib = 1 << 30;
    let data = [(0, 100), (gib - 5, 10), (2 * gib, 3 << 20), (4 * gib + 7 * GRAIN, GRAIN)];
    let layout = Layout::new("large", 5 * gib + 123, &data);
    let net = SimNet::new(1, Faults::default(), SimClock::Real);
    let pair = Pair::start(Backend::Sim(net.clone()));
    let (source, copy) = (pair.served("ro/large"), pair.local("large"));
    layout.make(&source);
    let digest = layout.digest();
    let down = pair.down(&["ro/large"], "").run().whole();
    layout.check(&down, &digest, &copy);
    assert_eq!(net.counts().bytes, layout.data_bytes(), "as the network counts it, down");
    let up = pair.up(&["large"], "rw").run().whole();
    layout.check(&up, &digest, &pair.served("rw/large"));
    assert_eq!(digest_of(&pair.served("rw/large")), digest, "after both ways");
    assert_eq!(net.counts().bytes, 2 * layout.data_bytes(), "as the network counts it, up");
}

#[test]
fn progress_says_that_holes_are_hashed_and_not_that_the_server_is_silent() {
    let layout = Layout::new("hollow", 6 << 30, &[]);
    let pair = Pair::in_memory(Backend::Tcp);
    layout.make(&pair.served("ro/hollow"));
    for up in [false, true] {
        let job = if up { pair.up(&["hollow"], "rw") } else { pair.down(&["ro/hollow"], "") };
        let copied = job.run().whole();
        assert!(!copied.underway.is_empty(), "up: {up}: nothing was told of {copied:?}");
        for progress in &copied.underway {
            assert_eq!(progress.quiet, None, "up: {up}: {progress:?}");
            assert!(progress.hashing_holes, "up: {up}: {progress:?}");
        }
    }
}

/// A file of this many blocks of 4 KiB, one every 128 KiB, and a hole at its end: data is in
/// every grain.
fn fine(name: &'static str, blocks: u64) -> Layout {
    let data: Vec<(u64, u64)> = (0..blocks).map(|i| (i * FINE_STEP, BLOCK)).collect();
    Layout::new(name, blocks * FINE_STEP, &data)
}

fn allocated(path: &Path) -> u64 {
    fs::metadata(path).expect("there").blocks() * 512
}

/// Fails unless a copy has the bytes of its source, and takes little more room.
#[track_caller]
fn assert_as_sparse(source: &Path, copy: &Path) {
    assert!(read(copy) == read(source), "{} has other bytes", copy.display());
    let (had, has) = (allocated(source), allocated(copy));
    let most = had + had / 10 + (64 << 10);
    assert!(has <= most, "{} takes {has} bytes, its source {had}", copy.display());
}

fn finely_there_and_back(pair: &Pair) {
    // One that lasts, one that does not, and one of a single grain, whose digest is its root.
    let last = (31 * FINE_STEP + 5000, 10);
    let mut odd = fine("odd", 31);
    odd.size += 9000;
    odd.data.push(last);
    for layout in [fine("large", 256), fine("small", 33), odd, fine("grain", 2)] {
        let name = layout.name;
        let (source, copy) = (pair.served("ro").join(name), pair.local(name));
        layout.make(&source);
        let down = pair.down(&[&format!("ro/{name}")], "").run().whole();
        assert_eq!(down.summary.moved_bytes, layout.data_bytes(), "holes below a grain are moved");
        assert_as_sparse(&source, &copy);
        pair.up(&[name], "rw").run().whole();
        assert_as_sparse(&source, &pair.served("rw").join(name));
    }
}

#[test]
fn a_finely_sparse_file_takes_the_room_of_its_data_over_tcp() {
    finely_there_and_back(&Pair::start(Backend::Tcp));
    finely_there_and_back(&Pair::in_memory(Backend::Tcp));
}

#[test]
fn a_finely_sparse_file_takes_the_room_of_its_data_over_sim() {
    finely_there_and_back(&Pair::in_memory(Backend::sim()));
}

#[test]
fn small_sparse_files_take_the_room_of_their_data() {
    let pair = Pair::in_memory(Backend::Tcp);
    for index in 0..50_u64 {
        // With data at their start, in their middle or at their end, or with none.
        let size = 12_000 + index * 1000;
        let data = [Some(0), Some(8192), Some((size - 1) / BLOCK * BLOCK), None];
        let data = data[index as usize % 4].map(|at| (at, 100));
        let layout = Layout { name: "", size, data: data.into_iter().collect() };
        layout.make(&pair.served("ro").join(index.to_string()));
    }
    pair.down(&["ro"], "copy").run().whole();
    pair.up(&["copy"], "rw/copy").run().whole();
    for index in 0..50 {
        let source = pair.served("ro").join(index.to_string());
        for copy in [pair.local("copy"), pair.served("rw/copy")] {
            let copy = copy.join(index.to_string());
            assert!(read(&copy) == read(&source), "{} has other bytes", copy.display());
            let (had, has) = (allocated(&source), allocated(&copy));
            assert!(has <= had, "{} takes {has} bytes, its source {had}", copy.display());
        }
    }
}

#[test]
fn a_file_whose_zeros_are_stored_keeps_them_stored() {
    let pair = Pair::in_memory(Backend::Tcp);
    let layout = fine("dense", 160);
    let source = pair.served("ro/dense");
    layout.make(&source);
    let bytes = read(&source);
    fs::write(&source, &bytes).expect("writes the zeros too");
    assert!(allocated(&source) >= layout.size, "the source is sparse itself");
    pair.down(&["ro/dense"], "").run().whole();
    pair.up(&["dense"], "rw").run().whole();
    for copy in [pair.local("dense"), pair.served("rw/dense")] {
        assert!(read(&copy) == bytes, "{} has other bytes", copy.display());
        let stored = allocated(&copy);
        assert!(stored >= layout.size, "{} takes {stored} bytes", copy.display());
    }
}

/// A file from here: 48 MiB, of which two thirds are holes between data.
fn striped() -> Layout {
    let data: Vec<(u64, u64)> = (0..16).map(|i| (i * (3 << 20), 1 << 20)).collect();
    Layout::new("striped", 48 << 20, &data)
}

/// The same with most of its data a hole too, though none of a whole grain.
fn finely_striped() -> Layout {
    let blocks = |start| (0..8).map(move |i| (start + i * FINE_STEP, BLOCK));
    let data: Vec<(u64, u64)> = (0..16).flat_map(|i| blocks(i * (3 << 20))).collect();
    Layout::new("striped", 48 << 20, &data)
}

fn hidden(folder: &Path, end: &str) -> Option<PathBuf> {
    let found = tree::walk(folder).into_iter().find(|path| path.to_string_lossy().ends_with(end));
    found.map(|path| folder.join(path))
}

/// Waits for a journal that says something and then says nothing more for a while.
#[track_caller]
fn wait_for_journal(folder: &Path) -> PathBuf {
    let mut last = (0, Instant::now());
    let what = "a journal has more than 1000 bytes and has not grown for 0.3 s";
    wait_for(what, DEADLINE, || {
        let journal = hidden(folder, ".verbatim-journal");
        let len = journal.as_ref().and_then(|path| fs::metadata(path).ok()).map_or(0, |m| m.len());
        if len != last.0 {
            last = (len, Instant::now());
        }
        match len > 1000 && last.1.elapsed() > Duration::from_millis(300) {
            true => Ok(journal.expect("it was just there")),
            false => Err(format!("{len} bytes, for {:?}; {}", last.1.elapsed(), contents(folder))),
        }
    })
}

/// Cuts a copy short in the middle; forgets half of what its journal says, of data and of
/// holes, and makes garbage of all that is not noted; and has the same copy go on.
fn goes_on(up: bool, layout: &Layout) {
    let pair = Pair::in_memory(Backend::Tcp);
    let direction = if up { Direction::Up } else { Direction::Down };
    let (source, folder) = match up {
        true => (pair.local("striped"), pair.served("rw")),
        false => (pair.served("ro/striped"), pair.local("")),
    };
    layout.make(&source);
    // Its identity must be trusted, or nothing would be gone on with.
    std::thread::sleep(Duration::from_millis(2100));
    let job = || match up {
        true => pair.up(&["striped"], "rw"),
        false => pair.down(&["ro/striped"], ""),
    };
    let stalls = Rule::all(Kind::Data, direction, Harm::StallAfter(5 << 20));
    let proxy = Proxy::start(pair.port(), &[stalls]);
    let (stop, stopped) = oneshot::channel();
    let stopper = {
        let folder = folder.clone();
        std::thread::spawn(move || {
            let journal = wait_for_journal(&folder);
            stop.send(()).expect("the copy waits");
            journal
        })
    };
    let cut = job().through(&proxy).stop_when(stopped).run();
    let journal = stopper.join().expect("finds a journal");
    assert_eq!((cut.summary.files, cut.summary.failed), (0, 1));
    drop(proxy);
    let noted = forget_half(&journal, layout);
    let part = hidden(&folder, ".verbatim-part").expect("there");
    let part = File::options().write(true).open(part).expect("opens");
    for grain in (0..layout.size / GRAIN).filter(|grain| !noted.contains(grain)) {
        part.write_all_at(&[0xEE; GRAIN_BYTES as usize], grain * GRAIN).expect("writes");
    }
    let done = wait_until_free(job);
    assert_as_sparse(&source, &folder.join("striped"));
    assert_eq!(done.done[0].digest.to_string(), digest_of(&source));
    let data = layout.data_bytes();
    let moved = done.summary.moved_bytes;
    assert!((1..data).contains(&moved), "{moved} bytes of {data} were moved again");
    let (made, holes) = (done.summary.hole_bytes, layout.size - data);
    assert!((1..holes).contains(&made), "{made} bytes of {holes} were made holes again");
}

/// Runs a copy; the server may need a moment to see that the one before is gone.
fn wait_until_free(job: impl Fn() -> verbatim_tests::pair::Job) -> Copied {
    std::thread::sleep(Duration::from_millis(500));
    job().run().whole()
}

/// Keeps every second record of a journal, of data and of holes; returns the grains it names.
fn forget_half(path: &Path, layout: &Layout) -> Vec<u64> {
    let mut records = Vec::new();
    let file = File::open(path).expect("opens");
    let read = journal::read(&file, |_, extent, digests| records.push((extent, digests)));
    let (head, _) = read.expect("a journal");
    let starts: Vec<u64> = layout.data.iter().map(|&(offset, _)| offset).collect();
    let is_data = |extent: &Extent| starts.contains(&extent.offset);
    let (data, holes): (Vec<_>, Vec<_>) = records.into_iter().partition(|(e, _)| is_data(e));
    assert!(data.len() > 1 && holes.len() > 1, "{} and {} records", data.len(), holes.len());
    let mut file = File::options().append(true).open(path).expect("opens");
    journal::begin(&mut file, &head).expect("begins anew");
    let mut grains = Vec::new();
    for (extent, digests) in data.iter().step_by(2).chain(holes.iter().step_by(2)) {
        journal::append(&file, *extent, digests).expect("appends");
        grains.extend(extent.offset / GRAIN..(extent.offset + extent.len).div_ceil(GRAIN));
    }
    grains
}

#[test]
fn a_sparse_download_goes_on_in_the_middle() {
    goes_on(false, &striped());
}

#[test]
fn a_sparse_upload_goes_on_in_the_middle() {
    goes_on(true, &striped());
}

#[test]
fn a_finely_sparse_download_goes_on_and_replaces_garbage_by_zeros() {
    goes_on(false, &finely_striped());
}

#[test]
fn a_finely_sparse_upload_goes_on_and_replaces_garbage_by_zeros() {
    goes_on(true, &finely_striped());
}

/// Fills a hole of the source while the copy waits for a stalled link.
fn is_noticed_when_filled(up: bool, racy: bool) {
    let pair = Pair::in_memory(Backend::Tcp);
    let layout = striped();
    let (source, copy) = match up {
        true => (pair.local("striped"), pair.served("rw/striped")),
        false => (pair.served("ro/striped"), pair.local("striped")),
    };
    layout.make(&source);
    if !racy {
        std::thread::sleep(Duration::from_millis(2100));
    }
    let direction = if up { Direction::Up } else { Direction::Down };
    let stalls = Rule::first(Kind::Data, direction, Harm::StallAfter(3 << 20));
    let proxy = Proxy::start(pair.port(), &[stalls]);
    let filler = {
        let (source, folder) = (source.clone(), copy.parent().expect("a folder").to_owned());
        std::thread::spawn(move || {
            wait_for_journal(&folder);
            let file = File::options().write(true).open(source).expect("opens");
            file.write_all_at(b"no longer a hole", (44 << 20) + 99).expect("writes");
        })
    };
    let job = match up {
        true => pair.up(&["striped"], "rw"),
        false => pair.down(&["ro/striped"], ""),
    };
    let done = job.timeout(Duration::from_secs(3)).through(&proxy).run().whole();
    filler.join().expect("fills");
    assert!(read(&copy) == read(&source), "the copy is of before, or a mixture");
    assert_eq!(done.done[0].digest.to_string(), digest_of(&source));
}

#[test]
fn a_hole_that_is_filled_meanwhile_is_noticed_down() {
    is_noticed_when_filled(false, false);
}

#[test]
fn a_hole_that_is_filled_meanwhile_is_noticed_up() {
    is_noticed_when_filled(true, false);
}

#[test]
fn a_hole_of_a_young_file_that_is_filled_meanwhile_is_noticed() {
    is_noticed_when_filled(false, true);
}
