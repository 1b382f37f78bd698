//! The metrics of `rdma-serve`: their names, their help, their labels. Counters
//! and histograms are told what happens as it happens; levels (sessions, pinned
//! bytes, port counters) are read when somebody asks, from a `Levels` the server
//! fills. The server makes one and hands it down. Never looks at anything itself.

use crate::labels::{
    Class, Direction, Entry, Fallback, Operation, Outcome, Spared, Step, Transport, Verdict,
};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

mod levels;

use levels::Shown;
pub use levels::{ExportLevels, Levels, PortLevels};

/// What every name begins with.
const PREFIX: &str = "rdma_serve";

/// The type that a reply with metrics has.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of one server.
pub struct ServeMetrics {
    registry: Registry,
    bytes: Family<Moved, Counter>,
    spared: Family<OfSpared, Counter>,
    chunks: Family<Checked, Counter>,
    operations: Family<Ended, Counter>,
    seconds: Family<Took, Histogram, fn() -> Histogram>,
    entries: Family<Entered, Counter>,
    errors: Family<Failed, Counter>,
    fallbacks: Family<FellBack, Counter>,
    links_lost: Family<OfLink, Counter>,
    notifications: Family<OfLink, Counter>,
    watch_healed: Counter,
    /// One reply at a time: levels are set, then written.
    shown: Mutex<Shown>,
}

impl ServeMetrics {
    /// Metrics of a server that begins now.
    pub fn new(version: &'static str) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let seconds = Family::new_with_constructor(histogram as fn() -> Histogram);
        let metrics = Self {
            bytes: add(&mut registry, "bytes", "Bytes moved and verified"),
            spared: add(&mut registry, "spared_bytes", "Bytes of uploads that need not move"),
            chunks: add(&mut registry, "chunks", "Chunks, by what became of them"),
            operations: add(&mut registry, "operations", "Requests on files, by how they ended"),
            seconds: seconds.clone(),
            entries: add(
                &mut registry,
                "connections",
                "Control connections, by what became of them",
            ),
            errors: add(&mut registry, "errors", "Errors, by who must act on them"),
            fallbacks: add(&mut registry, "fallbacks", "Sessions that moved to TCP, by reason"),
            links_lost: add(
                &mut registry,
                "links_lost",
                "Data links that died under their session",
            ),
            notifications: add(
                &mut registry,
                "notifications",
                "Notified one-sided writes of clients that arrived",
            ),
            watch_healed: add(
                &mut registry,
                "watch_healed",
                "Changes in watched folders that no event told and a comparison found",
            ),
            shown: Mutex::new(Shown::new(&mut registry, version)),
            registry: {
                registry.register("step_seconds", "How long steps of the server take", seconds);
                registry
            },
        };
        metrics.begin();
        metrics
    }

    /// Makes every series there can be, so that a first increment is an increase.
    fn begin(&self) {
        for &direction in Direction::ALL {
            for transport in [Transport::Verbs, Transport::Tcp] {
                self.moved(direction, transport, 0);
                for &verdict in Verdict::ALL {
                    self.checked(direction, transport, verdict, 0);
                }
            }
        }
        for transport in [Transport::Verbs, Transport::Tcp] {
            drop(self.links_lost.get_or_create(&OfLink { transport }));
            drop(self.notifications.get_or_create(&OfLink { transport }));
        }
        for &operation in Operation::ALL {
            for &outcome in Outcome::ALL {
                self.ended(operation, outcome, 0);
            }
        }
        for &step in Step::ALL {
            drop(self.seconds.get_or_create(&Took { step }));
        }
        for &result in Entry::ALL {
            drop(self.entries.get_or_create(&Entered { result }));
        }
        for &class in Class::ALL {
            drop(self.errors.get_or_create(&Failed { class }));
        }
        for &reason in Spared::ALL {
            self.spared(reason, 0);
        }
        for &reason in Fallback::ALL {
            drop(self.fallbacks.get_or_create(&FellBack { reason }));
        }
    }

    /// Counts bytes that were moved and verified.
    pub fn moved(&self, direction: Direction, transport: Transport, bytes: u64) {
        self.bytes.get_or_create(&Moved { direction, transport }).inc_by(bytes);
    }

    /// How many bytes were moved so far.
    pub fn bytes(&self, direction: Direction, transport: Transport) -> u64 {
        self.bytes.get(&Moved { direction, transport }).map_or(0, |counter| counter.get())
    }

