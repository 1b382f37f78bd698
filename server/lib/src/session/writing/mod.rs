//! Owns the uploads of a session: temporary files, offers of existing data, and commits; `slots`
//! has the slots. Never verifies a chunk: workers do. The dispatcher stands above it and receives
//! requests to other activities as `WriteOut`; `links`, `worker` and `exports` stand below.
//!
//! A temporary file that is not committed is removed with its last reference.

mod commit;
mod direct_write;
mod event;
mod open_upload;
mod slots;

use super::client::Client;
use super::end::{End, end_if_unreleased};
use super::links::Links;
use super::sync_lock::{HELD_LOOK_EVERY, HELD_MAX};
use crate::exports::client_view::ClientView;
use crate::exports::open::open_source;
use crate::limits::file_permits::FilePermits;
use crate::observe::session_stats::FileRecord;
use crate::worker::chunk_store::{
    Chunk, ChunkLocation, DirectRangeRequest, DirectWriteEvent, PieceTarget,
};
use crate::worker::{Command, Upload};
use commit::commit;
use direct_write::{DirectWrites, accepts_direct_writes};
pub(crate) use event::WriteEvent;
use open_upload::{Created, OpenUpload, create_lasting};
use slots::Slots;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use verbatim_fabric::worker::LinkKey;
use verbatim_files::target::LASTING_BYTES_MIN;
use verbatim_files::{Cost, Folder, Over, Target};
use verbatim_proto::message::{CreateFile, FileId, LinkId, Offer, Piece, ServerMessage, Spot, Tag};
use verbatim_proto::write::{Absorb, ServerEffect, WriteServer};
use verbatim_proto::{Code, Digest, Extent, Fault, Kept, WirePath};
use verbatim_serve::Jobs;
use verbatim_telemetry::labels::Direction;

/// The uploads of a session.
pub(super) struct Writing {
    pub machine: WriteServer,
    targets: HashMap<FileId, OpenUpload>,
    sizes: HashMap<FileId, u64>,
    /// What files and symlinks of this client may replace.
    pub over: Over,
    /// Whether the client wants to know how many bytes were hashed again.
    pub tells_rehashed: bool,
    /// Bytes of partial files that were hashed again and not yet reported.
    rehashed: Arc<AtomicU64>,
    slots: Slots,
    direct_writes: DirectWrites,
    jobs: Jobs<WriteEvent>,
}

/// A request of `Writing` to other activities.
pub(super) enum WriteOut {
    /// Create these files when descriptors are free.
    Create(Vec<CreateFile>),
    /// Commit these whole files, with the locks of the session.
    Commit(Vec<(FileId, Kept)>),
}

impl Writing {
    /// No upload yet.
    pub fn new(jobs: Jobs<WriteEvent>) -> Self {
        Self {
            machine: WriteServer::default(),
            targets: HashMap::new(),
            sizes: HashMap::new(),
            over: Over::default(),
            tells_rehashed: false,
            rehashed: Arc::default(),
            slots: Slots::default(),
            direct_writes: DirectWrites::default(),
            jobs,
        }
    }

    /// Whether slots wait for the pin budget.
    pub fn waits(&self) -> bool {
        self.slots.waits()
    }

    /// Whether the session has slots.
    pub fn has_slots(&self) -> bool {
        !self.slots.is_empty()
    }

    /// An open upload, and the length of its file.
    fn open_file(&self, id: FileId) -> (OpenUpload, u64) {
        let upload = self.targets.get(&id).cloned().zip(self.sizes.get(&id).copied());
        upload.expect("files that are worked on are open")
    }

    /// A link is dead: no write of it can land any more.
    pub fn link_died(&mut self, link: LinkId) {
        self.slots.link_died(link);
        self.machine.killed(link);
    }

    /// The client supports direct writes.
    pub fn enable_direct_writes(&mut self) {
        self.direct_writes.enable();
    }

