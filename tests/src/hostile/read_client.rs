//! The reading client with a server that says anything: what it finishes must
//! have been read and verified whole, each range once and from where it was lent;
//! it may touch nothing outside its files, and nothing that it gave back. In the
//! end its server is honest, and every file ends, or silent, and is given up.

mod checks;
mod likely;

use super::draw::Draw;
use super::{EFFECTS_MAX, STEPS_MAX, messages};
use likely::Server;
use std::collections::HashMap;
use std::time::Duration;
use verbatim_proto::message::{FileId, FileInfo, LinkId, ReadReply, ReadRequest};
use verbatim_proto::read::{
    ClientEffect, ClientOptions, Fetch, Have, Outcome, Part, PieceOutcome, ReadClient, Zero,
};
use verbatim_proto::units::{CHUNK_ATTEMPTS_MAX, CHUNK_BYTES_DEFAULT, FILE_BYTES_MAX, GRAIN_BYTES};
use verbatim_proto::{Code, Digest, Extent, ExtentSet, Fault, RootBuilder};

/// The files: some of the third is had, and some of the fourth is wanted.
const FILES: u32 = 4;
const RESUMED: FileId = FileId(2);
const PART: FileId = FileId(3);

/// The size of what is had in part.
const PARTLY_HAD: u64 = 5 * GRAIN_BYTES + 77;

/// What is had of it; of the other file this is wanted.
const SOME: Extent = Extent { offset: GRAIN_BYTES, len: 2 * GRAIN_BYTES };

const SLOTS: u16 = 2;

/// How long a server may be silent.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often a silent server is waited for: each link may have to be given up before.
const SILENCES_MAX: usize = 16;

/// What an honest server and this side do until all is done: files have up to 64 chunks, and are
/// begun again a few times.
const HONEST_STEPS_MAX: usize = 4096;

enum Job {
    Fetch(Fetch),
    Zero(Zero),
    Drop(LinkId),
}

impl Job {
    /// Whether it writes to a file.
    fn is_of(&self, file: FileId) -> bool {
        match self {
            Self::Fetch(fetch) => fetch.chunk.pieces.iter().any(|piece| piece.file == file),
            Self::Zero(zero) => zero.file == file,
            Self::Drop(_) => false,
        }
    }

    fn is_on(&self, link: LinkId) -> bool {
        matches!(self, Self::Fetch(fetch) if fetch.link == link)
    }
}

#[derive(Default)]
struct Copy {
    size: Option<u64>,
    landed: ExtentSet,
    root: Option<RootBuilder>,
    /// How often what is at an offset did not match.
    bad: HashMap<u64, u8>,
    /// Whether some of an earlier run is had of it.
    had: bool,
    over: bool,
}

impl Copy {
    fn land(&mut self, extent: Extent, digests: &[Digest]) {
        assert!(!self.landed.intersects(extent), "it is written twice");
        self.bad.remove(&extent.offset);
        self.landed.insert(extent);
        self.root.as_mut().expect("it was opened").insert_run(extent.offset, digests);
    }
}

struct Driver {
    client: ReadClient,
    now: Duration,
    jobs: Vec<Job>,
    files: HashMap<FileId, Copy>,
    server: Server,
    /// Those that work.
    links: Vec<LinkId>,
    /// A file whose first chunk never matches.
    rotten: Option<FileId>,
    broken: bool,
}

