//! The writing client: creates files, fills granted slots with their chunks,
//! sends what was not stored again, and commits what is whole. Driven by the
//! client's session; never sees a byte.
//!
//! Life of a file: creating -> sending -> checking the source -> committing ->
//! finished, failed, or begun again when its source changed. A tag has one
//! flight: posting (the driver reads, hashes, writes), then awaiting a verdict.
//! A dead link's flights stay until it is fenced: a late write must find nothing.

mod basis;
mod file;
mod flights;
mod grants;
mod holes;
mod links;
mod offers;
mod queue;
mod requests;

use super::types::{ClientEffect, ClientOptions, Post, Posted};
use crate::batch::unexpected;
use crate::digest::Digest;
use crate::holes::Survey;
use crate::message::{CommitFile, CreateFile, FileId, FileInfo, Grant, LinkId, Spot, SpotReply};
use crate::message::{Tag, Verdict, WriteReply, WriteRequest};
use crate::offer::Taken;
use crate::touched::Files;
use crate::units::{OPEN_FILES_MAX, STREAM_BYTES_MAX};
use crate::{Code, Extent, Fault, Kept, WirePath};
use file::{Due, File};
use flights::Flight;
use std::collections::VecDeque;
use std::time::Duration;

/// The machine.
pub struct WriteClient {
    options: ClientOptions,
    files: Files<File>,
    queue: queue::Queue,
    links: links::Links,
    grants: grants::Grants,
    flights: flights::Flights,
    holes: holes::HoleLists,
    offers: offers::Offers,
    requests: requests::Requests,
    effects: VecDeque<ClientEffect>,
    heard: Duration,
    mismatches: u64,
    in_place_bytes: u64,
}

impl WriteClient {
    /// A machine without files or grants.
    pub fn new(options: ClientOptions) -> Self {
        Self {
            options,
            files: Files::default(),
            queue: queue::Queue::default(),
            links: links::Links::default(),
            grants: grants::Grants::default(),
            flights: flights::Flights::default(),
            holes: holes::HoleLists::default(),
            offers: offers::Offers::default(),
            requests: requests::Requests::default(),
            effects: VecDeque::new(),
            heard: Duration::ZERO,
            mismatches: 0,
            in_place_bytes: 0,
        }
    }

    /// How many more files may be created now.
    pub fn room(&self) -> usize {
        OPEN_FILES_MAX - self.files.len()
    }

    /// Whether no file is left.
    pub fn is_idle(&self) -> bool {
        self.files.is_empty()
    }

    /// How many chunks the server found different so far.
    pub fn mismatches(&self) -> u64 {
        self.mismatches
    }

    /// Bytes that were written to where they stay, and matched.
    pub fn in_place_bytes(&self) -> u64 {
        self.in_place_bytes
    }

    /// Whether zeros of holes are hashed here, or wait for it.
    pub fn is_hashing_holes(&self) -> bool {
        !self.holes.is_idle()
    }

    /// Whether the server has holes to make and to hash.
    pub fn awaits_holes(&self) -> bool {
        self.holes.has_unanswered()
    }

    /// The link that a chunk was written over, until the server has judged it.
    pub fn link_of(&self, tag: Tag) -> Option<LinkId> {
        self.flights.link_of(tag)
    }

    /// The next thing the driver must do.
    pub fn next_effect(&mut self) -> Option<ClientEffect> {
        self.effects.pop_front()
    }

    /// Adds a file with the holes it begins with, or begins one again after `Restart`.
    ///
    /// # Panics
    /// When there is no room or the number is in use: a bug of the driver.
    pub fn create(
        &mut self,
        file: FileId,
        path: WirePath,
        info: FileInfo,
        survey: Survey,
        now: Duration,
    ) {
        self.touch(now);
        let earlier = self.files.remove(&file);
        let fresh = earlier.as_ref().is_none_or(File::is_restarting);
        assert!(fresh, "file {file:?} is in use");
        assert!(self.room() > 0, "no room for another file");
        let mut state = File::new(path.clone(), info, survey);
        if let Some(earlier) = &earlier {
            state.count_attempts(earlier);
        }
        self.files.insert(file, state);
        self.requests.create(CreateFile { file, path, info, stream: false });
    }

