//! The world of the machine tests: two machines a side, an ordered control
//! channel each way, links that die, and files whose content is a version. A
//! third of the files is sparse, with other holes in each version.
//! Checks on the way what must hold at every moment; `machines.rs` checks ends.

mod content;
mod spots;
mod streams;
mod there;
mod uploads;

use content::{digests_of, grains, is_hole, root_of, survey, value_of, zeros_at};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;
use verbatim_proto::message::{
    ClientMessage, FileId, FileInfo, LinkId, Offer, Region, ServerMessage, Spot, Tag, Verdict,
    WindowId,
};
use verbatim_proto::read::{self, Outcome, PieceOutcome, Prepared, ReadClient, ReadServer};
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, GRAIN_BYTES, WINDOWS_MAX, grain_count};
use verbatim_proto::write::{self, Posted, WriteClient, WriteServer};
use verbatim_proto::{Code, Digest, Extent, ExtentSet, Fault, Kept, Meta, WirePath};

const LINKS: u16 = 3;
/// What an earlier session left where nothing is verified.
const GARBAGE: Digest = Digest([0xEE; 32]);
const STEPS_MAX: usize = 200_000;
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often what goes wrong, in parts per million of the operations it can happen to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub corrupt_ppm: u64,
    pub lose_ppm: u64,
    pub duplicate_ppm: u64,
    pub death_ppm: u64,
    pub change_ppm: u64,
    pub refuse_ppm: u64,
}

/// What became of files that were to be created.
type Answers = Vec<(FileId, Result<Option<read::Have>, Fault>)>;

/// Something that happens at a time.
enum Event {
    ToServer(ClientMessage),
    ToClient(ServerMessage),
    Opened(Vec<(FileId, Result<read::Opened, Fault>)>),
    Found { id: FileId, from: u64, up: bool },
    Zeroed(read::Zero, bool),
    ZerosHashed(FileId, Extent),
    Grow(FileId),
    Take(FileId),
    ZerosStored(FileId, Extent, bool),
    OfferHashed(FileId, Extent),
    Taken(Offer),
    Prepared(WindowId, Prepared),
    Closed(Vec<(FileId, u32)>),
    Fetched(LinkId, u16, read::Chunk),
    Posted(Tag, LinkId, Posted),
    Created(Answers),
    Provisioned(LinkId),
    SpotMade(Spot, bool),
    Notified(LinkId, Tag),
    Absorbed(write::Absorb, Vec<Verdict>),
    Committed(Vec<(FileId, Kept)>),
    Hashed(FileId, Extent),
    SourceChecked(FileId, Digest),
    Killed(LinkId),
    LinkDies(LinkId),
    LinkReturns(LinkId),
    Change(FileId),
}

/// A file: its source, and what has landed of it at the other side.
#[derive(Default)]
struct Model {
    size: u64,
    version: u32,
    opened: u32,
    /// Grain -> what landed.
    landed: BTreeMap<u64, Digest>,
    ended: bool,
    /// Of a stream: what was read of its source, and what of that is not stored.
    grown: Option<u64>,
    kept: ExtentSet,
    /// Of a file in order: how far it was taken.
    taken: Option<u64>,
}

pub struct World {
    rng: u64,
    faults: Faults,
    now: Duration,
    sequence: u64,
    /// What will happen, by its time and the order it was queued in.
    queue: BTreeMap<(Duration, u64), Event>,
    channel_to_server: Duration,
    channel_to_client: Duration,
    read_client: ReadClient,
    read_server: ReadServer,
    write_client: WriteClient,
    write_server: WriteServer,
    files: HashMap<FileId, Model>,
    /// Version of the content each window was hashed at.
    windows: HashMap<WindowId, bool>,
    up: HashSet<LinkId>,
    dead_on_server: HashSet<LinkId>,
    in_slot: HashSet<(LinkId, u16)>,
    slot_content: HashMap<Tag, Vec<(FileId, Extent, u32, bool)>>,
    /// Chunks that the server stores as soon as they are notified.
    expected: HashMap<Tag, write::Absorb>,
    /// Tags whose write goes to a spot.
    in_spot: HashSet<Tag>,
    pub spots: spots::Spots,
    slot_of_link: u32,
    finished: usize,
    failed: usize,
    deaths: u64,
    resumed: u64,
    zeroed: u64,
    stored_at_once: u64,
    taken: u64,
    in_order: bool,
}