pub fn run(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let (wild, rails, honest) = (draw.wildness(), draw.once_in(2), draw.once_in(2));
    let mut driver = Driver::new(rails);
    driver.rotten = draw.once_in(4).then(|| draw.file());
    driver.step();
    for _ in 0..STEPS_MAX {
        if draw.is_over() || driver.broken {
            break;
        }
        match draw.up_to(7) {
            0..=3 if draw.once_in(wild) => driver.hear(messages::read_reply(&mut draw)),
            0..=3 => {
                for reply in driver.server.likely(&mut draw) {
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
        driver.step();
    }
    match honest {
        true => driver.end_honestly(&mut draw),
        false => driver.wait_in_vain(&mut draw),
    }
}

/// What is had of a file.
fn have() -> Have {
    let mut root = RootBuilder::new(PARTLY_HAD);
    root.insert_run(SOME.offset, &digests(SOME));
    let extents = ExtentSet::from_iter([SOME]);
    Have { size: PARTLY_HAD, mtime_ns: 0, version: Some(1), extents, root }
}

/// The digests of grains that are had, or zeros.
fn digests(extent: Extent) -> Vec<Digest> {
    vec![Digest([200; 32]); extent.len.div_ceil(GRAIN_BYTES) as usize]
}

impl Driver {
    fn new(rails: bool) -> Self {
        let (chunk_bytes, slots_per_link, timeout) = (CHUNK_BYTES_DEFAULT, SLOTS, TIMEOUT);
        let options = ClientOptions { chunk_bytes, slots_per_link, timeout, describe: false };
        let mut driver = Self {
            client: ReadClient::new(options),
            now: Duration::ZERO,
            jobs: Vec::new(),
            files: HashMap::new(),
            server: Server::new(rails),
            links: Vec::new(),
            rotten: None,
            broken: false,
        };
        for file in (0..FILES).map(FileId) {
            let path = messages::path();
            match file {
                PART => {
                    let part = Part { size: PARTLY_HAD, version: Some((0, 1)), want: SOME };
                    driver.client.open_part(file, path, &part, driver.now);
                }
                _ => {
                    let have = (file == RESUMED).then(have);
                    driver.client.open(file, path, have, driver.now);
                }
            }
            let had = file == RESUMED || file == PART;
            driver.files.insert(file, Copy { had, ..Copy::default() });
        }
        (0..2).for_each(|index| driver.link_up(LinkId { index, epoch: 0 }));
        driver
    }

    fn rail_of(&self, link: LinkId) -> u16 {
        if self.server.with_rails { link.index } else { 0 }
    }

    fn link_up(&mut self, link: LinkId) {
        self.client.link_up_on(link, self.rail_of(link));
        self.links.push(link);
    }

    /// Ends a link: nothing on it completes any more. The next one in its place comes at once, or
    /// never.
    fn lose(&mut self, link: LinkId, draw: &mut Draw<'_>) {
        for job in self.jobs.extract_if(.., |job| job.is_on(link)) {
            let Job::Fetch(Fetch { link, slot, .. }) = job else { continue };
            if draw.once_in(2) {
                self.client.fetched(link, slot, Outcome::LinkLost, self.now);
            }
        }
        self.links.retain(|other| *other != link);
        self.client.link_down(link, self.now);
        if draw.once_in(2) {
            self.link_up(LinkId { epoch: link.epoch + 1, ..link });
        }
    }

    fn step(&mut self) {
        if self.broken {
            return;
        }
        self.client.advance(self.now);
        self.drain();
    }

    /// Takes an answer of the server. One that it may not give ends the session.
    fn hear(&mut self, reply: ReadReply) {
        if self.broken {
            return;
        }
        let wrong = self.server.says(&reply);
        let is_name = matches!(reply, ReadReply::Rails(_));
        self.client.reply(reply, self.now);
        self.step();
        assert!(!wrong || self.broken, "an answer that may not be was taken");
        let reason = wrong || is_name || self.server.nameless;
        assert!(reason || !self.broken, "an answer that may be was refused");
    }

    /// The server plays by the rules from now on, and so does all else: every file ends.
    fn end_honestly(mut self, draw: &mut Draw<'_>) {
        if self.broken {
            return;
        }
        self.server.honest = true;
        for _ in 0..HONEST_STEPS_MAX {
            assert!(!self.broken || self.server.nameless, "it ends an honest session");
            if self.broken || self.files.values().all(|copy| copy.over) {
                return;
            }
            if self.links.is_empty() {
                self.link_up(LinkId { index: 0, epoch: 1000 });
                self.step();
            }
            match self.jobs.pop() {
                Some(Job::Zero(zero)) if zero.extent.len == 1 << 24 => self.refuse(zero),
                Some(job) => self.answer(job, draw),
                None => {
                    let due = self.server.due(draw);
                    assert!(!due.is_empty(), "the client waits for something else");
                    due.into_iter().for_each(|reply| self.hear(reply));
                }
            }
            self.step();
        }
        panic!("files do not end with an honest server");
    }

    /// Neither the server nor a link says anything more: they are not waited for without end.
    fn wait_in_vain(mut self, draw: &mut Draw<'_>) {
        for _ in 0..SILENCES_MAX {
            while let Some(own) = self.jobs.iter().position(|job| !matches!(job, Job::Fetch(_))) {
                match self.jobs.swap_remove(own) {
                    Job::Zero(zero) => self.refuse(zero),
                    job => self.answer(job, draw),
                }
                self.step();
            }
            if self.broken || self.files.values().all(|copy| copy.over) {
                return;
            }
            let deadline = self.client.deadline().expect("something is waited for");
            assert!(deadline <= self.now + TIMEOUT, "waited for longer than is allowed");
            self.now = self.now.max(deadline);
            self.step();
        }
        panic!("a silent server is waited for without end");
    }

    /// A range cannot be made zeros.
    fn refuse(&mut self, zero: Zero) {
        self.client.zeroed(zero, Err(Fault::new(Code::Io, "no space")), self.now);
    }

    fn answer(&mut self, job: Job, draw: &mut Draw<'_>) {
        match job {
            Job::Fetch(fetch) if draw.once_in(12) => {
                let link = fetch.link;
                self.jobs.push(Job::Fetch(fetch));
                self.lose(link, draw);
            }
            Job::Fetch(Fetch { link, slot, chunk }) => {
                let mut outcomes = Vec::new();
                for piece in &chunk.pieces {
                    let rotten = self.rotten == Some(piece.file) && piece.extent.offset == 0;
                    let copy = self.files.get_mut(&piece.file).expect("one of ours");
                    outcomes.push(match draw.up_to(7) {
                        drawn if rotten || drawn == 6 => {
                            let tries = copy.bad.entry(piece.extent.offset).or_default();
                            *tries += 1;
                            assert!(*tries <= CHUNK_ATTEMPTS_MAX, "tried without end");
                            PieceOutcome::Mismatch
                        }
                        7 => PieceOutcome::Failed(draw.fault()),
                        _ => {
                            copy.land(piece.extent, &piece.digests);
                            PieceOutcome::Verified
                        }
                    });
                }
                self.client.fetched(link, slot, Outcome::Landed(outcomes), self.now);
            }
            Job::Zero(zero) => {
                let answer = draw.result(digests(zero.extent));
                if let Ok(digests) = &answer {
                    let copy = self.files.get_mut(&zero.file).expect("one of ours");
                    copy.land(zero.extent, digests);
                }
                self.client.zeroed(zero, answer, self.now);
            }
            Job::Drop(link) if self.links.contains(&link) => self.lose(link, draw),
            Job::Drop(_) => {}
        }
    }

    fn drain(&mut self) {
        for count in 0.. {
            assert!(count < EFFECTS_MAX, "one event leads to work without end");
            let Some(effect) = self.client.next_effect() else { break };
            match effect {
                ClientEffect::Send(request) => self.send(&request),
                ClientEffect::Opened { file, info, .. } => self.opened(file, &info),
                ClientEffect::Fetch(fetch) => {
                    self.check(&fetch);
                    self.jobs.push(Job::Fetch(fetch));
                }
                ClientEffect::Zero(zero) => {
                    self.check_zero(&zero);
                    self.jobs.push(Job::Zero(zero));
                }
                ClientEffect::DropLink { link } => self.jobs.push(Job::Drop(link)),
                ClientEffect::Restart { file } => {
                    self.over(file);
                    self.files.insert(file, Copy::default());
                }
                ClientEffect::Finished { file, root, .. } => {
                    let copy = self.over(file);
                    let size = copy.size.expect("it was opened");
                    assert_eq!(copy.landed.bytes(), size, "finished before all of it is there");
                    let expected = copy.root.as_ref().and_then(RootBuilder::finish);
                    assert_eq!(root, expected, "the root of something else");
                }
                ClientEffect::Failed { file, .. } => drop(self.over(file).size),
                // The driver ends the session here, and looks at nothing behind it.
                ClientEffect::Broken(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    fn send(&mut self, request: &ReadRequest) {
        let given_back = match request {
            ReadRequest::Release { windows } => windows.clone(),
            ReadRequest::Refresh { window, .. } => vec![*window],
            _ => Vec::new(),
        };
        let in_use = |job: &Job| match job {
            Job::Fetch(fetch) => given_back.contains(&fetch.chunk.window),
            Job::Zero(zero) => given_back.contains(&zero.window),
            Job::Drop(_) => false,
        };
        assert!(!self.jobs.iter().any(in_use), "gave back what it still reads");
        self.server.asked(request);
    }

    /// A file has a size, and of this version of it this is here.
    fn opened(&mut self, file: FileId, info: &FileInfo) {
        assert!(info.size <= FILE_BYTES_MAX, "longer than a file can be");
        let copy = self.live(file);
        copy.size = Some(info.size);
        copy.root = Some(RootBuilder::new(info.size));
        if info.size == 0 {
            copy.root.as_mut().expect("just made").insert(0, Digest::of(b""));
        }
        let same = (info.size, info.mtime_ns, info.version) == (PARTLY_HAD, 0, Some(1));
        if std::mem::take(&mut copy.had) && same {
            copy.landed = match file {
                PART => {
                    let mut all = ExtentSet::whole(info.size);
                    all.take(SOME);
                    all
                }
                _ => {
                    copy.root = Some(have().root);
                    ExtentSet::from_iter([SOME])
                }
            };
        }
        let mut wanted = ExtentSet::whole(info.size);
        copy.landed.iter().for_each(|extent| drop(wanted.take_common(extent)));
        self.server.opened(file, info.size, wanted);
    }

    /// A file that was asked for, and did not end yet.
    fn live(&mut self, file: FileId) -> &mut Copy {
        let copy = self.files.get_mut(&file).expect("a file that was asked for");
        assert!(!copy.over, "a file that has ended");
        copy
    }

    /// A file ends, and nothing is written to it any more.
    fn over(&mut self, file: FileId) -> &mut Copy {
        assert!(!self.jobs.iter().any(|job| job.is_of(file)), "ended while it is written to");
        self.server.ended(file);
        let copy = self.live(file);
        copy.over = true;
        copy
    }
}
