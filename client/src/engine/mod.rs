//! One connection to a server and what moves over it: links and the workers that own them, the
//! clock of deadlines, ids, messages to send, the rate, and the outcomes of files. Never plans a
//! copy. Below `transfer`, above `local_io`.

pub mod fd_budget;
pub mod largest_first;
pub mod ledger;
pub mod link_buffers;
pub mod links;
pub mod outcomes;
pub mod port_scheduler;
pub mod rate_limit;
pub mod receive;
pub mod setup;
pub mod silence;
pub mod transport;
pub mod worker;
