//! The remote tree as a mount sees it: attributes of entries and listings of folders. Plain values;
//! `service` requests them.

pub mod attributes;
pub mod listing;
pub mod service;

pub use crate::remote_fs::attributes::StatInfo;
pub use crate::remote_fs::listing::Listing;
