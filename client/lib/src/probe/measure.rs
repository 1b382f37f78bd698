//! Measures links with probe operations: the latency of small ones, the rate of large ones by size
//! and number of links. Also measures this machine alone. Blocks for a bounded time: a link that
//! stalls is given up.

use crate::probe::{Latency, LocalRates, Measured, Operation, Rate};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use verbatim_fabric::{Buffer, Completion, FabricError, Link, Op, RemoteRange, Ticket};
use verbatim_files::limit::processors;
use verbatim_proto::Digest;

/// Operations in flight on each link.
pub const DEPTH: usize = 3;

/// The duration of one rate measurement.
const RATE_TIME: Duration = Duration::from_millis(200);

/// The duration of one latency measurement, and its most operations.
const LATENCY_TIME: Duration = Duration::from_millis(400);
const LATENCY_COUNT_MAX: u64 = 2000;

/// The first operations register memory and wake threads up, so they are not counted.
const WARM_COUNT: u64 = 5;

/// The size of an operation whose latency is measured.
pub const SMALL_BYTES: usize = 8;

/// How long a link may stall with an operation in flight.
const STALL_TIME_MAX: Duration = Duration::from_secs(6);

/// Sizes measured over one link; the last one also over several.
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

/// Numbers of links that the last size is measured over.
const LINKS: [usize; 2] = [2, 4];

/// The longest wait before links are polled again.
const WAKE_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Memory that the server lends for the probe.
pub struct Memory {
    /// The range to read.
    pub read: RemoteRange,
    /// The range to write.
    pub write: RemoteRange,
    /// The length of both ranges, at least `SMALL_BYTES`.
    pub bytes: usize,
}

/// A link, and its free buffers.
pub struct ProbeLink {
    link: Box<dyn Link>,
    spare: Vec<Buffer>,
    in_flight: usize,
    /// The ticket number of the next operation.
    next: u64,
}

impl ProbeLink {
    pub fn new(link: Box<dyn Link>) -> Self {
        Self { link, spare: Vec::new(), in_flight: 0, next: 0 }
    }

