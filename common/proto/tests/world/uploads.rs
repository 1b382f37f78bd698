//! The world's server as uploads see it: temporary files, slots, what arrives in
//! them, and what takes its final name.

use super::content::{digests_of, grains, value_of};
use super::{Answers, Event, GARBAGE, World, fault, kept};
use verbatim_proto::message::{FileId, LinkId, Region, Tag, Verdict};
use verbatim_proto::units::CHUNK_BYTES_DEFAULT;
use verbatim_proto::write::{self, Posted, SlotId};
use verbatim_proto::{Code, Kept};

impl World {
    pub fn created(&mut self, answers: Answers) {
        let made = answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(id, _)| *id);
        let taking: Vec<FileId> = made.filter(|id| self.takes_spots(*id)).collect();
        self.write_server.takes_spots(taking);
        self.write_server.created(answers);
    }

    pub fn posted(&mut self, tag: Tag, link: LinkId, posted: Posted) {
        if !self.up.contains(&link) {
            // It may have been written all the same.
            if self.roll(2) == 0 {
                self.land(tag, link, true);
            }
            return self.write_client.posted(tag, Posted::LinkLost, self.now);
        }
        if matches!(posted, Posted::Unread(_)) {
            return self.write_client.posted(tag, posted, self.now);
        }
        self.land(tag, link, false);
        if !self.dead_on_server.contains(&link) {
            self.later(5, Event::Notified(link, tag));
            if self.chance(self.faults.duplicate_ppm) {
                self.later(50, Event::Notified(link, tag));
            }
        }
        self.write_client.posted(tag, posted, self.now);
    }

    pub fn provisioned(&mut self, link: LinkId) {
        let slots = (0..3).map(|_| {
            self.slot_of_link += 1;
            let region = Region { key: u64::from(self.slot_of_link), base: 0 };
            (SlotId(self.slot_of_link), region, CHUNK_BYTES_DEFAULT)
        });
        let slots = slots.collect();
        self.write_server.provisioned(link, slots);
    }

    pub fn committed(&mut self, files: Vec<(FileId, Kept)>) {
        let answers = files.into_iter().map(|(id, meta)| {
            assert_eq!(meta, kept(id), "committed with the metadata of another");
            self.check_no_spot(id);
            self.files[&id].landed_version(id);
            (id, Ok(()))
        });
        let answers = answers.collect();
        self.write_server.committed(answers);
    }

    /// The server may hear what was sent in time to store it as soon as it is notified.
    pub fn expect(&mut self, absorb: write::Absorb) {
        if self.roll(2) == 0 {
            assert!(self.expected.insert(absorb.tag, absorb).is_none(), "expected twice");
        }
    }

    pub fn notified(&mut self, link: LinkId, tag: Tag) {
        let Some(absorb) = self.expected.remove(&tag) else {
            return self.write_server.notified(link, tag);
        };
        let verdicts = self.judge(&absorb);
        self.write_server.absorbed(tag, verdicts);
        self.stored_at_once += 1;
    }

    /// A link is dead at the server, and nothing more is stored of it.
    pub fn killed(&mut self, link: LinkId) {
        self.dead_on_server.insert(link);
        self.expected.retain(|_, absorb| absorb.link != link);
        self.write_server.killed(link);
    }

    pub fn absorb(&mut self, absorb: write::Absorb) {
        let verdicts = self.judge(&absorb);
        self.later(10, Event::Absorbed(absorb, verdicts));
    }

    /// The server looks at what the slot holds and at what the client said it holds.
    fn judge(&mut self, absorb: &write::Absorb) -> Vec<Verdict> {
        let content = self.slot_content.remove(&absorb.tag).expect("notified without a write");
        let mut verdicts = Vec::new();
        for (piece, (id, extent, version, corrupt)) in absorb.pieces.iter().zip(content) {
            assert_eq!((piece.file, piece.extent), (id, extent), "the wrong chunk is judged");
            verdicts.push(if corrupt || piece.digests != digests_of(id, extent, version) {
                Verdict::Mismatch
            } else if self.chance(self.faults.refuse_ppm / 20) {
                Verdict::Failed(fault(Code::NoSpace))
            } else {
                let file = self.model(id);
                for grain in grains(extent) {
                    let before = file.landed.insert(grain, value_of(id, grain, version));
                    assert!(before.is_none_or(|before| before == GARBAGE), "stored twice");
                }
                Verdict::Stored
            });
        }
        verdicts
    }
}
