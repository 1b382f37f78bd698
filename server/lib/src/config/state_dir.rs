//! The default state folder of a server. Pure but for the one function that reads the
//! environment; `Config` and `rdma-token` call it.

use super::User;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The state folder: as set, or that of the configured user, or that of the current one.
pub(super) fn of(set: &Path, user: &str) -> PathBuf {
    if !set.as_os_str().is_empty() {
        return set.to_owned();
    }
    // An unknown user is reported later, when the process becomes that user.
    let user = (!user.is_empty()).then(|| User::find(user).ok()).flatten();
    user.map_or_else(default_state_dir, |user| user.state_dir())
}

/// The state folder where none is set: `$XDG_STATE_HOME/verbatim`, or the same under
/// `~/.local/state`, or `/var/lib/verbatim` for a user without a home.
pub fn default_state_dir() -> PathBuf {
    state_dir_of(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

pub(super) fn state_dir_of(xdg_state_home: Option<OsString>, home: Option<OsString>) -> PathBuf {
    // The XDG specification wants a relative path to be ignored.
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|p| p.is_absolute());
    absolute(xdg_state_home)
        .or_else(|| absolute(home).map(|home| home.join(".local/state")))
        .unwrap_or_else(|| "/var/lib".into())
        .join("verbatim")
}
