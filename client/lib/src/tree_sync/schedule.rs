//! Which steps of a mirror are done at once, and which wait for what. Called by the
//! comparison, step by step; nothing is done here.

use crate::tree_sync::delta_candidates::DeltaCandidates;
use crate::tree_sync::spec::Spec;
use std::collections::HashSet;
use verbatim_engine::local_io::spool::Spool;
use verbatim_proto::plan::What;
use verbatim_proto::{Code, Fault, WirePath};

/// Things that wait for a folder to be deleted: more than this is no mistake of naming.
const LATE_MAX: usize = 1 << 16;

/// Steps that wait, in files, for others to be done.
#[derive(Default)]
pub(crate) struct Schedule {
    /// New files that wait for all of the target to be seen.
    pub new_files: Spool<What>,
    pub links: Spool<What>,
    pub deletes: Spool<What>,
    /// What only the tree beside the target may have, where nothing is deleted.
    pub reverts: Spool<What>,
    /// What waits for a folder to be deleted.
    pub late: Spool<What>,
    late_paths: HashSet<WirePath>,
    pub late_links: Spool<What>,
    pub finishes: Spool<What>,
}

impl Schedule {
    /// Keeps a step for later, or gives it back to be done now.
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
            // How an export itself looks is for who exports it to say.
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
            // A file that is still to be seen may have its content.
            What::Fetch { node, there: false, .. } if candidates.may_learn(node) => {
                self.new_files.push(&what)?;
            }
            _ => return Ok(Some(what)),
        }
        Ok(None)
    }
}
