//! Prints the events of `rdma-sync` beyond those of all commands: changes with their
//! reasons, the state of a followed target, and its summary.

use crate::flags::Flags;
use crate::shared::exit::Exit;
use crate::shared::output::{Output, summary_json};
use crate::shared::sanitize::clean;
use indicatif::BinaryBytes;
use serde_json::json;
use verbatim_client::model::follow_status::{FollowState, FollowStatus};
use verbatim_client::{Altered, Failure, FileDone, Observer, Progress, Retry, Skipped, Summary};
use verbatim_proto::Code;
use verbatim_usage::{note, out};

/// Prints the events of a sync.
pub struct SyncObserver {
    output: Output,
    itemize: bool,
    check: bool,
    changes_nothing: bool,
}

impl SyncObserver {
    pub fn new(flags: &Flags) -> Self {
        Self {
            output: Output::new(&flags.output, &flags.connection.transport),
            itemize: flags.prints_changes(),
            check: flags.is_check(),
            changes_nothing: flags.changes_nothing(),
        }
    }

    /// Prints the summary; returns the exit code.
    pub fn finish(self, summary: &Summary) -> Exit {
        self.output.bar.finish_and_clear();
        let exit = match Exit::of_summary(summary) {
            exit @ (Exit::Interrupted | Exit::Mismatch) => exit,
            _ if self.check && summary.differs => Exit::Mismatch,
            Exit::Done if self.check && summary.changes > 0 => Exit::Failed,
            exit => exit,
        };
        if self.output.json {
            let mut line = summary_json(summary, exit);
            line["changes"] = json!(summary.changes);
            line["deletes"] = json!(summary.deletes);
            out!("{line}");
        } else if !self.output.quiet {
            self.print_summary(summary);
        }
        exit
    }

    fn print_summary(&self, summary: &Summary) {
        let Summary { changes, deletes, .. } = summary;
        let seconds = summary.elapsed.as_secs_f64();
        match (self.check, self.changes_nothing) {
            (true, _) if *changes == 0 && summary.failed == 0 => {
                note!("both are equal, compared in {seconds:.2} s");
            }
            (true, _) => note!("{changes} differ, compared in {seconds:.2} s"),
            (_, true) => note!("{changes} to change, {deletes} of them to delete"),
            _ => note!(
                "{changes} changed, {deletes} of them deleted; {} files, {} in {seconds:.2} s{}, {} \
                 moved",
                summary.files,
                BinaryBytes(summary.bytes),
                Output::transport_suffix(summary),
                BinaryBytes(summary.moved_bytes),
            ),
        }
        if !self.changes_nothing {
            self.output.print_transport(summary);
        }
        self.output.print_problems(summary, "not done");
    }
}

impl Observer for SyncObserver {
    fn wants_per_file_events(&self) -> bool {
        self.output.json || self.itemize
    }

    fn altered(&mut self, altered: &Altered) {
        let Altered { action, path, why, bytes } = altered;
        let path = match path.as_str() {
            "" => ".".to_owned(),
            path => clean(path),
        };
        if self.output.json {
            let line = json!({
                "event": "change", "action": action, "path": path, "why": why.words(), "bytes": bytes,
                "dry_run": self.changes_nothing,
            });
            out!("{line}");
        } else if self.itemize && !self.output.quiet {
            self.output.bar.suspend(|| out!("{action:<8} {path}  ({})", why.words().join(", ")));
        }
    }

    fn file_done(&mut self, file: &FileDone) {
        if self.output.json {
            self.output.print_file_json(file);
        }
    }

    fn failed(&mut self, failure: &Failure) {
        let hint = match failure.fault.code {
            Code::IsFolder | Code::NotFolder => Some("--delete removes what is in its place"),
            Code::BadPath => None,
            _ => failure.hint(),
        };
        self.output.failed(if self.check { "compare" } else { "sync" }, failure, hint);
    }

    fn skipped(&mut self, skipped: &Skipped) {
        self.output.skipped(skipped);
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

    fn followed(&mut self, status: &FollowStatus) {
        if self.output.json {
            let mut line = json!({ "event": "status" });
            if let (Some(line), Ok(serde_json::Value::Object(status))) =
                (line.as_object_mut(), serde_json::to_value(status))
            {
                line.extend(status);
            }
            out!("{line}");
            return;
        }
        let error = clean(status.error.as_deref().unwrap_or_default());
        let text = match status.state {
            FollowState::Current => format!("current, {} changed so far", status.changes),
            FollowState::Behind => format!("behind: {error}; trying again"),
            FollowState::Lost => format!("the source is lost: {error}; trying again"),
            FollowState::Starting | FollowState::Syncing | FollowState::Stopped => return,
        };
        if self.output.verbose || status.state != FollowState::Current && !self.output.quiet {
            self.output.note(&text);
        }
    }
}
