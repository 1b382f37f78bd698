//! The server of the reading client as the target sees it: what it was asked,
//! what it has lent, and what it could well say next. It plays by the rules but
//! for a slip now and then, or, at the end, without any.

use super::super::draw::Draw;
use std::collections::HashMap;
use verbatim_proto::message::{
    FileId, FileInfo, Holes, Lease, OpenFile, Piece, ReadReply, ReadRequest, Region, WindowHoles,
    WindowId, WindowRails,
};
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Code, Digest, Extent, ExtentSet, Fault};

/// Windows that are likely are numbered from here on: those that are drawn are below, or beyond.
const FIRST_LIKELY_WINDOW: u64 = 1000;

/// The longest file that an honest end leases to the end.
const SIZE_MAX: u64 = 64 * GRAIN_BYTES;

/// What is lent under one number.
pub struct Lent {
    pub region: Region,
    pub rails: Vec<Region>,
    pub pieces: Vec<Piece>,
    /// Ranges that are holes.
    pub holes: Option<Holes>,
}

impl Lent {
    /// How far from its beginning a range of a file is, and with which digests.
    pub fn place(&self, file: FileId, extent: Extent) -> Option<(u64, &[Digest])> {
        let mut start = 0;
        for piece in &self.pieces {
            if piece.file == file && ExtentSet::from_iter([piece.extent]).contains(extent) {
                let before = extent.offset - piece.extent.offset;
                let first = (before / GRAIN_BYTES) as usize;
                let count = extent.len.div_ceil(GRAIN_BYTES) as usize;
                return Some((start + before, &piece.digests[first..first + count]));
            }
            start += piece.extent.len;
        }
        None
    }
}

/// What the server was asked and has lent.
#[derive(Default)]
pub struct Server {
    pub lent: HashMap<WindowId, Lent>,
    /// Names of windows to come.
    named: HashMap<WindowId, Vec<Region>>,
    opening: Vec<OpenFile>,
    closing: Vec<FileId>,
    /// What was not lent of files that are open: what the client believes too.
    unlent: HashMap<FileId, ExtentSet>,
    sizes: HashMap<FileId, u64>,
    /// Whether windows have a second name.
    pub with_rails: bool,
    /// Whether it forgot to name a window, so that one of the links cannot read it.
    pub nameless: bool,
    /// Whether it makes no slips any more.
    pub honest: bool,
    windows: u64,
}

impl Server {
    pub fn new(with_rails: bool) -> Self {
        Self { with_rails, ..Self::default() }
    }

    /// Takes a request; what is wrong with it is a fault of the client.
    pub fn asked(&mut self, request: &ReadRequest) {
        match request {
            ReadRequest::Open { files } => self.opening.extend(files.iter().cloned()),
            ReadRequest::Release { windows } => {
                for window in windows {
                    assert!(self.lent.remove(window).is_some(), "gave back what it has not");
                }
            }
            ReadRequest::Refresh { window, pieces } => {
                let lent = self.lent.remove(window).expect("a window that it has");
                for (file, extent) in pieces {
                    let mut of = lent.pieces.iter().filter(|piece| piece.file == *file);
                    let is_part = of.any(|piece| {
                        ExtentSet::from_iter([piece.extent]).contains(*extent) && extent.len > 0
                    });
                    assert!(is_part, "asked for something else than it was lent");
                    if let Some(unlent) = self.unlent.get_mut(file) {
                        unlent.insert(*extent);
                    }
                }
            }
            ReadRequest::Close { files, .. } => {
                for file in files {
                    assert!(self.unlent.contains_key(file), "closed what is not open");
                    assert!(!self.closing.contains(file), "closed twice");
                    self.closing.push(*file);
                }
            }
        }
    }

    /// The client opened a file: this much of it is to be lent.
    pub fn opened(&mut self, file: FileId, size: u64, wanted: ExtentSet) {
        self.sizes.insert(file, size);
        self.unlent.insert(file, wanted);
    }

    /// The file is over, or begun again.
    pub fn ended(&mut self, file: FileId) {
        self.unlent.remove(&file);
        self.closing.retain(|other| *other != file);
    }