    /// Adds an empty file that grows as its source is read; its size is sent last. The source
    /// cannot be read again, so the driver keeps its bytes until `Stored`.
    ///
    /// # Panics
    /// When there is no room or the number is in use: a bug of the driver.
    pub fn create_stream(&mut self, file: FileId, path: WirePath, info: FileInfo, now: Duration) {
        assert!(self.room() > 0, "no room for another file");
        self.touch(now);
        let info = FileInfo { size: STREAM_BYTES_MAX, ..info };
        let state = File::new_stream(path.clone(), info);
        assert!(self.files.insert(file, state).is_none(), "file {file:?} is in use");
        self.requests.create(CreateFile { file, path, info, stream: true });
    }

    /// More of a stream was read: whole grains, or what is left behind `ended`.
    pub fn grew(&mut self, id: FileId, extent: Extent, now: Duration) {
        self.touch(now);
        if let Some(file) = self.files.get_mut(&id) {
            file.grew(extent);
            self.queue.ensure_last(id);
        }
    }

    /// The source of a stream has ended, and this is its size. What lies in its last grain, and
    /// anything of a file of one grain, must not have grown before.
    pub fn ended(&mut self, id: FileId, size: u64, now: Duration) {
        self.touch(now);
        if let Some(file) = self.files.get_mut(&id) {
            file.ended(size);
            self.requests.end_stream(id, size);
        }
    }

    /// Says that one of these files of the server may have some of what was just created. A guess
    /// that has nothing of the first range it is asked for is given up for the next.
    pub fn compare_with(&mut self, id: FileId, paths: Vec<WirePath>, guess: bool) {
        if let Some(file) = self.files.get_mut(&id) {
            file.compare_with(paths.into(), guess);
        }
    }

    /// Gives a file up for a reason of the driver's.
    pub fn fail(&mut self, file: FileId, fault: Fault) {
        if let Some(file) = self.files.get_mut(&file) {
            file.fail(fault);
        }
    }

    /// A link is ready: what is granted on it may be used.
    pub fn link_up(&mut self, id: LinkId) {
        self.links.up(id);
    }

    /// A link is dead. Its flights wait for `fenced`, and the server has a while to say it.
    pub fn link_down(&mut self, id: LinkId, now: Duration) {
        self.touch(now);
        self.links.down(id);
        self.queue.link_down(id);
        self.grants.forget_link(id);
    }

    /// The server killed the link: what it has not confirmed is void.
    pub fn fenced(&mut self, id: LinkId) {
        for flight in self.flights.take_void(id) {
            self.requeue(flight.pieces());
        }
    }

    /// The server is alive, whatever it said.
    pub fn touch(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
    }

    /// A chunk was written, or could not be. One whose tag is void is ignored.
    pub fn posted(&mut self, tag: Tag, posted: Posted, now: Duration) {
        self.touch(now);
        match posted {
            Posted::LinkLost => {}
            Posted::Sent(digests) => {
                let deadline = now + self.options.timeout;
                if let Some(chunk) = self.flights.sent(tag, digests, deadline) {
                    self.requests.sent(chunk);
                }
            }
            Posted::Unread(faults) => self.unread(tag, faults),
        }
    }

    /// Nothing of a chunk was written, because these pieces could not be read.
    fn unread(&mut self, tag: Tag, faults: Vec<(usize, Fault)>) {
        let Some(flight) = self.flights.remove(tag) else { return };
        for (index, fault) in faults {
            self.fail(flight.pieces()[index].0, fault);
        }
        let grant = flight.grant();
        let (dead, in_place) = (self.links.is_dead(grant.link), flight.is_in_place());
        if dead && in_place {
            // Its spot is the server's to take back: what was to go there waits for the fence.
            return self.flights.insert(flight);
        }
        self.requeue(flight.pieces());
        if in_place {
            // Before it is used for something else.
            self.requests.return_spot(tag);
        }
        if !dead {
            self.grants.use_last(grant);
        }
    }

