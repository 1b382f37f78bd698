//! Memory for a client that tries its links: `rdma-doctor` reads and writes it, and
//! nobody looks at what is in it. One probe a session, of a mebibyte each way at
//! most, counted against the pin budget; it goes with the session's domain.

use super::Session;
use super::end::End;
use std::sync::Arc;
use verbatim_fabric::{Memory, SharedSlot};
use verbatim_proto::message::ServerMessage;
use verbatim_proto::probing::{PROBE_BYTES_MAX, ProbeRequest, Probed};
use verbatim_proto::{Code, Fault};

impl Session {
    /// Answers a request for memory to try links with.
    pub(super) fn probe(&mut self, request: ProbeRequest) -> Result<(), End> {
        let answer = self.offer_probe(request);
        self.client.send(ServerMessage::Probed(answer))
    }

    fn offer_probe(&mut self, ProbeRequest { link, bytes }: ProbeRequest) -> Result<Probed, Fault> {
        let limit = |text: &str| Fault::new(Code::Limit, text);
        if bytes == 0 || bytes > PROBE_BYTES_MAX {
            return Err(limit("a probe has from one byte to a mebibyte"));
        }
        if std::mem::replace(&mut self.links.probed, true) {
            return Err(limit("a session has one probe"));
        }
        let rail = self.rail_of(link);
        let pin = self.client.domain.pin_slot(rail, 2 * u64::from(bytes));
        let pin = pin.ok_or_else(|| limit("the server may pin no more now"))?;
        let offer = |memory: fn(SharedSlot) -> Memory| {
            let slot = SharedSlot::new(bytes as usize)?;
            self.client.domain.offer_on(rail, memory(slot), Arc::clone(&pin))
        };
        let offered = offer(Memory::Staged).and_then(|read| Ok((read, offer(Memory::Upload)?)));
        let (read, write) = offered.map_err(|error| limit(&error.with_hint()))?;
        Ok(Probed { read: read.region, write: write.region, bytes })
    }
}
