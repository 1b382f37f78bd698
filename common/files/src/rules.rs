//! What of metadata is allowed here: a pure function of what its source claims and of
//! the rules of the receiving side; nothing here trusts a claim. Never touches a file:
//! `meta` gives files what is allowed.

use rustix::thread::{CapabilitySet, capabilities};
use verbatim_proto::habits::ACL_ACCESS;
use verbatim_proto::meta::{Keeps, Xattr};
use verbatim_proto::{Dropped, Meta};

/// What the receiving side allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Who makes files here: the user and group of this process.
    pub user: (u32, u32),
    /// Whether files get the owner and group that their source claims. Needs root, or `GIVING`.
    pub give_away: bool,
    /// Who gets what claims to be root's; `None` lets it be root's. While this is set, no file
    /// of root gets a setuid or setgid bit.
    pub squash: Option<(u32, u32)>,
    /// Whether setuid, setgid and sticky bits may arrive.
    pub special_bits: bool,
    /// Whether `security.*` and `trusted.*` may arrive; file capabilities are among them.
    pub privileged_xattrs: bool,
}

/// What metadata is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link: it has no mode of its own, and none of its attributes is kept.
    Link,
}

/// What of some metadata is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed<'m> {
    /// To whom it is given, if to anybody.
    pub owner: Option<(u32, u32)>,
    /// The permission bits.
    pub mode: u32,
    /// The extended attributes.
    pub xattrs: Vec<&'m Xattr>,
}

impl Rules {
    /// What cp -a keeps for this user: root everything, others what is theirs to set.
    pub fn of_user() -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Self {
            user: (uid.as_raw(), gid.as_raw()),
            give_away: uid.is_root() || can_give_away(),
            squash: None,
            special_bits: true,
            privileged_xattrs: uid.is_root(),
        }
    }
}

/// What it takes to give files away: to change their owner, and to set modes and times of files
/// that are another's by then.
pub const GIVING: CapabilitySet =
    CapabilitySet::CHOWN.union(CapabilitySet::FOWNER).union(CapabilitySet::FSETID);

fn can_give_away() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(GIVING))
}

impl From<Keeps> for Rules {
    fn from(keeps: Keeps) -> Self {
        let Keeps { user, give_away, squash, special_bits, privileged_xattrs } = keeps;
        Self { user, give_away, squash, special_bits, privileged_xattrs }
    }
}

impl From<Rules> for Keeps {
    fn from(rules: Rules) -> Self {
        let Rules { user, give_away, squash, special_bits, privileged_xattrs } = rules;
        Self { user, give_away, squash, special_bits, privileged_xattrs }
    }
}

/// What something will have where these rules hold, so that it can be compared with what is
/// there.
pub fn expected(meta: &Meta, kind: Kind, rules: &Rules) -> Meta {
    let (Allowed { mode, xattrs, .. }, _) = allowed(meta, kind, rules);
    let xattrs = xattrs.into_iter().cloned().collect();
    let (uid, gid) = owner_of(meta, rules);
    Meta { mode, uid, gid, xattrs, ..meta.clone() }
}

/// Decides what of metadata is set here, and counts what is not.
pub fn allowed<'m>(meta: &'m Meta, kind: Kind, rules: &Rules) -> (Allowed<'m>, Dropped) {
    let mut dropped = Dropped::default();
    let claimed = (meta.uid, meta.gid);
    let owner = owner_of(meta, rules);
    dropped.owners += u64::from(owner != claimed);
    let mode = if kind == Kind::Link { 0 } else { allowed_mode(meta, kind, owner, rules) };
    let lost = kind != Kind::Link && mode != meta.mode & 0o7777;
    dropped.special_bits += u64::from(lost);
    let (xattrs, refused): (Vec<_>, Vec<_>) =
        meta.xattrs.iter().partition(|xattr| is_allowed(&xattr.name, kind, rules));
    dropped.xattrs += refused.len() as u64;
    (Allowed { owner: rules.give_away.then_some(owner), mode, xattrs }, dropped)
}

/// Whom something belongs to where these rules hold.
fn owner_of(meta: &Meta, rules: &Rules) -> (u32, u32) {
    if !rules.give_away {
        return rules.user;
    }
    let (uid, gid) = rules.squash.unwrap_or((0, 0));
    // The highest number is nobody's: given to chown it would leave the file root's.
    let unless_root = |id: u32, squash| if id == 0 || id == u32::MAX { squash } else { id };
    (unless_root(meta.uid, uid), unless_root(meta.gid, gid))
}

fn allowed_mode(meta: &Meta, kind: Kind, owner: (u32, u32), rules: &Rules) -> u32 {
    let mut mode = meta.mode & 0o7777;
    if !rules.special_bits {
        // On a folder the sticky bit only protects; on a file it is a bit nobody asked for.
        mode &= if kind == Kind::Folder { 0o1777 } else { 0o777 };
    }
    // As cp: the bits speak of an owner, and this is another one. And root's are root's to set.
    let squashed = |id: u32| rules.squash.is_some() && id == 0;
    if owner.0 != meta.uid || squashed(owner.0) {
        mode &= !0o4000;
    }
    if owner.1 != meta.gid || squashed(owner.1) {
        mode &= !0o2000;
    }
    mode
}

/// What of a mode a file gets that is not given away, and has this owner and group: the bits speak
/// of the user who makes files here, as `allowed_mode` has it.
pub(crate) fn mode_of_existing(mode: u32, (uid, gid): (u32, u32), rules: &Rules) -> u32 {
    let now = Meta { mode, uid, gid, ..Meta::default() };
    allowed_mode(&now, Kind::File, rules.user, rules)
}

