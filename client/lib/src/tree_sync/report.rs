//! Reports and counts the changes of a mirror, each once, even if several sessions repeat it. The
//! ledger knows what earlier sessions have reported.

use crate::tree_sync::spec::Spec;
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::ledger::ItemKey;
use verbatim_engine::model::report::Altered;
use verbatim_proto::plan::{Step, What, Why};
use verbatim_proto::{Code, Fault, WirePath};

/// A change requested from the server or a job, and its report.
pub(crate) struct PendingChange {
    pub item: ItemKey,
    pub label: String,
    /// The deleted path, and whether it is a folder.
    pub gone: Option<(WirePath, bool)>,
}

impl PendingChange {
    /// Reports the outcome of the change.
    pub fn finish(self, engine: &mut Engine, spec: &Spec, answer: Result<(), Fault>) {
        match (answer, self.gone) {
            (Ok(()), None) => {}
            (Ok(()), Some((path, is_folder))) => {
                let step = Step { what: What::Delete { path, is_folder }, why: Why::GONE };
                report_step(engine, spec, &step);
            }
            // A folder with excluded entries stays, and that is no failure.
            (Err(fault), Some((_, true))) if fault.code == Code::IsFolder => {}
            (Err(fault), _) => engine.outcomes().failed(self.item, self.label, fault),
        }
    }
}

/// Reports and counts a step once, even if several sessions repeat it.
pub(crate) fn report_step(engine: &mut Engine, spec: &Spec, step: &Step) {
    let (action, bytes) = match &step.what {
        What::MakeFolder { .. } => ("folder", 0),
        What::Fetch { node, .. } => ("copy", node.size),
        What::Link { .. } => ("link", 0),
        What::Symlink { .. } => ("symlink", 0),
        What::Describe { .. } | What::Finish { .. } => ("metadata", 0),
        What::Delete { path, .. } => {
            let item = ItemKey::deletion(spec.number, path);
            return report_change(engine, item, "delete", path, &Why::GONE, 0);
        }
        What::OpenUp { .. } | What::Revert { .. } | What::Skip { .. } | What::Refuse { .. } => {
            return;
        }
    };
    let path = step.what.path();
    if step.why.is_empty() || path.is_root() && spec.is_export() {
        return;
    }
    let differs = step.why.content || step.why.size;
    engine.outcomes().ledger().summary.differs |=
        differs && matches!(step.what, What::Fetch { there: true, .. });
    report_change(engine, spec.item(path), action, path, &step.why, bytes);
}

fn report_change(
    engine: &mut Engine,
    item: ItemKey,
    action: &'static str,
    path: &WirePath,
    why: &Why,
    bytes: u64,
) {
    if !engine.outcomes().ledger().is_first_report(item) {
        return;
    }
    engine.outcomes().ledger().summary.changes += 1;
    engine.outcomes().ledger().summary.deletes += u64::from(action == "delete");
    let why = *why;
    engine.outcomes().altered(|| Altered { action, path: path.to_string(), why, bytes });
}
