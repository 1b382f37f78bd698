//! The metrics of a mount in the text format of Prometheus, made from its status. Pure;
//! the caller writes them to a file for node_exporter or serves them over HTTP.

use serde_json::Value;
use std::fmt::Write;
use verbatim_telemetry::run::escaped;

/// Name, type, path in the status, and help of each metric.
const ROWS: [(&str, &str, &str, &str); 16] = [
    ("server_up", "gauge", "/server/up", "1 while there is a session with the server"),
    ("reconnects_total", "counter", "/server/reconnects", "How often the server was lost"),
    ("cache_bytes", "gauge", "/cache/bytes", "Bytes that are in the cache"),
    ("cache_max_bytes", "gauge", "/cache/bytes_max", "Bytes that may be in the cache"),
    ("evictions_total", "counter", "/cache/evictions", "Files evicted from the cache"),
    ("opens_total", "counter", "/opens", "Files that were opened"),
    (
        "passthrough_opens_total",
        "counter",
        "/passthrough/opens",
        "Complete cached files that the kernel reads by itself (FUSE passthrough)",
    ),
    ("fetched_bytes_total", "counter", "/fetched_bytes", "Bytes brought from the server"),
    ("read_bytes_total", "counter", "/read_bytes", "Bytes that the daemon gave to readers"),
    ("failures_total", "counter", "/failures", "Parts that could not be brought"),
    ("known_entries", "gauge", "/known_entries", "Files and folders that the kernel knows"),
    ("watched", "gauge", "/watched", "1 while changes are told as they happen"),
    ("fill_complete", "gauge", "/fill/complete", "1 when all is here"),
    ("fill_files", "gauge", "/fill/files", "Files that the background fill has finished"),
    ("fill_bytes", "gauge", "/fill/bytes", "Bytes of these"),
    ("fill_failed", "gauge", "/fill/failed", "Files and folders that it could not bring"),
];

/// The content type of the metrics.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics of a mount; the label `run` names their file or the mount point.
pub fn text(status: &Value, run: &str, now: f64) -> String {
    let (mut text, run) = (String::new(), escaped(run));
    for (name, kind, place, help) in ROWS {
        let value = match status.pointer(place) {
            Some(Value::Bool(flag)) => u64::from(*flag),
            Some(value) => value.as_u64().unwrap_or_default(),
            None => 0,
        };
        let _ = writeln!(text, "# HELP rdma_mount_{name} {help}\n# TYPE rdma_mount_{name} {kind}");
        let _ = writeln!(text, "rdma_mount_{name}{{run=\"{run}\"}} {value}");
    }
    let name = "rdma_mount_written_time_seconds";
    let _ = writeln!(text, "# HELP {name} When this was written, since 1970\n# TYPE {name} gauge");
    let _ = writeln!(text, "{name}{{run=\"{run}\"}} {now}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_and_flags_are_written_with_their_run_label() {
        let status = json!({
            "server": { "up": true, "reconnects": 2 }, "fill": { "complete": false, "files": 7 },
        });
        let told = text(&status, "a\"b", 12.5);
        for line in [
            "rdma_mount_server_up{run=\"a\\\"b\"} 1",
            "rdma_mount_reconnects_total{run=\"a\\\"b\"} 2",
            "# TYPE rdma_mount_reconnects_total counter",
            "rdma_mount_fill_complete{run=\"a\\\"b\"} 0",
            "rdma_mount_fill_files{run=\"a\\\"b\"} 7",
            "rdma_mount_written_time_seconds{run=\"a\\\"b\"} 12.5",
        ] {
            assert!(told.lines().any(|it| it == line), "no {line} in {told}");
        }
    }
}
