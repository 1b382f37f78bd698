//! Code that the commands of the client share: connection flags, the trust prompt, exit
//! codes and output. Part of each binary, because the library never touches a terminal.

pub mod connection;
pub mod exit;
pub mod output;
pub mod records;
pub mod sanitize;
pub mod transport;
pub mod trust_prompt;
