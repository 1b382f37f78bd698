//! The target of a mirror before and after the work: the server holds it for the
//! session, and where a tree was built beside it, here or there, that is put in
//! its place at the end, if all of it is there. Called by the phases in `mod.rs`.

use crate::engine::ledger::Item;
use crate::session::Event;
use crate::session::dispatch::Core;
use crate::tree_sync::spec::Aside;
use crate::tree_sync::{Mirroring, Phase};
use std::time::{Duration, Instant};
use verbatim_proto::message::ClientMessage;
use verbatim_proto::mirror::{About, MirrorRequest};
use verbatim_proto::{Code, Fault, WirePath};

/// How often a target that an earlier session of this run may still hold is asked for.
const HOLD_AGAIN_EVERY: Duration = Duration::from_millis(250);

impl Core {
    /// Has the server hold the target.
    pub(crate) fn ask_to_hold(&mut self, mirror: &mut Mirroring) {
        if let Some(key) = mirror.of.share {
            self.sending.push_back(ClientMessage::Mirror(MirrorRequest::Share { key }));
        }
        let request = self.request();
        let hold = match mirror.of.aside.clone() {
            Some(Aside::There { target: path, key }) => MirrorRequest::Stage { request, path, key },
            _ => MirrorRequest::Begin { request, path: mirror.of.remote.clone(), hold: true },
        };
        self.sending.push_back(ClientMessage::Mirror(hold));
        mirror.asked = Some(request);
        mirror.phase = Phase::Holding(None);
    }

    /// The server holds the target for us, and says where to build, or not.
    pub(crate) fn held(
        &mut self,
        mirror: &mut Mirroring,
        answer: Result<(About, Option<WirePath>), Fault>,
    ) {
        match answer {
            Ok((about, aside)) => {
                mirror.of.rules = about.keeps.into();
                mirror.of.remote = aside.unwrap_or_else(|| mirror.of.remote.clone());
                mirror.phase = Phase::Comparing;
            }
            // The session before this one may not be over for the server.
            Err(fault)
                if fault.code == Code::Limit
                    && self.ledger.summary.reconnects > 0
                    && mirror.since.elapsed() < self.options.timeout =>
            {
                mirror.phase = Phase::Holding(Some(Instant::now() + HOLD_AGAIN_EVERY));
            }
            Err(fault) => {
                mirror.phase = Phase::Done;
                self.failed(mirror.item(&WirePath::root()), mirror.of.target.clone(), fault);
            }
        }
    }

    /// Puts the tree in the place of its target, unless something is missing in it.
    pub(crate) fn publish(&mut self, mirror: &mut Mirroring) {
        let failed = self.ledger.summary.failed;
        if failed > 0 {
            let text = format!("{failed} not done, so the target stays as it was; run it again");
            return self.put_in_place(mirror, Err(Fault::new(Code::Limit, text)));
        }
        let changed = self.ledger.summary.changes > 0;
        mirror.phase = Phase::Publishing(true);
        match mirror.of.aside.clone() {
            Some(Aside::Here(stage)) => self.job(move || Event::Published(stage.finish(changed))),
            Some(Aside::There { target: path, .. }) => {
                let request = self.request();
                mirror.asked = Some(request);
                let publish = MirrorRequest::Publish { request, path, changed };
                self.sending.push_back(ClientMessage::Mirror(publish));
            }
            None => mirror.phase = Phase::Done,
        }
    }

    /// The tree is in place, or not.
    pub(crate) fn put_in_place(&mut self, mirror: &mut Mirroring, answer: Result<(), Fault>) {
        mirror.phase = Phase::Done;
        if let Err(fault) = answer {
            self.failed(Item::rest(u32::MAX - 1), mirror.of.target.clone(), fault);
        }
    }

    /// The same, of a tree on this machine.
    pub(crate) fn published(&mut self, answer: Result<(), Fault>) {
        if let Some(mut mirror) = self.mirror.take() {
            self.put_in_place(&mut mirror, answer);
            self.mirror = Some(mirror);
        }
    }
}
