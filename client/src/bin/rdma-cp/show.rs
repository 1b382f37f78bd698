//! What `rdma-cp` prints. Data and JSON go to standard output, progress and
//! errors to standard error; progress only where that is a terminal. Text of
//! the other side is cleaned first: a name must not move the cursor.

use crate::flags::Flags;
use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use verbatim_client::{
    Failure, FileDone, Observer, Planned, Progress, Quiet, Retry, SkipReason, Skipped, Summary,
    Task,
};
use verbatim_fabric::ports::Place;
use verbatim_proto::message::EntryKind;
use verbatim_proto::{Code, Digest};

/// How the command ends. The worst wins: mismatch, then connect, then failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    Connect = 3,
    Mismatch = 4,
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Prints what a copy tells.
pub struct Show {
    task: Task,
    json: bool,
    quiet: bool,
    digest: bool,
    verbose: bool,
    /// Whether to say why it was not RDMA.
    reasons: bool,
    bar: ProgressBar,
    /// The digest of the last file; it is told where there was only one.
    last: Option<Digest>,
}

impl Show {
    pub fn new(flags: &Flags, task: Task) -> Self {
        let visible = std::io::stderr().is_terminal() && !flags.quiet && !flags.json;
        let target = match visible {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{bar:24} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            task,
            json: flags.json,
            quiet: flags.quiet,
            digest: flags.digest,
            verbose: flags.verbose > 0,
            reasons: !flags.carrier.is_tcp(),
            bar,
            last: None,
        }
    }

    /// Prints the summary, and says how it ended.
    pub fn finish(self, summary: &Summary) -> Exit {
        self.bar.finish_and_clear();
        let interrupted =
            summary.broken.as_ref().is_some_and(|fault| fault.code == Code::Interrupted);
        let exit = match summary {
            _ if interrupted => Exit::Interrupted,
            Summary { mismatch: true, .. } => Exit::Mismatch,
            Summary { broken: Some(_), .. } => Exit::Connect,
            Summary { failed: 1.., .. } => Exit::Failed,
            _ => Exit::Done,
        };
        if self.json {
            print_summary_json(summary, exit);
        } else if !self.quiet {
            self.print_summary(summary);
        }
        exit
    }

    fn print_summary(&self, summary: &Summary) {
        let files = if summary.files == 1 { "file" } else { "files" };
        if summary.skipped > 0 {
            eprintln!("{} left alone", summary.skipped);
        }
        if self.task != Task::Copy {
            return self.print_short_summary(summary, files);
        }
        eprintln!(
            "{} {files}, {} in {:.2} s, {}/s over {}, limited by the {}",
            summary.files,
            BinaryBytes(summary.bytes),
            summary.elapsed.as_secs_f64(),
            BinaryBytes(summary.rate() as u64),
            summary.transport,
            summary.limited_by,
        );
        if let Some(reason) = summary.reason.as_ref().filter(|_| self.reasons) {
            eprintln!("tcp: {}", clean(reason));
        }
        for place in summary.places.iter().filter(|_| self.verbose) {
            eprintln!("rdma: {place}: {}", place.why);
        }
        if self.verbose {
            eprintln!("request {}, as the server's log calls it", summary.request);
        }
        if let Some(digest) = self.last.filter(|_| summary.files == 1 && !self.digest) {
            eprintln!("blake3 {digest}");
        }
        if summary.resumed_bytes > 0 {
            eprintln!("{} were there from an earlier run", BinaryBytes(summary.resumed_bytes));
        }
        if summary.rehashed_bytes > 0 {
            let bytes = BinaryBytes(summary.rehashed_bytes);
            eprintln!("{bytes} that the server had were hashed again");
        }
        if summary.hole_bytes > 0 {
            eprintln!("{} were holes, and not moved", BinaryBytes(summary.hole_bytes));
        }
        if summary.reconnects > 0 {
            let times = if summary.reconnects == 1 { "time" } else { "times" };
            eprintln!("the server was lost and reached again {} {times}", summary.reconnects);
        }
        if summary.mismatches + summary.links_lost > 0 {
            let Summary { mismatches, links_lost, .. } = summary;
            eprintln!(
                "{mismatches} chunks did not match and were moved again, {links_lost} links were lost"
            );
        }
        if !summary.dropped.is_empty() {
            eprintln!("not kept: {}", summary.dropped);
        }
        if summary.failed > 0 {
            eprintln!("{} not copied", summary.failed);
        }
    }

