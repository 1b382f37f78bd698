//! Spots: a chunk of a file that takes them is written to where it stays. The
//! grant it would use is turned into a spot first; where the server cannot, its
//! slot does, and the file is not asked for again. A spot that nothing was written
//! to is returned before its grant is used for something else.

use super::WriteClient;
use crate::message::{Grant, Spot, SpotReply, Tag};
use crate::{Extent, Fault, FileId};
use std::time::Duration;

/// Whether the grant of a flight is for a spot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// It is for its slot.
    Not,
    /// The server was asked.
    Yes,
    /// The server made it.
    Made,
}

impl WriteClient {
    /// Bytes that were written to where they stay, and matched.
    pub fn in_place_bytes(&self) -> u64 {
        self.in_place_bytes
    }

    /// Asks for a spot for what is to be sent, where its file takes them.
    pub(super) fn ask(&mut self, tag: Tag, pieces: &[(FileId, Extent)]) -> Asked {
        let &[(file, extent)] = pieces else { return Asked::Not };
        if !self.files.get(&file).is_some_and(|file| file.takes_spots) {
            return Asked::Not;
        }
        self.to_ask.push(Spot { tag, file, extent });
        Asked::Yes
    }

    pub(super) fn spots(&mut self, reply: SpotReply, now: Duration) -> Result<(), Fault> {
        match reply {
            SpotReply::Taken(files) => {
                for id in files {
                    if let Some(file) = self.files.get_mut(&id) {
                        file.takes_spots = true;
                    }
                }
            }
            SpotReply::Made(spots) => {
                for (tag, answer) in spots {
                    // One that is gone was fenced meanwhile.
                    let Some(flight) = self.flights.get_mut(&tag) else { continue };
                    if flight.spot != Asked::Yes {
                        let text = "server made a spot that was not asked for";
                        return Err(Fault::new(crate::Code::Protocol, text));
                    }
                    flight.deadline = now + self.options.timeout;
                    let mut grant: Grant = flight.grant;
                    match answer {
                        Ok(region) => (flight.spot, grant.region) = (Asked::Made, region),
                        Err(_) => {
                            flight.spot = Asked::Not;
                            let id = flight.pieces[0].0;
                            if let Some(file) = self.files.get_mut(&id) {
                                file.takes_spots = false;
                            }
                        }
                    }
                    self.post(grant);
                }
            }
        }
        Ok(())
    }
}
