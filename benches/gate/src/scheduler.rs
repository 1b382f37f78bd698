//! The reading machines of both sides, answered at once: one large file over many
//! links, and many small files that travel in batches.

use std::time::Duration;
use verbatim_proto::message::{FileId, FileInfo, LinkId, Region};
use verbatim_proto::read::{
    ClientEffect, ClientOptions, Outcome, PieceOutcome, Prepared, ReadClient, ReadServer,
    ServerEffect,
};
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, GRAIN_BYTES};
use verbatim_proto::{Digest, Survey, WirePath};

const LINKS: u16 = 8;
const SLOTS: u16 = 3;

/// Rounds until there must be an end.
const ROUNDS_MAX: usize = 1 << 20;

/// One file of many chunks.
pub fn large() {
    copy(1, 2 << 30);
}

/// Many files of one grain.
pub fn small() {
    copy(4000, 4096);
}

fn copy(files: u32, size: u64) {
    let now = Duration::ZERO;
    let mut client = ReadClient::new(ClientOptions {
        chunk_bytes: CHUNK_BYTES_DEFAULT,
        slots_per_link: SLOTS,
        timeout: Duration::from_secs(60),
        describe: false,
    });
    let mut server = ReadServer::new();
    for index in 0..LINKS {
        client.link_up(LinkId { index, epoch: 0 });
    }
    let (mut opened, mut finished) = (0, 0);
    for round in 0.. {
        assert!(round < ROUNDS_MAX, "no end in sight");
        while opened < files && client.room() > 0 {
            let path = format!("data/{opened:06}");
            let path = WirePath::parse(path.as_bytes()).expect("plain");
            client.open(FileId(opened), path, None, now);
            opened += 1;
        }
        client.advance(now);
        while let Some(effect) = client.next_effect() {
            match effect {
                ClientEffect::Send(request) => server.request(request),
                ClientEffect::Fetch(fetch) => {
                    let verified = vec![PieceOutcome::Verified; fetch.chunk.pieces.len()];
                    client.fetched(fetch.link, fetch.slot, Outcome::Landed(verified), now);
                }
                ClientEffect::Finished { .. } => finished += 1,
                ClientEffect::Opened { .. } => {}
                other => panic!("a perfect network asks for {other:?}"),
            }
        }
        while let Some(effect) = server.next_effect() {
            answer(&mut server, &mut client, effect, size, now);
        }
        if finished == files {
            return;
        }
    }
}

fn answer(
    server: &mut ReadServer,
    client: &mut ReadClient,
    effect: ServerEffect,
    size: u64,
    now: Duration,
) {
    match effect {
        ServerEffect::Send(reply) => client.reply(reply, now),
        ServerEffect::Open(files) => {
            let info = FileInfo { size, mode: 0o644, mtime_ns: 0, allocated: size, version: None };
            let answer = |file: FileId| (file, Ok((info, Survey::dense(size))));
            server.opened(files.iter().map(|file| answer(file.file)).collect());
        }
        ServerEffect::Prepare(prepare) => {
            let grains = |len: u64| len.div_ceil(GRAIN_BYTES) as usize;
            let pieces = prepare.pieces.iter();
            let pieces = pieces.map(|(_, extent)| Ok(vec![Digest([0; 32]); grains(extent.len)]));
            let region = Some(Region { key: 1, base: 0 });
            let answer = Prepared { region, rails: Vec::new(), pieces: pieces.collect() };
            server.prepared(prepare.window, answer);
        }
        ServerEffect::Close(files) => {
            server.closed(files.into_iter().map(|(file, _)| (file, Ok(None))).collect());
        }
        ServerEffect::Retire(_) => {}
        other => panic!("whole files ask for {other:?}"),
    }
}
