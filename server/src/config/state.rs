//! Where a server keeps what is its own when nobody says. Pure but for the one
//! function that asks the environment; `Config` and `rdma-token` call it.

use std::ffi::OsString;
use std::path::PathBuf;

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
