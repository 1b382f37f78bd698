//! The writing server with a client that says, and writes, anything. Its
//! driver is honest, and keeps what is stored: a file may only be committed when
//! all of it is.

use super::draw::Draw;
use super::{EFFECTS_MAX, STEPS_MAX, messages};
use std::collections::{HashMap, HashSet};
use verbatim_proto::message::{
    CommitFile, CreateFile, FileId, FileInfo, Grant, LinkId, Offer, Piece, Region, SentChunk, Spot,
    Tag, Verdict, WriteReply, WriteRequest,
};
use verbatim_proto::units::{GRAIN_BYTES, LINKS_MAX, SLOTS_PER_LINK, STREAM_BYTES_MAX};
use verbatim_proto::write::{Absorb, ServerEffect, SlotId, WriteServer};
use verbatim_proto::{Digest, Extent, ExtentSet, RootBuilder};

const SLOT_BYTES: u32 = 1 << 20;

/// Files of likely requests have numbers behind this one: those that are drawn are below.
const FIRST_LIKELY_FILE: u32 = 1000;

enum Job {
    Create(Vec<CreateFile>),
    Provision(LinkId, u16),
    Absorb(Absorb),
    Zero(FileId, Extent),
    Take(Offer),
    Commit(Vec<FileId>),
    Kill(LinkId),
    MakeSpot(Spot),
}

/// What a client claims that means the right root.
const RIGHT: Digest = Digest([3; 32]);

/// A temporary file: its size, and what is stored of it.
struct Stored {
    size: u64,
    extents: ExtentSet,
    /// What the client said it sent.
    sent: ExtentSet,
    root: RootBuilder,
    /// It is being given its name.
    committing: bool,
}

impl Stored {
    fn new(size: u64) -> Self {
        let mut root = match size {
            STREAM_BYTES_MAX => RootBuilder::open(),
            _ => RootBuilder::new(size),
        };
        if size == 0 {
            root.insert(0, Digest::of(b""));
        }
        let (extents, sent) = (ExtentSet::new(), ExtentSet::new());
        Self { size, extents, sent, root, committing: false }
    }

    /// Where the client goes on.
    fn next_unsent(&self) -> Option<u64> {
        let mut grains = (0..self.size.min(64 * GRAIN_BYTES)).step_by(GRAIN_BYTES as usize);
        grains.find(|&offset| !self.sent.intersects(Extent::new(offset, GRAIN_BYTES)))
    }

    fn store(&mut self, extent: Extent, digests: &[Digest]) {
        self.sent.insert(extent);
        self.extents.insert(extent);
        self.root.insert_run(extent.offset, digests);
    }
}

#[derive(Default)]
struct Driver {
    server: WriteServer,
    jobs: Vec<Job>,
    files: HashMap<FileId, Stored>,
    /// The roots that the client claims.
    claimed: HashMap<FileId, HashSet<Digest>>,
    grants: HashMap<Tag, Grant>,
    /// Tags that nothing was said of.
    unused: Vec<Tag>,
    notified: HashSet<(LinkId, Tag)>,
    /// What is stored as soon as it is notified.
    expected: HashMap<Tag, Absorb>,
    /// Slots that are being emptied: granted to nobody meanwhile.
    busy: HashSet<SlotId>,
    /// Ranges of files that the client may write to.
    spots: HashMap<Tag, Spot>,
    slot_at: HashMap<u64, SlotId>,
    links: HashSet<LinkId>,
    next_slot: u32,
    next_file: u32,
    broken: bool,
}

pub fn run(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut driver = Driver { next_file: FIRST_LIKELY_FILE, ..Driver::default() };
    let wild = draw.wildness();
    for _ in 0..STEPS_MAX {
        if draw.is_over() || driver.broken {
            return;
        }
        match draw.up_to(7) {
            0 => {
                let link = draw.link();
                // The session makes each link once, and so many.
                if driver.links.len() < LINKS_MAX && driver.links.insert(link) {
                    driver.server.link_up(link);
                }
            }
            1 => driver.notify(&mut draw),
            2 if draw.once_in(4) => driver.server.fence(draw.link()),
            2..=4 if draw.once_in(wild) => driver.request(messages::write_request(&mut draw)),
            2..=4 => {
                if let Some(request) = driver.likely_request(&mut draw) {
                    driver.request(request);
                }
            }
            _ => {
                if let Some(job) = draw.take(&mut driver.jobs) {
                    driver.answer(job, &mut draw);
                }
            }
        }
        driver.drain();
    }
}

