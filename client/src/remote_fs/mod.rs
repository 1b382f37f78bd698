//! What a server says of its files, for whoever shows them as a file system: attributes of
//! one, names and attributes of a folder. Values alone; `session::serving` asks for them.

pub mod attributes;
pub mod listing;

pub use attributes::Seen;
pub use listing::Listing;
