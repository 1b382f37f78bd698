//! The writing server with a client that says, and writes, anything. Its
//! driver is honest, and keeps what is stored: a file may only be committed when
//! all of it is.

use super::draw::Draw;
use super::{EFFECTS_MAX, STEPS_MAX, messages};
use std::collections::{HashMap, HashSet};
use verbatim_proto::message::{
    CreateFile, FileId, Grant, LinkId, Offer, Region, Spot, Tag, Verdict, WriteReply, WriteRequest,
};
use verbatim_proto::units::{GRAIN_BYTES, LINKS_MAX, SLOTS_PER_LINK, STREAM_BYTES_MAX};
use verbatim_proto::write::{Absorb, ServerEffect, SlotId, WriteServer};
use verbatim_proto::{Digest, Extent, ExtentSet};

const SLOT_BYTES: u32 = 1 << 20;

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

/// A temporary file: its size, and what is stored of it.
struct Stored {
    size: u64,
    extents: ExtentSet,
}

#[derive(Default)]
struct Driver {
    server: WriteServer,
    jobs: Vec<Job>,
    files: HashMap<FileId, Stored>,
    /// The roots that the client claims.
    claimed: HashMap<FileId, Digest>,
    grants: HashMap<Tag, Grant>,
    notified: HashSet<(LinkId, Tag)>,
    /// Slots that are being emptied: granted to nobody meanwhile.
    busy: HashSet<SlotId>,
    /// Ranges of files that the client may write to.
    spots: HashMap<Tag, Spot>,
    slot_at: HashMap<u64, SlotId>,
    links: HashSet<LinkId>,
    next_slot: u32,
    broken: bool,
}

pub fn run(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut driver = Driver::default();
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
            2 => driver.server.fence(draw.link()),
            3 | 4 => driver.request(messages::write_request(&mut draw)),
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
    fn request(&mut self, request: WriteRequest) {
        if let WriteRequest::Commit { files } = &request {
            self.claimed.extend(files.iter().map(|file| (file.file, file.root)));
        }
        self.server.request(request);
    }

    /// A notification: of a grant, mostly.
    fn notify(&mut self, draw: &mut Draw<'_>) {
        let (link, tag) = (draw.link(), draw.tag());
        let link = self.grants.get(&tag).map_or(link, |grant| grant.link);
        self.notified.insert((link, tag));
        self.server.notified(link, tag);
    }

    fn create(&mut self, files: Vec<CreateFile>, draw: &mut Draw<'_>) {
        let mut answers = Vec::new();
        for CreateFile { file, info, .. } in files {
            let answer = draw.result(None);
            if answer.is_ok() {
                let extents = ExtentSet::new();
                self.files.insert(file, Stored { size: info.size, extents });
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
            Job::Absorb(absorb) => {
                let verdicts: Vec<Verdict> =
                    absorb.pieces.iter().map(|_| messages::verdict(draw)).collect();
                for (piece, verdict) in absorb.pieces.iter().zip(&verdicts) {
                    if let (Verdict::Stored, Some(file)) =
                        (verdict, self.files.get_mut(&piece.file))
                    {
                        file.extents.insert(piece.extent);
                    }
                }
                self.busy.remove(&absorb.slot);
                self.server.absorbed(absorb.tag, verdicts);
            }
            Job::Zero(file, extent) => {
                let grains = extent.len.div_ceil(GRAIN_BYTES) as usize;
                let answer = draw.result(vec![Digest([9; 32]); grains]);
                if let (Ok(_), Some(file)) = (&answer, self.files.get_mut(&file)) {
                    file.extents.insert(extent);
                }
                self.server.zeroed(file, extent, answer);
            }
            Job::Take(offer) => {
                let extent = offer.piece.extent;
                let taken = if draw.once_in(2) { vec![extent] } else { Vec::new() };
                let answer = draw.result(taken);
                if let (Ok(taken), Some(file)) = (&answer, self.files.get_mut(&offer.piece.file)) {
                    taken.iter().for_each(|extent| file.extents.insert(*extent));
                }
                self.server.taken(&offer, answer);
            }
            Job::Commit(files) => {
                let answers = files.iter().map(|file| (*file, draw.result(()))).collect();
                files.iter().for_each(|file| drop(self.files.remove(file)));
                self.server.committed(answers);
            }
            Job::Kill(link) => self.server.killed(link),
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
                    }
                }
                ServerEffect::Send(_) | ServerEffect::Free(_) | ServerEffect::Fenced(_) => {}
                ServerEffect::Provision { link, slots } => {
                    self.jobs.push(Job::Provision(link, slots));
                }
                ServerEffect::Create(files) => self.jobs.push(Job::Create(files)),
                ServerEffect::MakeSpot { spot, .. } => self.jobs.push(Job::MakeSpot(spot)),
                ServerEffect::EndSpot(tag) => self.end_spot(tag),
                ServerEffect::Absorb(absorb) => {
                    if absorb.in_place {
                        self.end_spot(absorb.tag);
                    }
                    self.check(&absorb);
                    self.busy.insert(absorb.slot);
                    self.jobs.push(Job::Absorb(absorb));
                }
                ServerEffect::Sized { file, size } => {
                    self.files.get_mut(&file).expect("a file that is there").size = size;
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
                    files.iter().for_each(|file| drop(self.files.remove(file)));
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
    fn check_whole(&self, id: FileId) {
        let file = &self.files[&id];
        assert!(file.size < STREAM_BYTES_MAX, "a stream without an end");
        assert_eq!(file.extents.bytes(), file.size, "committed before all of it is there");
        assert!(self.claimed.contains_key(&id), "nobody asked for it");
        assert!(!self.is_writable(id, Extent::new(0, file.size)), "it can still be written to");
    }
}
