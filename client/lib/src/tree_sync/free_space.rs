//! Room for what did not fit. What interrupted runs left in the target, or in the
//! tree beside it, may be all that is in its way, and would stay for ever if it were
//! removed behind a run that succeeds. So what does not fit is no failure yet: when
//! all else is copied the leftovers are removed, and the trees are compared once more.
//! Never removes what the target has. Called by the phases in `mod.rs`.

use crate::tree_sync::spec::AtomicTarget;
use crate::tree_sync::{Phase, TreeSync};
use verbatim_engine::connection::Engine;
use verbatim_proto::Fault;
use verbatim_proto::plan::What;

/// How far a mirror is with that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeftoverRemoval {
    /// Nothing was removed yet.
    #[default]
    NotStarted,
    /// Leftovers are being removed.
    Running,
    /// They were, and the trees are compared again: what does not fit now has failed.
    Done,
}

impl TreeSync {
    /// Removes what interrupted runs left, and begins anew, if that may help; else goes on.
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

    /// Whether something did not fit, or too much would be deleted, and leftovers may be why.
    fn may_clear(&self, engine: &mut Engine) -> bool {
        let is_full = engine.outcomes().ledger().no_space_count() > 0;
        let deletes = self.schedule.deletes.count() + self.schedule.reverts.count();
        let (leftovers, obsolete) = match &self.spec.mirror.atomic_target {
            None => (self.scan.leftovers.count(), 0),
            // A tree that was made just now has what its target has, and nothing else.
            Some(AtomicTarget::Local(stage)) if !stage.is_resumed() => (0, 0),
            Some(_) => (self.scan.leftovers.count(), deletes),
        };
        let refused = || self.spec.mirror.limit.refuses(&self.scan.diff.counts()).is_some();
        is_full && leftovers + obsolete > 0 || obsolete > 0 && refused()
    }

    /// Has a page of leftovers removed, and of what only the tree beside the target has; the last
    /// first, as a folder must be empty. Whether there was anything.
    pub(super) fn sweep_page(&mut self) -> Result<bool, Fault> {
        let mut page = self.scan.leftovers.take_first()?;
        if page.is_empty() {
            let mut obsolete = self.schedule.reverts.take_last()?;
            if obsolete.is_empty()
                && self.phase == Phase::Clearing
                && self.spec.mirror.atomic_target.is_some()
            {
                obsolete = self.schedule.deletes.take_last()?;
            }
            page.extend(obsolete.iter().map(What::path).cloned());
        }
        self.has_more = !page.is_empty();
        page.into_iter().for_each(|path| self.apply.sweep_leftover(&self.spec, path));
        Ok(self.has_more)
    }

    /// What did not fit has failed.
    fn fail_no_space(&mut self, engine: &mut Engine) -> Result<(), Fault> {
        let Some(mut no_space) = engine.outcomes().ledger().take_no_space() else {
            return Ok(());
        };
        loop {
            let page = no_space.take_first()?;
            if page.is_empty() {
                return Ok(());
            }
            page.into_iter()
                .for_each(|(item, path, fault)| engine.outcomes().failed(item, path, fault));
        }
    }
}
