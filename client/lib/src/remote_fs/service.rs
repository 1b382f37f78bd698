//! The file service of a mount: stats, lists and reads over one session, many in flight at a time.
//! It ends when the session breaks. The callers keep the deadlines and send unanswered requests to
//! the next session.

use crate::remote_fs::attributes::StatInfo;
use crate::remote_fs::listing::Listing;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::jobs::Jobs;
use verbatim_engine::local_io::range_buffer::RangeBuffer;
use verbatim_engine::local_io::waker::Waker;
use verbatim_engine::transfer::remote_scan::{Page, SCANS_MAX};
use verbatim_proto::message::{ClientMessage, Entry, FileId};
use verbatim_proto::read::{ClientEffect, Fetch, Zero};
use verbatim_proto::{Code, Digest, Fault, Kept, Look, Scan, Ties, WirePath};

/// Metadata requests in flight; each is a scan for the server.
const DESCRIBES_MAX: usize = 2;

/// The most scans that are abandoned before their end. A server permits a session eight.
const ABANDONED_SCANS_MAX: usize = 2;

/// The most abandoned reads that the server has not ended.
const ABANDONED_READS_MAX: usize = 256;

/// The channel for an answer.
type Answer<T> = oneshot::Sender<Result<T, Fault>>;

/// A request of a mount.
pub enum FsRequest {
    /// Stats a path; does not follow a link.
    Stat(WirePath, Answer<StatInfo>),
    /// Lists a folder.
    List(WirePath, Answer<Listing>),
    /// Reads the metadata of a folder.
    Metadata(WirePath, Answer<Kept>),
    /// Reads a range of a file. Answered once it is verified and the file is unchanged.
    Read(WirePath, Arc<RangeBuffer>, Answer<Kept>),
}

/// The transport of a session.
#[derive(Clone, Debug, Default)]
pub struct TransportInfo {
    /// The transport of the links, once one is up.
    pub transport: Option<String>,
    /// Why it is not RDMA.
    pub reason: Option<String>,
    /// Reads posted to RDMA devices.
    pub rdma_reads: u64,
}

/// The requests without an answer.
pub(crate) struct Service {
    stats: HashMap<u32, Answer<StatInfo>>,
    lists: HashMap<u32, (Listing, Answer<Listing>)>,
    lists_waiting: VecDeque<(WirePath, Answer<Listing>)>,
    describes: HashMap<u32, (Kept, Answer<Kept>)>,
    describes_waiting: VecDeque<(WirePath, Answer<Kept>)>,
    parts: HashMap<FileId, (Arc<RangeBuffer>, Answer<Kept>)>,
    parts_waiting: VecDeque<(WirePath, Arc<RangeBuffer>, Answer<Kept>)>,
    /// Abandoned scans, whose next pages are not requested.
    abandoned_scans: HashSet<u32>,
    /// The owners of the next entries, and their request.
    ties: Option<(u32, Vec<Option<Ties>>)>,
    /// Jobs that hash the zeros of holes.
    jobs: Jobs<(Zero, Vec<Digest>)>,
}

impl Service {
    pub fn new(waker: &Waker) -> Self {
        Self {
            stats: HashMap::new(),
            lists: HashMap::new(),
            lists_waiting: VecDeque::new(),
            describes: HashMap::new(),
            describes_waiting: VecDeque::new(),
            parts: HashMap::new(),
            parts_waiting: VecDeque::new(),
            abandoned_scans: HashSet::new(),
            ties: None,
            jobs: Jobs::new(waker),
        }
    }

    /// Whether the server owes an answer that no machine waits for.
    pub fn awaits(&self) -> bool {
        !self.stats.is_empty() || !self.lists.is_empty() || !self.describes.is_empty()
    }

    /// Abandons scans whose callers gave up: a scan may never end.
    fn drop_abandoned_scans(&mut self) {
        let left = &mut self.abandoned_scans;
        self.lists.retain(|request, (_, answer)| !answer.is_closed() || !left.insert(*request));
        self.describes.retain(|request, (_, answer)| !answer.is_closed() || !left.insert(*request));
    }

