//! The writing client with a server that says anything: it sends nothing but
//! its files, and believes in no file that it did not send whole.

use super::draw::{Draw, is_whole};
use super::{EFFECTS_MAX, STEPS_MAX, messages};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use verbatim_proto::message::{
    FileId, FileInfo, Grant, LinkId, Tag, Taken, Verdict, WriteReply, WriteRequest,
};
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, GRAIN_BYTES};
use verbatim_proto::write::{ClientEffect, ClientOptions, Post, Posted, WriteClient};
use verbatim_proto::{Digest, Extent, ExtentSet, RootBuilder, Survey, WirePath};

/// The files, and their sizes in grains.
const GRAINS: [u64; 4] = [0, 1, 3, 9];

/// Tags of grants that are likely begin behind this one: those that are drawn are below.
const FIRST_LIKELY_TAG: u32 = 1 << 20;

/// How long a server may be silent.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What may be done, and how often a silent server waited for, until it is given up: four files
/// have some work each, and may be begun again.
const SILENCES_MAX: usize = 256;

enum Job {
    Post(Post),
    Hash(FileId, Extent),
    HashZeros(FileId, Extent),
    HashOffer(FileId, Extent),
    Check(FileId, Digest),
    Drop(LinkId),
    Restart(FileId),
}

/// A file that has not ended.
#[derive(Default)]
struct Copy {
    /// What the server said it has.
    stored: ExtentSet,
    /// Whether a commit was asked for.
    asked: bool,
}

struct Driver {
    client: WriteClient,
    now: Duration,
    jobs: Vec<Job>,
    files: HashMap<FileId, Copy>,
    /// Chunks that are not judged, and whether they were written.
    posts: HashMap<Tag, (Post, bool)>,
    /// What the server was asked and has not answered.
    creating: Vec<FileId>,
    offered: Vec<(FileId, Extent)>,
    committing: Vec<FileId>,
    /// The highest tag that was granted.
    granted: Option<Tag>,
    dead: HashSet<LinkId>,
    broken: bool,
}

pub fn run(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let options = ClientOptions { chunk_bytes: CHUNK_BYTES_DEFAULT, timeout: TIMEOUT };
    let mut driver = Driver {
        client: WriteClient::new(options),
        now: Duration::ZERO,
        jobs: Vec::new(),
        files: HashMap::new(),
        posts: HashMap::new(),
        creating: Vec::new(),
        offered: Vec::new(),
        committing: Vec::new(),
        granted: None,
        dead: HashSet::new(),
        broken: false,
    };
    (0..GRAINS.len() as u32).for_each(|number| driver.create(FileId(number)));
    for index in 0..2 {
        driver.client.link_up(LinkId { index, epoch: 0 });
    }
    let wild = draw.wildness();
    for _ in 0..STEPS_MAX {
        if draw.is_over() || driver.broken {
            break;
        }
        match draw.up_to(7) {
            0..=3 if draw.once_in(wild) => {
                let reply = driver.wild_reply(&mut draw);
                driver.hear(reply);
            }
            0..=3 => {
                if let Some(reply) = driver.likely_reply(&mut draw) {
                    driver.hear(reply);
                }
            }
            4 => driver.now += Duration::from_secs(draw.up_to(6)),
            _ => {
                if let Some(job) = draw.take(&mut driver.jobs) {
                    driver.answer(job, &mut draw);
                }
            }
        }
        driver.client.advance(driver.now);
        driver.drain();
    }
    driver.wait_in_vain(&mut draw);
}

/// The size of a file.
fn size_of(file: FileId) -> u64 {
    GRAINS[file.0 as usize] * GRAIN_BYTES
}

impl Driver {
    fn create(&mut self, file: FileId) {
        let size = size_of(file);
        let info = FileInfo { size, mode: 0o644, mtime_ns: 1, allocated: size, version: Some(1) };
        let path = WirePath::parse(b"export/file").expect("plain");
        self.client.create(file, path.clone(), info, Survey::dense(size), self.now);
        if file.0 >= 2 {
            self.client.compare_with(file, vec![path.clone(), path], file.0 == 3);
        }
        self.files.insert(file, Copy::default());
    }

    fn next_tag(&self) -> u32 {
        self.granted.map_or(FIRST_LIKELY_TAG, |tag| tag.0.saturating_add(1).clamp(4, u32::MAX - 4))
    }

    /// Anything a server could say; its tags go up all the same, mostly.
    fn wild_reply(&self, draw: &mut Draw<'_>) -> WriteReply {
        let mut reply = messages::write_reply(draw);
        if let WriteReply::Granted { grants, .. } = &mut reply
            && !draw.once_in(8)
        {
            (self.next_tag()..).zip(grants).for_each(|(tag, grant)| grant.tag = Tag(tag));
        }
        reply
    }

