//! What end-to-end tests share: a server and copies against it (`pair`), trees
//! to copy and to compare (`tree`), a network that misbehaves (`proxy`), a client
//! that says what it wants (`raw`), even what is no message (`frames`), a server
//! that lies (`liar`), a server that comes back (`place`, `port`), what an
//! enemy could send (`hostile`), what a disk has after a power cut (`powercut`), what
//! is held (`holding`), which ports have a listener (`sockets`), luck that can be had again (`dice`), and waits that say what they
//! saw when they give up (`wait`, `output`).
//! Only tests use this crate. Everything it makes lives in temporary folders and
//! on loopback, and goes with its handle.

#![forbid(unsafe_code)]

pub mod churn;
pub mod dice;
pub mod frames;
pub mod holding;
pub mod hostile;
pub mod http;
pub mod liar;
pub mod output;
pub mod pair;
pub mod place;
pub mod port;
pub mod powercut;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod sockets;
pub mod tree;
pub mod wait;
