//! The reading server: opens what it is asked for, has windows prepared within
//! the client's credit, leases them, takes them back. Driven by the server's
//! session, one machine per client. Files of at most a grain are packed, many
//! in one window; larger ones get windows of their own, in turn, and first, and
//! their holes are named instead of leased.
//!
//! A window is preparing, then leased, then retired: by `Release`, by
//! `Refresh`, or by the end of the session. Never earlier, because a client's
//! read of a retired window kills its queue pair.

mod leasing;

use crate::batch::{batches_by, unexpected};
use crate::holes::{Search, Survey, is_whole};
use crate::message::{FileId, FileInfo, Lease, OpenFile, Piece, ReadReply, ReadRequest, Region};
use crate::message::{WindowId, WindowRails};
use crate::meta::{Kept, Meta};
use crate::numbered::FileMap;
use crate::units::{
    BATCH_FILES_MAX, GRAIN_BYTES, OPEN_FILES_MAX, PACKED_FILE_BYTES_MAX, RANGES_MAX, WINDOW_BYTES,
};
use crate::{Code, Digest, Extent, ExtentSet, Fault};
use std::collections::{HashMap, VecDeque};

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEffect {
    /// Send this.
    Send(ReadReply),
    /// Open these; answer with `opened`.
    Open(Vec<OpenFile>),
    /// Make a window; answer with `prepared`.
    Prepare(Prepare),
    /// Look for holes of a file from here on; answer with `found`.
    FindHoles {
        /// The file.
        file: FileId,
        /// From where on.
        from: u64,
    },
    /// The client is done with this window: take it back.
    Retire(WindowId),
    /// Compare the identity of these with that at open, and close them; answer with `closed`,
    /// with their metadata where it says so.
    Close(Vec<(FileId, bool)>),
    /// The client broke the protocol or a bound: end the session.
    Broken(Fault),
}

/// A window to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// Its number.
    pub window: WindowId,
    /// What goes into it, one behind the other.
    pub pieces: Vec<(FileId, Extent)>,
    /// Whether the pieces are whole small files, to be staged together.
    pub packed: bool,
    /// Whether a digest did not match before: open the file anew and trust no cache.
    pub fresh: bool,
}

/// A window that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Where it is; `None` when no piece could be had.
    pub region: Option<Region>,
    /// Its names on the rails behind the first.
    pub rails: Vec<Region>,
    /// One answer per piece asked for. Those that failed take no room in the window.
    pub pieces: Vec<Result<Vec<Digest>, Fault>>,
}

/// A file that was opened, and the holes it begins with.
pub type Opened = (FileInfo, Survey);

struct File {
    size: u64,
    unleased: ExtentSet,
    search: Search,
    have: Vec<Extent>,
    open: bool,
    closing: bool,
    /// Windows, and a search for holes, that the driver is at.
    preparing: usize,
    /// Whether it is in the queue of small ones.
    queued: bool,
    /// The first window that may hold any of it: earlier ones hold another file of its number.
    since: WindowId,
}

struct Window {
    pieces: Vec<(FileId, Extent)>,
    packed: bool,
    leased: bool,
    /// Whether holes stand behind it, and no memory.
    is_holes: bool,
}

/// The machine.
#[derive(Default)]
pub struct ReadServer {
    files: FileMap<File>,
    large: VecDeque<FileId>,
    small: VecDeque<FileId>,
    /// Pieces to prepare anew after a mismatch, each a window.
    fresh: VecDeque<Vec<(FileId, Extent)>>,
    windows: HashMap<WindowId, Window>,
    /// Fewer than `WINDOWS_MAX` where windows are dear.
    windows_max: Option<usize>,
    /// Shorter than `WINDOW_BYTES` where windows are dear.
    window_bytes: Option<u64>,
    /// The driver put a window off, and has not said to go on.
    paused: bool,
    next_window: u64,
    to_close: Vec<(FileId, bool)>,
    effects: VecDeque<ServerEffect>,
}

impl ReadServer {
    /// A machine without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leases at most so many windows at a time from now on, one at least.
    pub fn lease_at_most(&mut self, windows: usize) {
        self.windows_max = Some(windows.max(1));
    }

