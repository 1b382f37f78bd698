//! The local ends of a copy: files, ranges in memory, buffers, pipes, and queues spooled to disk.
//! Never talks to a server. Below `connection`, above `model`.

pub mod buffer_pool;
pub mod counters;
pub mod delta_source;
pub mod download_file;
pub mod endpoint;
pub mod local_path;
pub mod pipe;
pub mod range_buffer;
pub mod spool;
pub mod stdin_source;
pub mod stdout_sink;
pub mod trace;
pub mod verify_file;
pub mod waker;
