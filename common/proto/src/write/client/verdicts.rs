//! What the server says of chunks that were sent: stored, or to be sent again
//! until it is in vain.

use super::WriteClient;
use super::spots::Asked;
use crate::message::{Tag, Verdict};
use crate::units::CHUNK_ATTEMPTS_MAX;
use crate::write::types::ClientEffect;
use crate::{Code, Extent, Fault, FileId};

impl WriteClient {
    pub(super) fn judged(&mut self, tag: Tag, verdicts: Vec<Verdict>) -> Result<(), Fault> {
        let protocol = |text: &str| Fault::new(Code::Protocol, text);
        let flight = self.flights.remove(&tag);
        let flight = flight.ok_or_else(|| protocol("server judged a chunk that was not sent"))?;
        let digests = flight.digests.ok_or_else(|| protocol("server judged an unsent chunk"))?;
        if verdicts.len() != flight.pieces.len() {
            return Err(protocol("server judged another number of pieces than was sent"));
        }
        let in_place = flight.spot == Asked::Made;
        let pieces = flight.pieces.iter().zip(digests).zip(verdicts);
        for ((&(id, extent), digests), verdict) in pieces {
            match verdict {
                Verdict::Stored => {
                    self.in_place_bytes += u64::from(in_place) * extent.len;
                    let Some(file) = self.files.get_mut(&id) else { continue };
                    file.pending -= 1;
                    file.bad.remove(&extent.offset);
                    file.root.insert_run(extent.offset, &digests);
                    if file.stream {
                        self.effects.push_back(ClientEffect::Stored { file: id, extent });
                    }
                }
                Verdict::Mismatch => self.mismatched(id, extent),
                Verdict::Failed(fault) => {
                    self.requeue(vec![(id, extent)]);
                    self.fail(id, fault);
                }
            }
        }
        Ok(())
    }

    fn mismatched(&mut self, id: FileId, extent: Extent) {
        self.mismatches += 1;
        self.requeue(vec![(id, extent)]);
        let Some(file) = self.files.get_mut(&id) else { return };
        let tries = file.bad.entry(extent.offset).or_default();
        *tries += 1;
        if *tries >= CHUNK_ATTEMPTS_MAX {
            let text = format!(
                "{}: digest does not match at byte {} after {tries} tries",
                file.path, extent.offset
            );
            file.doom.get_or_insert(Fault::new(Code::Mismatch, text));
        }
    }
}
