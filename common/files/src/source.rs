//! A file that is read for a copy: opened once, its identity taken, and asked at
//! the end whether it is still the same. Where time stamps cannot tell, because
//! it was written moments before, what was handed out is hashed again, and its
//! holes are looked for again.

use crate::folder::Folder;
use crate::hash::hash_extent;
use crate::holes::find_holes;
use crate::identity::{Identity, file_system_of, stat_open};
use crate::memo::Memo;
use crate::meta;
use rustix::fs::Statx;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use verbatim_proto::message::FileInfo;
use verbatim_proto::units::{FILE_BYTES_MAX, GRAIN_BYTES, WINDOW_BYTES};
use verbatim_proto::{Code, Digest, Extent, ExtentSet, Fault, Meta, Survey, WirePath};

/// What the kernel counts allocation in, whatever the file system's own blocks are.
const BLOCK_BYTES: u64 = 512;

/// Refuses a file whose size is 0 although it has content, as files of /proc are: a copy of it
/// would be empty. Costs one read, of empty files only.
fn is_empty(file: &File, identity: &Identity, name: &str) -> Result<(), Fault> {
    let unread = |e: std::io::Error| Fault::from_io(format!("cannot read {name}"), &e);
    if file.read_at(&mut [0], 0).map_err(unread)? == 0 {
        return Ok(());
    }
    // A file that somebody wrote to just now has another size by now: `check` will say so.
    if identity.now(file).map_err(unread)?.size > 0 {
        return Ok(());
    }
    let text = format!("cannot copy {name}: its size is 0 but it has content");
    Err(Fault::new(Code::Special, text))
}

/// A source of a copy.
#[derive(Debug)]
pub struct Source {
    file: Arc<File>,
    name: String,
    identity: Identity,
    allocated: u64,
    /// What it is to keep beside its content, without attributes, as it was before it was read.
    meta: Meta,
    racy: bool,
    handed: Mutex<Handed>,
    /// What is known of it from an earlier try to send it.
    memo: Option<Memo>,
}

/// What was handed out, as a sum over its grains that any order gives alike.
#[derive(Debug, Default)]
struct Handed {
    extents: ExtentSet,
    sum: Sum,
    /// Grains that were handed out before, one at a time: only retries get here, so they are few.
    again: Vec<(u64, Digest)>,
    /// Where its holes were, as a sum, and how far they were looked for.
    holes: Sum,
    holes_until: u64,
}

/// A sum that any order gives alike.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum([u64; 4]);

impl Source {
    /// Takes the identity of an open file; `name` is for messages.
    pub fn new(file: File, name: impl std::fmt::Display) -> Result<Self, Fault> {
        let what = |e: std::io::Error| Fault::from_io(format!("cannot look at {name}"), &e);
        let stat = stat_open(&file).map_err(what)?;
        let file_system = file_system_of(&file).map_err(what)?;
        Self::looked_at(file, file_system, &stat, name.to_string())
    }

    /// Opens a regular file below a folder; `name` is for messages.
    pub fn open(
        folder: &Folder,
        path: &WirePath,
        name: impl std::fmt::Display,
    ) -> Result<Self, Fault> {
        let (file, stat) = folder.open_file(path)?;
        let what = |e: std::io::Error| Fault::from_io(format!("cannot look at {name}"), &e);
        let file_system = folder.file_system_of(&file, &stat).map_err(what)?;
        Self::looked_at(file, file_system, &stat, name.to_string())
    }

    fn looked_at(file: File, file_system: u64, stat: &Statx, name: String) -> Result<Self, Fault> {
        let identity = Identity::of_status(file_system, stat);
        if identity.size > FILE_BYTES_MAX {
            let text =
                format!("cannot read {name}: {} bytes are more than can be copied", stat.stx_size);
            return Err(Fault::new(Code::Limit, text));
        }
        if identity.size == 0 {
            is_empty(&file, &identity, &name)?;
        }
        Ok(Self {
            file: Arc::new(file),
            name,
            identity,
            allocated: stat.stx_blocks.saturating_mul(BLOCK_BYTES),
            meta: meta::of_status(stat),
            racy: identity.is_racy(SystemTime::now()),
            handed: Mutex::default(),
            memo: None,
        })
    }

