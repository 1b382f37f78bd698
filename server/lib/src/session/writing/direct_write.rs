//! DirectWrites: ranges of temporary files that a client's device writes to, where the
//! configuration lets it, and the file is in memory or the device pages on demand.
//! Made by the worker of the link that asked, as mapping and registering take a while.
//!
//! Who may write when: from `DirectWrites::made` to `DirectWrites::end`, or until the worker that
//! verifies what landed has taken it back, which it does first. Where a device does
//! not let go, the session ends, and with it every queue pair that could write.

use crate::rdma::registrations::Offered;
use crate::session::client::Client;
use crate::session::end::{End, end_if_unreleased};
use crate::worker::chunk_store::DirectRange;
use std::collections::HashMap;
use verbatim_files::Target;
use verbatim_proto::Fault;
use verbatim_proto::message::{Region, Tag};
use verbatim_proto::units::STREAM_BYTES_MAX;

/// The spots of a session.
#[derive(Default)]
pub(super) struct DirectWrites {
    /// Whether the client has said that it knows them.
    enabled: bool,
    /// What takes each back.
    numbers: HashMap<Tag, u64>,
}

impl DirectWrites {
    /// A link of the client says that it knows spots.
    pub fn enable(&mut self) {
        self.enabled = true;
    }

    /// Whether files are offered to the client to be written into: it knows how, and the
    /// configuration allows it.
    pub fn may_offer(&self, client: &Client) -> bool {
        self.enabled && client.services.rdma.write_into_files
    }

    /// Hands a spot over to the worker that verifies what landed there.
    pub fn take(&mut self, client: &Client, tag: Tag) -> DirectRange {
        let number = self.numbers.remove(&tag).expect("what is in place has a spot");
        DirectRange::new(&client.domain, number)
    }

    /// A worker made a spot, or could not: where the client writes to it.
    pub fn registered(
        &mut self,
        client: &Client,
        tag: Tag,
        answer: Result<Offered, Fault>,
    ) -> Result<Region, Fault> {
        let answer = answer.map(|Offered { number, region, .. }| {
            self.numbers.insert(tag, number);
            region
        });
        answer.inspect_err(|fault| {
            tracing::debug!(session = client.id, cause = %fault, "a chunk lands in a slot");
        })
    }

    /// Takes a spot back that nothing is to be written to any more.
    pub fn revoke(&mut self, client: &Client, tag: Tag) -> Result<(), End> {
        end_if_unreleased(self.take(client, tag).take_back())
    }

    /// Takes all spots back when the session ends; whether devices let go of all of them. A link
    /// may live on for a moment: its client could write to a file that another session of it has
    /// found again by then, and verified.
    pub fn revoke_all(&mut self, client: &Client) -> bool {
        let numbers = std::mem::take(&mut self.numbers);
        numbers.values().filter(|&&number| !client.domain.take_back(number)).count() == 0
    }
}

/// Shorter files are not worth registering.
const FILE_BYTES_MIN: u64 = 1 << 20;

/// Whether ranges of a file can be registered; `on_demand` says whether devices look for pages.
pub(super) fn accepts_direct_writes(target: &Target, size: u64, on_demand: bool) -> bool {
    let long = (FILE_BYTES_MIN..STREAM_BYTES_MAX).contains(&size);
    // Registering a range gives it all of its room, and a sparse file has only its data's.
    let takes = long && !target.is_sparse();
    takes && (target.is_in_memory() || on_demand)
}