    /// Carries out an effect of the machine, or returns it as a request to other activities.
    pub fn effect(
        &mut self,
        client: &mut Client,
        links: &mut Links,
        effect: ServerEffect,
    ) -> Result<Option<WriteOut>, End> {
        match effect {
            ServerEffect::Send(reply) => client.send(ServerMessage::Write(reply))?,
            ServerEffect::Provision { link, slots } => {
                self.provision(client, links, link, slots)?
            }
            ServerEffect::Create(files) => {
                let sizes = files.iter().map(|request| (request.file, request.info.size));
                self.sizes.extend(sizes);
                return Ok(Some(WriteOut::Create(files)));
            }
            ServerEffect::MakeSpot { link, spot } => {
                self.request_direct_range(client, links, link, spot)?
            }
            ServerEffect::EndSpot(tag) => self.direct_writes.revoke(client, tag)?,
            ServerEffect::Expect(absorb) => {
                self.hand_over(client, links, absorb, Command::Expect)?
            }
            ServerEffect::Absorb(absorb) => {
                self.hand_over(client, links, absorb, Command::Absorb)?
            }
            ServerEffect::Sized { file, size } => {
                self.sizes.insert(file, size);
                if let Some(upload) = self.targets.get(&file) {
                    upload.target.end_at(size);
                }
            }
            ServerEffect::Zero { file, extent } => self.zero(file, extent),
            ServerEffect::Take(offer) => self.take_offer(client, offer),
            ServerEffect::Commit(files) => return Ok(Some(WriteOut::Commit(files))),
            ServerEffect::Discard(ids) => {
                for id in ids {
                    self.sizes.remove(&id);
                    client.view.file_ended(Direction::Write, id);
                    if let Some(upload) = self.targets.remove(&id) {
                        upload.target.discard();
                    }
                }
            }
            ServerEffect::Kill(link) => links.kill(client, link)?,
            ServerEffect::Free(link) => self.slots.free(client, link)?,
            ServerEffect::Fenced(link) => client.send(ServerMessage::Fenced { link })?,
            ServerEffect::Broken(fault) => return Err(End::Refused(fault)),
        }
        Ok(None)
    }

    /// Makes slots that the pin budget refused before, those of the first link first.
    pub fn provision_more(&mut self, client: &mut Client, links: &mut Links) -> Result<(), End> {
        for (link, count) in self.slots.take_pending() {
            self.provision(client, links, link, count)?;
        }
        Ok(())
    }

    fn provision(
        &mut self,
        client: &mut Client,
        links: &mut Links,
        link: LinkId,
        count: u16,
    ) -> Result<(), End> {
        let slots = self.slots.provide(client, links, link, count)?;
        self.machine.provisioned(link, slots);
        Ok(())
    }

    /// Answers for files that waited too long for descriptors.
    pub fn refuse(&self, answers: Vec<(FileId, Fault)>) {
        let answers = answers.into_iter().map(|(file, fault)| (file, Err(fault))).collect();
        self.jobs.run(move || WriteEvent::Created(answers));
    }

    /// Creates temporary files that have their descriptors.
    pub fn create_ready(&self, client: &Client, files: Vec<(CreateFile, FilePermits)>) {
        let (reach, view) = (client.reach.clone(), client.view.clone());
        let (over, rehashed) = (client.cancel.flag(), self.rehashed.clone());
        self.jobs.run(move || {
            let until = Instant::now() + HELD_MAX;
            let create_one = |(request, room): (CreateFile, FilePermits)| {
                let (export, path) = reach.resolve_for_data(&request.path)?;
                export.writable("create", &request.path)?;
                let upload = |target, path| {
                    let rules = export.rules;
                    let (quota, began) = (export.quota.clone(), Instant::now());
                    let (target, room) = (Arc::new(target), Arc::new(room));
                    OpenUpload { target, rules, path, quota, began, _room: room }
                };
                if request.stream {
                    // A stream cannot be resumed, so its partial file is not kept.
                    let target = Target::create(&export.folder, &path, 0, request.info.mode)?;
                    return Ok((upload(target, request.path), None));
                }
                let info = &request.info;
                let fits = |cost| export.quota.as_ref().map_or(Ok(()), |quota| quota.check(cost));
                if info.size < LASTING_BYTES_MIN {
                    fits(Cost::INODE.and(Cost::of_bytes(info.room())))?;
                    let room = Target::room_for(&export.folder, &path, info, 0)?;
                    let target = Target::create(&export.folder, &path, info.size, info.mode)?;
                    target.set_room(room);
                    target.keep_sparse(info)?;
                    return Ok((upload(target, request.path), None));
                }
                let (size, mtime_ns) = (info.size, info.mtime_ns);
                let key = format!("{} {} {size} {mtime_ns}", view.who, request.path);
                let key = Digest::of(key.as_bytes());
                wait_for_release(&export.folder, &path, &key, until);
                let how = (&*over, &*rehashed);
                let (target, have) = create_lasting(how, &export.folder, &path, info, &key, fits)?;
                Ok((upload(target, request.path), have))
            };
            let created = files.into_iter().map(|it| (it.0.file, create_one(it)));
            WriteEvent::Created(created.collect())
        });
    }

