//! What of metadata a file system can keep, whatever the rules are: so that what a
//! target cannot keep is no difference. Plain values; found out by `files::habits`,
//! told by a server with `MirrorReply::Habits`.

use crate::{Meta, Resolution};
use serde::{Deserialize, Serialize};

/// What a file system does with times and attributes. By default, all of both is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Habits {
    /// How finely times are kept.
    pub resolution: Resolution,
    /// Which attributes are not.
    pub lacks: Lacks,
}

/// Extended attributes that a file system does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacks {
    /// `user.*`.
    pub user: bool,
    /// Access control lists.
    pub lists: bool,
    /// `security.*`.
    pub security: bool,
    /// `trusted.*`.
    pub trusted: bool,
}

/// The access control list of a file or folder.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

/// The bits of the group. With such a list they are its mask, and more than it gives.
pub const ACL_MASK: u32 = 0o070;

impl Lacks {
    /// What is left of the permission bits: nobody gets what a list took from the group.
    pub fn mode_of(&self, meta: &Meta) -> u32 {
        let lost = self.lists && meta.xattrs.iter().any(|xattr| xattr.name == ACL_ACCESS);
        if lost { meta.mode & !ACL_MASK } else { meta.mode }
    }

    /// Whether an attribute of this name is one of those.
    pub fn lacks(&self, name: &[u8]) -> bool {
        let of: [(&[u8], bool); 4] = [
            (b"user.", self.user),
            (b"system.posix_acl_", self.lists),
            (b"security.", self.security),
            (b"trusted.", self.trusted),
        ];
        of.iter().any(|(prefix, lacks)| *lacks && name.starts_with(prefix))
    }
}
