//! Prints the events of `rdma-cp` beyond those of all commands: digests, planned
//! copies, and its summary.

use crate::flags::Flags;
use crate::shared::exit::Exit;
use crate::shared::output::{self, Output, summary_json};
use crate::shared::sanitize::clean;
use indicatif::BinaryBytes;
use verbatim_client::{
    Failure, FileDone, Observer, Planned, Progress, Retry, Skipped, Summary, Task,
};
use verbatim_proto::message::EntryKind;
use verbatim_proto::{Code, Digest};
use verbatim_usage::{note, out};

/// Prints the events of a copy.
pub struct CopyObserver {
    output: Output,
    task: Task,
    digest: bool,
    /// The digest of the last file, which the summary shows for a single file.
    last: Option<Digest>,
}

impl CopyObserver {
    pub fn new(flags: &Flags, task: Task) -> Self {
        let output = Output::new(&flags.output, &flags.connection.transport);
        Self { output, task, digest: flags.digest, last: None }
    }

    /// Prints the summary; returns the exit code.
    pub fn finish(self, summary: &Summary) -> Exit {
        self.output.bar.finish_and_clear();
        let exit = Exit::of_summary(summary);
        if self.output.json {
            out!("{}", summary_json(summary, exit));
        } else if !self.output.quiet {
            self.print_summary(summary);
        }
        exit
    }

    fn print_summary(&self, summary: &Summary) {
        let files = if summary.files == 1 { "file" } else { "files" };
        if summary.skipped > 0 {
            note!("{} left alone", summary.skipped);
        }
        if self.task != Task::Copy {
            return self.print_short_summary(summary, files);
        }
        let (bytes, seconds) = (BinaryBytes(summary.bytes), summary.elapsed.as_secs_f64());
        let moved = match Output::transport_suffix(summary) {
            over if over.is_empty() => over,
            over => {
                let rate = BinaryBytes(summary.rate() as u64);
                format!(", {rate}/s{over}, limited by the {}", summary.limited_by)
            }
        };
        note!("{} {files}, {bytes} in {seconds:.2} s{moved}", summary.files);
        self.output.print_transport(summary);
        if let Some(digest) = self.last.filter(|_| summary.files == 1 && !self.digest) {
            note!("blake3 {digest}");
        }
        if summary.resumed_bytes > 0 {
            note!("{} were there from an earlier run", BinaryBytes(summary.resumed_bytes));
        }
        if summary.rehashed_bytes > 0 {
            let bytes = BinaryBytes(summary.rehashed_bytes);
            note!("{bytes} were hashed again to go on with them");
        }
        if summary.hole_bytes > 0 {
            note!("{} were holes, and not moved", BinaryBytes(summary.hole_bytes));
        }
        self.output.print_problems(summary, "not copied");
    }

    /// Without copied data there is neither a rate nor a transport.
    fn print_short_summary(&self, summary: &Summary, files: &str) {
        let (count, bytes) = (summary.files, BinaryBytes(summary.bytes));
        if self.task == Task::DryRun {
            note!("{count} {files}, {bytes}, would be copied");
        } else {
            let seconds = summary.elapsed.as_secs_f64();
            note!("{count} {files}, {bytes}, same on both sides, compared in {seconds:.2} s");
        }
        if summary.failed > 0 {
            let how = if self.task == Task::DryRun { "cannot be" } else { "differ or cannot be" };
            let what = if self.task == Task::DryRun { "copied" } else { "compared" };
            note!("{} {how} {what}", summary.failed);
        }
    }
}

impl Observer for CopyObserver {
    fn file_done(&mut self, file: &FileDone) {
        if self.output.json {
            self.output.print_file_json(file);
        } else if self.digest {
            self.output.bar.suspend(|| out!("{}  {}", file.digest, clean(&file.local)));
        } else if self.output.verbose {
            let (path, bytes) = (clean(&file.path), BinaryBytes(file.bytes));
            self.output.bar.suspend(|| note!("{path} {bytes}"));
        }
        self.last = Some(file.digest);
    }

    fn failed(&mut self, failure: &Failure) {
        let verify = self.task == Task::Verify;
        let hint = match failure.fault.code {
            Code::Mismatch if verify => Some("copy it again, without --verify"),
            Code::NotFound if verify => Some("copy it first, without --verify"),
            _ => failure.hint(),
        };
        self.output.failed(if verify { "verify" } else { "copy" }, failure, hint);
    }

    fn skipped(&mut self, skipped: &Skipped) {
        self.output.skipped(skipped);
    }

    fn planned(&mut self, planned: &Planned) {
        let (path, target) = (clean(&planned.path), clean(&planned.target));
        let (kind, mark) = kind_of(&planned.kind);
        if self.output.json {
            let line = serde_json::json!({
                "event": "planned", "path": path, "target": target, "kind": kind,
                "bytes": planned.bytes,
            });
            out!("{line}");
        } else {
            let ends = |text: &str| if text.ends_with('/') { "" } else { mark };
            let marks = (ends(&path), ends(&target));
            self.output.bar.suspend(|| out!("{path}{} -> {target}{}", marks.0, marks.1));
        }
    }

    fn progress(&mut self, progress: &Progress) {
        self.output.progress(progress);
    }

    fn retrying(&mut self, retry: &Retry) {
        self.output.retrying(retry);
    }

    fn reconnected(&mut self) {
        self.output.reconnected();
    }
}

/// Prints an entry that could not be listed.
pub fn print_unlisted(failure: &Failure, json: bool) {
    output::print_failure("list", failure, failure.hint(), json);
}

/// The name of a kind, and its mark in a listing, as `ls -F` has it.
pub fn kind_of(kind: &EntryKind) -> (&'static str, &'static str) {
    match kind {
        EntryKind::File => ("file", ""),
        EntryKind::Folder => ("folder", "/"),
        EntryKind::Symlink { .. } => ("symlink", "@"),
        EntryKind::Special => ("special", "|"),
    }
}
