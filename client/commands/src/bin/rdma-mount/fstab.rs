//! The options of mount(8), given by fstab and systemd after `-o`: turns our own into
//! flags, ignores those that all file systems get, and rejects unknown ones. Pure;
//! `flags` parses the result.

use crate::shared::exit::FlagError;
use clap::Command;

/// Options that mount(8), mount.fuse and systemd pass to every file system. Ours is always
/// read-only, without devices, setuid and access times.
const IGNORED: [&str; 31] = [
    "ro",
    "rw",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "dev",
    "nodev",
    "suid",
    "nosuid",
    "exec",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "async",
    "sync",
    "dirsync",
    "default_permissions",
];

/// Prefixes of such options.
const IGNORED_PREFIXES: [&str; 3] = ["x-", "X-", "comment="];

/// Flags that are not mount options.
const NOT_OPTIONS: [&str; 4] = ["status", "background", "help", "version"];

/// Turns mount options into flags: `cache_size=64G` is `--cache-size=64G`.
pub fn to_flags(options: &[String], command: &Command) -> Result<Vec<String>, FlagError> {
    let mut flags = Vec::new();
    for option in options.iter().flat_map(|given| split_options(given)) {
        let is_ignored =
            IGNORED.contains(&&*option) || IGNORED_PREFIXES.iter().any(|it| option.starts_with(it));
        if is_ignored || option.is_empty() {
            continue;
        }
        let (name, value) = option.split_once('=').map_or((&*option, None), |(a, b)| (a, Some(b)));
        let flag = name.replace('_', "-");
        let is_flag = command.get_arguments().any(|known| known.get_long() == Some(&*flag));
        if !is_flag || NOT_OPTIONS.contains(&&*flag) {
            let hint = "every long flag is an option without its dashes, such as \
                        cache_size=64G; rdma-mount --help names them";
            let cause = format!("{name} is not an option of this file system");
            return Err(FlagError::usage(cause, Some(hint.into())));
        }
        flags.push(value.map_or(format!("--{flag}"), |value| format!("--{flag}={value}")));
    }
    Ok(flags)
}

/// Splits a list of options at commas; a backslash escapes a comma.
fn split_options(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut chars = list.chars();
    while let Some(char) = chars.next() {
        let last = options.last_mut().expect("the list starts with one option");
        match char {
            ',' => options.push(String::new()),
            '\\' => last.extend(chars.next()),
            char => last.push(char),
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Flags;
    use clap::CommandFactory;

    fn of(list: &str) -> Result<Vec<String>, String> {
        to_flags(&[list.to_owned()], &Flags::command()).map_err(|error| error.cause)
    }

    #[test]
    fn general_mount_options_are_ignored_and_our_options_become_flags() {
        let list = "rw,_netdev,nofail,x-systemd.automount,dev,suid,allow_other,noexec,\
                    cache_size=64G,fill,cache=/a\\,b,timeout=5";
        let flags = [
            "--allow-other",
            "--noexec",
            "--cache-size=64G",
            "--fill",
            "--cache=/a,b",
            "--timeout=5",
        ];
        assert_eq!(of(list).expect("all are known"), flags);
        assert!(of("").expect("none is fine").is_empty());
    }

    #[test]
    fn an_unknown_mount_option_is_refused_by_name() {
        for unknown in ["colour=red", "status=/mnt", "background", "allow_otter"] {
            let name = unknown.split('=').next().expect("has one");
            let refused = of(&format!("ro,{unknown}")).expect_err("is unknown");
            assert_eq!(refused, format!("{name} is not an option of this file system"));
        }
    }
}