    fn submit(
        &mut self,
        way: Operation,
        memory: &Memory,
        bytes: usize,
    ) -> Result<bool, FabricError> {
        let mut buffer = match self.spare.pop() {
            Some(buffer) => buffer,
            None => Buffer::new(memory.bytes)?,
        };
        buffer.set_len(bytes);
        let op = match way {
            Operation::Read => Op::Read { from: memory.read, into: buffer },
            Operation::Write => Op::Write { from: buffer, to: memory.write },
        };
        self.next += 1;
        match self.link.submit(Ticket(self.next), op) {
            Ok(()) => self.in_flight += 1,
            Err(full) => {
                self.spare.push(full.0.into_buffer());
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the completed operations. Returns their number.
    fn take(&mut self, completions: &mut Vec<Completion>) -> Result<u64, FabricError> {
        self.link.poll(completions)?;
        let mut count = 0;
        for completion in completions.drain(..) {
            if let Completion::Done { buffer, result, .. } = completion {
                self.in_flight -= 1;
                self.spare.push(buffer);
                result?;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Measures latencies and rates over these links.
pub fn links(mut probe_links: Vec<ProbeLink>, memory: &Memory) -> Result<Measured, FabricError> {
    let carrier = probe_links
        .first()
        .map(|probe_link| probe_link.link.transport().to_owned())
        .unwrap_or_default();
    let mut measured = Measured { carrier, ..Measured::default() };
    for way in [Operation::Read, Operation::Write] {
        measured.latencies.push(latency(&mut probe_links[..1], way, memory)?);
    }
    for way in [Operation::Read, Operation::Write] {
        for (bytes, links) in grid(memory.bytes, probe_links.len()) {
            let bytes_per_second = rate(&mut probe_links[..links], way, memory, bytes)?;
            measured.rates.push(Rate { way, bytes, links, bytes_per_second });
        }
    }
    Ok(measured)
}

/// The combinations of size and links to measure: sizes that fit the lent memory, over existing
/// links.
fn grid(bytes_max: usize, links_max: usize) -> Vec<(usize, usize)> {
    let sizes = SIZES.iter().copied().filter(|&bytes| bytes <= bytes_max);
    let more = sizes.clone().max().into_iter().flat_map(|most| LINKS.map(|links| (most, links)));
    let all = sizes.map(|bytes| (bytes, 1)).chain(more);
    all.filter(|&(_, links)| links <= links_max).collect()
}

/// Checks that a few bytes can be read over a link.
pub fn reads_small(mut probe_link: ProbeLink, memory: &Memory) -> Result<(), FabricError> {
    probe_link.submit(Operation::Read, memory, SMALL_BYTES)?;
    wait(std::slice::from_mut(&mut probe_link), 1).map(drop)
}

fn latency(
    probe_links: &mut [ProbeLink],
    way: Operation,
    memory: &Memory,
) -> Result<Latency, FabricError> {
    let broken = |error: &dyn std::fmt::Display| FabricError::Limit(error.to_string());
    let mut times = Histogram::<u64>::new_with_max(60_000_000_000, 3).map_err(|e| broken(&e))?;
    let begin = Instant::now();
    let mut count = 0;
    while count < LATENCY_COUNT_MAX && (begin.elapsed() < LATENCY_TIME || times.len() < 10) {
        let sent = Instant::now();
        probe_links[0].submit(way, memory, SMALL_BYTES)?;
        wait(probe_links, 1)?;
        count += 1;
        if count > WARM_COUNT {
            times.saturating_record(sent.elapsed().as_nanos() as u64);
        }
    }
    Ok(Latency {
        way,
        count: times.len(),
        p50: times.value_at_quantile(0.5),
        p90: times.value_at_quantile(0.9),
        p99: times.value_at_quantile(0.99),
        max: times.max(),
    })
}

/// Measures the rate in bytes per second, with a full queue on each link.
fn rate(
    probe_links: &mut [ProbeLink],
    way: Operation,
    memory: &Memory,
    bytes: usize,
) -> Result<f64, FabricError> {
    // Runs once without the clock: this allocates and registers buffers.
    fill(probe_links, way, memory, bytes)?;
    drain(probe_links)?;
    let begin = Instant::now();
    let mut count = 0;
    while begin.elapsed() < RATE_TIME {
        fill(probe_links, way, memory, bytes)?;
        count += wait(probe_links, 1)?;
    }
    count += drain(probe_links)?;
    Ok(count as f64 * bytes as f64 / begin.elapsed().as_secs_f64())
}

fn fill(
    probe_links: &mut [ProbeLink],
    way: Operation,
    memory: &Memory,
    bytes: usize,
) -> Result<(), FabricError> {
    for probe_link in probe_links {
        while probe_link.in_flight < DEPTH && probe_link.submit(way, memory, bytes)? {}
    }
    Ok(())
}

fn drain(probe_links: &mut [ProbeLink]) -> Result<u64, FabricError> {
    let left = probe_links.iter().map(|probe_link| probe_link.in_flight as u64).sum();
    wait(probe_links, left)
}

/// Waits until this many operations have completed. Returns how many have.
fn wait(probe_links: &mut [ProbeLink], wanted: u64) -> Result<u64, FabricError> {
    let (mut count, mut heard) = (0, Instant::now());
    let mut completions = Vec::new();
    while count < wanted {
        let mut ended = 0;
        for probe_link in probe_links.iter_mut() {
            ended += probe_link.take(&mut completions)?;
        }
        count += ended;
        if ended > 0 {
            heard = Instant::now();
        } else if heard.elapsed() > STALL_TIME_MAX {
            let text = format!("no answer in {} s", STALL_TIME_MAX.as_secs());
            return Err(FabricError::Limit(text));
        } else {
            sleep(probe_links);
        }
    }
    Ok(count)
}

/// Sleeps until a link is ready, or for a short time.
fn sleep(probe_links: &[ProbeLink]) {
    let wakes = probe_links.iter().map(|probe_link| probe_link.link.wake());
    let mut fds: Vec<_> = wakes
        .filter_map(|wake| {
            let readable = if wake.readable { PollFlags::IN } else { PollFlags::empty() };
            let writable = if wake.writable { PollFlags::OUT } else { PollFlags::empty() };
            wake.fd.map(|fd| PollFd::from_borrowed_fd(fd, readable | writable))
        })
        .collect();
    // A signal may wake it as well.
    let _ = poll(&mut fds, Some(&WAKE_MAX));
}

/// The duration of one measurement of this machine.
const OWN_TIME: Duration = Duration::from_millis(150);

/// Bytes written to measure a disk.
const DISK_BYTES: usize = 64 << 20;

/// The block size of these measurements.
const BLOCK_BYTES: usize = 8 << 20;

/// Measures the rates of this machine, except for its disks.
pub fn own() -> LocalRates {
    let block = vec![0x5a_u8; BLOCK_BYTES];
    let mut copy = vec![0_u8; block.len()];
    let repeat = |work: &mut dyn FnMut()| {
        work();
        let (begin, mut count) = (Instant::now(), 0);
        while begin.elapsed() < OWN_TIME {
            work();
            count += 1;
        }
        count as f64 * block.len() as f64 / begin.elapsed().as_secs_f64()
    };
    let memory = repeat(&mut || {
        copy.copy_from_slice(&block);
        std::hint::black_box(&copy);
    });
    let hash = repeat(&mut || {
        std::hint::black_box(Digest::of_grains(0, block.len() as u64, &block));
    });
    LocalRates { hash, memory, cores: processors(), ..LocalRates::default() }
}

/// Measures writing an unnamed file to disk; blocks for ever if the file system hangs.
pub fn disk(folder: &Path) -> std::io::Result<f64> {
    let block = vec![0x5a_u8; BLOCK_BYTES];
    let mut file = tempfile::tempfile_in(folder)?;
    let begin = Instant::now();
    for _ in 0..DISK_BYTES / block.len() {
        file.write_all(&block)?;
    }
    file.sync_data()?;
    Ok(DISK_BYTES as f64 / begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sizes_that_fit_the_lent_memory_are_measured() {
        assert_eq!(grid(1 << 20, 2), [(4 << 10, 1), (64 << 10, 1), (1 << 20, 1), (1 << 20, 2)]);
        assert_eq!(grid(64 << 10, 4).last(), Some(&(64 << 10, 4)));
        assert_eq!(grid((4 << 10) - 1, 4), []);
    }
}
