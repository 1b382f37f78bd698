//! Decides which steps of a mirror are applied at once, and which are deferred until what. Called
//! by the comparison for each step; applies nothing.

use crate::tree_sync::delta_candidates::DeltaCandidates;
use crate::tree_sync::spec::Spec;
use std::collections::HashSet;
use verbatim_engine::local_io::spool::Spool;
use verbatim_proto::plan::What;
use verbatim_proto::{Code, Fault, WirePath};

/// The most entries that wait for a folder to be deleted.
const LATE_MAX: usize = 1 << 16;

/// Deferred steps, spooled to files.
#[derive(Default)]
pub(crate) struct Schedule {
    /// Large new files, until the whole target is scanned.
    pub new_files: Spool<What>,
    pub links: Spool<What>,
    pub deletes: Spool<What>,
    /// Entries that only the staging tree has, if deletes are off.
    pub reverts: Spool<What>,
    /// Entries that wait for a folder to be deleted.
    pub late: Spool<What>,
    late_paths: HashSet<WirePath>,
    pub late_links: Spool<What>,
    pub finishes: Spool<What>,
}

impl Schedule {
    /// Defers a step, or returns it to be applied now.
    pub fn defer(
        &mut self,
        spec: &Spec,
        candidates: &DeltaCandidates,
        what: What,
    ) -> Result<Option<What>, Fault> {
        match &what {
            What::Link { to, late, .. } if *late || self.late_paths.contains(to) => {
                self.late_links.push(&what)?;
            }
            What::Link { .. } => self.links.push(&what)?,
            What::Delete { .. } => self.deletes.push(&what)?,
            What::Revert { .. } => self.reverts.push(&what)?,
            // The metadata of an export's root is the administrator's.
            What::Finish { node } if node.path.is_root() && spec.is_export() => {}
            What::Finish { .. } => self.finishes.push(&what)?,
            What::Fetch { late: true, .. } | What::Symlink { late: true, .. } => {
                if self.late_paths.len() >= LATE_MAX {
                    let text = format!("more than {LATE_MAX} folders became files");
                    return Err(Fault::new(Code::Limit, text));
                }
                self.late_paths.insert(what.path().clone());
                self.late.push(&what)?;
            }
            // The rest of the target may contain a basis for it.
            What::Fetch { node, there: false, .. } if candidates.may_learn(node) => {
                self.new_files.push(&what)?;
            }
            _ => return Ok(Some(what)),
        }
        Ok(None)
    }
}