    /// Windows of large files are this long from now on, and what was put off is asked for again.
    ///
    /// # Panics
    /// When it is not a power of two of grains, up to a whole window: a bug of the driver.
    pub fn lease_windows_of(&mut self, bytes: u64) {
        assert!(bytes.is_power_of_two() && (GRAIN_BYTES..=WINDOW_BYTES).contains(&bytes));
        self.window_bytes = Some(bytes);
        self.paused = false;
        self.advance();
    }

    /// The driver cannot make a window now. What was to go into it is asked for again after
    /// `lease_windows_of`, in windows of the length given there.
    pub fn put_off(&mut self, prepare: Prepare) {
        let Prepare { window, pieces, packed, fresh } = prepare;
        self.windows.remove(&window).expect("the driver puts off what it was asked for");
        self.paused = true;
        let mut left = Vec::new();
        for (id, extent) in pieces {
            let Some(file) = self.files.get_mut(&id) else { continue };
            file.preparing -= 1;
            if file.closing {
                continue;
            }
            left.push((id, extent));
            if !fresh {
                file.unleased.insert(extent);
                file.queued = packed;
            }
        }
        match (fresh, packed) {
            _ if left.is_empty() => {}
            (true, _) => self.fresh.push_front(left),
            (false, true) => left.iter().rev().for_each(|(id, _)| self.small.push_front(*id)),
            (false, false) if self.large.contains(&left[0].0) => {}
            (false, false) => self.large.push_front(left[0].0),
        }
        self.advance();
    }

    /// The next thing the driver must do.
    pub fn next_effect(&mut self) -> Option<ServerEffect> {
        self.effects.pop_front()
    }

    /// Whether nothing is open and no window is out.
    pub fn is_idle(&self) -> bool {
        self.files.is_empty() && self.windows.is_empty()
    }

    /// How many windows are leased or in preparation.
    pub fn window_count(&self) -> usize {
        self.windows.len()
    }

    /// Takes a request of the client.
    pub fn request(&mut self, request: ReadRequest) {
        let taken = match request {
            ReadRequest::Open { files } => self.open(files),
            ReadRequest::Release { windows } => {
                windows.into_iter().try_for_each(|window| self.release(window))
            }
            ReadRequest::Refresh { window, pieces } => self.refresh(window, pieces),
            ReadRequest::Close { files, describe } => {
                files.into_iter().try_for_each(|file| self.close(file, describe))
            }
        };
        if let Err(fault) = taken {
            self.effects.push_back(ServerEffect::Broken(fault));
        }
        self.advance();
    }

    /// The driver opened a batch, or could not.
    pub fn opened(&mut self, answers: Vec<(FileId, Result<Opened, Fault>)>) {
        let mut told = Vec::with_capacity(answers.len());
        for (id, answer) in answers {
            let (info, survey) = match answer {
                Ok(answer) => answer,
                Err(fault) => {
                    self.files.remove(&id);
                    told.push((id, Err(fault)));
                    continue;
                }
            };
            told.push((id, Ok(info)));
            let file = self.files.get_mut(&id).expect("the driver answers what it was asked");
            file.open = true;
            file.size = info.size;
            file.unleased = ExtentSet::whole(info.size);
            for extent in std::mem::take(&mut file.have) {
                // What the client has of a file that shrank since is no use to it.
                if is_whole(extent, info.size) {
                    file.unleased.take(extent);
                }
            }
            let wanted = file.unleased.bytes();
            file.search.answer(survey, info.size, &mut file.unleased);
            match wanted {
                0 => {}
                bytes if bytes == info.size && bytes <= PACKED_FILE_BYTES_MAX => {
                    file.queued = true;
                    self.small.push_back(id);
                }
                _ => self.large.push_back(id),
            }
        }
        self.effects.push_back(ServerEffect::Send(ReadReply::Opened { files: told }));
        self.advance();
    }

    /// The driver looked for holes.
    pub fn found(&mut self, id: FileId, survey: Survey) {
        let file = self.files.get_mut(&id).expect("a file stays while its holes are looked for");
        file.preparing -= 1;
        file.search.answer(survey, file.size, &mut file.unleased);
        self.advance();
    }

