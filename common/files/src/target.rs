//! Where a copy lands: a temporary file beside its final name, or in memory one
//! that has no name, which takes its own only when all of it is there and
//! verified; `commit` makes a batch of them durable. Dropping a target that was
//! not committed removes it, unless it was made to last: then a later run goes on
//! with it.

use crate::charge::{Charged, Cost};
use crate::folder::{Folder, stat_name};
use crate::holes::hash_zeros;
use crate::journal::{self, Head};
use crate::lanes::Lanes;
use crate::meta::{self, Kind, Rules};
use crate::naming::{Over, create_new, create_unnamed, link, mode_of_new, rename, temporary_name};
use crate::opened::OpenFolder;
use crate::partial::{self, Begun};
use crate::space::Room;
use crate::storage::{HOLE_BYTES_MIN, Storage};
use rustix::fs::{Advice, AtFlags, FallocateFlags, FileType, fadvise, fallocate, unlinkat};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Have;
use verbatim_proto::{Code, Digest, Dropped, Extent, Fault, Meta, WirePath};

/// Files from this size on last when their copy is cut short.
pub const LASTING_BYTES_MIN: u64 = 16 << 20;

/// A file that is being written.
#[derive(Debug)]
pub struct Target {
    /// What is verified, and the name of that journal. Before `file`, so that it is let go of
    /// first: whoever waits for a target looks at that file's lock, and then takes both.
    journal: Option<(File, Vec<u8>)>,
    file: File,
    lanes: Lanes,
    folder: Arc<OpenFolder>,
    /// Its name until it is committed, where it has one.
    temporary: Option<Vec<u8>>,
    path: WirePath,
    /// Its source's mode, where it lasts and was made with another one.
    mode: Mutex<Option<u32>>,
    /// How long it is to be, where that was not known when it was made.
    end: OnceLock<u64>,
    gone: AtomicBool,
    /// What it costs, until it is known whether it stays.
    charged: Mutex<Option<Charged>>,
    /// How its bytes take room.
    storage: Storage,
}

impl Target {
    /// Makes a temporary file of `size` bytes beside `path`. Its mode is the source's without
    /// special bits, as the umask allows.
    pub fn create(folder: &Folder, path: &WirePath, size: u64, mode: u32) -> Result<Self, Fault> {
        let (parent, name) = place(folder, path)?;
        let what = || format!("cannot create {path}");
        let charged = folder.charge(Cost::INODE)?;
        let made = match parent.is_in_memory().then(|| create_unnamed(&parent, mode)) {
            Some(Ok(file)) => Ok((file, None)),
            _ => {
                let temporary = temporary_name(name);
                create_new(&parent, &temporary, mode).map(|file| (file, Some(temporary)))
            }
        };
        let (file, temporary) = made.map_err(|e| Fault::from_io(what(), &e.into()))?;
        let target = Self::of(file, parent, temporary, path, None).costing(charged);
        // A shorter one never has a hole, so that its bytes alone make it as long as it is.
        if size >= HOLE_BYTES_MIN as u64 {
            target.file.set_len(size).map_err(|e| Fault::from_io(what(), &e))?;
        }
        Ok(target)
    }

    /// Makes a temporary file that a later run finds again under the same `key`, with a journal
    /// of what is verified. Meant for files from `LASTING_BYTES_MIN` on; one that another process
    /// has is made plain.
    pub fn create_lasting(
        folder: &Folder,
        path: &WirePath,
        info: &FileInfo,
        key: &Digest,
    ) -> Result<Self, Fault> {
        let (parent, name) = place(folder, path)?;
        let names = partial::Names::new(name, key);
        let charged = folder.charge(Cost::INODE.and(Cost::JOURNAL))?;
        let begun = partial::begin(&parent, &names, info.mode, partial::LOCK);
        let Some(Begun { part: file, mut journal, is_new }) = begun else {
            drop(charged);
            let target = Self::create(folder, path, info.size, info.mode)?;
            target.keep_sparse(info)?;
            return Ok(target);
        };
        // The journal first: what an older one says of this file would be said of holes.
        let head = Head::now(info, &journal);
        let made = journal::begin(&mut journal, &head)
            .and_then(|()| file.set_len(0))
            .and_then(|()| file.set_len(info.size));
        let journal = Some((journal, names.journal));
        let target = Self::of(file, parent, Some(names.part), path, journal);
        // One that was there was counted when it was made.
        let target = if is_new { target.costing(charged) } else { target };
        made.map_err(|e| Fault::from_io(format!("cannot create {path}"), &e))?;
        target.keep_sparse(info)?;
        // What is new has it, but that its owner may write until it is whole.
        if !is_new || info.mode & 0o200 == 0 {
            target.set_mode(info.mode);
        }
        Ok(target)
    }

