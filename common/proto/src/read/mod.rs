//! The read machines.