    /// Keeps what is hashed of it in this folder, for a later try, and uses what is known.
    pub fn remember_in(mut self, folder: &Path) -> Self {
        self.memo = Memo::open(folder, &self.identity);
        self
    }

    /// Whether a write from now on would change the identity: what is read now may be noted.
    pub fn is_settled(&self) -> bool {
        !self.identity.is_racy(SystemTime::now())
    }

    /// Notes digests of what was read while the source was settled.
    pub fn note(&self, extent: Extent, digests: &[Digest]) {
        if let Some(memo) = &self.memo {
            memo.note(extent, digests);
        }
    }

    /// Forgets what was noted: it was sent.
    pub fn forget(&self) {
        self.memo.iter().for_each(Memo::forget);
    }

    /// The digests of a range that need not be sent, hashed only where they are not known; and
    /// how many bytes were.
    pub fn recall(&self, extent: Extent) -> Result<(Vec<Digest>, u64), Fault> {
        let (digests, hashed) = self.look_up(extent)?;
        self.hand_out(extent, &digests);
        Ok((digests, hashed))
    }

    /// The same of a range that may have to be sent, and is not handed out yet.
    pub fn look_up(&self, extent: Extent) -> Result<(Vec<Digest>, u64), Fault> {
        // One that may have changed behind its time stamps is not known, whatever was noted.
        let memo = self.memo.as_ref().filter(|_| !self.racy);
        let mut digests = Vec::with_capacity(extent.len.div_ceil(GRAIN_BYTES) as usize);
        let mut hashed = 0;
        for done in (0..extent.len).step_by(GRAIN_BYTES as usize) {
            let offset = extent.offset + done;
            if let Some(known) = memo.and_then(|memo| memo.find(offset)) {
                digests.push(known);
                continue;
            }
            let grain = Extent::new(offset, GRAIN_BYTES.min(extent.len - done));
            let settled = self.is_settled();
            let now = self.hash(grain)?;
            if settled {
                self.note(grain, &now);
            }
            digests.extend(now);
            hashed += grain.len;
        }
        Ok((digests, hashed))
    }

    /// The open file.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// What it was when it was opened.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether its identity may not be trusted, or cached.
    pub fn is_racy(&self) -> bool {
        self.racy
    }

    /// What the other side is told of it.
    pub fn info(&self) -> FileInfo {
        let Identity { size, mtime_ns, .. } = self.identity;
        let version = (!self.racy).then(|| self.identity.version());
        FileInfo { size, mode: self.meta.mode, mtime_ns, allocated: self.allocated, version }
    }

    /// What it is to keep beside its content; `trusted.*` only where `trusted` says so.
    pub fn meta(&self, trusted: bool) -> Result<Meta, Fault> {
        let xattrs = meta::xattrs_of(&*self.file, trusted, &self.name)?;
        Ok(Meta { xattrs, ..self.meta.clone() })
    }

    /// Hashes a range of it.
    pub fn hash(&self, extent: Extent) -> Result<Vec<Digest>, Fault> {
        hash_extent(&self.file, self.identity.size, extent).map_err(|e| self.read_fault(&e))
    }

