//! The report as JSON for scripts and as metrics for collectors.
//! `verbatim_doctor::Report` formats the text for people.

use crate::probe_report;
use crate::shared::output::port_json;
use crate::shared::records::unix_seconds;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use verbatim_client::model::report::Port;
use verbatim_client::probe::Examination;
use verbatim_doctor::{ExportFacts, ReadPath, Report};
use verbatim_fabric::ports::Place;
use verbatim_telemetry::doctor::{Diagnosis, text};

/// The report as one JSON object.
pub fn json(report: &Report, found: Option<&Examination>) -> Value {
    let port = |place: &Place| port_json(&Port { place: place.clone(), refused: None });
    let chosen = report.chosen.iter().flatten().map(port);
    let reasons = report.chosen.as_ref().err().into_iter().flatten();
    let reasons = reasons.map(|it| json!({ "reason": it.to_string(), "hint": it.hint() }));
    let ports = report.facts.counters[1].iter().map(|port| {
        json!({
            "device": port.levels.device,
            "port": port.levels.port,
            "state": port.state,
            "link_layer": port.link_layer,
            "bytes_per_second": port.levels.bytes_per_second,
            "errors": port.levels.errors.iter().cloned().collect::<BTreeMap<_, _>>(),
        })
    });
    json!({
        "exit": report.exit(),
        "verdict": report.verdict(),
        "chosen": chosen.collect::<Vec<_>>(),
        "not_chosen_because": reasons.collect::<Vec<_>>(),
        "findings": report.findings,
        "exports": report.facts.exports.iter().map(export).collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
        "way": found.map(probe_report::json),
    })
}

fn export(export: &ExportFacts) -> Value {
    json!({
        "path": export.path.display().to_string(),
        "error": export.error,
        "file_system": export.file_system,
        "free_bytes": export.free_bytes,
        "size_bytes": export.size_bytes,
        "read_path": export.read_path.as_ref().map(|it| match it {
            ReadPath::Mapped => "mapped",
            ReadPath::Staged(_) => "staged",
        }),
    })
}

/// The report as metrics for node_exporter.
pub fn metrics(report: &Report) -> String {
    let findings = report.findings.iter();
    text(&Diagnosis {
        time: unix_seconds(),
        exit: report.exit(),
        findings: findings.map(|it| (it.check, it.severity.word(), it.about.as_str())).collect(),
        ports: report.facts.counters[1].iter().map(|port| &port.levels).collect(),
    })
}
