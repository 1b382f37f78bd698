//! Output of all commands: data and JSON go to standard output, errors and summaries to
//! standard error, progress there too if it is a terminal. Text of the server is
//! sanitised first, so that a file name cannot move the cursor.

use super::exit::{Exit, NAME};
use super::sanitize::clean;
use super::transport::TransportFlags;
use clap::Args;
use clap::builder::PossibleValuesParser;
use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::time::Duration;
use verbatim_client::{
    Failure, FileDone, NO_TRANSPORT, Port, Progress, Retry, ServerSilence, SkipReason, Skipped,
    Summary,
};
use verbatim_telemetry::Format;
use verbatim_usage::{note, out};

/// How much is printed, and how.
#[derive(Args)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Print JSON lines: one for each thing that is told, and a summary.
    #[arg(long)]
    pub json: bool,

    /// Print errors only.
    #[arg(short, long)]
    pub quiet: bool,

    /// Print every file or change; twice, also what happens inside.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Log for people (human), as JSON lines, or to the journal.
    ///
    /// Without it: JSON with --json, else human, or journald under systemd. Logs go to
    /// standard error; RUST_LOG, or -vv, says how much.
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(Format::NAMES))]
    log_format: Option<String>,
}

impl OutputFlags {
    /// Starts logging, unbuffered: a client logs little, and its lines must not arrive after later
    /// output.
    pub fn start_logs(&self) {
        let level = match self.verbose {
            0 | 1 => "warn",
            2 => "debug",
            _ => "trace",
        };
        let explicit = self.log_format.as_deref().and_then(Format::parse);
        let format = explicit.unwrap_or(if self.json { Format::Json } else { Format::Auto });
        verbatim_telemetry::start(level, format);
    }
}

/// Prints the events that all commands have.
pub struct Output {
    pub json: bool,
    pub quiet: bool,
    pub verbose: bool,
    /// Whether to print why data moved over TCP.
    tcp_reasons: bool,
    pub bar: ProgressBar,
}

