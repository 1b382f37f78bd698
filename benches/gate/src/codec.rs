//! Messages as they go over the control connection: leases of windows with their
//! digests, and pages of a tree, encoded and decoded again.

use std::hint::black_box;
use verbatim_proto::message::{EntryKind, FileId, Lease, Piece, ReadReply, Region, WindowId};
use verbatim_proto::units::{GRAIN_BYTES, WINDOW_BYTES};
use verbatim_proto::wire::{PREFIX_BYTES, decode, encode};
use verbatim_proto::{Digest, Extent, Meta, Node, WirePath};

const LEASES: u64 = 64;
const PAGES: usize = 8;
const PAGE_NODES: usize = 500;

/// Encodes and decodes all of it.
pub fn run() {
    for number in 0..LEASES {
        let extent = Extent { offset: number * WINDOW_BYTES, len: WINDOW_BYTES };
        let grains = (WINDOW_BYTES / GRAIN_BYTES) as usize;
        let digests = (0..grains).map(|grain| Digest([grain as u8; 32])).collect();
        let pieces = vec![Piece { file: FileId(1), extent, digests }];
        let region = Region { key: 7, base: 1 << 40 };
        let lease = Lease { window: WindowId(number), region, pieces };
        let frame = encode(&ReadReply::Lease(lease.clone())).expect("fits a frame");
        let read: ReadReply = decode(black_box(&frame[PREFIX_BYTES..])).expect("was encoded");
        assert_eq!(read, ReadReply::Lease(lease));
    }
    for page in 0..PAGES {
        let nodes: Vec<Node> = (0..PAGE_NODES).map(|number| node(page, number)).collect();
        let frame = encode(&nodes).expect("fits a frame");
        let read: Vec<Node> = decode(black_box(&frame[PREFIX_BYTES..])).expect("was encoded");
        assert_eq!(read, nodes);
    }
}

fn node(page: usize, number: usize) -> Node {
    let path = format!("dataset/{page:04}/sample-{number:06}.jpg");
    let meta = Meta { mode: 0o644, mtime_ns: number as i64, ..Meta::default() };
    Node {
        path: WirePath::parse(path.as_bytes()).expect("plain"),
        kind: EntryKind::File,
        size: 4096,
        meta,
        twin: None,
        digest: None,
    }
}
