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

mod files;
mod granted;
mod grants;
mod holes;
mod links;
mod offers;

use super::types::{ServerEffect, SlotId};
use crate::message::{CommitFile, CreateFile, FileId, LinkId, Region, SentChunk, Tag, Verdict};
use crate::message::{SpotReply, SpotRequest, WriteReply, WriteRequest};
use crate::offer::{Offer, Taken};
use crate::read::{Have, check_piece};
use crate::{Code, Digest, Extent, Fault};
use std::collections::VecDeque;

/// The machine.
#[derive(Default)]
pub struct WriteServer {
    files: files::Files,
    links: links::Links,
    grants: grants::Grants,
    holes: holes::HoleLists,
    offers: offers::Offers,
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

    /// Whether something that was sent is not judged yet, or a fence is not answered: the client
    /// hears of neither before that is done.
    pub fn is_busy(&self) -> bool {
        self.links.has_fences() || self.grants.has_sent()
    }

    /// How many notifications named a tag that was not theirs, or named it twice.
    pub fn violations(&self) -> u64 {
        self.grants.violations()
    }

    /// A link is ready.
    pub fn link_up(&mut self, link: LinkId) {
        self.links.up(link, &mut self.effects);
    }

    /// The driver found a link dead, or killed it.
    pub fn killed(&mut self, link: LinkId) {
        self.links.killed(link);
        self.settle(link);
    }

    /// The client asks that a link be dead.
    pub fn fence(&mut self, link: LinkId) {
        self.effects.extend(self.links.fence(link));
    }

    /// The driver registered slots for a link.
    pub fn provisioned(&mut self, link: LinkId, slots: Vec<(SlotId, Region, u32)>) {
        if self.links.is_provisioned(link) {
            self.grants.add(link, slots, &self.links);
            self.flush();
        }
    }

    /// Holds grants back from now on, or gives all that were held back.
    pub fn hold_grants(&mut self, hold: bool) {
        self.grants.hold(hold, &self.links);
        if !hold {
            self.flush();
        }
    }

    /// Whether a slot waits for grants to be given again.
    pub fn holds_grants(&self) -> bool {
        self.grants.has_resting()
    }

    /// A notification came in on a link.
    pub fn notified(&mut self, link: LinkId, tag: Tag) {
        self.effects.extend(self.grants.notified(link, tag));
    }

    /// Whether a tag was granted and is judged or lost with its link: who notifies it does no harm.
    pub fn is_over(&self, tag: Tag) -> bool {
        self.grants.is_over(tag)
    }

    /// The driver checked a chunk: one verdict per piece. Of one that it expected it may say so
    /// instead of `notified`, and before `killed`.
    pub fn absorbed(&mut self, tag: Tag, verdicts: Vec<Verdict>) {
        let (slot, link, pieces) = self.grants.take_judged(tag);
        assert_eq!(verdicts.len(), pieces.len(), "one verdict per piece");
        for (piece, verdict) in pieces.iter().zip(&verdicts) {
            let Some(file) = self.files.get_mut(piece.file) else { continue };
            file.end_claim();
            if *verdict == Verdict::Stored {
                file.store(piece.extent, &piece.digests);
            } else {
                file.unclaim(piece.extent);
            }
        }
        self.grants.judged(tag, verdicts, slot, &self.links);
        self.flush();
        self.settle(link);
        self.discard_idle();
    }

    /// The driver made temporary files, or could not.
    pub fn created(&mut self, answers: Vec<(FileId, Result<Option<Have>, Fault>)>) {
        let created = |(id, answer)| (id, self.files.created(id, answer));
        let files = answers.into_iter().map(created).collect();
        self.effects.push_back(ServerEffect::Send(WriteReply::Created { files }));
        self.discard_idle();
    }

    /// The driver can register ranges of these files, which are being created.
    pub fn takes_spots(&mut self, files: Vec<FileId>) {
        self.files.take_spots(&files);
        self.effects.push_back(ServerEffect::Send(WriteReply::Spots(SpotReply::Taken(files))));
    }

    /// The driver registered a range of a file, or could not.
    pub fn spot_made(&mut self, tag: Tag, answer: Result<Region, Fault>) {
        let granted = self.grants.get_mut(tag);
        let granted = granted.expect("a spot that is being made keeps its grant");
        let link = granted.link();
        granted.spot_made(answer.is_ok(), &mut self.files);
        let made = SpotReply::Made(vec![(tag, answer)]);
        self.effects.push_back(ServerEffect::Send(WriteReply::Spots(made)));
        self.settle(link);
        self.discard_idle();
    }

