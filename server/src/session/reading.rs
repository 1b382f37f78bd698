//! What reading costs the server: opening, hashing, registering, checking again.
//! Each is a job; the machine says which and when. `windows` makes the windows.

use super::end::{End, go_on_if};
use super::event::Event;
use super::windows::Making;
use super::{Session, Shared};
use crate::exports::client_view::Reach;
use crate::exports::open::{ExportFolder, open_source};
use crate::limits::fair_pool::Place;
use crate::limits::file_room::Room;
use crate::observe::session_stats::{Noted, Taken};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use verbatim_fabric::SharedSlot;
use verbatim_files::Source;
use verbatim_proto::message::{FileId, OpenFile, ReadRequest, ServerMessage, WindowId};
use verbatim_proto::numbered::FileMap;
use verbatim_proto::read::{Prepare, Prepared, ReadServer, ServerEffect};
use verbatim_proto::units::{PACK_BYTES_MAX, WINDOW_BYTES, WINDOWS_MAX};
use verbatim_proto::{Code, Extent, Fault, Kept, Survey, WirePath};
use verbatim_telemetry::labels::Direction;

/// The reading half of a session.
pub(super) struct Reading {
    pub machine: ReadServer,
    files: FileMap<Arc<Open>>,
    windows: HashMap<WindowId, Window>,
    /// Staging slots to use again.
    spare: Vec<Packed>,
    /// How long windows of large files are.
    window_bytes: u64,
    /// Whether windows wait until more may be pinned.
    pub waits: bool,
}

impl Reading {
    /// Whether the client has something to read.
    pub fn has_windows(&self) -> bool {
        !self.windows.is_empty()
    }
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            machine: ReadServer::new(),
            files: FileMap::default(),
            windows: HashMap::new(),
            spare: Vec::new(),
            window_bytes: WINDOW_BYTES,
            waits: false,
        }
    }
}

/// A file that is open for a client.
pub(crate) struct Open {
    pub export: Arc<ExportFolder>,
    pub path: WirePath,
    /// The path as the client names it, with its export, and since when it is open.
    noted: Noted,
    pub source: Source,
    /// Why some of it could not be sent.
    fault: OnceLock<Fault>,
    /// Behind the source, which is closed before it is given back.
    _room: Room,
}

/// A file that was opened, and the holes it begins with.
pub(crate) type Opened = (Arc<Open>, Survey);

/// Where small files are packed: a slot, made anew if there is none to use again, and the memory
/// it takes.
pub(crate) struct Packed {
    pub slot: Option<SharedSlot>,
    pub memory: Place,
}

/// A registered window.
pub(crate) struct Window {
    /// What takes it back from the client.
    pub number: u64,
    /// The slot that small files were packed into, to use again.
    pub packed: Option<Packed>,
    /// The memory it takes, if it is a copy of a range that could not be registered itself.
    pub copied: Option<Place>,
    /// What the client has of it.
    pub taken: Taken,
}

impl Window {
    /// The same, of this file alone.
    fn of(mut self, file: Option<FileId>) -> Self {
        self.taken.file = file;
        self
    }
}

impl Session {
    pub(super) fn read_effect(&mut self, effect: ServerEffect) -> Result<(), End> {
        match effect {
            ServerEffect::Send(reply) => self.client.send(ServerMessage::Read(reply))?,
            ServerEffect::Open(files) => self.open(files),
            ServerEffect::Prepare(prepare) => self.prepare(prepare),
            ServerEffect::FindHoles { file, from } => self.find_holes(file, from),
            ServerEffect::Retire(id) => self.retire(id)?,
            ServerEffect::Close(ids) => {
                let files = ids.into_iter().map(|(id, describe)| {
                    self.client.view.over(Direction::Read, id);
                    (id, self.reading.files.remove(&id), describe)
                });
                let files: Vec<_> = files.collect();
                let view = self.client.view.clone();
                self.jobs.run(move || {
                    let close = |(id, open, describe): (FileId, Option<Arc<Open>>, bool)| {
                        let Some(open) = open else { return (id, Ok(None)) };
                        let answer = open.close(describe);
                        let fault = open.fault.get().or(answer.as_ref().err());
                        view.log(Direction::Read, &open.noted, fault.map_or(Ok(()), Err));
                        (id, answer)
                    };
                    Event::Closed(files.into_iter().map(close).collect())
                });
            }
            ServerEffect::Broken(fault) => return Err(End::Refused(fault)),
        }
        Ok(())
    }