    /// Where nothing was copied there is no rate and no transport.
    fn print_short_summary(&self, summary: &Summary, files: &str) {
        let (count, bytes) = (summary.files, BinaryBytes(summary.bytes));
        if self.task == Task::DryRun {
            eprintln!("{count} {files}, {bytes}, would be copied");
        } else {
            let seconds = summary.elapsed.as_secs_f64();
            eprintln!("{count} {files}, {bytes}, same on both sides, compared in {seconds:.2} s");
        }
        if summary.failed > 0 {
            let how = if self.task == Task::DryRun { "cannot be" } else { "differ or cannot be" };
            let what = if self.task == Task::DryRun { "copied" } else { "compared" };
            eprintln!("{} {how} {what}", summary.failed);
        }
    }

    fn verb(&self) -> &'static str {
        if self.task == Task::Verify { "verify" } else { "copy" }
    }
}

impl Observer for Show {
    fn file_done(&mut self, file: &FileDone) {
        if self.json {
            let line = serde_json::json!({
                "event": "file", "path": clean(&file.path), "local": clean(&file.local),
                "bytes": file.bytes, "digest": file.digest.to_string(),
            });
            println!("{line}");
        } else if self.digest {
            self.bar.suspend(|| println!("{}  {}", file.digest, clean(&file.local)));
        } else if self.verbose {
            let (path, bytes) = (clean(&file.path), BinaryBytes(file.bytes));
            self.bar.suspend(|| eprintln!("{path} {bytes}"));
        }
        self.last = Some(file.digest);
    }

    fn failed(&mut self, failure: &Failure) {
        self.bar.suspend(|| print_failure(self.verb(), failure, self.json));
    }

    fn skipped(&mut self, skipped: &Skipped) {
        let (path, reason) = (clean(&skipped.path), skipped.reason);
        // What a rule keeps is no news; what no copy can keep is.
        let told = self.verbose || reason == SkipReason::Special && !self.quiet;
        if self.json {
            let reason = reason.to_string();
            let line = serde_json::json!({ "event": "skipped", "path": path, "reason": reason });
            println!("{line}");
        } else if told {
            self.bar.suspend(|| eprintln!("rdma-cp: skipped {path}: {reason}"));
        }
    }

    fn planned(&mut self, planned: &Planned) {
        let (path, target) = (clean(&planned.path), clean(&planned.target));
        let (kind, mark) = kind_of(&planned.kind);
        if self.json {
            let line = serde_json::json!({
                "event": "planned", "path": path, "target": target, "kind": kind,
                "bytes": planned.bytes,
            });
            println!("{line}");
        } else {
            let ends = |text: &str| if text.ends_with('/') { "" } else { mark };
            println!("{path}{} -> {target}{}", ends(&path), ends(&target));
        }
    }

    fn progress(&mut self, progress: &Progress) {
        self.bar.set_length(progress.bytes_known.max(1));
        self.bar.set_position(progress.bytes);
        let rate = progress.bytes as f64 / progress.elapsed.as_secs_f64().max(1e-3);
        let more = if progress.searching { "+" } else { "" };
        let left = outlook(progress, rate);
        self.bar.set_message(format!(
            "{}/{}{more} files  {}/{}{more}  {}/s  {left}",
            progress.files,
            progress.files_known,
            BinaryBytes(progress.bytes),
            BinaryBytes(progress.bytes_known),
            BinaryBytes(rate as u64),
        ));
    }

    fn retrying(&mut self, retry: &Retry) {
        let Retry { peer, attempt, .. } = retry;
        let (cause, pause) = (clean(&retry.cause), retry.pause.as_secs_f64());
        if self.json {
            let line = serde_json::json!({
                "event": "retrying", "peer": peer, "cause": cause, "attempt": attempt,
                "pause_seconds": pause, "left_seconds": retry.left.as_secs_f64(),
            });
            println!("{line}");
        } else if self.bar.is_hidden() && !self.quiet {
            eprintln!("rdma-cp: server {peer}: {cause}; trying again in {pause:.1} s");
        } else {
            let left = retry.left.as_secs();
            let next = format!("try {attempt} in {pause:.1} s, giving up in {left} s");
            self.bar.set_message(format!("{peer}: {cause}; {next}"));
        }
    }

    fn reconnected(&mut self) {
        if self.json {
            println!("{}", serde_json::json!({ "event": "reconnected" }));
        } else if self.bar.is_hidden() && !self.quiet {
            eprintln!("rdma-cp: the server is there again, going on");
        }
    }
}

