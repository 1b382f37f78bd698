//! The reading server with a client that says anything. Its driver is honest:
//! it answers what it is asked, once, in any order. No range is lent twice unless
//! it was asked for again, nothing that is lent is taken back, and nothing is done
//! with a file that is closed. In the end the client is honest: all it wants of
//! each file comes, and nothing is left behind.

mod likely;

use super::draw::{Draw, is_whole};
use super::{EFFECTS_MAX, STEPS_MAX, messages};
use likely::Client;
use std::collections::{HashMap, HashSet};
use verbatim_proto::message::{
    FileId, FileInfo, Lease, OpenFile, ReadReply, ReadRequest, WindowId,
};
use verbatim_proto::read::{Prepare, Prepared, ReadServer, ServerEffect};
use verbatim_proto::units::{GRAIN_BYTES, OPEN_FILES_MAX, PACK_BYTES_MAX, PACK_FILES_MAX};
use verbatim_proto::units::{PACKED_FILE_BYTES_MAX, WINDOW_BYTES, WINDOWS_MAX};
use verbatim_proto::{Digest, Extent, ExtentSet, Region, Survey};

/// The longest file that an honest end has lent to its end.
const SIZE_MAX: u64 = 64 * GRAIN_BYTES;

/// What an honest end takes at most: each file has some windows and a few answers.
const HONEST_STEPS_MAX: usize = 16384;

/// Something the machine waits for.
enum Job {
    Open(Vec<OpenFile>),
    Prepare(Prepare),
    FindHoles(FileId, u64),
    Close(Vec<(FileId, bool)>),
}

impl Job {
    /// Whether it reads a file.
    fn is_of(&self, file: FileId) -> bool {
        match self {
            Self::Prepare(prepare) => prepare.pieces.iter().any(|(of, _)| *of == file),
            Self::FindHoles(of, _) => *of == file,
            Self::Open(_) | Self::Close(_) => false,
        }
    }
}

/// A file that is open.
struct Source {
    size: u64,
    /// What the client has, or was named, lent, or told that it cannot be had.
    told: ExtentSet,
    /// The driver was told to close it.
    closing: bool,
}

#[derive(Default)]
struct Driver {
    server: ReadServer,
    client: Client,
    jobs: Vec<Job>,
    files: HashMap<FileId, Source>,
    /// Windows that were made and not taken back.
    windows: HashSet<WindowId>,
    /// Windows of which no piece could be had.
    failed: HashSet<WindowId>,
    /// What each of them will say.
    made: HashMap<WindowId, Vec<(FileId, Extent, Vec<Digest>)>>,
    /// A window was put off: none is asked for until the driver says so.
    paused: bool,
    honest: bool,
    broken: bool,
}

pub fn run(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut driver = Driver::default();
    let (wild, few) = (draw.wildness(), draw.once_in(4));
    if few {
        driver.server.lease_at_most(2);
    }
    for _ in 0..STEPS_MAX {
        if draw.is_over() || driver.broken {
            break;
        }
        match draw.up_to(7) {
            0..=2 if draw.once_in(wild) => driver.ask(messages::read_request(&mut draw)),
            0..=2 => {
                if let Some(request) = driver.client.likely(&mut draw) {
                    driver.ask(request);
                }
            }
            3 => driver.lease_windows_of(WINDOW_BYTES >> draw.up_to(6)),
            _ => {
                if let Some(job) = draw.take(&mut driver.jobs) {
                    driver.answer(job, &mut draw);
                }
            }
        }
        driver.drain();
    }
    driver.end_honestly(&mut draw);
}

impl Driver {
    /// The client asks for something. What it may not ask for ends the session.
    fn ask(&mut self, request: ReadRequest) {
        let wrong = self.client.asks(&request);
        if let ReadRequest::Refresh { pieces, .. } = &request {
            for (file, extent) in pieces {
                let source = self.files.get_mut(file).filter(|source| !source.closing);
                if let Some(source) = source {
                    source.told.take_common(*extent);
                }
            }
        }
        self.server.request(request);
        self.drain();
        assert_eq!(wrong, self.broken, "asked for what may not be, or may be");
    }

    fn lease_windows_of(&mut self, bytes: u64) {
        self.paused = false;
        self.server.lease_windows_of(bytes);
    }

