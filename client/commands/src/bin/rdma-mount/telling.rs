//! What a mount tells while it stands: its numbers in a file for node_exporter or at a
//! port for Prometheus, and, in the foreground with --json, how far its fill is. Ends
//! with the mount.

use crate::shared::records::{now, write_whole};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use verbatim_mount::metrics;
use verbatim_mount::status::StatusHandle;
use verbatim_telemetry::port::{Answer, Port};

/// How often the fill is told.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// How often the file is written.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// How far the fill is, told when it is farther.
pub struct Progress {
    status_handle: StatusHandle,
    told: Option<Value>,
}

impl Progress {
    pub fn new(status_handle: StatusHandle) -> Self {
        Self { status_handle, told: None }
    }

    /// Tells what was not told yet.
    pub fn tell(&mut self) {
        let fill = &self.status_handle.status()["fill"];
        if fill["state"] != "off" && self.told.as_ref() != Some(fill) {
            // Who does not listen any more does not end the mount.
            let _ = writeln!(io::stdout(), "{}", json!({ "event": "progress", "fill": fill }));
            self.told = Some(fill.clone());
        }
    }
}

/// Tells until it is dropped. What is new at the end is for whoever drops it to tell.
pub async fn tell(
    status_handle: StatusHandle,
    file: Option<PathBuf>,
    mut progress: Option<&mut Progress>,
) {
    let mut written: Option<Instant> = None;
    let mut tick = tokio::time::interval(TELL_EVERY);
    loop {
        tick.tick().await;
        if let Some(progress) = &mut progress {
            progress.tell();
        }
        if let Some(path) = &file
            && written.is_none_or(|at| at.elapsed() >= WRITE_EVERY)
        {
            write(&status_handle, path);
            written = Some(Instant::now());
        }
    }
}

/// Shows the numbers to whoever asks at a port, until it is dropped.
pub async fn show(status_handle: StatusHandle, mountpoint: PathBuf, port: Port) {
    let run = mountpoint.display().to_string();
    let at = move |path: &str| {
        let status = || status_handle.status();
        Some(match path {
            "/metrics" => Answer::new(metrics::CONTENT_TYPE, metrics::text(&status(), &run, now())),
            "/healthz" => Answer::well(None),
            "/readyz" => Answer::well(unready(&status()["server"])),
            "/status" => Answer::new("application/json", status().to_string()),
            _ => return None,
        })
    };
    port.serve("there are /metrics, /healthz, /readyz and /status", at).await;
}

/// Why readers may have to wait: what is not here comes from a server that is not there.
fn unready(server: &Value) -> Option<String> {
    let well = server["up"] == true || server["offline"] == true;
    (!well).then(|| server["cause"].as_str().unwrap_or("the server is away").to_owned())
}

/// Writes the numbers as they are now.
pub fn write(status_handle: &StatusHandle, path: &Path) {
    let run = path.file_stem().unwrap_or_default().to_string_lossy();
    if let Err(cause) = write_whole(path, &metrics::text(&status_handle.status(), &run, now())) {
        tracing::warn!(cause, "no metrics");
    }
}
