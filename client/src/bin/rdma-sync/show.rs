//! What `rdma-sync` prints. Changes and JSON go to standard output, errors and
//! the summary to standard error, progress there too where that is a terminal.
//! Text of the other side is cleaned first: a name must not move the cursor.

use crate::flags::Flags;
use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::process::ExitCode;
use verbatim_client::current::status::{State, Status};
use verbatim_client::{
    Altered, Failure, FileDone, Observer, Progress, Retry, SkipReason, Skipped, Summary,
};
use verbatim_proto::Code;

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

/// Prints what a mirror tells.
pub struct Show {
    json: bool,
    quiet: bool,
    verbose: bool,
    itemize: bool,
    check: bool,
    only_looks: bool,
    bar: ProgressBar,
}

impl Show {
    pub fn new(flags: &Flags) -> Self {
        let visible = std::io::stderr().is_terminal() && !flags.quiet && !flags.json;
        let target = match visible {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{bar:24} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            json: flags.json,
            quiet: flags.quiet,
            verbose: flags.verbose > 0,
            itemize: flags.itemizes(),
            check: flags.checks(),
            only_looks: flags.only_looks(),
            bar,
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
            Summary { differs: true, .. } if self.check => Exit::Mismatch,
            Summary { broken: Some(_), .. } => Exit::Connect,
            Summary { failed: 1.., .. } => Exit::Failed,
            Summary { changes: 1.., .. } if self.check => Exit::Failed,
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
        let Summary { changes, deletes, .. } = summary;
        let seconds = summary.elapsed.as_secs_f64();
        match (self.check, self.only_looks) {
            (true, _) if *changes == 0 && summary.failed == 0 => {
                eprintln!("both are equal, compared in {seconds:.2} s");
            }
            (true, _) => eprintln!("{changes} differ, compared in {seconds:.2} s"),
            (_, true) => eprintln!("{changes} to change, {deletes} of them to delete"),
            _ => eprintln!(
                "{changes} changed, {deletes} of them deleted; {} files, {} in {seconds:.2} s over \
                 {}, {} moved",
                summary.files,
                BinaryBytes(summary.bytes),
                summary.transport,
                BinaryBytes(summary.moved_bytes),
            ),
        }
        if let Some(reason) = summary.reason.as_ref().filter(|_| self.verbose) {
            eprintln!("{}: {reason}", summary.transport);
        }
        if summary.reconnects > 0 {
            eprintln!("the server was lost and reached again {} times", summary.reconnects);
        }
        if !summary.dropped.is_empty() {
            eprintln!("not kept: {}", summary.dropped);
        }
        if summary.failed > 0 {
            eprintln!("{} not done", summary.failed);
        }
    }
}

impl Observer for Show {
    fn altered(&mut self, altered: &Altered) {
        let Altered { action, path, why, bytes } = altered;
        let path = match path.as_str() {
            "" => ".".to_owned(),
            path => clean(path),
        };
        if self.json {
            let line = serde_json::json!({
                "event": "change", "action": action, "path": path, "why": why, "bytes": bytes,
                "dry_run": self.only_looks,
            });
            println!("{line}");
        } else if self.itemize && !self.quiet {
            self.bar.suspend(|| println!("{action:<8} {path}  ({})", why.join(", ")));
        }
    }

    fn file_done(&mut self, file: &FileDone) {
        if self.json {
            let line = serde_json::json!({
                "event": "file", "path": clean(&file.path), "local": clean(&file.local),
                "bytes": file.bytes, "digest": file.digest.to_string(),
            });
            println!("{line}");
        }
    }

    fn failed(&mut self, failure: &Failure) {
        self.bar.suspend(|| print_failure(failure, self.json));
    }

    fn skipped(&mut self, skipped: &Skipped) {
        let (path, reason) = (clean(&skipped.path), skipped.reason);
        if self.json {
            let reason = reason.to_string();
            let line = serde_json::json!({ "event": "skipped", "path": path, "reason": reason });
            println!("{line}");
        } else if self.verbose || reason == SkipReason::Special && !self.quiet {
            self.bar.suspend(|| eprintln!("rdma-sync: skipped {path}: {reason}"));
        }
    }