    /// Says what a failed read of it means: one that ends early is a change.
    pub fn read_fault(&self, error: &std::io::Error) -> Fault {
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            return self.changed("shrank while it was read");
        }
        Fault::from_io(format!("cannot read {}", self.name), error)
    }

    /// Remembers digests that went to the other side, for `check`.
    pub fn hand_out(&self, extent: Extent, digests: &[Digest]) {
        if !self.racy {
            return;
        }
        let mut handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner);
        handed.add(extent, digests);
    }

    /// Looks for holes from `from` on: first from the beginning, then from where the last look
    /// ended.
    pub fn find_holes(&self, from: u64) -> Survey {
        let survey = find_holes(&self.file, self.identity.size, from);
        if self.racy {
            let mut handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner);
            handed.add_holes(&survey, from);
        }
        survey
    }

    /// Says whether the file is still what it was when it was opened, so that what was handed
    /// out is one version of it.
    pub fn check(&self) -> Result<(), Fault> {
        let what = || format!("cannot look at {}", self.name);
        let now = self.identity.now(&self.file).map_err(|e| Fault::from_io(what(), &e))?;
        if now != self.identity {
            return Err(self.changed("changed while it was read"));
        }
        if self.racy { self.check_content() } else { Ok(()) }
    }

    fn check_content(&self) -> Result<(), Fault> {
        let handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = Handed::default();
        let mut same = true;
        for whole in handed.extents.iter() {
            let mut rest: ExtentSet = [whole].into_iter().collect();
            while let Some(extent) = rest.take_first(WINDOW_BYTES) {
                let digests = self.hash(extent)?;
                same &= handed.agrees(extent, &digests);
                now.add(extent, &digests);
            }
        }
        while now.holes_until < handed.holes_until {
            let from = now.holes_until;
            now.add_holes(&find_holes(&self.file, self.identity.size, from), from);
        }
        same &= now.sum == handed.sum && now.holes == handed.holes;
        if same { Ok(()) } else { Err(self.changed("changed while it was read")) }
    }

    fn changed(&self, how: &str) -> Fault {
        Fault::new(Code::Changed, format!("{} {how}", self.name))
    }
}

impl Handed {
    fn add(&mut self, extent: Extent, digests: &[Digest]) {
        for (index, digest) in (extent.offset / GRAIN_BYTES..).zip(digests) {
            if self.extents.intersects(Extent::new(index * GRAIN_BYTES, 1)) {
                self.again.push((index, *digest));
                continue;
            }
            let mut keyed = [0_u8; 40];
            keyed[..8].copy_from_slice(&index.to_le_bytes());
            keyed[8..].copy_from_slice(&digest.0);
            self.sum.add(&keyed);
        }
        self.extents.insert(extent);
    }

    /// Adds what a look found, unless it was looked there before.
    fn add_holes(&mut self, survey: &Survey, from: u64) {
        if from != self.holes_until {
            return;
        }
        for hole in &survey.holes {
            let mut keyed = [0_u8; 16];
            keyed[..8].copy_from_slice(&hole.offset.to_le_bytes());
            keyed[8..].copy_from_slice(&hole.len.to_le_bytes());
            self.holes.add(&keyed);
        }
        self.holes_until = survey.until;
    }

