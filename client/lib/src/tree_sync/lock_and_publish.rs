//! The target of a mirror before and after the work: the server holds it for the
//! session, and where a tree was built beside it, here or there, that is put in
//! its place at the end, if all of it is there. Called by the phases in `mod.rs`.

use crate::tree_sync::spec::{AtomicTarget, Spec};
use std::time::{Duration, Instant};
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::jobs::Jobs;
use verbatim_engine::local_io::waker::Waker;
use verbatim_proto::message::ClientMessage;
use verbatim_proto::mirror::{About, MirrorRequest};
use verbatim_proto::{Code, Fault, WirePath};

/// How often a target that an earlier session of this run may still hold is asked for.
const HOLD_AGAIN_EVERY: Duration = Duration::from_millis(250);

/// The lock on a target, and the tree that takes its place.
pub(crate) struct TargetLock {
    /// The request to hold the target, or to put a tree in its place, while that is awaited.
    request_id: Option<u32>,
    since: Instant,
    jobs: Jobs<Result<(), Fault>>,
}

/// What became of a request to hold the target.
pub(crate) enum LockOutcome {
    Locked,
    /// An earlier session of this run may still hold it: it is asked for again then.
    RetryAt(Instant),
    Failed(Fault),
}

impl TargetLock {
    pub fn new(waker: &Waker) -> Self {
        Self { request_id: None, since: Instant::now(), jobs: Jobs::new(waker) }
    }

    /// Whether this request was made here.
    pub fn is_own_request(&self, request: u32) -> bool {
        self.request_id == Some(request)
    }

    /// Has the server hold the target.
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

    /// The server holds the target for us, and says where to build, or not.
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
            // The session before this one may not be over for the server.
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

    /// Begins to put the tree in the place of its target; false where there is none to put there.
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

    /// Whether a tree on this machine is in place by now, or why it is not.
    pub fn local_publish_result(&mut self) -> Option<Result<(), Fault>> {
        self.jobs.next_answer()
    }
}