impl Driver {
    fn request(&mut self, mut request: WriteRequest) {
        if let WriteRequest::Commit { files } = &mut request {
            for file in files.iter_mut() {
                let stored = self.files.get(&file.file);
                let right = stored.filter(|_| file.root == RIGHT).and_then(|it| it.root.finish());
                file.root = right.unwrap_or(file.root);
                self.claimed.entry(file.file).or_default().insert(file.root);
            }
        }
        self.server.request(request);
    }

    /// What a client could well ask, with a slip now and then: so the server gets somewhere.
    fn likely_request(&mut self, draw: &mut Draw<'_>) -> Option<WriteRequest> {
        let mut open: Vec<FileId> = self.files.keys().copied().collect();
        open.sort_unstable();
        Some(match draw.up_to(4) {
            0 => {
                self.next_file += 1;
                let (file, path) = (FileId(self.next_file), messages::path());
                let info = FileInfo { size: draw.up_to(6) * GRAIN_BYTES, ..draw.info() };
                WriteRequest::Create { files: vec![CreateFile { file, path, info, stream: false }] }
            }
            1 | 2 => {
                let file = draw.take(&mut open)?;
                let offset = match draw.once_in(32) {
                    true => draw.up_to(5) * GRAIN_BYTES,
                    false => self.files[&file].next_unsent()?,
                };
                let tag = draw.take(&mut self.unused)?;
                let left = self.files[&file].size.saturating_sub(offset) / GRAIN_BYTES;
                let most = if draw.once_in(32) { 9 } else { 4 };
                let extent = Extent::new(offset, left.min(1 + draw.up_to(most - 1)) * GRAIN_BYTES);
                self.files.get_mut(&file).expect("it is open").sent.insert(extent);
                let piece = Piece { file, extent, digests: draw.digests(extent) };
                if draw.once_in(4) {
                    self.unused.push(tag);
                    return Some(WriteRequest::Offer(Offer { basis: messages::path(), piece }));
                }
                WriteRequest::Sent { chunks: vec![SentChunk { tag, pieces: vec![piece] }] }
            }
            3 => {
                open.retain(|file| self.files[file].root.finish().is_some());
                let file = draw.take(&mut open)?;
                let root = if draw.once_in(4) { draw.digest() } else { RIGHT };
                WriteRequest::Commit { files: vec![CommitFile { file, root, meta: None }] }
            }
            _ if !draw.once_in(4) => return None,
            _ => WriteRequest::Discard { files: vec![draw.take(&mut open)?] },
        })
    }

    /// A notification: of a grant, mostly.
    fn notify(&mut self, draw: &mut Draw<'_>) {
        let mut granted: Vec<Tag> = self.grants.keys().copied().collect();
        granted.sort_unstable();
        let (link, tag, slip) = (draw.link(), draw.tag(), draw.once_in(8));
        let likely = draw.take(&mut granted).filter(|_| !draw.once_in(8));
        let tag = likely.unwrap_or(tag);
        let grant = self.grants.get(&tag).filter(|_| !slip);
        let link = grant.map_or(link, |grant| grant.link);
        self.notified.insert((link, tag));
        match self.expected.remove(&tag) {
            Some(absorb) if absorb.link == link => {
                self.check(&absorb);
                self.absorb(&absorb, draw);
            }
            kept => {
                self.expected.extend(kept.map(|absorb| (tag, absorb)));
                self.server.notified(link, tag);
            }
        }
    }

    /// What is stored when it is notified; of every other chunk the driver hears too late.
    fn expect(&mut self, absorb: Absorb) {
        if absorb.tag.0.is_multiple_of(2) {
            assert!(self.expected.insert(absorb.tag, absorb).is_none(), "expected twice");
        }
    }

    /// Stores a chunk, or does not.
    fn absorb(&mut self, absorb: &Absorb, draw: &mut Draw<'_>) {
        let verdicts: Vec<Verdict> =
            absorb.pieces.iter().map(|_| messages::verdict(draw)).collect();
        for (piece, verdict) in absorb.pieces.iter().zip(&verdicts) {
            match self.files.get_mut(&piece.file) {
                Some(file) if *verdict == Verdict::Stored => {
                    file.store(piece.extent, &piece.digests);
                }
                Some(file) => drop(file.sent.take(piece.extent)),
                None => {}
            }
        }
        self.busy.remove(&absorb.slot);
        self.server.absorbed(absorb.tag, verdicts);
    }

