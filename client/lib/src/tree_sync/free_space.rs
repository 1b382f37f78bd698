//! Frees space at a full target by removing the leftovers of interrupted runs, in the target or in
//! its staging tree. Otherwise leftovers are removed only at the end of a successful run, which
//! lack of space may prevent for ever. So lack of space is not a failure at first. When all else is
//! copied, the leftovers are removed and the trees compared once more. Never removes entries of the
//! target. Called by the phases in `mod.rs`.

use crate::tree_sync::spec::AtomicTarget;
use crate::tree_sync::{Phase, TreeSync};
use verbatim_engine::connection::Engine;
use verbatim_proto::Fault;
use verbatim_proto::plan::What;

/// The state of the removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeftoverRemoval {
    /// Nothing has been removed.
    #[default]
    NotStarted,
    /// Leftovers are being removed.
    Running,
    /// Leftovers were removed and the trees are compared again; lack of space is a failure now.
    Done,
}

impl TreeSync {
    /// Removes leftovers and restarts the comparison, if that may help; otherwise continues.
    pub(super) fn free_space(&mut self, engine: &mut Engine) -> Result<(), Fault> {
        if self.leftover_removal == LeftoverRemoval::NotStarted && self.may_clear(engine) {
            tracing::info!(
                target = self.spec.mirror.target,
                "no space: leftovers are removed first"
            );
            self.leftover_removal = LeftoverRemoval::Running;
        }
        if self.leftover_removal != LeftoverRemoval::Running {
            self.fail_no_space(engine)?;
            self.phase = Phase::Linking;
        } else if !self.sweep_page()? {
            engine.outcomes().ledger().take_no_space();
            self.restart_comparison(engine);
            self.leftover_removal = LeftoverRemoval::Done;
        }
        Ok(())
    }

    /// Whether entries lack space, or too many would be deleted, and leftovers may be the reason.
    fn may_clear(&self, engine: &mut Engine) -> bool {
        let is_full = engine.outcomes().ledger().no_space_count() > 0;
        let deletes = self.schedule.deletes.count() + self.schedule.reverts.count();
        let (leftovers, obsolete) = match &self.spec.mirror.atomic_target {
            None => (self.scan.leftovers.count(), 0),
            // A new staging tree is a copy of its target without leftovers.
            Some(AtomicTarget::Local(stage)) if !stage.is_resumed() => (0, 0),
            Some(_) => (self.scan.leftovers.count(), deletes),
        };
        let refused = || self.spec.mirror.limit.refuses(&self.scan.diff.counts()).is_some();
        is_full && leftovers + obsolete > 0 || obsolete > 0 && refused()
    }

    /// Removes a page of leftovers, and of entries that only the staging tree has; the last first,
    /// because folders must be empty. Returns whether there were any.
    pub(super) fn sweep_page(&mut self) -> Result<bool, Fault> {
        let mut page = self.scan.leftovers.take_front_page()?;
        if page.is_empty() {
            let mut obsolete = self.schedule.reverts.take_back_page()?;
            if obsolete.is_empty()
                && self.phase == Phase::Clearing
                && self.spec.mirror.atomic_target.is_some()
            {
                obsolete = self.schedule.deletes.take_back_page()?;
            }
            page.extend(obsolete.iter().map(What::path).cloned());
        }
        self.has_more = !page.is_empty();
        page.into_iter().for_each(|path| self.apply.sweep_leftover(&self.spec, path));
        Ok(self.has_more)
    }

    /// Fails the entries that lacked space.
    fn fail_no_space(&mut self, engine: &mut Engine) -> Result<(), Fault> {
        let Some(mut no_space) = engine.outcomes().ledger().take_no_space() else {
            return Ok(());
        };
        loop {
            let page = no_space.take_front_page()?;
            if page.is_empty() {
                return Ok(());
            }
            page.into_iter()
                .for_each(|(item, path, fault)| engine.outcomes().failed(item, path, fault));
        }
    }
}
