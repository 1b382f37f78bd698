//! Regions: what a peer is told of registered memory, and how many there may be. What is
//! registered, and with what, is the business of `domain` and `verbs`.

/// Regions one domain may have at a time.
pub const REGIONS_MAX: usize = 4096;

/// What a peer needs to address registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionHandle {
    /// The key.
    pub key: u64,
    /// The address of the first byte.
    pub base: u64,
}
