//! Whole messages of a client, of every kind, as an enemy with a token could send them: of
//! the right form, about names that are there and others, with any numbers. For a server
//! that is attacked over its socket, where a target of the fuzzer sees no answer.

use super::draw::Draw;
use super::messages::{read_request, write_request};
use verbatim_proto::message::{EntryKind, LinkOffer, NewEntry, ReadRequest, WriteRequest};
use verbatim_proto::mirror::{Edit, TreeScan};
use verbatim_proto::probing::ProbeRequest;
use verbatim_proto::{
    Changes, ClientMessage, Look, MirrorRequest, Scan, Twin, Watch, WatchRequest, WirePath,
};

/// Names of an export to read and of one to write to; some are not there.
const PATHS: &[&str] = &[
    "",
    "export",
    "export/small",
    "export/large",
    "export/links",
    "export/links/7",
    "export/deep",
    "export/deep/x/x",
    "export/none",
    "in",
    "in/a",
    "in/a/b",
    "in/b",
    "in/small",
    "other/x",
];

/// Patterns, of scans and of filters of a tree.
const PATTERNS: &[&str] = &["*.tmp", "**/*[a-x]", "- /a/**", "+ *", "x", "[", "**/**/**/**/**"];

/// A message that any of these bytes stand for.
pub fn client_message(bytes: &[u8]) -> ClientMessage {
    let draw = &mut Draw::new(bytes);
    match draw.up_to(23) {
        0..=5 => {
            let mut asked = read_request(draw);
            if let ReadRequest::Open { files } = &mut asked {
                files.iter_mut().for_each(|file| file.path = path(draw));
            }
            ClientMessage::Read(asked)
        }
        6..=11 => {
            let mut asked = write_request(draw);
            if let WriteRequest::Create { files } = &mut asked {
                files.iter_mut().for_each(|file| file.path = path(draw));
            }
            ClientMessage::Write(asked)
        }
        12 => ClientMessage::Attach { link: draw.link(), offer: LinkOffer::Tcp },
        13 => ClientMessage::Fence { link: draw.link() },
        14 => {
            let look = Look { follow: draw.once_in(2), paths: draw.list(4, path) };
            ClientMessage::Stat { request: request(draw), look }
        }
        15 => ClientMessage::Scan { request: request(draw), scan: scan(draw) },
        16 => ClientMessage::ScanMore { request: request(draw) },
        17 => ClientMessage::Make { request: request(draw), entries: draw.list(3, entry) },
        18 => ClientMessage::Watch(watch(draw)),
        19..=21 => ClientMessage::Mirror(mirror(draw)),
        22 => ClientMessage::Probe(ProbeRequest {
            link: draw.link(),
            bytes: draw.up_to(1 << 21) as u32,
        }),
        _ if draw.once_in(2) => ClientMessage::TellTies,
        _ => ClientMessage::TellRehashed,
    }
}

fn request(draw: &mut Draw<'_>) -> u32 {
    draw.up_to(5) as u32
}

fn path(draw: &mut Draw<'_>) -> WirePath {
    let text = PATHS[draw.up_to(PATHS.len() as u64 - 1) as usize];
    if text.is_empty() {
        WirePath::root()
    } else {
        WirePath::parse(text.as_bytes()).expect("plain")
    }
}

fn pattern(draw: &mut Draw<'_>) -> Vec<u8> {
    if draw.once_in(4) {
        return draw.bytes(16);
    }
    PATTERNS[draw.up_to(PATTERNS.len() as u64 - 1) as usize].as_bytes().to_vec()
}

fn scan(draw: &mut Draw<'_>) -> Scan {
    let (recursive, follow, describe) = (draw.once_in(2), draw.once_in(4), draw.once_in(2));
    Scan { path: path(draw), recursive, follow, describe, exclude: draw.list(3, pattern) }
}

fn entry(draw: &mut Draw<'_>) -> NewEntry {
    let target = || b"../../out".to_vec();
    let kind = match draw.up_to(3) {
        0 => EntryKind::File,
        1 => EntryKind::Symlink { target: target() },
        _ => EntryKind::Folder,
    };
    let (mode, force, unfinished) = (draw.any() as u32, draw.once_in(2), draw.once_in(4));
    NewEntry { path: path(draw), kind, mode, meta: None, force, unfinished }
}

fn watch(draw: &mut Draw<'_>) -> WatchRequest {
    let request = request(draw);
    match draw.up_to(2) {
        0 => {
            let watch = Watch { path: path(draw), exclude: draw.list(2, pattern) };
            WatchRequest::Begin { request, watch }
        }
        1 => WatchRequest::More { request },
        _ => WatchRequest::End { request },
    }
}

fn tree(draw: &mut Draw<'_>) -> TreeScan {
    let avoid = draw.once_in(4).then(|| Twin { device: draw.any(), inode: draw.any() });
    TreeScan { path: path(draw), filter: draw.list(2, pattern), digests: draw.once_in(2), avoid }
}

fn edit(draw: &mut Draw<'_>) -> Edit {
    match draw.up_to(3) {
        0 => Edit::Link { path: path(draw), to: path(draw) },
        1 => Edit::Sweep { path: path(draw) },
        _ => Edit::Remove { path: path(draw), is_folder: draw.once_in(2) },
    }
}

fn mirror(draw: &mut Draw<'_>) -> MirrorRequest {
    let request = request(draw);
    match draw.up_to(9) {
        0 | 1 => MirrorRequest::Begin { request, path: path(draw), hold: draw.once_in(2) },
        2 => MirrorRequest::Walk { request, walk: tree(draw) },
        3 => MirrorRequest::WalkMore { request },
        4 => MirrorRequest::Edit { request, edits: draw.list(4, edit) },
        5 => MirrorRequest::WalkOnly { request, walk: tree(draw), only: Changes::rescan() },
        6 => MirrorRequest::Stage { request, path: path(draw), key: draw.digest() },
        7 => MirrorRequest::Publish { request, path: path(draw), changed: draw.once_in(2) },
        8 => MirrorRequest::Share { key: draw.digest() },
        _ => MirrorRequest::HabitsOf { request, path: path(draw), tries: draw.once_in(2) },
    }
}
