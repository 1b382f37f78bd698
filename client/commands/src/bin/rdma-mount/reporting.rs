//! Reports of a running mount: metrics in a file for node_exporter or over HTTP for
//! Prometheus, and the progress of the fill in the foreground with --json. Ends with
//! the mount.

use crate::shared::records::{replace_file, unix_seconds};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use verbatim_mount::metrics;
use verbatim_mount::status::StatusHandle;
use verbatim_telemetry::port::{Answer, Port};

/// How often the progress of the fill is printed.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How often the metrics file is written.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// Prints the progress of the fill when it changes.
pub struct FillReporter {
    mount: StatusHandle,
    last_reported: Option<Value>,
}

impl FillReporter {
    pub fn new(mount: StatusHandle) -> Self {
        Self { mount, last_reported: None }
    }

    /// Prints progress that was not printed yet.
    pub fn report(&mut self) {
        let fill = &self.mount.status()["fill"];
        if fill["state"] != "off" && self.last_reported.as_ref() != Some(fill) {
            // A closed output does not end the mount.
            let _ = writeln!(io::stdout(), "{}", json!({ "event": "progress", "fill": fill }));
            self.last_reported = Some(fill.clone());
        }
    }
}

/// Reports until it is dropped. The caller then reports the final state.
pub async fn report(
    mount: StatusHandle,
    file: Option<PathBuf>,
    mut fill_reporter: Option<&mut FillReporter>,
) {
    let mut written: Option<Instant> = None;
    let mut tick = tokio::time::interval(REPORT_EVERY);
    loop {
        tick.tick().await;
        if let Some(fill_reporter) = &mut fill_reporter {
            fill_reporter.report();
        }
        if let Some(path) = &file
            && written.is_none_or(|at| at.elapsed() >= WRITE_EVERY)
        {
            write_metrics(&mount, path);
            written = Some(Instant::now());
        }
    }
}

/// Serves metrics, health and status over HTTP until it is dropped.
pub async fn serve_metrics(mount: StatusHandle, mountpoint: PathBuf, port: Port) {
    let run = mountpoint.display().to_string();
    let at = move |path: &str| {
        let status = || mount.status();
        Some(match path {
            "/metrics" => {
                Answer::new(metrics::CONTENT_TYPE, metrics::text(&status(), &run, unix_seconds()))
            }
            "/healthz" => Answer::well(None),
            "/readyz" => Answer::well(not_ready_reason(&status()["server"])),
            "/status" => Answer::new("application/json", status().to_string()),
            _ => return None,
        })
    };
    port.serve("there are /metrics, /healthz, /readyz and /status", at).await;
}

/// Why the mount is not ready: blocks that are not cached need the server.
fn not_ready_reason(server: &Value) -> Option<String> {
    let well = server["up"] == true || server["offline"] == true;
    (!well).then(|| server["cause"].as_str().unwrap_or("the server is away").to_owned())
}

/// Writes the current metrics.
pub fn write_metrics(mount: &StatusHandle, path: &Path) {
    let run = path.file_stem().unwrap_or_default().to_string_lossy();
    if let Err(cause) = replace_file(path, &metrics::text(&mount.status(), &run, unix_seconds())) {
        tracing::warn!(cause, "no metrics");
    }
}
