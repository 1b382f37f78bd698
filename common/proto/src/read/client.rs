//! The reading client: opens files, spreads chunks of leased windows over the
//! links, counts what is verified, asks again for what is not, and says when a
//! file is whole. Driven by the client's session; never sees a byte.
//!
//! Life of a file: opening -> fetching -> closing -> finished, failed, or begun
//! again when its source changed. A file that fails is drained first: nothing
//! of it is in flight when the driver is told.

mod file;
mod finish;
mod flights;
mod holes;
mod ordered;
mod part;
mod ready;
mod requests;
#[cfg(test)]
mod testing;
mod windows;

use super::chunk::{Chunk, check_piece};
use super::slots::Slots;
use super::types::{ClientEffect, ClientOptions, Fetch, Have, Outcome, PieceOutcome};
use crate::batch::unexpected;
use crate::holes::Zeros;
use crate::message::{FileId, FileInfo, Lease, LinkId, Piece, ReadReply, ReadRequest, WindowId};
use crate::touched::Files;
use crate::units::OPEN_FILES_MAX;
use crate::{Code, Extent, Fault, WirePath};
use file::{File, Mismatch};
use ordered::Order;
use std::collections::VecDeque;
use std::time::Duration;

pub use part::Part;

/// The machine.
pub struct ReadClient {
    options: ClientOptions,
    files: Files<File>,
    windows: windows::Windows,
    ready: ready::Ready,
    /// Whether ready chunks, or holes, may be for nobody any more.
    sift: bool,
    zeros: Zeros<(WindowId, FileId)>,
    order: Option<Order>,
    slots: Slots,
    flights: flights::Flights,
    requests: requests::Requests,
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
            windows: windows::Windows::default(),
            ready: ready::Ready::default(),
            sift: false,
            zeros: Zeros::default(),
            order: None,
            slots: Slots::new(options.slots_per_link),
            flights: flights::Flights::default(),
            requests: requests::Requests::default(),
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
        let state = File::new(path, have);
        self.requests.open(state.request(file));
        assert!(self.files.insert(file, state).is_none(), "file {file:?} is in use");
    }

    /// Adds a file of which a part is wanted. It finishes without a digest of its own, and fails
    /// as changed if it is another version.
    ///
    /// # Panics
    /// As `open` does.
    pub fn open_part(&mut self, file: FileId, path: WirePath, part: &Part, now: Duration) {
        self.open(file, path, Some(part.have()), now);
        if let Some(state) = self.files.get_mut(&file) {
            state.never_restart();
            state.read_part();
        }
    }

    /// Adds a file that is read in order, from the beginning or from where another session was:
    /// with what that verified, and how much of it was taken. It must be the only file of this
    /// machine.
    ///
    /// # Panics
    /// When there is another one: a bug of the driver.
    pub fn open_ordered(
        &mut self,
        file: FileId,
        path: WirePath,
        begun: Option<(Have, u64)>,
        now: Duration,
    ) {
        assert!(self.is_idle(), "a file in order is alone");
        let (have, taken) = begun.unzip();
        self.order = Some(Order::new(have.as_ref(), taken.unwrap_or(0)));
        self.open(file, path, have, now);
        if let Some(state) = self.files.get_mut(&file) {
            state.never_restart();
        }
    }

    /// All bytes before `offset` were taken.
    pub fn taken(&mut self, offset: u64, now: Duration) {
        self.touch(now);
        if let Some(order) = &mut self.order {
            order.taken(offset);
        }
    }

    fn came(&mut self, extent: Extent) {
        if let Some(order) = &mut self.order {
            order.came(extent);
        }
    }

    /// Whether the next bytes are there, and it is not the server that is waited for.
    pub fn awaits_taker(&self) -> bool {
        self.order.as_ref().is_some_and(Order::has_next)
    }

    /// Gives a file up for a reason of the driver's.
    pub fn fail(&mut self, file: FileId, fault: Fault) {
        if let Some(file) = self.files.get_mut(&file) {
            file.fail(fault);
            self.sift = true;
        }
    }

    /// A link is ready that ends at the server's first device.
    pub fn link_up(&mut self, id: LinkId) {
        self.link_up_on(id, 0);
    }

    /// A link is ready that ends at this rail.
    pub fn link_up_on(&mut self, id: LinkId, rail: u16) {
        self.slots.link_up(id, rail);
    }

    /// A link is dead and nothing on it will complete any more.
    pub fn link_down(&mut self, id: LinkId, now: Duration) {
        self.touch(now);
        self.slots.link_down(id);
        for chunk in self.flights.take_lost(id) {
            self.ready.push_first(chunk);
        }
    }

    /// A read ended. One that is not in flight is ignored: it was counted as lost before.
    pub fn fetched(&mut self, link: LinkId, slot: u16, outcome: Outcome, now: Duration) {
        let Some(chunk) = self.flights.end(link, slot) else { return };
        self.touch(now);
        let outcomes = match outcome {
            Outcome::LinkLost => {
                self.sift = true;
                return self.ready.push_first(chunk);
            }
            Outcome::Landed(outcomes) => outcomes,
        };
        self.slots.give_back(link, slot);
        assert_eq!(outcomes.len(), chunk.pieces.len(), "one outcome per piece");
        for (index, outcome) in outcomes.into_iter().enumerate() {
            self.landed(&chunk, index, outcome);
        }
        self.chunk_done(chunk.window);
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
            ReadReply::Rails(rails) => self.windows.name_rails(rails),
            ReadReply::Failed { file, fault } => {
                self.fail(file, fault);
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
            let order = self.order.as_ref();
            let Some(chunk) = self.ready.next(link, &self.slots.turns, order) else {
                self.slots.give_back(link, slot);
                break;
            };
            self.slots.turns.took(link, chunk.pieces[0].file);
            let named = self.windows.chunk_on(&chunk, self.slots.rail_of(link));
            self.flights.begin(link, slot, chunk, now + self.options.timeout);
            self.effects.push_back(match named {
                Ok(chunk) => ClientEffect::Fetch(Fetch { link, slot, chunk }),
                Err(fault) => ClientEffect::Broken(fault),
            });
        }
        self.end_files();
        self.requests.flush(self.options.describe, &mut self.effects);
        self.expire(now);
    }

    /// When `advance` must be called at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        if self.flights.is_empty() {
            return self.awaits_server().then(|| self.heard + self.options.timeout);
        }
        self.flights.deadline(|link| self.slots.is_dropping(link))
    }

    /// A chunk has a deadline, and so has a silent server. Work of this side is not waited for
    /// with a clock.
    fn expire(&mut self, now: Duration) {
        for link in self.flights.late(now) {
            if self.slots.drop_link(link) {
                self.effects.push_back(ClientEffect::DropLink { link });
            }
        }
        if self.awaits_server()
            && self.flights.is_empty()
            && self.heard + self.options.timeout <= now
        {
            let seconds = self.options.timeout.as_secs();
            let text = format!("server said nothing for {seconds} s");
            self.effects.push_back(ClientEffect::Broken(Fault::new(Code::TimedOut, text)));
            self.heard = now;
        }
    }

    /// Whether something is left to do and not all of it is this side's to do.
    pub fn awaits_server(&self) -> bool {
        !self.is_idle() && self.zeros.is_idle() && !self.awaits_taker()
    }

    fn opened(&mut self, id: FileId, answer: Result<FileInfo, Fault>) -> Result<(), Fault> {
        let file = self.files.get_mut(&id).filter(|file| file.is_opening());
        let file = file.ok_or_else(|| unexpected("answer to an open", id))?;
        let info = match answer.and_then(FileInfo::checked) {
            Ok(info) => info,
            Err(fault) => {
                self.files.remove(&id);
                self.effects.push_back(ClientEffect::Failed { file: id, fault });
                return Ok(());
            }
        };
        let had = file.opened(&info);
        self.effects.push_back(ClientEffect::Opened { file: id, info, had });
        Ok(())
    }

    fn leased(&mut self, lease: &Lease) -> Result<(), Fault> {
        if self.windows.contains(lease.window) || lease.pieces.is_empty() {
            return Err(Fault::new(Code::Protocol, "server leased an empty window, or one twice"));
        }
        self.windows.check_room()?;
        for piece in &lease.pieces {
            let file = self.files.get_mut(&piece.file);
            let file = file.filter(|file| !file.is_opening());
            let file = file.ok_or_else(|| unexpected("lease", piece.file))?;
            check_piece(piece, file.size())?;
            file.lease(piece.file, piece.extent, "lease of what was leased before")?;
        }
        let chunks = Chunk::cut(lease, self.options.chunk_bytes);
        for piece in chunks.iter().flat_map(|chunk| &chunk.pieces) {
            if let Some(file) = self.files.get_mut(&piece.file) {
                file.add_pending(1);
                self.sift |= !file.is_wanted();
            }
        }
        self.windows.add(lease.window, lease.region.base, chunks.len());
        self.ready.extend(chunks);
        Ok(())
    }

    fn landed(&mut self, chunk: &Chunk, index: usize, outcome: PieceOutcome) {
        let piece = &chunk.pieces[index];
        let Some(file) = self.files.get_mut(&piece.file) else { return };
        file.end_pending();
        if !file.is_wanted() {
            return;
        }
        match outcome {
            PieceOutcome::Verified => {
                file.verified(piece.extent, &piece.digests);
                self.came(piece.extent);
            }
            PieceOutcome::Failed(fault) => {
                file.fail(fault);
                self.sift = true;
            }
            PieceOutcome::Mismatch => self.mismatched(chunk, index),
        }
    }

    fn mismatched(&mut self, chunk: &Chunk, index: usize) {
        let Piece { file: id, extent, .. } = chunk.pieces[index];
        self.mismatches += 1;
        let file = self.files.get_mut(&id).expect("the caller found it");
        match file.mismatched(extent) {
            Mismatch::Fail => self.sift = true,
            Mismatch::Refresh => self.windows.refresh(chunk.window, id, extent),
            Mismatch::Retry => {
                file.add_pending(1);
                self.windows.add_part(chunk.window);
                self.ready.push_last(chunk.only(index));
            }
        }
    }

    /// One chunk of a window is done with; the last one gives the window back.
    fn chunk_done(&mut self, window: WindowId) {
        let Some(mut pieces) = self.windows.end_part(window) else { return };
        pieces.retain(|(file, _)| self.files.get(file).is_some_and(File::is_wanted));
        if pieces.is_empty() {
            self.requests.release(window);
        } else {
            let refresh = ReadRequest::Refresh { window, pieces };
            self.effects.push_back(ClientEffect::Send(refresh));
        }
    }
}
