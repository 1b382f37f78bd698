//! Owners by name: a number means one account here and perhaps another one there,
//! a name means the same. Plain values that a mirror asks its server for; who looks
//! them up is `files::accounts`, who remembers them is the client.

use crate::units::PAGE_ENTRIES_MAX;
use serde::{Deserialize, Serialize};

/// A user or a group, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// Whether it is a group.
    pub is_group: bool,
    /// The number.
    pub number: u32,
}

/// A user or a group, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OwnerName {
    /// Whether it is a group.
    pub is_group: bool,
    /// The name. No account has one that is cleaned.
    #[serde(deserialize_with = "crate::text::cleaned")]
    pub name: String,
}

/// Owners that may be asked for at a time: an entry has two.
pub const OWNERS_MAX: usize = 2 * PAGE_ENTRIES_MAX;

impl Owner {
    /// A user.
    pub fn user(number: u32) -> Self {
        Self { is_group: false, number }
    }

    /// A group.
    pub fn group(number: u32) -> Self {
        Self { is_group: true, number }
    }
}
