//! What writing costs the server: temporary files, storing, committing; and slots,
//! in `slots`. A temporary file that is not committed is removed when the last
//! reference to it goes.

mod open_upload;
mod slots;

use super::Session;
use super::end::End;
use super::event::Event;
use super::sync_lock::{HELD_LOOK_EVERY, HELD_MAX};
use crate::limits::file_room::Room;
use crate::observe::session_stats::Noted;
use crate::worker::{Chunk, Command, Landing, Lies};
use open_upload::create_lasting;
pub(crate) use open_upload::{Created, Landed};
use slots::Slot;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use verbatim_fabric::worker::LinkKey;
use verbatim_files::target::LASTING_BYTES_MIN;
use verbatim_files::{Cost, Folder, Over, Target};
use verbatim_proto::message::{CreateFile, FileId, LinkId, Piece, ServerMessage, Tag, Verdict};
use verbatim_proto::write::{Absorb, ServerEffect, SlotId, WriteServer};
use verbatim_proto::{Digest, Dropped, Extent, Fault, Kept, WirePath};
use verbatim_telemetry::labels::Direction;

/// The writing half of a session.
#[derive(Default)]
pub(super) struct Writing {
    pub machine: WriteServer,
    pub targets: HashMap<FileId, Landed>,
    pub sizes: HashMap<FileId, u64>,
    /// What files and links of this client may take the place of.
    pub over: Over,
    /// Whether the client is told what was hashed again.
    pub tells_rehashed: bool,
    /// Bytes of partial files that were hashed again, and not yet told.
    rehashed: Arc<AtomicU64>,
    slots: HashMap<SlotId, Slot>,
    next_slot: u32,
    /// Slots that links want and that cannot be pinned yet.
    wanting: BTreeMap<LinkId, u16>,
}

impl Writing {
    /// Whether slots wait until more may be pinned.
    pub fn waits(&self) -> bool {
        !self.wanting.is_empty()
    }

    /// Whether anything can be written meanwhile.
    pub fn has_slots(&self) -> bool {
        !self.slots.is_empty()
    }

    /// An open file, and how long it is to be.
    pub fn landing(&self, id: FileId) -> (Landed, u64) {
        let landed = self.targets.get(&id).cloned().zip(self.sizes.get(&id).copied());
        landed.expect("files that are worked on are open")
    }

    /// A link is dead: no slots are made for it any more.
    pub fn wants_no_slots(&mut self, link: LinkId) {
        self.wanting.remove(&link);
    }
}

impl Session {
    pub(super) fn write_effect(&mut self, effect: ServerEffect) -> Result<(), End> {
        match effect {
            ServerEffect::Send(reply) => self.client.send(ServerMessage::Write(reply))?,
            ServerEffect::Provision { link, slots } => self.provision(link, slots)?,
            ServerEffect::Create(files) => self.create(files),
            ServerEffect::MakeSpot { link, spot } => self.make_spot(link, spot)?,
            ServerEffect::EndSpot(tag) => self.end_spot(tag)?,
            ServerEffect::Expect(absorb) => self.hand_over(absorb, Command::Expect)?,
            ServerEffect::Absorb(absorb) => self.hand_over(absorb, Command::Absorb)?,
            ServerEffect::Sized { file, size } => {
                self.writing.sizes.insert(file, size);
                if let Some(landed) = self.writing.targets.get(&file) {
                    landed.target.end_at(size);
                }
            }
            ServerEffect::Zero { file, extent } => self.zero(file, extent),
            ServerEffect::Take(offer) => self.take_offer(offer),
            ServerEffect::Commit(ids) => self.commit(ids),
            ServerEffect::Discard(ids) => {
                for id in ids {
                    self.writing.sizes.remove(&id);
                    self.client.view.over(Direction::Write, id);
                    if let Some(landed) = self.writing.targets.remove(&id) {
                        landed.target.discard();
                    }
                }
            }
            ServerEffect::Kill(link) => self.links.kill(&self.client, link)?,
            ServerEffect::Free(link) => self.free_slots(link)?,
            ServerEffect::Fenced(link) => self.client.send(ServerMessage::Fenced { link })?,
            ServerEffect::Broken(fault) => return Err(End::Refused(fault)),
        }
        Ok(())
    }