    /// The client wants all of every file, gives back what it is lent, and closes all.
    fn end_honestly(mut self, draw: &mut Draw<'_>) {
        if self.broken {
            return;
        }
        self.honest = true;
        self.lease_windows_of(WINDOW_BYTES);
        self.drain();
        for _ in 0..HONEST_STEPS_MAX {
            let job = self.jobs.pop();
            if let Some(job) = job {
                self.answer(job, draw);
            } else if let Some(request) = self.client.gives_back() {
                self.ask(request);
            } else {
                return self.close_all(draw);
            }
            self.drain();
            let long = self.files.iter().filter(|(_, source)| source.size > SIZE_MAX);
            let mut long = long.map(|(file, _)| *file).filter(|file| self.client.has_open(*file));
            if let Some(file) = long.next() {
                self.ask(ReadRequest::Close { files: vec![file], describe: false });
            }
        }
        panic!("there is no end of windows");
    }

    /// Nothing more comes: all of each file was lent, and when all are closed nothing is left.
    fn close_all(mut self, draw: &mut Draw<'_>) {
        for (file, source) in &self.files {
            let open = self.client.has_open(*file);
            assert!(!open || source.told.bytes() == source.size, "some of it was never lent");
        }
        while let Some(request) = self.client.closes() {
            self.ask(request);
        }
        while let Some(job) = self.jobs.pop() {
            self.answer(job, draw);
            self.drain();
        }
        assert!(self.server.is_idle() && self.windows.is_empty(), "something is left behind");
    }

    fn answer(&mut self, job: Job, draw: &mut Draw<'_>) {
        match job {
            Job::Open(files) => {
                let answers = files.into_iter().map(|open| self.open(open, draw)).collect();
                self.server.opened(answers);
            }
            Job::Prepare(prepare) if !self.honest && draw.once_in(8) => {
                for (file, extent) in &prepare.pieces {
                    self.source(*file).told.take(*extent);
                }
                self.paused = true;
                self.server.put_off(prepare);
            }
            Job::Prepare(prepare) => self.prepare(&prepare, draw),
            Job::FindHoles(file, from) => {
                let size = self.source(file).size;
                let survey = survey(draw, from, size);
                self.server.found(file, survey);
            }
            Job::Close(files) => {
                let answers = files.iter().map(|(file, _)| (*file, draw.result(None))).collect();
                files.iter().for_each(|(file, _)| drop(self.files.remove(file)));
                self.server.closed(answers);
            }
        }
    }

    fn open(
        &mut self,
        open: OpenFile,
        draw: &mut Draw<'_>,
    ) -> (FileId, Result<(FileInfo, Survey), verbatim_proto::Fault>) {
        let info = draw.info();
        // A file system has no longer ones.
        let info = FileInfo { size: info.size.min(i64::MAX as u64), ..info };
        let survey = survey(draw, 0, info.size);
        let answer = draw.result((info, survey));
        if answer.is_ok() {
            let mut unsaid = ExtentSet::whole(info.size);
            for extent in open.have.iter().filter(|extent| is_whole(**extent, info.size)) {
                unsaid.take(*extent);
            }
            let mut told = ExtentSet::whole(info.size);
            for extent in unsaid.iter() {
                told.take(extent);
            }
            let source = Source { size: info.size, told, closing: false };
            assert!(self.files.insert(open.file, source).is_none(), "opened twice");
        }
        (open.file, answer)
    }

    fn prepare(&mut self, prepare: &Prepare, draw: &mut Draw<'_>) {
        let (mut pieces, mut made) = (Vec::new(), Vec::new());
        for (file, extent) in &prepare.pieces {
            let digests = vec![draw.digest(); extent.len.div_ceil(GRAIN_BYTES) as usize];
            let answer = draw.result(digests);
            if let Ok(digests) = &answer {
                made.push((*file, *extent, digests.clone()));
            }
            pieces.push(answer);
        }
        let region = (!made.is_empty()).then(|| draw.region());
        match region {
            Some(_) => self.windows.insert(prepare.window),
            None => self.failed.insert(prepare.window),
        };
        self.made.insert(prepare.window, made);
        let rails = if draw.once_in(4) { vec![Region { key: 9, base: 0 }] } else { Vec::new() };
        self.server.prepared(prepare.window, Prepared { region, rails, pieces });
    }