    /// Handles the answer of a job.
    pub fn event(&mut self, client: &mut Client, event: WriteEvent) -> Result<(), End> {
        match event {
            WriteEvent::Created(answers) => self.created(client, answers)?,
            WriteEvent::Zeroed(id, extent, answer) => self.machine.zeroed(id, extent, answer),
            WriteEvent::Taken(offer, answer) => self.machine.taken(&offer, answer),
            WriteEvent::Committed(answers, dropped) => {
                client.tell_dropped(dropped)?;
                self.machine.committed(answers);
            }
        }
        Ok(())
    }

    fn created(
        &mut self,
        client: &Client,
        answers: Vec<(FileId, Result<Created, Fault>)>,
    ) -> Result<(), End> {
        let bytes = self.rehashed.swap(0, Ordering::Relaxed);
        if self.tells_rehashed && bytes > 0 {
            client.send(ServerMessage::Rehashed { bytes })?;
        }
        self.offer_direct_writes(client, &answers);
        let mut created = Vec::with_capacity(answers.len());
        for (id, answer) in answers {
            match answer {
                Ok((upload, have)) => {
                    let bytes = self.sizes.get(&id).copied().unwrap_or(0);
                    let found = have.as_ref().map_or(0, |have| have.extents.bytes());
                    client.view.file_began(Direction::Write, id, &upload.path, bytes, found);
                    self.targets.insert(id, upload);
                    created.push((id, Ok(have)));
                }
                Err(fault) => {
                    self.sizes.remove(&id);
                    created.push((id, Err(fault)));
                }
            }
        }
        self.machine.created(created);
        Ok(())
    }

    /// Offers new files for direct writes.
    fn offer_direct_writes(
        &mut self,
        client: &Client,
        answers: &[(FileId, Result<Created, Fault>)],
    ) {
        if !self.direct_writes.may_offer(client) {
            return;
        }
        // Pages of a file on a disk cannot be pinned, so the device must page on demand.
        let on_demand = client.domain.pages_on_demand();
        let takes = |(id, answer): &(FileId, Result<Created, Fault>)| {
            let (upload, _) = answer.as_ref().ok()?;
            let size = *self.sizes.get(id)?;
            accepts_direct_writes(&upload.target, size, on_demand).then_some(*id)
        };
        let files: Vec<FileId> = answers.iter().filter_map(takes).collect();
        if !files.is_empty() {
            self.machine.takes_spots(files);
        }
    }

    /// Asks the worker of a link to register a range of a file.
    fn request_direct_range(
        &mut self,
        client: &Client,
        links: &Links,
        link: LinkId,
        spot: Spot,
    ) -> Result<(), End> {
        let (Some(rail), Some(upload)) = (links.rail_of(link), self.targets.get(&spot.file)) else {
            let fault = Fault::new(Code::NotFound, "the link is not of a device");
            self.machine.spot_made(spot.tag, Err(fault));
            return Ok(());
        };
        let (target, domain) = (upload.target.clone(), client.domain.clone());
        let task = DirectRangeRequest { spot, rail, target, domain };
        let (_, worker, _) = links.worker_of(link);
        client.send_to_worker(worker, Command::Do { task, session: links.events() })
    }

    /// A worker registered a range of a file, or failed.
    pub fn direct_write_event(
        &mut self,
        client: &Client,
        event: DirectWriteEvent,
    ) -> Result<(), End> {
        match event {
            DirectWriteEvent::Registered(tag, answer) => {
                let answer = self.direct_writes.registered(client, tag, answer);
                self.machine.spot_made(tag, answer);
                Ok(())
            }
            DirectWriteEvent::Stuck => end_if_unreleased(false),
        }
    }

    /// Deregisters all direct ranges when the session ends, before its files are closed. If a
    /// device keeps one, no partial file is kept.
    pub fn revoke_direct_writes(&mut self, client: &Client) {
        if !self.direct_writes.revoke_all(client) {
            self.targets.values().for_each(|upload| upload.target.discard());
        }
    }

