//! Locks the target of a mirror for the session, and at the end replaces the target by its staging
//! tree, if that is complete. Works for local and remote targets. Called by the phases in `mod.rs`.

use crate::tree_sync::spec::{AtomicTarget, Spec};
use std::time::{Duration, Instant};
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::jobs::Jobs;
use verbatim_engine::local_io::waker::Waker;
use verbatim_proto::message::ClientMessage;
use verbatim_proto::mirror::{About, MirrorRequest};
use verbatim_proto::{Code, Fault, WirePath};

/// The pause before the lock is requested again, while an earlier session of this run may have it.
const HOLD_AGAIN_EVERY: Duration = Duration::from_millis(250);

/// The lock on a target, and its replacement by the staging tree.
pub(crate) struct TargetLock {
    /// The request for the lock or for the replacement, while it is in flight.
    request_id: Option<u32>,
    since: Instant,
    jobs: Jobs<Result<(), Fault>>,
}

/// The answer to a request for the lock.
pub(crate) enum LockOutcome {
    Locked,
    /// An earlier session of this run may have the lock: request it again at this time.
    RetryAt(Instant),
    Failed(Fault),
}

impl TargetLock {
    pub fn new(waker: &Waker) -> Self {
        Self { request_id: None, since: Instant::now(), jobs: Jobs::new(waker) }
    }

    /// Whether this request is the one in flight.
    pub fn is_own_request(&self, request: u32) -> bool {
        self.request_id == Some(request)
    }

    /// Requests the lock on the target.
    pub fn request_lock(&mut self, engine: &mut Engine, spec: &Spec) {
        if let Some(key) = spec.mirror.share {
            engine.send(ClientMessage::Mirror(MirrorRequest::Share { key }));
        }
        let request = engine.request();
        let hold = match spec.mirror.atomic_target.clone() {
            Some(AtomicTarget::Remote { target: path, key }) => {
                MirrorRequest::Stage { request, path, key }
            }
            _ => MirrorRequest::Begin { request, path: spec.mirror.remote.clone(), hold: true },
        };
        engine.send(ClientMessage::Mirror(hold));
        self.request_id = Some(request);
    }

    /// Handles the answer to the request, which names the staging tree if there is one.
    pub fn lock_answered(
        &self,
        engine: &mut Engine,
        spec: &mut Spec,
        answer: Result<(About, Option<WirePath>), Fault>,
    ) -> LockOutcome {
        match answer {
            Ok((about, atomic_target)) => {
                spec.mirror.rules = about.keeps.into();
                if let Some(atomic_target) = atomic_target {
                    spec.mirror.remote = atomic_target;
                }
                LockOutcome::Locked
            }
            // The server may not have ended the previous session yet.
            Err(fault)
                if fault.code == Code::Limit
                    && engine.outcomes().ledger().summary.reconnects > 0
                    && self.since.elapsed() < engine.options().timeout =>
            {
                LockOutcome::RetryAt(Instant::now() + HOLD_AGAIN_EVERY)
            }
            Err(fault) => LockOutcome::Failed(fault),
        }
    }

    /// Starts to replace the target by its staging tree. Returns false if there is none.
    pub fn publish(&mut self, engine: &mut Engine, spec: &Spec) -> bool {
        let changed = engine.outcomes().ledger().summary.changes > 0;
        match spec.mirror.atomic_target.clone() {
            Some(AtomicTarget::Local(stage)) => self.jobs.run(move || stage.finish(changed)),
            Some(AtomicTarget::Remote { target: path, .. }) => {
                let request = engine.request();
                self.request_id = Some(request);
                let publish = MirrorRequest::Publish { request, path, changed };
                engine.send(ClientMessage::Mirror(publish));
            }
            None => return false,
        }
        true
    }

    /// The outcome of a local replacement, once it is done.
    pub fn local_publish_result(&mut self) -> Option<Result<(), Fault>> {
        self.jobs.next_answer()
    }
}
