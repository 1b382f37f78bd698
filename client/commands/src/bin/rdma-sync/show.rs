//! What `rdma-sync` prints beside what all commands do: changes with their
//! reasons, how a followed target is, and its summary.

use crate::flags::Flags;
use crate::shared::ending::Exit;
use crate::shared::sanitize::clean;
use crate::shared::voice::{Voice, summary_json};
use indicatif::BinaryBytes;
use serde_json::json;
use verbatim_client::model::follow_status::{State, Status};
use verbatim_client::{Altered, Failure, FileDone, Observer, Progress, Retry, Skipped, Summary};
use verbatim_proto::Code;
use verbatim_usage::{note, out};

/// Prints what a mirror tells.
pub struct Show {
    voice: Voice,
    itemize: bool,
    check: bool,
    only_looks: bool,
}

impl Show {
    pub fn new(flags: &Flags) -> Self {
        Self {
            voice: Voice::new(&flags.voice, &flags.connection.carrier),
            itemize: flags.itemizes(),
            check: flags.checks(),
            only_looks: flags.only_looks(),
        }
    }

    /// Prints the summary, and says how it ended.
    pub fn finish(self, summary: &Summary) -> Exit {
        self.voice.bar.finish_and_clear();
        let exit = match Exit::of(summary) {
            exit @ (Exit::Interrupted | Exit::Mismatch) => exit,
            _ if self.check && summary.differs => Exit::Mismatch,
            Exit::Done if self.check && summary.changes > 0 => Exit::Failed,
            exit => exit,
        };
        if self.voice.json {
            let mut line = summary_json(summary, exit);
            line["changes"] = json!(summary.changes);
            line["deletes"] = json!(summary.deletes);
            out!("{line}");
        } else if !self.voice.quiet {
            self.print_summary(summary);
        }
        exit
    }

    fn print_summary(&self, summary: &Summary) {
        let Summary { changes, deletes, .. } = summary;
        let seconds = summary.elapsed.as_secs_f64();
        match (self.check, self.only_looks) {
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
                Voice::over(summary),
                BinaryBytes(summary.moved_bytes),
            ),
        }
        if !self.only_looks {
            self.voice.transport(summary);
        }
        self.voice.trouble(summary, "not done");
    }
}

impl Observer for Show {
    fn hears_of_files(&self) -> bool {
        self.voice.json || self.itemize
    }

    fn altered(&mut self, altered: &Altered) {
        let Altered { action, path, why, bytes } = altered;
        let path = match path.as_str() {
            "" => ".".to_owned(),
            path => clean(path),
        };
        if self.voice.json {
            let line = json!({
                "event": "change", "action": action, "path": path, "why": why.words(), "bytes": bytes,
                "dry_run": self.only_looks,
            });
            out!("{line}");
        } else if self.itemize && !self.voice.quiet {
            self.voice.bar.suspend(|| out!("{action:<8} {path}  ({})", why.words().join(", ")));
        }
    }

    fn file_done(&mut self, file: &FileDone) {
        if self.voice.json {
            self.voice.file_json(file);
        }
    }

    fn failed(&mut self, failure: &Failure) {
        let hint = match failure.fault.code {
            Code::IsFolder | Code::NotFolder => Some("--delete removes what is in its place"),
            Code::BadPath => None,
            _ => failure.hint(),
        };
        self.voice.failed(if self.check { "compare" } else { "sync" }, failure, hint);
    }

    fn skipped(&mut self, skipped: &Skipped) {
        self.voice.skipped(skipped);
    }

    fn progress(&mut self, progress: &Progress) {
        self.voice.progress(progress);
    }

    fn retrying(&mut self, retry: &Retry) {
        self.voice.retrying(retry);
    }

    fn reconnected(&mut self) {
        self.voice.reconnected();
    }

    fn followed(&mut self, status: &Status) {
        if self.voice.json {
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
            State::Current => format!("current, {} changed so far", status.changes),
            State::Behind => format!("behind: {error}; trying again"),
            State::Lost => format!("the source is lost: {error}; trying again"),
            State::Starting | State::Syncing | State::Stopped => return,
        };
        if self.voice.verbose || status.state != State::Current && !self.voice.quiet {
            self.voice.say(&text);
        }
    }
}