    fn progress(&mut self, progress: &Progress) {
        self.bar.set_length(progress.bytes_known.max(1));
        self.bar.set_position(progress.bytes);
        let more = if progress.searching { "+" } else { "" };
        self.bar.set_message(format!(
            "{}/{}{more} files  {}/{}{more}",
            progress.files,
            progress.files_known,
            BinaryBytes(progress.bytes),
            BinaryBytes(progress.bytes_known),
        ));
    }

    fn retrying(&mut self, retry: &Retry) {
        let (peer, cause, pause) = (&retry.peer, clean(&retry.cause), retry.pause.as_secs_f64());
        if self.json {
            let line = serde_json::json!({
                "event": "retrying", "peer": peer, "cause": cause, "attempt": retry.attempt,
                "pause_seconds": pause, "left_seconds": retry.left.as_secs_f64(),
            });
            println!("{line}");
        } else if !self.quiet {
            let text = format!("rdma-sync: server {peer}: {cause}; trying again in {pause:.1} s");
            self.bar.suspend(|| eprintln!("{text}"));
        }
    }

    fn followed(&mut self, status: &Status) {
        if self.json {
            let mut line = serde_json::json!({ "event": "status" });
            if let (Some(line), Ok(serde_json::Value::Object(status))) =
                (line.as_object_mut(), serde_json::to_value(status))
            {
                line.extend(status);
            }
            println!("{line}");
            return;
        }
        let error = clean(status.error.as_deref().unwrap_or_default());
        let text = match status.state {
            State::Current => format!("current, {} changed so far", status.changes),
            State::Behind => format!("behind: {error}; trying again"),
            State::Lost => format!("the source is lost: {error}; trying again"),
            State::Starting | State::Syncing | State::Stopped => return,
        };
        if self.verbose || status.state != State::Current && !self.quiet {
            self.bar.suspend(|| eprintln!("rdma-sync: {text}"));
        }
    }

    fn reconnected(&mut self) {
        if self.json {
            println!("{}", serde_json::json!({ "event": "reconnected" }));
        } else if !self.quiet {
            self.bar.suspend(|| eprintln!("rdma-sync: the server is there again, going on"));
        }
    }
}

/// Prints what could not be done, why, and the next step.
fn print_failure(failure: &Failure, json: bool) {
    let Failure { path, peer, fault } = failure;
    let (path, text) = (clean(path), clean(&fault.text));
    let hint = match fault.code {
        Code::IsFolder | Code::NotFolder => Some("--delete removes what is in its place"),
        Code::BadPath => None,
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
    eprintln!("rdma-sync: {path} (server {peer}): {text}");
    if let Some(hint) = hint {
        eprintln!("  hint: {hint}");
    }
}

fn print_summary_json(summary: &Summary, exit: Exit) {
    let line = serde_json::json!({
        "event": "summary",
        "changes": summary.changes,
        "deletes": summary.deletes,
        "files": summary.files,
        "failed": summary.failed,
        "skipped": summary.skipped,
        "bytes": summary.bytes,
        "resumed_bytes": summary.resumed_bytes,
        "moved_bytes": summary.moved_bytes,
        "hole_bytes": summary.hole_bytes,
        "seconds": summary.elapsed.as_secs_f64(),
        "transport": summary.transport,
        "rdma_reads": summary.rdma.reads,
        "rdma_writes": summary.rdma.writes,
        "reason": summary.reason,
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

/// Makes text of the other side harmless to a terminal.
pub fn clean(text: &str) -> String {
    text.chars()
        .flat_map(|letter| {
            let escaped = letter.is_control().then(|| letter.escape_default().to_string());
            escaped.unwrap_or_else(|| letter.to_string()).chars().collect::<Vec<_>>()
        })
        .collect()
}
