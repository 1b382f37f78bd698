//! The client of the reading server as the target sees it: what it opened, what
//! it was lent and has not given back, and what it could well ask next. It plays
//! by the rules but for a slip now and then, or, at the end, without any.

use super::super::draw::Draw;
use super::super::messages;
use std::collections::{HashMap, HashSet};
use verbatim_proto::message::{FileId, OpenFile, ReadReply, ReadRequest, WindowId};
use verbatim_proto::units::{BATCH_FILES_MAX, GRAIN_BYTES, OPEN_FILES_MAX, PACK_FILES_MAX};
use verbatim_proto::{Extent, ExtentSet};

/// Files of likely requests have numbers behind this one: those that are drawn are below.
const FIRST_LIKELY_FILE: u32 = 1000;

#[derive(Default)]
pub struct Client {
    /// What it was lent and has not given back; a list of holes has no pieces.
    pub lent: HashMap<WindowId, Vec<(FileId, Extent)>>,
    /// Files it asked for, until their close is answered.
    asked: HashSet<FileId>,
    /// Those that are open for it, until it closes them.
    open: HashSet<FileId>,
    closing: HashSet<FileId>,
    files: u32,
}

impl Client {
    /// Notes what it asks. Returns whether it may not.
    pub fn asks(&mut self, request: &ReadRequest) -> bool {
        let mut wrong = false;
        match request {
            ReadRequest::Open { files } => {
                let many = files.len() > BATCH_FILES_MAX;
                wrong = many || self.asked.len() + files.len() > OPEN_FILES_MAX;
                files.iter().for_each(|it| wrong |= !self.asked.insert(it.file));
            }
            ReadRequest::Release { windows } => {
                windows.iter().for_each(|window| wrong |= self.lent.remove(window).is_none());
            }
            ReadRequest::Refresh { window, pieces } => {
                let lent = self.lent.remove(window).unwrap_or_default();
                wrong = !are_parts(pieces, &lent);
            }
            ReadRequest::Close { files, .. } => {
                for file in files {
                    wrong |= !self.open.remove(file);
                    self.closing.insert(*file);
                }
            }
        }
        wrong
    }

    /// Takes an answer, which the server may give.
    pub fn hears(&mut self, reply: &ReadReply) {
        match reply {
            ReadReply::Opened { files } => {
                for (file, answer) in files {
                    assert!(self.asked.contains(file), "opened what was not asked for");
                    match answer {
                        Ok(_) => assert!(self.open.insert(*file), "opened twice"),
                        Err(_) => assert!(self.asked.remove(file), "just seen"),
                    }
                }
            }
            ReadReply::Lease(lease) => {
                let pieces = lease.pieces.iter().map(|piece| (piece.file, piece.extent)).collect();
                assert!(self.lent.insert(lease.window, pieces).is_none(), "lent twice");
            }
            ReadReply::Holes(holes) => {
                assert!(self.lent.insert(holes.window, Vec::new()).is_none(), "lent twice");
            }
            ReadReply::Closed { files } => {
                for (file, _) in files {
                    assert!(self.closing.remove(file), "closed what was not to be");
                    self.asked.remove(file);
                }
            }
            ReadReply::Rails(_) | ReadReply::Failed { .. } => {}
        }
    }

    fn any_lent(&self, draw: &mut Draw<'_>) -> Option<WindowId> {
        let mut lent: Vec<WindowId> = self.lent.keys().copied().collect();
        lent.sort_unstable();
        draw.take(&mut lent)
    }

    fn any_open(&self, draw: &mut Draw<'_>) -> Option<FileId> {
        let mut open: Vec<FileId> = self.open.iter().copied().collect();
        open.sort_unstable();
        draw.take(&mut open)
    }

    /// What it could well ask, with a slip now and then: so the server gets somewhere.
    pub fn likely(&mut self, draw: &mut Draw<'_>) -> Option<ReadRequest> {
        Some(match draw.up_to(7) {
            0..=2 => {
                self.files += 1;
                let mut file = FileId(FIRST_LIKELY_FILE + self.files);
                if draw.once_in(32) {
                    file = self.any_open(draw)?;
                }
                let have = if draw.once_in(4) { draw.list(2, Draw::extent) } else { Vec::new() };
                ReadRequest::Open { files: vec![OpenFile { file, path: messages::path(), have }] }
            }
            3 | 4 => {
                let window = self.any_lent(draw)?;
                let again = if draw.once_in(64) { 2 } else { 1 };
                ReadRequest::Release { windows: vec![window; again] }
            }
            5 => {
                let window = self.any_lent(draw)?;
                let mut pieces = self.lent[&window].clone();
                pieces.retain(|_| !draw.once_in(3));
                for (_, extent) in &mut pieces {
                    if extent.len > GRAIN_BYTES && draw.once_in(2) {
                        extent.len = GRAIN_BYTES;
                    }
                }
                if draw.once_in(32) {
                    pieces.extend(pieces.clone());
                }
                if draw.once_in(32) {
                    pieces.push((self.any_open(draw)?, draw.extent()));
                }
                if pieces.is_empty() {
                    return None;
                }
                ReadRequest::Refresh { window, pieces }
            }
            _ if draw.once_in(2) => return None,
            _ => {
                let file = self.any_open(draw)?;
                let again = if draw.once_in(64) { 2 } else { 1 };
                ReadRequest::Close { files: vec![file; again], describe: false }
            }
        })
    }

    /// What an honest client does that has seen all it wants of everything it was lent: it gives
    /// all back. Files are closed when nothing more comes.
    pub fn gives_back(&self) -> Option<ReadRequest> {
        let mut windows: Vec<WindowId> = self.lent.keys().copied().collect();
        windows.sort_unstable();
        (!windows.is_empty()).then_some(ReadRequest::Release { windows })
    }

    pub fn closes(&self) -> Option<ReadRequest> {
        let mut files: Vec<FileId> = self.open.iter().copied().collect();
        files.sort_unstable();
        (!files.is_empty()).then_some(ReadRequest::Close { files, describe: false })
    }

    /// Whether a file is open for it.
    pub fn has_open(&self, file: FileId) -> bool {
        self.open.contains(&file)
    }
}

/// Whether these are whole grains of what was lent, each once.
fn are_parts(parts: &[(FileId, Extent)], lent: &[(FileId, Extent)]) -> bool {
    let mut left: Vec<(FileId, u64, ExtentSet)> = Vec::new();
    for (file, extent) in lent {
        let end = extent.end().expect("within a file");
        left.push((*file, end, ExtentSet::from_iter([*extent])));
    }
    let take = |(file, extent): &(FileId, Extent)| {
        let Extent { offset, len } = *extent;
        let mut of = left.iter_mut().filter(|(of, _, _)| of == file);
        offset % GRAIN_BYTES == 0
            && len > 0
            && of.any(|(_, end, left)| {
                (len % GRAIN_BYTES == 0 || extent.end() == Some(*end)) && left.take(*extent)
            })
    };
    (1..=PACK_FILES_MAX).contains(&parts.len()) && parts.iter().all(take)
}
