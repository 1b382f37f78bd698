//! What the commands of the client have in common: the flags that say how to reach
//! a server, the stranger's question, how a command ends, and what all of them
//! print. Part of each command, not of the library, which never touches a terminal.

pub mod connection;
pub mod exit;
pub mod output;
pub mod records;
pub mod sanitize;
pub mod transport;
pub mod trust_prompt;