/// What is to come: how long a silent server is waited for, or how long the rest takes.
fn outlook(progress: &Progress, rate: f64) -> String {
    match progress.quiet.filter(|quiet| quiet.so_far >= QUIET_MIN) {
        Some(Quiet { so_far, at_most }) => {
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
const QUIET_MIN: Duration = Duration::from_secs(3);

/// Prints what could not be done, why, and the next step.
pub fn print_failure(verb: &str, failure: &Failure, json: bool) {
    let Failure { path, peer, fault } = failure;
    let (path, text) = (clean(path), clean(&fault.text));
    let hint = match verb {
        "verify" if fault.code == Code::Mismatch => Some("copy it again, without --verify"),
        "verify" if fault.code == Code::NotFound => Some("copy it first, without --verify"),
        _ => failure.hint(),
    };
    if json {
        let line = serde_json::json!({
            "event": "error", "path": path, "peer": peer, "code": format!("{:?}", fault.code),
            "class": format!("{:?}", fault.class()), "cause": text, "hint": hint,
        });
        println!("{line}");
        return;
    }
    eprintln!("rdma-cp: cannot {verb} {path} (server {peer}): {text}");
    if let Some(hint) = hint {
        eprintln!("  hint: {hint}");
    }
}

/// What an entry is called, and what stands behind its name in a list.
pub fn kind_of(kind: &EntryKind) -> (&'static str, &'static str) {
    match kind {
        EntryKind::File => ("file", ""),
        EntryKind::Folder => ("folder", "/"),
        EntryKind::Symlink { .. } => ("symlink", "@"),
        EntryKind::Special => ("special", "|"),
    }
}

fn print_summary_json(summary: &Summary, exit: Exit) {
    let line = serde_json::json!({
        "event": "summary",
        "files": summary.files,
        "failed": summary.failed,
        "skipped": summary.skipped,
        "bytes": summary.bytes,
        "resumed_bytes": summary.resumed_bytes,
        "rehashed_bytes": summary.rehashed_bytes,
        "moved_bytes": summary.moved_bytes,
        "hole_bytes": summary.hole_bytes,
        "seconds": summary.elapsed.as_secs_f64(),
        "bytes_per_second": summary.rate(),
        "request": summary.request,
        "transport": summary.transport,
        "rdma_reads": summary.rdma.reads,
        "rdma_writes": summary.rdma.writes,
        "reason": summary.reason,
        "rdma_ports": summary.places.iter().map(port_json).collect::<Vec<_>>(),
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
    });
    println!("{line}");
}

fn port_json(place: &Place) -> serde_json::Value {
    serde_json::json!({
        "device": place.device,
        "port": place.port,
        "gid_index": place.gid.index,
        "address": place.gid.ip().to_string(),
        "kind": place.gid.kind.to_string(),
        "netdev": place.netdev,
        "rate_mbit": place.rate_mbit,
        "numa_node": place.numa_node,
        "reason": place.why,
    })
}

/// Makes text of the other side harmless to a terminal.
pub fn clean(text: &str) -> String {
    text.chars()
        .flat_map(|letter| {
            let escaped = letter.is_control().then(|| letter.escape_default().to_string());
            escaped.unwrap_or_else(|| letter.to_string()).chars().collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_server_is_told_of_after_a_while_and_until_when_it_is_waited_for() {
        let quiet = |so_far| Some(Quiet { so_far, at_most: Duration::from_secs(60) });
        let half = Progress { bytes: 50, bytes_known: 100, ..Progress::default() };
        let told = |so_far| outlook(&Progress { quiet: quiet(so_far), ..half.clone() }, 10.0);
        assert_eq!(told(Duration::from_millis(7900)), "no answer for 7 s, giving up at 60 s");
        assert_eq!(told(QUIET_MIN), "no answer for 3 s, giving up at 60 s");
        // One that was heard a moment ago is no news, and neither is one that owes nothing.
        assert_eq!(told(QUIET_MIN - Duration::from_millis(1)), "5 seconds left");
        assert_eq!(outlook(&half, 10.0), "5 seconds left");
        let searching = Progress { searching: true, ..half.clone() };
        assert_eq!(outlook(&searching, 10.0), "looking for more");
        let silent = Progress { quiet: quiet(Duration::from_secs(9)), ..searching };
        assert_eq!(outlook(&silent, 10.0), "no answer for 9 s, giving up at 60 s");
    }
}
