//! The writing client with a server that says anything: it sends nothing but
//! its files, and believes in no file that it did not send whole.

use super::draw::Draw;
use super::{EFFECTS_MAX, STEPS_MAX, messages};
use std::collections::HashMap;
use std::time::Duration;
use verbatim_proto::message::{FileId, FileInfo, LinkId, WriteRequest};
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, GRAIN_BYTES};
use verbatim_proto::write::{ClientEffect, ClientOptions, Post, Posted, WriteClient};
use verbatim_proto::{Digest, Extent, Survey, WirePath};

/// The files, and their sizes in grains.
const GRAINS: [u64; 4] = [0, 1, 3, 9];

enum Job {
    Post(Post),
    Hash(FileId, Extent),
    HashZeros(FileId, Extent),
    HashOffer(FileId, Extent),
    Check(FileId, Digest),
    Drop(LinkId),
    Restart(FileId),
}

struct Driver {
    client: WriteClient,
    now: Duration,
    jobs: Vec<Job>,
    /// Whether a commit was asked for.
    files: HashMap<FileId, bool>,
    broken: bool,
}

pub fn run(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let timeout = Duration::from_secs(10);
    let options = ClientOptions { chunk_bytes: CHUNK_BYTES_DEFAULT, timeout };
    let mut driver = Driver {
        client: WriteClient::new(options),
        now: Duration::ZERO,
        jobs: Vec::new(),
        files: HashMap::new(),
        broken: false,
    };
    (0..GRAINS.len() as u32).for_each(|number| driver.create(FileId(number)));
    for index in 0..2 {
        driver.client.link_up(LinkId { index, epoch: 0 });
    }
    for _ in 0..STEPS_MAX {
        if draw.is_over() || driver.broken {
            return;
        }
        match draw.up_to(7) {
            0..=3 => driver.client.reply(messages::write_reply(&mut draw), driver.now),
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
        self.files.insert(file, false);
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
                let lost = posted == Posted::LinkLost;
                self.client.posted(post.grant.tag, posted, self.now);
                if lost {
                    self.client.link_down(post.grant.link, self.now);
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
                ClientEffect::Send(WriteRequest::Commit { files }) => {
                    for file in files {
                        *self.files.get_mut(&file.file).expect("one of ours") = true;
                    }
                }
                ClientEffect::Send(_) | ClientEffect::Stored { .. } => {}
                ClientEffect::Post(post) => {
                    self.check(&post);
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
                }
                ClientEffect::FindHoles { .. } => panic!("the files have no holes"),
                ClientEffect::CheckSource { file, root } => self.jobs.push(Job::Check(file, root)),
                ClientEffect::DropLink { link } => self.jobs.push(Job::Drop(link)),
                ClientEffect::Restart { file } => self.jobs.push(Job::Restart(file)),
                ClientEffect::Finished { file, .. } => {
                    let asked = self.files.remove(&file).expect("a file that has not ended");
                    assert!(asked, "finished, and its commit was never asked for");
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
        for (file, extent) in &post.pieces {
            assert!(self.files.contains_key(file), "of a file that has ended");
            assert!(extent.fits(size_of(*file)), "outside its file");
        }
    }
}

fn digests(extent: Extent) -> Vec<Digest> {
    vec![Digest([1; 32]); extent.len.div_ceil(GRAIN_BYTES) as usize]
}