impl World {
    pub fn new(seed: u64, faults: Faults) -> Self {
        let read_options = read::ClientOptions {
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            slots_per_link: 3,
            timeout: TIMEOUT,
            describe: true,
        };
        let write_options =
            write::ClientOptions { chunk_bytes: CHUNK_BYTES_DEFAULT, timeout: TIMEOUT };
        Self {
            rng: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D,
            faults,
            now: Duration::ZERO,
            sequence: 0,
            queue: BTreeMap::new(),
            channel_to_server: Duration::ZERO,
            channel_to_client: Duration::ZERO,
            read_client: ReadClient::new(read_options),
            read_server: ReadServer::new(),
            write_client: WriteClient::new(write_options),
            write_server: WriteServer::new(),
            files: HashMap::new(),
            windows: HashMap::new(),
            up: HashSet::new(),
            dead_on_server: HashSet::new(),
            in_slot: HashSet::new(),
            slot_content: HashMap::new(),
            expected: HashMap::new(),
            in_spot: HashSet::new(),
            spots: spots::Spots::default(),
            slot_of_link: 0,
            finished: 0,
            failed: 0,
            deaths: 0,
            resumed: 0,
            zeroed: 0,
            stored_at_once: 0,
            taken: 0,
            in_order: false,
        }
    }

    pub fn finished(&self) -> usize {
        self.finished
    }

    pub fn failed(&self) -> usize {
        self.failed
    }

    pub fn deaths(&self) -> u64 {
        self.deaths
    }

    pub fn resumed(&self) -> u64 {
        self.resumed
    }

    /// Ranges that were named as holes instead of moved.
    pub fn zeroed(&self) -> u64 {
        self.zeroed
    }

    /// Chunks that the server stored before its machine knew that they were there.
    pub fn stored_at_once(&self) -> u64 {
        self.stored_at_once
    }

    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Files of which nothing need move: empty, or one hole.
    pub fn unmoved_files(&self) -> usize {
        let all_hole = |id: FileId, size: u64| {
            size > GRAIN_BYTES && (0..grain_count(size)).all(|grain| is_hole(id, grain, 0))
        };
        let unmoved = |(id, file): &(&FileId, &Model)| file.size == 0 || all_hole(**id, file.size);
        self.files.iter().filter(unmoved).count()
    }

    pub fn mismatches(&self) -> u64 {
        self.read_client.mismatches() + self.write_client.mismatches()
    }

    /// Runs until nothing is left to do, or panics.
    pub fn run(&mut self) {
        self.populate();
        for step in 0.. {
            assert!(step < STEPS_MAX, "no end after {STEPS_MAX} steps");
            self.advance();
            if self.read_client.is_idle() && self.write_client.is_idle() {
                break;
            }
            let deadline =
                self.read_client.deadline().into_iter().chain(self.write_client.deadline());
            let deadline = deadline.min();
            match (self.queue.first_key_value(), deadline) {
                (Some(((next, _), _)), deadline) if deadline.is_none_or(|at| *next <= at) => {
                    let Some(((at, _), event)) = self.queue.pop_first() else { return };
                    self.now = self.now.max(at);
                    self.happen(event);
                }
                (_, Some(at)) => self.now = self.now.max(at),
                (_, None) => panic!("stuck: files are left, and nothing will happen"),
            }
        }
        assert_eq!(self.finished + self.failed, self.files.len(), "a file ended twice or never");
    }