    /// Finds what an earlier run left under this `key`, and what of it is verified: as its
    /// journal says of what was flushed within one boot and mount, by hashing the rest again.
    pub fn find_lasting(folder: &Folder, path: &WirePath, key: &Digest) -> Option<(Self, Have)> {
        Self::find_lasting_unless((&AtomicBool::new(false), &AtomicU64::new(0)), folder, path, key)
    }

    /// The same, until `over` turns true. Adds to `hashed` the bytes that it hashes again.
    pub fn find_lasting_unless(
        (over, hashed): (&AtomicBool, &AtomicU64),
        folder: &Folder,
        path: &WirePath,
        key: &Digest,
    ) -> Option<(Self, Have)> {
        let (parent, name) = place(folder, path).ok()?;
        let names = partial::Names::new(name, key);
        let (file, journal, have) = partial::find(&parent, &names, over, hashed)?;
        let journal = Some((journal, names.journal));
        Some((Self::of(file, parent, Some(names.part), path, journal), have))
    }

    /// The folder it is in.
    pub(crate) fn folder(&self) -> &Arc<OpenFolder> {
        &self.folder
    }

    /// Whether what an earlier run left under this `key` is held by somebody just now.
    pub fn is_held(folder: &Folder, path: &WirePath, key: &Digest) -> bool {
        let placed = place(folder, path).ok();
        placed.is_some_and(|(parent, name)| {
            partial::is_held(&parent, &partial::Names::new(name, key))
        })
    }

    fn of(
        file: File,
        folder: Arc<OpenFolder>,
        temporary: Option<Vec<u8>>,
        path: &WirePath,
        journal: Option<(File, Vec<u8>)>,
    ) -> Self {
        let (mode, gone) = (Mutex::new(None), AtomicBool::new(false));
        let (path, end) = (path.clone(), OnceLock::new());
        let (lanes, storage) = (Lanes::default(), Storage::default());
        let charged = Mutex::default();
        Self { file, lanes, folder, temporary, path, journal, mode, end, gone, charged, storage }
    }

    /// The same, which costs this where it stays.
    fn costing(mut self, charged: Charged) -> Self {
        self.charged = Mutex::new(Some(charged));
        self
    }

    /// It is known whether it stays.
    fn settle(&self, stays: bool) {
        let charged = self.charged.lock().unwrap_or_else(PoisonError::into_inner).take();
        charged.filter(|_| stays).into_iter().for_each(Charged::keep);
    }

