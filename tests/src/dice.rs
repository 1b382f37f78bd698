//! Numbers that follow from a seed, so that what fails can be run again. Used by
//! tests that sample; never for anything that must be secret.

/// A stream of numbers.
pub struct Dice(blake3::OutputReader);

impl Dice {
    /// The numbers of one seed of one kind of test.
    pub fn new(kind: &str, seed: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        Self(hasher.update(kind.as_bytes()).update(&seed.to_le_bytes()).finalize_xof())
    }

    /// Any number.
    pub fn roll(&mut self) -> usize {
        let mut bytes = [0; 4];
        self.0.fill(&mut bytes);
        u32::from_le_bytes(bytes) as usize
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.roll() % end
    }

    /// Whether something happens that does once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