    fn populate(&mut self) {
        if self.in_order {
            return self.populate_ordered();
        }
        let chunk = u64::from(CHUNK_BYTES_DEFAULT);
        let sizes =
            [0, 1, GRAIN_BYTES - 1, GRAIN_BYTES, GRAIN_BYTES + 1, chunk - 1, chunk, chunk + 1];
        for index in 0..LINKS {
            self.attach(LinkId { index, epoch: 0 });
        }
        let count = 4 + self.roll(20) as u32;
        for number in 0..count {
            let kind = self.roll(10) as usize;
            let size = sizes.get(kind).copied().unwrap_or_else(|| self.roll(24 << 20));
            let upload = self.roll(2) == 0;
            let id = FileId(number);
            self.files.insert(id, Model { size, ..Model::default() });
            if upload && self.roll(3) == 0 {
                self.begin_stream(id);
                continue;
            }
            if upload {
                self.begin_upload(id);
            } else {
                let have = self.earlier(id);
                self.read_client.open(id, path_of(id), have, self.now);
            }
            if self.chance(self.faults.change_ppm) {
                self.later(500, Event::Change(id));
            }
        }
    }

    fn model(&mut self, id: FileId) -> &mut Model {
        self.files.get_mut(&id).expect("files of this world are known")
    }

    fn attach(&mut self, link: LinkId) {
        self.up.insert(link);
        self.write_server.link_up(link);
        self.read_client.link_up(link);
        self.write_client.link_up(link);
    }

