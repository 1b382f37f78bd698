//! What `--version` says: the version and the commit, the kernel, whether there is
//! an RDMA library, and how files would be read by a card. Looks at this machine
//! and changes nothing.

use std::sync::Arc;
use verbatim_fabric::ports::Wish;
use verbatim_fabric::verbs::{Context, FileWindows, library_opens, probe, usable};

/// All of it, for a version number.
pub(crate) fn told(number: &str) -> String {
    let commit = option_env!("VERBATIM_COMMIT").map_or(String::new(), |it| format!(" ({it})"));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    let library = match library_opens() {
        Ok(()) => "found".to_owned(),
        Err(reason) => format!("not found: {reason}"),
    };
    format!(
        "{number}{commit}\nkernel: {}\nlibibverbs: {library}\nread path: {}",
        kernel.as_deref().map_or("unknown", str::trim),
        read_path()
    )
}

/// How the first card would read files of the temporary folder.
fn read_path() -> String {
    let places = match usable(&Wish::default()) {
        Ok(places) => places,
        Err(reasons) => {
            let why = reasons.first().map_or(String::new(), |reason| format!(": {reason}"));
            return format!("tcp{why}");
        }
    };
    let Some(place) = places.first() else { return "tcp: no RDMA port is usable".into() };
    let name = &place.device;
    let context: Arc<Context> = match Context::open(name) {
        Ok(context) => context,
        Err(reason) => return format!("tcp: {name} cannot be opened: {reason}"),
    };
    match probe(&context, &std::env::temp_dir()) {
        FileWindows::Mapped => format!("files are registered with {name} as they are mapped"),
        FileWindows::Staged { reason } => format!("files are staged for {name}: {reason}"),
    }
}
