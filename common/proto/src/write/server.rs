//! The writing server: grants slots, matches each notification with what the
//! client said over the control connection, has the chunk checked and stored,
//! grants again, and commits files that are whole. Driven by the server's
//! session, one machine per client.
//!
//! A tag is granted, then both sent and notified in either order, then
//! absorbing, then judged. A driver that is told what was sent before it is
//! notified may store it as soon as it is, and say only how it judged. A fence
//! voids every tag of its link that is not absorbing, and answers when the last
//! absorbing one is judged. Ranges are claimed when they are sent, so that no
//! byte is stored twice.

mod grants;
mod holes;
mod links;
mod offers;
mod spots;
mod stream;

use super::types::{Absorb, ServerEffect, SlotId};
use crate::batch::unexpected;
use crate::digest::{Digest, RootBuilder};
use crate::holes::Zeros;
use crate::message::{
    CommitFile, CreateFile, FileId, FileInfo, Grant, LinkId, Piece, Region, SentChunk, Tag, Verdict,
};
use crate::message::{WriteReply, WriteRequest};
use crate::numbered::FileMap;
use crate::read::{Have, check_piece};
use crate::units::{
    BATCH_FILES_MAX, LINKS_MAX, OPEN_FILES_MAX, PACK_FILES_MAX, RANGES_MAX, SLOTS_PER_LINK,
    STREAM_BYTES_MAX,
};
use crate::{Code, Extent, ExtentSet, Fault};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Links that are up, or dead and not fenced.
const UNFENCED_LINKS_MAX: usize = 4 * LINKS_MAX;

struct File {
    info: FileInfo,
    open: bool,
    /// Not sent yet, or sent in vain.
    unclaimed: ExtentSet,
    unstored_bytes: u64,
    root: RootBuilder,
    /// Chunks and lists of holes that the driver is at.
    absorbing: usize,
    holes: Option<holes::List>,
    /// Its size is not known yet.
    streaming: bool,
    /// Chunks may be written to where they stay.
    takes_spots: bool,
    /// It is whole, and the driver gives it its name: nothing else becomes of it.
    committing: bool,
    discarded: bool,
}

struct Slot {
    link: LinkId,
    region: Region,
    bytes: u32,
}

struct Use {
    slot: SlotId,
    link: LinkId,
    spot: Option<spots::Held>,
    sent: Option<Vec<Piece>>,
    notified: bool,
    absorbing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Up,
    Provisioned,
    /// Dead, and its absorbing tags are being waited for.
    Dead,
}

/// The machine.
#[derive(Default)]
pub struct WriteServer {
    files: FileMap<File>,
    links: HashMap<LinkId, LinkState>,
    slots: HashMap<SlotId, Slot>,
    uses: HashMap<Tag, Use>,
    zeros: Zeros<FileId>,
    /// Offers that the driver is at.
    offers: usize,
    next_tag: u32,
    writing: bool,
    /// Whether a file may be discarded that is not gone.
    discarding: bool,
    fences: BTreeSet<LinkId>,
    verdicts: Vec<(Tag, Vec<Verdict>)>,
    grants: Vec<Grant>,
    resting: grants::Resting,
    violations: u64,
    effects: VecDeque<ServerEffect>,
}

impl WriteServer {
    /// A machine without files or links.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next thing the driver must do.
    pub fn next_effect(&mut self) -> Option<ServerEffect> {
        self.effects.pop_front()
    }

    /// Whether no file is open.
    pub fn is_idle(&self) -> bool {
        self.files.is_empty()
    }

    /// How many notifications named a tag that was not theirs, or named it twice.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// A link is ready.
    pub fn link_up(&mut self, link: LinkId) {
        self.links.insert(link, LinkState::Up);
        if self.links.len() > UNFENCED_LINKS_MAX {
            let text = "client makes links and never fences those that died";
            self.effects.push_back(ServerEffect::Broken(Fault::new(Code::Limit, text)));
        }
        self.provision();
    }

    /// The driver registered slots for a link.
    pub fn provisioned(&mut self, link: LinkId, slots: Vec<(SlotId, Region, u32)>) {
        if self.links.get(&link) != Some(&LinkState::Provisioned) {
            return;
        }
        for (id, region, bytes) in slots {
            self.slots.insert(id, Slot { link, region, bytes });
            self.lend(id);
        }
        self.flush();
    }