    /// What the server already had was hashed.
    pub fn hashed(&mut self, id: FileId, extent: Extent, answer: Result<Vec<Digest>, Fault>) {
        if let Some(file) = self.files.get_mut(&id) {
            file.hashed(extent, answer);
        }
    }

    /// A range was hashed, to be offered.
    pub fn offer_hashed(
        &mut self,
        id: FileId,
        extent: Extent,
        answer: Result<Vec<Digest>, Fault>,
        now: Duration,
    ) {
        self.touch(now);
        let file = self.files.get_mut(&id).expect("a range that is hashed keeps its file");
        let offer = file.offer(id, extent, answer);
        if let Ok(Some(offer)) = offer {
            return self.effects.push_back(ClientEffect::Send(WriteRequest::Offer(offer)));
        }
        self.offers.end();
        self.requeue(&[(id, extent)]);
        if let Err(fault) = offer {
            self.fail(id, fault);
        }
    }

    /// The driver looked for holes.
    pub fn found(&mut self, id: FileId, survey: Survey) {
        let file = self.files.get_mut(&id).expect("a file stays while its holes are looked for");
        file.holes_found(survey);
        self.queue.ensure_first(id);
    }

    /// Zeros were hashed as a range of a file.
    pub fn zeros_hashed(&mut self, id: FileId, extent: Extent, digests: &[Digest], now: Duration) {
        self.touch(now);
        self.holes.hashed();
        let file = self.files.get_mut(&id).expect("a hole keeps its file");
        file.zeros_hashed(extent, digests);
    }

    /// The driver compared the source with what it was at first, and says what it is to keep.
    pub fn source_checked(&mut self, id: FileId, root: Digest, answer: Result<Kept, Fault>) {
        let file = self.files.get_mut(&id);
        if let Some(meta) = file.and_then(|file| file.source_checked(answer)) {
            self.requests.commit(CommitFile { file: id, root, meta });
        }
    }

    /// Takes an answer of the server.
    pub fn reply(&mut self, reply: WriteReply, now: Duration) {
        self.touch(now);
        let taken = match reply {
            WriteReply::Created { files } => {
                files.into_iter().try_for_each(|(file, answer)| self.created(file, answer))
            }
            WriteReply::Granted { verdicts, grants } => grants
                .into_iter()
                .try_for_each(|grant| self.grants.add(grant, &self.links))
                .and_then(|()| {
                    verdicts.into_iter().try_for_each(|(tag, verdicts)| self.judged(tag, verdicts))
                }),
            WriteReply::Committed { files } => {
                files.into_iter().try_for_each(|(file, answer)| self.committed(file, answer))
            }
            WriteReply::Zeroed { file, answer } => self.zeroed(file, answer),
            WriteReply::Spots(reply) => self.spots(reply, now),
            WriteReply::Taken(taken) => self.taken(taken),
        };
        if let Err(fault) = taken {
            self.effects.push_back(ClientEffect::Broken(fault));
        }
    }

    /// Fills granted slots and sends what is due. Call after every event.
    pub fn advance(&mut self, now: Duration) {
        while let Some(grant) = self.grants.next(&self.links) {
            let room = grant.bytes.min(self.options.chunk_bytes);
            let pieces = self.queue.next_pieces(grant.link, room, &mut self.files);
            if pieces.is_empty() {
                self.grants.use_first(grant);
                break;
            }
            let spot = self.spot_for(grant.tag, &pieces);
            match spot {
                Some(spot) => self.requests.ask_spot(spot),
                None => self.post(grant, pieces.clone()),
            }
            let deadline = now + self.options.timeout;
            self.flights.insert(Flight::new(grant, pieces, spot.is_some(), deadline));
        }
        self.requests.flush_ends(&self.files, &mut self.effects);
        self.holes.forget(&mut self.files);
        let touched = self.files.take_touched();
        self.offers.begin(&touched, &mut self.files, &mut self.effects);
        self.holes.name(&touched, &mut self.files, &mut self.effects);
        self.end_files(&touched);
        self.requests.flush(&mut self.effects);
        self.expire(now);
    }

