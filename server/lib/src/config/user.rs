//! A user of this machine, from `/etc/passwd` and `/etc/group`. Owns the parsing of both.
//! Changes no privileges: the sandbox makes the process this user.

use super::ConfigError;
use std::path::PathBuf;

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    home: PathBuf,
}

impl User {
    /// Finds a user by name in `/etc/passwd`, and its groups in `/etc/group`.
    pub fn find(name: &str) -> Result<Self, ConfigError> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let found = Self::parse(name, &read("/etc/passwd"), &read("/etc/group"));
        found
            .ok_or_else(|| ConfigError::cannot_run_as(name, "there is no such user in /etc/passwd"))
    }

    fn parse(name: &str, passwd: &str, group: &str) -> Option<Self> {
        let of = |line: &&str| line.split(':').next() == Some(name);
        let fields: Vec<&str> = passwd.lines().find(of)?.split(':').collect();
        let [_, _, uid, gid, _, home, ..] = fields[..] else { return None };
        let gid = gid.parse().ok()?;
        let member = |line: &str| {
            let [_, _, id, members] = line.split(':').collect::<Vec<_>>()[..] else { return None };
            members.split(',').any(|member| member == name).then(|| id.parse().ok())?
        };
        let groups = group.lines().filter_map(member).chain([gid]).collect();
        Some(Self { uid: uid.parse().ok()?, gid, groups, home: home.into() })
    }

    /// Where its state is where none is set.
    pub fn state_dir(&self) -> PathBuf {
        self.home.join(".local/state/verbatim")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_user_is_found_with_all_its_groups() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nserve:x:70:71::/srv/serve:/bin/false\n";
        let group = "root:x:0:\nserve:x:71:\nrdma:x:72:alice,serve\nother:x:73:servers\n";
        let user = User::parse("serve", passwd, group).unwrap();
        assert_eq!((user.uid, user.gid, user.groups.clone()), (70, 71, vec![72, 71]));
        assert_eq!(user.state_dir(), Path::new("/srv/serve/.local/state/verbatim"));
        assert_eq!(User::parse("serv", passwd, group), None);
        assert_eq!(User::parse("", passwd, group), None);
    }
}
