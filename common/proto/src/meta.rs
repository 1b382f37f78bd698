//! Metadata: what `-p` keeps of a file, folder or link beside its content. It
//! crosses the wire only where it was asked for. Also the count of what the
//! receiving side did not keep: nothing is dropped without a word.

use crate::units::{NAME_BYTES_MAX, XATTR_BYTES_MAX};
use crate::{Code, Fault};
use serde::{Deserialize, Serialize};

/// What is kept beside the content. What it claims is believed only as far as the receiving
/// side allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The permission bits, special ones included.
    pub mode: u32,
    /// The number of the owner.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
    /// When it was read last, in nanoseconds since 1970.
    pub atime_ns: i64,
    /// When its content changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The extended attributes; access control lists are among them.
    pub xattrs: Vec<Xattr>,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xattr {
    /// Its name, such as `user.comment`.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Its value.
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
}

/// What a receiving side keeps of metadata, so that the other side knows what to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeps {
    /// Who makes files there.
    pub user: (u32, u32),
    /// Whether files get the owner and group that their source claims.
    pub give_away: bool,
    /// Who gets what claims to be root's.
    pub squash: Option<(u32, u32)>,
    /// Whether setuid, setgid and sticky bits may arrive.
    pub special_bits: bool,
    /// Whether `security.*` and `trusted.*` may arrive.
    pub privileged_xattrs: bool,
}

/// The metadata of a file, where it is to be kept.
pub type Kept = Option<Box<Meta>>;

impl Meta {
    /// About how many bytes it takes in a message.
    pub fn weight(&self) -> usize {
        self.xattr_bytes() + NUMBERS_BYTES
    }

    /// About how many bytes its extended attributes take, wherever they are.
    fn xattr_bytes(&self) -> usize {
        self.xattrs.iter().map(Xattr::weight).sum()
    }

    /// Refuses what no file system would have told: too much, or names that are none.
    pub fn check(&self) -> Result<(), Fault> {
        let bytes = self.xattr_bytes();
        if bytes > XATTR_BYTES_MAX {
            let text = format!(
                "extended attributes of {bytes} bytes are more than the {XATTR_BYTES_MAX} that \
                 can be kept"
            );
            return Err(Fault::new(Code::Limit, text));
        }
        let is_name =
            |name: &[u8]| (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0);
        if self.xattrs.iter().all(|xattr| is_name(&xattr.name)) {
            return Ok(());
        }
        Err(Fault::new(Code::Protocol, "peer sent an extended attribute without a proper name"))
    }
}

impl Xattr {
    /// About how many bytes it takes, wherever it is.
    pub fn weight(&self) -> usize {
        self.name.len() + self.value.len() + 8
    }
}

/// What the numbers of metadata take at most.
const NUMBERS_BYTES: usize = 64;

/// How much metadata the receiving side did not keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Files, folders and links that have another owner or group than their source.
    pub owners: u64,
    /// Files and folders that lost a setuid, setgid or sticky bit.
    pub special_bits: u64,
    /// Extended attributes that were not set.
    pub xattrs: u64,
}

impl Dropped {
    /// Whether everything was kept.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::AddAssign for Dropped {
    fn add_assign(&mut self, other: Self) {
        self.owners = self.owners.saturating_add(other.owners);
        self.special_bits = self.special_bits.saturating_add(other.special_bits);
        self.xattrs = self.xattrs.saturating_add(other.xattrs);
    }
}

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = [
            (self.owners, "owner", "owners"),
            (self.special_bits, "setuid, setgid or sticky bit", "setuid, setgid or sticky bits"),
            (self.xattrs, "extended attribute", "extended attributes"),
        ];
        let mut first = true;
        for (count, one, many) in counts.into_iter().filter(|(count, ..)| *count > 0) {
            let comma = if std::mem::take(&mut first) { "" } else { ", " };
            write!(f, "{comma}{count} {}", if count == 1 { one } else { many })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_reads_as_a_list() {
        let mut dropped = Dropped::default();
        assert!(dropped.is_empty());
        dropped += Dropped { owners: 2, special_bits: 0, xattrs: 1 };
        dropped += Dropped { owners: 1, ..Dropped::default() };
        assert_eq!(dropped.to_string(), "3 owners, 1 extended attribute");
    }

    #[test]
    fn too_much_and_nameless_metadata_is_refused() {
        let with = |name: &[u8], bytes: usize| {
            let xattrs = vec![Xattr { name: name.to_vec(), value: vec![7; bytes] }];
            Meta { xattrs, ..Meta::default() }.check().map_err(|fault| fault.code)
        };
        assert_eq!(with(b"user.a", 60_000), Ok(()));
        assert_eq!(with(b"user.a", XATTR_BYTES_MAX), Err(Code::Limit));
        assert_eq!(with(b"", 1), Err(Code::Protocol));
        assert_eq!(with(b"user.\0", 1), Err(Code::Protocol));
        assert_eq!(with(&[b'x'; 256], 1), Err(Code::Protocol));
    }
}
