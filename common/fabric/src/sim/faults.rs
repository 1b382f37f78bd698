//! Faults: what a simulated link does wrong, and how slow it is. Owns the seeded
//! numbers and draws one fate per operation; it never touches memory or time.
//! Called by the schedule in `net` when an operation is submitted.

/// What goes wrong on the links of a simulated network, and how fast they are.
///
/// The default is a perfect network: no fault, no delay, no bound on bandwidth. Probabilities
/// are per operation, in parts per million.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// How often one bit of the data moved is flipped.
    pub corrupt_ppm: u32,
    /// How often an operation moves nothing and stays in flight until `abort`.
    pub lose_ppm: u32,
    /// How often a notification arrives a second time, up to `jitter_ns` + `reorder_ns` later.
    pub duplicate_ppm: u32,
    /// How often an operation is held back so that later ones may overtake it.
    pub reorder_ppm: u32,
    /// The longest time an operation is held back.
    pub reorder_ns: u64,
    /// The latency that every operation has.
    pub delay_ns: u64,
    /// The most latency added to `delay_ns`; it keeps the order of operations.
    pub jitter_ns: u64,
    /// How often the link dies, for both ends, instead of doing the operation.
    pub death_ppm: u32,
    /// After how many bytes, both directions together, a link dies; the operation that crosses
    /// this is torn.
    pub die_after_bytes: Option<u64>,
    /// Bytes a second of one link in one direction; unbounded when absent.
    pub bandwidth_bytes_per_s: Option<u64>,
}

impl Faults {
    /// Draws what will happen to an operation of `len` bytes. The number of draws is always
    /// the same, so that one probability does not shift the luck of another.
    pub(super) fn draw(&self, rng: &mut Rng, len: usize) -> Fate {
        let lost = rng.hits(self.lose_ppm);
        let dies = rng.hits(self.death_ppm);
        let corrupt = rng.hits(self.corrupt_ppm);
        let duplicate = rng.hits(self.duplicate_ppm);
        let reorder = rng.hits(self.reorder_ppm) && self.reorder_ns > 0;
        let jitter_ns = rng.up_to(self.jitter_ns);
        let late_ns = 1 + rng.up_to(self.reorder_ns.saturating_sub(1));
        let again_ns = rng.up_to(self.jitter_ns.saturating_add(self.reorder_ns));
        let bit = rng.up_to((len as u64 * 8).saturating_sub(1));
        Fate {
            lost,
            dies,
            flip_bit: (corrupt && len > 0).then_some(bit),
            again_ns: duplicate.then_some(again_ns),
            latency_ns: self.delay_ns.saturating_add(jitter_ns),
            late_ns: if reorder { late_ns } else { 0 },
        }
    }

    /// How long the wire is busy with `len` bytes. Picoseconds, because 4 KiB take 81.92 ns
    /// at 400 Gb/s and the remainders add up.
    pub(super) fn wire_ps(&self, len: usize) -> u128 {
        self.bandwidth_bytes_per_s
            .map_or(0, |rate| len as u128 * 1_000_000_000_000 / u128::from(rate.max(1)))
    }
}

/// What will happen to one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    /// It never completes.
    pub lost: bool,
    /// The link dies instead of doing it.
    pub dies: bool,
    /// The bit of the data that is flipped.
    pub flip_bit: Option<u64>,
    /// How long after the first the second notification arrives.
    pub again_ns: Option<u64>,
    /// Latency, jitter included.
    pub latency_ns: u64,
    /// How long it is held back out of order.
    pub late_ns: u64,
}

/// A small seeded generator: splitmix64.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// A generator of its own for every end of every link, so that what one link meets does
    /// not depend on how busy another is.
    pub fn new(seed: u64, link: u64, side: usize) -> Self {
        let mut rng = Self(seed);
        let mut rng = Self(rng.next() ^ link);
        Self(rng.next() ^ side as u64)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `max`, both included.
    fn up_to(&mut self, max: u64) -> u64 {
        let scaled = u128::from(self.next()) * (u128::from(max) + 1);
        (scaled >> 64) as u64
    }

    fn hits(&mut self, ppm: u32) -> bool {
        self.up_to(PPM - 1) < u64::from(ppm)
    }
}

const PPM: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probability_is_met_and_its_ends_are_certain() {
        let mut rng = Rng::new(7, 1, 0);
        let hits = (0..100_000).filter(|_| rng.hits(250_000)).count();
        assert!((24_000..26_000).contains(&hits), "{hits} of 100000 at a quarter");
        assert!((0..1000).all(|_| !rng.hits(0)));
        assert!((0..1000).all(|_| rng.hits(1_000_000)));
    }

    #[test]
    fn every_end_of_every_link_has_its_own_luck() {
        let first = |seed, link, side| Rng::new(seed, link, side).next();
        assert_eq!(first(1, 2, 0), first(1, 2, 0));
        assert_ne!(first(1, 2, 0), first(1, 2, 1));
        assert_ne!(first(1, 2, 0), first(1, 3, 0));
        assert_ne!(first(1, 2, 0), first(2, 2, 0));
    }

    #[test]
    fn the_wire_time_keeps_fractions_of_a_nanosecond() {
        let faults = Faults { bandwidth_bytes_per_s: Some(50_000_000_000), ..Faults::default() };
        assert_eq!(faults.wire_ps(4096), 81_920);
        assert_eq!(Faults::default().wire_ps(4096), 0);
    }
}
