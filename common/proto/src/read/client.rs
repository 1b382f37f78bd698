//! The reading client: opens files, spreads chunks of leased windows over the
//! links, counts what is verified, asks again for what is not, and says when a
//! file is whole. Driven by the client's session; never sees a byte.
//!
//! Life of a file: opening -> fetching -> closing -> finished, failed, or begun
//! again when its source changed. A file that fails is drained first: nothing
//! of it is in flight when the driver is told.

mod finish;
mod holes;
mod ordered;
mod part;
#[cfg(test)]
mod testing;
mod waiting;
mod windows;

use super::chunk::{Chunk, check_piece};
use super::slots::Slots;
use super::types::{ClientEffect, ClientOptions, Fetch, Have, Outcome, PieceOutcome};
use crate::batch::{batches, batches_by, unexpected};
use crate::digest::{Digest, RootBuilder};
use crate::holes::Zeros;
use crate::message::{FileId, FileInfo, Lease, LinkId, OpenFile, Piece, ReadReply, ReadRequest};
use crate::message::{Region, WindowId};
use crate::touched::Files;
use crate::units::{CHUNK_ATTEMPTS_BEFORE_REFRESH, CHUNK_ATTEMPTS_MAX, OPEN_FILES_MAX};
use crate::{Code, Extent, ExtentSet, Fault, Kept, WirePath};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

pub use part::Part;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    Fetching,
    Closing,
}

struct File {
    path: WirePath,
    have: Option<Have>,
    size: u64,
    stage: Stage,
    /// Needed, and not leased yet.
    unleased: ExtentSet,
    unverified_bytes: u64,
    root: RootBuilder,
    /// Pieces of this file in chunks that are ready or in flight, and parts of its holes.
    pending: usize,
    /// Where digests did not match, and how often.
    bad: BTreeMap<u64, u8>,
    attempts: u8,
    part: bool,
    doom: Option<Fault>,
    /// What the server said when it was closed.
    answer: Option<Result<Kept, Fault>>,
}

impl File {
    /// Whether what comes of it is of use.
    fn is_wanted(&self) -> bool {
        self.doom.is_none() && self.stage == Stage::Fetching
    }
}

struct Window {
    /// Chunks, or parts of holes, that are not done with.
    chunks: usize,
    refresh: Vec<(FileId, Extent)>,
    base: u64,
    rails: Vec<Region>,
}

struct Flight {
    chunk: Chunk,
    deadline: Duration,
}

/// The machine.
pub struct ReadClient {
    options: ClientOptions,
    files: Files<File>,
    windows: HashMap<WindowId, Window>,
    /// Names of windows to come.
    rails: HashMap<WindowId, Vec<Region>>,
    ready: VecDeque<Chunk>,
    /// Whether chunks among them, or holes, may be for nobody any more.
    sift: bool,
    zeros: Zeros<(WindowId, FileId)>,
    order: Option<ordered::Order>,
    slots: Slots,
    flights: HashMap<(LinkId, u16), Flight>,
    to_open: Vec<OpenFile>,
    to_release: Vec<WindowId>,
    to_close: Vec<FileId>,
    effects: VecDeque<ClientEffect>,
    heard: Duration,
    mismatches: u64,
}

impl ReadClient {
    /// A machine without files or links.
    pub fn new(options: ClientOptions) -> Self {
        Self {
            options,
            files: Files::default(),
            windows: HashMap::new(),
            rails: HashMap::new(),
            ready: VecDeque::new(),
            sift: false,
            zeros: Zeros::default(),
            order: None,
            slots: Slots::new(options.slots_per_link),
            flights: HashMap::new(),
            to_open: Vec::new(),
            to_release: Vec::new(),
            to_close: Vec::new(),
            effects: VecDeque::new(),
            heard: Duration::ZERO,
            mismatches: 0,
        }
    }

    /// How many more files may be opened now.
    pub fn room(&self) -> usize {
        OPEN_FILES_MAX - self.files.len()
    }

    /// Whether no file is left.
    pub fn is_idle(&self) -> bool {
        self.files.is_empty()
    }

    /// How many digests did not match so far.
    pub fn mismatches(&self) -> u64 {
        self.mismatches
    }

    /// The next thing the driver must do.
    pub fn next_effect(&mut self) -> Option<ClientEffect> {
        self.effects.pop_front()
    }