    /// Opens files that have their places.
    pub(super) fn open_placed(&mut self, files: Vec<(OpenFile, Room)>) {
        let (shared, reach) = (self.client.shared.clone(), self.client.reach.clone());
        self.jobs.run(move || Event::Opened(open_all(&shared, &reach, files)));
    }

    pub(super) fn opened(&mut self, answers: Vec<(FileId, Result<Opened, Fault>)>) {
        let mut told = Vec::with_capacity(answers.len());
        for (id, answer) in answers {
            told.push((
                id,
                answer.map(|(open, survey)| {
                    tracing::debug!(session = self.client.id, path = %open.path, "file opened");
                    let info = open.source.info();
                    self.client.view.began(Direction::Read, id, &open.noted.path, info.size, 0);
                    self.reading.files.insert(id, open);
                    (info, survey)
                }),
            ));
        }
        self.reading.machine.opened(told);
    }

    fn find_holes(&mut self, id: FileId, from: u64) {
        let open = self.reading.files.get(&id).cloned();
        let shared = self.client.shared.clone();
        self.jobs.run(move || {
            let open = open.expect("the machine asks about open files");
            Event::Found(id, shared.surveys.of(&open.source, from))
        });
    }

    fn prepare(&mut self, prepare: Prepare) {
        // Before anything is pinned: who has to wait must not keep room from others meanwhile.
        if !self.pacing.may_lease(bytes_of(&prepare)) {
            return self.reading.machine.put_off(prepare);
        }
        let open = |(id, extent): &(FileId, Extent)| (self.reading.files.get(id).cloned(), *extent);
        let pieces: Vec<_> = prepare.pieces.iter().map(open).collect();
        let bytes = match prepare.packed {
            true => u64::from(PACK_BYTES_MAX),
            false => pieces[0].1.len,
        };
        let Some(pin) = self.client.domain.pin_window(bytes) else {
            self.pacing.gave_back(bytes_of(&prepare));
            return self.put_off(prepare);
        };
        let packed = if prepare.packed { self.slot_to_pack() } else { None };
        if prepare.packed && packed.is_none() {
            self.client.lacks_memory();
            self.pacing.gave_back(bytes_of(&prepare));
            return self.put_off(prepare);
        }
        let (shared, domain) = (self.client.shared.clone(), self.client.domain.clone());
        let (cell, view) = (self.reading.window_bytes, self.client.view.clone());
        let memory = self.client.memory.clone();
        self.jobs.run(move || {
            let fresh = prepare.fresh;
            let job = Making { shared: &shared, domain: &domain, memory: &memory, cell, fresh };
            let (answer, window) = match packed {
                Some(packed) => job.pack(packed, &pieces, pin),
                None => job.map(&pieces[0], pin),
            };
            for ((open, _), made) in pieces.iter().zip(&answer.pieces) {
                if let (Some(open), Err(fault)) = (open, made) {
                    open.fault.get_or_init(|| fault.clone());
                }
            }
            if prepare.fresh {
                // What cannot be read came as zeros: nobody altered it.
                view.mismatched(answer.pieces.iter().filter(|made| made.is_ok()).count());
            }
            let file = (!prepare.packed).then(|| prepare.pieces[0].0);
            let window = window.map(|window| window.of(file));
            Event::Prepared(prepare.window, answer, window)
        });
    }

    /// A slot for small files: one that was used before, or memory for another.
    fn slot_to_pack(&mut self) -> Option<Packed> {
        let anew = || {
            let memory = self.client.memory.take(PACK_BYTES_MAX as usize)?;
            Some(Packed { slot: None, memory })
        };
        self.reading.spare.pop().or_else(anew)
    }

    /// A window cannot be made now: a shorter one, or later.
    pub(super) fn put_off(&mut self, prepare: Prepare) {
        self.reading.machine.put_off(prepare);
        let bytes = self.window_bytes();
        if bytes < self.reading.window_bytes {
            self.reading.window_bytes = bytes;
            self.reading.machine.lease_windows_of(bytes);
        } else {
            self.reading.waits = true;
        }
    }

    /// How long windows are now.
    pub(super) fn window_bytes(&self) -> u64 {
        self.client.domain.window_bytes().min(self.pacing.window_bytes())
    }

    /// More may be pinned, or less is wanted by others: windows get the length that is fair now.
    pub(super) fn lease_more(&mut self) {
        let bytes = self.window_bytes();
        if self.reading.waits || bytes != self.reading.window_bytes {
            self.reading.waits = false;
            self.reading.window_bytes = bytes;
            self.reading.machine.lease_windows_of(bytes);
        }
    }