    fn drain(&mut self) {
        for count in 0.. {
            if self.broken {
                return;
            }
            assert!(count < EFFECTS_MAX, "one event leads to work without end");
            let Some(effect) = self.server.next_effect() else { break };
            match effect {
                ServerEffect::Send(reply) => self.send(&reply),
                ServerEffect::Open(files) => self.jobs.push(Job::Open(files)),
                ServerEffect::Prepare(prepare) => {
                    self.check(&prepare);
                    self.jobs.push(Job::Prepare(prepare));
                }
                ServerEffect::FindHoles { file, from } => {
                    assert!(from < self.source(file).size, "looks for holes outside a file");
                    self.jobs.push(Job::FindHoles(file, from));
                }
                ServerEffect::Retire(window) => {
                    assert!(!self.client.lent.contains_key(&window), "taken back while it is lent");
                    let had = self.windows.remove(&window) || self.failed.remove(&window);
                    assert!(had, "taken back what is not there");
                }
                ServerEffect::Close(files) => {
                    for (file, _) in &files {
                        let busy = self.jobs.iter().any(|job| job.is_of(*file));
                        assert!(!busy, "closed while it is read");
                        self.source(*file).closing = true;
                    }
                    self.jobs.push(Job::Close(files));
                }
                // The driver ends the session here, and looks at nothing behind it.
                ServerEffect::Broken(_) => self.broken = true,
            }
        }
        assert!(self.server.window_count() <= WINDOWS_MAX, "more windows than are allowed");
        assert!(self.windows.len() <= WINDOWS_MAX, "more memory than is allowed");
        assert!(self.jobs.len() <= OPEN_FILES_MAX + WINDOWS_MAX, "work piles up");
    }

    /// An open file, of which the driver may still read.
    fn source(&mut self, file: FileId) -> &mut Source {
        let source = self.files.get_mut(&file).expect("a file that is open");
        assert!(!source.closing, "a file that is being closed");
        source
    }

    fn send(&mut self, reply: &ReadReply) {
        match reply {
            ReadReply::Lease(Lease { window, pieces, .. }) => {
                assert!(self.windows.contains(window), "leased what was not made");
                let made = self.made.remove(window).expect("it is leased once");
                let said = pieces.iter().map(|it| (it.file, it.extent, it.digests.clone()));
                assert_eq!(said.collect::<Vec<_>>(), made, "something else than was made");
            }
            ReadReply::Holes(list) => {
                let source = self.source(list.holes.file);
                for hole in &list.holes.extents {
                    assert!(hole.fits(source.size) && hole.len > 0, "a hole outside its file");
                    assert!(!source.told.intersects(*hole), "a hole that was lent, or is had");
                    source.told.insert(*hole);
                }
            }
            _ => {}
        }
        self.client.hears(reply);
    }

    /// Nothing outside a file is read for anybody, nor what was lent before, and no window is
    /// longer than allowed.
    fn check(&mut self, prepare: &Prepare) {
        assert!(!self.paused, "asked for while windows are put off");
        let mut total = 0;
        for (file, extent) in &prepare.pieces {
            let source = self.source(*file);
            let size = source.size;
            assert!(is_whole(*extent, size), "{extent:?} of {size}: nobody can hash that");
            assert!(!source.told.intersects(*extent), "lent twice, or had");
            source.told.insert(*extent);
            let small = *extent == Extent::new(0, size) && size <= PACKED_FILE_BYTES_MAX;
            assert!(small || !prepare.packed, "packed, and not a small file");
            total += extent.len;
        }
        let most = if prepare.packed { u64::from(PACK_BYTES_MAX) } else { WINDOW_BYTES };
        assert!(total <= most, "a window of {total} bytes");
        assert!((1..=PACK_FILES_MAX).contains(&prepare.pieces.len()), "too many pieces");
    }
}

/// What an honest look for holes finds.
fn survey(draw: &mut Draw<'_>, from: u64, size: u64) -> Survey {
    let grains_left = size.saturating_sub(from) / GRAIN_BYTES;
    if grains_left < 2 || draw.once_in(2) {
        return Survey::dense(size);
    }
    let start = from.next_multiple_of(GRAIN_BYTES) + draw.up_to(1) * GRAIN_BYTES;
    let hole = Extent { offset: start, len: GRAIN_BYTES };
    if !hole.fits(size) {
        return Survey::dense(size);
    }
    let until = start.saturating_add(2 * GRAIN_BYTES).min(size);
    Survey { holes: vec![hole], until }
}
