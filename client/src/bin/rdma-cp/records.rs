//! What a copy leaves behind for others to look at: the timeline of its chunks,
//! and its numbers for node_exporter. Begun before the copy, so that a place that
//! cannot be written to is found out at once; a failure later is told and changes
//! no exit code, because the copy itself is done.

use crate::flags::Flags;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use verbatim_client::{Summary, Trace, replace};
use verbatim_telemetry::run::{Run, text};

pub struct Records {
    trace: Option<(PathBuf, Arc<Trace>)>,
    metrics: Option<PathBuf>,
}

impl Records {
    /// Opens what was asked for.
    pub fn begin(flags: &Flags) -> Result<Self, String> {
        let trace = match &flags.trace {
            None => None,
            Some(path) => {
                let trace = Trace::create(path).map_err(|error| cannot(path, &error))?;
                Some((path.clone(), trace))
            }
        };
        let metrics = flags.metrics_file.clone();
        if let Some(path) = &metrics {
            replace::begin(path).map_err(|error| cannot(path, &error))?;
        }
        Ok(Self { trace, metrics })
    }

    pub fn trace(&self) -> Option<Arc<Trace>> {
        self.trace.as_ref().map(|(_, trace)| trace.clone())
    }

    /// Writes what there is to say; returns what could not be written.
    pub fn end(self, summary: &Summary, exit: u8) -> Vec<String> {
        let mut errors = Vec::new();
        if let Some((path, trace)) = &self.trace {
            errors.extend(trace.finish().err().map(|error| cannot(path, &error)));
        }
        if let Some(path) = &self.metrics {
            let written = replace::replace(path, &text(&run_of(path, summary, exit)));
            errors.extend(written.err().map(|error| cannot(path, &error)));
        }
        errors
    }
}

fn cannot(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

fn run_of(path: &Path, summary: &Summary, exit: u8) -> Run {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Run {
        name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        transport: summary.transport.split(' ').next().unwrap_or_default().to_owned(),
        end_time: now.as_secs_f64(),
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
    }
}