    fn create(&mut self, files: Vec<CreateFile>, draw: &mut Draw<'_>) {
        let mut answers = Vec::new();
        for CreateFile { file, info, .. } in files {
            let answer = draw.result(None);
            if answer.is_ok() {
                self.files.insert(file, Stored::new(info.size));
            }
            answers.push((file, answer));
        }
        let made = answers.iter().filter(|(_, answer)| answer.is_ok());
        let taking = made.filter(|_| draw.once_in(2)).map(|(file, _)| *file).collect();
        self.server.takes_spots(taking);
        self.server.created(answers);
    }

    fn answer(&mut self, job: Job, draw: &mut Draw<'_>) {
        match job {
            Job::Create(files) => self.create(files, draw),
            Job::Provision(link, slots) => {
                assert!(slots <= SLOTS_PER_LINK, "more slots than a link may have");
                let mut made = Vec::new();
                for _ in 0..slots {
                    self.next_slot += 1;
                    let base = u64::from(self.next_slot) << 24;
                    self.slot_at.insert(base, SlotId(self.next_slot));
                    made.push((SlotId(self.next_slot), Region { key: 1, base }, SLOT_BYTES));
                }
                self.server.provisioned(link, made);
            }
            Job::Absorb(absorb) => self.absorb(&absorb, draw),
            Job::Zero(file, extent) => {
                let grains = extent.len.div_ceil(GRAIN_BYTES) as usize;
                let answer = draw.result(vec![Digest([9; 32]); grains]);
                if let (Ok(digests), Some(file)) = (&answer, self.files.get_mut(&file)) {
                    file.store(extent, digests);
                }
                self.server.zeroed(file, extent, answer);
            }
            Job::Take(offer) => {
                let extent = offer.piece.extent;
                let taken = if draw.once_in(2) { vec![extent] } else { Vec::new() };
                let answer = draw.result(taken);
                if let (Ok(taken), Some(file)) = (&answer, self.files.get_mut(&offer.piece.file)) {
                    file.sent.take(extent);
                    taken.iter().for_each(|extent| file.store(*extent, &offer.piece.digests));
                }
                self.server.taken(&offer, answer);
            }
            Job::Commit(files) => {
                let answers = files.iter().map(|file| (*file, draw.result(()))).collect();
                files.iter().for_each(|file| drop(self.files.remove(file)));
                self.server.committed(answers);
            }
            Job::Kill(link) => {
                self.expected.retain(|_, absorb| absorb.link != link);
                self.server.killed(link);
            }
            Job::MakeSpot(spot) => {
                let answer = draw.result(Region { key: 2, base: 0 });
                if answer.is_ok() {
                    self.add(spot);
                }
                self.server.spot_made(spot.tag, answer);
            }
        }
    }

