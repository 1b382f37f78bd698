//! Files that a run leaves for other tools: the trace of its chunks, and metrics for
//! node_exporter. Opened before the work, so that an unwritable path fails at once. A
//! later failure is printed but changes no exit code, because the work is done.

use super::exit::{Exit, NAME};
use super::sanitize::clean;
use clap::Args;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use verbatim_client::session::command_error::CopyError;
use verbatim_client::{NO_TRANSPORT, Summary, Trace};
use verbatim_files::replace::{Replacement, replace};
use verbatim_telemetry::run::{Run, text};
use verbatim_usage::note;

/// What is left behind, and where.
#[derive(Args)]
#[command(next_help_heading = "Output")]
pub struct RecordFlags {
    /// Write the timeline of chunks to FILE, for chrome://tracing or ui.perfetto.dev.
    ///
    /// When each chunk was under way on which connection, and when it was hashed and
    /// stored: about 400 bytes a chunk.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Write what was done to FILE, for the textfile collector of node_exporter.
    ///
    /// Written at the end, atomically. Its name without .prom is the label run, so
    /// that several commands can each have a file in one folder.
    #[arg(long, value_name = "FILE")]
    pub metrics_file: Option<PathBuf>,
}

/// The opened files.
pub struct Records {
    trace: Option<(PathBuf, Arc<Trace>)>,
    metrics: Option<PathBuf>,
}

impl Records {
    /// Opens the files that the flags name.
    pub fn open(flags: &RecordFlags) -> Result<Self, String> {
        let trace = match &flags.trace {
            None => None,
            Some(path) => {
                let trace = Trace::create(path).map_err(|error| cannot(path, &error))?;
                Some((path.clone(), trace))
            }
        };
        let metrics = flags.metrics_file.clone();
        if let Some(path) = &metrics {
            Replacement::begin(path).map_err(|error| cannot(path, &error))?;
        }
        Ok(Self { trace, metrics })
    }

    pub fn trace(&self) -> Option<Arc<Trace>> {
        self.trace.as_ref().map(|(_, trace)| trace.clone())
    }

    /// Writes the files; prints those that could not be written.
    pub fn finish(self, summary: Option<&Summary>, exit: Exit) {
        if let Some((path, trace)) = &self.trace {
            note_failure(trace.finish().map_err(|error| cannot(path, &error)));
        }
        if let (Some(path), Some(summary)) = (&self.metrics, summary) {
            note_failure(replace_file(path, &text(&run_metrics(path, summary, exit as u8))));
        }
    }

    /// Finishes for a run that did not start: the metrics of the previous run are no longer true.
    pub fn finish_unstarted(self, error: &CopyError) {
        let summary = Summary { transport: NO_TRANSPORT.into(), ..Summary::default() };
        self.finish(Some(&summary), Exit::of_error(error));
    }
}

/// Replaces a file atomically, so that a collector never reads half of it. All users may read it.
pub fn replace_file(path: &Path, text: &str) -> Result<(), String> {
    replace(path, text).map_err(|error| cannot(path, &error))
}

/// Prints a failure beside the work.
fn note_failure(done: Result<(), String>) {
    if let Err(error) = done {
        note!("{NAME}: {}", clean(&error));
    }
}

fn cannot(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

/// The time in seconds since 1970.
pub fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn run_metrics(path: &Path, summary: &Summary, exit: u8) -> Run {
    Run {
        command: NAME,
        name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        transport: summary.transport.split(' ').next().unwrap_or_default().to_owned(),
        end_time: unix_seconds(),
        seconds: summary.elapsed.as_secs_f64(),
        exit,
        files: summary.files,
        failed: summary.failed,
        bytes: summary.bytes,
        moved_bytes: summary.moved_bytes,
        mismatches: summary.mismatches,
        links_lost: summary.links_lost,
        reconnects: summary.reconnects,
        fell_back: summary.reason.is_some(),
        rdma_reads: summary.rdma.reads,
        rdma_writes: summary.rdma.writes,
        rdma_done: (summary.rdma.reads_done, summary.rdma.writes_done),
    }
}