    /// Sets room aside for a file that is about to be written, of which `had` bytes are there.
    /// One that a folder is in the place of is refused before its first byte.
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
        let (parent, name) = place(folder, path)?;
        let there = stat_name(&*parent, OsStr::from_bytes(name));
        if there.is_ok_and(|there| is_folder(there.stx_mode)) {
            let text = format!("cannot create {path}: a folder is in its place");
            return Err(Fault::new(Code::IsFolder, text));
        }
        Room::take(&*parent, path, bytes, info.size.saturating_sub(had))
    }

    /// Takes the room that was set aside, and gives it back as it is written.
    pub fn set_room(&self, room: Option<Room>) {
        self.storage.set_room(room);
    }

    /// Says what room its source takes, before anything is written: where that is sparse, blocks of
    /// zeros become holes.
    pub fn keep_sparse(&self, info: &FileInfo) -> Result<(), Fault> {
        let grown = self.storage.keep_sparse(&self.file, info);
        grown.map_err(|e| Fault::from_io(format!("cannot create {}", self.path), &e))
    }

    /// Whether blocks of zeros become holes in it: then it must not be written behind its back.
    pub fn is_sparse(&self) -> bool {
        self.storage.is_sparse()
    }

    /// Says what mode the source has, for a file that an earlier run made. From now on nobody may
    /// use it who may not use that, but its owner, who writes it.
    pub fn set_mode(&self, mode: u32) {
        *self.mode() = Some(mode);
        let Ok(now) = self.file.metadata().map(|found| found.permissions().mode() & 0o7777) else {
            return;
        };
        let narrow = now & (mode & 0o777 | 0o200);
        if self.journal.is_some() && narrow != now {
            // Where there are no modes it cannot be done; that a flush must do it is told then.
            let _ = self.file.set_permissions(Permissions::from_mode(narrow));
        }
    }

    fn mode(&self) -> MutexGuard<'_, Option<u32>> {
        self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives it what the rules allow of its source's metadata, before it takes its name; says
    /// what was not kept. The last thing before `commit`: a write would change its times.
    pub fn describe(&self, meta: &Meta, rules: &Rules) -> Result<Dropped, Fault> {
        *self.mode() = None;
        meta::apply(&self.file, &self.path, Kind::File, meta, rules)
    }

    /// Has the kernel begin to write it to disk, and does not wait. What a whole batch allocates
    /// is then in one transaction of the file system, and the first flush of the batch commits
    /// it for all: measured on ext4, a tenth of the transactions and half of the time.
    pub(crate) fn begin_flush(&self) {
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
    pub(crate) fn flush(&self) -> Result<(), Fault> {
        self.try_flush().map_err(|e| Fault::from_io(format!("cannot flush {}", self.path), &e))
    }

    fn try_flush(&self) -> std::io::Result<()> {
        if let Some(size) = self.end.get() {
            self.file.set_len(*size)?;
        }
        if let Some(mode) = self.mode().filter(|_| self.journal.is_some()) {
            let now = self.file.metadata()?.permissions().mode() & 0o7777;
            let name = self.path.name().expect("a target has a name");
            // Where no file can be made any more it keeps of its mode what its source has.
            let due = mode_of_new(&self.folder, name, mode).unwrap_or(now & mode);
            if due != now {
                self.file.set_permissions(Permissions::from_mode(due))?;
            }
        }
        // In memory there is nothing to write it to.
        if self.is_in_memory() { Ok(()) } else { self.file.sync_all() }
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
            let stays = |name: &&Vec<u8>| {
                unlinkat(&*self.folder, OsStr::from_bytes(name), AtFlags::empty()).is_err()
            };
            let journal = self.journal.iter().map(|(_, name)| name);
            self.settle(journal.chain(&self.temporary).filter(stays).count() > 0);
        }
    }

    /// By which those come who write to it.
    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Writes bytes at an offset. Zeros become a hole where the file system can: a sparse file
    /// stays sparse, and what was there before is gone all the same.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        let result = self.storage.write(&self.file, bytes, offset);
        result.map_err(|e| self.write_fault(&e))
    }

    /// The file, for whoever has a device write to it. It must be as long as it is to be.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether it is in memory, where its pages can be pinned for a device to write to.
    pub fn is_in_memory(&self) -> bool {
        self.folder.is_in_memory()
    }

    /// Has the file system give a range its blocks, so that a device that writes there finds
    /// room.
    pub fn make_room(&self, extent: Extent) -> Result<(), Fault> {
        let made = fallocate(&self.file, FallocateFlags::KEEP_SIZE, extent.offset, extent.len);
        made.map_err(|e| Fault::from_io(format!("no room for {}", self.path), &e.into()))
    }

    /// Reads what a device wrote, to verify it.
    pub fn read_landed(&self, into: &mut [u8], offset: u64) -> Result<(), Fault> {
        self.storage.stored(into.len() as u64);
        let result = self.file.read_exact_at(into, offset);
        result.map_err(|e| Fault::from_io(format!("cannot read what landed of {}", self.path), &e))
    }

    /// Makes a range zeros, whatever was there, and notes that it is verified. The range is at
    /// most a window, whole grains of a file of `size` bytes; returns the digests of zeros there.
    /// Where bytes have to be written for want of holes, `may` is asked first.
    pub fn zero(
        &self,
        extent: Extent,
        size: u64,
        may: impl FnOnce(u64) -> Result<(), Fault>,
    ) -> Result<Vec<Digest>, Fault> {
        if size < HOLE_BYTES_MIN as u64 || !self.storage.punch(&self.file, extent) {
            may(extent.len)?;
            self.storage.fill(&self.file, extent).map_err(|e| self.write_fault(&e))?;
        }
        let digests = hash_zeros(size, extent);
        self.verified(extent, &digests)?;
        Ok(digests)
    }

    fn write_fault(&self, error: &std::io::Error) -> Fault {
        Fault::from_io(format!("cannot write {}", self.path), error)
    }

    /// What is answered where its folder has left its place.
    pub(crate) fn misplaced(&self) -> Fault {
        let text = format!("cannot rename into {}: its folder was moved or removed", self.path);
        Fault::new(Code::NotFound, text)
    }

    /// Gives it its final name.
    pub(crate) fn rename(&self, over: Over) -> Result<(), Fault> {
        // The journal first: without it the other file is only a temporary one.
        if let Some((_, name)) = &self.journal {
            let _ = unlinkat(&*self.folder, OsStr::from_bytes(name), AtFlags::empty());
        }
        let name = self.path.name().expect("a target has a name");
        let result = match &self.temporary {
            Some(temporary) => rename(&self.folder, temporary, name, over),
            None => link(&self.file, &self.folder, name, over),
        };
        if result.is_err() {
            self.discard();
        }
        self.gone.store(true, Ordering::Relaxed);
        self.settle(true);
        result.map_err(|e| over.fault(format_args!("cannot rename into {}", self.path), e))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.journal.is_none() {
            self.discard();
        }
        self.settle(true);
    }
}