    /// Notes what is said. Returns whether it may not be.
    pub fn says(&mut self, reply: &ReadReply) -> bool {
        match reply {
            ReadReply::Lease(lease) => {
                let rails = self.named.remove(&lease.window).unwrap_or_default();
                self.nameless |= self.with_rails && rails.is_empty();
                let mut wrong = lease.pieces.is_empty();
                for piece in &lease.pieces {
                    let grains = piece.extent.len.div_ceil(GRAIN_BYTES) as usize;
                    wrong |= piece.digests.len() != grains || !self.lend(piece.file, piece.extent);
                }
                let (region, pieces) = (lease.region, lease.pieces.clone());
                let lent = Lent { region, rails, pieces, holes: None };
                self.lent.insert(lease.window, lent).is_some() || wrong
            }
            ReadReply::Holes(WindowHoles { window, holes }) => {
                let mut wrong = holes.extents.is_empty();
                for extent in &holes.extents {
                    wrong |= !self.lend(holes.file, *extent);
                }
                let region = Region { key: 0, base: 0 };
                let holes = Some(holes.clone());
                let lent = Lent { region, rails: Vec::new(), pieces: Vec::new(), holes };
                self.lent.insert(*window, lent).is_some() || wrong
            }
            ReadReply::Rails(WindowRails { window, regions }) => {
                self.named.insert(*window, regions.clone());
                false
            }
            ReadReply::Opened { files } => {
                let mut wrong = false;
                for (file, _) in files {
                    match self.opening.iter().position(|it| it.file == *file) {
                        Some(place) => drop(self.opening.swap_remove(place)),
                        None => wrong = true,
                    }
                }
                wrong
            }
            ReadReply::Closed { files } => {
                let mut wrong = false;
                for (file, _) in files {
                    match self.closing.iter().position(|it| it == file) {
                        Some(place) => {
                            self.closing.swap_remove(place);
                        }
                        None => wrong = true,
                    }
                }
                wrong
            }
            ReadReply::Failed { .. } => false,
        }
    }

    /// Lends a range, if it may: whole grains of an open file that were not lent.
    fn lend(&mut self, file: FileId, extent: Extent) -> bool {
        let Some(size) = self.sizes.get(&file) else { return false };
        let whole = extent.offset.is_multiple_of(GRAIN_BYTES)
            && (extent.len.is_multiple_of(GRAIN_BYTES) || extent.end() == Some(*size));
        let unlent = self.unlent.get_mut(&file);
        whole && extent.len > 0 && unlent.is_some_and(|unlent| unlent.take(extent))
    }

    fn slips(&self, draw: &mut Draw<'_>, times: u64) -> bool {
        !self.honest && draw.once_in(times)
    }

    fn answer<T>(&self, value: T, draw: &mut Draw<'_>) -> Result<T, Fault> {
        if self.honest { Ok(value) } else { draw.result(value) }
    }

    /// What it could well say next, if there is anything.
    pub fn likely(&mut self, draw: &mut Draw<'_>) -> Vec<ReadReply> {
        match draw.up_to(7) {
            0 => self.open(draw),
            1..=3 => self.lease(draw),
            4 => self.name_holes(draw),
            5 if self.slips(draw, 8) => {
                vec![ReadReply::Failed { file: draw.file(), fault: draw.fault() }]
            }
            _ => self.close(draw),
        }
    }

    /// What an honest server says next: whatever is due.
    pub fn due(&mut self, draw: &mut Draw<'_>) -> Vec<ReadReply> {
        let steps = [Self::open, Self::close, Self::name_holes, Self::lease];
        let said = steps.into_iter().map(|step| step(self, draw));
        said.into_iter().find(|said| !said.is_empty()).unwrap_or_default()
    }

    fn open(&mut self, draw: &mut Draw<'_>) -> Vec<ReadReply> {
        let last = self.opening.len().checked_sub(1);
        let Some(last) = last else { return Vec::new() };
        let OpenFile { file, have, .. } = &self.opening[draw.up_to(last as u64) as usize];
        let size = match (have.is_empty(), draw.up_to(3)) {
            (false, 0..=2) => super::PARTLY_HAD,
            (_, 0) => draw.up_to(GRAIN_BYTES),
            (_, 1) => draw.up_to(9) * GRAIN_BYTES + draw.up_to(GRAIN_BYTES),
            _ => draw.up_to(9) * GRAIN_BYTES,
        };
        let size = if self.slips(draw, 32) { draw.any() } else { size };
        let (mtime_ns, version) = (i64::from(self.slips(draw, 4)), u64::from(!draw.once_in(4)));
        let info =
            FileInfo { size, mode: 0o644, mtime_ns, allocated: size, version: Some(version) };
        vec![ReadReply::Opened { files: vec![(*file, self.answer(info, draw))] }]
    }

