//! The rate limit of a session: defers windows and withholds grants while its client is over its
//! rate. Never blocks, and no worker waits. `limits::rate` has the token bucket, which all sessions
//! of a client share; the dispatcher withholds the grants and asks for the windows again.

use super::Services;
use crate::limits::rate::RateLimit;
use crate::observe::session_stats::SessionStats;
use std::sync::Arc;
use std::time::Duration;
use verbatim_serve::host;

/// The rate limit of a session.
pub(super) struct Pacing {
    services: Arc<Services>,
    view: Arc<SessionStats>,
    pace: Option<RateLimit>,
    /// Whether windows were deferred.
    deferred: bool,
    logged: bool,
}

impl Pacing {
    /// The rate limit of the session's client.
    pub fn of(services: &Arc<Services>, view: &Arc<SessionStats>) -> Self {
        let pace = services.paces.of(&view.who, view.peer.ip(), services.paces.now());
        Self {
            services: services.clone(),
            view: view.clone(),
            pace,
            deferred: false,
            logged: false,
        }
    }

    /// Whether windows wait only because of the rate limit.
    pub fn waits(&self) -> bool {
        self.deferred
    }

    /// How long until the client is within its rate; none without a limit.
    pub fn wait(&self) -> Option<Duration> {
        let pace = self.pace.as_ref()?;
        Some(pace.wait(self.services.paces.now()).unwrap_or_default())
    }

    /// Counts bytes that moved.
    pub fn took(&self, bytes: u64) {
        if let Some(pace) = &self.pace {
            pace.take(bytes, self.services.paces.now());
        }
    }

    /// Whether the client is over its rate.
    pub fn owes(&mut self) -> bool {
        let owes = self.wait().is_some_and(|wait| !wait.is_zero());
        if owes {
            self.log_held_back();
        }
        owes
    }

    /// Whether windows were deferred; they no longer are.
    pub fn take_deferred(&mut self) -> bool {
        std::mem::take(&mut self.deferred)
    }

    fn log_held_back(&mut self) {
        if !std::mem::replace(&mut self.logged, true) {
            let (session, who) = (self.view.id, &self.view.who);
            tracing::info!(
                session,
                who,
                "held back by limits.client_mb_per_second or name_mb_per_second"
            );
        }
    }
}

impl host::Pace for Pacing {
    fn window_bytes(&self) -> u64 {
        self.pace.as_ref().map_or(u64::MAX, |pace| pace.window_bytes())
    }

    fn may_lease(&mut self, bytes: u64) -> bool {
        let now = || self.services.paces.now();
        if self.pace.as_ref().is_none_or(|pace| pace.try_take(bytes, now())) {
            return true;
        }
        self.log_held_back();
        self.deferred = true;
        false
    }

    fn refund(&self, bytes: u64) {
        if let Some(pace) = &self.pace {
            pace.give_back(bytes);
        }
    }
}
