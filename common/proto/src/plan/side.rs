//! The two trees of a plan. Whoever takes entries of both says by it which one they
//! are of: the merge, its streams, and the drivers that feed them.

/// Which of the two trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What the target is to be.
    Source,
    /// What it is.
    Target,
}
