//! The doctor's look at the server's own machine, once, when the server begins:
//! what is degraded is logged, and kept for the status and the page, which tell
//! nothing of hidden exports. On a thread of its own, with deadlines: a device that
//! hangs must not keep clients waiting.

use crate::config::export::Export;
use crate::observe::counters::lock;
use crate::observe::observatory::{Observatory, Watched};
use std::path::PathBuf;
use std::time::Duration;
use verbatim_doctor::{Facts, Finding, Report, Severity};

/// How long the counters of ports are watched.
const SAMPLE_TIME: Duration = Duration::from_secs(1);

impl Observatory {
    /// Looks, and says what is degraded. Where RDMA is switched off there is nothing to say.
    pub(super) fn examine(&self, watched: &Watched, exports: &[Export]) {
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
        // The server has given up much that it has no need to read: that is no finding.
        let facts = Facts::read(&self.root, wish, all, SAMPLE_TIME).confined();
        let told = Report::new(facts.clone().without_exports(&hidden)).findings;
        let report = Report::new(facts);
        // Without a device the server has said already that data moves over TCP.
        if !report.facts.machine.devices.is_empty() {
            let degraded = report.findings.iter().filter(|it| it.severity > Severity::Note);
            for Finding { check, about, is, should, fix, .. } in degraded {
                tracing::warn!(check, about, is, should, %fix, "degraded");
            }
        }
        *lock(&self.findings) = told;
    }
}