    /// The driver made a window, or could not.
    pub fn prepared(&mut self, id: WindowId, answer: Prepared) {
        let window = self.windows.get_mut(&id).expect("the driver answers what it was asked");
        assert_eq!(answer.pieces.len(), window.pieces.len(), "one answer per piece");
        let mut pieces = Vec::new();
        for (&(file, extent), answer) in window.pieces.iter().zip(answer.pieces) {
            if let Some(state) = self.files.get_mut(&file) {
                state.preparing -= 1;
            }
            match answer {
                Ok(digests) => pieces.push(Piece { file, extent, digests }),
                Err(fault) => {
                    let failed = ReadReply::Failed { file, fault };
                    self.effects.push_back(ServerEffect::Send(failed));
                }
            }
        }
        match answer.region {
            Some(region) if !pieces.is_empty() => {
                window.leased = true;
                window.pieces = pieces.iter().map(|piece| (piece.file, piece.extent)).collect();
                if !answer.rails.is_empty() {
                    let rails = WindowRails { window: id, regions: answer.rails };
                    self.effects.push_back(ServerEffect::Send(ReadReply::Rails(rails)));
                }
                let lease = Lease { window: id, region, pieces };
                self.effects.push_back(ServerEffect::Send(ReadReply::Lease(lease)));
            }
            _ => self.retire(id),
        }
        self.advance();
    }

    /// The driver compared and closed a batch.
    pub fn closed(&mut self, mut answers: Vec<(FileId, Result<Kept, Fault>)>) {
        for (id, _) in &answers {
            self.files.remove(id);
        }
        let weight = |(_, answer): &(FileId, Result<Kept, Fault>)| match answer {
            Ok(meta) => meta.as_deref().map_or(0, Meta::weight),
            Err(fault) => fault.text.len(),
        };
        for files in batches_by(&mut answers, weight) {
            self.effects.push_back(ServerEffect::Send(ReadReply::Closed { files }));
        }
    }

    fn open(&mut self, files: Vec<OpenFile>) -> Result<(), Fault> {
        if files.len() > BATCH_FILES_MAX || self.files.len() + files.len() > OPEN_FILES_MAX {
            let text = format!("client opened more than {OPEN_FILES_MAX} files at a time");
            return Err(Fault::new(Code::Limit, text));
        }
        for request in &files {
            if request.have.len() > RANGES_MAX {
                let text = format!("client has more than {RANGES_MAX} ranges of a file");
                return Err(Fault::new(Code::Limit, text));
            }
            let file = File {
                size: 0,
                unleased: ExtentSet::new(),
                search: Search::default(),
                have: request.have.clone(),
                open: false,
                closing: false,
                preparing: 0,
                queued: false,
                since: WindowId(self.next_window),
            };
            if self.files.insert(request.file, file).is_some() {
                return Err(unexpected("number that is in use", request.file));
            }
        }
        self.effects.push_back(ServerEffect::Open(files));
        Ok(())
    }

    fn release(&mut self, id: WindowId) -> Result<(), Fault> {
        match self.windows.get(&id) {
            Some(window) if window.leased => {
                self.retire(id);
                Ok(())
            }
            _ => Err(Fault::new(Code::Protocol, "client released a window it does not have")),
        }
    }

    fn refresh(&mut self, id: WindowId, pieces: Vec<(FileId, Extent)>) -> Result<(), Fault> {
        let leased = self.windows.get(&id).filter(|window| window.leased);
        if !leased.is_some_and(|window| leasing::are_parts(&pieces, &window.pieces)) {
            return Err(Fault::new(Code::Protocol, "client refreshed a window it does not have"));
        }
        self.retire(id);
        let is_wanted = |file: &File| file.open && !file.closing && file.since <= id;
        for piece in pieces {
            if self.files.get(&piece.0).is_some_and(is_wanted) {
                self.fresh.push_back(vec![piece]);
            }
        }
        Ok(())
    }

    fn close(&mut self, id: FileId, describe: bool) -> Result<(), Fault> {
        let file = self.files.get_mut(&id).filter(|file| file.open && !file.closing);
        let file = file.ok_or_else(|| unexpected("close", id))?;
        file.closing = true;
        self.large.retain(|&queued| queued != id);
        // Most are packed by then, and have left it.
        if file.queued {
            self.small.retain(|&queued| queued != id);
        }
        self.fresh.retain(|pieces| pieces.iter().all(|&(file, _)| file != id));
        self.to_close.push((id, describe));
        Ok(())
    }

    fn retire(&mut self, id: WindowId) {
        let window = self.windows.remove(&id);
        if window.is_some_and(|window| !window.is_holes) {
            self.effects.push_back(ServerEffect::Retire(id));
        }
    }
}
