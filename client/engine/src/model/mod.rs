//! Values that all other modules share: locations, policies, placement and reports. Never touches a
//! file or a socket. The lowest module.

pub mod copy_policy;
pub mod delete_limit;
pub mod follow_status;
pub mod location;
pub mod placement;
pub mod report;
pub mod size;
