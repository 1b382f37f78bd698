//! Prints the status of a mount for `rdma-mount --status`: the daemon's JSON, or text
//! for people. Only reads the mount.

use crate::shared::exit::{Exit, print_error};
use crate::shared::sanitize::clean;
use indicatif::BinaryBytes;
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;
use verbatim_mount::status::read;
use verbatim_usage::out;

/// Prints the status of a mount.
pub fn print(mountpoint: &Path, json: bool) -> ExitCode {
    match read(mountpoint) {
        Ok(status) if json => out!("{status}"),
        Ok(status) => out!("{}", text(&status).trim_end()),
        Err(error) => {
            let cause = format!("{} is no mount of this command: {error}", mountpoint.display());
            let hint = "rdma-mount HOST:/EXPORT MOUNTPOINT makes one".to_owned();
            return print_error(&cause, Some(hint), Exit::Failed, json);
        }
    }
    Exit::Done.into()
}

fn text(status: &Value) -> String {
    let bytes = |value: &Value| BinaryBytes(value.as_u64().unwrap_or_default()).to_string();
    let word = |value: &Value| clean(value.as_str().unwrap_or_default());
    let server = match status["server"]["up"] == true {
        true => "connected".to_owned(),
        false => format!("away: {}", word(&status["server"]["cause"])),
    };
    let transport = match (status["transport"].as_str(), status["reason"].as_str()) {
        (None, _) => "nothing yet".to_owned(),
        (Some(transport), None) => clean(transport),
        (Some(transport), Some(reason)) => format!("{}: {}", clean(transport), clean(reason)),
    };
    let cache = &status["cache"];
    let route = match status["passthrough"]["why_not"].as_str() {
        None => "past the daemon".to_owned(),
        Some(why) => format!("through the daemon: {}", clean(why)),
    };
    let fill = &status["fill"];
    format!(
        "server: {server}\ntransport: {transport}\ncache: {} of {}\nfetched: {}\ncomplete files are read {route}\n\
         fill: {}, {} files, {}, {} failed\n",
        bytes(&cache["bytes"]),
        bytes(&cache["bytes_max"]),
        bytes(&status["fetched_bytes"]),
        word(&fill["state"]),
        fill["files"],
        bytes(&fill["bytes"]),
        fill["failed"],
    )
}
