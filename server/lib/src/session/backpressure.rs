//! Backpressure: whether the session reads the next message of its client. A client that asks for
//! more than the threads can do, or does not read its answers, has to wait, so that no queue grows.
//! Owns the maximum of jobs per client and of request bytes that are read ahead of the threads.

use super::Session;
use super::mirror::WALKS_MAX;
use super::namespace::{CHANGES_UNMETERED_MAX, CHANGES_WAITING_MAX};
use crate::limits::client_limits::CLIENT_THREADS_MAX;
use verbatim_proto::units::FRAME_BYTES_MAX;
use verbatim_serve::EVENTS_MAX;

/// Jobs that one client may have under way. Each sends one event, and the machines begin no more
/// than jobs let them, so every event finds room in the queue.
pub(super) const JOBS_MAX: usize = 4 << 10;
const _: () = assert!(JOBS_MAX <= EVENTS_MAX / 4, "every job can tell what became of it");

/// From this many jobs on the threads are busy, so the bytes of further requests are counted.
/// Reports of moved chunks need no thread, and must not be stuck behind requests that do.
pub(super) const JOBS_UNMETERED_MAX: usize = CLIENT_THREADS_MAX + 8;
const _: () = assert!(WALKS_MAX < 8, "walks that hash may wait for others for hours");

/// Bytes of requests that are read while the threads are busy.
pub(super) const AHEAD_BYTES_MAX: usize = FRAME_BYTES_MAX;

impl Session {
    /// Counts the bytes of a request that was read while the threads are busy. If the memory budget
    /// has no room for them, they count as the maximum.
    pub(super) fn count_ahead(&mut self, bytes: usize) {
        if !self.has_enough_to_do() {
            self.ahead_bytes = 0;
            self.ahead.clear();
            return;
        }
        match self.client.memory.take(bytes) {
            Some(memory) => {
                self.ahead.push(memory);
                self.ahead_bytes += bytes;
            }
            None => self.ahead_bytes = AHEAD_BYTES_MAX,
        }
    }

    fn has_enough_to_do(&self) -> bool {
        self.limits.under_way() >= JOBS_UNMETERED_MAX
            || self.namespace.changes_waiting() >= CHANGES_UNMETERED_MAX
    }

    /// Whether the session reads the next message: not before a device or a dying link that it
    /// depends on is ready, and not while the threads or the client have too much to do. Jobs under
    /// way always end, but start no others while the client has much to read.
    pub(super) fn accepts_requests(&self) -> bool {
        let waits = self.held_message.is_some() || self.links.setup.joins();
        let behind = self.has_enough_to_do() && self.ahead_bytes >= AHEAD_BYTES_MAX;
        let unread = self.client.outbox.unread().is_much();
        let busy = self.limits.under_way() >= JOBS_MAX
            || self.namespace.changes_waiting() >= CHANGES_WAITING_MAX;
        !(waits || behind || busy || unread)
    }
}
