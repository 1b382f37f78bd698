//! What keeps RDMA on this machine from working, or from being as quick as it
//! could be, and what mends it. `facts` are read from files below a root that is a
//! parameter, `checks` are pure functions of facts that yield findings, and a
//! `Report` is both, with the texts that are made of it. Nothing here changes the
//! machine, and nothing waits without a deadline. `rdma-doctor` prints it all;
//! `rdma-serve` looks when it starts and tells what is degraded.

#![forbid(unsafe_code)]

mod checks;
pub mod counters;
mod env;
mod facts;
mod finding;
mod report;
mod script;
mod tree;

pub use env::nccl_exports;
pub use facts::{ExportFacts, Facts, ReadPath};
pub use finding::{Finding, Fix, Severity};
pub use report::Report;
pub use script::fix_script;
pub use tree::Tree;
