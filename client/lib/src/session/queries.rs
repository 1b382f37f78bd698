//! Blocking queries: stat, list, and the properties of a mirror's target. Callers wait for their
//! answers before a copy begins; a copy itself never waits like this.

use crate::session::Session;
use std::time::Duration;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::connection::request_batches::split_by_frame;
use verbatim_engine::transfer::remote_scan::Page;
use verbatim_proto::message::Entry;
use verbatim_proto::mirror::{About, HABITS_VERSION, MirrorReply, Staged};
use verbatim_proto::{
    ClientMessage, Code, Digest, Fault, Habits, Look, MirrorRequest, Scan, WirePath,
};

/// How often an idle client sends a request; the server waits ten times as long.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// The query that a caller waits for, and its answer; one at a time.
#[derive(Default)]
pub(crate) struct Queries {
    request: Option<u32>,
    /// Whether the query is a list, answered in pages.
    is_list: bool,
    answer: Option<Answer>,
}

/// An answer of the server to a query.
enum Answer {
    Stated(Vec<Result<Entry, Fault>>),
    Page(Page),
    Begun(Result<About, Fault>),
    Staged(Result<Staged, Fault>),
    Habits(Habits),
}

impl Queries {
    /// Whether a caller waits for an answer.
    pub fn is_waiting(&self) -> bool {
        self.request.is_some()
    }

    /// Whether a caller waits for the answer to this request.
    pub fn awaits(&self, request: u32) -> bool {
        self.request == Some(request) && !self.is_list
    }

    /// Whether a caller waits for a page of this list.
    pub fn lists(&self, request: u32) -> bool {
        self.request == Some(request) && self.is_list && self.answer.is_none()
    }

    pub fn stated(&mut self, answers: Vec<Result<Entry, Fault>>) {
        self.answer = Some(Answer::Stated(answers));
    }

    pub fn page(&mut self, page: Page) {
        self.answer = Some(Answer::Page(page));
    }

    /// Stores an answer about a mirror's target. Returns false if no caller waits for it.
    pub fn mirror_reply(&mut self, reply: MirrorReply) -> bool {
        let (request, answer) = match reply {
            MirrorReply::Begun { request, answer } => (request, Answer::Begun(answer)),
            MirrorReply::Staged { request, answer } => (request, Answer::Staged(answer)),
            MirrorReply::Habits { request, habits } => (request, Answer::Habits(habits)),
            _ => return false,
        };
        let awaits = self.awaits(request);
        if awaits {
            self.answer = Some(answer);
        }
        awaits
    }
}

impl Session {
    /// Stats a remote path; follows a link.
    pub async fn stat(&mut self, path: &WirePath) -> Result<Result<Entry, Fault>, ClientError> {
        let mut answers = self.stat_all(std::slice::from_ref(path)).await?;
        Ok(answers.pop().expect("one answer per path"))
    }

    /// Stats these remote paths; follows links.
    pub async fn stat_all(
        &mut self,
        paths: &[WirePath],
    ) -> Result<Vec<Result<Entry, Fault>>, ClientError> {
        let mut all = Vec::with_capacity(paths.len());
        for paths in split_by_frame(paths.to_vec(), WirePath::as_bytes) {
            let asked = paths.clone();
            let look = Look { follow: true, paths };
            let answers = self
                .ask(
                    |request| ClientMessage::Stat { request, look },
                    |answer| match answer {
                        Answer::Stated(answers) => Some(answers),
                        _ => None,
                    },
                )
                .await?;
            if answers.len() != asked.len() {
                return Err(Fault::new(Code::Protocol, "the server looked at other paths").into());
            }
            let named = asked.into_iter().zip(answers);
            all.extend(named.map(|(path, answer)| answer.map(|entry| Entry { path, ..entry })));
        }
        Ok(all)
    }