/// Whether an attribute is one that only the powerful may set.
pub(crate) fn privileged(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

pub(crate) fn is_allowed(name: &[u8], kind: Kind, rules: &Rules) -> bool {
    let privileged = privileged(name);
    match kind {
        _ if privileged => rules.privileged_xattrs && kind != Kind::Link,
        Kind::File => name.starts_with(b"user.") || name == ACL_ACCESS,
        Kind::Folder => name.starts_with(b"user.") || name == ACL_ACCESS || name == ACL_DEFAULT,
        Kind::Link => false,
    }
}

/// The list that what is made in a folder begins with.
pub(crate) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Rules = Rules {
        user: (0, 0),
        give_away: false,
        squash: Some((65534, 65534)),
        special_bits: false,
        privileged_xattrs: false,
    };

    fn claim(uid: u32, gid: u32, mode: u32, names: &[&str]) -> Meta {
        let xattr = |name: &&str| Xattr { name: name.as_bytes().to_vec(), value: b"v".to_vec() };
        let xattrs = names.iter().map(xattr).collect();
        Meta { mode, uid, gid, atime_ns: 1, mtime_ns: 2, xattrs }
    }

    fn owner(meta: &Meta, rules: &Rules) -> (Option<(u32, u32)>, u64) {
        let (allowed, dropped) = allowed(meta, Kind::File, rules);
        (allowed.owner, dropped.owners)
    }

    #[test]
    fn owners_are_kept_only_where_they_are_given_away_and_never_root() {
        let given = Rules { give_away: true, ..SERVER };
        let open = Rules { squash: None, ..given };
        assert_eq!(owner(&claim(7, 8, 0, &[]), &SERVER), (None, 1));
        assert_eq!(owner(&claim(0, 0, 0, &[]), &SERVER), (None, 0), "it is root's anyway");
        assert_eq!(owner(&claim(7, 8, 0, &[]), &given), (Some((7, 8)), 0));
        assert_eq!(owner(&claim(0, 8, 0, &[]), &given), (Some((65534, 8)), 1));
        assert_eq!(owner(&claim(7, 0, 0, &[]), &given), (Some((7, 65534)), 1));
        assert_eq!(owner(&claim(0, 0, 0, &[]), &open), (Some((0, 0)), 0));
        // What chown takes for "as it is" must not leave the file root's.
        let nobody = claim(u32::MAX, u32::MAX, 0, &[]);
        assert_eq!(owner(&nobody, &given), (Some((65534, 65534)), 1));
    }

    fn mode(meta: &Meta, kind: Kind, rules: &Rules) -> u32 {
        let (allowed, dropped) = allowed(meta, kind, rules);
        assert_eq!(dropped.special_bits, u64::from(allowed.mode != meta.mode), "it is counted");
        allowed.mode
    }

    #[test]
    fn special_bits_are_dropped_unless_allowed_and_never_root_s() {
        let root = |mode| claim(0, 0, mode, &[]);
        assert_eq!(mode(&root(0o7755), Kind::File, &SERVER), 0o755);
        assert_eq!(mode(&root(0o7777), Kind::Folder, &SERVER), 0o1777, "sticky folders protect");
        assert_eq!(mode(&root(0o644), Kind::File, &SERVER), 0o644);
        let bits = Rules { special_bits: true, ..SERVER };
        assert_eq!(mode(&root(0o6755), Kind::File, &bits), 0o755, "the owner would be root");
        assert_eq!(mode(&claim(7, 8, 0o6755, &[]), Kind::File, &bits), 0o755, "of another owner");
        let given = Rules { give_away: true, ..bits };
        assert_eq!(mode(&claim(7, 8, 0o6755, &[]), Kind::File, &given), 0o6755);
        assert_eq!(mode(&claim(0, 8, 0o6755, &[]), Kind::File, &given), 0o2755);
        assert_eq!(mode(&claim(7, 0, 0o6755, &[]), Kind::File, &given), 0o4755);
        let open = Rules { squash: None, ..given };
        assert_eq!(mode(&root(0o6755), Kind::File, &open), 0o6755);
    }

    #[test]
    fn a_file_of_another_owner_gets_no_special_bits_from_a_user_who_may_set_its_mode() {
        let bits = Rules { user: (7, 8), special_bits: true, ..SERVER };
        assert_eq!(mode_of_existing(0o6755, (7, 8), &bits), 0o6755);
        assert_eq!(mode_of_existing(0o6755, (0, 8), &bits), 0o2755);
        assert_eq!(mode_of_existing(0o6755, (7, 0), &bits), 0o4755);
    }

    #[test]
    fn attributes_that_give_power_are_dropped_unless_allowed() {
        let names = [
            "user.a",
            "system.posix_acl_access",
            "system.posix_acl_default",
            "security.capability",
            "trusted.overlay.redirect",
            "system.nfs4_acl",
            "strange",
        ];
        let meta = claim(0, 0, 0, &names);
        let kept = |kind, rules: &Rules| {
            let (allowed, dropped) = allowed(&meta, kind, rules);
            assert_eq!(allowed.xattrs.len() as u64 + dropped.xattrs, names.len() as u64);
            let name = |xattr: &&Xattr| String::from_utf8_lossy(&xattr.name).into_owned();
            allowed.xattrs.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(kept(Kind::File, &SERVER), names[..2]);
        assert_eq!(kept(Kind::Folder, &SERVER), names[..3]);
        assert_eq!(kept(Kind::Link, &SERVER), [""; 0]);
        let open = Rules { privileged_xattrs: true, ..SERVER };
        assert_eq!(kept(Kind::Folder, &open), names[..5]);
        assert_eq!(kept(Kind::Link, &open), [""; 0]);
    }
}
