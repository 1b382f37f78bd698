//! The reading client with a server that says anything: what it finishes must
//! have been read and verified whole, and it may touch nothing outside its files.

use super::draw::Draw;
use super::{EFFECTS_MAX, STEPS_MAX, messages};
use std::collections::HashMap;
use std::time::Duration;
use verbatim_proto::message::{FileId, LinkId};
use verbatim_proto::read::{
    ClientEffect, ClientOptions, Fetch, Outcome, PieceOutcome, ReadClient, Zero,
};
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, GRAIN_BYTES};
use verbatim_proto::{Digest, ExtentSet, WirePath};

const FILES: u32 = 4;

enum Job {
    Fetch(Fetch),
    Zero(Zero),
    Drop(LinkId),
}

#[derive(Default)]
struct Copy {
    size: Option<u64>,
    landed: ExtentSet,
    over: bool,
}

struct Driver {
    client: ReadClient,
    now: Duration,
    jobs: Vec<Job>,
    files: HashMap<FileId, Copy>,
    broken: bool,
}

pub fn run(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let options = ClientOptions {
        chunk_bytes: CHUNK_BYTES_DEFAULT,
        slots_per_link: 2,
        timeout: Duration::from_secs(10),
        describe: false,
    };
    let mut driver = Driver {
        client: ReadClient::new(options),
        now: Duration::ZERO,
        jobs: Vec::new(),
        files: HashMap::new(),
        broken: false,
    };
    for number in 0..FILES {
        let path = WirePath::parse(b"export/file").expect("plain");
        driver.client.open(FileId(number), path, None, driver.now);
        driver.files.insert(FileId(number), Copy::default());
    }
    for index in 0..2 {
        driver.client.link_up(LinkId { index, epoch: 0 });
    }
    for _ in 0..STEPS_MAX {
        if draw.is_over() || driver.broken {
            return;
        }
        match draw.up_to(7) {
            0..=3 => driver.client.reply(messages::read_reply(&mut draw), driver.now),
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
}

impl Driver {
    fn answer(&mut self, job: Job, draw: &mut Draw<'_>) {
        match job {
            Job::Fetch(Fetch { link, slot, .. }) if draw.once_in(12) => {
                self.client.fetched(link, slot, Outcome::LinkLost, self.now);
                self.client.link_down(link, self.now);
            }
            Job::Fetch(Fetch { link, slot, chunk }) => {
                let mut outcomes = Vec::new();
                for piece in &chunk.pieces {
                    outcomes.push(match draw.up_to(7) {
                        0 => PieceOutcome::Mismatch,
                        1 => PieceOutcome::Failed(draw.fault()),
                        _ => {
                            let copy = self.files.get_mut(&piece.file).expect("one of ours");
                            copy.landed.insert(piece.extent);
                            PieceOutcome::Verified
                        }
                    });
                }
                self.client.fetched(link, slot, Outcome::Landed(outcomes), self.now);
            }
            Job::Zero(zero) => {
                let grains = zero.extent.len.div_ceil(GRAIN_BYTES) as usize;
                let answer = draw.result(vec![Digest([9; 32]); grains]);
                if answer.is_ok() {
                    let copy = self.files.get_mut(&zero.file).expect("one of ours");
                    copy.landed.insert(zero.extent);
                }
                self.client.zeroed(zero, answer, self.now);
            }
            Job::Drop(link) => self.client.link_down(link, self.now),
        }
    }

    fn drain(&mut self) {
        for count in 0.. {
            assert!(count < EFFECTS_MAX, "one event leads to work without end");
            let Some(effect) = self.client.next_effect() else { break };
            match effect {
                ClientEffect::Send(_) => {}
                ClientEffect::Opened { file, info } => self.live(file).size = Some(info.size),
                ClientEffect::Fetch(fetch) => {
                    self.check(&fetch);
                    self.jobs.push(Job::Fetch(fetch));
                }
                ClientEffect::Zero(zero) => {
                    let size = self.live(zero.file).size.expect("it was opened");
                    assert!(zero.extent.fits(size), "zeros outside a file");
                    self.jobs.push(Job::Zero(zero));
                }
                ClientEffect::DropLink { link } => self.jobs.push(Job::Drop(link)),
                ClientEffect::Restart { file } => *self.live(file) = Copy::default(),
                ClientEffect::Finished { file, .. } => {
                    let copy = self.live(file);
                    let size = copy.size.expect("it was opened");
                    assert_eq!(copy.landed.bytes(), size, "finished before all of it is there");
                    copy.over = true;
                }
                ClientEffect::Failed { file, .. } => self.live(file).over = true,
                // The driver ends the session here, and looks at nothing behind it.
                ClientEffect::Broken(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    /// A file that was asked for, and did not end yet.
    fn live(&mut self, file: FileId) -> &mut Copy {
        let copy = self.files.get_mut(&file).expect("a file that was asked for");
        assert!(!copy.over, "a file that has ended");
        copy
    }

    fn check(&mut self, fetch: &Fetch) {
        let total: u64 = fetch.chunk.pieces.iter().map(|piece| piece.extent.len).sum();
        assert_eq!(total, u64::from(fetch.chunk.bytes));
        assert!(fetch.chunk.bytes <= CHUNK_BYTES_DEFAULT, "more than a slot holds");
        for piece in &fetch.chunk.pieces {
            let size = self.live(piece.file).size.expect("it was opened");
            assert!(piece.extent.fits(size), "outside its file");
            let grains = piece.extent.len.div_ceil(GRAIN_BYTES) as usize;
            assert_eq!(piece.digests.len(), grains, "every grain has a digest to be checked by");
        }
    }
}
