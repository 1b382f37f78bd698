//! A session whose client may move only so much a second: windows are put off and
//! grants held back while its client owes, and both go on when it is time. Nothing
//! blocks, and no worker waits. `limits::rate` counts, for all sessions of a client.

use super::end::End;
use super::{Session, Shared};
use crate::limits::rate::Pace;
use crate::observe::session_stats::View;
use std::time::Duration;
use verbatim_proto::read::Prepare;

/// The pace of a session.
#[derive(Default)]
pub(super) struct Pacing {
    pace: Option<Pace>,
    /// Whether windows wait for their time.
    put_off: bool,
    told: bool,
}

impl Pacing {
    /// That of the client that a session is of.
    pub fn of(shared: &Shared, view: &View) -> Self {
        let paces = &shared.paces;
        Self { pace: paces.of(&view.who, view.peer.ip(), paces.now()), ..Self::default() }
    }

    /// The longest window.
    pub fn window_bytes(&self) -> u64 {
        self.pace.as_ref().map_or(u64::MAX, |pace| pace.window_bytes())
    }
}

impl Session {
    /// Whether anything waits only because the client was too fast.
    pub(super) fn is_paced(&self) -> bool {
        self.pacing.put_off || self.writing.machine.holds_grants()
    }

    /// How long until what waits may go on; none where nothing does.
    pub(super) fn pace_wait(&self) -> Option<Duration> {
        let pace = self.pacing.pace.as_ref().filter(|_| self.is_paced())?;
        Some(pace.wait(self.client.shared.paces.now()).unwrap_or_default())
    }

    /// Counts bytes that move.
    pub(super) fn pace_took(&self, bytes: u64) {
        if let Some(pace) = &self.pacing.pace {
            pace.take(bytes, self.client.shared.paces.now());
        }
    }

    /// Counts the bytes of a window and gives it back, or puts it off if its client owes.
    pub(super) fn pace_window(&mut self, prepare: Prepare) -> Option<Prepare> {
        let (pace, paces) = (self.pacing.pace.as_ref(), &self.client.shared.paces);
        if pace.is_none_or(|pace| pace.take_if_free(bytes_of(&prepare), paces.now())) {
            return Some(prepare);
        }
        self.tell_held_back();
        self.pacing.put_off = true;
        self.reading.machine.put_off(prepare);
        None
    }

    /// A window that was counted is not made now.
    pub(super) fn pace_gave_back(&self, prepare: &Prepare) {
        if let Some(pace) = &self.pacing.pace {
            pace.give_back(bytes_of(prepare));
        }
    }

    /// Holds grants back while the client owes.
    pub(super) fn pace_grants(&mut self) {
        if self.owes() {
            self.writing.machine.hold_grants(true);
        }
    }

    /// Goes on with what waited, unless another session of the client was quicker.
    pub(super) fn pace_on(&mut self) -> Result<(), End> {
        if self.owes() {
            return Ok(());
        }
        self.writing.machine.hold_grants(false);
        if std::mem::take(&mut self.pacing.put_off) {
            self.reading.waits = true;
            self.lease_more();
        }
        Ok(())
    }

    fn owes(&mut self) -> bool {
        let paces = &self.client.shared.paces;
        let owes = self.pacing.pace.as_ref().is_some_and(|pace| pace.wait(paces.now()).is_some());
        if owes {
            self.tell_held_back();
        }
        owes
    }

    fn tell_held_back(&mut self) {
        if !std::mem::replace(&mut self.pacing.told, true) {
            let (session, who) = (self.client.id, &self.client.view.who);
            tracing::info!(
                session,
                who,
                "held back by limits.client_mb_per_second or name_mb_per_second"
            );
        }
    }
}

fn bytes_of(prepare: &Prepare) -> u64 {
    prepare.pieces.iter().map(|(_, extent)| extent.len).sum()
}
