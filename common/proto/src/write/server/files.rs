//! The temporary files of one client: which ranges are claimed, how much is stored, and whether a
//! file may be committed or discarded. Knows nothing of links and slots; the machine and its other
//! parts claim ranges here before the driver works on them.

use crate::batch::unexpected;
use crate::digest::{Digest, RootBuilder};
use crate::message::{CreateFile, FileId, FileInfo};
use crate::numbered::FileMap;
use crate::read::Have;
use crate::units::{BATCH_FILES_MAX, GRAIN_BYTES, OPEN_FILES_MAX, RANGES_MAX, STREAM_BYTES_MAX};
use crate::{Code, Extent, ExtentSet, Fault};

/// One temporary file.
pub(super) struct File {
    info: FileInfo,
    open: bool,
    /// Not sent yet, or sent in vain.
    unclaimed: ExtentSet,
    unstored_bytes: u64,
    root: RootBuilder,
    /// Claims that are not ended: chunks, direct writes, offers and lists of holes.
    claims: usize,
    /// Its size is not known yet.
    streaming: bool,
    /// Chunks may be written straight into it.
    takes_spots: bool,
    /// It is whole, and the driver renames it: it cannot be discarded any more.
    committing: bool,
    discarded: bool,
}

impl File {
    fn new(info: FileInfo, stream: bool) -> Self {
        let mut root = match stream {
            true => RootBuilder::open(),
            false => RootBuilder::new(info.size),
        };
        if info.size == 0 {
            root.insert(0, Digest::of(b""));
        }
        Self {
            info,
            open: false,
            unclaimed: ExtentSet::whole(info.size),
            unstored_bytes: info.size,
            root,
            claims: 0,
            streaming: stream,
            takes_spots: false,
            committing: false,
            discarded: false,
        }
    }

    /// Counts in the extents that an earlier session stored, and returns them.
    fn resume(&mut self, have: Option<Have>) -> Vec<Extent> {
        self.open = true;
        let Some(have) = have.filter(|have| have.is_of(&self.info)) else { return Vec::new() };
        for extent in have.extents.iter() {
            assert!(self.unclaimed.take(extent), "the store has what cannot be");
            self.unstored_bytes -= extent.len;
        }
        self.root = have.root;
        have.extents.iter().collect()
    }

    pub fn size(&self) -> u64 {
        self.info.size
    }

    pub fn is_streaming(&self) -> bool {
        self.streaming
    }

    pub fn takes_spots(&self) -> bool {
        self.takes_spots
    }

    /// Claims a range until `end_claim`. `what` names the client's message in the fault if part of
    /// the range was claimed before.
    pub fn claim(&mut self, id: FileId, extent: Extent, what: &str) -> Result<(), Fault> {
        if self.discarded || !self.unclaimed.take(extent) {
            return Err(unexpected(what, id));
        }
        self.check_fragments("client sends a file in too many fragments")?;
        self.claims += 1;
        Ok(())
    }

    /// Claims all ranges of a list of holes, with one `end_claim` for all of them.
    pub fn claim_holes(&mut self, id: FileId, holes: &[Extent]) -> Result<(), Fault> {
        if !holes.iter().all(|extent| self.unclaimed.take(*extent)) {
            return Err(unexpected("hole where it sent data", id));
        }
        self.check_fragments("client names a file's holes in too many fragments")?;
        self.claims += 1;
        Ok(())
    }

    fn check_fragments(&self, text: &str) -> Result<(), Fault> {
        match self.unclaimed.range_count() > RANGES_MAX {
            true => Err(Fault::new(Code::Limit, text)),
            false => Ok(()),
        }
    }

    /// A range that was claimed is stored and verified.
    pub fn store(&mut self, extent: Extent, digests: &[Digest]) {
        self.unstored_bytes -= extent.len;
        self.root.insert_run(extent.offset, digests);
    }

    /// A range that was claimed may be sent again.
    pub fn unclaim(&mut self, extent: Extent) {
        self.unclaimed.insert(extent);
    }

    /// The driver is done with a claim; its ranges are stored or unclaimed.
    pub fn end_claim(&mut self) {
        self.claims -= 1;
    }

    /// The client says how long a stream is: false where that cannot be.
    fn end_stream(&mut self, size: u64) -> bool {
        let rest = Extent::new(size, STREAM_BYTES_MAX - size);
        // A file of one grain has another digest: nothing may have been sent of it before.
        let begun = self.unclaimed.bytes() < STREAM_BYTES_MAX;
        if !self.unclaimed.take(rest) || begun && size <= GRAIN_BYTES {
            return false;
        }
        self.streaming = false;
        self.info.size = size;
        self.unstored_bytes -= rest.len;
        self.root.close(size);
        if size == 0 {
            self.root.insert(0, Digest::of(b""));
        }
        true
    }
}

