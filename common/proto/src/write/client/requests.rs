//! Requests that the writing client has not sent yet: files to create, to commit and to discard,
//! sizes of streams, chunks that were sent, spots to make and to take back. Each list goes out in
//! messages of bounded length.

use super::file::File;
use crate::batch::{batches, batches_by};
use crate::message::{CommitFile, CreateFile, FileId, SentChunk, Spot, SpotRequest};
use crate::message::{Tag, WriteRequest};
use crate::touched::Files;
use crate::write::types::ClientEffect;
use std::collections::VecDeque;

/// About what a piece takes in a message when it has one digest.
const PIECE_BYTES: usize = 64;

/// The lists.
#[derive(Default)]
pub(super) struct Requests {
    ask: Vec<Spot>,
    give_back: Vec<Tag>,
    create: Vec<CreateFile>,
    /// Streams that have ended, with their sizes.
    end: Vec<(FileId, u64)>,
    say: Vec<SentChunk>,
    commit: Vec<CommitFile>,
    discard: Vec<FileId>,
}

impl Requests {
    pub fn ask_spot(&mut self, spot: Spot) {
        self.ask.push(spot);
    }

    pub fn return_spot(&mut self, tag: Tag) {
        self.give_back.push(tag);
    }

    pub fn create(&mut self, file: CreateFile) {
        self.create.push(file);
    }

    pub fn end_stream(&mut self, file: FileId, size: u64) {
        self.end.push((file, size));
    }

    pub fn sent(&mut self, chunk: SentChunk) {
        self.say.push(chunk);
    }

    pub fn commit(&mut self, file: CommitFile) {
        self.commit.push(file);
    }

    pub fn discard(&mut self, file: FileId) {
        self.discard.push(file);
    }

    /// Sends the sizes of streams that are created, before `Sent` of their last chunks.
    pub fn flush_ends(&mut self, files: &Files<File>, effects: &mut VecDeque<ClientEffect>) {
        let created =
            |(id, _): &mut (FileId, u64)| files.get(id).is_none_or(|file| !file.is_creating());
        for (file, size) in self.end.extract_if(.., created) {
            if files.contains_key(&file) {
                let end = WriteRequest::End { file, size };
                effects.push_back(ClientEffect::Send(end));
            }
        }
    }

    /// Sends all others.
    pub fn flush(&mut self, effects: &mut VecDeque<ClientEffect>) {
        let mut send = |request| effects.push_back(ClientEffect::Send(request));
        for tags in batches(&mut self.give_back) {
            send(WriteRequest::Spots(SpotRequest::Return(tags)));
        }
        for spots in batches(&mut self.ask) {
            send(WriteRequest::Spots(SpotRequest::Ask(spots)));
        }
        for files in batches(&mut self.discard) {
            send(WriteRequest::Discard { files });
        }
        for files in batches_by(&mut self.create, |file| file.path.as_bytes().len()) {
            send(WriteRequest::Create { files });
        }
        for chunks in batches_by(&mut self.say, |chunk| chunk.pieces.len() * PIECE_BYTES) {
            send(WriteRequest::Sent { chunks });
        }
        for files in batches_by(&mut self.commit, CommitFile::weight) {
            send(WriteRequest::Commit { files });
        }
    }
}