    /// A notification came in on a link.
    pub fn notified(&mut self, link: LinkId, tag: Tag) {
        match self.uses.get_mut(&tag) {
            Some(used) if used.link == link && !used.notified && !used.awaits_spot() => {
                used.notified = true;
                self.hand_over(tag);
            }
            _ => self.violations += 1,
        }
    }

    /// Whether a tag was granted and is judged or lost with its link: who notifies it does no harm.
    pub fn is_over(&self, tag: Tag) -> bool {
        tag.0 < self.next_tag && !self.uses.contains_key(&tag)
    }

    /// The driver checked a chunk: one verdict per piece. Of one that it expected it may say so
    /// instead of `notified`, and before `killed`.
    pub fn absorbed(&mut self, tag: Tag, verdicts: Vec<Verdict>) {
        let used = self.uses.remove(&tag).expect("the driver answers what it was asked");
        let pieces = used.sent.expect("only sent chunks are absorbed");
        assert_eq!(verdicts.len(), pieces.len(), "one verdict per piece");
        for (piece, verdict) in pieces.iter().zip(&verdicts) {
            let Some(file) = self.files.get_mut(&piece.file) else { continue };
            file.absorbing -= 1;
            if *verdict == Verdict::Stored {
                file.unstored_bytes -= piece.extent.len;
                file.root.insert_run(piece.extent.offset, &piece.digests);
            } else {
                file.unclaimed.insert(piece.extent);
            }
        }
        self.verdicts.push((tag, verdicts));
        self.lend(used.slot);
        self.flush();
        self.settle(used.link);
        self.discard_idle();
    }

    /// The driver made temporary files, or could not.
    pub fn created(&mut self, answers: Vec<(FileId, Result<Option<Have>, Fault>)>) {
        let files = answers.into_iter().map(|(id, answer)| {
            if answer.is_err() {
                self.files.remove(&id);
            }
            (id, answer.map(|have| self.resumed(id, have)))
        });
        let files = files.collect();
        self.effects.push_back(ServerEffect::Send(WriteReply::Created { files }));
        self.discard_idle();
    }

    /// Counts in what an earlier session left of a file; returns its extents.
    fn resumed(&mut self, id: FileId, have: Option<Have>) -> Vec<Extent> {
        let file = self.files.get_mut(&id).expect("the driver answers what it was asked");
        file.open = true;
        let Some(have) = have.filter(|have| have.is_of(&file.info)) else { return Vec::new() };
        for extent in have.extents.iter() {
            assert!(file.unclaimed.take(extent), "the store has what cannot be");
            file.unstored_bytes -= extent.len;
        }
        file.root = have.root;
        have.extents.iter().collect()
    }

    /// The driver renamed files, or could not.
    pub fn committed(&mut self, answers: Vec<(FileId, Result<(), Fault>)>) {
        answers.iter().for_each(|(id, _)| drop(self.files.remove(id)));
        self.effects.push_back(ServerEffect::Send(WriteReply::Committed { files: answers }));
    }

    /// Takes a request of the client.
    pub fn request(&mut self, request: WriteRequest) {
        let taken = match request {
            WriteRequest::Create { files } => self.create(files),
            WriteRequest::Sent { chunks } => {
                chunks.into_iter().try_for_each(|chunk| self.sent(chunk))
            }
            WriteRequest::Commit { files } => self.commit(files),
            WriteRequest::Holes(holes) => self.holes(holes),
            WriteRequest::Offer(offer) => self.offer(offer),
            WriteRequest::End { file, size } => self.end(file, size),
            WriteRequest::Spots(request) => self.spots(request),
            WriteRequest::Discard { files } => {
                for id in files {
                    if let Some(file) = self.files.get_mut(&id).filter(|file| !file.committing) {
                        file.discarded = true;
                        self.discarding = true;
                    }
                }
                self.zero_holes();
                self.discard_idle();
                Ok(())
            }
        };
        if let Err(fault) = taken {
            self.effects.push_back(ServerEffect::Broken(fault));
        }
    }