    /// A range is zeros in its temporary file, or could not be made so. The digests are of
    /// zeros there.
    pub fn zeroed(&mut self, id: FileId, extent: Extent, answer: Result<Vec<Digest>, Fault>) {
        self.effects.extend(self.holes.zeroed(id, extent, answer, &mut self.files));
        self.holes.advance(&mut self.files, &mut self.effects);
        self.discard_idle();
    }

    /// The driver took what it has of an offer: these ranges of it, whole grains, are in the
    /// temporary file and have the digests that were offered.
    pub fn taken(&mut self, offer: &Offer, answer: Result<Vec<Extent>, Fault>) {
        self.offers.end(offer, answer.as_deref().unwrap_or_default(), &mut self.files);
        let (file, extent) = (offer.piece.file, offer.piece.extent);
        let taken = WriteReply::Taken(Taken { file, extent, answer });
        self.effects.push_back(ServerEffect::Send(taken));
        self.discard_idle();
    }

    /// The driver renamed files, or could not.
    pub fn committed(&mut self, answers: Vec<(FileId, Result<(), Fault>)>) {
        answers.iter().for_each(|(id, _)| self.files.remove(*id));
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
            WriteRequest::Holes(holes) => self.holes.add(holes, &mut self.files).map(|()| {
                self.holes.advance(&mut self.files, &mut self.effects);
            }),
            WriteRequest::Offer(offer) => self.offers.begin(&offer, &mut self.files).map(|()| {
                self.effects.push_back(ServerEffect::Take(offer));
            }),
            WriteRequest::End { file, size } => self.files.end_stream(file, size).map(|()| {
                self.effects.push_back(ServerEffect::Sized { file, size });
            }),
            WriteRequest::Spots(request) => self.spots(request),
            WriteRequest::Discard { files } => {
                self.files.discard(files);
                self.holes.advance(&mut self.files, &mut self.effects);
                self.discard_idle();
                Ok(())
            }
        };
        if let Err(fault) = taken {
            self.effects.push_back(ServerEffect::Broken(fault));
        }
    }

    fn create(&mut self, files: Vec<CreateFile>) -> Result<(), Fault> {
        self.files.create(&files)?;
        self.effects.push_back(ServerEffect::Create(files));
        self.links.begin_writing(&mut self.effects);
        Ok(())
    }

    fn sent(&mut self, chunk: SentChunk) -> Result<(), Fault> {
        let SentChunk { tag, pieces } = chunk;
        let granted = self.grants.named(tag, "client sent a tag it was not granted")?;
        let Some((granted, room)) = granted else { return Ok(()) };
        let in_spot = granted.check_sent(&pieces, room)?;
        for piece in &pieces {
            let file = self.files.open(piece.file, "chunk")?;
            check_piece(piece, file.size())?;
            // A spot was claimed when it was asked for.
            if !in_spot {
                file.claim(piece.file, piece.extent, "range it sent before")?;
            }
        }
        granted.set_sent(pieces);
        self.effects.extend(granted.hand_over(tag));
        Ok(())
    }

    fn spots(&mut self, request: SpotRequest) -> Result<(), Fault> {
        let unknown = "client named a tag it was not granted";
        match request {
            SpotRequest::Ask(spots) => {
                for spot in spots {
                    let granted = self.grants.named(spot.tag, unknown)?;
                    let Some((granted, room)) = granted else { continue };
                    self.effects.push_back(granted.ask_spot(spot, room, &mut self.files)?);
                }
            }
            SpotRequest::Return(tags) => {
                for tag in tags {
                    let Some((granted, _)) = self.grants.named(tag, unknown)? else { continue };
                    granted.return_spot(&mut self.files)?;
                    self.effects.push_back(ServerEffect::EndSpot(tag));
                    self.discard_idle();
                }
            }
        }
        Ok(())
    }

    fn commit(&mut self, files: Vec<CommitFile>) -> Result<(), Fault> {
        let mut whole = Vec::new();
        let mut refused = Vec::new();
        for CommitFile { file: id, root, meta } in files {
            if self.files.commit(id, root)? {
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

    /// Voids what a dead link has not finished; says so once nothing of it is absorbing.
    fn settle(&mut self, link: LinkId) {
        if !self.links.is_dead(link) || self.grants.is_busy(link) {
            return;
        }
        self.grants.void(link, &mut self.files, &mut self.effects);
        self.flush();
        self.effects.extend(self.links.settled(link));
        self.discard_idle();
    }

    /// Tells the client of verdicts and grants.
    fn flush(&mut self) {
        self.effects.extend(self.grants.reply());
    }

    fn discard_idle(&mut self) {
        let gone = self.files.take_discarded();
        if !gone.is_empty() {
            self.effects.push_back(ServerEffect::Discard(gone));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WirePath;
    use crate::message::FileInfo;

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