    fn drain(&mut self) {
        for count in 0.. {
            assert!(count < EFFECTS_MAX, "one event leads to work without end");
            let Some(effect) = self.server.next_effect() else { break };
            match effect {
                ServerEffect::Send(WriteReply::Granted { grants, .. }) => {
                    for grant in grants {
                        let slot = self.slot_at[&grant.region.base];
                        assert!(!self.busy.contains(&slot), "granted a slot that is in use");
                        assert!(self.grants.insert(grant.tag, grant).is_none(), "a tag twice");
                        self.unused.push(grant.tag);
                    }
                }
                ServerEffect::Send(_) | ServerEffect::Free(_) => {}
                ServerEffect::Fenced(link) => self.check_fenced(link),
                ServerEffect::Provision { link, slots } => {
                    self.jobs.push(Job::Provision(link, slots));
                }
                ServerEffect::Create(files) => self.jobs.push(Job::Create(files)),
                ServerEffect::MakeSpot { spot, .. } => self.jobs.push(Job::MakeSpot(spot)),
                ServerEffect::EndSpot(tag) => self.end_spot(tag),
                ServerEffect::Expect(absorb) => self.expect(absorb),
                ServerEffect::Absorb(absorb) => {
                    if absorb.in_place {
                        self.end_spot(absorb.tag);
                    }
                    self.check(&absorb);
                    self.busy.insert(absorb.slot);
                    self.jobs.push(Job::Absorb(absorb));
                }
                ServerEffect::Sized { file, size } => {
                    let file = self.files.get_mut(&file).expect("a file that is there");
                    file.size = size;
                    file.root.close(size);
                    if size == 0 {
                        file.root.insert(0, Digest::of(b""));
                    }
                }
                ServerEffect::Zero { file, extent } => {
                    let size = self.files[&file].size;
                    assert!(extent.fits(size) && extent.len > 0, "zeros outside a file");
                    self.jobs.push(Job::Zero(file, extent));
                }
                ServerEffect::Take(offer) => {
                    let (piece, file) = (&offer.piece, &self.files[&offer.piece.file]);
                    assert!(piece.extent.fits(file.size), "an offer outside a file");
                    assert!(!file.extents.intersects(piece.extent), "offered what is stored");
                    self.jobs.push(Job::Take(offer));
                }
                ServerEffect::Commit(files) => {
                    files.iter().for_each(|(file, _)| self.check_whole(*file));
                    self.jobs.push(Job::Commit(files.iter().map(|(file, _)| *file).collect()));
                }
                ServerEffect::Discard(files) => {
                    for file in files.iter().filter_map(|file| self.files.remove(file)) {
                        assert!(!file.committing, "discarded while it is committed");
                    }
                }
                ServerEffect::Kill(link) => self.jobs.push(Job::Kill(link)),
                // The driver ends the session here, and looks at nothing behind it.
                ServerEffect::Broken(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    /// What a link that is fenced had under way is over.
    fn check_fenced(&self, link: LinkId) {
        let mut absorbing = self.jobs.iter().filter_map(|job| match job {
            Job::Absorb(absorb) => Some(absorb.link),
            _ => None,
        });
        assert!(!absorbing.any(|of| of == link), "fenced while something of it is stored");
        let mut spots = self.spots.keys().filter_map(|tag| self.grants.get(tag));
        assert!(!spots.any(|grant| grant.link == link), "fenced while it can be written to");
    }

    /// The client may write to this range, which is verified for nobody and nobody else's.
    fn add(&mut self, spot: Spot) {
        let file = &self.files[&spot.file];
        assert!(spot.extent.fits(file.size) && spot.extent.len > 0, "a spot outside its file");
        assert!(!file.extents.intersects(spot.extent), "a spot where bytes are verified");
        assert!(!self.is_writable(spot.file, spot.extent), "two spots of one range");
        assert!(self.spots.insert(spot.tag, spot).is_none(), "two spots of one grant");
    }

    fn end_spot(&mut self, tag: Tag) {
        assert!(self.spots.remove(&tag).is_some(), "a spot is taken back that is none");
    }

    /// Whether the client could write to some of a range of a file.
    fn is_writable(&self, file: FileId, extent: Extent) -> bool {
        let range = ExtentSet::from_iter([extent]);
        self.spots.values().any(|spot| spot.file == file && range.intersects(spot.extent))
    }

    /// What is copied out of a slot was granted, notified on its own link, fits the slot, and
    /// lies within its file.
    fn check(&self, absorb: &Absorb) {
        let grant = self.grants.get(&absorb.tag).expect("a tag that was granted");
        assert_eq!(grant.link, absorb.link, "on another link");
        assert!(self.notified.contains(&(absorb.link, absorb.tag)), "before it was notified");
        assert!(!self.busy.contains(&absorb.slot), "a slot that is in use");
        let total: u64 = absorb.pieces.iter().map(|piece| piece.extent.len).sum();
        assert!(total <= u64::from(SLOT_BYTES), "more than the slot holds");
        for piece in &absorb.pieces {
            let file = &self.files[&piece.file];
            assert!(piece.extent.fits(file.size), "outside its file");
            assert!(!file.extents.intersects(piece.extent), "stored twice");
            assert!(!self.is_writable(piece.file, piece.extent), "it can still be written to");
            let grains = piece.extent.len.div_ceil(GRAIN_BYTES) as usize;
            assert_eq!(piece.digests.len(), grains, "a digest a grain");
        }
    }

    /// A file that is committed is all there, and nobody claimed another digest for it.
    fn check_whole(&mut self, id: FileId) {
        let file = self.files.get_mut(&id).expect("a file that is there");
        assert!(!std::mem::replace(&mut file.committing, true), "committed twice");
        let root = file.root.finish().expect("all of it is there");
        let claimed = self.claimed.get(&id).is_some_and(|claimed| claimed.contains(&root));
        assert!(claimed, "the client claimed another digest");
        let file = &self.files[&id];
        assert!(file.size < STREAM_BYTES_MAX, "a stream without an end");
        assert_eq!(file.extents.bytes(), file.size, "committed before all of it is there");
        assert!(!self.is_writable(id, Extent::new(0, file.size)), "it can still be written to");
    }
}
