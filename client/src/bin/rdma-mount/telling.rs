//! What a mount tells while it stands: its numbers in a file for node_exporter, and, in
//! the foreground with --json, how far its fill is. Ends with the mount.

use crate::shared::records::{now, write_whole};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use verbatim_client::mount::metrics;
use verbatim_client::mount::status::Teller;

/// How often the fill is told.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// How often the file is written.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// Tells until it is dropped, and once more at the end if the mount ends well.
pub async fn tell(teller: Teller, file: Option<PathBuf>, progress: bool) {
    let mut told = None;
    let mut written: Option<Instant> = None;
    let mut tick = tokio::time::interval(TELL_EVERY);
    loop {
        tick.tick().await;
        let status = teller.status();
        if progress && status["fill"]["state"] != "off" && told.as_ref() != Some(&status["fill"]) {
            println!("{}", json!({ "event": "progress", "fill": status["fill"] }));
            told = Some(status["fill"].clone());
        }
        if let Some(path) = &file
            && written.is_none_or(|at| at.elapsed() >= WRITE_EVERY)
        {
            write(&teller, path);
            written = Some(Instant::now());
        }
    }
}

/// Writes the numbers as they are now.
pub fn write(teller: &Teller, path: &Path) {
    let run = path.file_stem().unwrap_or_default().to_string_lossy();
    if let Err(cause) = write_whole(path, &metrics::text(&teller.status(), &run, now())) {
        tracing::warn!(cause, "no metrics");
    }
}
