//! Questions a caller waits for: what is at a path, what is in a folder. Used
//! before a copy begins, and for lists; a copy itself never waits like this.

use crate::session::dispatch::Core;
use crate::session::{ClientError, Session};
use crate::transfer::select;
use std::collections::HashMap;
use std::time::Duration;
use verbatim_proto::message::Entry;
use verbatim_proto::mirror::{About, HABITS_VERSION, Staged};
use verbatim_proto::{
    ClientMessage, Code, Digest, Fault, Habits, Look, MirrorRequest, Scan, WirePath,
};

/// How often a server hears of a client that is busy otherwise; it waits ten times as long.
const STAY_EVERY: Duration = Duration::from_secs(30);

/// What the server answered of places, until whoever waits for it takes it.
#[derive(Default)]
pub(crate) struct Answers {
    /// What kinds of places some are.
    pub begun: HashMap<u32, Result<About, Fault>>,
    /// Where it builds trees.
    pub staged: HashMap<u32, Result<Staged, Fault>>,
    /// What can be kept there.
    pub habits: HashMap<u32, Habits>,
}

impl Session {
    /// Says what is at a remote path; a link is followed.
    pub async fn stat(&mut self, path: &WirePath) -> Result<Result<Entry, Fault>, ClientError> {
        let mut answers = self.stat_all(std::slice::from_ref(path)).await?;
        Ok(answers.pop().expect("one answer per path"))
    }

    /// Says what is at each of these paths; links are followed.
    pub async fn stat_all(
        &mut self,
        paths: &[WirePath],
    ) -> Result<Vec<Result<Entry, Fault>>, ClientError> {
        let mut all = Vec::with_capacity(paths.len());
        for paths in select::look_batches(paths.to_vec(), WirePath::as_bytes) {
            let request = self.core.request();
            let asked = paths.clone();
            let look = Look { follow: true, paths };
            self.core.sending.push_back(ClientMessage::Stat { request, look });
            self.core.asking = true;
            let answers = loop {
                if let Some(answers) = self.core.stated.remove(&request) {
                    break answers;
                }
                self.turn_or_end().await?;
            };
            self.core.asking = false;
            if answers.len() != asked.len() {
                return Err(Fault::new(Code::Protocol, "the server looked at other paths").into());
            }
            let named = asked.into_iter().zip(answers);
            all.extend(named.map(|(path, answer)| answer.map(|entry| Entry { path, ..entry })));
        }
        Ok(all)
    }

    /// Says what kind of place a remote folder is; holds it, as a target, until the session ends.
    pub(crate) async fn begin(
        &mut self,
        path: &WirePath,
        hold: bool,
    ) -> Result<Result<About, Fault>, ClientError> {
        let request = self.core.request();
        let begin = MirrorRequest::Begin { request, path: path.clone(), hold };
        self.ask(begin, |core| core.answers.begun.remove(&request)).await
    }

    /// Makes this session one of those that say the same: a target that one of them holds is
    /// kept for the others.
    pub(crate) fn share(&mut self, key: Digest) {
        self.core.sending.push_back(ClientMessage::Mirror(MirrorRequest::Share { key }));
    }

    /// Has a tree built beside a remote folder, and both held until the session ends.
    pub(crate) async fn stage(
        &mut self,
        path: &WirePath,
        key: Digest,
    ) -> Result<Result<Staged, Fault>, ClientError> {
        let request = self.core.request();
        let stage = MirrorRequest::Stage { request, path: path.clone(), key };
        self.ask(stage, |core| core.answers.staged.remove(&request)).await
    }

    /// Says what can be kept in a remote folder, or beside something; `tries` says whether times
    /// may be tried there. Of an older server nothing is known.
    pub(crate) async fn habits_of(
        &mut self,
        path: &WirePath,
        tries: bool,
    ) -> Result<Habits, ClientError> {
        if self.core.version < HABITS_VERSION {
            return Ok(Habits::default());
        }
        let request = self.core.request();
        let ask = MirrorRequest::HabitsOf { request, path: path.clone(), tries };
        self.ask(ask, |core| core.answers.habits.remove(&request)).await
    }

    /// Waits for something that is done elsewhere, and lets the server hear of us meanwhile.
    pub(crate) async fn stay_for<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, ClientError> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(STAY_EVERY) => drop(self.stat(&WirePath::root()).await?),
            }
        }
    }

    /// Does nothing but stay, until the session ends.
    pub(crate) async fn stay(&mut self) {
        while self.core.broken.is_none() {
            tokio::select! {
                message = self.receiver.recv() => match message {
                    Ok(Some(message)) => self.core.message(message),
                    _ => return,
                },
                () = tokio::time::sleep(STAY_EVERY) => {
                    if self.stat(&WirePath::root()).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    async fn ask<T>(
        &mut self,
        request: MirrorRequest,
        mut answer: impl FnMut(&mut Core) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.core.sending.push_back(ClientMessage::Mirror(request));
        self.core.asking = true;
        loop {
            if let Some(answer) = answer(&mut self.core) {
                self.core.asking = false;
                return Ok(answer);
            }
            self.turn_or_end().await?;
        }
    }

    /// Lists a remote folder, or the exports.
    pub async fn list(
        &mut self,
        path: &WirePath,
        recursive: bool,
        mut page: impl FnMut(Vec<Entry>, Vec<(WirePath, Fault)>),
    ) -> Result<(), ClientError> {
        let request = self.core.request();
        let scan = Scan { path: path.clone(), recursive, ..Scan::default() };
        self.core.sending.push_back(ClientMessage::Scan { request, scan });
        self.core.trees.list(request);
        self.core.asking = true;
        loop {
            self.turn_or_end().await?;
            while let Some((entries, faults, done)) = self.core.trees.listed() {
                page(entries, faults);
                if done {
                    self.core.asking = false;
                    return Ok(());
                }
                self.core.sending.push_back(ClientMessage::ScanMore { request });
            }
        }
    }
}
