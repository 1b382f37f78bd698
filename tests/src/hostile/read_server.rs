//! The reading server with a client that says anything. Its driver is honest:
//! it answers what it is asked, once, in any order.

use super::draw::Draw;
use super::{EFFECTS_MAX, STEPS_MAX, messages};
use std::collections::{HashMap, HashSet};
use verbatim_proto::message::{FileId, OpenFile, ReadReply, WindowId};
use verbatim_proto::read::{Prepare, Prepared, ReadServer, ServerEffect};
use verbatim_proto::units::{GRAIN_BYTES, OPEN_FILES_MAX, WINDOW_BYTES, WINDOWS_MAX};
use verbatim_proto::{Extent, Survey};

/// Something the machine waits for.
enum Job {
    Open(Vec<OpenFile>),
    Prepare(Prepare),
    FindHoles(FileId, u64),
    Close(Vec<(FileId, bool)>),
}

#[derive(Default)]
struct Driver {
    server: ReadServer,
    jobs: Vec<Job>,
    sizes: HashMap<FileId, u64>,
    /// Windows that were made and not taken back.
    windows: HashSet<WindowId>,
    /// Whether the session is over.
    broken: bool,
}

pub fn run(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut driver = Driver::default();
    for _ in 0..STEPS_MAX {
        if draw.is_over() || driver.broken {
            return;
        }
        if draw.once_in(2) {
            driver.server.request(messages::read_request(&mut draw));
        } else if let Some(job) = draw.take(&mut driver.jobs) {
            driver.answer(job, &mut draw);
        }
        driver.drain();
    }
}

impl Driver {
    fn answer(&mut self, job: Job, draw: &mut Draw<'_>) {
        match job {
            Job::Open(files) => {
                let mut answers = Vec::new();
                for OpenFile { file, .. } in files {
                    let info = draw.info();
                    // A file system has no longer ones.
                    let info = verbatim_proto::message::FileInfo {
                        size: info.size.min(i64::MAX as u64),
                        ..info
                    };
                    self.sizes.insert(file, info.size);
                    let survey = survey(draw, 0, info.size);
                    answers.push((file, draw.result((info, survey))));
                }
                self.server.opened(answers);
            }
            Job::Prepare(prepare) if draw.once_in(8) => {
                self.server.put_off(prepare);
                self.server.lease_windows_of(WINDOW_BYTES >> draw.up_to(4));
            }
            Job::Prepare(prepare) => {
                let mut pieces = Vec::new();
                for (_, extent) in &prepare.pieces {
                    let digests = vec![draw.digest(); extent.len.div_ceil(GRAIN_BYTES) as usize];
                    pieces.push(draw.result(digests));
                }
                let region = pieces.iter().any(Result::is_ok).then(|| draw.region());
                if region.is_some() {
                    self.windows.insert(prepare.window);
                }
                self.server.prepared(prepare.window, Prepared { region, rails: vec![], pieces });
            }
            Job::FindHoles(file, from) => {
                let size = self.sizes[&file];
                let survey = survey(draw, from, size);
                self.server.found(file, survey);
            }
            Job::Close(files) => {
                let answers = files.iter().map(|(file, _)| (*file, draw.result(None))).collect();
                self.server.closed(answers);
            }
        }
    }

    fn drain(&mut self) {
        for count in 0.. {
            assert!(count < EFFECTS_MAX, "one event leads to work without end");
            let Some(effect) = self.server.next_effect() else { break };
            match effect {
                ServerEffect::Send(ReadReply::Lease(lease)) => {
                    assert!(self.windows.contains(&lease.window), "leased what was not made");
                }
                ServerEffect::Send(_) => {}
                ServerEffect::Open(files) => self.jobs.push(Job::Open(files)),
                ServerEffect::Prepare(prepare) => {
                    self.check(&prepare);
                    self.jobs.push(Job::Prepare(prepare));
                }
                ServerEffect::FindHoles { file, from } => {
                    self.jobs.push(Job::FindHoles(file, from));
                }
                // Lists of holes are retired too, and have no memory.
                ServerEffect::Retire(window) => drop(self.windows.remove(&window)),
                ServerEffect::Close(files) => self.jobs.push(Job::Close(files)),
                // The driver ends the session here, and looks at nothing behind it.
                ServerEffect::Broken(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
        assert!(self.server.window_count() <= WINDOWS_MAX, "more windows than are allowed");
        assert!(self.windows.len() <= WINDOWS_MAX, "more memory than is allowed");
        assert!(self.jobs.len() <= OPEN_FILES_MAX + WINDOWS_MAX, "work piles up");
    }

    /// Nothing outside a file is read for anybody, and no window is longer than allowed.
    fn check(&self, prepare: &Prepare) {
        let mut total = 0;
        for (file, extent) in &prepare.pieces {
            assert!(extent.fits(self.sizes[file]), "{extent:?} of {:?}", self.sizes[file]);
            total += extent.len;
        }
        assert!(total <= WINDOW_BYTES, "a window of {total} bytes");
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