    fn begin_upload(&mut self, id: FileId) {
        let file = self.model(id);
        file.opened = file.version;
        let info = info_of(file.size, i64::from(file.version));
        let survey = survey(id, info.size, file.version, 0);
        self.write_client.create(id, path_of(id), info, survey, self.now);
        self.offer_from(id);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToServer(message) => self.at_server(message),
            Event::ToClient(message) => self.at_client(message),
            Event::Opened(answers) => self.read_server.opened(answers),
            Event::Prepared(window, answer) => self.read_server.prepared(window, answer),
            Event::Closed(files) => {
                let answers = files.into_iter().map(|(id, opened)| {
                    let same = self.files[&id].version == opened;
                    (id, if same { Ok(kept(id)) } else { Err(fault(Code::Changed)) })
                });
                let answers = answers.collect();
                self.read_server.closed(answers);
            }
            Event::Found { id, from, up } => {
                let survey = survey(id, self.files[&id].size, self.files[&id].version, from);
                match up {
                    true => self.write_client.found(id, survey),
                    false => self.read_server.found(id, survey),
                }
            }
            Event::Zeroed(zero, refused) => {
                let answer = self.zero(zero.file, zero.extent, refused);
                self.read_client.zeroed(zero, answer, self.now);
            }
            Event::Grow(id) => self.grow(id),
            Event::Take(id) => self.take(id),
            Event::ZerosHashed(id, extent) => {
                let zeros: Vec<Digest> = grains(extent).map(zeros_at).collect();
                self.write_client.zeros_hashed(id, extent, &zeros, self.now);
            }
            Event::ZerosStored(id, extent, refused) => {
                let answer = self.zero(id, extent, refused);
                self.write_server.zeroed(id, extent, answer);
            }
            Event::OfferHashed(id, extent) => self.offer_hashed(id, extent),
            Event::Taken(offer) => self.take_offer(&offer),
            Event::Fetched(link, slot, chunk) => self.fetched(link, slot, chunk),
            Event::Posted(tag, link, posted) => self.posted(tag, link, posted),
            Event::Created(answers) => self.created(answers),
            Event::Provisioned(link) => self.provisioned(link),
            Event::SpotMade(spot, refused) => self.spot_made(spot, refused),
            Event::Notified(link, tag) => self.notified(link, tag),
            Event::Absorbed(absorb, verdicts) => self.write_server.absorbed(absorb.tag, verdicts),
            Event::Committed(files) => self.committed(files),
            Event::Hashed(id, extent) => {
                let digests = digests_of(id, extent, self.files[&id].version);
                self.write_client.hashed(id, extent, Ok(digests));
            }
            Event::SourceChecked(id, root) => {
                let file = &self.files[&id];
                let same = file.version == file.opened;
                let answer = if same { Ok(kept(id)) } else { Err(fault(Code::Changed)) };
                self.write_client.source_checked(id, root, answer);
            }
            Event::Killed(link) => self.killed(link),
            Event::LinkDies(link) => self.link_dies(link),
            Event::LinkReturns(link) => self.attach(link),
            Event::Change(id) => {
                let file = self.model(id);
                file.version += 1;
                if self.roll(3) == 0 {
                    self.later(2000, Event::Change(id));
                }
            }
        }
    }

    fn at_server(&mut self, message: ClientMessage) {
        match message {
            ClientMessage::Read(request) => self.read_server.request(request),
            ClientMessage::Write(request) => self.write_server.request(request),
            ClientMessage::Fence { link } => self.write_server.fence(link),
            other => panic!("unexpected {other:?}"),
        }
    }

    fn at_client(&mut self, message: ServerMessage) {
        match message {
            ServerMessage::Read(reply) => self.read_client.reply(reply, self.now),
            ServerMessage::Write(reply) => self.write_client.reply(reply, self.now),
            ServerMessage::Fenced { link } => {
                self.write_client.fenced(link);
                let next = LinkId { epoch: link.epoch + 1, ..link };
                self.later(100, Event::LinkReturns(next));
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    /// A read ends: what it finds is the version the source has now.
    fn fetched(&mut self, link: LinkId, slot: u16, chunk: read::Chunk) {
        if !self.up.contains(&link) {
            return;
        }
        assert!(self.windows[&chunk.window], "a read found its window retired");
        self.in_slot.remove(&(link, slot));
        let mut outcomes = Vec::new();
        for piece in &chunk.pieces {
            let corrupt = self.chance(self.faults.corrupt_ppm);
            let refuse = self.chance(self.faults.refuse_ppm / 20);
            let file = self.model(piece.file);
            let same = piece.digests == digests_of(piece.file, piece.extent, file.version);
            outcomes.push(if refuse {
                PieceOutcome::Failed(fault(Code::NoSpace))
            } else if corrupt || !same {
                PieceOutcome::Mismatch
            } else {
                file.landed.extend(grains(piece.extent).zip(piece.digests.iter().copied()));
                PieceOutcome::Verified
            });
        }
        let twice = self.chance(self.faults.duplicate_ppm);
        self.read_client.fetched(link, slot, Outcome::Landed(outcomes.clone()), self.now);
        if twice {
            self.read_client.fetched(link, slot, Outcome::Landed(outcomes), self.now);
        }
    }

    fn link_dies(&mut self, link: LinkId) {
        if !self.up.remove(&link) {
            return;
        }
        self.deaths += 1;
        let flying: Vec<_> = self.in_slot.extract_if(|(id, _)| *id == link).collect();
        for (link, slot) in flying {
            self.read_client.fetched(link, slot, Outcome::LinkLost, self.now);
        }
        self.read_client.link_down(link, self.now);
        self.write_client.link_down(link, self.now);
        self.say_to_server(ClientMessage::Fence { link });
        if self.roll(2) == 0 {
            self.later(50, Event::Killed(link));
        }
    }

    fn advance(&mut self) {
        self.read_client.advance(self.now);
        self.write_client.advance(self.now);
        assert!(self.read_server.window_count() <= WINDOWS_MAX, "more windows than credit");
        while let Some(effect) = self.read_client.next_effect() {
            self.read_client_effect(effect);
        }
        while let Some(effect) = self.write_client.next_effect() {
            self.write_client_effect(effect);
        }
        while let Some(effect) = self.read_server.next_effect() {
            self.read_server_effect(effect);
        }
        while let Some(effect) = self.write_server.next_effect() {
            self.write_server_effect(effect);
        }
    }

    fn read_client_effect(&mut self, effect: read::ClientEffect) {
        use read::ClientEffect as Effect;
        match effect {
            Effect::Send(request) => self.say_to_server(ClientMessage::Read(request)),
            Effect::Opened { file, info, .. } => assert_eq!(info.size, self.files[&file].size),
            Effect::Fetch(fetch) => {
                assert!(self.in_slot.insert((fetch.link, fetch.slot)), "a slot is used twice");
                assert!(self.windows[&fetch.chunk.window], "a retired window is read");
                fetch
                    .chunk
                    .pieces
                    .iter()
                    .for_each(|piece| self.check_moved(piece.file, piece.extent));
                self.disturb(fetch.link);
                if !self.chance(self.faults.lose_ppm) {
                    self.later(20, Event::Fetched(fetch.link, fetch.slot, fetch.chunk));
                }
            }
            Effect::Zero(zero) => {
                let refused = self.chance(self.faults.refuse_ppm / 20);
                self.later(20, Event::Zeroed(zero, refused));
            }
            Effect::DropLink { link } => self.link_dies(link),
            Effect::Restart { file } => self.model(file).landed.clear(),
            Effect::Finished { file, root, meta } => {
                assert_eq!(meta, kept(file), "finished with the metadata of another");
                self.finish(file, root.expect("every grain was verified"));
            }
            Effect::Failed { file, fault } => self.fail(file, &fault),
            Effect::Broken(fault) => panic!("read client broke: {fault}"),
        }
    }

    fn write_client_effect(&mut self, effect: write::ClientEffect) {
        use write::ClientEffect as Effect;
        match effect {
            Effect::Send(request) => self.say_to_server(ClientMessage::Write(request)),
            Effect::Post(post) => {
                let mut content = Vec::new();
                let mut digests = Vec::new();
                for &(id, extent) in &post.pieces {
                    self.check_moved(id, extent);
                    self.check_kept(id, extent);
                    let version = self.files[&id].version;
                    let corrupt = self.chance(self.faults.corrupt_ppm);
                    content.push((id, extent, version, corrupt));
                    digests.push(digests_of(id, extent, version));
                }
                self.slot_content.insert(post.grant.tag, content);
                match Self::is_spot(post.grant.region) {
                    true => self.in_spot.insert(post.grant.tag),
                    false => self.in_spot.remove(&post.grant.tag),
                };
                self.disturb(post.grant.link);
                if !self.chance(self.faults.lose_ppm) {
                    let unread = self.chance(self.faults.refuse_ppm / 20);
                    let posted = match unread {
                        true => Posted::Unread(vec![(0, fault(Code::Io))]),
                        false => Posted::Sent(digests),
                    };
                    self.later(20, Event::Posted(post.grant.tag, post.grant.link, posted));
                }
            }
            Effect::Hash { file, extent } => self.later(5, Event::Hashed(file, extent)),
            Effect::Stored { file, extent } => self.stored(file, extent),
            Effect::HashZeros { file, extent } => {
                self.later(20, Event::ZerosHashed(file, extent));
            }
            Effect::HashOffer { file, extent } => self.later(5, Event::OfferHashed(file, extent)),
            Effect::Taken { file, extent, digests } => self.check_taken(file, extent, &digests),
            Effect::FindHoles { file: id, from } => {
                self.later(5, Event::Found { id, from, up: true });
            }
            Effect::CheckSource { file, root } => self.later(5, Event::SourceChecked(file, root)),
            Effect::DropLink { link } => self.link_dies(link),
            Effect::Restart { file } => self.begin_upload(file),
            Effect::Finished { file, root } => self.finish(file, root),
            Effect::Failed { file, fault } => self.fail(file, &fault),
            Effect::Broken(fault) => panic!("write client broke: {fault}"),
        }
    }

    fn read_server_effect(&mut self, effect: read::ServerEffect) {
        use read::ServerEffect as Effect;
        match effect {
            Effect::Send(reply) => self.say_to_client(ServerMessage::Read(reply)),
            Effect::Open(files) => {
                let answers = files.into_iter().map(|request| {
                    let refused = self.chance(self.faults.refuse_ppm);
                    let file = self.model(request.file);
                    file.opened = file.version;
                    let info = info_of(file.size, i64::from(file.version));
                    let survey = survey(request.file, file.size, file.version, 0);
                    let answer = (info, survey);
                    (request.file, if refused { Err(fault(Code::Denied)) } else { Ok(answer) })
                });
                let answers = answers.collect();
                self.later(10, Event::Opened(answers));
            }
            Effect::Prepare(prepare) => {
                self.windows.insert(prepare.window, true);
                let pieces: Vec<_> = prepare
                    .pieces
                    .iter()
                    .map(|&(id, extent)| {
                        if self.chance(self.faults.refuse_ppm / 10) {
                            return Err(fault(Code::Io));
                        }
                        Ok(digests_of(id, extent, self.files[&id].version))
                    })
                    .collect();
                let some = pieces.iter().any(Result::is_ok);
                let region = some.then_some(Region { key: prepare.window.0, base: 0 });
                self.later(
                    10,
                    Event::Prepared(prepare.window, Prepared { region, rails: Vec::new(), pieces }),
                );
            }
            Effect::FindHoles { file: id, from } => {
                self.later(5, Event::Found { id, from, up: false });
            }
            Effect::Retire(window) => {
                assert_eq!(self.windows.insert(window, false), Some(true), "retired twice");
            }
            Effect::Close(files) => {
                assert!(files.iter().all(|(_, describe)| *describe), "metadata was asked for");
                let files = files.into_iter().map(|(id, _)| (id, self.files[&id].opened)).collect();
                self.later(5, Event::Closed(files));
            }
            Effect::Broken(fault) => panic!("read server broke: {fault}"),
        }
    }

    fn write_server_effect(&mut self, effect: write::ServerEffect) {
        use write::ServerEffect as Effect;
        match effect {
            Effect::Send(reply) => self.say_to_client(ServerMessage::Write(reply)),
            Effect::Provision { link, .. } => self.later(5, Event::Provisioned(link)),
            Effect::Create(files) => {
                let answers = files.into_iter().map(|request| {
                    let refused = self.chance(self.faults.refuse_ppm);
                    self.model(request.file).landed.clear();
                    if refused {
                        return (request.file, Err(fault(Code::Denied)));
                    }
                    if request.stream {
                        return (request.file, Ok(None));
                    }
                    // The source may have changed since the client described it.
                    let current = i64::from(self.files[&request.file].version);
                    let same = request.info.mtime_ns == current;
                    (request.file, Ok(if same { self.earlier(request.file) } else { None }))
                });
                let answers = answers.collect();
                self.later(10, Event::Created(answers));
            }
            Effect::Absorb(absorb) if absorb.in_place => {
                let verdict = self.look_at_spot(&absorb);
                self.later(10, Event::Absorbed(absorb, vec![verdict]));
            }
            Effect::Absorb(absorb) => self.absorb(absorb),
            Effect::Expect(absorb) => self.expect(absorb),
            Effect::MakeSpot { spot, .. } => self.make_spot(spot),
            Effect::EndSpot(tag) => self.end_spot(tag),
            Effect::Sized { file, size } => assert_eq!(size, self.files[&file].size),
            Effect::Zero { file, extent } => {
                let refused = self.chance(self.faults.refuse_ppm / 20);
                self.later(20, Event::ZerosStored(file, extent, refused));
            }
            Effect::Take(offer) => self.later(20, Event::Taken(offer)),
            Effect::Commit(files) => self.later(20, Event::Committed(files)),
            Effect::Discard(files) => {
                for id in files {
                    self.model(id).landed.clear();
                }
            }
            Effect::Kill(link) => self.later(20, Event::Killed(link)),
            Effect::Free(link) => {
                assert!(self.dead_on_server.contains(&link), "slots of a live link are freed");
            }
            Effect::Fenced(link) => {
                assert!(self.dead_on_server.contains(&link), "fenced while alive");
                self.say_to_client(ServerMessage::Fenced { link });
            }
            Effect::Broken(fault) => panic!("write server broke: {fault}"),
        }
    }

    /// A hole is made at the other side, whatever was there before.
    fn zero(&mut self, id: FileId, extent: Extent, refused: bool) -> Result<Vec<Digest>, Fault> {
        if refused {
            return Err(fault(Code::NoSpace));
        }
        self.zeroed += 1;
        let zeros: Vec<Digest> = grains(extent).map(zeros_at).collect();
        self.model(id).landed.extend(grains(extent).zip(zeros.iter().copied()));
        Ok(zeros)
    }

    /// Holes are not moved, in a world where they stay.
    fn check_moved(&self, id: FileId, extent: Extent) {
        let file = &self.files[&id];
        let holes = self.faults.change_ppm == 0 && file.size > GRAIN_BYTES && file.grown.is_none();
        let moved = holes && grains(extent).any(|grain| is_hole(id, grain, 0));
        assert!(!moved, "a hole was moved as data");
    }

    fn finish(&mut self, id: FileId, root: Digest) {
        self.finished += 1;
        let file = self.model(id);
        assert!(!std::mem::replace(&mut file.ended, true), "ended twice");
        let version = file.landed_version(id);
        assert!(file.kept.is_empty(), "bytes of a stream are kept for ever");
        assert_eq!(root, root_of(id, file.size, version), "the root is of something else");
    }

    fn fail(&mut self, id: FileId, _fault: &Fault) {
        self.failed += 1;
        let file = self.model(id);
        assert!(!std::mem::replace(&mut file.ended, true), "ended twice");
    }

    fn disturb(&mut self, link: LinkId) {
        if self.chance(self.faults.death_ppm) {
            self.later(20, Event::LinkDies(link));
        }
    }

    fn say_to_server(&mut self, message: ClientMessage) {
        let at = self.now + self.delay(10);
        self.channel_to_server = self.channel_to_server.max(at);
        self.push(self.channel_to_server, Event::ToServer(message));
    }

    fn say_to_client(&mut self, message: ServerMessage) {
        let at = self.now + self.delay(10);
        self.channel_to_client = self.channel_to_client.max(at);
        self.push(self.channel_to_client, Event::ToClient(message));
    }

    fn later(&mut self, ms_max: u64, event: Event) {
        let at = self.now + self.delay(ms_max);
        self.push(at, event);
    }

    fn push(&mut self, at: Duration, event: Event) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    fn delay(&mut self, ms_max: u64) -> Duration {
        Duration::from_micros(1 + self.roll(ms_max * 1000))
    }

    fn chance(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.roll(1_000_000) < ppm
    }

    /// A seeded number below `below` (splitmix64).
    fn roll(&mut self, below: u64) -> u64 {
        self.rng = self.rng.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % below
    }
}

impl Model {
    /// The version that landed: all of it, and of no other.
    fn landed_version(&self, id: FileId) -> u32 {
        let grains = if self.size == 0 { 0 } else { grain_count(self.size) };
        let landed = |version: &u32| {
            (0..grains).all(|grain| self.landed.get(&grain) == Some(&value_of(id, grain, *version)))
        };
        let version = (0..=self.version).rev().find(landed);
        version.unwrap_or_else(|| panic!("a mixture, or not all, is under the final name"))
    }
}

fn info_of(size: u64, mtime_ns: i64) -> FileInfo {
    let version = Some(mtime_ns as u64);
    FileInfo { size, mode: 0o644, mtime_ns, allocated: size, version }
}

fn path_of(id: FileId) -> WirePath {
    WirePath::parse(format!("data/{}", id.0).as_bytes()).expect("holds in this world")
}

fn fault(code: Code) -> Fault {
    Fault::new(code, "seeded")
}

/// The metadata of a file is a function of it.
fn kept(id: FileId) -> Kept {
    Some(Box::new(Meta { uid: id.0, ..Meta::default() }))
}
