//! A report: what was found, what links would choose, and how well the machine is.
//! Made of facts alone, so that a recorded machine and this one are told alike.

use crate::checks::{self, Case, shown};
use crate::facts::{ExportFacts, Facts};
use crate::finding::{Finding, Severity};
use std::fmt::Write;
use verbatim_fabric::ports::{LinkLayer, Place, Reason, Transport};

/// What is known, found and chosen.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was read.
    pub facts: Facts,
    /// What is not as it should be, the worst first.
    pub findings: Vec<Finding>,
    /// Where links would start, the best first, or why they cannot.
    pub chosen: Result<Vec<Place>, Vec<Reason>>,
}

impl Report {
    /// Looks at facts.
    pub fn new(facts: Facts) -> Self {
        let chosen = checks::choice(&facts);
        let findings = checks::all(&Case { facts: &facts, chosen: &chosen });
        Self { facts, findings, chosen }
    }

    /// Adds what was found elsewhere, the worst first.
    pub fn add(&mut self, findings: Vec<Finding>) {
        self.findings.extend(findings);
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    }

    /// The worst of all findings; none where there is nothing to say.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// How `rdma-doctor` ends: 0 all well, 1 something limits speed, 2 RDMA cannot work.
    pub fn exit(&self) -> u8 {
        match self.worst() {
            Some(Severity::Blocks) => 2,
            _ if self.chosen.is_err() => 2,
            Some(Severity::Limits) => 1,
            Some(Severity::Note) | None => 0,
        }
    }

    /// All of it for people: devices, what else is to be told, findings, and a last line that
    /// says how it is.
    pub fn text(&self, more: &str) -> String {
        let mut text = self.devices_text();
        text.push_str(&self.exports_text());
        text.push_str(more);
        for finding in &self.findings {
            let Finding { severity, about, is, should, why, fix, .. } = finding;
            let word = severity.word().to_uppercase();
            let _ = write!(
                text,
                "\n{word:<7} {about}: {is}\n        should be: {should}\n        why: {why}\n        \
                 fix: {}\n",
                fix.to_string().replace('\n', "\n             ")
            );
        }
        let _ = writeln!(text, "\n{}", self.verdict());
        text
    }

    fn devices_text(&self) -> String {
        let mut text = String::new();
        let facts = &self.facts;
        for (device, more) in facts.machine.devices.iter().zip(&facts.devices) {
            // What speaks neither has a layer of its own, which the kernel does not name.
            let known = device.transport != Transport::Other;
            let layer = |it: LinkLayer| if known { it.name() } else { "-" };
            for (port, told) in device.ports.iter().zip(&more.ports) {
                let name = format!("{}/{}", device.name, port.number);
                let netdev = told.netdev.as_ref();
                let mtu = netdev.and_then(|it| it.mtu).map(|mtu| format!(" mtu {mtu}"));
                let netdev = netdev.map_or(String::new(), |it| it.name.clone());
                let line = format!(
                    "{name:<14} {:<7} {:<12} {:<10} {:<26} {netdev}{}",
                    port.state.name(),
                    told.physical.as_deref().unwrap_or("-"),
                    layer(port.link_layer),
                    told.rate,
                    mtu.unwrap_or_default(),
                );
                let _ = writeln!(text, "{}", line.trim_end());
            }
            if device.ports.is_empty() {
                let _ = writeln!(text, "{:<14} no port", device.name);
            }
        }
        if facts.machine.devices.is_empty() {
            text.push_str("no RDMA device\n");
        }
        for (rank, place) in self.chosen.iter().flatten().enumerate() {
            let word = if rank == 0 { "chosen" } else { "also" };
            let _ = writeln!(text, "{word}: {place}: {}", place.why);
        }
        text
    }

    /// What is known of each folder that is exported; what cannot be looked at is a finding.
    fn exports_text(&self) -> String {
        let mut text = String::new();
        for export in self.facts.exports.iter().filter(|export| export.error.is_none()) {
            let ExportFacts { path, file_system, free_bytes, size_bytes, read_path, .. } = export;
            let _ = write!(text, "export {}: ", path.display());
            if !file_system.is_empty() {
                let _ = write!(text, "{file_system}, ");
            }
            let _ = write!(text, "{} of {} free", shown(*free_bytes), shown(*size_bytes));
            let read_path = read_path.as_ref().map(|it| format!(", {it}")).unwrap_or_default();
            let _ = writeln!(text, "{read_path}");
        }
        text
    }

    /// One line that says how it is.
    pub fn verdict(&self) -> String {
        let count = |severity| self.findings.iter().filter(|it| it.severity == severity).count();
        let limits = count(Severity::Limits);
        let things = if limits == 1 { "thing limits" } else { "things limit" };
        match self.exit() {
            2 => format!(
                "RDMA cannot work here: {}; data moves over TCP",
                self.first_cause().unwrap_or_else(|| "nothing fits what was asked for".into())
            ),
            1 => format!("RDMA works; {limits} {things} what it gives"),
            _ => "RDMA works, and nothing limits it that can be seen here".into(),
        }
    }

    fn first_cause(&self) -> Option<String> {
        let blocks = self.findings.iter().find(|it| it.severity == Severity::Blocks);
        let of_finding = blocks.map(|it| format!("{}: {}", it.about, it.is));
        let reasons = self.chosen.as_ref().err();
        of_finding.or_else(|| reasons?.first().map(ToString::to_string))
    }
}
