//! The schedule of a simulated network: one clock, one queue of arrivals, all
//! links. It decides when an operation arrives and has `link` do it, in order of
//! time. It never sleeps and calls nobody back; the handles in `mod` call it
//! under their lock.

use super::faults::{Fate, Faults};
use super::link::{After, Flight, LinkState, op_len};
use super::{SimClock, SimCounts};
use crate::domain::SoftDomain;
use crate::error::FabricError;
use crate::link::{Completion, Full, Limits, Op, Ticket};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Everything a network knows.
///
/// Links live as long as a handle of theirs, and arrivals are bounded by the depth of the
/// links and by the notifications they carry.
pub(super) struct NetState {
    pub faults: Faults,
    pub limits: Limits,
    pub counts: SimCounts,
    /// The rail that links are made on now.
    pub rail: Option<u16>,
    /// Until when each rail is busy, by the side that the data comes from.
    rails_busy_ps: BTreeMap<u16, [u128; 2]>,
    seed: u64,
    clock: Clock,
    links: BTreeMap<u64, LinkState>,
    links_made: u64,
    /// By time, then by order of submission.
    arrivals: BTreeMap<(u64, u64), Arrival>,
    submitted: u64,
}

enum Clock {
    Manual { now_ns: u64 },
    Real { since: Instant },
}

/// Something that happens to a link at its time.
struct Arrival {
    link: u64,
    /// The end that submitted the operation.
    side: usize,
    what: What,
}

enum What {
    /// The operation of this number.
    Op,
    /// A notification that the far end already had.
    NotifyAgain(u32),
}

impl NetState {
    pub fn new(seed: u64, faults: Faults, clock: SimClock) -> Self {
        let clock = match clock {
            SimClock::Manual => Clock::Manual { now_ns: 0 },
            SimClock::Real => Clock::Real { since: Instant::now() },
        };
        Self {
            faults,
            limits: LIMITS,
            counts: SimCounts::default(),
            rail: None,
            rails_busy_ps: BTreeMap::new(),
            seed,
            clock,
            links: BTreeMap::new(),
            links_made: 0,
            arrivals: BTreeMap::new(),
            submitted: 0,
        }
    }

    pub fn now_ns(&self) -> u64 {
        match self.clock {
            Clock::Manual { now_ns } => now_ns,
            Clock::Real { since } => u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Moves a manual clock; never back.
    pub fn advance_to(&mut self, to_ns: u64) {
        if let Clock::Manual { now_ns } = &mut self.clock {
            *now_ns = to_ns.max(*now_ns);
        }
        self.run_due();
    }

    pub fn next_event_ns(&self) -> Option<u64> {
        self.arrivals.first_key_value().map(|((due_ns, _), _)| *due_ns)
    }

    /// Makes a link of which side 0 is held, and side 1 too when it has a domain.
    pub fn connect(&mut self, near: Arc<SoftDomain>, far: Option<Arc<SoftDomain>>) -> u64 {
        self.links_made += 1;
        let number = self.links_made;
        let mut link = LinkState::new(self.seed, number, self.faults.clone(), self.limits);
        link.holders = if far.is_some() { 2 } else { 1 };
        link.rail = self.rail;
        link.ends[0].domain = Some(near);
        link.ends[1].domain = far;
        self.links.insert(number, link);
        number
    }

    /// Takes side 1 of a living link that nobody has taken.
    pub fn take(&mut self, number: u64, domain: Arc<SoftDomain>) -> Option<Limits> {
        let link = self.links.get_mut(&number)?;
        if link.is_dead() || link.ends[1].domain.is_some() {
            return None;
        }
        link.holders += 1;
        link.ends[1].domain = Some(domain);
        Some(link.limits)
    }

    pub fn submit(&mut self, number: u64, side: usize, ticket: Ticket, op: Op) -> Result<(), Full> {
        let now_ns = self.now_ns();
        let link = self.links.get_mut(&number).expect(HELD);
        let end = &mut link.ends[side];
        if end.depth() >= link.limits.depth_max {
            return Err(Full(op));
        }
        if end.ended.is_some() {
            end.done(ticket, op.into_buffer(), Err(FabricError::Aborted));
            return Ok(());
        }
        let len = op_len(&op);
        if len > link.limits.message_bytes_max {
            let cause = FabricError::Limit(format!(
                "operation of {len} bytes, the link takes {}",
                link.limits.message_bytes_max
            ));
            end.done(ticket, op.into_buffer(), Err(cause.clone()));
            self.die(number, [cause.clone(), cause]);
            return Ok(());
        }
        self.submitted += 1;
        self.counts.ops += 1;
        let fate = link.faults.draw(&mut end.rng, len);
        if fate.lost {
            self.counts.lost += 1;
        } else {
            let source = if matches!(op, Op::Read { .. }) { 1 - side } else { side };
            let rail = link.rail.map(|rail| self.rails_busy_ps.entry(rail).or_default());
            let due_ns = due_ns(link, rail, [side, source], now_ns, len, &fate);
            let arrival = Arrival { link: number, side, what: What::Op };
            self.arrivals.insert((due_ns, self.submitted), arrival);
        }
        link.ends[side].flights.insert(self.submitted, Flight { ticket, op, fate });
        Ok(())
    }

    /// Does what is due and appends what it means for one end.
    pub fn poll(
        &mut self,
        number: u64,
        side: usize,
        completions: &mut Vec<Completion>,
    ) -> Result<(), FabricError> {
        self.run_due();
        let end = &mut self.links.get_mut(&number).expect(HELD).ends[side];
        completions.extend(end.take_ready());
        end.ended.clone().map_or(Ok(()), Err)
    }

    /// How long the holder of an end may sleep.
    pub fn wait(&self, number: u64, side: usize) -> Duration {
        if self.links[&number].ends[side].has_news() {
            return Duration::ZERO;
        }
        let next = self.arrivals.iter().find(|(_, arrival)| arrival.link == number);
        match (next, &self.clock) {
            (Some(((due_ns, _), _)), Clock::Real { .. }) => {
                Duration::from_nanos(due_ns.saturating_sub(self.now_ns())).min(WAIT_MAX)
            }
            _ => WAIT_IDLE,
        }
    }

    /// Ends a link from one side and hands over all that this side had, each with an error:
    /// even what succeeded, since the driver has not seen it and may not count on it.
    pub fn abort(&mut self, number: u64, side: usize, completions: &mut Vec<Completion>) {
        let mut causes = [FabricError::Closed, FabricError::Closed];
        causes[side] = FabricError::Aborted;
        self.die(number, causes);
        let ready = self.links.get_mut(&number).expect(HELD).ends[side].take_ready();
        completions.extend(ready.into_iter().filter_map(|completion| match completion {
            Completion::Done { ticket, buffer, result } => {
                let result = result.and(Err(FabricError::Aborted));
                Some(Completion::Done { ticket, buffer, result })
            }
            Completion::Notified { .. } => None,
        }));
    }

    /// Ends every link of a rail, as a port that goes down does.
    pub fn cut_rail(&mut self, rail: u16) {
        let on_rail = |link: &LinkState| link.rail == Some(rail) && !link.is_dead();
        let cut: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, link)| on_rail(link))
            .map(|(&number, _)| number)
            .collect();
        for number in cut {
            self.counts.deaths += 1;
            self.die(number, [FabricError::Closed, FabricError::Closed]);
        }
    }

