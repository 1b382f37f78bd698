//! Spots: ranges of temporary files that a client's device writes to, where the
//! configuration lets it, and the file is in memory or the device pages on demand.
//! Made by the worker of the link that asked, as mapping and registering take a while.
//!
//! Who may write when: from `make_spot` to `end_spot`, or until the worker that
//! verifies what landed has taken it back, which it does first. Where a device does
//! not let go, the session ends, and with it every queue pair that could write.

use super::Session;
use super::direct_range::{SpotEvent, Taking};
use super::end::{End, go_on_if};
use super::writing::Created;
use crate::rdma::registrations::{Offered, SessionDomain};
use crate::worker::{Command, SpotWish};
use std::collections::HashMap;
use std::sync::Arc;
use verbatim_proto::message::{FileId, LinkId, Spot, Tag};
use verbatim_proto::units::STREAM_BYTES_MAX;
use verbatim_proto::{Code, Fault};

/// The spots of a session.
#[derive(Default)]
pub(super) struct Spots {
    /// Whether the client has said that it knows them.
    known: bool,
    /// What takes each back.
    numbers: HashMap<Tag, u64>,
}

impl Spots {
    /// A link of the client says that it knows spots.
    pub fn knows(&mut self) {
        self.known = true;
    }

    /// Hands a spot over to whoever looks at what landed there.
    pub fn take(&mut self, tag: Tag, domain: &Arc<SessionDomain>) -> Taking {
        let number = self.numbers.remove(&tag).expect("what is in place has a spot");
        Taking::new(domain, number)
    }
}

/// Shorter files are not worth registering.
const FILE_BYTES_MIN: u64 = 1 << 20;

impl Session {
    /// Takes all spots back when the session ends. A link may live on for a moment: its client
    /// could write to a file that another session of it has found again by then, and verified.
    pub(super) fn leave_spots(&mut self) {
        let numbers = std::mem::take(&mut self.spots.numbers);
        let kept =
            numbers.values().filter(|&&number| !self.client.domain.take_back(number)).count();
        if kept > 0 {
            self.writing.targets.values().for_each(|landed| landed.target.discard());
        }
    }

    /// Tells the client which of these new files can be written into.
    pub(super) fn offer_spots(&mut self, answers: &[(FileId, Result<Created, Fault>)]) {
        if !self.spots.known || !self.client.shared.rdma.write_into_files {
            return;
        }
        // Pages of a file on a disk cannot be pinned, so its device must look for them.
        let on_demand = self.client.domain.pages_on_demand();
        let takes = |(id, answer): &(FileId, Result<Created, Fault>)| {
            let (landed, _) = answer.as_ref().ok()?;
            let size = *self.writing.sizes.get(id)?;
            let long = (FILE_BYTES_MIN..STREAM_BYTES_MAX).contains(&size);
            // Registering a range gives it all of its room, and a sparse file has only its data's.
            let takes = long && !landed.target.is_sparse();
            (takes && (landed.target.is_in_memory() || on_demand)).then_some(*id)
        };
        let files: Vec<FileId> = answers.iter().filter_map(takes).collect();
        if !files.is_empty() {
            self.writing.machine.takes_spots(files);
        }
    }

    pub(super) fn make_spot(&mut self, link: LinkId, spot: Spot) -> Result<(), End> {
        let (Some(rail), Some(landed)) =
            (self.links.rail_of(link), self.writing.targets.get(&spot.file))
        else {
            let fault = Fault::new(Code::NotFound, "the link is not of a device");
            self.writing.machine.spot_made(spot.tag, Err(fault));
            return Ok(());
        };
        let wish = SpotWish { spot, rail, target: landed.target.clone() };
        let (domain, session) = (self.client.domain.clone(), self.links.events());
        let (_, worker, _) = self.links.place_of(link);
        self.client.tell(worker, Command::MakeSpot { wish, domain, session })
    }

    pub(super) fn spot_event(&mut self, event: SpotEvent) -> Result<(), End> {
        match event {
            SpotEvent::Made(tag, answer) => self.spot_made(tag, answer),
            SpotEvent::Stuck => go_on_if(false)?,
        }
        Ok(())
    }

    fn spot_made(&mut self, tag: Tag, answer: Result<Offered, Fault>) {
        let answer = answer.map(|Offered { number, region, .. }| {
            self.spots.numbers.insert(tag, number);
            region
        });
        if let Err(fault) = &answer {
            tracing::debug!(session = self.client.id, cause = %fault, "a chunk lands in a slot");
        }
        self.writing.machine.spot_made(tag, answer);
    }

    /// Takes a spot back that nothing is to be written to any more.
    pub(super) fn end_spot(&mut self, tag: Tag) -> Result<(), End> {
        let taking = self.spots.take(tag, &self.client.domain);
        go_on_if(taking.take_back())
    }
}
