//! Requests that the reading client has not sent yet: files to open and to close, windows to
//! release. Each list goes out in messages of bounded length.

use crate::batch::{batches, batches_by};
use crate::message::{FileId, OpenFile, ReadRequest, WindowId};
use crate::read::types::ClientEffect;
use std::collections::VecDeque;

/// The lists.
#[derive(Default)]
pub(super) struct Requests {
    open: Vec<OpenFile>,
    release: Vec<WindowId>,
    close: Vec<FileId>,
}

impl Requests {
    pub fn open(&mut self, file: OpenFile) {
        self.open.push(file);
    }

    pub fn release(&mut self, window: WindowId) {
        self.release.push(window);
    }

    pub fn close(&mut self, file: FileId) {
        self.close.push(file);
    }

    /// Sends all of them; `describe` asks for the metadata of the closed files.
    pub fn flush(&mut self, describe: bool, effects: &mut VecDeque<ClientEffect>) {
        let mut send = |request| effects.push_back(ClientEffect::Send(request));
        for files in batches_by(&mut self.open, |file| file.path.as_bytes().len()) {
            send(ReadRequest::Open { files });
        }
        for windows in batches(&mut self.release) {
            send(ReadRequest::Release { windows });
        }
        for files in batches(&mut self.close) {
            send(ReadRequest::Close { files, describe });
        }
    }
}
