//! Moves files and folders over an engine: downloads, uploads, comparisons, folders, links and
//! pipes. Never compares two trees. Below `tree_sync`, above `engine`.

pub mod dir_metadata;
pub mod download;
pub mod local_walk;
pub mod pipe_transfer;
pub mod remote_mkdir;
pub mod remote_scan;
pub mod select;
pub mod upload;
pub mod verify;
