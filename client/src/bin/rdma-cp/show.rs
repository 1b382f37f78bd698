//! What `rdma-cp` prints. Data and JSON go to standard output, progress and
//! errors to standard error; progress only where that is a terminal. Text of
//! the other side is cleaned first: a name must not move the cursor.

use crate::flags::Flags;
use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use verbatim_client::{Failure, FileDone, Observer, Progress, Summary};
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

/// Prints what a copy tells.
pub struct Show {
    json: bool,
    quiet: bool,
    digest: bool,
    verbose: bool,
    bar: ProgressBar,
    only: Option<FileDone>,
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
            digest: flags.digest,
            verbose: flags.verbose > 0,
            bar,
            only: None,
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
        eprintln!(
            "{} {files}, {} in {:.2} s, {}/s over {}, limited by the {}",
            summary.files,
            BinaryBytes(summary.bytes),
            summary.elapsed.as_secs_f64(),
            BinaryBytes(summary.rate() as u64),
            summary.transport,
            summary.limited_by,
        );
        if let Some(reason) = summary.reason.as_ref().filter(|_| self.verbose) {
            eprintln!("{}: {reason}", summary.transport);
        }
        if let Some(done) = self.only.as_ref().filter(|_| summary.files == 1 && !self.digest) {
            eprintln!("blake3 {}", done.digest);
        }
        if summary.resumed_bytes > 0 {
            eprintln!("{} were there from an earlier run", BinaryBytes(summary.resumed_bytes));
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
}

impl Observer for Show {
    fn file_done(&mut self, file: &FileDone) {
        let path = clean(&file.path);
        if self.json {
            let line = serde_json::json!({
                "event": "file", "path": path, "local": clean(&file.local), "bytes": file.bytes,
                "digest": file.digest.to_string(),
            });
            println!("{line}");
        } else if self.digest {
            self.bar.suspend(|| println!("{}  {}", file.digest, clean(&file.local)));
        } else if self.verbose {
            self.bar.suspend(|| eprintln!("{path} {}", BinaryBytes(file.bytes)));
        }
        self.only = Some(file.clone());
    }

    fn failed(&mut self, failure: &Failure) {
        self.bar.suspend(|| print_failure("copy", failure, self.json));
    }

    fn progress(&mut self, progress: &Progress) {
        self.bar.set_length(progress.bytes_known.max(1));
        self.bar.set_position(progress.bytes);
        let rate = progress.bytes as f64 / progress.elapsed.as_secs_f64().max(1e-3);
        let more = if progress.searching { "+" } else { "" };
        let left = progress.bytes_known.saturating_sub(progress.bytes) as f64 / rate.max(1.0);
        let left = match progress.searching || progress.bytes == 0 {
            true => "looking for more".to_owned(),
            false => format!("{} left", HumanDuration(Duration::from_secs_f64(left.min(1e9)))),
        };
        self.bar.set_message(format!(
            "{}/{}{more} files  {}/{}{more}  {}/s  {left}",
            progress.files,
            progress.files_known,
            BinaryBytes(progress.bytes),
            BinaryBytes(progress.bytes_known),
            BinaryBytes(rate as u64),
        ));
    }
}

/// Prints what could not be done, why, and the next step.
pub fn print_failure(verb: &str, failure: &Failure, json: bool) {
    let Failure { path, peer, fault } = failure;
    let (path, text) = (clean(path), clean(&fault.text));
    if json {
        let line = serde_json::json!({
            "event": "error", "path": path, "peer": peer, "code": format!("{:?}", fault.code),
            "class": format!("{:?}", fault.class()), "cause": text, "hint": failure.hint(),
        });
        println!("{line}");
        return;
    }
    eprintln!("rdma-cp: cannot {verb} {path} (server {peer}): {text}");
    if let Some(hint) = failure.hint() {
        eprintln!("  hint: {hint}");
    }
}

fn print_summary_json(summary: &Summary, exit: Exit) {
    let line = serde_json::json!({
        "event": "summary",
        "files": summary.files,
        "failed": summary.failed,
        "bytes": summary.bytes,
        "resumed_bytes": summary.resumed_bytes,
        "seconds": summary.elapsed.as_secs_f64(),
        "bytes_per_second": summary.rate(),
        "transport": summary.transport,
        "reason": summary.reason,
        "limited_by": summary.limited_by,
        "mismatches": summary.mismatches,
        "links_lost": summary.links_lost,
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