    /// Adds a file. Numbers are used once.
    ///
    /// # Panics
    /// When there is no room or the number is in use: a bug of the driver.
    pub fn open(&mut self, file: FileId, path: WirePath, have: Option<Have>, now: Duration) {
        assert!(self.room() > 0, "no room for another file");
        self.touch(now);
        let state = File {
            path,
            have,
            size: 0,
            stage: Stage::Opening,
            unleased: ExtentSet::new(),
            unverified_bytes: 0,
            root: RootBuilder::new(0),
            pending: 0,
            bad: BTreeMap::new(),
            attempts: 1,
            part: false,
            doom: None,
            answer: None,
        };
        self.to_open.push(state.request(file));
        assert!(self.files.insert(file, state).is_none(), "file {file:?} is in use");
    }

    /// Gives a file up for a reason of the driver's.
    pub fn fail(&mut self, file: FileId, fault: Fault) {
        self.doom(file, fault);
    }

    /// A read ended. One that is not in flight is ignored: it was counted as lost before.
    pub fn fetched(&mut self, link: LinkId, slot: u16, outcome: Outcome, now: Duration) {
        let Some(flight) = self.flights.remove(&(link, slot)) else { return };
        self.touch(now);
        let outcomes = match outcome {
            Outcome::LinkLost => {
                self.sift = true;
                return self.ready.push_front(flight.chunk);
            }
            Outcome::Landed(outcomes) => outcomes,
        };
        self.slots.give_back(link, slot);
        assert_eq!(outcomes.len(), flight.chunk.pieces.len(), "one outcome per piece");
        for (index, outcome) in outcomes.into_iter().enumerate() {
            self.landed(&flight.chunk, index, outcome);
        }
        self.chunk_done(flight.chunk.window);
    }

    /// The server is alive, whatever it said.
    pub fn touch(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
    }

    /// Takes an answer of the server.
    pub fn reply(&mut self, reply: ReadReply, now: Duration) {
        self.touch(now);
        let taken = match reply {
            ReadReply::Opened { files } => {
                files.into_iter().try_for_each(|(file, answer)| self.opened(file, answer))
            }
            ReadReply::Lease(lease) => self.leased(&lease),
            ReadReply::Holes(holes) => self.holes(holes),
            ReadReply::Rails(rails) => self.rails(rails),
            ReadReply::Failed { file, fault } => {
                self.doom(file, fault);
                Ok(())
            }
            ReadReply::Closed { files } => {
                files.into_iter().try_for_each(|(file, answer)| self.closed(file, answer))
            }
        };
        if let Err(fault) = taken {
            self.effects.push_back(ClientEffect::Broken(fault));
        }
    }

    /// Puts ready chunks into free slots and sends what is due. Call after every event.
    pub fn advance(&mut self, now: Duration) {
        if std::mem::take(&mut self.sift) {
            self.drop_doomed_chunks();
            self.drop_doomed_holes();
        }
        self.zero_holes();
        while let Some((link, slot)) = self.slots.take() {
            let Some(chunk) = self.next_ready(link) else {
                self.slots.give_back(link, slot);
                break;
            };
            self.slots.turns.took(link, chunk.pieces[0].file);
            let deadline = now + self.options.timeout;
            let named = self.named_on(&chunk, link);
            self.flights.insert((link, slot), Flight { chunk, deadline });
            self.effects.push_back(match named {
                Ok(chunk) => ClientEffect::Fetch(Fetch { link, slot, chunk }),
                Err(fault) => ClientEffect::Broken(fault),
            });
        }
        self.end_files();
        self.flush();
        self.expire(now);
    }

    fn opened(&mut self, id: FileId, answer: Result<FileInfo, Fault>) -> Result<(), Fault> {
        let file = self.files.get_mut(&id).filter(|file| file.stage == Stage::Opening);
        let file = file.ok_or_else(|| unexpected("answer to an open", id))?;
        let info = match answer.and_then(FileInfo::checked) {
            Ok(info) => info,
            Err(fault) => {
                self.files.remove(&id);
                self.effects.push_back(ClientEffect::Failed { file: id, fault });
                return Ok(());
            }
        };
        file.stage = Stage::Fetching;
        file.size = info.size;
        file.unleased = ExtentSet::whole(info.size);
        file.root = RootBuilder::new(info.size);
        if info.size == 0 {
            file.root.insert(0, Digest::of(b""));
        }
        match file.have.take() {
            Some(have) if have.is_exactly(&info) || file.part && have.takes_any(&info) => {
                have.extents.iter().for_each(|extent| assert!(file.unleased.take(extent)));
                file.root = have.root;
            }
            Some(_) => file.doom = Some(changed(&file.path, "changed since it was copied in part")),
            None => {}
        }
        file.unverified_bytes = file.unleased.bytes();
        let had = info.size - file.unverified_bytes;
        self.effects.push_back(ClientEffect::Opened { file: id, info, had });
        Ok(())
    }

