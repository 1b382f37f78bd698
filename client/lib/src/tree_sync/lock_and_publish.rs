//! The target of a mirror before and after the work: the server holds it for the
//! session, and where a tree was built beside it, here or there, that is put in
//! its place at the end, if all of it is there. Called by the phases in `mod.rs`.

use crate::tree_sync::spec::{Aside, Spec};
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
    asked: Option<u32>,
    since: Instant,
    jobs: Jobs<Result<(), Fault>>,
}

/// What became of a request to hold the target.
pub(crate) enum Held {
    Yes,
    /// An earlier session of this run may still hold it: it is asked for again then.
    Again(Instant),
    No(Fault),
}

impl TargetLock {
    pub fn new(waker: &Waker) -> Self {
        Self { asked: None, since: Instant::now(), jobs: Jobs::new(waker) }
    }

    /// Whether this request was made here.
    pub fn has_asked(&self, request: u32) -> bool {
        self.asked == Some(request)
    }

    /// Has the server hold the target.
    pub fn ask(&mut self, engine: &mut Engine, spec: &Spec) {
        if let Some(key) = spec.of.share {
            engine.send(ClientMessage::Mirror(MirrorRequest::Share { key }));
        }
        let request = engine.request();
        let hold = match spec.of.aside.clone() {
            Some(Aside::There { target: path, key }) => MirrorRequest::Stage { request, path, key },
            _ => MirrorRequest::Begin { request, path: spec.of.remote.clone(), hold: true },
        };
        engine.send(ClientMessage::Mirror(hold));
        self.asked = Some(request);
    }

    /// The server holds the target for us, and says where to build, or not.
    pub fn held(
        &self,
        engine: &mut Engine,
        spec: &mut Spec,
        answer: Result<(About, Option<WirePath>), Fault>,
    ) -> Held {
        match answer {
            Ok((about, aside)) => {
                spec.of.rules = about.keeps.into();
                if let Some(aside) = aside {
                    spec.of.remote = aside;
                }
                Held::Yes
            }
            // The session before this one may not be over for the server.
            Err(fault)
                if fault.code == Code::Limit
                    && engine.outcomes().ledger().summary.reconnects > 0
                    && self.since.elapsed() < engine.options().timeout =>
            {
                Held::Again(Instant::now() + HOLD_AGAIN_EVERY)
            }
            Err(fault) => Held::No(fault),
        }
    }

    /// Begins to put the tree in the place of its target; false where there is none to put there.
    pub fn publish(&mut self, engine: &mut Engine, spec: &Spec) -> bool {
        let changed = engine.outcomes().ledger().summary.changes > 0;
        match spec.of.aside.clone() {
            Some(Aside::Here(stage)) => self.jobs.run(move || stage.finish(changed)),
            Some(Aside::There { target: path, .. }) => {
                let request = engine.request();
                self.asked = Some(request);
                let publish = MirrorRequest::Publish { request, path, changed };
                engine.send(ClientMessage::Mirror(publish));
            }
            None => return false,
        }
        true
    }

    /// Whether a tree on this machine is in place by now, or why it is not.
    pub fn published(&mut self) -> Option<Result<(), Fault>> {
        self.jobs.next_answer()
    }
}
