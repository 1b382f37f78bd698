//! The writing client: creates files, fills granted slots with their chunks,
//! sends what was not stored again, and commits what is whole. Driven by the
//! client's session; never sees a byte.
//!
//! Life of a file: creating -> sending -> checking the source -> committing ->
//! finished, failed, or begun again when its source changed. A tag has one
//! flight: posting (the driver reads, hashes, writes), then awaiting a verdict.
//! A dead link's flights stay until it is fenced: a late write must find nothing.

mod ending;
mod filling;
mod grants;
mod holes;
mod offers;
mod spots;
mod stream;
mod verdicts;
mod waiting;

use super::types::{ClientEffect, ClientOptions, Post, Posted};
use crate::batch::{batches, batches_by, unexpected};
use crate::digest::{Digest, RootBuilder};
use crate::holes::{Search, Survey, Zeros, is_whole};
use crate::message::{CommitFile, CreateFile, FileId, FileInfo, Grant, LinkId, Piece, SentChunk};
use crate::message::{Spot, SpotRequest, Tag, WriteReply, WriteRequest};
use crate::touched::Files;
use crate::turns::Turns;
use crate::units::{FILE_ATTEMPTS_MAX, OPEN_FILES_MAX};
use crate::{Code, Extent, ExtentSet, Fault, Kept, WirePath};
use spots::Asked;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Creating,
    Sending,
    Checking,
    Committing,
    Restarting,
}

struct File {
    path: WirePath,
    size: u64,
    stage: Stage,
    unsent: ExtentSet,
    /// The holes it begins with, until the server has said what it has.
    survey: Option<Survey>,
    search: Search,
    /// Whether a list of its holes is not answered.
    naming: bool,
    /// Parts of that list that are not hashed.
    holes_left: usize,
    unhashed: ExtentSet,
    hashing: bool,
    /// A file of the server that may have some of it.
    basis: Option<offers::Basis>,
    /// Pieces of this file in flight, parts of its holes, and questions about them.
    pending: usize,
    root: RootBuilder,
    bad: BTreeMap<u64, u8>,
    attempts: u8,
    /// An earlier run had sent some of it.
    resumed: bool,
    /// Its source is read once, so that somebody keeps its bytes.
    stream: bool,
    /// That source has not ended.
    streaming: bool,
    /// Its chunks may be written to where they stay.
    takes_spots: bool,
    doom: Option<Fault>,
}

struct Flight {
    grant: Grant,
    pieces: Vec<(FileId, Extent)>,
    /// What was sent, once it was.
    digests: Option<Vec<Vec<Digest>>>,
    spot: Asked,
    deadline: Duration,
}

