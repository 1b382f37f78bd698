//! A session that answers as it is asked: what is at a path, what is in a folder, a
//! part of a file. It lives until it breaks, and many questions are under way at a
//! time. Used by `mount`; whoever asks keeps the deadlines, and asks the next session
//! when this one is gone.

use crate::engine::worker::{Command, Landing};
use crate::local_io::endpoint::Goal;
use crate::local_io::range_buffer::PartBuffer;
use crate::remote_fs::{Listing, Seen};
use crate::session::dispatch::Core;
use crate::session::{ClientError, Session};
use crate::transfer::remote_scan::SCANS_MAX;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use verbatim_proto::message::{ClientMessage, Entry, FileId, TIES_VERSION};
use verbatim_proto::read::{ClientEffect, Fetch, Zero};
use verbatim_proto::{Code, Fault, Kept, Look, Scan, Ties, WirePath};

/// Folders whose metadata is asked for at a time, which are scans too.
const DESCRIBES_MAX: usize = 2;

/// How often the server is asked whether it is there: oftener than it may find us idle.
const PING: Duration = Duration::from_secs(3);

/// Scans that may rest at the server, not at their end, because nobody waits for them any more. It
/// has room for eight of a session.
const SCANS_LEFT_MAX: usize = 2;

/// Parts that nobody waits for any more and that the server does not end.
const PARTS_LEFT_MAX: usize = 256;

/// Where an answer goes.
type Answer<T> = oneshot::Sender<Result<T, Fault>>;

/// A question.
pub enum Ask {
    /// What is at this path? A link is not followed.
    Look(WirePath, Answer<Seen>),
    /// What is in this folder?
    List(WirePath, Answer<Listing>),
    /// What else is known of this folder: its metadata.
    Describe(WirePath, Answer<Kept>),
    /// This part of a file. Answered when it is verified and the file did not change.
    Fetch(WirePath, Arc<PartBuffer>, Answer<Kept>),
}

/// What carries the data of a session.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// What it moves over, once it does.
    pub transport: Option<String>,
    /// Why that is not RDMA.
    pub reason: Option<String>,
    /// Requests that were posted to an RDMA device.
    pub rdma_reads: u64,
}

/// The questions that wait for their answers.
#[derive(Default)]
pub(crate) struct Serving {
    looks: HashMap<u32, Answer<Seen>>,
    lists: HashMap<u32, (Listing, Answer<Listing>)>,
    lists_waiting: VecDeque<(WirePath, Answer<Listing>)>,
    describes: HashMap<u32, (Kept, Answer<Kept>)>,
    describes_waiting: VecDeque<(WirePath, Answer<Kept>)>,
    parts: HashMap<FileId, (Arc<PartBuffer>, Answer<Kept>)>,
    parts_waiting: VecDeque<(WirePath, Arc<PartBuffer>, Answer<Kept>)>,
    /// Scans that nobody waits for: they are asked for no more pages.
    scans_left: HashSet<u32>,
    /// What was said of the entries that come next, and of which request.
    ties: Option<(u32, Vec<Option<Ties>>)>,
}

impl Serving {
    /// Whether the server owes an answer that no machine waits for.
    pub fn awaits(&self) -> bool {
        !self.looks.is_empty() || !self.lists.is_empty() || !self.describes.is_empty()
    }

    /// Lets go of lists whose askers gave up: one may have no end, or never come.
    fn leave_scans(&mut self) {
        let left = &mut self.scans_left;
        self.lists.retain(|request, (_, answer)| !answer.is_closed() || !left.insert(*request));
        self.describes.retain(|request, (_, answer)| !answer.is_closed() || !left.insert(*request));
    }

    /// Whose these entries are, one for each, or nothing where it was not told.
    fn take_ties(&mut self, request: u32, entries: usize) -> Result<Vec<Option<Ties>>, Fault> {
        match self.ties.take() {
            None => Ok(Vec::new()),
            Some((of, ties)) if of == request && ties.len() == entries => Ok(ties),
            Some(_) => Err(Fault::new(Code::Protocol, "the server told of other entries")),
        }
    }
}

impl Session {
    /// Answers questions until there are no more, or the session breaks. Unanswered ones are
    /// dropped then, which whoever asked hears. `tell` hears what carries the data.
    pub async fn serve(
        &mut self,
        asks: &mut mpsc::Receiver<Ask>,
        tell: impl Fn(Carried),
    ) -> Result<(), ClientError> {
        self.core.serving = Some(Box::default());
        self.core.attach_all();
        if self.core.version >= TIES_VERSION {
            self.core.sending.push_back(ClientMessage::TellTies);
        }
        let (mut ping, mut told) = (Instant::now(), Carried::default());
        let served = loop {
            tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => self.core.ask(ask),
                    None => break Ok(()),
                },
                turned = self.turn_or_end() => if let Err(error) = turned {
                    break Err(error);
                },
            }
            if self.core.is_carried_otherwise(&told) {
                told = self.core.carried();
                tell(told.clone());
            }
            if ping.elapsed() > PING {
                ping = Instant::now();
                let (request, paths) = (self.core.request(), Vec::new());
                let look = Look { follow: false, paths };
                self.core.sending.push_back(ClientMessage::Stat { request, look });
                self.core.leave_parts();
            }
        };
        self.core.serving = None;
        served
    }
}

