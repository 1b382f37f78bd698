//! Where a copy lands: a temporary file beside its final name, which takes that
//! name only when all of it is there and verified. A batch becomes durable
//! together: the files are flushed side by side, then renamed, then their
//! folders are flushed. Dropping a target that was not committed removes it,
//! unless it was made to last: then a later run goes on with it.

use crate::folder::Folder;
use crate::holes::{ZEROS, hash_zeros};
use crate::journal::{self, Head};
use crate::meta::{self, Kind, Rules};
use crate::partial;
use crate::space::Room;
use rustix::fs::{Advice, AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::fs::{fadvise, fallocate, flock, fsync, openat, renameat, unlinkat};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Have;
use verbatim_proto::units::NAME_BYTES_MAX;
use verbatim_proto::{Code, Digest, Dropped, Extent, Fault, Meta, WirePath};

/// Files flushed at the same time.
const FLUSHES_MAX: usize = 8;

/// Files from this size on last when their copy is cut short.
pub const LASTING_BYTES_MIN: u64 = 16 << 20;

/// What every temporary name ends with.
pub const TEMPORARY_SUFFIX: &[u8] = b".verbatim-part";

/// A file that is being written.
#[derive(Debug)]
pub struct Target {
    file: File,
    folder: Arc<OwnedFd>,
    temporary: Vec<u8>,
    name: Vec<u8>,
    path: WirePath,
    /// What is verified, and the name of that journal.
    journal: Option<(File, Vec<u8>)>,
    /// The source may not be written by its owner; what lasts must be, until it is whole.
    read_only: AtomicBool,
    /// How long it is to be, where that was not known when it was made.
    end: OnceLock<u64>,
    gone: AtomicBool,
    /// What was set aside for it.
    room: OnceLock<Room>,
}

impl Target {
    /// Makes a temporary file of `size` bytes beside `path`. Its mode is the source's without
    /// special bits, as the umask allows.
    pub fn create(folder: &Folder, path: &WirePath, size: u64, mode: u32) -> Result<Self, Fault> {
        let (parent, name) = place(folder, path)?;
        let file = create_new(&parent, &temporary_name(&name), mode);
        let what = || format!("cannot create {path}");
        let (file, temporary) = file.map_err(|e| Fault::from_io(what(), &e.into()))?;
        file.set_len(size).map_err(|e| Fault::from_io(what(), &e))?;
        Ok(Self::of(file, parent, temporary, name, path, None))
    }

    /// Makes a temporary file that a later run finds again under the same `key`, with a journal
    /// of what is verified. A small one, or one that another process has, is made plain.
    pub fn create_lasting(
        folder: &Folder,
        path: &WirePath,
        info: &FileInfo,
        key: &Digest,
    ) -> Result<Self, Fault> {
        let (parent, name) = place(folder, path)?;
        let names = partial::Names::new(&name, key);
        let lasting = (info.size >= LASTING_BYTES_MIN)
            .then(|| partial::begin(&parent, &names, info.mode))
            .flatten();
        let Some((file, mut journal)) = lasting else {
            return Self::create(folder, path, info.size, info.mode);
        };
        let made = file
            .set_len(0)
            .and_then(|()| file.set_len(info.size))
            .and_then(|()| journal::begin(&mut journal, &Head::now(info)));
        made.map_err(|e| Fault::from_io(format!("cannot create {path}"), &e))?;
        let journal = Some((journal, names.journal));
        let target = Self::of(file, parent, names.part, name, path, journal);
        target.set_mode(info.mode);
        Ok(target)
    }

    /// Finds what an earlier run left under this `key`, and what of it is verified: as its
    /// journal says within one boot, by hashing it again after another.
    pub fn find_lasting(folder: &Folder, path: &WirePath, key: &Digest) -> Option<(Self, Have)> {
        let (parent, name) = place(folder, path).ok()?;
        let names = partial::Names::new(&name, key);
        let (file, journal, have) = partial::find(&parent, &names)?;
        let journal = Some((journal, names.journal));
        Some((Self::of(file, parent, names.part, name, path, journal), have))
    }

    /// Its name until it is committed.
    #[cfg(test)]
    pub(crate) fn temporary_name(&self) -> &[u8] {
        &self.temporary
    }

    /// Whether what an earlier run left under this `key` is held by somebody just now.
    pub fn is_held(folder: &Folder, path: &WirePath, key: &Digest) -> bool {
        let placed = place(folder, path).ok();
        placed.is_some_and(|(parent, name)| {
            partial::is_held(&parent, &partial::Names::new(&name, key))
        })
    }

    fn of(
        file: File,
        folder: Arc<OwnedFd>,
        temporary: Vec<u8>,
        name: Vec<u8>,
        path: &WirePath,
        journal: Option<(File, Vec<u8>)>,
    ) -> Self {
        let (read_only, gone) = (AtomicBool::new(false), AtomicBool::new(false));
        let (path, room, end) = (path.clone(), OnceLock::new(), OnceLock::new());
        Self { file, folder, temporary, name, path, journal, read_only, end, gone, room }
    }

    /// Sets room aside for a file that is about to be written, of which `had` bytes are there.
    pub fn room_for(
        folder: &Folder,
        path: &WirePath,
        info: &FileInfo,
        had: u64,
    ) -> Result<Option<Room>, Fault> {
        let bytes = info.room().saturating_sub(had);
        if !Room::is_worth_a_look(bytes) {
            return Ok(None);
        }
        let (parent, _) = place(folder, path)?;
        Room::take(&*parent, path, bytes)
    }

    /// Takes the room that was set aside, and gives it back as it is written.
    pub fn set_room(&self, room: Option<Room>) {
        // One that has room keeps it: a file is begun once.
        room.into_iter().for_each(|room| drop(self.room.set(room)));
    }

    /// Says what mode the source has, for a file that an earlier run made.
    pub fn set_mode(&self, mode: u32) {
        self.read_only.store(mode & 0o200 == 0, Ordering::Relaxed);
    }

    /// Gives it what the rules allow of its source's metadata, before it takes its name; says
    /// what was not kept. The last thing before `commit`: a write would change its times.
    pub fn describe(&self, meta: &Meta, rules: &Rules) -> Result<Dropped, Fault> {
        self.read_only.store(false, Ordering::Relaxed);
        meta::apply(&self.file, &self.path.to_string(), Kind::File, meta, rules)
    }

    /// Has the kernel begin to write it to disk, and does not wait. What a whole batch allocates
    /// is then in one transaction of the file system, and the first flush of the batch commits
    /// it for all: measured on ext4, a tenth of the transactions and half of the time.
    fn begin_flush(&self) {
        // Meant to drop the file from the page cache: what is dirty is written, and stays. Where
        // it does nothing, flushing takes longer.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    /// Says how long a file is that was made without its size. Zeros at its end may be a hole,
    /// which no write has made part of it.
    pub fn end_at(&self, size: u64) {
        let _ = self.end.set(size);
    }

    /// Makes all of it durable under its temporary name, with the mode it is to have.
    fn flush(&self) -> std::io::Result<()> {
        if let Some(size) = self.end.get() {
            self.file.set_len(*size)?;
        }
        if self.journal.is_some() && self.read_only.load(Ordering::Relaxed) {
            let mode = self.file.metadata()?.permissions().mode();
            self.file.set_permissions(Permissions::from_mode(mode & !0o200))?;
        }
        self.file.sync_all()
    }

    /// Notes in the journal, if there is one, that a range is verified and written.
    pub fn verified(&self, extent: Extent, digests: &[Digest]) -> Result<(), Fault> {
        let Some((journal, _)) = &self.journal else { return Ok(()) };
        let result = journal::append(journal, extent, digests);
        result
            .map_err(|e| Fault::from_io(format!("cannot note what is there of {}", self.path), &e))
    }

    /// Removes the temporary file, also one that would have lasted.
    pub fn discard(&self) {
        if !self.gone.swap(true, Ordering::Relaxed) {
            // Somebody may have removed them already; there is nobody to tell.
            let remove = |name: &[u8]| {
                let _ = unlinkat(&*self.folder, OsStr::from_bytes(name), AtFlags::empty());
            };
            self.journal.iter().for_each(|(_, name)| remove(name));
            remove(&self.temporary);
        }
    }

    /// Writes bytes at an offset. Zeros become a hole where the file system can: a sparse file
    /// stays sparse, and what was there before is gone all the same.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        if let Some(room) = self.room.get() {
            room.used(bytes.len() as u64);
        }
        let extent = Extent::new(offset, bytes.len() as u64);
        if bytes.len() >= HOLE_BYTES_MIN && is_zero(bytes) && self.punch(extent) {
            return Ok(());
        }
        self.write(bytes, offset)
    }

    /// Makes a range zeros, whatever was there, and notes that it is verified. The range is at most
    /// a window,
    /// whole grains of a file of `size` bytes; returns the digests of zeros there.
    pub fn zero(&self, extent: Extent, size: u64) -> Result<Vec<Digest>, Fault> {
        if !self.punch(extent) {
            let end = extent.offset + extent.len;
            for offset in (extent.offset..end).step_by(ZEROS.len()) {
                let len = (end - offset).min(ZEROS.len() as u64);
                self.write(&ZEROS[..len as usize], offset)?;
            }
        }
        let digests = hash_zeros(size, extent);
        self.verified(extent, &digests)?;
        Ok(digests)
    }

    /// Makes a range a hole; false where the file system cannot.
    fn punch(&self, extent: Extent) -> bool {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, hole, extent.offset, extent.len).is_ok()
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        let result = self.file.write_all_at(bytes, offset);
        result.map_err(|e| Fault::from_io(format!("cannot write {}", self.path), &e))
    }

    /// Makes a batch durable under its final names: one answer per target, in order.
    pub fn commit(batch: &[Arc<Self>]) -> Vec<Result<(), Fault>> {
        let mut answers = flush_all(batch);
        let mut folders: Vec<Arc<OwnedFd>> = Vec::new();
        for (target, answer) in batch.iter().zip(&mut answers) {
            if answer.is_ok() {
                *answer = target.rename();
                let known = folders.iter().any(|known| Arc::ptr_eq(known, &target.folder));
                if answer.is_ok() && !known {
                    folders.push(target.folder.clone());
                }
            }
        }
        for folder in folders {
            if let Err(error) = fsync(&*folder) {
                let fault = Fault::from_io("cannot flush the folder", &error.into());
                answers.iter_mut().for_each(|answer| *answer = Err(fault.clone()));
            }
        }
        answers
    }

    fn rename(&self) -> Result<(), Fault> {
        // The journal first: without it the other file is only a temporary one.
        if let Some((_, name)) = &self.journal {
            let _ = unlinkat(&*self.folder, OsStr::from_bytes(name), AtFlags::empty());
        }
        let from = OsStr::from_bytes(&self.temporary);
        let result = renameat(&*self.folder, from, &*self.folder, OsStr::from_bytes(&self.name));
        if result.is_err() {
            self.discard();
        }
        self.gone.store(true, Ordering::Relaxed);
        let what = format!("cannot rename into {}", self.path);
        result.map_err(|e| Fault::from_io(what, &e.into()))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.journal.is_none() {
            self.discard();
        }
    }
}