/// The machine.
pub struct WriteClient {
    options: ClientOptions,
    files: Files<File>,
    /// Files with something unsent, in order.
    queue: VecDeque<FileId>,
    turns: Turns,
    grants: grants::Grants,
    flights: HashMap<Tag, Flight>,
    zeros: Zeros<FileId>,
    /// Lists of holes that are not answered.
    lists: usize,
    /// Ranges that are offered, or will be once they are hashed.
    offers: usize,
    /// Links the driver can write to; a grant may come before its link is made.
    up: HashSet<LinkId>,
    dead: HashSet<LinkId>,
    dropping: HashSet<LinkId>,
    to_ask: Vec<Spot>,
    to_return: Vec<Tag>,
    to_create: Vec<CreateFile>,
    /// Streams that have ended, with their sizes.
    to_end: Vec<(FileId, u64)>,
    to_say: Vec<SentChunk>,
    to_commit: Vec<CommitFile>,
    to_discard: Vec<FileId>,
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
            queue: VecDeque::new(),
            turns: Turns::default(),
            grants: grants::Grants::default(),
            flights: HashMap::new(),
            zeros: Zeros::default(),
            lists: 0,
            offers: 0,
            up: HashSet::new(),
            dead: HashSet::new(),
            dropping: HashSet::new(),
            to_ask: Vec::new(),
            to_return: Vec::new(),
            to_create: Vec::new(),
            to_end: Vec::new(),
            to_say: Vec::new(),
            to_commit: Vec::new(),
            to_discard: Vec::new(),
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
        let fresh = earlier.as_ref().is_none_or(|earlier| earlier.stage == Stage::Restarting);
        assert!(fresh, "file {file:?} is in use");
        assert!(self.room() > 0, "no room for another file");
        let mut state = File::new(&path, info, survey);
        state.attempts = earlier.map_or(1, |earlier| earlier.attempts);
        self.files.insert(file, state);
        self.to_create.push(CreateFile { file, path, info, stream: false });
    }

    /// Gives a file up for a reason of the driver's.
    pub fn fail(&mut self, file: FileId, fault: Fault) {
        if let Some(state) = self.files.get_mut(&file) {
            state.doom.get_or_insert(fault);
            if state.stage == Stage::Restarting {
                state.stage = Stage::Sending;
            }
        }
    }

    /// A link is ready: what is granted on it may be used.
    pub fn link_up(&mut self, id: LinkId) {
        self.up.insert(id);
    }

    /// A link is dead. Its flights wait for `fenced`, and the server has a while to say it.
    pub fn link_down(&mut self, id: LinkId, now: Duration) {
        self.touch(now);
        self.up.remove(&id);
        self.turns.link_down(id);
        self.dead.insert(id);
        self.grants.forget_link(id);
    }

    /// The server killed the link: what it has not confirmed is void.
    pub fn fenced(&mut self, id: LinkId) {
        let void: Vec<Tag> = self.tags_on(id).collect();
        for tag in void {
            let flight = self.flights.remove(&tag).expect("the tag was just listed");
            self.requeue(flight.pieces);
        }
    }

    /// The server is alive, whatever it said.
    pub fn touch(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
    }

    /// A chunk was written, or could not be. One whose tag is void is ignored.
    pub fn posted(&mut self, tag: Tag, posted: Posted, now: Duration) {
        self.touch(now);
        let Some(flight) = self.flights.get_mut(&tag) else { return };
        match posted {
            Posted::LinkLost => {}
            // Its spot is the server's to take back: what was to go there waits for the fence.
            Posted::Unread(faults)
                if flight.spot == Asked::Made && self.dead.contains(&flight.grant.link) =>
            {
                let pieces = flight.pieces.clone();
                faults.into_iter().for_each(|(index, fault)| self.fail(pieces[index].0, fault));
            }
            Posted::Sent(digests) => {
                let pieces = flight.pieces.iter().zip(&digests);
                let pieces = pieces.map(|(&(file, extent), digests)| {
                    let digests = digests.clone();
                    Piece { file, extent, digests }
                });
                self.to_say.push(SentChunk { tag, pieces: pieces.collect() });
                flight.digests = Some(digests);
                flight.deadline = now + self.options.timeout;
            }
            Posted::Unread(faults) => {
                let flight = self.flights.remove(&tag).expect("it was just there");
                for (index, fault) in faults {
                    self.fail(flight.pieces[index].0, fault);
                }
                self.requeue(flight.pieces);
                if !self.dead.contains(&flight.grant.link) {
                    // Before it is used for something else.
                    self.to_return.extend((flight.spot == Asked::Made).then_some(tag));
                    self.grants.use_last(flight.grant);
                }
            }
        }
    }

    /// What the server already had was hashed.
    pub fn hashed(&mut self, id: FileId, extent: Extent, answer: Result<Vec<Digest>, Fault>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.hashing = false;
        match answer {
            Ok(digests) => file.root.insert_run(extent.offset, &digests),
            Err(fault) => file.doom = Some(fault),
        }
    }

    /// The driver compared the source with what it was at first, and says what it is to keep.
    pub fn source_checked(&mut self, id: FileId, root: Digest, answer: Result<Kept, Fault>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        match answer {
            Ok(meta) => {
                file.stage = Stage::Committing;
                self.to_commit.push(CommitFile { file: id, root, meta });
            }
            Err(fault) => {
                file.doom = Some(fault);
                file.stage = Stage::Sending;
            }
        }
    }

    /// Takes an answer of the server.
    pub fn reply(&mut self, reply: WriteReply, now: Duration) {
        self.touch(now);
        let taken = match reply {
            WriteReply::Created { files } => {
                files.into_iter().try_for_each(|(file, answer)| self.created(file, answer))
            }
            WriteReply::Granted { verdicts, grants } => self.granted(grants).and_then(|()| {
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
        while let Some(grant) = self.next_grant() {
            let room = grant.bytes.min(self.options.chunk_bytes);
            let pieces = self.next_pieces(grant.link, room);
            if pieces.is_empty() {
                self.grants.use_first(grant);
                break;
            }
            let deadline = now + self.options.timeout;
            let spot = self.ask(grant.tag, &pieces);
            let flight = Flight { grant, pieces, digests: None, spot, deadline };
            self.flights.insert(grant.tag, flight);
            if spot == Asked::Not {
                self.post(grant);
            }
        }
        self.say_ends();
        self.forget_holes();
        let touched = self.files.take_touched();
        self.offer_ranges(&touched);
        self.name_holes(&touched);
        self.end_files(&touched);
        self.flush();
        self.expire(now);
    }

    /// Has the pieces of a flight written to where this grant says.
    fn post(&mut self, grant: Grant) {
        let pieces = self.flights[&grant.tag].pieces.clone();
        let again = pieces.iter().any(|(id, extent)| {
            self.files.get(id).is_some_and(|file| file.bad.contains_key(&extent.offset))
        });
        self.effects.push_back(ClientEffect::Post(Post { grant, pieces, again }));
    }

    fn tags_on(&self, link: LinkId) -> impl Iterator<Item = Tag> + '_ {
        let on_link = self.flights.iter().filter(move |(_, flight)| flight.grant.link == link);
        on_link.map(|(&tag, _)| tag)
    }

    fn created(&mut self, id: FileId, answer: Result<Vec<Extent>, Fault>) -> Result<(), Fault> {
        let file = self.files.get_mut(&id).filter(|file| file.stage == Stage::Creating);
        let file = file.ok_or_else(|| unexpected("answer to a create", id))?;
        match answer {
            Err(fault) => {
                self.files.remove(&id);
                self.effects.push_back(ClientEffect::Failed { file: id, fault });
            }
            Ok(have) => {
                file.stage = Stage::Sending;
                file.resumed = !have.is_empty();
                for extent in have {
                    if !is_whole(extent, file.size) || !file.unsent.take(extent) {
                        return Err(unexpected("extent that is not of the file", id));
                    }
                    file.unhashed.insert(extent);
                }
                let survey = file.survey.take().expect("a file is created once");
                file.search.answer(survey, file.size, &mut file.unsent);
                self.queue.push_back(id);
            }
        }
        Ok(())
    }

    fn committed(&mut self, id: FileId, answer: Result<(), Fault>) -> Result<(), Fault> {
        let file = self.files.get_mut(&id).filter(|file| file.stage == Stage::Committing);
        let file = file.ok_or_else(|| unexpected("answer to a commit", id))?;
        let mismatch = answer.as_ref().is_err_and(|fault| fault.code == Code::Mismatch);
        if mismatch && file.resumed && file.attempts < FILE_ATTEMPTS_MAX {
            // What an earlier run sent was of another version, whatever its time stamps said.
            file.attempts += 1;
            file.stage = Stage::Restarting;
            self.effects.push_back(ClientEffect::Restart { file: id });
            return Ok(());
        }
        let root = file.root.finish().expect("every grain was stored");
        self.files.remove(&id);
        self.effects.push_back(match answer {
            Ok(()) => ClientEffect::Finished { file: id, root },
            Err(fault) => ClientEffect::Failed { file: id, fault },
        });
        Ok(())
    }

    /// Pieces that were in flight must be sent again.
    fn requeue(&mut self, pieces: Vec<(FileId, Extent)>) {
        for (id, extent) in pieces {
            let Some(file) = self.files.get_mut(&id) else { continue };
            file.pending -= 1;
            file.give_back(extent);
            if !self.queue.contains(&id) {
                self.queue.push_front(id);
            }
        }
    }

    fn flush(&mut self) {
        let effects = &mut self.effects;
        let mut send = |request| effects.push_back(ClientEffect::Send(request));
        for tags in batches(&mut self.to_return) {
            send(WriteRequest::Spots(SpotRequest::Return(tags)));
        }
        for spots in batches(&mut self.to_ask) {
            send(WriteRequest::Spots(SpotRequest::Ask(spots)));
        }
        for files in batches(&mut self.to_discard) {
            send(WriteRequest::Discard { files });
        }
        for files in batches_by(&mut self.to_create, |file| file.path.as_bytes().len()) {
            send(WriteRequest::Create { files });
        }
        for chunks in batches_by(&mut self.to_say, |chunk| chunk.pieces.len() * PIECE_BYTES) {
            send(WriteRequest::Sent { chunks });
        }
        for files in batches_by(&mut self.to_commit, CommitFile::weight) {
            send(WriteRequest::Commit { files });
        }
    }
}

/// About what a piece takes in a message when it has one digest.
const PIECE_BYTES: usize = 64;
