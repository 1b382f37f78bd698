//! What a hostile peer or a damaged disk could hand us, as functions of bytes:
//! each target takes any input, and panics where something that must always
//! hold does not. `tests/hostile.rs` runs them on kept and on seeded inputs,
//! `tests/fuzz` under a fuzzer. No target touches the network, or anything on
//! disk but a folder of its own.

mod draw;
mod messages;
mod read_client;
mod read_server;
mod sessions;
mod stores;
mod texts;
mod write_client;
mod write_server;

pub use sessions::client_message;

/// A name, and what takes the input.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by the name of its corpus.
pub const TARGETS: &[Target] = &[
    ("frames", texts::frames),
    ("paths", texts::paths),
    ("config", texts::config),
    ("read_server", read_server::run),
    ("write_server", write_server::run),
    ("read_client", read_client::run),
    ("write_client", write_client::run),
    ("journal", stores::journal),
    ("digest_cache", stores::digest_cache),
];

/// Events one input may lead to; what is behind them is not looked at.
const STEPS_MAX: usize = 512;

/// What one event may ask of a driver at most: a bound on what a peer can cause with a message.
const EFFECTS_MAX: usize = 8192;