    /// Whether what was handed out again in this range has these digests.
    fn agrees(&self, extent: Extent, digests: &[Digest]) -> bool {
        let first = extent.offset / GRAIN_BYTES;
        let now = |index: u64| index.checked_sub(first).and_then(|at| digests.get(at as usize));
        self.again.iter().all(|(index, digest)| now(*index).is_none_or(|now| now == digest))
    }
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        let Digest(mixed) = Digest::of(bytes);
        for (sum, part) in self.0.iter_mut().zip(mixed.chunks_exact(8)) {
            *sum ^= u64::from_le_bytes(part.try_into().expect("8 bytes"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn sample() -> (File, Source) {
        let file = tempfile::tempfile().expect("file");
        file.write_all_at(&[7; 300_000], 0).expect("writes");
        let source = Source::new(file.try_clone().expect("clones"), "a.bin").expect("source");
        let whole = Extent::new(0, 300_000);
        source.hand_out(whole, &source.hash(whole).expect("hashes"));
        (file, source)
    }

    #[test]
    fn a_file_that_stays_is_unchanged() {
        let (_file, source) = sample();
        assert!(source.is_racy(), "it was just written");
        assert_eq!(source.check(), Ok(()));
    }

    #[test]
    fn a_write_hidden_by_the_time_stamps_is_found_in_the_content() {
        let (file, source) = sample();
        file.write_all_at(&[8], 299_999).expect("writes");
        // As on kernels with coarse stamps: the identity looks the same.
        let identity = Identity::of(&file).expect("identity");
        let source = Source { identity, ..source };
        assert_eq!(source.check().expect_err("changed").code, Code::Changed);
    }

    #[test]
    fn a_range_that_is_handed_out_again_is_unchanged_unless_it_differs() {
        let (_file, source) = sample();
        let whole = Extent::new(0, 300_000);
        let digests = source.hash(whole).expect("hashes");
        source.hand_out(whole, &digests);
        source.hand_out(Extent::new(262_144, 300_000 - 262_144), &digests[1..]);
        assert_eq!(source.check(), Ok(()));
        source.hand_out(whole, &[digests[0], Digest::of(b"another version")]);
        assert_eq!(source.check().expect_err("changed").code, Code::Changed);
    }

    #[test]
    fn what_is_noted_is_not_hashed_again_unless_the_source_is_young() {
        let dir = tempfile::tempdir().expect("folder");
        let (file, source) = sample();
        let whole = Extent::new(0, 300_000);
        // A lie, so that it shows which digests are taken from the memo.
        let lie = [Digest([1; 32]), Digest([2; 32])];
        let old = Identity { mtime_ns: 1, ctime_ns: 1, ..*source.identity() };
        let source = Source { identity: old, racy: false, ..source }.remember_in(dir.path());
        assert!(source.is_settled());
        source.note(whole, &lie);
        assert_eq!(source.recall(whole), Ok((lie.to_vec(), 0)));
        let young = Source { racy: true, ..source };
        let (digests, hashed) = young.recall(whole).expect("hashes");
        assert_eq!((digests, hashed), (young.hash(whole).expect("hashes"), 300_000));
        young.forget();
        let source = Source { identity: old, racy: false, ..young }.remember_in(dir.path());
        assert_eq!(source.recall(whole).expect("hashes").1, 300_000, "it was forgotten");
        assert_eq!(source.recall(whole).expect("known").1, 0, "and is known again");
        drop(file);
    }

    #[test]
    fn a_hole_that_is_filled_is_a_change_although_the_time_stamps_hide_it() {
        let file = tempfile::tempfile().expect("file");
        file.set_len(40 * GRAIN_BYTES).expect("grows");
        file.write_all_at(b"data", 20 * GRAIN_BYTES).expect("writes");
        let source = Source::new(file.try_clone().expect("clones"), "a.bin").expect("source");
        let survey = source.find_holes(0);
        assert_eq!((survey.holes.len(), survey.until), (2, 40 * GRAIN_BYTES));
        assert_eq!(source.check(), Ok(()));
        file.write_all_at(&[1], 30 * GRAIN_BYTES + 3).expect("fills a hole");
        let identity = Identity::of(&file).expect("identity");
        let source = Source { identity, ..source };
        assert_eq!(source.check().expect_err("changed").code, Code::Changed);
    }

    #[test]
    fn an_empty_file_that_is_written_to_while_it_is_opened_changed_and_is_not_refused() {
        let file = tempfile::tempfile().expect("file");
        let identity = Identity::of(&file).expect("identity");
        assert_eq!(is_empty(&file, &identity, "a.bin"), Ok(()));
        file.write_all_at(&[1], 0).expect("writes");
        assert_eq!(is_empty(&file, &identity, "a.bin"), Ok(()));
        let source = Source::new(file, "a.bin").expect("source");
        let source = Source { identity, ..source };
        assert_eq!(source.check().expect_err("changed").code, Code::Changed);
    }

    #[test]
    fn a_file_that_shrank_says_so() {
        let (file, source) = sample();
        file.set_len(10).expect("shrinks");
        assert_eq!(source.check().expect_err("changed").code, Code::Changed);
        let fault = source.hash(Extent::new(0, 300_000)).expect_err("short");
        assert_eq!(fault.to_string(), "a.bin shrank while it was read");
    }
}