    /// What a server could well answer, with a slip now and then: so the client gets somewhere.
    fn likely_reply(&mut self, draw: &mut Draw<'_>) -> Option<WriteReply> {
        Some(match draw.up_to(4) {
            0 => {
                let file = draw.take(&mut self.creating)?;
                let have = if draw.once_in(32) { draw.list(2, Draw::extent) } else { Vec::new() };
                WriteReply::Created { files: vec![(file, draw.result(have))] }
            }
            1 => {
                let link = LinkId { index: draw.up_to(1) as u16, epoch: 0 };
                let bytes = if draw.once_in(16) { draw.any() as u32 } else { 1 << 20 };
                let back = if draw.once_in(64) { draw.up_to(4) as u32 } else { 0 };
                let tag = Tag(self.next_tag() - back);
                let grant = Grant { tag, link, region: draw.region(), bytes };
                WriteReply::Granted { verdicts: Vec::new(), grants: vec![grant] }
            }
            2 => {
                let early = draw.once_in(16);
                let written = self.posts.iter().filter(|(_, (_, written))| *written || early);
                let mut written: Vec<_> =
                    written.map(|(tag, (post, _))| (*tag, post.pieces.len())).collect();
                written.sort_unstable();
                let (tag, count) = draw.take(&mut written)?;
                let count = if draw.once_in(16) { draw.up_to(4) as usize } else { count };
                let verdicts = (0..count).map(|_| messages::verdict(draw)).collect();
                WriteReply::Granted { verdicts: vec![(tag, verdicts)], grants: Vec::new() }
            }
            3 => {
                let (file, extent) = draw.take(&mut self.offered)?;
                let grains = draw.up_to(extent.len / GRAIN_BYTES);
                let part = Extent::new(extent.offset, grains * GRAIN_BYTES);
                let part = if draw.once_in(32) { draw.extent() } else { part };
                let parts = if part.len > 0 { vec![part] } else { Vec::new() };
                WriteReply::Taken(Taken { file, extent, answer: draw.result(parts) })
            }
            _ => {
                let file = draw.take(&mut self.committing)?;
                WriteReply::Committed { files: vec![(file, draw.result(()))] }
            }
        })
    }

    /// Takes an answer of the server, and notes what it says it has. One that it may not give ends
    /// the session.
    fn hear(&mut self, reply: WriteReply) {
        let mut wrong = false;
        match &reply {
            WriteReply::Created { files } => {
                for (file, have) in files {
                    let have = have.iter().flatten().copied();
                    have.for_each(|extent| self.store(*file, extent));
                }
            }
            WriteReply::Granted { verdicts, grants } => {
                for grant in grants {
                    let before = self.granted.replace(grant.tag);
                    wrong |= before.is_some_and(|before| grant.tag <= before);
                }
                for (tag, verdicts) in verdicts {
                    let Some((post, true)) = self.posts.remove(tag) else { continue };
                    wrong |= post.pieces.len() != verdicts.len();
                    let judged = post.pieces.iter().zip(verdicts);
                    let stored = judged.filter(|(_, verdict)| **verdict == Verdict::Stored);
                    stored.for_each(|((file, extent), _)| self.store(*file, *extent));
                }
            }
            _ => {}
        }
        self.client.reply(reply, self.now);
        if wrong {
            self.drain();
            assert!(self.broken, "verdicts in another number than pieces, or a tag twice");
        }
    }

    fn store(&mut self, file: FileId, extent: Extent) {
        if let Some(copy) = self.files.get_mut(&file) {
            copy.stored.insert(extent);
        }
    }

    /// A server that says nothing any more is not waited for without end.
    fn wait_in_vain(mut self, draw: &mut Draw<'_>) {
        for _ in 0..SILENCES_MAX {
            if self.broken || self.files.is_empty() {
                return;
            }
            match self.jobs.pop() {
                Some(job) => self.answer(job, draw),
                None => self.now += TIMEOUT,
            }
            self.client.advance(self.now);
            self.drain();
        }
        panic!("a silent server is waited for without end");
    }

    fn answer(&mut self, job: Job, draw: &mut Draw<'_>) {
        match job {
            Job::Post(post) => {
                let digests = |(_, extent): &(FileId, Extent)| digests(*extent);
                let posted = match draw.up_to(9) {
                    0 => Posted::LinkLost,
                    1 => Posted::Unread(vec![(0, draw.fault())]),
                    _ => Posted::Sent(post.pieces.iter().map(digests).collect()),
                };
                let (tag, link, lost) =
                    (post.grant.tag, post.grant.link, posted == Posted::LinkLost);
                if let Posted::Unread(_) = posted {
                    self.posts.remove(&tag);
                } else if let Some((_, written)) = self.posts.get_mut(&tag) {
                    *written |= !lost;
                }
                self.client.posted(tag, posted, self.now);
                if lost {
                    self.dead.insert(link);
                    self.client.link_down(link, self.now);
                }
            }
            Job::Hash(file, extent) => {
                let answer = draw.result(digests(extent));
                self.client.hashed(file, extent, answer);
            }
            Job::HashZeros(file, extent) => {
                self.client.zeros_hashed(file, extent, &digests(extent), self.now);
            }
            Job::HashOffer(file, extent) => {
                let answer = draw.result(digests(extent));
                self.client.offer_hashed(file, extent, answer, self.now);
            }
            Job::Check(file, root) => {
                let answer = draw.result(None);
                self.client.source_checked(file, root, answer);
            }
            Job::Drop(link) => {
                self.dead.insert(link);
                self.posts.retain(|_, (post, _)| post.grant.link != link);
                self.client.link_down(link, self.now);
                self.client.fenced(link);
            }
            Job::Restart(file) => self.create(file),
        }
    }