    /// Forgets one handle, and the link with its last.
    pub fn release(&mut self, number: u64) {
        let link = self.links.get_mut(&number).expect(HELD);
        link.holders -= 1;
        if link.holders == 0 {
            self.links.remove(&number);
        }
    }

    #[cfg(test)]
    pub fn link_count(&self) -> usize {
        self.links.len()
    }

    #[cfg(test)]
    pub fn depth_of(&self, number: u64, side: usize) -> usize {
        self.links[&number].ends[side].depth()
    }

    fn run_due(&mut self) {
        let now_ns = self.now_ns();
        while let Some(first) = self.arrivals.first_entry()
            && first.key().0 <= now_ns
        {
            let ((due_ns, seq), arrival) = first.remove_entry();
            self.arrive(due_ns, seq, arrival);
        }
    }

    fn arrive(&mut self, due_ns: u64, seq: u64, arrival: Arrival) {
        let Arrival { link: number, side, what } = arrival;
        let link = self.links.get_mut(&number).expect("a dying link takes its arrivals along");
        match what {
            What::NotifyAgain(tag) => {
                link.again_count -= 1;
                // A fault must not be the reason for an overrun, so a full queue drops it.
                self.counts.duplicated += u64::from(link.ends[1 - side].notify(tag).is_ok());
            }
            What::Op => match link.arrive(side, seq, &mut self.counts) {
                After::Nothing => {}
                After::NotifyAgain { tag, after_ns } => {
                    let again = Arrival { link: number, side, what: What::NotifyAgain(tag) };
                    self.arrivals.insert((due_ns.saturating_add(after_ns), seq), again);
                }
                After::Die(cause) => self.die(number, [cause.clone(), cause]),
            },
        }
    }

    fn die(&mut self, number: u64, causes: [FabricError; 2]) {
        self.arrivals.retain(|_, arrival| arrival.link != number);
        self.links.get_mut(&number).expect(HELD).die(causes);
    }
}

/// When an operation arrives: after what is on the wire before it, its own bytes and its
/// latency, and not before its predecessors unless it is its fate to be late. The wire is the
/// link's own, or that of its rail.
fn due_ns(
    link: &mut LinkState,
    rail: Option<&mut [u128; 2]>,
    [side, source]: [usize; 2],
    now_ns: u64,
    len: usize,
    fate: &Fate,
) -> u64 {
    let wire = &mut rail.unwrap_or(&mut link.busy_ps)[source];
    *wire = (*wire).max(u128::from(now_ns) * PS_PER_NS) + link.faults.wire_ps(len);
    let sent_ns = u64::try_from(wire.div_ceil(PS_PER_NS)).unwrap_or(u64::MAX);
    let order = &mut link.ends[side].in_order_ns;
    *order = sent_ns.saturating_add(fate.latency_ns).max(*order);
    order.saturating_add(fate.late_ns)
}

/// What a link takes unless told otherwise.
const LIMITS: Limits = Limits {
    depth_max: 64,
    message_bytes_max: 16 << 20,
    sends_from_file: true,
    registers_buffers: false,
};
/// The longest sleep towards a known arrival.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// The sleep when nothing is known: the far end may submit at any time.
const WAIT_IDLE: Duration = Duration::from_millis(1);
const PS_PER_NS: u128 = 1000;
const HELD: &str = "a link lives as long as a handle of it";
