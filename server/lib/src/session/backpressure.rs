//! Whether a client is heard: a client that asks for more than is done, or does not read its
//! answers, waits, and no queue grows. Owns how many jobs a client may have asked for and how many
//! bytes of requests are taken in front of them.

use super::Session;
use super::mirror::WALKS_MAX;
use super::namespace::{CHANGES_UNMETERED_MAX, CHANGES_WAITING_MAX};
use crate::limits::client_limits::CLIENT_THREADS_MAX;
use verbatim_proto::units::FRAME_BYTES_MAX;
use verbatim_serve::EVENTS_MAX;

/// Jobs that one client may have at work when it asks for more. Each tells one event, and what
/// the machines begin meanwhile is bounded by them, so that all find room.
pub(super) const JOBS_MAX: usize = 4 << 10;
const _: () = assert!(JOBS_MAX <= EVENTS_MAX / 4, "every job can tell what became of it");

/// With so many jobs that are not done the threads have enough to do next: from then on the bytes
/// count that a client says. What it says of chunks that moved needs no thread, and must not wait
/// behind what does.
pub(super) const JOBS_UNMETERED_MAX: usize = CLIENT_THREADS_MAX + 8;
const _: () = assert!(WALKS_MAX < 8, "walks that hash may wait for others for hours");

/// Bytes of messages that are heard in front of the threads.
pub(super) const AHEAD_BYTES_MAX: usize = FRAME_BYTES_MAX;

impl Session {
    /// Notes how long a message was that was heard. It counts while there is enough to do, and
    /// where there is no memory for more it counts as all there may be.
    pub(super) fn count_ahead(&mut self, bytes: usize) {
        if !self.has_enough_to_do() {
            self.ahead_bytes = 0;
            self.ahead.clear();
            return;
        }
        match self.client.memory.take(bytes) {
            Some(place) => {
                self.ahead.push(place);
                self.ahead_bytes += bytes;
            }
            None => self.ahead_bytes = AHEAD_BYTES_MAX,
        }
    }

    fn has_enough_to_do(&self) -> bool {
        self.limits.under_way() >= JOBS_UNMETERED_MAX
            || self.namespace.changes_waiting() >= CHANGES_UNMETERED_MAX
    }

    /// Whether the next message is taken: not before what it depends on is done, nor while there
    /// is enough to do or to read. All jobs end without another one, but they begin none while
    /// there is much to read.
    pub(super) fn accepts_requests(&self) -> bool {
        let waits = self.held_message.is_some() || self.links.setup.joins();
        let behind = self.has_enough_to_do() && self.ahead_bytes >= AHEAD_BYTES_MAX;
        let unread = self.client.outbox.unread().is_much();
        let busy = self.limits.under_way() >= JOBS_MAX
            || self.namespace.changes_waiting() >= CHANGES_WAITING_MAX;
        !(waits || behind || busy || unread)
    }
}