    fn create(&mut self, files: Vec<CreateFile>) -> Result<(), Fault> {
        if files.len() > BATCH_FILES_MAX || self.files.len() + files.len() > OPEN_FILES_MAX {
            let text = format!("client created more than {OPEN_FILES_MAX} files at a time");
            return Err(Fault::new(Code::Limit, text));
        }
        for CreateFile { file, info, stream, .. } in &files {
            if *stream != (info.size == STREAM_BYTES_MAX) || info.size > STREAM_BYTES_MAX {
                return Err(unexpected("size that cannot be", *file));
            }
            let mut root = match stream {
                true => RootBuilder::open(),
                false => RootBuilder::new(info.size),
            };
            if info.size == 0 {
                root.insert(0, Digest::of(b""));
            }
            let state = File {
                info: *info,
                open: false,
                unclaimed: ExtentSet::whole(info.size),
                unstored_bytes: info.size,
                root,
                absorbing: 0,
                holes: None,
                streaming: *stream,
                takes_spots: false,
                committing: false,
                discarded: false,
            };
            if self.files.insert(*file, state).is_some() {
                return Err(unexpected("number that is in use", *file));
            }
        }
        self.effects.push_back(ServerEffect::Create(files));
        self.writing = true;
        self.provision();
        Ok(())
    }

    fn sent(&mut self, chunk: SentChunk) -> Result<(), Fault> {
        let SentChunk { tag, pieces } = chunk;
        let Some(used) = self.uses.get(&tag) else {
            // A tag of the past: its link was fenced while this was on the way.
            return match tag.0 < self.next_tag {
                true => Ok(()),
                false => Err(protocol("client sent a tag it was not granted")),
            };
        };
        let room = self.slots.get(&used.slot).map_or(0, |slot| u64::from(slot.bytes));
        let total = pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.extent.len));
        if used.sent.is_some() || pieces.is_empty() || pieces.len() > PACK_FILES_MAX {
            return Err(protocol("client sent a tag twice, or no or too many pieces"));
        }
        if total.is_none_or(|total| total > room) {
            return Err(protocol("client sent more than its slot holds"));
        }
        let in_spot = used.is_of_spot(&pieces)?;
        for piece in &pieces {
            let file = self.files.get_mut(&piece.file).filter(|file| file.open);
            let file = file.ok_or_else(|| unexpected("chunk", piece.file))?;
            check_piece(piece, file.info.size)?;
            if in_spot {
                // Claimed when the spot was asked for.
                continue;
            }
            if file.discarded || !file.unclaimed.take(piece.extent) {
                return Err(unexpected("range it sent before", piece.file));
            }
            if file.unclaimed.range_count() > RANGES_MAX {
                return Err(Fault::new(Code::Limit, "client sends a file in too many fragments"));
            }
            file.absorbing += 1;
        }
        self.uses.get_mut(&tag).expect("it was just there").sent = Some(pieces);
        self.hand_over(tag);
        Ok(())
    }

    fn commit(&mut self, files: Vec<CommitFile>) -> Result<(), Fault> {
        let mut whole = Vec::new();
        let mut refused = Vec::new();
        for CommitFile { file: id, root, meta } in files {
            let file = self.files.get_mut(&id).filter(|file| file.open && !file.discarded);
            let file = file.filter(|file| !file.committing);
            let file = file.ok_or_else(|| unexpected("commit", id))?;
            if file.unstored_bytes > 0 || file.absorbing > 0 || file.streaming {
                return Err(unexpected("commit of a file that is not whole", id));
            }
            // Either way it is answered once.
            file.committing = true;
            if file.root.finish() == Some(root) {
                whole.push((id, meta));
            } else {
                let text = "digest of the whole file does not match";
                refused.push((id, Err(Fault::new(Code::Mismatch, text))));
            }
        }
        if !refused.is_empty() {
            let ids = refused.iter().map(|(id, _)| *id).collect();
            self.effects.push_back(ServerEffect::Discard(ids));
            self.committed(refused);
        }
        if !whole.is_empty() {
            self.effects.push_back(ServerEffect::Commit(whole));
        }
        Ok(())
    }

    /// Has a chunk stored that is sent and notified, or expected that is only sent.
    fn hand_over(&mut self, tag: Tag) {
        let Some(used) = self.uses.get_mut(&tag) else { return };
        let Some(pieces) = used.sent.clone() else { return };
        let (link, slot, in_place) = (used.link, used.slot, used.spot.is_some());
        let absorb = Absorb { tag, link, slot, pieces, in_place };
        if used.notified {
            used.absorbing = true;
            self.effects.push_back(ServerEffect::Absorb(absorb));
        } else if !in_place {
            self.effects.push_back(ServerEffect::Expect(absorb));
        }
    }

    /// Asks for slots on every link, once the client has begun to write.
    fn provision(&mut self) {
        if !self.writing {
            return;
        }
        for (&link, state) in &mut self.links {
            if *state == LinkState::Up {
                *state = LinkState::Provisioned;
                self.effects.push_back(ServerEffect::Provision { link, slots: SLOTS_PER_LINK });
            }
        }
    }

    fn discard_idle(&mut self) {
        if !self.discarding {
            return;
        }
        let idle = |_: &FileId, file: &mut File| file.discarded && file.open && file.absorbing == 0;
        let gone: Vec<FileId> = self.files.extract_if(idle).map(|(id, _)| id).collect();
        self.discarding = self.files.values().any(|file| file.discarded);
        if !gone.is_empty() {
            self.effects.push_back(ServerEffect::Discard(gone));
        }
    }
}

