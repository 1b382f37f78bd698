//! Reads of one session: opens files, makes windows, leases and retires them, and checks files
//! again when they are closed. Each step is a job, which the machine orders. Owns the client's open
//! files and windows, and the slots that small files are packed into.
//!
//! Every device deregisters a window before its slot is used again. Its pin goes with its
//! registration. A file is closed before its share of the client's limits is returned.

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
    /// The id of the session, for the log.
    session: u64,
    /// The maximum of windows that are copies of files.
    copied_windows_max: usize,
    machine: ReadServer,
    files: FileMap<Arc<OpenedFile>>,
    windows: HashMap<WindowId, Window>,
    /// Slots for small files, to be reused.
    spare: Vec<PackSlot>,
    /// The length of windows of large files.
    window_bytes: u64,
    /// Whether windows wait for the pin budget.
    waits: bool,
}

/// The answer of a job.
pub enum ReadEvent {
    /// Files were opened. Or the errors.
    Opened(Vec<(FileId, Result<Opened, Fault>)>),
    /// The holes of a file from an offset on.
    Found(FileId, Survey),
    /// A window was made. Or the error.
    Prepared(WindowId, Prepared, Option<Window>),
    /// Files were checked and closed.
    Closed(Vec<(FileId, Result<Kept, Fault>)>),
}

/// A request of the service to its session.
pub enum ReadOut {
    /// Send this to the client.
    Send(ReadReply),
    /// Pass these to [`ReadService::open`] when descriptors are free.
    Open(Vec<OpenFile>),
    /// Note that a window found no memory.
    LacksMemory,
    /// Nothing.
    Done,
}

impl<H: ReadHost + ReadObserver> ReadService<H> {
    /// A service without files for the session of this id. `copied_windows_max` limits the windows
    /// of its client after the first that had to be copied.
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

    /// Whether the client has no open file and no request under way.
    pub fn is_idle(&self) -> bool {
        self.machine.is_idle()
    }

    /// Whether the client has windows.
    pub fn has_windows(&self) -> bool {
        !self.windows.is_empty()
    }

    /// Whether windows wait for the pin budget.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Handles a request of the client. Bytes that did not match do not count as read.
    pub fn request(&mut self, request: ReadRequest) {
        if let ReadRequest::Refresh { window, pieces } = &request {
            // These sizes are unchecked: they may be any.
            let sizes = pieces.iter().map(|(_, extent)| extent.len);
            let again = sizes.fold(0, u64::saturating_add);
            if let Some(window) = self.windows.get_mut(window) {
                window.lease.bytes = window.lease.bytes.saturating_sub(again);
            }
        }
        self.machine.request(request);
    }

    /// Handles the answer of a job.
    pub fn event(&mut self, event: ReadEvent) {
        match event {
            ReadEvent::Opened(answers) => self.opened(answers),
            ReadEvent::Found(file, survey) => self.machine.found(file, survey),
            ReadEvent::Prepared(id, answer, window) => self.prepared(id, answer, window),
            ReadEvent::Closed(answers) => self.machine.closed(answers),
        }
    }

    /// Carries out the next effect of the machine. A fault ends the session.
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

    /// Opens files, each with its share of the client's limits.
    pub fn open(&self, files: Vec<(OpenFile, Guard)>) {
        let host = self.host.clone();
        self.jobs.run(move || ReadEvent::Opened(open_all(&*host, files)));
    }

    /// Fails files that waited too long for descriptors.
    pub fn refuse(&self, files: Vec<(FileId, Fault)>) {
        let refused = files.into_iter().map(|(file, fault)| (file, Err(fault))).collect();
        self.jobs.run(move || ReadEvent::Opened(refused));
    }

    /// Adapts the length of windows to the pin budget and the rate limit, and leases those that
    /// waited.
    pub fn lease_more(&mut self, pace: &impl Pace) {
        let bytes = self.fair_window_bytes(pace);
        if self.waits || bytes != self.window_bytes {
            self.waits = false;
            self.window_bytes = bytes;
            self.machine.lease_windows_of(bytes);
        }
    }

    /// Leases the windows that the rate limit deferred.
    pub fn lease_deferred(&mut self, pace: &impl Pace) {
        self.waits = true;
        self.lease_more(pace);
    }

    /// Drops all files and windows, because the client is gone. Jobs under way finish, and their
    /// answers are dropped; registrations go with the client's domain.
    pub fn end(&mut self) {
        self.machine = ReadServer::new();
        self.files = FileMap::default();
        self.windows = HashMap::new();
        self.spare = Vec::new();
        self.window_bytes = WINDOW_BYTES;
        self.waits = false;
    }

    fn opened(&mut self, answers: Vec<(FileId, Result<Opened, Fault>)>) {
        let mut opened = Vec::with_capacity(answers.len());
        for (id, answer) in answers {
            opened.push((
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
        self.machine.opened(opened);
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
        // Before anything is pinned: a client that has to wait must not keep pins from others.
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
                // A piece that cannot be read was sent as zeros: nothing altered it on the way.
                host.mismatched(answer.pieces.iter().filter(|made| made.is_ok()).count());
            }
            let file = (!prepare.packed).then(|| prepare.pieces[0].0);
            let window = window.map(|window| window.of(file));
            ReadEvent::Prepared(prepare.window, answer, window)
        });
        ReadOut::Done
    }

    /// A slot for small files: a spare one, or memory for a new one.
    fn slot_to_pack(&mut self) -> Option<PackSlot> {
        let anew = || {
            let memory = self.host.lend(PACK_BYTES_MAX as usize)?;
            Some(PackSlot { slot: None, memory })
        };
        self.spare.pop().or_else(anew)
    }

    /// A window whose bytes were counted cannot be made now: tries a shorter one, or waits.
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

    /// The length of windows that pin budget and rate limit allow now.
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
        // Before its slot becomes spare: the old key must not reach the next files in it.
        check_released(self.domain.take_back(window.number))?;
        if self.spare.len() < WINDOWS_MAX {
            self.spare.extend(window.packed);
        }
        self.lease_more(pace);
        Ok(ReadOut::Done)
    }
}

impl ReadEvent {
    /// Reports the result of a job, and the time since it was started.
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
