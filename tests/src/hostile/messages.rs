//! Messages of the read and write machines as an enemy could send them: of the
//! right form, and with any content.

use super::draw::Draw;
use verbatim_proto::message::{
    CommitFile, CreateFile, Grant, Holes, Lease, Offer, OpenFile, Piece, ReadReply, ReadRequest,
    SentChunk, Spot, SpotReply, SpotRequest, Taken, Verdict, WindowHoles, WindowRails, WriteReply,
    WriteRequest,
};
use verbatim_proto::units::{BATCH_FILES_MAX, STREAM_BYTES_MAX};
use verbatim_proto::{Extent, WirePath};

pub fn path() -> WirePath {
    WirePath::parse(b"export/file").expect("plain")
}

/// How many there are in a list: a few, or more than are allowed.
fn many(draw: &mut Draw<'_>, allowed: usize) -> u64 {
    if draw.once_in(32) { allowed as u64 + 1 } else { 4 }
}

fn piece(draw: &mut Draw<'_>) -> Piece {
    let extent = draw.extent();
    Piece { file: draw.file(), extent, digests: draw.digests(extent) }
}

fn holes(draw: &mut Draw<'_>) -> Holes {
    Holes { file: draw.file(), extents: draw.list(5, Draw::extent) }
}

pub fn read_request(draw: &mut Draw<'_>) -> ReadRequest {
    let most = many(draw, BATCH_FILES_MAX);
    match draw.up_to(3) {
        0 => ReadRequest::Open {
            files: draw.list(most, |draw| OpenFile {
                file: draw.file(),
                path: path(),
                have: draw.list(2, Draw::extent),
            }),
        },
        1 => ReadRequest::Release { windows: draw.list(most, Draw::window) },
        2 => ReadRequest::Refresh {
            window: draw.window(),
            pieces: draw.list(most, |draw| (draw.file(), draw.extent())),
        },
        _ => ReadRequest::Close { files: draw.list(most, Draw::file), describe: draw.once_in(2) },
    }
}

pub fn read_reply(draw: &mut Draw<'_>) -> ReadReply {
    match draw.up_to(6) {
        0 => ReadReply::Opened {
            files: draw.list(4, |draw| {
                let info = draw.info();
                (draw.file(), draw.result(info))
            }),
        },
        1 | 2 => ReadReply::Lease(Lease {
            window: draw.window(),
            region: draw.region(),
            pieces: draw.list(4, piece),
        }),
        3 => ReadReply::Failed { file: draw.file(), fault: draw.fault() },
        4 => ReadReply::Closed { files: draw.list(4, |draw| (draw.file(), draw.result(None))) },
        5 => ReadReply::Holes(WindowHoles { window: draw.window(), holes: holes(draw) }),
        _ => ReadReply::Rails(WindowRails {
            window: draw.window(),
            regions: draw.list(4, Draw::region),
        }),
    }
}

pub fn write_request(draw: &mut Draw<'_>) -> WriteRequest {
    let most = many(draw, BATCH_FILES_MAX);
    match draw.up_to(10) {
        0 => WriteRequest::Create {
            files: draw.list(most, |draw| {
                let (mut info, stream) = (draw.info(), draw.once_in(4));
                if stream && !draw.once_in(8) {
                    info.size = STREAM_BYTES_MAX;
                }
                CreateFile { file: draw.file(), path: path(), info, stream }
            }),
        },
        1..=3 => WriteRequest::Sent {
            chunks: draw.list(3, |draw| SentChunk { tag: draw.tag(), pieces: draw.list(4, piece) }),
        },
        4 => WriteRequest::Commit {
            files: draw.list(most, |draw| CommitFile {
                file: draw.file(),
                root: draw.digest(),
                meta: None,
            }),
        },
        5 => WriteRequest::Discard { files: draw.list(most, Draw::file) },
        6 => WriteRequest::Holes(holes(draw)),
        7 => WriteRequest::End { file: draw.file(), size: draw.size() },
        8 => WriteRequest::Spots(SpotRequest::Ask(draw.list(3, |draw| Spot {
            tag: draw.tag(),
            file: draw.file(),
            extent: draw.extent(),
        }))),
        9 => WriteRequest::Offer(Offer { basis: path(), piece: piece(draw) }),
        _ => WriteRequest::Spots(SpotRequest::Return(draw.list(3, Draw::tag))),
    }
}

pub fn write_reply(draw: &mut Draw<'_>) -> WriteReply {
    match draw.up_to(7) {
        0 => WriteReply::Created {
            files: draw.list(4, |draw| {
                let have: Vec<Extent> = draw.list(2, Draw::extent);
                (draw.file(), draw.result(have))
            }),
        },
        1 | 2 => WriteReply::Granted {
            verdicts: draw.list(3, |draw| (draw.tag(), draw.list(4, verdict))),
            grants: draw.list(4, |draw| Grant {
                tag: draw.tag(),
                link: draw.link(),
                region: draw.region(),
                bytes: if draw.once_in(4) { draw.any() as u32 } else { 1 << 20 },
            }),
        },
        3 => WriteReply::Committed { files: draw.list(4, |draw| (draw.file(), draw.result(()))) },
        4 => WriteReply::Zeroed { file: draw.file(), answer: draw.result(()) },
        5 => WriteReply::Spots(SpotReply::Taken(draw.list(4, Draw::file))),
        6 => {
            let parts = draw.list(2, Draw::extent);
            let (file, extent) = (draw.file(), draw.extent());
            WriteReply::Taken(Taken { file, extent, answer: draw.result(parts) })
        }
        _ => {
            let made = |draw: &mut Draw<'_>| {
                let (tag, region) = (draw.tag(), draw.region());
                (tag, draw.result(region))
            };
            WriteReply::Spots(SpotReply::Made(draw.list(3, made)))
        }
    }
}

/// What a driver says of a piece, or a server claims of it.
pub fn verdict(draw: &mut Draw<'_>) -> Verdict {
    match draw.up_to(5) {
        0 => Verdict::Mismatch,
        1 => Verdict::Failed(draw.fault()),
        _ => Verdict::Stored,
    }
}
