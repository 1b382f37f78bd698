//! Where a copy lands: a temporary file beside its final name, which takes that
//! name only when all of it is there and verified. A batch becomes durable
//! together: the files are flushed side by side, then renamed, then their
//! folders are flushed. Dropping a target that was not committed removes it.

use crate::folder::Folder;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::fs::{fallocate, fsync, openat, renameat, unlinkat};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use verbatim_proto::units::NAME_BYTES_MAX;
use verbatim_proto::{Code, Fault, WirePath};

/// Files flushed at the same time.
const FLUSHES_MAX: usize = 8;

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
    committed: AtomicBool,
}

impl Target {
    /// Makes a temporary file of `size` bytes beside `path`. Its mode is the source's without
    /// special bits, as the umask allows.
    pub fn create(folder: &Folder, path: &WirePath, size: u64, mode: u32) -> Result<Self, Fault> {
        let what = format!("cannot create {path}");
        let name = path.name();
        let name = name.ok_or_else(|| Fault::new(Code::IsFolder, format!("{what}: no name")))?;
        let parent = folder.open_parent(path)?;
        let temporary = temporary_name(name);
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o777);
        let fd = openat(&*parent, OsStr::from_bytes(&temporary), flags, mode)
            .map_err(|e| Fault::from_io(&what, &e.into()))?;
        let target = Self {
            file: File::from(fd),
            folder: parent,
            temporary,
            name: name.to_vec(),
            path: path.clone(),
            committed: AtomicBool::new(false),
        };
        target.file.set_len(size).map_err(|e| Fault::from_io(&what, &e))?;
        Ok(target)
    }

    /// Writes bytes at an offset. Zeros become a hole where the file system can: a sparse file
    /// stays sparse, and what was there before is gone all the same.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if bytes.len() >= HOLE_BYTES_MIN
            && is_zero(bytes)
            && fallocate(&self.file, hole, offset, bytes.len() as u64).is_ok()
        {
            return Ok(());
        }
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
        let from = OsStr::from_bytes(&self.temporary);
        let result = renameat(&*self.folder, from, &*self.folder, OsStr::from_bytes(&self.name));
        self.committed.store(result.is_ok(), Ordering::Relaxed);
        let what = format!("cannot rename into {}", self.path);
        result.map_err(|e| Fault::from_io(what, &e.into()))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.committed.load(Ordering::Relaxed) {
            // Somebody may have removed it already; there is nobody to tell.
            let _ = unlinkat(&*self.folder, OsStr::from_bytes(&self.temporary), AtFlags::empty());
        }
    }
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
        target.file.sync_all().map_err(|e| Fault::from_io(what(), &e))
    };
    if batch.len() == 1 {
        return vec![flush(&batch[0])];
    }
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
    let unique = format!(".{}-{count}-{:08x}", std::process::id(), clock_bits());
    let keep = NAME_BYTES_MAX - 1 - unique.len() - TEMPORARY_SUFFIX.len();
    let kept = &name[..name.len().min(keep)];
    [b".", kept, unique.as_bytes(), TEMPORARY_SUFFIX].concat()
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
    fn the_longest_name_has_a_temporary_one() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let name = "n".repeat(NAME_BYTES_MAX);
        let target = Target::create(&folder, &path(&name), 0, 0o644).expect("creates");
        assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
        assert!(dir.path().join(name).exists());
    }
}