    fn drain(&mut self) {
        for count in 0.. {
            assert!(count < EFFECTS_MAX, "one event leads to work without end");
            let Some(effect) = self.client.next_effect() else { break };
            match effect {
                ClientEffect::Send(WriteRequest::Create { files }) => {
                    self.creating.extend(files.iter().map(|file| file.file));
                }
                ClientEffect::Send(WriteRequest::Offer(offer)) => {
                    self.offered.push((offer.piece.file, offer.piece.extent));
                }
                ClientEffect::Send(WriteRequest::Commit { files }) => {
                    for file in files {
                        self.committing.push(file.file);
                        let size = size_of(file.file);
                        let copy = self.files.get_mut(&file.file).expect("one of ours");
                        assert_eq!(copy.stored.bytes(), size, "the server does not have it all");
                        assert_eq!(Some(file.root), root_of(size), "the root of something else");
                        copy.asked = true;
                    }
                }
                ClientEffect::Send(_) | ClientEffect::Stored { .. } => {}
                ClientEffect::Post(post) => {
                    self.check(&post);
                    self.posts.insert(post.grant.tag, (post.clone(), false));
                    self.jobs.push(Job::Post(post));
                }
                ClientEffect::Hash { file, extent } => {
                    assert!(extent.fits(size_of(file)), "outside its file");
                    self.jobs.push(Job::Hash(file, extent));
                }
                ClientEffect::HashZeros { file, extent } => {
                    assert!(extent.fits(size_of(file)), "outside its file");
                    self.jobs.push(Job::HashZeros(file, extent));
                }
                ClientEffect::HashOffer { file, extent } => {
                    assert!(extent.fits(size_of(file)), "outside its file");
                    self.jobs.push(Job::HashOffer(file, extent));
                }
                ClientEffect::Taken { file, extent, digests: taken } => {
                    assert!(extent.fits(size_of(file)), "outside its file");
                    assert_eq!(taken, digests(extent), "a digest a grain");
                    self.store(file, extent);
                }
                ClientEffect::FindHoles { .. } => panic!("the files have no holes"),
                ClientEffect::CheckSource { file, root } => self.jobs.push(Job::Check(file, root)),
                ClientEffect::DropLink { link } => self.jobs.push(Job::Drop(link)),
                ClientEffect::Restart { file } => self.jobs.push(Job::Restart(file)),
                ClientEffect::Finished { file, .. } => {
                    let copy = self.files.remove(&file).expect("a file that has not ended");
                    assert!(copy.asked, "finished, and its commit was never asked for");
                }
                ClientEffect::Failed { file, .. } => {
                    self.files.remove(&file).expect("a file that has not ended");
                }
                // The driver ends the session here, and looks at nothing behind it.
                ClientEffect::Broken(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    fn check(&self, post: &Post) {
        let total: u64 = post.pieces.iter().map(|(_, extent)| extent.len).sum();
        assert!(total > 0 && total <= u64::from(post.grant.bytes), "more than was granted");
        assert!(total <= u64::from(CHUNK_BYTES_DEFAULT), "more than a chunk");
        assert!(!self.dead.contains(&post.grant.link), "on a link that is dead");
        for (file, extent) in &post.pieces {
            let copy = self.files.get(file).expect("a file that has not ended");
            assert!(is_whole(*extent, size_of(*file)), "outside its file, or no whole grains");
            assert!(!copy.stored.intersects(*extent), "what the server has");
            let under_way = self.posts.values().flat_map(|(post, _)| &post.pieces);
            let mut same = under_way.filter(|(of, _)| of == file);
            let range = ExtentSet::from_iter([*extent]);
            assert!(!same.any(|(_, other)| range.intersects(*other)), "what is under way");
        }
    }
}

fn digests(extent: Extent) -> Vec<Digest> {
    vec![Digest([1; 32]); extent.len.div_ceil(GRAIN_BYTES) as usize]
}

/// The root of a file of these.
fn root_of(size: u64) -> Option<Digest> {
    let mut root = RootBuilder::new(size);
    match size {
        0 => root.insert(0, Digest::of(b"")),
        _ => root.insert_run(0, &digests(Extent::new(0, size))),
    }
    root.finish()
}