    /// Makes temporary files that have their places.
    pub(super) fn create_placed(&mut self, files: Vec<(CreateFile, Room)>) {
        let (reach, view) = (self.client.reach.clone(), self.client.view.clone());
        let (over, rehashed) = (self.client.gone.flag(), self.writing.rehashed.clone());
        self.jobs.run(move || {
            let until = Instant::now() + HELD_MAX;
            let create_one = |(request, room): (CreateFile, Room)| {
                let (export, path) = reach.resolve_for_data(&request.path)?;
                export.writable("create", &request.path)?;
                let landed = |target, path| {
                    let rules = export.rules;
                    let (quota, began) = (export.quota.clone(), Instant::now());
                    let (target, room) = (Arc::new(target), Arc::new(room));
                    Landed { target, rules, path, quota, began, _room: room }
                };
                if request.stream {
                    // It cannot be gone on with, so it does not last.
                    let target = Target::create(&export.folder, &path, 0, request.info.mode)?;
                    return Ok((landed(target, request.path), None));
                }
                let info = &request.info;
                let fits = |cost| export.quota.as_ref().map_or(Ok(()), |quota| quota.check(cost));
                if info.size < LASTING_BYTES_MIN {
                    fits(Cost::INODE.and(Cost::of_bytes(info.room())))?;
                    let room = Target::room_for(&export.folder, &path, info, 0)?;
                    let target = Target::create(&export.folder, &path, info.size, info.mode)?;
                    target.set_room(room);
                    target.keep_sparse(info)?;
                    return Ok((landed(target, request.path), None));
                }
                let (size, mtime_ns) = (info.size, info.mtime_ns);
                let key = format!("{} {} {size} {mtime_ns}", view.who, request.path);
                let key = Digest::of(key.as_bytes());
                wait_for_release(&export.folder, &path, &key, until);
                let how = (&*over, &*rehashed);
                let (target, have) = create_lasting(how, &export.folder, &path, info, &key, fits)?;
                Ok((landed(target, request.path), have))
            };
            let created = files.into_iter().map(|it| (it.0.file, create_one(it)));
            Event::Created(created.collect())
        });
    }

    pub(super) fn created(
        &mut self,
        answers: Vec<(FileId, Result<Created, Fault>)>,
    ) -> Result<(), End> {
        let bytes = self.writing.rehashed.swap(0, Ordering::Relaxed);
        if self.writing.tells_rehashed && bytes > 0 {
            self.client.send(ServerMessage::Rehashed { bytes })?;
        }
        self.offer_spots(&answers);
        let mut told = Vec::with_capacity(answers.len());
        for (id, answer) in answers {
            match answer {
                Ok((landed, have)) => {
                    let bytes = self.writing.sizes.get(&id).copied().unwrap_or(0);
                    let found = have.as_ref().map_or(0, |have| have.extents.bytes());
                    self.client.view.began(Direction::Write, id, &landed.path, bytes, found);
                    self.writing.targets.insert(id, landed);
                    told.push((id, Ok(have)));
                }
                Err(fault) => {
                    self.writing.sizes.remove(&id);
                    told.push((id, Err(fault)));
                }
            }
        }
        self.writing.machine.created(told);
        Ok(())
    }

    /// Gives a chunk to the worker that has its link.
    fn hand_over(
        &mut self,
        absorb: Absorb,
        command: impl FnOnce(LinkKey, Chunk) -> Command,
    ) -> Result<(), End> {
        let Absorb { tag, link, slot, pieces, in_place } = absorb;
        let lies = match in_place {
            true => Lies::InFile(self.spots.take(tag, &self.client.domain)),
            false => Lies::InSlot(self.writing.slots[&slot].memory.clone()),
        };
        let writing = &self.writing;
        let landing = |piece: Piece| {
            let landed = writing.targets.get(&piece.file);
            Landing {
                target: landed.map(|landed| landed.target.clone()),
                quota: landed.and_then(|landed| landed.quota.clone()),
                size: writing.sizes.get(&piece.file).copied().unwrap_or(0),
                piece,
            }
        };
        let pieces = pieces.into_iter().map(landing).collect();
        let (session, view) = (self.links.events(), self.client.view.clone());
        let (key, worker, transport) = self.links.place_of(link);
        self.client
            .tell(worker, command(key, Chunk { tag, lies, pieces, session, view, transport }))
    }

    /// A link notified a chunk that its worker did not expect.
    pub(super) fn notified(&mut self, link: LinkId, tag: Tag) -> Result<(), End> {
        self.writing.machine.notified(link, tag);
        if !self.writing.machine.is_over(tag) {
            return Ok(());
        }
        let (key, worker, _) = self.links.place_of(link);
        self.client.tell(worker, Command::Forget(key, tag))
    }

    /// A chunk was judged.
    pub(super) fn absorbed(&mut self, tag: Tag, bytes: u64, verdicts: Vec<Verdict>) {
        self.client.domain.used_slot();
        self.pacing.took(bytes);
        self.pace_grants();
        self.writing.machine.absorbed(tag, verdicts);
    }

    fn zero(&mut self, id: FileId, extent: Extent) {
        let (landed, size) = self.writing.landing(id);
        self.jobs.run(move || {
            let answer = landed.zero(extent, size);
            // The target must not outlive the answer: a discard removes it.
            drop(landed);
            Event::Zeroed(id, extent, answer)
        });
    }

