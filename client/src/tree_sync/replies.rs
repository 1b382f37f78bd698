//! What the server answers a mirror. Nothing of it is believed that was not asked
//! for: an answer to another request, or too few of them, is the end of the
//! session. Called by the session for every message of its kind.

use crate::session::dispatch::Core;
use crate::tree_sync::{Mirroring, Phase};
use verbatim_proto::mirror::MirrorReply;
use verbatim_proto::{Code, Fault};

impl Core {
    pub(crate) fn mirror_reply(&mut self, reply: MirrorReply) {
        let Some(mut mirror) = self.mirror.take() else {
            return self.begun_early(reply);
        };
        match reply {
            MirrorReply::Begun { request, answer } if mirror.awaits_hold(request) => {
                self.held(&mut mirror, answer.map(|about| (about, None)));
            }
            MirrorReply::Staged { request, answer } if mirror.awaits_hold(request) => {
                let answer = answer.map(|staged| (staged.about, Some(staged.path)));
                self.held(&mut mirror, answer);
            }
            MirrorReply::Published { request, answer } if mirror.awaits_place(request) => {
                self.put_in_place(&mut mirror, answer);
            }
            MirrorReply::Begun { .. } | MirrorReply::Staged { .. } => {
                self.unasked("a target that it holds");
            }
            MirrorReply::Published { .. } => self.unasked("a tree that is in place"),
            MirrorReply::Walked { request, found, leftovers, done } => {
                match mirror.remote.takes(request, done) {
                    true => {
                        let side = mirror.side_of_remote();
                        mirror.beside.told(&found);
                        self.paged(&mut mirror, side, found, leftovers, done);
                    }
                    false => self.unasked("a page of a tree"),
                }
            }
            MirrorReply::Alike { request, done } => {
                match mirror.remote.takes_alike(request, done) {
                    true => self.paged_alike(&mut mirror, done),
                    false => self.unasked("a page that is the same"),
                }
            }
            MirrorReply::Names { request, names } => {
                match mirror.awaits_owners(request, names.len()) {
                    true => self.named(&mut mirror, names),
                    false => self.unasked("names of owners"),
                }
            }
            MirrorReply::Numbers { request, numbers } => {
                match mirror.awaits_owners(request, numbers.len()) {
                    true => self.numbered(&mut mirror, numbers),
                    false => self.unasked("numbers of owners"),
                }
            }
            MirrorReply::Habits { .. } => self.unasked("what it can keep"),
            MirrorReply::Changed { request, answers } => {
                let asked = mirror.changing.remove(&request);
                match asked.filter(|asked| asked.len() == answers.len()) {
                    Some(asked) => {
                        for (asked, answer) in asked.into_iter().zip(answers) {
                            self.answered(&mirror, asked, answer);
                        }
                    }
                    None => self.unasked("changes"),
                }
            }
        }
        self.mirror = Some(mirror);
    }

    /// An answer that comes before there is a mirror: somebody waits for it, or nobody.
    fn begun_early(&mut self, reply: MirrorReply) {
        match reply {
            MirrorReply::Begun { request, answer } if self.awaits_answer(request) => {
                self.answers.begun.insert(request, answer);
            }
            MirrorReply::Staged { request, answer } if self.awaits_answer(request) => {
                self.answers.staged.insert(request, answer);
            }
            MirrorReply::Habits { request, habits } if self.awaits_answer(request) => {
                self.answers.habits.insert(request, habits);
            }
            _ => self.unasked("something of a mirror"),
        }
    }

    pub(crate) fn unasked(&mut self, what: &str) {
        let text = format!("the server told of {what}, and nobody had asked for that");
        self.broke(Fault::new(Code::Protocol, text));
    }
}

impl Mirroring {
    fn awaits_hold(&self, request: u32) -> bool {
        self.phase == Phase::Holding(None) && self.asked == Some(request)
    }

    fn awaits_place(&self, request: u32) -> bool {
        self.phase == Phase::Publishing(true) && self.asked == Some(request)
    }
}