impl Core {
    fn carried(&self) -> Carried {
        Carried {
            transport: self.links.transport.clone(),
            reason: self.carrier.reason().map(str::to_owned),
            rdma_reads: self.carrier.posted().reads,
        }
    }

    /// Whether that has changed; asked at every turn, so nothing is copied for it.
    fn is_carried_otherwise(&self, told: &Carried) -> bool {
        let now = (self.links.transport.as_deref(), self.carrier.reason());
        now != (told.transport.as_deref(), told.reason.as_deref())
            || self.carrier.posted().reads != told.rdma_reads
    }

    fn ask(&mut self, ask: Ask) {
        let request = self.request();
        let Some(serving) = &mut self.serving else { return };
        match ask {
            Ask::Look(path, answer) => {
                let look = Look { follow: false, paths: vec![path] };
                self.sending.push_back(ClientMessage::Stat { request, look });
                serving.looks.insert(request, answer);
            }
            Ask::List(path, answer) => serving.lists_waiting.push_back((path, answer)),
            Ask::Describe(path, answer) => serving.describes_waiting.push_back((path, answer)),
            Ask::Fetch(path, part, answer) => {
                serving.parts_waiting.push_back((path, part, answer));
            }
        }
    }

    /// The server said what is at some paths: to whom asked, or to those who look for a copy.
    pub(crate) fn stated(&mut self, request: u32, answers: Vec<Result<Entry, Fault>>) {
        if let Some(serving) = &mut self.serving {
            let there = answers.iter().filter(|answer| answer.is_ok()).count();
            let ties = match serving.take_ties(request, there) {
                Ok(ties) => ties.into_iter().next().flatten(),
                Err(fault) => return self.broke(fault),
            };
            if let Some(asked) = serving.looks.remove(&request) {
                let answer = answers.into_iter().next();
                // Whoever gave up needs no answer.
                let _ = answer.map(|it| asked.send(it.map(|entry| Seen { entry, ties })));
            }
        } else if let Some(answers) = self.looked(request, answers) {
            match self.awaits_answer(request) {
                true => drop(self.stated.insert(request, answers)),
                false => self.unasked("what is at some paths"),
            }
        }
    }

    /// The server said whose the entries are that it tells next.
    pub(crate) fn tied(&mut self, request: u32, ties: Vec<Option<Ties>>) {
        if let Some(serving) = &mut self.serving {
            serving.ties = Some((request, ties));
        }
    }

    /// Lets go of parts whose askers gave up, with what has come of them, and of looks.
    fn leave_parts(&mut self) {
        let Some(serving) = &mut self.serving else { return };
        serving.looks.retain(|_, answer| !answer.is_closed());
        let left = serving.parts.iter().filter(|(_, (_, answer))| answer.is_closed());
        let left: Vec<FileId> = left.map(|(file, _)| *file).collect();
        for file in &left {
            drop(serving.parts[file].0.take());
            self.read.fail(*file, Fault::new(Code::TimedOut, "nobody waits for it any more"));
        }
        if left.len() > PARTS_LEFT_MAX {
            let text = format!("the server does not end {} reads", left.len());
            self.broke(Fault::new(Code::TimedOut, text));
        }
    }

    /// Begins what there is room for.
    pub(crate) fn pump_serving(&mut self) {
        let now = self.now();
        if let Some(serving) = &mut self.serving {
            serving.leave_scans();
            let left = serving.scans_left.len();
            if left > SCANS_LEFT_MAX {
                let text = format!("the server does not end {left} lists");
                return self.broke(Fault::new(Code::TimedOut, text));
            }
        }
        while let Some(serving) = &mut self.serving
            && serving.lists.len() < SCANS_MAX
            && let Some((path, answer)) = serving.lists_waiting.pop_front()
        {
            if answer.is_closed() {
                continue;
            }
            let request = self.request();
            let scan = Scan { path, ..Scan::default() };
            self.sending.push_back(ClientMessage::Scan { request, scan });
            if let Some(serving) = &mut self.serving {
                serving.lists.insert(request, (Listing::default(), answer));
            }
        }
        while let Some(serving) = &mut self.serving
            && serving.describes.len() < DESCRIBES_MAX
            && let Some((path, answer)) = serving.describes_waiting.pop_front()
        {
            if answer.is_closed() {
                continue;
            }
            let request = self.request();
            // The folder comes first, and what is in it is left out.
            let (describe, exclude) = (true, vec![b"*".to_vec()]);
            let scan = Scan { path, describe, exclude, ..Scan::default() };
            self.sending.push_back(ClientMessage::Scan { request, scan });
            if let Some(serving) = &mut self.serving {
                serving.describes.insert(request, (None, answer));
            }
        }
        while self.read.room() > 0
            && let Some(serving) = &mut self.serving
            && let Some((path, part, answer)) = serving.parts_waiting.pop_front()
        {
            // Whoever gave up needs it no more.
            if answer.is_closed() {
                continue;
            }
            let id = self.file();
            self.read.open_part(id, path, &part.part, now);
            if let Some(serving) = &mut self.serving {
                serving.parts.insert(id, (part, answer));
            }
        }
    }