    fn commit(&mut self, files: Vec<(FileId, Kept)>) {
        let take = |(id, meta): (FileId, Kept)| {
            let bytes = self.writing.sizes.remove(&id).unwrap_or(0);
            self.client.view.over(Direction::Write, id);
            let landed = self.writing.targets.remove(&id).expect("whole files are open");
            let noted = Noted { path: landed.path.clone(), bytes, began: landed.began };
            ((id, landed, meta), noted)
        };
        let (files, noted): (Vec<_>, Vec<_>) = files.into_iter().map(take).unzip();
        let (over, view, keeping) = (
            self.writing.over,
            self.client.view.clone(),
            self.mirrors.keep(self.client.gone.flag()),
        );
        self.jobs.run(move || {
            let (answers, dropped) = commit(over, files);
            // Until here nobody else may have the target of a mirror.
            drop(keeping);
            for ((_, answer), noted) in answers.iter().zip(&noted) {
                view.log(Direction::Write, noted, answer.as_ref().map(drop));
            }
            Event::Committed(answers, dropped)
        });
    }
}

/// What became of files.
type Answers = Vec<(FileId, Result<(), Fault>)>;

/// Gives whole files their metadata, then makes those that took it durable under their names. One
/// answer for each file, in order.
fn commit(over: Over, files: Vec<(FileId, Landed, Kept)>) -> (Answers, Dropped) {
    let mut dropped = Dropped::default();
    let mut answers = Answers::with_capacity(files.len());
    let (mut places, mut whole) = (Vec::new(), Vec::new());
    for (id, landed, meta) in &files {
        let describe = |meta| landed.describe(meta);
        let described = meta.as_deref().map_or(Ok(Dropped::default()), describe);
        match &described {
            Ok(not_kept) => {
                dropped += *not_kept;
                places.push(answers.len());
                whole.push(landed.target.clone());
            }
            Err(_) => landed.target.discard(),
        }
        answers.push((*id, described.map(drop)));
    }
    for (place, answer) in places.into_iter().zip(Target::commit_over(over, &whole)) {
        answers[place].1 = answer;
    }
    (answers, dropped)
}

/// Waits a little for what an earlier session of the same client has not let go of yet: a
/// client that was cut off is often back before the server has noticed.
fn wait_for_release(folder: &Folder, path: &WirePath, key: &Digest, until: Instant) {
    while Instant::now() < until && Target::is_held(folder, path, key) {
        std::thread::sleep(HELD_LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::quota::Quota;
    use crate::limits::fair_pool::{Places, Taker};
    use std::sync::atomic::AtomicBool;
    use verbatim_files::Rules;
    use verbatim_proto::message::FileInfo;
    use verbatim_proto::meta::Xattr;
    use verbatim_proto::{Code, Meta};

    /// A file of so many bytes in this folder, of which a quota lets 6000 be written.
    fn landed(dir: &tempfile::TempDir, size: u64) -> Landed {
        let folder = Folder::open(dir.path()).expect("a folder");
        let path = WirePath::parse(b"a").expect("a path");
        let target = Arc::new(Target::create(&folder, &path, size, 0o644).expect("a file"));
        let max = Cost { bytes: 6000, files: 1 };
        let quota = Some(Arc::new(Quota::new("in", max, Cost::default())));
        let (rules, began) = (Rules::of_user(), Instant::now());
        let room = Arc::new(Room::of(&Taker::new(&Places::new(2))).expect("room"));
        Landed { target, rules, path, quota, began, _room: room }
    }

    #[test]
    fn what_is_looked_at_for_a_client_that_is_gone_stays_for_its_next_session() {
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
    fn a_file_whose_attributes_the_quota_does_not_hold_is_not_placed() {
        let dir = tempfile::tempdir().expect("a folder");
        let commit_with = |bytes| {
            let landed = landed(&dir, 0);
            let quota = landed.quota.clone().expect("there is one");
            let xattr = Xattr { name: b"user.a".to_vec(), value: vec![7; bytes] };
            let meta = Meta { mode: 0o644, xattrs: vec![xattr], ..Meta::default() };
            let files = vec![(FileId(1), landed, Some(Box::new(meta)))];
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
    fn zeros_that_are_written_count_and_holes_do_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let (size, long) = (4096, 1 << 20);
        let landed = landed(&dir, size);
        let target = landed.target.clone();
        // Files as short as this have no holes.
        landed.zero(Extent::new(0, size), size).expect("there is room once");
        target.write_at(&vec![7; size as usize], 0).expect("writes");
        let fault = landed.zero(Extent::new(0, size), size).expect_err("and not twice");
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
        let again = landed.zero(Extent::new(0, long), long);
        assert_eq!(again.is_ok(), written.get() == 0, "a hole costs nothing");
    }
}