/// The folder a path is in, and its name there.
fn place(folder: &Folder, path: &WirePath) -> Result<(Arc<OwnedFd>, Vec<u8>), Fault> {
    let name = path.name();
    let no_name = || Fault::new(Code::IsFolder, format!("cannot create {path}: no name"));
    Ok((folder.open_parent(path)?, name.ok_or_else(no_name)?.to_vec()))
}

/// Makes a file that was not there.
fn create_new(
    folder: &OwnedFd,
    name: &[u8],
    mode: u32,
) -> Result<(File, Vec<u8>), rustix::io::Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode & 0o777);
    let fd = openat(folder, OsStr::from_bytes(name), flags, mode)?;
    // Says that somebody is at work on it; it is new, so nobody else can have it. Where the file
    // system has no locks, its age says the same.
    let _ = flock(&fd, FlockOperation::NonBlockingLockExclusive);
    Ok((File::from(fd), name.to_vec()))
}

/// The shortest run of zeros that becomes a hole.
const HOLE_BYTES_MIN: usize = 64 << 10;

/// Whether all bytes are zero; other data is told by its first bytes.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(1024).all(|part| part.iter().fold(0, |seen, byte| seen | byte) == 0)
}

/// Flushes files side by side; one answer per target, in order.
fn flush_all(batch: &[Arc<Target>]) -> Vec<Result<(), Fault>> {
    let flush = |target: &Arc<Target>| {
        let what = || format!("cannot flush {}", target.path);
        target.flush().map_err(|e| Fault::from_io(what(), &e))
    };
    if batch.len() == 1 {
        return vec![flush(&batch[0])];
    }
    batch.iter().for_each(|target| target.begin_flush());
    let next = AtomicUsize::new(0);
    let mut answers = vec![Ok(()); batch.len()];
    let done: Vec<_> = std::thread::scope(|scope| {
        let flushers: Vec<_> = (0..FLUSHES_MAX.min(batch.len()))
            .map(|_| {
                scope.spawn(|| {
                    let mut done = Vec::new();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(target) = batch.get(index) else { return done };
                        done.push((index, flush(target)));
                    }
                })
            })
            .collect();
        let results = flushers.into_iter().map(|flusher| flusher.join());
        results.flat_map(|result| result.expect("flushing does not panic")).collect()
    });
    for (index, answer) in done {
        answers[index] = answer;
    }
    answers
}

