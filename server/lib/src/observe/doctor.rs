//! Runs the RDMA doctor on the server's machine once, when the server starts. Degraded
//! findings are logged, and kept for the status page, without those about hidden exports. Runs
//! on a thread of its own with deadlines, so that a hung device does not delay clients.

use crate::config::export::Export;
use crate::observe::counters::lock;
use crate::observe::server_stats::{ServerStats, StatusSources};
use std::path::PathBuf;
use std::time::Duration;
use verbatim_doctor::{Facts, Finding, Report, Severity};

/// How long the counters of ports are sampled.
const SAMPLE_TIME: Duration = Duration::from_secs(1);

impl ServerStats {
    /// Runs the doctor and logs degraded findings. Does nothing where RDMA is disabled.
    pub(super) fn run_doctor(&self, watched: &StatusSources, exports: &[Export]) {
        if !watched.rails.enable {
            return;
        }
        let wish = watched.rails.wish();
        let paths = |hidden: bool| -> Vec<PathBuf> {
            let of = exports.iter().filter(|export| export.hidden == hidden);
            of.map(|export| export.path.clone()).collect()
        };
        let (shown, mut hidden) = (paths(false), paths(true));
        hidden.retain(|path| !shown.contains(path));
        let all = [shown, hidden.clone()].concat();
        // The sandbox makes some files unreadable on purpose: that is no finding.
        let facts = Facts::read(&self.root, wish, all, SAMPLE_TIME).confined();
        let told = Report::new(facts.clone().without_exports(&hidden)).findings;
        let report = Report::new(facts);
        // Without a device the server has already logged that it uses TCP.
        if !report.facts.machine.devices.is_empty() {
            let degraded = report.findings.iter().filter(|it| it.severity > Severity::Note);
            for Finding { check, about, is, should, fix, .. } in degraded {
                tracing::warn!(check, about, is, should, %fix, "degraded");
            }
        }
        *lock(&self.findings) = told;
    }
}