    /// Reads the identity and capabilities of a remote folder. With `hold`, locks it as a mirror's
    /// target until the session ends.
    pub(crate) async fn describe_dir(
        &mut self,
        path: &WirePath,
        hold: bool,
    ) -> Result<Result<About, Fault>, ClientError> {
        let path = path.clone();
        self.ask(
            |request| ClientMessage::Mirror(MirrorRequest::Begin { request, path, hold }),
            |answer| match answer {
                Answer::Begun(answer) => Some(answer),
                _ => None,
            },
        )
        .await
    }

    /// Shares the locks of this session with all sessions that send the same key.
    pub(crate) fn share(&mut self, key: Digest) {
        self.dispatcher.engine.send(ClientMessage::Mirror(MirrorRequest::Share { key }));
    }

    /// Has the server build a staging tree for a remote folder, and locks both until the session
    /// ends.
    pub(crate) async fn stage(
        &mut self,
        path: &WirePath,
        key: Digest,
    ) -> Result<Result<Staged, Fault>, ClientError> {
        let path = path.clone();
        self.ask(
            |request| ClientMessage::Mirror(MirrorRequest::Stage { request, path, key }),
            |answer| match answer {
                Answer::Staged(answer) => Some(answer),
                _ => None,
            },
        )
        .await
    }

    /// Reads what the file system of a remote folder can store; `tries` permits a test of its
    /// timestamps. An older server knows nothing.
    pub(crate) async fn habits_of(
        &mut self,
        path: &WirePath,
        tries: bool,
    ) -> Result<Habits, ClientError> {
        if self.dispatcher.engine.version() < HABITS_VERSION {
            return Ok(Habits::default());
        }
        let path = path.clone();
        self.ask(
            |request| ClientMessage::Mirror(MirrorRequest::HabitsOf { request, path, tries }),
            |answer| match answer {
                Answer::Habits(habits) => Some(habits),
                _ => None,
            },
        )
        .await
    }

    /// Waits for `work`, and sends requests meanwhile, so that the server keeps the session.
    pub(crate) async fn keep_alive_while<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, ClientError> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(KEEPALIVE_INTERVAL) => drop(self.stat(&WirePath::root()).await?),
            }
        }
    }

    /// Sends requests until the session ends, so that the server keeps its locks.
    pub(crate) async fn keep_alive(&mut self) {
        while self.dispatcher.engine.session_fault().is_none() {
            tokio::select! {
                message = self.receiver.recv() => match message {
                    Ok(Some(message)) => self.dispatcher.message(message),
                    _ => return,
                },
                () = tokio::time::sleep(KEEPALIVE_INTERVAL) => {
                    if self.stat(&WirePath::root()).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Sends one request, and waits for the answer that `take` recognises.
    async fn ask<T>(
        &mut self,
        message: impl FnOnce(u32) -> ClientMessage,
        take: impl Fn(Answer) -> Option<T>,
    ) -> Result<T, ClientError> {
        let request = self.dispatcher.engine.request();
        self.dispatcher.engine.send(message(request));
        self.dispatcher.queries = Queries { request: Some(request), ..Queries::default() };
        loop {
            if let Some(answer) = self.dispatcher.queries.answer.take().and_then(&take) {
                self.dispatcher.queries = Queries::default();
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
        let request = self.dispatcher.engine.request();
        let scan = Scan { path: path.clone(), recursive, ..Scan::default() };
        self.dispatcher.engine.send(ClientMessage::Scan { request, scan });
        self.dispatcher.queries = Queries { request: Some(request), is_list: true, answer: None };
        loop {
            self.turn_or_end().await?;
            while let Some(Answer::Page(Page { entries, faults, done })) =
                self.dispatcher.queries.answer.take()
            {
                page(entries, faults);
                if done {
                    self.dispatcher.queries = Queries::default();
                    return Ok(());
                }
                self.dispatcher.engine.send(ClientMessage::ScanMore { request });
            }
        }
    }
}
