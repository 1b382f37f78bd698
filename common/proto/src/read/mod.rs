//! Reading: the server leases windows, the client reads them one-sided, and
//! compares every grain with a digest that came over the control connection.
//! Both machines are fed events and a clock reading, and queue effects. They
//! hold numbers of slots and windows, never bytes.
//!
//! ```text
//! client                                   server
//!   Open{files}            ------------->    Open, fstat
//!                          <-------------    Opened{info}
//!                          <-------------    Lease{window, region, pieces, digests}
//!                          <-------------    Holes{window, extents}, instead of zeros
//!   READ chunks of the window (no message per chunk), verify, pwrite
//!   Release{window}        ------------->    deregister, lease the next
//!   Close{files}           ------------->    identity the same?
//!                          <-------------    Closed{ok | changed}
//! ```

mod chunk;
mod client;
mod server;
mod slots;
mod types;

pub(crate) use chunk::check_piece;

pub use chunk::Chunk;
pub use client::{Part, ReadClient};
pub use server::{Opened, Prepare, Prepared, ReadServer, ServerEffect};
pub use types::{ClientEffect, ClientOptions, Fetch, Have, Outcome, PieceOutcome, Zero};
