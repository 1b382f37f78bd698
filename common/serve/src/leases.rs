//! Reads of one session: opens files, makes windows and leases them, takes them back, checks files
//! again when they are closed. Each is a job; the machine says which and when. Owns the open files
//! and the windows of its client, and the slots that small files are packed into.
//!
//! A window is taken back from every device before its slot is used again. Its pin goes with its
//! registration. A file is closed before what it takes of the limits of its client is given back.

use crate::host::{Pace, ReadHost, ReadObserver};
use crate::jobs::Jobs;
use crate::open_file::{Guard, Opened, OpenedFile, open_all};
use crate::rdma::registrations::{SessionDomain, check_released};
use crate::windows::{PackSlot, Window, WindowMaker};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use verbatim_proto::message::{FileId, OpenFile, ReadReply, ReadRequest, WindowId};
use verbatim_proto::numbered::FileMap;
use verbatim_proto::read::{Prepare, Prepared, ReadServer, ServerEffect};
use verbatim_proto::units::{PACK_BYTES_MAX, WINDOW_BYTES, WINDOWS_MAX};
use verbatim_proto::{Extent, Fault, Kept, Survey};
use verbatim_telemetry::labels::{Operation, Step};

/// Serves the reads of one session.
pub struct ReadService<H> {
    host: Arc<H>,
    domain: Arc<SessionDomain>,
    jobs: Jobs<ReadEvent>,
    /// The number of the session, for its log.
    session: u64,
    /// Windows at a time that are copies of files.
    copied_windows_max: usize,
    machine: ReadServer,
    files: FileMap<Arc<OpenedFile>>,
    windows: HashMap<WindowId, Window>,
    /// Slots for small files, to use again.
    spare: Vec<PackSlot>,
    /// How long windows of large files are.
    window_bytes: u64,
    /// Whether windows wait until more may be pinned.
    waits: bool,
}

/// What a job of the service answers.
pub enum ReadEvent {
    /// Files were opened, or not.
    Opened(Vec<(FileId, Result<Opened, Fault>)>),
    /// The holes of a file from some place on.
    Found(FileId, Survey),
    /// A window was made, or not.
    Prepared(WindowId, Prepared, Option<Window>),
    /// Files were checked and closed.
    Closed(Vec<(FileId, Result<Kept, Fault>)>),
}

/// What the session of a service is to do.
pub enum ReadOut {
    /// Send this to the client.
    Send(ReadReply),
    /// Hand these to [`ReadService::open`], once the client may have them open.
    Open(Vec<OpenFile>),
    /// Note that there is no memory for a window.
    LacksMemory,
    /// Nothing.
    Done,
}

impl<H: ReadHost + ReadObserver> ReadService<H> {
    /// A service for the session of this number, without files. Its client has at most so many
    /// windows at a time that are copies, once one had to be copied.
    pub fn new(
        (session, host): (u64, Arc<H>),
        domain: Arc<SessionDomain>,
        jobs: Jobs<ReadEvent>,
        copied_windows_max: usize,
    ) -> Self {
        Self {
            host,
            domain,
            jobs,
            session,
            copied_windows_max,
            machine: ReadServer::new(),
            files: FileMap::default(),
            windows: HashMap::new(),
            spare: Vec::new(),
            window_bytes: WINDOW_BYTES,
            waits: false,
        }
    }

    /// Whether nothing is under way for the client, and nothing of it is open.
    pub fn is_idle(&self) -> bool {
        self.machine.is_idle()
    }

    /// Whether the client has something to read.
    pub fn has_windows(&self) -> bool {
        !self.windows.is_empty()
    }

    /// Whether windows wait until more may be pinned.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Takes a request of the client. What it read and does not match does not count as taken.
    pub fn request(&mut self, request: ReadRequest) {
        if let ReadRequest::Refresh { window, pieces } = &request {
            // Nothing has looked at these sizes yet: they may be any.
            let sizes = pieces.iter().map(|(_, extent)| extent.len);
            let again = sizes.fold(0, u64::saturating_add);
            if let Some(window) = self.windows.get_mut(window) {
                window.lease.bytes = window.lease.bytes.saturating_sub(again);
            }
        }
        self.machine.request(request);
    }

    /// Takes the answer of a job.
    pub fn event(&mut self, event: ReadEvent) {
        match event {
            ReadEvent::Opened(answers) => self.opened(answers),
            ReadEvent::Found(file, survey) => self.machine.found(file, survey),
            ReadEvent::Prepared(id, answer, window) => self.prepared(id, answer, window),
            ReadEvent::Closed(answers) => self.machine.closed(answers),
        }
    }

