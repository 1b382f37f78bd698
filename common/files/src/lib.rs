//! Files as Verbatim needs them, on either side: folders that paths cannot
//! leave, identities that tell whether a file changed, grain hashing with
//! pread, temporary targets, and commits that survive a power cut. No network
//! and no protocol state; called by the drivers in `client` and `server`.

#![forbid(unsafe_code)]

pub mod accounts;
mod alter;
pub mod bare;
mod beneath;
mod charge;
pub mod checked;
mod commit;
pub mod folder;
mod habits;
pub mod hash;
pub mod hold;
pub mod holes;
pub mod identity;
pub mod journal;
pub mod lanes;
pub mod limit;
pub mod memo;
pub mod meta;
pub mod mounts;
mod names;
mod naming;
mod opened;
pub mod paging;
pub mod partial;
mod prune;
pub mod reap;
pub mod regular;
pub mod replace;
mod reuse;
mod rules;
mod sharing;
mod sight;
pub mod source;
pub mod space;
pub mod stage;
mod stale;
mod stamp;
mod storage;
pub mod target;
mod ties;
pub mod tree;
pub mod walk;
pub mod watch;

pub use charge::{Charge, Cost};
pub use folder::Folder;
pub use identity::Identity;
pub use meta::Rules;
pub use naming::Over;
pub use source::Source;
pub use target::Target;
pub use tree::TreeWalk;
pub use walk::Walk;
pub use watch::{Told, Watching};