/// The files of a machine.
#[derive(Default)]
pub(super) struct Files {
    all: FileMap<File>,
    /// Whether a file may be discarded that is not gone.
    discarding: bool,
}

impl Files {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn get_mut(&mut self, id: FileId) -> Option<&mut File> {
        self.all.get_mut(&id)
    }

    /// A file that the driver has made. `what` names the client's message in the fault if there is
    /// none.
    pub fn open(&mut self, id: FileId, what: &str) -> Result<&mut File, Fault> {
        let file = self.all.get_mut(&id).filter(|file| file.open);
        file.ok_or_else(|| unexpected(what, id))
    }

    /// A file that the driver has made and the client has not discarded; `what` as in `open`.
    pub fn wanted(&mut self, id: FileId, what: &str) -> Result<&mut File, Fault> {
        let file = self.all.get_mut(&id).filter(|file| file.open && !file.discarded);
        file.ok_or_else(|| unexpected(what, id))
    }

    /// Whether a file is gone, or the client has discarded it.
    pub fn is_given_up(&self, id: FileId) -> bool {
        self.all.get(&id).is_none_or(|file| file.discarded)
    }

    /// Adds files that the driver is to make.
    pub fn create(&mut self, files: &[CreateFile]) -> Result<(), Fault> {
        if files.len() > BATCH_FILES_MAX || self.all.len() + files.len() > OPEN_FILES_MAX {
            let text = format!("client created more than {OPEN_FILES_MAX} files at a time");
            return Err(Fault::new(Code::Limit, text));
        }
        for CreateFile { file, info, stream, .. } in files {
            if *stream != (info.size == STREAM_BYTES_MAX) || info.size > STREAM_BYTES_MAX {
                return Err(unexpected("size that cannot be", *file));
            }
            if self.all.insert(*file, File::new(*info, *stream)).is_some() {
                return Err(unexpected("number that is in use", *file));
            }
        }
        Ok(())
    }

    /// The driver made a file, or could not: the extents that the client need not send.
    pub fn created(
        &mut self,
        id: FileId,
        answer: Result<Option<Have>, Fault>,
    ) -> Result<Vec<Extent>, Fault> {
        if answer.is_err() {
            self.all.remove(&id);
        }
        answer.map(|have| {
            self.all.get_mut(&id).expect("the driver answers what it was asked").resume(have)
        })
    }

    /// Chunks may be written straight into these files.
    pub fn take_spots(&mut self, files: &[FileId]) {
        for id in files {
            if let Some(file) = self.all.get_mut(id) {
                file.takes_spots = true;
            }
        }
    }

    /// The client says how long a stream is.
    pub fn end_stream(&mut self, id: FileId, size: u64) -> Result<(), Fault> {
        let file = self.wanted(id, "end")?;
        if !file.streaming || size >= STREAM_BYTES_MAX {
            return Err(unexpected("end", id));
        }
        match file.end_stream(size) {
            true => Ok(()),
            false => Err(unexpected("end before what it sent", id)),
        }
    }

    /// Marks a whole file as committing; returns whether its digest is the client's.
    pub fn commit(&mut self, id: FileId, root: Digest) -> Result<bool, Fault> {
        let file = self.wanted(id, "commit")?;
        if file.committing {
            return Err(unexpected("commit", id));
        }
        if file.unstored_bytes > 0 || file.claims > 0 || file.streaming {
            return Err(unexpected("commit of a file that is not whole", id));
        }
        // Either way it is answered once.
        file.committing = true;
        Ok(file.root.finish() == Some(root))
    }

    /// The driver is done with a file.
    pub fn remove(&mut self, id: FileId) {
        self.all.remove(&id);
    }

    /// The client discards files; a file that is being committed stays.
    pub fn discard(&mut self, files: Vec<FileId>) {
        for id in files {
            if let Some(file) = self.all.get_mut(&id).filter(|file| !file.committing) {
                file.discarded = true;
                self.discarding = true;
            }
        }
    }

    /// Removes the discarded files without claims.
    pub fn take_discarded(&mut self) -> Vec<FileId> {
        if !self.discarding {
            return Vec::new();
        }
        let idle = |_: &FileId, file: &mut File| file.discarded && file.open && file.claims == 0;
        let gone = self.all.extract_if(idle).map(|(id, _)| id).collect();
        self.discarding = self.all.values().any(|file| file.discarded);
        gone
    }
}