/// The folder a path is in, and its name there.
fn place<'a>(folder: &Folder, path: &'a WirePath) -> Result<(Arc<OpenFolder>, &'a [u8]), Fault> {
    let name = path.name();
    let no_name = || Fault::new(Code::IsFolder, format!("cannot create {path}: no name"));
    Ok((folder.open_parent_of_temporary(path)?, name.ok_or_else(no_name)?))
}

fn is_folder(mode: u16) -> bool {
    FileType::from_raw_mode(mode.into()) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use verbatim_proto::units::{GRAIN_BYTES, NAME_BYTES_MAX};

    fn path(text: &str) -> WirePath {
        WirePath::parse(text.as_bytes()).expect("plain")
    }

    #[test]
    fn a_file_is_made_in_the_folder_that_has_the_name_now() {
        // In memory a file without a name can be made in a folder that is gone.
        for (dir, folder) in folders() {
            let below = dir.path().join("sub");
            for _ in 0..2 {
                fs::create_dir(&below).expect("makes");
                let target = Target::create(&folder, &path("sub/a"), 1, 0o600).expect("creates");
                target.write_at(b"x", 0).expect("writes");
                assert_eq!(Target::commit(&[Arc::new(target)]), [Ok(())]);
                fs::remove_dir_all(&below).expect("removes");
            }
        }
    }

    #[test]
    fn a_file_whose_folder_was_moved_away_gets_no_name_there() {
        for (dir, folder) in folders() {
            let below = dir.path().join("sub");
            fs::create_dir(&below).expect("makes");
            let target = Target::create(&folder, &path("sub/a"), 1, 0o600).expect("creates");
            target.write_at(b"x", 0).expect("writes");
            let outside = tempfile::tempdir_in(dir.path().parent().expect("a folder"));
            let outside = outside.expect("a folder");
            fs::rename(&below, outside.path().join("sub")).expect("renames");
            let answer = Target::commit(&[Arc::new(target)]).remove(0);
            assert_eq!(answer.expect_err("it is gone").code, Code::NotFound);
            let left = fs::read_dir(outside.path().join("sub")).expect("reads").count();
            assert_eq!(left, 0, "nothing is left there");
        }
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

    /// Both kinds of temporary files, where this machine has a file system in memory.
    fn folders() -> Vec<(tempfile::TempDir, Folder)> {
        let dirs = [Ok(tempfile::tempdir().expect("folder")), tempfile::tempdir_in("/dev/shm")];
        let dirs = dirs.into_iter().flatten();
        dirs.map(|dir| (Folder::open(dir.path()).expect("opens"), dir))
            .map(|(f, d)| (d, f))
            .collect()
    }

    #[test]
    fn a_file_without_a_name_replaces_what_is_there_at_once_and_leaves_nothing() {
        for (dir, folder) in folders() {
            let names = || {
                let entries = fs::read_dir(dir.path()).expect("lists");
                let mut names: Vec<_> = entries.map(|e| e.expect("entry").file_name()).collect();
                names.sort();
                names
            };
            fs::create_dir(dir.path().join("folder")).expect("makes");
            for content in [b"one", b"two"] {
                let target = Target::create(&folder, &path("a"), 3, 0o640).expect("creates");
                target.write_at(content, 0).expect("writes");
                if folder.open_parent(&path("a")).expect("opens").is_in_memory() {
                    assert!(names().len() <= 2, "nobody sees it: {:?}", names());
                }
                assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
                assert_eq!(fs::read(dir.path().join("a")).expect("reads"), content);
            }
            let target = Target::create(&folder, &path("folder"), 0, 0o640).expect("creates");
            let answers = Target::commit(&[Arc::new(target)]);
            assert_eq!(answers[0].as_ref().expect_err("in the way").code, Code::IsFolder);
            drop(Target::create(&folder, &path("b"), 0, 0o640).expect("creates"));
            assert_eq!(names(), ["a", "folder"]);
        }
    }

    #[test]
    fn a_folder_in_its_place_is_told_before_a_file_is_begun() {
        for (dir, folder) in folders() {
            fs::create_dir(dir.path().join("a")).expect("makes");
            std::os::unix::fs::symlink("a", dir.path().join("link")).expect("links");
            let room = |name: &str| Target::room_for(&folder, &path(name), &info(0o644), 0);
            let fault = room("a").expect_err("it cannot be replaced");
            assert_eq!(fault.code, Code::IsFolder);
            assert_eq!(fault.text, "cannot create a: a folder is in its place");
            assert!(room("link").is_ok() && room("b").is_ok(), "a link is replaced");
        }
    }

    #[test]
    fn a_file_that_may_replace_nothing_leaves_what_came_first() {
        for (dir, folder) in folders() {
            let at = |name: &str| dir.path().join(name);
            let batch = ["new", "file", "folder", "link"].map(|name| {
                let target = Target::create(&folder, &path(name), 4, 0o640).expect("creates");
                target.write_at(b"ours", 0).expect("writes");
                Arc::new(target)
            });
            fs::write(at("file"), b"theirs").expect("writes");
            fs::create_dir(at("folder")).expect("makes");
            std::os::unix::fs::symlink("nowhere", at("link")).expect("links");
            let answers = Target::commit_over(Over::Nothing, &batch);
            let codes = answers.into_iter().map(|answer| answer.err().map(|fault| fault.code));
            let codes: Vec<_> = codes.collect();
            assert_eq!(codes, [None, Some(Code::Exists), Some(Code::Exists), Some(Code::Exists)]);
            assert_eq!(fs::read(at("new")).expect("reads"), b"ours");
            assert_eq!(fs::read(at("file")).expect("reads"), b"theirs");
            assert!(at("folder").is_dir() && at("link").is_symlink());
            drop(batch);
            assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 4, "nothing is left");
        }
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
    fn what_nobody_holds_any_more_can_be_gone_on_with() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let key = Digest::of(b"this copy");
        leave_partial(&folder, &key);
        for round in 0..300 {
            let (target, _) = Target::find_lasting(&folder, &path("a"), &key).expect("free");
            std::thread::scope(|scope| {
                scope.spawn(|| drop(target));
                let begin = std::time::Instant::now();
                while Target::is_held(&folder, &path("a"), &key) {
                    assert!(begin.elapsed().as_secs() < 20, "it is not let go of");
                }
                assert!(found(&folder, &key).is_some(), "its journal is held, round {round}");
            });
        }
    }

    #[test]
    fn what_a_disk_may_have_lost_is_believed_only_where_it_was_flushed() {
        for (dir, folder) in folders() {
            let in_memory = folder.fd().is_in_memory();
            let key = Digest::of(b"this copy");
            leave_partial(&folder, &key);
            let harm = |grain: u64| {
                let part = fs::OpenOptions::new().write(true).open(hidden(dir.path(), "-part"));
                let zeros = vec![0; GRAIN_BYTES as usize];
                part.expect("opens").write_all_at(&zeros, grain * GRAIN_BYTES).expect("harms");
            };
            let bytes = || {
                let found = Target::find_lasting(&folder, &path("a"), &key);
                found.map(|(_, have)| have.extents.bytes() / GRAIN_BYTES)
            };
            // As one that was full when the kernel wrote it there, which nobody was told.
            harm(1);
            assert_eq!(bytes(), Some(if in_memory { 2 } else { 1 }));
            harm(0);
            assert_eq!(bytes(), Some(if in_memory { 2 } else { 1 }), "it is not hashed again");
        }
    }

    #[test]
    fn after_another_boot_or_mount_only_what_still_hashes_is_believed() {
        only_what_hashes_is_believed_after([b'x'; 36]);
        // The number of a mount that was the first of some boot.
        only_what_hashes_is_believed_after(journal::stay(journal::boot_id(), Some(1)));
        // A journal from before mounts were told.
        only_what_hashes_is_believed_after(journal::boot_id());
    }

    fn only_what_hashes_is_believed_after(stay: [u8; 36]) {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let key = Digest::of(b"this copy");
        leave_partial(&folder, &key);
        assert_eq!(found(&folder, &key), Some(vec![0]), "and it is flushed");
        let part = fs::OpenOptions::new().write(true).open(hidden(dir.path(), "-part"));
        part.expect("opens").write_all_at(b"lost", 0).expect("harms the first grain");
        assert_eq!(found(&folder, &key), Some(vec![0]), "this boot is believed");
        let name = hidden(dir.path(), "-journal");
        let mut records = Vec::new();
        let old = File::open(&name).expect("opens");
        let head = journal::read(&old, |_, extent, digests| records.push((extent, digests)));
        let head = Head { stay, ..head.expect("a journal").0 };
        let mut file = File::create(&name).expect("opens");
        journal::begin(&mut file, &head).expect("begins");
        for (extent, digests) in records {
            journal::append(&file, extent, &digests).expect("appends");
        }
        let (target, have) = Target::find_lasting(&folder, &path("a"), &key).expect("there");
        let offsets = have.extents.iter().map(|extent| extent.offset / GRAIN_BYTES);
        assert_eq!(offsets.collect::<Vec<_>>(), [1], "the first grain is not what it was");
        // It was hashed in this boot, and need not be again; what is noted now is behind it.
        let bytes = vec![4; GRAIN_BYTES as usize];
        target.write_at(&bytes, 3 * GRAIN_BYTES).expect("writes");
        let digests = Digest::of_grains(3 * GRAIN_BYTES, SIZE, &bytes);
        target.verified(Extent::new(3 * GRAIN_BYTES, GRAIN_BYTES), &digests).expect("notes");
        drop(target);
        let part = fs::OpenOptions::new().write(true).open(hidden(dir.path(), "-part"));
        part.expect("opens").write_all_at(b"lost", GRAIN_BYTES).expect("harms the second");
        assert_eq!(found(&folder, &key), Some(vec![1, 3]), "this boot is believed");
    }

    #[test]
    fn a_copy_that_cannot_begin_anew_leaves_no_journal_that_speaks_of_holes() {
        use rustix::fs::{IFlags, ioctl_setflags};
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let key = Digest::of(b"this copy");
        leave_partial(&folder, &key);
        // One that only grows cannot be begun anew. Root alone can make it so.
        let journal = File::open(hidden(dir.path(), "-journal")).expect("opens");
        if ioctl_setflags(&journal, IFlags::APPEND).is_err() {
            return;
        }
        let begun = Target::create_lasting(&folder, &path("a"), &info(0o644), &key);
        ioctl_setflags(&journal, IFlags::empty()).expect("root may");
        assert!(begun.is_err());
        let (target, have) = Target::find_lasting(&folder, &path("a"), &key).expect("there");
        let mut bytes = vec![0; have.extents.bytes() as usize];
        target.file.read_exact_at(&mut bytes, 0).expect("reads");
        assert_eq!(bytes.len() as u64, 2 * GRAIN_BYTES);
        assert!(bytes.iter().all(|byte| *byte != 0), "it claims what is not there");
    }

    #[test]
    fn what_could_not_be_flushed_is_not_gone_on_with() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let key = Digest::of(b"this copy");
        leave_partial(&folder, &key);
        let (mut target, _) = Target::find_lasting(&folder, &path("a"), &key).expect("there");
        // A file that cannot be made as long as it is to be: that fails where a disk would.
        let (_reader, pipe) = rustix::pipe::pipe().expect("a pipe");
        target.file = File::from(pipe);
        target.end_at(SIZE);
        let answers = Target::commit(&[Arc::new(target)]);
        assert!(matches!(&answers[..], [Err(fault)] if fault.text.contains("cannot flush a")));
        assert_eq!(found(&folder, &key), None, "it would be believed, and is not there");
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 0, "nothing is left behind");
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
    fn a_copy_that_goes_on_ends_with_the_mode_that_its_source_has_then() {
        let mode = |path: &std::path::Path| {
            fs::metadata(path).expect("there").permissions().mode() & 0o7777
        };
        for (dir, folder) in folders() {
            let key = Digest::of(b"this copy");
            for (first, then) in [(0o644, 0o600), (0o600, 0o644), (0o644, 0o400), (0o600, 0o755)] {
                let fresh = Target::create(&folder, &path("fresh"), 1, then).expect("makes");
                assert_eq!(Target::commit(&[Arc::new(fresh)]), vec![Ok(())]);
                let due = mode(&dir.path().join("fresh"));
                for found in [true, false] {
                    let made = Target::create_lasting(&folder, &path("a"), &info(first), &key);
                    drop(made.expect("makes"));
                    let target = match found {
                        true => {
                            let found = Target::find_lasting(&folder, &path("a"), &key);
                            let (target, _) = found.expect("there");
                            target.set_mode(then);
                            target
                        }
                        // Of another version, which is begun anew.
                        false => Target::create_lasting(&folder, &path("a"), &info(then), &key)
                            .expect("makes"),
                    };
                    let meanwhile = mode(&hidden(dir.path(), "-part"));
                    assert_eq!(meanwhile & !(then | 0o200), 0, "{meanwhile:o}, not {then:o}");
                    assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
                    let became = mode(&dir.path().join("a"));
                    assert_eq!(became, due, "{first:o}, then {then:o}: {became:o}, not {due:o}");
                }
            }
            assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 2, "nothing else is left");
        }
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
        let digests = target.zero(extent, SIZE, |_| Ok(())).expect("zeroes");
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
