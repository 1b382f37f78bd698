//! What a server says of its files, for whoever shows them as a file system: attributes of
//! one, names and attributes of a folder. Values alone; `service` asks for them.

pub mod attributes;
pub mod listing;
pub mod service;

pub use crate::remote_fs::attributes::StatInfo;
pub use crate::remote_fs::listing::Listing;