    /// Fails reads whose callers gave up, frees their memory, and forgets abandoned stats.
    pub fn drop_abandoned_reads(&mut self, engine: &mut Engine) {
        self.stats.retain(|_, answer| !answer.is_closed());
        let left = self.parts.iter().filter(|(_, (_, answer))| answer.is_closed());
        let left: Vec<FileId> = left.map(|(file, _)| *file).collect();
        for file in &left {
            drop(self.parts[file].0.take());
            let fault = Fault::new(Code::TimedOut, "nobody waits for it any more");
            engine.read().fail(*file, fault);
        }
        if left.len() > ABANDONED_READS_MAX {
            let text = format!("the server does not end {} reads", left.len());
            engine.fail_session(Fault::new(Code::TimedOut, text));
        }
    }

    /// The owners of these entries, one for each, or an empty list if the server sent none.
    fn take_ties(&mut self, request: u32, entries: usize) -> Result<Vec<Option<Ties>>, Fault> {
        match self.ties.take() {
            None => Ok(Vec::new()),
            Some((of, ties)) if of == request && ties.len() == entries => Ok(ties),
            Some(_) => Err(Fault::new(Code::Protocol, "the server told of other entries")),
        }
    }

    /// Sends or queues a request.
    pub fn ask(&mut self, engine: &mut Engine, ask: FsRequest) {
        let request = engine.request();
        match ask {
            FsRequest::Stat(path, answer) => {
                let look = Look { follow: false, paths: vec![path] };
                engine.send(ClientMessage::Stat { request, look });
                self.stats.insert(request, answer);
            }
            FsRequest::List(path, answer) => self.lists_waiting.push_back((path, answer)),
            FsRequest::Metadata(path, answer) => self.describes_waiting.push_back((path, answer)),
            FsRequest::Read(path, part, answer) => {
                self.parts_waiting.push_back((path, part, answer))
            }
        }
    }

    /// Handles an answer to a stat.
    pub fn stated(
        &mut self,
        engine: &mut Engine,
        request: u32,
        answers: Vec<Result<Entry, Fault>>,
    ) {
        let there = answers.iter().filter(|answer| answer.is_ok()).count();
        let ties = match self.take_ties(request, there) {
            Ok(ties) => ties.into_iter().next().flatten(),
            Err(fault) => return engine.fail_session(fault),
        };
        if let Some(asked) = self.stats.remove(&request) {
            let answer = answers.into_iter().next();
            // A caller that gave up needs no answer.
            let _ = answer.map(|it| asked.send(it.map(|entry| StatInfo { entry, ties })));
        }
    }

    /// Handles the owners of the entries in the next message.
    pub fn tied(&mut self, request: u32, ties: Vec<Option<Ties>>) {
        self.ties = Some((request, ties));
    }

    /// Handles the answers of jobs.
    pub fn take_answers(&mut self, engine: &mut Engine) {
        while let Some((zero, digests)) = self.jobs.next_answer() {
            let now = engine.now();
            engine.read().zeroed(zero, Ok(digests), now);
        }
    }

    /// Sends queued requests within the bounds.
    pub fn pump(&mut self, engine: &mut Engine) {
        self.drop_abandoned_scans();
        let left = self.abandoned_scans.len();
        if left > ABANDONED_SCANS_MAX {
            let text = format!("the server does not end {left} lists");
            return engine.fail_session(Fault::new(Code::TimedOut, text));
        }
        while self.lists.len() < SCANS_MAX
            && let Some((path, answer)) = self.lists_waiting.pop_front()
        {
            if answer.is_closed() {
                continue;
            }
            let request = engine.request();
            let scan = Scan { path, ..Scan::default() };
            engine.send(ClientMessage::Scan { request, scan });
            self.lists.insert(request, (Listing::default(), answer));
        }
        while self.describes.len() < DESCRIBES_MAX
            && let Some((path, answer)) = self.describes_waiting.pop_front()
        {
            if answer.is_closed() {
                continue;
            }
            let request = engine.request();
            // Exclude all entries: the scan returns the folder itself first.
            let (describe, exclude) = (true, vec![b"*".to_vec()]);
            let scan = Scan { path, describe, exclude, ..Scan::default() };
            engine.send(ClientMessage::Scan { request, scan });
            self.describes.insert(request, (None, answer));
        }
        while engine.read().room() > 0
            && let Some((path, part, answer)) = self.parts_waiting.pop_front()
        {
            // A caller that gave up needs no answer.
            if answer.is_closed() {
                continue;
            }
            let (id, now) = (engine.file(), engine.now());
            engine.read().open_part(id, path, &part.part, now);
            self.parts.insert(id, (part, answer));
        }
    }