fn protocol(text: &str) -> Fault {
    Fault::new(Code::Protocol, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WirePath;

    const FILE: FileId = FileId(7);

    fn create(machine: &mut WriteServer) {
        let info = FileInfo { size: 0, mode: 0o644, mtime_ns: 1, allocated: 0, version: None };
        let path = WirePath::parse(b"in/file").expect("plain");
        let file = CreateFile { file: FILE, path, info, stream: false };
        machine.request(WriteRequest::Create { files: vec![file] });
    }

    /// A machine with an empty file, for which a commit was asked so often.
    fn committing(times: usize) -> WriteServer {
        let mut machine = WriteServer::new();
        create(&mut machine);
        machine.created(vec![(FILE, Ok(None))]);
        let commit = || CommitFile { file: FILE, root: Digest::of(b""), meta: None };
        machine.request(WriteRequest::Commit { files: (0..times).map(|_| commit()).collect() });
        machine
    }

    fn effects(machine: &mut WriteServer) -> Vec<ServerEffect> {
        std::iter::from_fn(|| machine.next_effect()).collect()
    }

    fn commits(effects: &[ServerEffect]) -> usize {
        effects.iter().filter(|effect| matches!(effect, ServerEffect::Commit(_))).count()
    }

    fn is_broken(effects: &[ServerEffect]) -> bool {
        effects.iter().any(|effect| matches!(effect, ServerEffect::Broken(_)))
    }

    #[test]
    fn a_file_is_committed_once_however_often_that_is_asked_for() {
        let mut machine = committing(1);
        let first = effects(&mut machine);
        assert_eq!((commits(&first), is_broken(&first)), (1, false));
        let commit = CommitFile { file: FILE, root: Digest::of(b""), meta: None };
        machine.request(WriteRequest::Commit { files: vec![commit] });
        let second = effects(&mut machine);
        assert_eq!((commits(&second), is_broken(&second)), (0, true));
        let both = effects(&mut committing(2));
        assert_eq!((commits(&both), is_broken(&both)), (0, true));
    }

    #[test]
    fn a_file_that_is_committed_is_not_discarded_and_its_number_not_used_again() {
        let mut machine = committing(1);
        effects(&mut machine);
        machine.request(WriteRequest::Discard { files: vec![FILE] });
        assert_eq!(effects(&mut machine), [], "it gets its name");
        create(&mut machine);
        assert!(is_broken(&effects(&mut machine)), "the number is in use");
        // When it has its name, both are over.
        let mut machine = committing(1);
        effects(&mut machine);
        machine.committed(vec![(FILE, Ok(()))]);
        create(&mut machine);
        assert!(!is_broken(&effects(&mut machine)));
    }
}