impl Output {
    pub fn new(flags: &OutputFlags, transport: &TransportFlags) -> Self {
        let visible = std::io::stderr().is_terminal() && !flags.quiet && !flags.json;
        let target = match visible {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{bar:24} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let (json, quiet, verbose) = (flags.json, flags.quiet, flags.verbose > 0);
        Self { json, quiet, verbose, tcp_reasons: !transport.is_tcp(), bar }
    }

    /// Prints a line for people above the progress bar.
    pub fn note(&self, text: &str) {
        self.bar.suspend(|| note!("{NAME}: {text}"));
    }

    pub fn print_file_json(&self, file: &FileDone) {
        let line = json!({
            "event": "file", "path": clean(&file.path), "local": clean(&file.local),
            "bytes": file.bytes, "digest": file.digest.to_string(),
        });
        out!("{line}");
    }

    /// Prints an operation that failed: what, on which path, why, and the next step.
    pub fn failed(&self, verb: &str, failure: &Failure, hint: Option<&str>) {
        self.bar.suspend(|| print_failure(verb, failure, hint, self.json));
    }

    pub fn skipped(&self, skipped: &Skipped) {
        let (path, reason) = (clean(&skipped.path), skipped.reason);
        if self.json {
            let reason = reason.to_string();
            out!("{}", json!({ "event": "skipped", "path": path, "reason": reason }));
        // Files left out by a rule are expected; special files are worth a line.
        } else if self.verbose || reason == SkipReason::Special && !self.quiet {
            self.note(&format!("skipped {path}: {reason}"));
        }
    }

    pub fn progress(&self, progress: &Progress) {
        self.bar.set_length(progress.bytes_known.max(1));
        self.bar.set_position(progress.bytes);
        let rate = progress.bytes as f64 / progress.elapsed.as_secs_f64().max(1e-3);
        let more = if progress.searching { "+" } else { "" };
        let left = time_left(progress, rate);
        self.bar.set_message(format!(
            "{}/{}{more} files  {}/{}{more}  {}/s  {left}",
            progress.files,
            progress.files_known,
            BinaryBytes(progress.bytes),
            BinaryBytes(progress.bytes_known),
            BinaryBytes(rate as u64),
        ));
    }

    pub fn retrying(&self, retry: &Retry) {
        let Retry { peer, attempt, .. } = retry;
        let (cause, pause) = (clean(&retry.cause), retry.pause.as_secs_f64());
        if self.json {
            let line = json!({
                "event": "retrying", "peer": peer, "cause": cause, "attempt": attempt,
                "pause_seconds": pause, "left_seconds": retry.left.as_secs_f64(),
            });
            out!("{line}");
        } else if self.bar.is_hidden() && !self.quiet {
            self.note(&format!("server {peer}: {cause}; trying again in {pause:.1} s"));
        } else {
            let left = retry.left.as_secs();
            let next = format!("try {attempt} in {pause:.1} s, giving up in {left} s");
            self.bar.set_message(format!("{peer}: {cause}; {next}"));
        }
    }

    pub fn reconnected(&self) {
        if self.json {
            out!("{}", json!({ "event": "reconnected" }));
        } else if self.bar.is_hidden() && !self.quiet {
            self.note("reconnected to the server, continuing");
        }
    }

    /// The transport for a summary line; empty if no data moved.
    pub fn transport_suffix(summary: &Summary) -> String {
        match summary.transport.as_str() {
            NO_TRANSPORT => String::new(),
            transport => format!(" over {transport}"),
        }
    }

    /// Prints the transport, and why a better one was not used.
    pub fn print_transport(&self, summary: &Summary) {
        if let Some(reason) = summary.reason.as_ref().filter(|_| self.tcp_reasons) {
            note!("tcp: {}", clean(reason));
        }
        for Port { place, refused } in &summary.ports {
            match refused {
                Some(refused) => note!("rdma: {place}: not used: {}", clean(refused)),
                None if self.verbose => note!("rdma: {place}: {}", place.why),
                None => {}
            }
        }
        if self.verbose {
            note!("request {}, as the server's log calls it", summary.request);
        }
    }

    /// Prints problems of a run; `undone` describes the failed entries.
    pub fn print_problems(&self, summary: &Summary, undone: &str) {
        if summary.reconnects > 0 {
            let times = if summary.reconnects == 1 { "time" } else { "times" };
            note!("the server was lost and reached again {} {times}", summary.reconnects);
        }
        if summary.mismatches + summary.links_lost > 0 {
            let Summary { mismatches, links_lost, .. } = summary;
            note!(
                "{mismatches} chunks did not match and were moved again, {links_lost} links were lost"
            );
        }
        if !summary.dropped.is_empty() {
            note!("not kept: {}", summary.dropped);
        }
        if summary.failed > 0 {
            note!("{} {undone}", summary.failed);
        }
    }
}

/// The wait for a silent server, or the remaining time. Names hashing of holes, during which no
/// data moves.
fn time_left(progress: &Progress, rate: f64) -> String {
    let rest = remaining(progress, rate);
    if !progress.hashing_holes {
        return rest;
    }
    // Rounded down: 100 % means that nothing is left.
    let percent = (100.0 * progress.bytes as f64 / progress.bytes_known.max(1) as f64) as u64;
    format!("hashing holes, {percent} % done, {rest}")
}

fn remaining(progress: &Progress, rate: f64) -> String {
    match progress.quiet.filter(|quiet| quiet.so_far >= SILENCE_MIN) {
        Some(ServerSilence { so_far, at_most }) => {
            let (so_far, at_most) = (so_far.as_secs(), at_most.as_secs());
            format!("no answer for {so_far} s, giving up at {at_most} s")
        }
        None if progress.searching || progress.bytes == 0 => "looking for more".to_owned(),
        None => {
            let left = progress.bytes_known.saturating_sub(progress.bytes) as f64 / rate.max(1.0);
            format!("{} left", HumanDuration(Duration::from_secs_f64(left.min(1e9))))
        }
    }
}

/// How long a server is silent before the progress line says so.
const SILENCE_MIN: Duration = Duration::from_secs(3);

/// Prints an operation that failed: what, on which path, why, and the next step.
pub fn print_failure(verb: &str, failure: &Failure, hint: Option<&str>, json: bool) {
    let Failure { path, peer, fault } = failure;
    let (path, text) = (clean(path), clean(&fault.text));
    if json {
        let line = json!({
            "event": "error", "path": path, "peer": peer, "code": format!("{:?}", fault.code),
            "class": format!("{:?}", fault.class()), "cause": text, "hint": hint,
        });
        out!("{line}");
        return;
    }
    note!("{NAME}: cannot {verb} {path} (server {peer}): {text}");
    if let Some(hint) = hint {
        note!("  hint: {hint}");
    }
}

/// The summary as a JSON object, to which a command may add fields.
pub fn summary_json(summary: &Summary, exit: Exit) -> Value {
    json!({
        "event": "summary",
        "files": summary.files,
        "failed": summary.failed,
        "skipped": summary.skipped,
        "bytes": summary.bytes,
        "resumed_bytes": summary.resumed_bytes,
        "rehashed_bytes": summary.rehashed_bytes,
        "moved_bytes": summary.moved_bytes,
        "in_place_bytes": summary.in_place_bytes,
        "hole_bytes": summary.hole_bytes,
        "seconds": summary.elapsed.as_secs_f64(),
        "bytes_per_second": summary.rate(),
        "request": summary.request,
        "transport": summary.transport,
        "rdma_reads": summary.rdma.reads,
        "rdma_writes": summary.rdma.writes,
        "huge_page_bytes": summary.huge_page_bytes,
        "rdma_reads_done": summary.rdma.reads_done,
        "rdma_writes_done": summary.rdma.writes_done,
        "reason": summary.reason,
        "rdma_ports": summary.ports.iter().map(port_json).collect::<Vec<_>>(),
        "limited_by": summary.limited_by,
        "mismatches": summary.mismatches,
        "links_lost": summary.links_lost,
        "reconnects": summary.reconnects,
        "not_kept": {
            "owners": summary.dropped.owners,
            "special_bits": summary.dropped.special_bits,
            "xattrs": summary.dropped.xattrs,
        },
        "exit": exit as u8,
    })
}

/// An RDMA port as JSON, with the reason of its choice.
pub fn port_json(Port { place, refused }: &Port) -> Value {
    json!({
        "device": place.device,
        "port": place.port,
        "gid_index": place.gid.index,
        "address": place.gid.ip().to_string(),
        "kind": place.gid.kind.to_string(),
        "netdev": place.netdev,
        "rate_mbit": place.rate_mbit,
        "numa_node": place.numa_node,
        "numa_distance": place.numa_distance,
        "reason": place.why,
        "refused": refused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_line_names_a_silent_server_and_its_deadline() {
        let quiet = |so_far| Some(ServerSilence { so_far, at_most: Duration::from_secs(60) });
        let half = Progress { bytes: 50, bytes_known: 100, ..Progress::default() };
        let told = |so_far| time_left(&Progress { quiet: quiet(so_far), ..half.clone() }, 10.0);
        assert_eq!(told(Duration::from_millis(7900)), "no answer for 7 s, giving up at 60 s");
        assert_eq!(told(SILENCE_MIN), "no answer for 3 s, giving up at 60 s");
        // A short silence is not shown, nor that of a server which owes no answer.
        assert_eq!(told(SILENCE_MIN - Duration::from_millis(1)), "5 seconds left");
        assert_eq!(time_left(&half, 10.0), "5 seconds left");
        let searching = Progress { searching: true, ..half.clone() };
        assert_eq!(time_left(&searching, 10.0), "looking for more");
        let silent = Progress { quiet: quiet(Duration::from_secs(9)), ..searching };
        assert_eq!(time_left(&silent, 10.0), "no answer for 9 s, giving up at 60 s");
    }

    #[test]
    fn the_progress_line_shows_hashed_holes_with_a_percentage() {
        let tib = 1 << 40;
        let part = Progress { bytes: tib / 4, bytes_known: tib, ..Progress::default() };
        let holes = Progress { hashing_holes: true, ..part.clone() };
        let rate = (tib / 4) as f64 / 30.0;
        assert_eq!(time_left(&holes, rate), "hashing holes, 25 % done, 2 minutes left");
        assert_eq!(time_left(&part, rate), "2 minutes left");
        let begun = Progress { hashing_holes: true, ..Progress::default() };
        assert_eq!(time_left(&begun, 0.0), "hashing holes, 0 % done, looking for more");
    }

    #[test]
    fn a_summary_without_data_names_no_transport() {
        let over = |transport: &str| {
            Output::transport_suffix(&Summary { transport: transport.into(), ..Summary::default() })
        };
        assert_eq!(over("rdma mlx5_0"), " over rdma mlx5_0");
        assert_eq!(over(NO_TRANSPORT), "");
    }
}