    /// Handles a page of a folder.
    pub fn page(&mut self, engine: &mut Engine, request: u32, page: Page) {
        let Page { entries, faults, done } = page;
        let ties = match self.take_ties(request, entries.len()) {
            Ok(ties) => ties,
            Err(fault) => return engine.fail_session(fault),
        };
        if self.abandoned_scans.contains(&request) {
            if done {
                self.abandoned_scans.remove(&request);
            }
            return;
        }
        if let Some((kept, answer)) = self.describes.remove(&request) {
            let told = entries.into_iter().find(|entry| entry.path.is_root());
            let kept = told.and_then(|entry| entry.meta).or(kept);
            let fault = faults.into_iter().next().map(|(_, fault)| fault);
            match fault {
                _ if !done => {
                    self.describes.insert(request, (kept, answer));
                    engine.send(ClientMessage::ScanMore { request });
                }
                Some(fault) if kept.is_none() => drop(answer.send(Err(fault))),
                _ => drop(answer.send(Ok(kept))),
            }
            return;
        }
        let Some((mut listing, answer)) = self.lists.remove(&request) else {
            return engine
                .fail_session(Fault::new(Code::Protocol, "the server sent a page unasked"));
        };
        let fits = listing.add(entries, &ties);
        // A fault of the folder itself fails the listing; entries with faults are left out.
        let (own, others): (Vec<_>, Vec<_>) =
            faults.into_iter().partition(|(path, _)| path.is_root());
        for (path, fault) in others {
            tracing::warn!(path = %path, cause = fault.text, "left out of its folder");
        }
        let fault = own.into_iter().next().map(|(_, fault)| fault);
        match (fault, fits) {
            (Some(fault), _) if done => drop(answer.send(Err(fault))),
            (None, Ok(())) if done => {
                listing.seal();
                drop(answer.send(Ok(listing)));
            }
            // A listing that is too long may never end.
            (_, Err(fault)) => {
                if !done {
                    self.abandoned_scans.insert(request);
                }
                drop(answer.send(Err(fault)));
            }
            _ => {
                self.lists.insert(request, (listing, answer));
                engine.send(ClientMessage::ScanMore { request });
            }
        }
    }

    /// Carries out an effect of the machine that reads.
    pub fn effect(&mut self, engine: &mut Engine, effect: ClientEffect) {
        match effect {
            ClientEffect::Opened { file, info, .. } => {
                if let Some((part, _)) = self.part(file) {
                    part.set_info(info);
                }
            }
            ClientEffect::Fetch(fetch) => self.fetch(engine, fetch),
            ClientEffect::Zero(zero) => self.zero(zero),
            // A range read is not restarted.
            ClientEffect::Restart { .. } => {}
            ClientEffect::Finished { file, meta, .. } => self.part_over(file, Ok(meta)),
            ClientEffect::Failed { file, fault } => self.part_over(file, Err(fault)),
            // The engine has handled these.
            ClientEffect::Send(_) | ClientEffect::DropLink { .. } | ClientEffect::Broken(_) => {}
        }
    }

    fn part(&self, file: FileId) -> Option<&(Arc<RangeBuffer>, Answer<Kept>)> {
        self.parts.get(&file)
    }

    fn part_over(&mut self, file: FileId, answer: Result<Kept, Fault>) {
        if let Some((_, asked)) = self.parts.remove(&file) {
            // A caller that gave up needs no answer.
            let _ = asked.send(answer);
        }
    }

    fn fetch(&self, engine: &mut Engine, fetch: Fetch) {
        engine.fetch_parts(fetch, |piece| {
            let (part, _) = self.part(piece.file).expect("a file stays until it is over");
            part.clone()
        });
    }

    fn zero(&self, zero: Zero) {
        let (part, _) = self.part(zero.file).expect("a file stays until it is over");
        let (part, size) = (part.clone(), part.part.size);
        self.jobs.run(move || {
            let digests = part.put_zeros(zero.extent, size);
            (zero, digests)
        });
    }
}