    /// A page of a folder that is listed, or of one that is copied.
    pub(crate) fn page(
        &mut self,
        request: u32,
        entries: Vec<Entry>,
        faults: Vec<(WirePath, Fault)>,
        done: bool,
    ) {
        let Some(serving) = &mut self.serving else {
            return self.remote_page(request, entries, faults, done);
        };
        let ties = match serving.take_ties(request, entries.len()) {
            Ok(ties) => ties,
            Err(fault) => return self.broke(fault),
        };
        if serving.scans_left.contains(&request) {
            if done {
                serving.scans_left.remove(&request);
            }
            return;
        }
        if let Some((kept, answer)) = serving.describes.remove(&request) {
            let told = entries.into_iter().find(|entry| entry.path.is_root());
            let kept = told.and_then(|entry| entry.meta).or(kept);
            let fault = faults.into_iter().next().map(|(_, fault)| fault);
            match fault {
                _ if !done => {
                    serving.describes.insert(request, (kept, answer));
                    self.sending.push_back(ClientMessage::ScanMore { request });
                }
                Some(fault) if kept.is_none() => drop(answer.send(Err(fault))),
                _ => drop(answer.send(Ok(kept))),
            }
            return;
        }
        let Some((mut listing, answer)) = serving.lists.remove(&request) else {
            return self.broke(Fault::new(Code::Protocol, "the server sent a page unasked"));
        };
        let fits = listing.add(entries, &ties);
        // A folder that cannot be read tells it of itself; what is in it may be left out.
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
            // What is too long may have no end at all.
            (_, Err(fault)) => {
                if !done {
                    serving.scans_left.insert(request);
                }
                drop(answer.send(Err(fault)));
            }
            _ => {
                serving.lists.insert(request, (listing, answer));
                self.sending.push_back(ClientMessage::ScanMore { request });
            }
        }
    }

    /// What the machine asks of a session that serves parts.
    pub(crate) fn part_effect(&mut self, effect: ClientEffect) {
        match effect {
            ClientEffect::Send(request) => self.sending.push_back(ClientMessage::Read(request)),
            ClientEffect::Opened { file, info, .. } => {
                if let Some((part, _)) = self.part(file) {
                    part.opened(info);
                }
            }
            ClientEffect::Fetch(fetch) => self.fetch_part(fetch),
            ClientEffect::Zero(zero) => self.zero_part(zero),
            ClientEffect::DropLink { link } => self.tell(link, Command::Drop(link)),
            // A part is not begun again.
            ClientEffect::Restart { .. } => {}
            ClientEffect::Finished { file, meta, .. } => self.part_over(file, Ok(meta)),
            ClientEffect::Failed { file, fault } => self.part_over(file, Err(fault)),
            ClientEffect::Broken(fault) => self.broke(fault),
        }
    }

    fn part(&self, file: FileId) -> Option<&(Arc<PartBuffer>, Answer<Kept>)> {
        self.serving.as_ref()?.parts.get(&file)
    }

    fn part_over(&mut self, file: FileId, answer: Result<Kept, Fault>) {
        let over = self.serving.as_mut().and_then(|serving| serving.parts.remove(&file));
        if let Some((_, asked)) = over {
            // Whoever gave up needs it no more.
            let _ = asked.send(answer);
        }
    }

    fn fetch_part(&mut self, fetch: Fetch) {
        let landing = |piece: &verbatim_proto::message::Piece| {
            let (part, _) = self.part(piece.file).expect("a file stays until it is over");
            Landing { goal: Goal::Part(part.clone()), size: part.part.size }
        };
        let landings = fetch.chunk.pieces.iter().map(landing).collect();
        let (link, bytes) = (fetch.link, u64::from(fetch.chunk.bytes));
        self.tell_paced(link, bytes, Command::Fetch(fetch, landings));
    }

    fn zero_part(&mut self, zero: Zero) {
        let (part, _) = self.part(zero.file).expect("a file stays until it is over");
        let (part, size) = (part.clone(), part.part.size);
        self.job(move || {
            crate::session::Event::Zeroed(zero, Ok(part.put_zeros(zero.extent, size)))
        });
    }
}
