//! Chunks under way, each under the tag of its grant: posting, then awaiting a verdict. Those of a
//! dead link stay until it is fenced: a late write must find nothing.
//!
//! A chunk of a file that takes spots is written to where it stays: the grant it would use is
//! turned into a spot first; where the server cannot, its slot does, and the file is not asked for
//! again. A spot that nothing was written to is returned before its grant is used for something
//! else.

use super::links::Links;
use crate::message::{FileId, Grant, LinkId, Piece, Region, SentChunk, Tag};
use crate::{Code, Digest, Extent, Fault};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Whether the grant of a flight is for a spot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// It is for its slot.
    Not,
    /// The server was asked.
    Yes,
    /// The server made it.
    Made,
}

/// One chunk.
pub(super) struct Flight {
    grant: Grant,
    pieces: Vec<(FileId, Extent)>,
    /// The digests of each piece, once the chunk was sent.
    digests: Option<Vec<Vec<Digest>>>,
    spot: Asked,
    deadline: Duration,
}

impl Flight {
    /// A chunk to post: at once, or when the server has answered for its spot.
    pub fn new(
        grant: Grant,
        pieces: Vec<(FileId, Extent)>,
        asks_spot: bool,
        deadline: Duration,
    ) -> Self {
        let spot = if asks_spot { Asked::Yes } else { Asked::Not };
        Self { grant, pieces, digests: None, spot, deadline }
    }

    pub fn grant(&self) -> Grant {
        self.grant
    }

    pub fn pieces(&self) -> &[(FileId, Extent)] {
        &self.pieces
    }

    /// Whether it is written to its spot.
    pub fn is_in_place(&self) -> bool {
        self.spot == Asked::Made
    }

    /// The server made the spot, or could not: the grant to write to.
    pub fn spot_made(
        &mut self,
        answer: Option<Region>,
        deadline: Duration,
    ) -> Result<Grant, Fault> {
        if self.spot != Asked::Yes {
            return Err(protocol("server made a spot that was not asked for"));
        }
        self.spot = answer.map_or(Asked::Not, |_| Asked::Made);
        self.deadline = deadline;
        Ok(Grant { region: answer.unwrap_or(self.grant.region), ..self.grant })
    }
}

/// A chunk that the server judged, as it was sent.
pub(super) struct Judged {
    pub pieces: Vec<(FileId, Extent)>,
    pub digests: Vec<Vec<Digest>>,
    pub in_place: bool,
}

/// All chunks under way.
#[derive(Default)]
pub(super) struct Flights {
    all: HashMap<Tag, Flight>,
}

impl Flights {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn insert(&mut self, flight: Flight) {
        self.all.insert(flight.grant.tag, flight);
    }

    pub fn get_mut(&mut self, tag: Tag) -> Option<&mut Flight> {
        self.all.get_mut(&tag)
    }

    pub fn remove(&mut self, tag: Tag) -> Option<Flight> {
        self.all.remove(&tag)
    }

    /// The link that a chunk was written over, until the server has judged it.
    pub fn link_of(&self, tag: Tag) -> Option<LinkId> {
        self.all.get(&tag).map(|flight| flight.grant.link)
    }

    /// A chunk was written, with these digests: the message for the server. None where the tag is
    /// void.
    pub fn sent(
        &mut self,
        tag: Tag,
        digests: Vec<Vec<Digest>>,
        deadline: Duration,
    ) -> Option<SentChunk> {
        let flight = self.all.get_mut(&tag)?;
        let pieces = flight.pieces.iter().zip(&digests);
        let pieces = pieces.map(|(&(file, extent), digests)| {
            let digests = digests.clone();
            Piece { file, extent, digests }
        });
        let pieces = pieces.collect();
        flight.digests = Some(digests);
        flight.deadline = deadline;
        Some(SentChunk { tag, pieces })
    }

    /// The server judged a chunk, with so many verdicts.
    pub fn judged(&mut self, tag: Tag, verdicts: usize) -> Result<Judged, Fault> {
        let flight = self.all.remove(&tag);
        let flight = flight.ok_or_else(|| protocol("server judged a chunk that was not sent"))?;
        let in_place = flight.is_in_place();
        let Flight { pieces, digests, .. } = flight;
        let digests = digests.ok_or_else(|| protocol("server judged an unsent chunk"))?;
        if verdicts != pieces.len() {
            return Err(protocol("server judged another number of pieces than was sent"));
        }
        Ok(Judged { pieces, digests, in_place })
    }

    /// Takes all chunks of a link that was fenced: they are void.
    pub fn take_void(&mut self, link: LinkId) -> Vec<Flight> {
        let void = self.all.extract_if(|_, flight| flight.grant.link == link);
        void.map(|(_, flight)| flight).collect()
    }

    /// The first deadline on links that are not ending.
    pub fn deadline(&self, links: &Links) -> Option<Duration> {
        let waiting = self.all.values().filter(|flight| !links.is_ending(flight.grant.link));
        waiting.map(|flight| flight.deadline).min()
    }

    /// Whether all of them are on links that are ending.
    pub fn are_ending(&self, links: &Links) -> bool {
        self.all.values().all(|flight| links.is_ending(flight.grant.link))
    }

    /// The links with a chunk that is late.
    pub fn late(&self, now: Duration) -> HashSet<LinkId> {
        let late = self.all.values().filter(|flight| flight.deadline <= now);
        late.map(|flight| flight.grant.link).collect()
    }
}

fn protocol(text: &str) -> Fault {
    Fault::new(Code::Protocol, text)
}
