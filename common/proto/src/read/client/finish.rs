//! How a file that is read ends: closed when it is whole, or given up and drained,
//! then finished, failed, or begun again where it changed.

use super::file::Due;
use super::{File, ReadClient};
use crate::batch::unexpected;
use crate::message::Piece;
use crate::read::chunk::Chunk;
use crate::read::types::ClientEffect;
use crate::{Fault, FileId, Kept};

impl ReadClient {
    /// Closes files that are whole or doomed, and ends those that are closed, once nothing of
    /// them is in flight.
    pub(super) fn end_files(&mut self) {
        for id in self.files.take_touched() {
            match self.files.look_at(id).and_then(File::due) {
                Some(Due::Close) => self.requests.close(id),
                Some(Due::End(answer)) => self.end(id, answer),
                None => {}
            }
        }
    }

    /// Chunks that hold nothing wanted any more are not worth a read.
    pub(super) fn drop_doomed_chunks(&mut self) {
        let files = &self.files;
        let doomed = |piece: &Piece| !files.get(&piece.file).is_some_and(File::is_wanted);
        let is_doomed = |chunk: &Chunk| chunk.pieces.iter().all(doomed);
        for chunk in self.ready.take_unwanted(is_doomed) {
            for piece in &chunk.pieces {
                if let Some(file) = self.files.get_mut(&piece.file) {
                    file.end_pending();
                }
            }
            self.chunk_done(chunk.window);
        }
    }

    /// The server closed a file.
    pub(super) fn closed(&mut self, id: FileId, answer: Result<Kept, Fault>) -> Result<(), Fault> {
        match self.files.get_mut(&id).is_some_and(|file| file.closed(answer)) {
            true => Ok(()),
            false => Err(unexpected("answer to a close", id)),
        }
    }

    fn end(&mut self, id: FileId, answer: Result<Kept, Fault>) {
        let file = self.files.get_mut(&id).expect("the caller found it");
        let fault = match file.result(answer) {
            Ok((root, meta)) => {
                self.files.remove(&id);
                self.effects.push_back(ClientEffect::Finished { file: id, root, meta });
                return;
            }
            Err(fault) => fault,
        };
        if file.restart(&fault) {
            self.requests.open(file.request(id));
            self.effects.push_back(ClientEffect::Restart { file: id });
        } else {
            self.files.remove(&id);
            self.effects.push_back(ClientEffect::Failed { file: id, fault });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, effects, machine};
    use super::*;
    use crate::message::{FileInfo, Lease, LinkId, ReadReply, ReadRequest, Region, WindowId};
    use crate::read::{Fetch, Outcome, PieceOutcome};
    use crate::{Code, Digest, Extent, WirePath};

    const FILES: [FileId; 2] = [FileId(0), FileId(1)];
    const BYTES: u64 = 100;

    /// Opens files, and returns the lease of all of them, which has still to be heard.
    fn lent(machine: &mut ReadClient, files: &[FileId]) -> ReadReply {
        files.iter().for_each(|file| machine.open(*file, WirePath::root(), None, NOW));
        let info =
            FileInfo { size: BYTES, mode: 0o644, mtime_ns: 0, allocated: BYTES, version: None };
        let opened = files.iter().map(|file| (*file, Ok(info))).collect();
        machine.reply(ReadReply::Opened { files: opened }, NOW);
        let (region, extent) = (Region { key: 1, base: 0 }, Extent::new(0, BYTES));
        let piece = |file: &FileId| Piece { file: *file, extent, digests: vec![Digest([1; 32])] };
        let pieces = files.iter().map(piece).collect();
        ReadReply::Lease(Lease { window: WindowId(1), region, pieces })
    }

    /// A machine that gave the first of two small files up while both were lent in one window,
    /// and heard that it is closed.
    fn closed_while_lent(machine: &mut ReadClient) -> Vec<ClientEffect> {
        let lease = lent(machine, &FILES);
        machine.fail(FILES[0], Fault::new(Code::Denied, "cannot be made here"));
        effects(machine);
        machine.reply(lease, NOW);
        let mut seen = effects(machine);
        machine.reply(ReadReply::Closed { files: vec![(FILES[0], Ok(None))] }, NOW);
        seen.extend(effects(machine));
        seen
    }

    #[test]
    fn a_file_ends_when_nothing_of_it_is_in_flight_or_to_be() {
        let mut machine = machine();
        // Without a link the chunk waits; with one it is in flight.
        assert_eq!(closed_while_lent(&mut machine), [], "a chunk with a file of it waits");
        machine.link_up(LinkId { index: 0, epoch: 0 });
        let begun = effects(&mut machine);
        let [ClientEffect::Fetch(Fetch { link, slot, .. })] = begun[..] else {
            panic!("{begun:?}")
        };
        let outcomes = vec![PieceOutcome::Verified; 2];
        machine.fetched(link, slot, Outcome::Landed(outcomes), NOW);
        let ended = effects(&mut machine);
        let failed = |effect: &ClientEffect| {
            matches!(effect, ClientEffect::Failed { file, fault }
                if *file == FILES[0] && fault.code == Code::Denied)
        };
        assert_eq!(ended.iter().filter(|effect| failed(effect)).count(), 1, "{ended:?}");
    }

    #[test]
    fn a_close_is_answered_once() {
        let mut machine = machine();
        closed_while_lent(&mut machine);
        machine.reply(ReadReply::Closed { files: vec![(FILES[0], Ok(None))] }, NOW);
        assert!(matches!(machine.next_effect(), Some(ClientEffect::Broken(_))));
    }

    fn is_let_go(seen: &[ClientEffect]) -> bool {
        let release = ReadRequest::Release { windows: vec![WindowId(1)] };
        seen.contains(&ClientEffect::Send(release))
    }

    #[test]
    fn what_is_lent_of_a_file_that_was_given_up_is_let_go() {
        let mut machine = machine();
        let lease = lent(&mut machine, &FILES[..1]);
        machine.fail(FILES[0], Fault::new(Code::Denied, "cannot be made here"));
        assert!(!is_let_go(&effects(&mut machine)), "nothing is lent");
        machine.reply(lease, NOW);
        // Without a link: it does not wait for one.
        assert!(is_let_go(&effects(&mut machine)));
    }

    #[test]
    fn what_was_in_flight_of_a_file_that_was_given_up_is_not_sent_again() {
        let (mut machine, link) = (machine(), LinkId { index: 0, epoch: 0 });
        let lease = lent(&mut machine, &FILES[..1]);
        machine.reply(lease, NOW);
        machine.link_up(link);
        let begun = effects(&mut machine);
        assert!(begun.iter().any(|it| matches!(it, ClientEffect::Fetch(_))), "{begun:?}");
        machine.fail(FILES[0], Fault::new(Code::Denied, "cannot be made here"));
        assert!(!is_let_go(&effects(&mut machine)), "it is in flight");
        machine.fetched(link, 0, Outcome::LinkLost, NOW);
        assert!(is_let_go(&effects(&mut machine)));
    }
}