    /// The spot to ask for, where a chunk is one piece of a file that takes spots.
    fn spot_for(&self, tag: Tag, pieces: &[(FileId, Extent)]) -> Option<Spot> {
        let &[(file, extent)] = pieces else { return None };
        let takes = self.files.get(&file).is_some_and(File::takes_spots);
        takes.then_some(Spot { tag, file, extent })
    }

    /// Has pieces written to where this grant says.
    fn post(&mut self, grant: Grant, pieces: Vec<(FileId, Extent)>) {
        let again = pieces.iter().any(|(id, extent)| {
            self.files.get(id).is_some_and(|file| file.has_mismatched(*extent))
        });
        self.effects.push_back(ClientEffect::Post(Post { grant, pieces, again }));
    }

    fn created(&mut self, id: FileId, answer: Result<Vec<Extent>, Fault>) -> Result<(), Fault> {
        let file = self.files.get_mut(&id).filter(|file| file.is_creating());
        let file = file.ok_or_else(|| unexpected("answer to a create", id))?;
        match answer {
            Err(fault) => {
                self.files.remove(&id);
                self.effects.push_back(ClientEffect::Failed { file: id, fault });
            }
            Ok(have) => {
                file.created(id, have)?;
                self.queue.push(id);
            }
        }
        Ok(())
    }

    /// The server judged a chunk: stored, or to be sent again until it is in vain.
    fn judged(&mut self, tag: Tag, verdicts: Vec<Verdict>) -> Result<(), Fault> {
        let judged = self.flights.judged(tag, verdicts.len())?;
        let pieces = judged.pieces.iter().zip(judged.digests).zip(verdicts);
        for ((&(id, extent), digests), verdict) in pieces {
            match verdict {
                Verdict::Stored => {
                    self.in_place_bytes += u64::from(judged.in_place) * extent.len;
                    let Some(file) = self.files.get_mut(&id) else { continue };
                    file.stored(extent, &digests);
                    if file.is_stream() {
                        self.effects.push_back(ClientEffect::Stored { file: id, extent });
                    }
                }
                Verdict::Mismatch => {
                    self.mismatches += 1;
                    self.requeue(&[(id, extent)]);
                    if let Some(file) = self.files.get_mut(&id) {
                        file.mismatched(extent);
                    }
                }
                Verdict::Failed(fault) => {
                    self.requeue(&[(id, extent)]);
                    self.fail(id, fault);
                }
            }
        }
        Ok(())
    }

    fn committed(&mut self, id: FileId, answer: Result<(), Fault>) -> Result<(), Fault> {
        let file = self.files.get_mut(&id).filter(|file| file.is_committing());
        let file = file.ok_or_else(|| unexpected("answer to a commit", id))?;
        let Some(root) = file.committed(&answer) else {
            self.effects.push_back(ClientEffect::Restart { file: id });
            return Ok(());
        };
        self.files.remove(&id);
        self.effects.push_back(match answer {
            Ok(()) => ClientEffect::Finished { file: id, root },
            Err(fault) => ClientEffect::Failed { file: id, fault },
        });
        Ok(())
    }

    fn zeroed(&mut self, id: FileId, answer: Result<(), Fault>) -> Result<(), Fault> {
        if !self.files.get_mut(&id).is_some_and(File::holes_answered) {
            return Err(unexpected("answer to holes", id));
        }
        self.holes.answered();
        if let Err(fault) = answer {
            self.fail(id, fault);
        }
        Ok(())
    }

