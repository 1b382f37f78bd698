//! Direct writes: a client's device writes a chunk into its range of a temporary file, without a
//! slot. The configuration must allow it, and the file be in memory or the device page on demand.
//! The worker of the link maps and registers the range, because that takes a while.
//!
//! Who may write when: the device, from `DirectWrites::registered` to `DirectWrites::revoke`, or
//! until the worker deregisters the range, which it does before it verifies. If a device does not
//! release the range, the session ends, and with it every queue pair that could write.

use crate::rdma::registrations::Offered;
use crate::session::client::Client;
use crate::session::end::{End, end_if_unreleased};
use crate::worker::chunk_store::DirectRange;
use std::collections::HashMap;
use verbatim_files::Target;
use verbatim_proto::Fault;
use verbatim_proto::message::{Region, Tag};
use verbatim_proto::units::STREAM_BYTES_MAX;

/// The direct ranges of a session.
#[derive(Default)]
pub(super) struct DirectWrites {
    /// Whether the client supports them.
    enabled: bool,
    /// The registration of each range, by tag.
    numbers: HashMap<Tag, u64>,
}

impl DirectWrites {
    /// The client supports direct writes.
    pub fn enable(&mut self) {
        self.enabled = true;
    }

    /// Whether files are offered for direct writes: the client supports them, and the configuration
    /// allows them.
    pub fn may_offer(&self, client: &Client) -> bool {
        self.enabled && client.services.rdma.write_into_files
    }

    /// Hands a range over to the worker that verifies it.
    pub fn take(&mut self, client: &Client, tag: Tag) -> DirectRange {
        let number = self.numbers.remove(&tag).expect("what is in place has a spot");
        DirectRange::new(&client.domain, number)
    }

    /// A worker registered a range, or failed: the address for the client.
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

    /// Deregisters a range that the client does not use.
    pub fn revoke(&mut self, client: &Client, tag: Tag) -> Result<(), End> {
        end_if_unreleased(self.take(client, tag).take_back())
    }

    /// Deregisters all ranges when the session ends; returns whether devices released all of them.
    /// A link may outlive the session briefly, and its client could write to a file that another of
    /// its sessions has resumed and verified by then.
    pub fn revoke_all(&mut self, client: &Client) -> bool {
        let numbers = std::mem::take(&mut self.numbers);
        numbers.values().filter(|&&number| !client.domain.take_back(number)).count() == 0
    }
}

/// The shortest file that is worth registering.
const FILE_BYTES_MIN: u64 = 1 << 20;

/// Whether ranges of a file can be registered; `on_demand` says whether the devices page on demand.
pub(super) fn accepts_direct_writes(target: &Target, size: u64, on_demand: bool) -> bool {
    let long = (FILE_BYTES_MIN..STREAM_BYTES_MAX).contains(&size);
    // Registering a range allocates all of it, and a sparse file has room for its data only.
    let takes = long && !target.is_sparse();
    takes && (target.is_in_memory() || on_demand)
}
