//! What people see of Verbatim while it runs: the set-up of logs, the definitions
//! of metrics, the port that shows them, and what systemd is told. Each binary makes its own values and hands them down;
//! there are no globals but the subscriber of logs. Depends on nothing of ours.

#![forbid(unsafe_code)]

pub mod doctor;
mod event;
pub mod labels;
mod lines;
mod logging;
pub mod notify;
pub mod port;
pub mod run;
pub mod serve;
mod stamp;

pub use lines::Gathering;
pub use logging::{Format, Logs, start};