    fn spots(&mut self, reply: SpotReply, now: Duration) -> Result<(), Fault> {
        let made = match reply {
            SpotReply::Taken(files) => {
                self.take_spots(&files, true);
                return Ok(());
            }
            SpotReply::Made(made) => made,
        };
        for (tag, answer) in made {
            // One that is gone was fenced meanwhile.
            let Some(flight) = self.flights.get_mut(tag) else { continue };
            let refused = answer.is_err();
            let grant = flight.spot_made(answer.ok(), now + self.options.timeout)?;
            let pieces = flight.pieces().to_vec();
            if refused {
                self.take_spots(&[pieces[0].0], false);
            }
            self.post(grant, pieces);
        }
        Ok(())
    }

    /// Whether chunks of these files may be written to where they stay.
    fn take_spots(&mut self, files: &[FileId], takes: bool) {
        for id in files {
            if let Some(file) = self.files.get_mut(id) {
                file.set_takes_spots(takes);
            }
        }
    }

    fn taken(&mut self, taken: Taken) -> Result<(), Fault> {
        let id = taken.file;
        let file = self.files.get_mut(&id);
        let file = file.ok_or_else(|| unexpected("answer to an offer", id))?;
        file.taken(taken, &mut self.effects)?;
        self.offers.end();
        self.queue.ensure_last(id);
        Ok(())
    }

    /// Pieces that were in flight must be sent again.
    fn requeue(&mut self, pieces: &[(FileId, Extent)]) {
        for &(id, extent) in pieces {
            let Some(file) = self.files.get_mut(&id) else { continue };
            file.requeue(extent);
            self.queue.ensure_first(id);
        }
    }

    /// Ends files of which nothing is in flight: has the ranges hashed that the server had, then
    /// the source looked at again, and gives up files that failed.
    fn end_files(&mut self, touched: &[FileId]) {
        let mut over = Vec::new();
        for &id in touched {
            match self.files.look_at(id).and_then(File::due) {
                Some(Due::GiveUp) => over.push(id),
                Some(Due::Hash(extent)) => {
                    self.effects.push_back(ClientEffect::Hash { file: id, extent });
                }
                Some(Due::CheckSource(root)) => {
                    self.effects.push_back(ClientEffect::CheckSource { file: id, root });
                }
                None => {}
            }
        }
        for id in over {
            self.give_up(id);
        }
    }

    fn give_up(&mut self, id: FileId) {
        let file = self.files.get_mut(&id).expect("the caller found it");
        self.requests.discard(id);
        if let Some(fault) = file.give_up() {
            self.files.remove(&id);
            self.effects.push_back(ClientEffect::Failed { file: id, fault });
        } else {
            self.effects.push_back(ClientEffect::Restart { file: id });
        }
    }

    /// When `advance` must be called at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        let silent = self.heard + self.options.timeout;
        if self.flights.is_empty() {
            return self.awaits_server().then_some(silent);
        }
        self.flights.deadline(&self.links).or(Some(silent))
    }

    /// A chunk has a deadline, and so has a silent server. Work of this side is not waited for
    /// with a clock.
    fn expire(&mut self, now: Duration) {
        let silent = self.heard + self.options.timeout <= now;
        if silent && self.awaits_server() && self.flights.are_ending(&self.links) {
            let seconds = self.options.timeout.as_secs();
            let text = format!("server said nothing for {seconds} s");
            self.effects.push_back(ClientEffect::Broken(Fault::new(Code::TimedOut, text)));
            self.heard = now;
        }
        for link in self.flights.late(now) {
            if self.links.drop_link(link) {
                // The server has a while to fence it, from now on.
                self.heard = now;
                self.effects.push_back(ClientEffect::DropLink { link });
            }
        }
    }

    /// Whether something is left to do and not all of it is this side's to do.
    pub fn awaits_server(&self) -> bool {
        let waits = self.files.values().any(|file| !file.awaits_source());
        waits && self.holes.is_idle()
    }
}