/// A hidden name beside `name` that no other process and no other target uses.
pub(crate) fn temporary_name(name: &[u8]) -> Vec<u8> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let unique = format!("{}-{count}-{:08x}", std::process::id(), clock_bits());
    hidden_name(name, &unique, TEMPORARY_SUFFIX)
}

/// A hidden name beside `name`, short enough for any file system.
pub(crate) fn hidden_name(name: &[u8], unique: &str, suffix: &[u8]) -> Vec<u8> {
    let keep = NAME_BYTES_MAX - 2 - unique.len() - suffix.len();
    let kept = &name[..name.len().min(keep)];
    [b".", kept, b".", unique.as_bytes(), suffix].concat()
}

/// Process numbers repeat, in containers above all: the clock tells them apart.
fn clock_bits() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.subsec_nanos() ^ since.as_secs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use verbatim_proto::units::GRAIN_BYTES;

    fn path(text: &str) -> WirePath {
        WirePath::parse(text.as_bytes()).expect("plain")
    }

    #[test]
    fn a_target_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        fs::write(dir.path().join("a"), b"old").expect("writes");
        let target = Target::create(&folder, &path("a"), 3, 0o644).expect("creates");
        target.write_at(b"new", 0).expect("writes");
        assert_eq!(fs::read(dir.path().join("a")).expect("reads"), b"old");
        assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
        assert_eq!(fs::read(dir.path().join("a")).expect("reads"), b"new");
        let target = Target::create(&folder, &path("b"), 3, 0o644).expect("creates");
        drop(target);
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_batch_commits_what_it_can_and_names_what_it_cannot() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir_all(dir.path().join("sub/full")).expect("folder");
        fs::write(dir.path().join("sub/full/x"), b"").expect("writes");
        let folder = Folder::open(dir.path()).expect("opens");
        let names = ["a", "sub/b", "sub/full", "sub/c"];
        let batch =
            names.map(|name| Target::create(&folder, &path(name), 1, 0o644).expect("creates"));
        let answers = Target::commit(&batch.map(Arc::new));
        let codes: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        assert_eq!(codes, [true, true, false, true]);
        let fault = answers[2].as_ref().expect_err("a folder is in the way");
        assert_eq!(fault.code, Code::IsFolder, "{fault}");
        assert_eq!(fs::read_dir(dir.path().join("sub")).expect("lists").count(), 3);
    }

    const SIZE: u64 = LASTING_BYTES_MIN;

    fn info(mode: u32) -> FileInfo {
        FileInfo { size: SIZE, mode, mtime_ns: 5, allocated: SIZE, version: None }
    }

    /// A lasting target with its first two grains written and noted, then left.
    fn leave_partial(folder: &Folder, key: &Digest) {
        let target = Target::create_lasting(folder, &path("a"), &info(0o644), key).expect("makes");
        for grain in 0..2 {
            let (bytes, offset) =
                (vec![grain as u8 + 1; GRAIN_BYTES as usize], grain * GRAIN_BYTES);
            target.write_at(&bytes, offset).expect("writes");
            let digests = Digest::of_grains(offset, SIZE, &bytes);
            target.verified(Extent::new(offset, GRAIN_BYTES), &digests).expect("notes");
        }
    }

    fn found(folder: &Folder, key: &Digest) -> Option<Vec<u64>> {
        let (_, have) = Target::find_lasting(folder, &path("a"), key)?;
        Some(have.extents.iter().map(|extent| extent.offset / GRAIN_BYTES).collect())
    }

    fn hidden(dir: &std::path::Path, end: &str) -> std::path::PathBuf {
        let mut paths = fs::read_dir(dir).expect("lists").map(|entry| entry.expect("entry").path());
        paths.find(|path| path.to_string_lossy().ends_with(end)).expect("it is there")
    }

    #[test]
    fn what_lasts_is_found_by_its_key_and_by_one_process_at_a_time() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let key = Digest::of(b"this copy");
        leave_partial(&folder, &key);
        assert_eq!(found(&folder, &Digest::of(b"another copy")), None);
        let held = Target::find_lasting(&folder, &path("a"), &key).expect("there");
        assert_eq!(found(&folder, &key), None, "somebody has it");
        drop(held);
        assert_eq!(found(&folder, &key), Some(vec![0]), "two grains in one run");
        fs::remove_file(hidden(dir.path(), "-part")).expect("removes");
        assert_eq!(found(&folder, &key), None, "a journal alone says nothing");
    }

    #[test]
    fn after_another_boot_only_what_still_hashes_is_believed() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let key = Digest::of(b"this copy");
        leave_partial(&folder, &key);
        let part = fs::OpenOptions::new().write(true).open(hidden(dir.path(), "-part"));
        part.expect("opens").write_all_at(b"lost", 0).expect("harms the first grain");
        assert_eq!(found(&folder, &key), Some(vec![0]), "this boot is believed");
        let name = hidden(dir.path(), "-journal");
        let mut records = Vec::new();
        let old = File::open(&name).expect("opens");
        let head = journal::read(&old, |_, extent, digests| records.push((extent, digests)));
        let head = Head { boot: [b'x'; 36], ..head.expect("a journal").0 };
        let mut file = File::create(&name).expect("opens");
        journal::begin(&mut file, &head).expect("begins");
        for (extent, digests) in records {
            journal::append(&file, extent, &digests).expect("appends");
        }
        assert_eq!(found(&folder, &key), Some(vec![1]), "the first grain is not what it was");
    }

    #[test]
    fn a_large_file_keeps_a_mode_without_write() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let key = Digest::of(b"this copy");
        let target = Target::create_lasting(&folder, &path("a"), &info(0o444), &key);
        assert_eq!(Target::commit(&[Arc::new(target.expect("makes"))]), vec![Ok(())]);
        let mode = fs::metadata(dir.path().join("a")).expect("there").permissions().mode();
        assert_eq!(mode & 0o200, 0, "{mode:o}");
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is left behind");
    }

    #[test]
    fn zeros_become_holes_and_replace_what_was_there() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let target = Target::create(&folder, &path("a"), 1 << 20, 0o644).expect("creates");
        target.write_at(&vec![7; 1 << 20], 0).expect("writes");
        target.write_at(&vec![0; 1 << 20], 0).expect("punches");
        assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
        let copy = dir.path().join("a");
        assert_eq!(fs::read(&copy).expect("reads"), vec![0; 1 << 20]);
        assert_eq!(fs::metadata(&copy).expect("there").blocks(), 0, "a hole takes no blocks");
    }

    #[test]
    fn a_stream_is_as_long_as_it_is_said_to_be_also_where_it_ends_with_zeros() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let target = Target::create(&folder, &path("a"), 0, 0o644).expect("creates");
        target.write_at(&vec![7; 1 << 18], 0).expect("writes");
        target.write_at(&vec![0; 1 << 18], 1 << 18).expect("punches");
        target.end_at(1 << 19);
        assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
        assert_eq!(fs::metadata(dir.path().join("a")).expect("there").len(), 1 << 19);
    }

    #[test]
    fn a_hole_is_zeros_whatever_was_there_and_is_noted() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let key = Digest::of(b"this copy");
        leave_partial(&folder, &key);
        let (target, _) = Target::find_lasting(&folder, &path("a"), &key).expect("there");
        let part = fs::OpenOptions::new().write(true).open(hidden(dir.path(), "-part"));
        let garbage = vec![9; 4 * GRAIN_BYTES as usize];
        part.expect("opens").write_all_at(&garbage, 8 * GRAIN_BYTES).expect("writes");
        let extent = Extent::new(2 * GRAIN_BYTES, SIZE - 2 * GRAIN_BYTES);
        let digests = target.zero(extent, SIZE).expect("zeroes");
        drop(target);
        let (target, have) = Target::find_lasting(&folder, &path("a"), &key).expect("there");
        assert_eq!(have.extents.bytes(), SIZE, "the journal knows the hole");
        let mut bytes = vec![0; SIZE as usize];
        target.file.read_exact_at(&mut bytes, 0).expect("reads");
        assert_eq!(have.root.finish(), Some(Digest::of(&bytes)));
        assert_eq!(
            digests,
            Digest::of_grains(extent.offset, SIZE, &bytes[extent.offset as usize..])
        );
        let blocks = target.file.metadata().expect("there").blocks();
        assert_eq!(blocks * 512, 2 * GRAIN_BYTES, "the hole takes no blocks");
        target.discard();
    }

    #[test]
    fn the_longest_name_has_a_temporary_one() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let name = "n".repeat(NAME_BYTES_MAX);
        let target = Target::create(&folder, &path(&name), 0, 0o644).expect("creates");
        assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
        assert!(dir.path().join(name).exists());
    }
}