    /// Counts bytes of uploads that did not have to move.
    pub fn spared(&self, reason: Spared, bytes: u64) {
        self.spared.get_or_create(&OfSpared { reason }).inc_by(bytes);
    }

    /// Counts chunks.
    pub fn checked(&self, direction: Direction, transport: Transport, verdict: Verdict, n: u64) {
        self.chunks.get_or_create(&Checked { direction, transport, verdict }).inc_by(n);
    }

    /// Counts requests that ended.
    pub fn ended(&self, operation: Operation, outcome: Outcome, count: u64) {
        self.operations.get_or_create(&Ended { operation, outcome }).inc_by(count);
    }

    /// Says how long a step took.
    pub fn took(&self, step: Step, time: Duration) {
        self.seconds.get_or_create(&Took { step }).observe(time.as_secs_f64());
    }

    /// Counts a control connection.
    pub fn entered(&self, result: Entry) {
        self.entries.get_or_create(&Entered { result }).inc();
    }

    /// Counts an error.
    pub fn failed(&self, class: Class) {
        self.errors.get_or_create(&Failed { class }).inc();
    }

    /// Counts a session that moved to TCP.
    pub fn fell_back(&self, reason: Fallback) {
        self.fallbacks.get_or_create(&FellBack { reason }).inc();
    }

    /// Counts a link that died.
    pub fn link_lost(&self, transport: Transport) {
        self.links_lost.get_or_create(&OfLink { transport }).inc();
    }

    /// Counts a notified write that arrived.
    pub fn notified(&self, transport: Transport) {
        self.notifications.get_or_create(&OfLink { transport }).inc();
    }

    /// Counts changes in watched folders that a comparison found.
    pub fn watch_healed(&self, count: u64) {
        self.watch_healed.inc_by(count);
    }

    /// Writes everything, in the format `CONTENT_TYPE` says.
    pub fn text(&self, levels: &Levels) -> String {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.set(levels);
        let mut text = String::with_capacity(16 << 10);
        text::encode(&mut text, &self.registry).expect("a string takes everything");
        text
    }
}

/// Registers a metric and keeps a handle of it.
fn add<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// From 100 microseconds to about 100 seconds.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 2.5, 16))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Moved {
    direction: Direction,
    transport: Transport,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSpared {
    reason: Spared,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Checked {
    direction: Direction,
    transport: Transport,
    verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    operation: Operation,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Took {
    step: Step,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Entered {
    result: Entry,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    class: Class,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FellBack {
    reason: Fallback,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLink {
    transport: Transport,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_written_under_its_name() {
        let metrics = ServeMetrics::new("1.2.3");
        metrics.moved(Direction::Read, Transport::Tcp, 40);
        metrics.moved(Direction::Read, Transport::Tcp, 2);
        metrics.checked(Direction::Write, Transport::Verbs, Verdict::Mismatched, 3);
        metrics.took(Step::Commit, Duration::from_millis(20));
        let text = metrics.text(&Levels::default());
        for line in [
            "rdma_serve_bytes_total{direction=\"read\",transport=\"tcp\"} 42",
            "rdma_serve_bytes_total{direction=\"write\",transport=\"verbs\"} 0",
            "rdma_serve_chunks_total{direction=\"write\",transport=\"verbs\",verdict=\"mismatched\"} 3",
            "rdma_serve_step_seconds_count{step=\"commit\"} 1",
            "rdma_serve_build_info{version=\"1.2.3\"} 1",
            "rdma_serve_sessions 0",
        ] {
            assert!(text.lines().any(|have| have == line), "no {line} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert_eq!(metrics.bytes(Direction::Read, Transport::Tcp), 42);
    }

    #[test]
    fn every_name_has_help_and_a_good_form() {
        let text = ServeMetrics::new("1").text(&Levels::sample());
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        for sample in samples {
            let name = sample.split(['{', ' ']).next().unwrap_or_default();
            assert!(name.starts_with("rdma_serve_"), "{sample}");
            let base = ["_total", "_bucket", "_sum", "_count", "_info"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .unwrap_or(name);
            let helped = |name: &str| text.contains(&format!("# HELP {name} "));
            assert!(helped(base) || helped(name), "{name} has no help");
        }
    }
}
