//! Decisions at the start of a session: the transport, the number of links, the chunk size, and the
//! number of worker threads.

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

/// The chunk size to announce to the server, which allocates buffers for it. The transport is
/// chosen later, and shorter chunks fit too.
pub fn longest_chunk(options: &SessionOptions) -> u32 {
    let may_use_device = options.carrier.transport != Transport::Tcp && options.sim.is_none();
    let chosen = options.chunk_by_carrier && may_use_device && Machine::has_devices();
    let chunk_bytes = options.connect.chunk_bytes;
    if chosen { chunk_bytes.max(chunk_bytes_for(qps(options))) } else { chunk_bytes }
}

/// The number of queue pairs to request.
fn qps(options: &SessionOptions) -> u16 {
    options.carrier.qps.unwrap_or(options.streams)
}

/// Chooses the transport and the number of links. Uses short chunks without RDMA, or if buffers for
/// long ones cannot be pinned.
pub(crate) fn choose_transport(
    options: &mut SessionOptions,
    short: u32,
    connection: &Connection,
) -> Result<(Carrier, u16), FabricError> {
    let links_max = connection.welcome.links_max;
    let qps = qps(options);
    let count = usize::from(qps.min(links_max).max(1));
    let choose = |chunk_bytes: u32| {
        // The larger of the read and the write slots.
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

/// Starts the threads that move the data of this many links.
pub(crate) fn workers(
    links: u16,
    over_device: bool,
    worker: impl Fn() -> ClientWorker,
) -> Result<Vec<WorkerHandle<Command>>, FabricError> {
    (0..thread_count(links, over_device, processors()))
        .map(|number| WorkerHandle::spawn(&format!("stream-{number}"), worker()))
        .collect()
}

/// The number of worker threads for this many links. With RDMA a thread only hashes and stores, so
/// more threads than processors would wait for each other. Over TCP a thread also waits for its
/// socket.
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
    fn rdma_links_use_at_most_one_thread_per_processor() {
        let threads = |links, processors| thread_count(links, true, processors);
        assert_eq!([threads(4, 1), threads(4, 2), threads(4, 64)], [1, 2, 4]);
        assert_eq!([threads(1, 8), threads(4, 0), threads(64, 1 << 20)], [1, 1, 64]);
        assert_eq!(thread_count(4, false, 2), 4, "each connection has its own");
    }
}