    pub(super) fn prepared(&mut self, id: WindowId, answer: Prepared, window: Option<Window>) {
        if window.as_ref().is_some_and(|window| window.copied.is_some()) {
            self.reading.machine.lease_at_most(self.client.shared.rdma.copied_windows_max);
        }
        self.reading.windows.extend(window.map(|window| (id, window)));
        self.reading.machine.prepared(id, answer);
    }

    /// What a client asks the machine. What it read and does not match is not taken yet.
    pub(super) fn read(&mut self, request: ReadRequest) {
        if let ReadRequest::Refresh { window, pieces } = &request {
            // Nothing has looked at these sizes yet: they may be any.
            let sizes = pieces.iter().map(|(_, extent)| extent.len);
            let again = sizes.fold(0, u64::saturating_add);
            if let Some(window) = self.reading.windows.get_mut(window) {
                window.taken.bytes = window.taken.bytes.saturating_sub(again);
            }
        }
        self.reading.machine.request(request);
    }

    fn retire(&mut self, id: WindowId) -> Result<(), End> {
        let Some(window) = self.reading.windows.remove(&id) else { return Ok(()) };
        self.client.view.taken(&window.taken, self.client.chunk_bytes);
        // Before its slot is spare: what is packed there next is not for an old key.
        go_on_if(self.client.domain.take_back(window.number))?;
        if self.reading.spare.len() < WINDOWS_MAX {
            self.reading.spare.extend(window.packed);
        }
        self.lease_more();
        Ok(())
    }
}

fn bytes_of(prepare: &Prepare) -> u64 {
    prepare.pieces.iter().map(|(_, extent)| extent.len).sum()
}

fn open_all(
    shared: &Shared,
    reach: &Reach,
    files: Vec<(OpenFile, Room)>,
) -> Vec<(FileId, Result<Opened, Fault>)> {
    let until = Instant::now() + SETTLE_MAX;
    let open = |path: &WirePath| {
        let (export, path) = reach.resolve_for_data(path)?;
        let source = settle(open_source(&export, &path)?, until, || open_source(&export, &path))?;
        let survey = shared.surveys.of(&source, 0);
        Ok((export, path, source, survey))
    };
    let open_one = |(request, room): (OpenFile, Room)| {
        let opened = open(&request.path).map(|(export, path, source, survey)| {
            let (bytes, began) = (source.identity().size, Instant::now());
            let noted = Noted { path: request.path, bytes, began };
            let fault = OnceLock::new();
            (Arc::new(Open { export, path, noted, source, fault, _room: room }), survey)
        });
        (request.file, opened)
    };
    files.into_iter().map(open_one).collect()
}

/// Waits for a large source that was just written, until a later write could not hide. It costs
/// no more than hashing all of it again at the end, and a copy that is cut short can go on.
fn settle(
    source: Source,
    until: Instant,
    again: impl FnOnce() -> Result<Source, Fault>,
) -> Result<Source, Fault> {
    if !source.is_racy() || source.identity().size < SETTLE_BYTES_MIN {
        return Ok(source);
    }
    while !source.is_settled() && Instant::now() < until {
        std::thread::sleep(SETTLE_LOOK_EVERY);
    }
    again()
}

/// Sources from this size on are waited for: hashing them takes about as long.
const SETTLE_BYTES_MIN: u64 = 8 << 30;

/// How long all files of one request wait for that.
const SETTLE_MAX: Duration = Duration::from_millis(2100);

/// How often it is looked whether they still must.
const SETTLE_LOOK_EVERY: Duration = Duration::from_millis(50);

impl Open {
    /// Says whether it is still what was opened; its metadata, where it is asked for.
    fn close(&self, describe: bool) -> Result<Kept, Fault> {
        self.source.check()?;
        let trusted = self.export.rules.privileged_xattrs;
        let meta = describe.then(|| self.source.meta(trusted)).transpose()?;
        Ok(meta.map(Box::new))
    }

    /// Opens the file anew after a mismatch: a pinned window can be stale for ever.
    pub(super) fn again(&self, shared: &Shared) -> Result<Source, Fault> {
        shared.hashing.forget(self.source.identity());
        let anew = open_source(&self.export, &self.path)?;
        if anew.identity() != self.source.identity() {
            let text = format!("{} changed while it was read", self.path);
            return Err(Fault::new(Code::Changed, text));
        }
        Ok(anew)
    }
}
