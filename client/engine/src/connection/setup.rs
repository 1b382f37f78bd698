//! What is decided when a session begins: what carries its links, how many there are,
//! how long chunks are, and how many threads move them.

use crate::connection::READS_PER_LINK;
use crate::connection::options::SessionOptions;
use crate::connection::transport::{Carrier, Transport};
use crate::connection::worker::{ClientWorker, Command};
use verbatim_control::Connection;
use verbatim_fabric::FabricError;
use verbatim_fabric::ports::Machine;
use verbatim_fabric::worker::WorkerHandle;
use verbatim_files::limit::processors;
use verbatim_proto::units::{SLOTS_PER_LINK, chunk_bytes_for};

/// The chunk size to announce to the server, which makes room for it: the transport is chosen later,
/// and shorter chunks fit as well.
pub fn longest_chunk(options: &SessionOptions) -> u32 {
    let may_use_device = options.carrier.transport != Transport::Tcp && options.sim.is_none();
    let chosen = options.chunk_by_carrier && may_use_device && Machine::has_devices();
    let chunk_bytes = options.connect.chunk_bytes;
    if chosen { chunk_bytes.max(chunk_bytes_for(qps(options))) } else { chunk_bytes }
}

/// How many queue pairs are wanted.
fn qps(options: &SessionOptions) -> u16 {
    options.carrier.qps.unwrap_or(options.streams)
}

/// Chooses what carries links, and says how many there are to be. What no device carries goes in
/// short chunks, and so does what could not be pinned otherwise.
pub(crate) fn carry(
    options: &mut SessionOptions,
    short: u32,
    connection: &Connection,
) -> Result<(Carrier, u16), FabricError> {
    let links_max = connection.welcome.links_max;
    let qps = qps(options);
    let count = usize::from(qps.min(links_max).max(1));
    let choose = |chunk_bytes: u32| {
        // Reading or writing, whichever has more of them.
        let slots = usize::from(READS_PER_LINK.max(SLOTS_PER_LINK));
        let wanted = (chunk_bytes as usize * slots * count, count);
        Carrier::choose(&options.carrier, options.sim.as_ref(), connection.peer, wanted)
    };
    let long = options.connect.chunk_bytes;
    let first = choose(long);
    let carried = first.as_ref().is_ok_and(Carrier::is_verbs);
    let carrier = if carried || long == short { first? } else { choose(short)? };
    if !carried {
        options.connect.chunk_bytes = short;
    }
    let streams = if carrier.is_verbs() { qps } else { options.streams };
    Ok((carrier, streams.min(links_max).max(1)))
}

/// Starts the threads that move the data of so many links.
pub(crate) fn workers(
    links: u16,
    over_device: bool,
    worker: impl Fn() -> ClientWorker,
) -> Result<Vec<WorkerHandle<Command>>, FabricError> {
    (0..thread_count(links, over_device, processors()))
        .map(|number| WorkerHandle::spawn(&format!("stream-{number}"), worker()))
        .collect()
}

/// How many threads move the data of so many links. What a device carries leaves a thread only
/// the hashing and the storing, so more threads than processors would wait for each other;
/// over TCP a thread also waits for its connection.
fn thread_count(links: u16, over_device: bool, processors: usize) -> u16 {
    match over_device {
        true => links.min(u16::try_from(processors).unwrap_or(u16::MAX)).max(1),
        false => links,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_device_have_no_more_threads_than_there_are_processors() {
        let threads = |links, processors| thread_count(links, true, processors);
        assert_eq!([threads(4, 1), threads(4, 2), threads(4, 64)], [1, 2, 4]);
        assert_eq!([threads(1, 8), threads(4, 0), threads(64, 1 << 20)], [1, 1, 64]);
        assert_eq!(thread_count(4, false, 2), 4, "each connection has its own");
    }
}