    /// Hands a chunk to the worker of its link.
    fn hand_over(
        &mut self,
        client: &Client,
        links: &Links,
        absorb: Absorb,
        command: impl FnOnce(LinkKey, Upload) -> Command,
    ) -> Result<(), End> {
        let Absorb { tag, link, slot, pieces, in_place } = absorb;
        let location = match in_place {
            true => ChunkLocation::InFile(self.direct_writes.take(client, tag)),
            false => ChunkLocation::InSlot(self.slots.memory(slot)),
        };
        let piece_target = |piece: Piece| {
            let upload = self.targets.get(&piece.file);
            PieceTarget {
                target: upload.map(|upload| upload.target.clone()),
                quota: upload.and_then(|upload| upload.quota.clone()),
                size: self.sizes.get(&piece.file).copied().unwrap_or(0),
                piece,
            }
        };
        let pieces = pieces.into_iter().map(piece_target).collect();
        let (key, worker, transport) = links.worker_of(link);
        let chunk = Chunk { location, pieces, view: client.view.clone(), transport };
        client.send_to_worker(worker, command(key, Upload { tag, chunk, session: links.events() }))
    }

    /// A link notified a chunk that its worker did not expect.
    pub fn notified(
        &mut self,
        client: &Client,
        links: &Links,
        link: LinkId,
        tag: Tag,
    ) -> Result<(), End> {
        self.machine.notified(link, tag);
        if !self.machine.is_over(tag) {
            return Ok(());
        }
        let (key, worker, _) = links.worker_of(link);
        client.send_to_worker(worker, Command::Forget(key, tag))
    }

    fn zero(&self, id: FileId, extent: Extent) {
        let (upload, size) = self.open_file(id);
        self.jobs.run(move || {
            let answer = upload.zero(extent, size);
            // The target must not outlive the answer: a discard removes it.
            drop(upload);
            WriteEvent::Zeroed(id, extent, answer)
        });
    }

    /// Copies matching ranges of a file in an export into the temporary file. The client may read
    /// that file anyway, so the answer tells it nothing new. At most `OFFERS_MAX` per session.
    fn take_offer(&self, client: &Client, offer: Offer) {
        let (upload, size) = self.open_file(offer.piece.file);
        let reach = client.reach.clone();
        self.jobs.run(move || {
            let answer = take(&reach, &upload, size, &offer);
            // The target must not outlive the answer: a discard removes it.
            drop(upload);
            WriteEvent::Taken(Box::new(offer), answer)
        });
    }

    /// Commits whole files, and then drops the locks of the session.
    pub fn commit(
        &mut self,
        client: &Client,
        files: Vec<(FileId, Kept)>,
        locks: impl Send + 'static,
    ) {
        let take = |(id, meta): (FileId, Kept)| {
            let bytes = self.sizes.remove(&id).unwrap_or(0);
            client.view.file_ended(Direction::Write, id);
            let upload = self.targets.remove(&id).expect("whole files are open");
            let record = FileRecord { path: upload.path.clone(), bytes, began: upload.began };
            ((id, upload, meta), record)
        };
        let (files, record): (Vec<_>, Vec<_>) = files.into_iter().map(take).unzip();
        let (over, view) = (self.over, client.view.clone());
        self.jobs.run(move || {
            let (answers, dropped) = commit(over, files);
            // Until here no other client may lock the target of a mirror.
            drop(locks);
            for ((_, answer), record) in answers.iter().zip(&record) {
                view.log(Direction::Write, record, answer.as_ref().map(drop));
            }
            WriteEvent::Committed(answers, dropped)
        });
    }
}

/// Copies matching ranges of a file in an export into a temporary file.
fn take(
    reach: &ClientView,
    upload: &OpenUpload,
    size: u64,
    Offer { basis, piece }: &Offer,
) -> Result<Vec<Extent>, Fault> {
    let (export, path) = reach.resolve(basis)?;
    let old = open_source(&export, &path)?;
    let may = |bytes| upload.may(bytes);
    upload.target.take_from(old.file(), size, piece.extent, &piece.digests, may)
}

