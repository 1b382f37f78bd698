//! The write machines.