    fn close(&mut self, draw: &mut Draw<'_>) -> Vec<ReadReply> {
        let last = self.closing.len().checked_sub(1);
        let Some(last) = last else { return Vec::new() };
        let mut file = self.closing[draw.up_to(last as u64) as usize];
        if self.slips(draw, 32) {
            file = draw.file();
        }
        vec![ReadReply::Closed { files: vec![(file, self.answer(None, draw))] }]
    }

    /// Files of which something is to be lent, in a steady order. What the client closes may be
    /// lent while that is on the way.
    fn wanting(&self, draw: &mut Draw<'_>) -> Vec<FileId> {
        let late = self.slips(draw, 4);
        let open = self.unlent.iter().filter(|(file, _)| late || !self.closing.contains(file));
        let wanting = open.filter(|(_, unlent)| !unlent.is_empty());
        let mut wanting: Vec<FileId> = wanting.map(|(file, _)| *file).collect();
        wanting.sort_unstable();
        wanting
    }

    /// The first range of a file that is not lent, some of it; or one that is.
    fn next(&self, file: FileId, draw: &mut Draw<'_>) -> Option<Extent> {
        let first = self.unlent.get(&file)?.iter().next()?;
        if self.slips(draw, 32) && first.offset > 0 {
            return Some(Extent::new(first.offset - GRAIN_BYTES, GRAIN_BYTES));
        }
        let most = (1 + draw.up_to(8)) * GRAIN_BYTES;
        Some(Extent::new(first.offset, first.len.min(most)))
    }

    fn window(&mut self, draw: &mut Draw<'_>) -> WindowId {
        if self.slips(draw, 64) {
            let mut lent: Vec<WindowId> = self.lent.keys().copied().collect();
            lent.sort_unstable();
            return draw.take(&mut lent).unwrap_or(WindowId(0));
        }
        self.windows += 1;
        WindowId(FIRST_LIKELY_WINDOW + self.windows)
    }

    fn lease(&mut self, draw: &mut Draw<'_>) -> Vec<ReadReply> {
        let mut wanting = self.wanting(draw);
        let mut pieces = Vec::new();
        for _ in 0..=draw.up_to(3) {
            let Some(file) = draw.take(&mut wanting) else { break };
            if self.honest && self.sizes[&file] > SIZE_MAX {
                let fault = Fault::new(Code::Limit, "too long to be tried");
                return vec![ReadReply::Failed { file, fault }];
            }
            let extent = match self.slips(draw, 64) {
                true => draw.extent(),
                false => self.next(file, draw).expect("it wants something"),
            };
            let mut digests: Vec<Digest> = (extent.offset / GRAIN_BYTES..)
                .take(extent.len.div_ceil(GRAIN_BYTES).min(64) as usize)
                .map(|grain| Digest([grain as u8; 32]))
                .collect();
            if self.slips(draw, 64) {
                digests.pop();
            }
            pieces.push(Piece { file, extent, digests });
        }
        if pieces.is_empty() && !self.slips(draw, 64) {
            return Vec::new();
        }
        let (window, region) = (self.window(draw), draw.region());
        let mut said = Vec::new();
        if self.with_rails && !self.slips(draw, 64) {
            let regions = vec![Region { key: 99, base: draw.region().base ^ 4096 }];
            said.push(ReadReply::Rails(WindowRails { window, regions }));
        }
        said.push(ReadReply::Lease(Lease { window, region, pieces }));
        said
    }

    fn name_holes(&mut self, draw: &mut Draw<'_>) -> Vec<ReadReply> {
        let mut wanting = self.wanting(draw);
        let Some(file) = draw.take(&mut wanting).filter(|_| draw.once_in(3)) else {
            return Vec::new();
        };
        let mut extents = vec![self.next(file, draw).expect("it wants something")];
        if self.slips(draw, 32) {
            extents = draw.list(3, Draw::extent);
        }
        if self.slips(draw, 64) {
            extents.extend(extents.clone());
        }
        let window = self.window(draw);
        vec![ReadReply::Holes(WindowHoles { window, holes: Holes { file, extents } })]
    }
}
