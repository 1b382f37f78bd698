//! Chunks that are being read, by the link and the slot that each is read into, with their
//! deadlines. The driver says when a read ends; the chunks of a dead link are read on another.

use super::Chunk;
use crate::LinkId;
use std::collections::HashMap;
use std::time::Duration;

struct Flight {
    chunk: Chunk,
    deadline: Duration,
}

/// The chunks in flight.
#[derive(Default)]
pub(super) struct Flights {
    all: HashMap<(LinkId, u16), Flight>,
}

impl Flights {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn begin(&mut self, link: LinkId, slot: u16, chunk: Chunk, deadline: Duration) {
        self.all.insert((link, slot), Flight { chunk, deadline });
    }

    /// The read of a slot ended: its chunk, unless its link was lost before.
    pub fn end(&mut self, link: LinkId, slot: u16) -> Option<Chunk> {
        self.all.remove(&(link, slot)).map(|flight| flight.chunk)
    }

    /// Takes the chunks of a dead link.
    pub fn take_lost(&mut self, link: LinkId) -> impl Iterator<Item = Chunk> + '_ {
        let lost = self.all.extract_if(move |(on, _), _| *on == link);
        lost.map(|(_, flight)| flight.chunk)
    }

    /// The first deadline on links that are not being dropped.
    pub fn deadline(&self, is_dropping: impl Fn(LinkId) -> bool) -> Option<Duration> {
        let waiting = self.all.iter().filter(|((link, _), _)| !is_dropping(*link));
        waiting.map(|(_, flight)| flight.deadline).min()
    }

    /// The links with a chunk that is late; one may come more than once.
    pub fn late(&self, now: Duration) -> impl Iterator<Item = LinkId> + '_ {
        let late = self.all.iter().filter(move |(_, flight)| flight.deadline <= now);
        late.map(|((link, _), _)| *link)
    }
}
