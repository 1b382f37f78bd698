//! A file whose size is told last: it grows as its source is read, and is sent
//! meanwhile. It has no holes, cannot be read again and so not be begun again,
//! and whoever keeps its bytes is told when they are stored.

use super::{File, Stage, WriteClient};
use crate::digest::{Digest, RootBuilder};
use crate::holes::{Search, Survey};
use crate::message::{CreateFile, FileInfo, WriteRequest};
use crate::units::{FILE_ATTEMPTS_MAX, STREAM_BYTES_MAX};
use crate::write::types::ClientEffect;
use crate::{Extent, ExtentSet, FileId, WirePath};
use std::collections::BTreeMap;
use std::time::Duration;

impl WriteClient {
    /// Adds a file that is nothing yet, and grows.
    ///
    /// # Panics
    /// When there is no room or the number is in use: a bug of the driver.
    pub fn create_stream(&mut self, file: FileId, path: WirePath, info: FileInfo, now: Duration) {
        assert!(self.room() > 0, "no room for another file");
        self.touch(now);
        let info = FileInfo { size: STREAM_BYTES_MAX, ..info };
        let mut state = File::new(&path, info, Survey::dense(info.size));
        state.unsent = ExtentSet::new();
        state.root = RootBuilder::open();
        (state.stream, state.streaming) = (true, true);
        state.attempts = FILE_ATTEMPTS_MAX;
        assert!(self.files.insert(file, state).is_none(), "file {file:?} is in use");
        self.to_create.push(CreateFile { file, path, info, stream: true });
    }

    /// More of a stream was read: whole grains, or what is left behind `ended`.
    pub fn grew(&mut self, id: FileId, extent: Extent, now: Duration) {
        self.touch(now);
        if let Some(file) = self.files.get_mut(&id) {
            file.unsent.insert(extent);
            if !self.queue.contains(&id) {
                self.queue.push_back(id);
            }
        }
    }

    /// The source of a stream has ended, and this is its size. What lies in its last grain, and
    /// anything of a file of one grain, must not have grown before.
    pub fn ended(&mut self, id: FileId, size: u64, now: Duration) {
        self.touch(now);
        let Some(file) = self.files.get_mut(&id) else { return };
        file.streaming = false;
        file.size = size;
        file.root.close(size);
        if size == 0 {
            file.root.insert(0, Digest::of(b""));
        }
        self.to_end.push((id, size));
    }

    /// Says how long streams are, once they are created and before what follows of them.
    pub(super) fn say_ends(&mut self) {
        let files = &self.files;
        let created = |(id, _): &mut (FileId, u64)| {
            files.get(id).is_none_or(|file| file.stage != Stage::Creating)
        };
        for (file, size) in self.to_end.extract_if(.., created) {
            if files.contains_key(&file) {
                let end = WriteRequest::End { file, size };
                self.effects.push_back(ClientEffect::Send(end));
            }
        }
    }
}

impl File {
    /// A file of which nothing is known but what it will be.
    pub(super) fn new(path: &WirePath, info: FileInfo, survey: Survey) -> Self {
        let mut root = RootBuilder::new(info.size);
        if info.size == 0 {
            root.insert(0, Digest::of(b""));
        }
        Self {
            path: path.clone(),
            size: info.size,
            stage: Stage::Creating,
            unsent: ExtentSet::whole(info.size),
            survey: Some(survey),
            search: Search::default(),
            naming: false,
            holes_left: 0,
            unhashed: ExtentSet::new(),
            hashing: false,
            basis: None,
            pending: 0,
            root,
            bad: BTreeMap::new(),
            attempts: 1,
            resumed: false,
            stream: false,
            streaming: false,
            takes_spots: false,
            doom: None,
        }
    }

    /// Whether it waits for nothing but its source.
    pub(super) fn awaits_source(&self) -> bool {
        let sent = self.stage == Stage::Sending && self.pending == 0 && self.unsent.is_empty();
        self.streaming && sent && self.doom.is_none()
    }
}