    fn leased(&mut self, lease: &Lease) -> Result<(), Fault> {
        if self.windows.contains_key(&lease.window) || lease.pieces.is_empty() {
            return Err(Fault::new(Code::Protocol, "server leased an empty window, or one twice"));
        }
        self.check_room()?;
        for piece in &lease.pieces {
            let file = self.files.get_mut(&piece.file);
            let file = file.filter(|file| file.stage != Stage::Opening);
            let file = file.ok_or_else(|| unexpected("lease", piece.file))?;
            check_piece(piece, file.size)?;
            if !file.unleased.take(piece.extent) {
                return Err(unexpected("lease of what was leased before", piece.file));
            }
        }
        let chunks = Chunk::cut(lease, self.options.chunk_bytes);
        for piece in chunks.iter().flat_map(|chunk| &chunk.pieces) {
            if let Some(file) = self.files.get_mut(&piece.file) {
                file.pending += 1;
                self.sift |= !file.is_wanted();
            }
        }
        let rails = self.rails.remove(&lease.window).unwrap_or_default();
        let (chunks_left, base) = (chunks.len(), lease.region.base);
        let window = Window { chunks: chunks_left, refresh: Vec::new(), base, rails };
        self.windows.insert(lease.window, window);
        self.ready.extend(chunks);
        Ok(())
    }

    fn landed(&mut self, chunk: &Chunk, index: usize, outcome: PieceOutcome) {
        let piece = &chunk.pieces[index];
        let Some(file) = self.files.get_mut(&piece.file) else { return };
        file.pending -= 1;
        if !file.is_wanted() {
            return;
        }
        match outcome {
            PieceOutcome::Verified => {
                file.bad.remove(&piece.extent.offset);
                file.unverified_bytes -= piece.extent.len;
                file.root.insert_run(piece.extent.offset, &piece.digests);
                self.came(piece.extent);
            }
            PieceOutcome::Failed(fault) => {
                (file.doom, self.sift) = (Some(fault), true);
            }
            PieceOutcome::Mismatch => self.mismatched(chunk, index),
        }
    }

    fn mismatched(&mut self, chunk: &Chunk, index: usize) {
        let Piece { file: id, extent, .. } = chunk.pieces[index];
        self.mismatches += 1;
        let file = self.files.get_mut(&id).expect("the caller found it");
        let tries = file.bad.entry(extent.offset).or_default();
        *tries += 1;
        let tries = *tries;
        let window = self.windows.get_mut(&chunk.window).expect("a chunk keeps its window");
        if tries >= CHUNK_ATTEMPTS_MAX {
            let text =
                format!("digest does not match at byte {} after {tries} tries", extent.offset);
            (file.doom, self.sift) = (Some(Fault::new(Code::Mismatch, text)), true);
        } else if tries >= CHUNK_ATTEMPTS_BEFORE_REFRESH {
            file.unleased.insert(extent);
            window.refresh.push((id, extent));
        } else {
            file.pending += 1;
            window.chunks += 1;
            self.ready.push_back(chunk.only(index));
        }
    }

    /// One chunk of a window is done with; the last one gives the window back.
    fn chunk_done(&mut self, id: WindowId) {
        let window = self.windows.get_mut(&id).expect("a chunk keeps its window");
        window.chunks -= 1;
        if window.chunks > 0 {
            return;
        }
        let window = self.windows.remove(&id).expect("it was just there");
        let files = &self.files;
        let fetching = |id: &FileId| files.get(id).is_some_and(File::is_wanted);
        let pieces: Vec<_> =
            window.refresh.into_iter().filter(|(file, _)| fetching(file)).collect();
        if pieces.is_empty() {
            self.to_release.push(id);
        } else {
            let refresh = ReadRequest::Refresh { window: id, pieces };
            self.effects.push_back(ClientEffect::Send(refresh));
        }
    }

    fn doom(&mut self, id: FileId, fault: Fault) {
        if let Some(file) = self.files.get_mut(&id) {
            file.doom.get_or_insert(fault);
            self.sift = true;
        }
    }

    fn flush(&mut self) {
        let effects = &mut self.effects;
        let mut send = |request| effects.push_back(ClientEffect::Send(request));
        for files in batches_by(&mut self.to_open, |file| file.path.as_bytes().len()) {
            send(ReadRequest::Open { files });
        }
        for windows in batches(&mut self.to_release) {
            send(ReadRequest::Release { windows });
        }
        for files in batches(&mut self.to_close) {
            send(ReadRequest::Close { files, describe: self.options.describe });
        }
    }
}

fn changed(path: &WirePath, how: &str) -> Fault {
    Fault::new(Code::Changed, format!("{path} {how}"))
}