/// Waits briefly for an earlier session of the same client to release a partial file: a
/// disconnected client often reconnects before the server notices.
fn wait_for_release(folder: &Folder, path: &WirePath, key: &Digest, until: Instant) {
    while Instant::now() < until && Target::is_held(folder, path, key) {
        std::thread::sleep(HELD_LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::quota::Quota;
    use crate::limits::fair_pool::{FairPool, PoolShare};
    use std::sync::atomic::AtomicBool;
    use verbatim_files::Rules;
    use verbatim_proto::Meta;
    use verbatim_proto::message::FileInfo;
    use verbatim_proto::meta::Xattr;

    /// An upload of so many bytes, with a quota of 6000.
    fn upload(dir: &tempfile::TempDir, size: u64) -> OpenUpload {
        let folder = Folder::open(dir.path()).expect("a folder");
        let path = WirePath::parse(b"a").expect("a path");
        let target = Arc::new(Target::create(&folder, &path, size, 0o644).expect("a file"));
        let max = Cost { bytes: 6000, files: 1 };
        let quota = Some(Arc::new(Quota::new("in", max, Cost::default())));
        let (rules, began) = (Rules::of_user(), Instant::now());
        let room = Arc::new(FilePermits::of(&PoolShare::new(&FairPool::new(2))).expect("room"));
        OpenUpload { target, rules, path, quota, began, _room: room }
    }

    #[test]
    fn a_partial_file_of_a_disconnected_client_stays_for_its_next_session() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(dir.path()).expect("a folder");
        let (path, key) = (WirePath::parse(b"a").expect("a path"), Digest::of(b"this copy"));
        let size = LASTING_BYTES_MIN;
        let info = FileInfo { size, mode: 0o600, mtime_ns: 5, allocated: 0, version: None };
        drop(Target::create_lasting(&folder, &path, &info, &key).expect("begins"));
        let create = |over| {
            let how = (&AtomicBool::new(over), &AtomicU64::new(0));
            create_lasting(how, &folder, &path, &info, &key, |_| Ok(()))
        };
        let gone = create(true).map(drop).expect_err("nobody is there");
        assert_eq!(gone.code, Code::LinkLost);
        let (_, have) = create(false).expect("it goes on");
        assert!(have.is_some(), "with what was there");
    }

    #[test]
    fn a_file_whose_attributes_exceed_the_quota_is_not_committed() {
        let dir = tempfile::tempdir().expect("a folder");
        let commit_with = |bytes| {
            let upload = upload(&dir, 0);
            let quota = upload.quota.clone().expect("there is one");
            let xattr = Xattr { name: b"user.a".to_vec(), value: vec![7; bytes] };
            let meta = Meta { mode: 0o644, xattrs: vec![xattr], ..Meta::default() };
            let files = vec![(FileId(1), upload, Some(Box::new(meta)))];
            let (answers, _) = commit(Over::default(), files);
            (answers.into_iter().next().expect("one answer").1, quota)
        };
        let (answer, quota) = commit_with(6000);
        let fault = answer.expect_err("it has no room");
        assert!(fault.text.contains("the quota of in is used up"), "{fault}");
        assert!(quota.check(Cost::of_bytes(6000)).is_ok(), "nothing was taken");
        assert_eq!(std::fs::read_dir(dir.path()).expect("lists").count(), 0);
        let (_, quota) = commit_with(1000);
        assert!(quota.check(Cost::of_bytes(5000)).is_err(), "it is counted");
    }

    #[test]
    fn written_zeros_count_against_the_quota_and_holes_do_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let (size, long) = (4096, 1 << 20);
        let upload = upload(&dir, size);
        let target = upload.target.clone();
        // Files as short as this have no holes.
        upload.zero(Extent::new(0, size), size).expect("there is room once");
        target.write_at(&vec![7; size as usize], 0).expect("writes");
        let fault = upload.zero(Extent::new(0, size), size).expect_err("and not twice");
        assert_eq!(fault.code, verbatim_proto::Code::NoSpace);
        let mut left = vec![0; size as usize];
        target.read_landed(&mut left, 0).expect("reads");
        assert!(left.iter().all(|&byte| byte == 7), "it is asked before anything is written");
        let written = std::cell::Cell::new(0);
        let count = |bytes| {
            written.set(bytes);
            Ok(())
        };
        target.zero(Extent::new(0, long), long, count).expect("zeroes");
        let again = upload.zero(Extent::new(0, long), long);
        assert_eq!(again.is_ok(), written.get() == 0, "a hole costs nothing");
    }
}
