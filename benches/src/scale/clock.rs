//! Virtual time: the simulated network and what else will happen, in one order. Owns
//! neither machines nor workers; both directions of the model run on it.

use super::Model;
use std::collections::BTreeMap;
use std::time::Duration;
use verbatim_fabric::sim::{Faults, SimClock, SimNet};

/// Events until there must be an end.
const EVENTS_MAX: u64 = 50_000_000;

/// One direction of the model: its machines and workers, driven by a clock.
pub(super) trait Course {
    type Event;

    fn clock(&mut self) -> &mut Clock<Self::Event>;
    /// Has the machines hear each other; says whether one had something to do.
    fn talk(&mut self) -> bool;
    /// Has workers begin what they can.
    fn work(&mut self);
    /// Whether all is moved.
    fn is_over(&self) -> bool;
    /// Takes what has arrived on links.
    fn collect(&mut self);
    fn happen(&mut self, event: Self::Event);

    /// Runs it to its end.
    ///
    /// # Panics
    /// When the machines make no progress: then they are broken.
    fn run(&mut self) {
        for step in 0.. {
            assert!(step < EVENTS_MAX, "no end in sight at {:?}", self.clock().now());
            while self.talk() {}
            self.work();
            if self.is_over() {
                return;
            }
            if self.clock().advance() {
                self.collect();
            }
            while let Some(event) = self.clock().due() {
                self.happen(event);
            }
        }
    }
}

/// The network, and events by their time and the order they were queued in.
pub(super) struct Clock<E> {
    pub net: SimNet,
    queue: BTreeMap<(u64, u64), E>,
    sequence: u64,
}

impl<E> Clock<E> {
    /// A clock at 0, and rails as modelled.
    pub fn new(model: &Model) -> Self {
        let faults = Faults {
            delay_ns: model.latency_ns,
            bandwidth_bytes_per_s: Some(model.rail_bytes_per_s),
            ..Faults::default()
        };
        let net = SimNet::new(1, faults, SimClock::Manual);
        Self { net, queue: BTreeMap::new(), sequence: 0 }
    }

    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.net.now_ns())
    }

    pub fn later(&mut self, after_ns: u64, event: E) {
        self.sequence += 1;
        self.queue.insert((self.net.now_ns() + after_ns, self.sequence), event);
    }

    /// Moves to what comes next; says whether something arrives on a link then.
    ///
    /// # Panics
    /// When nothing will happen any more: then the machines are broken.
    pub fn advance(&mut self) -> bool {
        let queued = self.queue.first_key_value().map(|((at_ns, _), _)| *at_ns);
        let arrives = self.net.next_event_ns();
        let at_ns = queued.into_iter().chain(arrives).min().expect("stuck: nothing will happen");
        self.net.advance_to(at_ns);
        arrives == Some(at_ns)
    }

    /// The next event that is due.
    pub fn due(&mut self) -> Option<E> {
        let next = self.queue.first_entry()?;
        (next.key().0 <= self.net.now_ns()).then(|| next.remove())
    }
}
