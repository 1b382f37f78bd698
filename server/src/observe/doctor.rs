//! The doctor's look at the server's own machine, once, when the server begins:
//! what is degraded is logged, and kept for the status and the page. On a thread
//! of its own, with deadlines: a device that hangs must not keep clients waiting.

use super::{Observatory, lock};
use crate::session::Shared;
use std::path::PathBuf;
use std::time::Duration;
use verbatim_doctor::{Facts, Finding, Report, Severity};

/// How long the counters of ports are watched.
const SAMPLE_TIME: Duration = Duration::from_secs(1);

impl Observatory {
    /// Looks, and says what is degraded. Where RDMA is switched off there is nothing to say.
    pub(super) fn examine(&self, shared: &Shared, exports: Vec<PathBuf>) {
        if !shared.rdma.enable {
            return;
        }
        let wish = shared.rdma.wish.clone();
        let report = Report::new(Facts::read(&self.root, wish, exports, SAMPLE_TIME));
        // Without a device the server has said already that data moves over TCP.
        if !report.facts.machine.devices.is_empty() {
            let told = report.findings.iter().filter(|it| it.severity > Severity::Note);
            for Finding { check, about, is, should, fix, .. } in told {
                tracing::warn!(check, about, is, should, %fix, "degraded");
            }
        }
        *lock(&self.findings) = report.findings;
    }
}