    /// Does the next thing that the machine asks for. A fault ends the session.
    pub fn next(&mut self, pace: &mut impl Pace) -> Option<Result<ReadOut, Fault>> {
        Some(Ok(match self.machine.next_effect()? {
            ServerEffect::Send(reply) => ReadOut::Send(reply),
            ServerEffect::Open(files) => ReadOut::Open(files),
            ServerEffect::Prepare(prepare) => self.prepare(prepare, pace),
            ServerEffect::FindHoles { file, from } => self.find_holes(file, from),
            ServerEffect::Retire(id) => return Some(self.retire(id, pace)),
            ServerEffect::Close(files) => self.close(files),
            ServerEffect::Broken(fault) => return Some(Err(fault)),
        }))
    }

    /// Opens files, each with what it takes of the limits of its client.
    pub fn open(&self, files: Vec<(OpenFile, Guard)>) {
        let host = self.host.clone();
        self.jobs.run(move || ReadEvent::Opened(open_all(&*host, files)));
    }

    /// Fails files that waited too long to be opened.
    pub fn refuse(&self, files: Vec<(FileId, Fault)>) {
        let refused = files.into_iter().map(|(file, fault)| (file, Err(fault))).collect();
        self.jobs.run(move || ReadEvent::Opened(refused));
    }

    /// More may be pinned, or less is wanted by others: windows get the length that is fair now.
    pub fn lease_more(&mut self, pace: &impl Pace) {
        let bytes = self.fair_window_bytes(pace);
        if self.waits || bytes != self.window_bytes {
            self.waits = false;
            self.window_bytes = bytes;
            self.machine.lease_windows_of(bytes);
        }
    }

    /// Makes the windows that waited for their time.
    pub fn lease_deferred(&mut self, pace: &impl Pace) {
        self.waits = true;
        self.lease_more(pace);
    }

    /// Lets go of all files and windows, as their client is gone. Jobs that are under way finish, and
    /// nobody takes their answers; what is registered goes with the client's domain.
    pub fn end(&mut self) {
        self.machine = ReadServer::new();
        self.files = FileMap::default();
        self.windows = HashMap::new();
        self.spare = Vec::new();
        self.window_bytes = WINDOW_BYTES;
        self.waits = false;
    }

    fn opened(&mut self, answers: Vec<(FileId, Result<Opened, Fault>)>) {
        let mut told = Vec::with_capacity(answers.len());
        for (id, answer) in answers {
            told.push((
                id,
                answer.map(|(open, survey)| {
                    tracing::debug!(session = self.session, path = %open.path, "file opened");
                    let info = open.source.info();
                    self.host.began(id, &open.record.path, info.size);
                    self.files.insert(id, open);
                    (info, survey)
                }),
            ));
        }
        self.machine.opened(told);
    }

    fn find_holes(&mut self, id: FileId, from: u64) -> ReadOut {
        let open = self.files.get(&id).cloned();
        let host = self.host.clone();
        self.jobs.run(move || {
            let open = open.expect("the machine asks about open files");
            ReadEvent::Found(id, host.holes(&open.source, from))
        });
        ReadOut::Done
    }

    fn close(&mut self, files: Vec<(FileId, bool)>) -> ReadOut {
        let files = files.into_iter().map(|(id, describe)| {
            self.host.over(id);
            (id, self.files.remove(&id), describe)
        });
        let files: Vec<_> = files.collect();
        let host = self.host.clone();
        self.jobs.run(move || {
            let close = |(id, open, describe): (FileId, Option<Arc<OpenedFile>>, bool)| {
                let Some(open) = open else { return (id, Ok(None)) };
                let answer = open.close(describe);
                let fault = open.fault().or(answer.as_ref().err());
                host.log(&open.record, fault.map_or(Ok(()), Err));
                (id, answer)
            };
            ReadEvent::Closed(files.into_iter().map(close).collect())
        });
        ReadOut::Done
    }

