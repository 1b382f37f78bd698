//! Room for what did not fit. What interrupted runs left in the target, or in the
//! tree beside it, may be all that is in its way, and would stay for ever if it were
//! removed behind a run that succeeds. So what does not fit is no failure yet: when
//! all else is copied the leftovers are removed, and the trees are compared once more.
//! Never removes what the target has. Called by the phases in `mod.rs`.

use crate::session::dispatch::Core;
use crate::tree_sync::spec::Aside;
use crate::tree_sync::{Mirroring, Phase};
use verbatim_proto::Fault;
use verbatim_proto::plan::What;

/// How far a mirror is with that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Clearing {
    /// Nothing was removed yet.
    #[default]
    Not,
    /// Leftovers are being removed.
    Begun,
    /// They were, and the trees are compared again: what does not fit now has failed.
    Done,
}

impl Core {
    /// Removes what interrupted runs left, and begins anew, if that may help; else goes on.
    pub(crate) fn clear(&mut self, mirror: &mut Mirroring) -> Result<(), Fault> {
        if mirror.clearing == Clearing::Not && self.may_clear(mirror) {
            tracing::info!(target = mirror.of.target, "no space: leftovers are removed first");
            mirror.clearing = Clearing::Begun;
        }
        if mirror.clearing != Clearing::Begun {
            self.fail_held_back()?;
            mirror.phase = Phase::Linking;
        } else if !self.sweep_page(mirror)? {
            self.ledger.release_held_back();
            let (number, of) = (mirror.number, mirror.of.clone());
            *mirror = Mirroring::new(number, of, false);
            mirror.clearing = Clearing::Done;
        }
        Ok(())
    }

    /// Whether something did not fit, or too much would be deleted, and leftovers may be why.
    fn may_clear(&self, mirror: &Mirroring) -> bool {
        let is_full = self.ledger.held_back() > 0;
        let deletes = mirror.deletes.count() + mirror.reverts.count();
        let (leftovers, obsolete) = match &mirror.of.aside {
            None => (mirror.leftovers.count(), 0),
            // A tree that was made just now has what its target has, and nothing else.
            Some(Aside::Here(stage)) if !stage.is_resumed() => (0, 0),
            Some(_) => (mirror.leftovers.count(), deletes),
        };
        let refused = || mirror.of.limit.refuses(&mirror.diff.counts()).is_some();
        is_full && leftovers + obsolete > 0 || obsolete > 0 && refused()
    }

    /// Has a page of leftovers removed, and of what only the tree beside the target has; the last
    /// first, as a folder must be empty. Whether there was anything.
    pub(crate) fn sweep_page(&mut self, mirror: &mut Mirroring) -> Result<bool, Fault> {
        let mut page = mirror.leftovers.take_first()?;
        if page.is_empty() {
            let mut obsolete = mirror.reverts.take_last()?;
            if obsolete.is_empty() && mirror.phase == Phase::Clearing && mirror.of.aside.is_some() {
                obsolete = mirror.deletes.take_last()?;
            }
            page.extend(obsolete.iter().map(What::path).cloned());
        }
        mirror.eager = !page.is_empty();
        page.into_iter().for_each(|path| self.do_sweep(mirror, path));
        Ok(mirror.eager)
    }

    /// What did not fit has failed.
    fn fail_held_back(&mut self) -> Result<(), Fault> {
        let Some(mut held_back) = self.ledger.release_held_back() else { return Ok(()) };
        loop {
            let page = held_back.take_first()?;
            if page.is_empty() {
                return Ok(());
            }
            page.into_iter().for_each(|(item, path, fault)| self.failed(item, path, fault));
        }
    }
}
