//! Drops privileges before the server accepts a client: root, where a user is configured, and
//! by Landlock access to every file that is neither exported nor the server's own. Owns the list
//! of paths that stay accessible. The binary calls it once, before it starts a second thread:
//! both are properties of a thread, which later threads inherit. Neither can be undone, so an
//! export that is added later needs another process, which the parent of `--reloadable` starts.

use crate::config::export::{Mode, Owner};
use crate::config::{Config, ConfigError, Tls, User};
pub use landlock::RulesetStatus;
use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    path_beneath_rules,
};
use rustix::process::{Gid, Uid};
use rustix::thread::{self, CapabilitySet, CapabilitySets};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use verbatim_files::meta::GIVING;

/// The Landlock ABI used; an older kernel enforces the rights that it knows.
const LANDLOCK_ABI: ABI = ABI::V5;

/// Paths that libibverbs and libc read, and the files of the kernel.
const READABLE_PATHS: [&str; 11] = [
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/libibverbs.d",
    "/etc/localtime",
    "/etc/passwd",
    "/etc/group",
    "/proc",
    "/sys",
    "/dev/urandom",
];

/// Device files that the server opens.
const DEVICE_PATHS: [&str; 2] = ["/dev/infiniband", "/dev/null"];

/// Becomes this user for good. Refuses exports that only root can serve.
pub fn become_user(user: &User, config: &Config) -> Result<(), ConfigError> {
    if rustix::process::geteuid().as_raw() == user.uid {
        return Ok(());
    }
    check_user(user, config)?;
    let dropped = drop_root(user, config.keep_chown);
    dropped.map_err(|error| ConfigError::cannot_run_as(&config.user, &error.to_string()))?;
    assert!(thread::set_thread_uid(Uid::ROOT).is_err(), "root is not given up");
    Ok(())
}

/// Checks that this process can become this user, and serve every export as that user.
pub(crate) fn check_user(user: &User, config: &Config) -> Result<(), ConfigError> {
    let now = rustix::process::geteuid();
    if now.as_raw() == user.uid {
        return Ok(());
    }
    if !now.is_root() {
        return Err(ConfigError::cannot_run_as(&config.user, "only root can become another user"));
    }
    let gives = config.exports.iter().find(|it| it.owner == Owner::Client);
    let Some(export) = gives.filter(|_| !config.keep_chown) else { return Ok(()) };
    let why = format!(
        "export {} gives files away (owner = \"client\"), which takes root, or keep_chown",
        export.name
    );
    Err(ConfigError::cannot_run_as(&config.user, &why))
}

/// Gives up the capabilities that no server uses, where it stays root. With these Landlock is no
/// bound: they load modules, and show the environment of every process, that of a parent among
/// them.
pub fn give_up_capabilities(config: &Config) -> rustix::io::Result<()> {
    let has_privileged_xattrs = config.exports.iter().any(|it| it.allow_security_xattrs);
    let mut kept = !UNUSED_CAPABILITIES;
    kept.set(CapabilitySet::SYS_ADMIN, has_privileged_xattrs);
    let CapabilitySets { effective, permitted, inheritable } = thread::capabilities(None)?;
    let sets = CapabilitySets {
        effective: effective & kept,
        permitted: permitted & kept,
        inheritable: inheritable & kept,
    };
    thread::set_capabilities(None, sets)
}

/// Capabilities that no server uses. `SYS_ADMIN` is used for `trusted.*` and `security.*`
/// attributes alone.
const UNUSED_CAPABILITIES: CapabilitySet = CapabilitySet::KILL
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::SYS_MODULE)
    .union(CapabilitySet::SYS_RAWIO)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_PACCT)
    .union(CapabilitySet::SYS_BOOT)
    .union(CapabilitySet::SYS_TIME)
    .union(CapabilitySet::SYS_TTY_CONFIG)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::AUDIT_CONTROL)
    .union(CapabilitySet::MAC_OVERRIDE)
    .union(CapabilitySet::MAC_ADMIN)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::WAKE_ALARM)
    .union(CapabilitySet::AUDIT_READ)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::CHECKPOINT_RESTORE);

/// Becomes this user, and keeps the capabilities for chown or none.
fn drop_root(user: &User, keep_chown: bool) -> rustix::io::Result<()> {
    let groups: Vec<Gid> = user.groups.iter().map(|&id| Gid::from_raw(id)).collect();
    thread::set_keep_capabilities(keep_chown)?;
    thread::set_thread_groups(&groups)?;
    thread::set_thread_gid(Gid::from_raw(user.gid))?;
    thread::set_thread_uid(Uid::from_raw(user.uid))?;
    let kept = if keep_chown { GIVING } else { CapabilitySet::empty() };
    let inheritable = CapabilitySet::empty();
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable };
    thread::set_capabilities(None, sets)?;
    thread::set_keep_capabilities(false)
}

/// Puts everything out of reach but exports, state, keys, libraries and devices. Says whether
/// the kernel enforces it, wholly or in part.
pub fn confine(config: &Config) -> Result<RulesetStatus, RulesetError> {
    let (read, all) = (AccessFs::from_read(LANDLOCK_ABI), AccessFs::from_all(LANDLOCK_ABI));
    let exported =
        |mode| config.exports.iter().filter(move |it| it.mode == mode).map(|it| it.path.as_path());
    let keys = config.authorized_keys_path();
    let Tls { cert, key, client_ca } = &config.tls;
    let own = [keys.parent().unwrap_or(Path::new("")), cert, key, client_ca];
    let (state, read_only) = (config.state_dir(), READABLE_PATHS.iter().map(Path::new));
    let read_only = read_only.chain(exported(Mode::ReadOnly)).chain(own);
    let writable =
        DEVICE_PATHS.iter().map(Path::new).chain(exported(Mode::ReadWrite)).chain([&*state]);
    // There must be a folder to name; who cannot make it hears so when it is used.
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(&state);
    let status = Ruleset::default()
        .handle_access(all)?
        .create()?
        .add_rules(path_beneath_rules(read_only, read))?
        .add_rules(path_beneath_rules(writable, all))?
        .restrict_self()?;
    Ok(status.ruleset)
}