    fn prepare(&mut self, prepare: Prepare, pace: &mut impl Pace) -> ReadOut {
        // Before anything is pinned: who has to wait must not keep room from others meanwhile.
        if !pace.may_lease(bytes_of(&prepare)) {
            self.machine.put_off(prepare);
            return ReadOut::Done;
        }
        let open = |(id, extent): &(FileId, Extent)| (self.files.get(id).cloned(), *extent);
        let pieces: Vec<_> = prepare.pieces.iter().map(open).collect();
        let bytes = match prepare.packed {
            true => u64::from(PACK_BYTES_MAX),
            false => pieces[0].1.len,
        };
        let Some(pin) = self.domain.pin_window(bytes) else {
            self.defer(prepare, pace);
            return ReadOut::Done;
        };
        let packed = if prepare.packed { self.slot_to_pack() } else { None };
        if prepare.packed && packed.is_none() {
            self.defer(prepare, pace);
            return ReadOut::LacksMemory;
        }
        let (host, domain, cell) = (self.host.clone(), self.domain.clone(), self.window_bytes);
        self.jobs.run(move || {
            let fresh = prepare.fresh;
            let maker = WindowMaker { host: &*host, domain: &domain, cell, fresh };
            let (answer, window) = match packed {
                Some(packed) => maker.pack(packed, &pieces, pin),
                None => maker.map(&pieces[0], pin),
            };
            for ((open, _), made) in pieces.iter().zip(&answer.pieces) {
                if let (Some(open), Err(fault)) = (open, made) {
                    open.failed(fault);
                }
            }
            if prepare.fresh {
                // What cannot be read came as zeros: nobody altered it.
                host.mismatched(answer.pieces.iter().filter(|made| made.is_ok()).count());
            }
            let file = (!prepare.packed).then(|| prepare.pieces[0].0);
            let window = window.map(|window| window.of(file));
            ReadEvent::Prepared(prepare.window, answer, window)
        });
        ReadOut::Done
    }

    /// A slot for small files: one that was used before, or memory for another.
    fn slot_to_pack(&mut self) -> Option<PackSlot> {
        let anew = || {
            let memory = self.host.lend(PACK_BYTES_MAX as usize)?;
            Some(PackSlot { slot: None, memory })
        };
        self.spare.pop().or_else(anew)
    }

    /// A window that was counted cannot be made now: a shorter one, or later.
    fn defer(&mut self, prepare: Prepare, pace: &impl Pace) {
        pace.refund(bytes_of(&prepare));
        self.machine.put_off(prepare);
        let bytes = self.fair_window_bytes(pace);
        if bytes < self.window_bytes {
            self.window_bytes = bytes;
            self.machine.lease_windows_of(bytes);
        } else {
            self.waits = true;
        }
    }

    /// How long windows should be now.
    fn fair_window_bytes(&self, pace: &impl Pace) -> u64 {
        self.domain.window_bytes().min(pace.window_bytes())
    }

    fn prepared(&mut self, id: WindowId, answer: Prepared, window: Option<Window>) {
        if window.as_ref().is_some_and(|window| window.copied.is_some()) {
            self.machine.lease_at_most(self.copied_windows_max);
        }
        self.windows.extend(window.map(|window| (id, window)));
        self.machine.prepared(id, answer);
    }

    fn retire(&mut self, id: WindowId, pace: &impl Pace) -> Result<ReadOut, Fault> {
        let Some(window) = self.windows.remove(&id) else { return Ok(ReadOut::Done) };
        self.host.window_returned(&window.lease);
        // Before its slot is spare: what is packed there next is not for an old key.
        check_released(self.domain.take_back(window.number))?;
        if self.spare.len() < WINDOWS_MAX {
            self.spare.extend(window.packed);
        }
        self.lease_more(pace);
        Ok(ReadOut::Done)
    }
}

impl ReadEvent {
    /// Reports what a job did, and how long it took since it was asked for.
    pub fn count(&self, observer: &impl ReadObserver, time: Duration) {
        match self {
            Self::Opened(answers) => {
                observer.took(Step::Open, time);
                let mut faults = answers.iter().map(|(_, answer)| answer.as_ref().err());
                observer.ended(Operation::Open, &mut faults);
            }
            Self::Found(..) => {}
            Self::Prepared(..) => observer.took(Step::Prepare, time),
            Self::Closed(answers) => {
                let mut faults = answers.iter().map(|(_, answer)| answer.as_ref().err());
                observer.ended(Operation::Close, &mut faults);
            }
        }
    }
}

fn bytes_of(prepare: &Prepare) -> u64 {
    prepare.pieces.iter().map(|(_, extent)| extent.len).sum()
}

#[cfg(test)]
mod tests;
