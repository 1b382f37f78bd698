//! Which steps of a mirror are done at once, and which wait for what. Called by the
//! comparison, step by step; nothing is done here.

use crate::model::copy_policy::Task;
use crate::session::dispatch::Core;
use crate::tree_sync::Mirroring;
use crate::tree_sync::spec::Way;
use verbatim_proto::plan::{Step, What};
use verbatim_proto::{Code, Fault};

/// Things that wait for a folder to be deleted: more than this is no mistake of naming.
const LATE_MAX: usize = 1 << 16;

impl Core {
    /// A step of which nothing was done yet, told or kept for later.
    pub(crate) fn take_step(&mut self, mirror: &mut Mirroring, step: Step) -> Result<(), Fault> {
        // Whether it is deleted is known when all else is done.
        if self.rules.task != Task::Copy || !matches!(step.what, What::Delete { .. }) {
            self.tell_step(mirror, &step);
        }
        if self.rules.task != Task::Copy && step.what.is_change() {
            return Ok(());
        }
        match &step.what {
            What::Link { to, late, .. } if *late || mirror.late_paths.contains(to) => {
                mirror.late_links.push(&step.what)
            }
            What::Link { .. } => mirror.links.push(&step.what),
            What::Delete { .. } => mirror.deletes.push(&step.what),
            What::Revert { .. } => mirror.reverts.push(&step.what),
            // How an export itself looks is for who exports it to say.
            What::Finish { node } if node.path.is_root() && mirror.is_export() => Ok(()),
            What::Finish { .. } => mirror.finishes.push(&step.what),
            What::Fetch { late: true, .. } | What::Symlink { late: true, .. } => {
                if mirror.late_paths.len() >= LATE_MAX {
                    let text = format!("more than {LATE_MAX} folders became files");
                    return Err(Fault::new(Code::Limit, text));
                }
                mirror.late_paths.insert(step.what.path().clone());
                mirror.late.push(&step.what)
            }
            // A file that is still to be seen may have its content.
            What::Fetch { node, there: false, .. } if mirror.likely.may_learn(node) => {
                mirror.fresh.push(&step.what)
            }
            _ => {
                self.do_step(mirror, step.what);
                Ok(())
            }
        }
    }
}

impl Mirroring {
    /// Whether the target is an export itself.
    pub(crate) fn is_export(&self) -> bool {
        self.of.way == Way::Up && self.of.remote.parent().is_root()
    }
}
