//! The metrics of one command that ran: for a file that node_exporter's textfile
//! collector reads. All are gauges of the last run, told apart by the label `run`,
//! which is the name of the file: two files in one folder never clash.

use std::fmt::Write;

/// What a command did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Which command; names of metrics begin with it.
    pub command: &'static str,
    /// What tells this run from others on the machine.
    pub name: String,
    /// What carried the data.
    pub transport: String,
    /// When it ended, in seconds since 1970.
    pub end_time: f64,
    /// How long it took.
    pub seconds: f64,
    /// How it ended.
    pub exit: u8,
    /// Files copied.
    pub files: u64,
    /// Files that were not.
    pub failed: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Bytes that were moved for it.
    pub moved_bytes: u64,
    /// Chunks that did not match.
    pub mismatches: u64,
    /// Links that were lost.
    pub links_lost: u64,
    /// How often the server was.
    pub reconnects: u64,
    /// Whether it was TCP for want of RDMA.
    pub fell_back: bool,
    /// One-sided READ requests that were posted.
    pub rdma_reads: u64,
    /// One-sided WRITE requests that were posted.
    pub rdma_writes: u64,
    /// READ and WRITE requests that the device says it has done.
    pub rdma_done: (u64, u64),
}

/// Writes a run in the text format of Prometheus.
pub fn text(run: &Run) -> String {
    let label = format!("run=\"{}\"", escaped(&run.name));
    let rows: [(&str, &str, String, f64); 17] = [
        (
            "info",
            "What carried the data",
            format!("transport=\"{}\"", escaped(&run.transport)),
            1.0,
        ),
        ("end_time_seconds", "When the last run ended, since 1970", String::new(), run.end_time),
        ("duration_seconds", "How long the last run took", String::new(), run.seconds),
        ("exit_code", "How the last run ended", String::new(), f64::from(run.exit)),
        ("files", "Files copied", String::new(), run.files as f64),
        ("failed_files", "Files not copied", String::new(), run.failed as f64),
        ("bytes", "Bytes copied", String::new(), run.bytes as f64),
        (
            "moved_bytes",
            "Bytes moved, those moved again included",
            String::new(),
            run.moved_bytes as f64,
        ),
        ("mismatched_chunks", "Chunks that did not match", String::new(), run.mismatches as f64),
        ("links_lost", "Links that were lost", String::new(), run.links_lost as f64),
        ("reconnects", "How often the server was lost", String::new(), run.reconnects as f64),
        (
            "fell_back",
            "1 if there was a reason for TCP",
            String::new(),
            f64::from(u8::from(run.fell_back)),
        ),
        (
            "rdma_requests",
            "One-sided requests posted",
            "operation=\"read\"".into(),
            run.rdma_reads as f64,
        ),
        ("rdma_requests", "", "operation=\"write\"".into(), run.rdma_writes as f64),
        (
            "rdma_requests_done",
            "One-sided requests completed",
            "operation=\"read\"".into(),
            run.rdma_done.0 as f64,
        ),
        ("rdma_requests_done", "", "operation=\"write\"".into(), run.rdma_done.1 as f64),
        (
            "bytes_per_second",
            "Bytes copied a second",
            String::new(),
            run.bytes as f64 / run.seconds.max(1e-9),
        ),
    ];
    let mut text = String::new();
    let command = run.command.replace('-', "_");
    for (name, help, more, value) in rows {
        let comma = if more.is_empty() { "" } else { "," };
        if !help.is_empty() {
            let _ = writeln!(text, "# HELP {command}_{name} {help}\n# TYPE {command}_{name} gauge");
        }
        let _ = writeln!(text, "{command}_{name}{{{label}{comma}{more}}} {value}");
    }
    text
}

/// A label's value, with what would end it escaped.
pub fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_by_the_name_of_its_file() {
        let (name, transport) = ("a\"b".into(), "tcp".into());
        let run = Run { command: "rdma-cp", name, transport, bytes: 7, ..Run::default() };
        let text = text(&run);
        for line in [
            "rdma_cp_bytes{run=\"a\\\"b\"} 7",
            "rdma_cp_info{run=\"a\\\"b\",transport=\"tcp\"} 1",
            "rdma_cp_rdma_requests{run=\"a\\\"b\",operation=\"write\"} 0",
        ] {
            assert!(text.lines().any(|have| have == line), "no {line} in\n{text}");
        }
        let typed = text.lines().filter(|line| line.starts_with("# TYPE rdma_cp_rdma_requests "));
        assert_eq!(typed.count(), 1, "a name has one type");
    }
}
