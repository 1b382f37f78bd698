//! What tests of the reading client share: a machine with a chunk a mebibyte long, what
//! it does when it is told something, and the clock that stands still meanwhile.

use super::ReadClient;
use crate::message::ReadReply;
use crate::read::{ClientEffect, ClientOptions};
use std::time::Duration;

pub(super) const NOW: Duration = Duration::ZERO;

/// A machine without files or links.
pub(super) fn machine() -> ReadClient {
    let (timeout, describe) = (Duration::from_secs(1), false);
    let (chunk_bytes, slots_per_link) = (1 << 20, 1);
    ReadClient::new(ClientOptions { chunk_bytes, slots_per_link, timeout, describe })
}

/// What it wants done now.
pub(super) fn effects(machine: &mut ReadClient) -> Vec<ClientEffect> {
    machine.advance(NOW);
    std::iter::from_fn(|| machine.next_effect()).collect()
}

/// The same, when the server has said something.
pub(super) fn say(machine: &mut ReadClient, reply: ReadReply) -> Vec<ClientEffect> {
    machine.reply(reply, NOW);
    effects(machine)
}
