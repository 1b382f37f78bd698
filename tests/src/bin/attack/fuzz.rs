//! Attack: authenticated sessions whose frames are damaged: flipped bits, ends cut off,
//! frames twice or in another order, wrong lengths, on control and on data connections. All
//! that is random follows from `--seed`. Fails when the server dies or panics, when an honest
//! client beside it is not served, or when memory does not come back.

use crate::Flags;
use crate::table::Table;
use crate::victim::{COPY_MAX, Victim, crowd};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use verbatim_control::ClientKey;
use verbatim_fabric::tcp::JOIN_MAGIC;
use verbatim_proto::message::{
    CreateFile, FileInfo, LinkAnswer, LinkOffer, OpenFile, ReadReply, ReadRequest, WriteReply,
    WriteRequest,
};
use verbatim_proto::mirror::TreeScan;
use verbatim_proto::units::CHUNK_BYTES_DEFAULT;
use verbatim_proto::{
    ClientMessage, FileId, LinkId, Look, MirrorRequest, Region, Scan, ServerMessage, WindowId,
    WirePath, wire,
};
use verbatim_tests::dice::Dice;
use verbatim_tests::frames::{Frames, connect_from};
use verbatim_tests::hostile::client_message;

/// Sessions at a time, each from an address of its own.
const AT_A_TIME: u8 = 6;

/// Messages of a session, at most.
const MESSAGES_MAX: usize = 60;

/// Bytes that one message is drawn from.
const DRAWN_BYTES: usize = 96;

/// How long a session that waits for an answer goes on.
const SILENT_MAX: Duration = Duration::from_millis(50);

/// How long the sessions of one enemy may take, and are then ended.
const SESSION_MAX: Duration = Duration::from_secs(5);

/// How much more memory the server may have when all have left: what an allocator keeps.
const KEPT_MIB_MAX: f64 = 256.0;

/// How often the log is read.
const READ_EVERY: Duration = Duration::from_secs(10);

/// What was done.
#[derive(Default)]
struct Counts {
    sessions: AtomicUsize,
    frames: AtomicUsize,
    damaged: AtomicUsize,
}

pub fn run(flags: &Flags) -> Table {
    let victim = Victim::start(flags, 8 << 20);
    let mut table = victim.table("fuzz");
    let counts = Arc::new(Counts::default());
    let mut copies = vec![victim.copy("small")];
    let before = victim.memory_mib();
    table.row("seed", flags.seed as f64, "");
    let runtime = crowd();
    for enemy in 0..AT_A_TIME {
        let (to, key, seed, counts) =
            (victim.serve.address, victim.key.clone(), flags.seed, counts.clone());
        runtime.spawn(async move {
            let from = Ipv4Addr::new(127, 0, 0, 2 + enemy);
            for number in 0.. {
                let dice = Dice::new(&format!("fuzz {enemy} {number}"), seed);
                let session = session(from, to, &key, dice, &counts);
                let _ = tokio::time::timeout(SESSION_MAX, session).await;
                counts.sessions.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let served = |name| {
        let seconds = victim.copy(name);
        assert!(seconds < COPY_MAX.as_secs_f64(), "seed {}: {}", flags.seed, victim.serve.log());
        seconds
    };
    let (begin, mut read, mut most) = (Instant::now(), Instant::now(), before);
    while begin.elapsed() < Duration::from_secs(flags.seconds) {
        copies.push(served("small"));
        most = most.max(victim.memory_mib());
        if read.elapsed() >= READ_EVERY {
            read = Instant::now();
            check_log(&victim, flags.seed);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    runtime.shutdown_background();
    copies.push(served("large"));
    check_log(&victim, flags.seed);
    std::thread::sleep(Duration::from_secs(flags.seconds.min(10)));
    let after = victim.memory_mib();
    for (what, count) in [
        ("sessions", &counts.sessions),
        ("frames that were sent", &counts.frames),
        ("of these damaged", &counts.damaged),
    ] {
        table.row(what, count.load(Ordering::Relaxed) as f64, "");
    }
    table.row("copies of an honest client", copies.len() as f64, "");
    table.row("the slowest of them", copies.iter().copied().fold(0.0, f64::max), "s");
    for (what, mib) in [("before", before), ("at most", most), ("after", after)] {
        table.row(format!("memory {what}"), mib.round(), "MiB");
    }
    let seed = flags.seed;
    assert!(after < before + KEPT_MIB_MAX, "seed {seed}: {before} MiB became {after} MiB");
    table
}

/// Fails when the server says that it panicked.
fn check_log(victim: &Victim, seed: u64) {
    let log = victim.serve.log();
    let found = log.lines().find(|line| line.contains("panicked"));
    assert!(found.is_none(), "seed {seed}: {found:?}; the log:\n{log}");
}

/// One session.
async fn session(
    from: Ipv4Addr,
    to: SocketAddr,
    key: &ClientKey,
    mut dice: Dice,
    counts: &Counts,
) -> io::Result<()> {
    let stream = connect_from(from, to).await?;
    let mut frames = Frames::enter(stream, key, CHUNK_BYTES_DEFAULT).await?;
    let (mut data, mut regions) = (Vec::new(), Vec::new());
    let (mut last, mut windows, mut request) = (Vec::new(), Vec::new(), 100);
    let count = 1 + dice.below(MESSAGES_MAX);
    for number in 0..count {
        let message = match number {
            0..2 => {
                let link = LinkId { index: number as u16, epoch: 0 };
                ClientMessage::Attach { link, offer: LinkOffer::Tcp }
            }
            2 => ClientMessage::Read(open(&[(9, "export/large"), (10, "export/small")])),
            3 => ClientMessage::Write(create(11, &format!("in/{}", dice.below(4)))),
            _ if dice.once_in(2) => sensible(&mut dice, &mut windows, &mut request),
            _ => {
                let bytes: Vec<u8> = (0..DRAWN_BYTES).map(|_| dice.roll() as u8).collect();
                client_message(&bytes)
            }
        };
        let frame = wire::encode(&message).map_err(io::Error::other)?;
        let is_damaged = number >= 2 && dice.once_in(10);
        let bytes = if is_damaged { damage(&mut dice, &frame, &last) } else { frame.clone() };
        last = frame;
        frames.write(&bytes).await?;
        counts.frames.fetch_add(1, Ordering::Relaxed);
        counts.damaged.fetch_add(usize::from(is_damaged), Ordering::Relaxed);
        while let Ok(heard) = tokio::time::timeout(SILENT_MAX, frames.answers.recv()).await {
            let heard = heard.map_err(io::Error::other)?;
            let heard = heard.ok_or(io::ErrorKind::UnexpectedEof)?;
            if let ServerMessage::Attached { answer: Ok(LinkAnswer::Tcp { secret }), .. } = &heard {
                let mut stream = connect_from(from, to).await?;
                stream.write_all(&[&JOIN_MAGIC[..], &secret.0].concat()).await?;
                data.push(stream);
            }
            regions_of(&heard, &mut regions);
            if let ServerMessage::Read(ReadReply::Lease(lease)) = &heard {
                windows.push(lease.window);
            }
            if dice.once_in(4) {
                break;
            }
        }
        if let Some((region, tag, bytes)) = regions.pop()
            && !data.is_empty()
        {
            let at = dice.below(data.len());
            move_bytes(&mut dice, &mut data[at], (region, tag, bytes)).await?;
            counts.frames.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn path(text: &str) -> WirePath {
    WirePath::parse(text.as_bytes()).expect("plain")
}

fn open(files: &[(u32, &str)]) -> ReadRequest {
    let file = |&(number, at): &(u32, &str)| OpenFile {
        file: FileId(number),
        path: path(at),
        have: Vec::new(),
    };
    ReadRequest::Open { files: files.iter().map(file).collect() }
}

fn create(number: u32, at: &str) -> WriteRequest {
    let (size, allocated) = (4 << 20, 4 << 20);
    let info = FileInfo { size, mode: 0o644, mtime_ns: 0, allocated, version: None };
    let create = CreateFile { file: FileId(number), path: path(at), info, stream: false };
    WriteRequest::Create { files: vec![create] }
}

/// A message that an honest client could send, which keeps the session alive.
fn sensible(dice: &mut Dice, windows: &mut Vec<WindowId>, request: &mut u32) -> ClientMessage {
    *request += 1;
    let request = *request;
    match dice.below(6) {
        0 if !windows.is_empty() => {
            let windows = vec![windows.swap_remove(dice.below(windows.len()))];
            ClientMessage::Read(ReadRequest::Release { windows })
        }
        0 | 1 => {
            let paths = vec![path("export/links/3"), path("in"), path("export/small")];
            ClientMessage::Stat { request, look: Look { follow: dice.once_in(2), paths } }
        }
        2 => {
            let (path, recursive) = (path("export/links"), dice.once_in(2));
            ClientMessage::Scan { request, scan: Scan { path, recursive, ..Scan::default() } }
        }
        3 => ClientMessage::Read(open(&[(request, "export/small")])),
        4 => ClientMessage::Write(create(request, &format!("in/{}", dice.below(9)))),
        _ => {
            let walk = TreeScan { path: path("export/links"), ..TreeScan::default() };
            ClientMessage::Mirror(MirrorRequest::Walk { request, walk })
        }
    }
}

/// Notes what memory a message tells of: where, the tag, and how much.
fn regions_of(message: &ServerMessage, regions: &mut Vec<(Region, u32, u32)>) {
    match message {
        ServerMessage::Read(ReadReply::Lease(lease)) => {
            let bytes: u64 = lease.pieces.iter().map(|piece| piece.extent.len).sum();
            regions.push((lease.region, 0, bytes as u32));
        }
        ServerMessage::Write(WriteReply::Granted { grants, .. }) => {
            regions.extend(grants.iter().map(|it| (it.region, it.tag.0, it.bytes)));
        }
        _ => {}
    }
}

/// Damages a frame; the one before it is sent again, or behind it.
fn damage(dice: &mut Dice, frame: &[u8], last: &[u8]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    match dice.below(6) {
        0 => {
            for _ in 0..1 + dice.below(4) {
                let at = dice.below(bytes.len());
                bytes[at] ^= 1 << dice.below(8);
            }
        }
        1 => bytes.truncate(dice.below(bytes.len())),
        2 => return [frame, frame].concat(),
        3 => return [frame, last].concat(),
        4 => {
            let length = [0, 1, 1 << 20, (1 << 20) + 1, u32::MAX, dice.roll() as u32];
            let length = length[dice.below(length.len())];
            bytes[..4].copy_from_slice(&length.to_le_bytes());
        }
        _ => {
            // A body of the right length, of any bytes behind the kind of message.
            for byte in bytes.iter_mut().skip(5) {
                *byte = dice.roll() as u8;
            }
        }
    }
    bytes
}

/// Reads or writes memory of the server over a data connection, seldom as it should be.
async fn move_bytes(
    dice: &mut Dice,
    stream: &mut TcpStream,
    (region, tag, bytes): (Region, u32, u32),
) -> io::Result<()> {
    let kind = if dice.once_in(6) { dice.roll() as u8 } else { [1, 2, 3][dice.below(3)] };
    let len = if dice.once_in(4) { dice.roll() as u32 } else { bytes };
    let (mut key, mut base) = (region.key, region.base);
    if dice.once_in(6) {
        key ^= 1 << dice.below(64);
    }
    if dice.once_in(6) {
        base = base.wrapping_add(dice.roll() as u64);
    }
    let mut header = [0; 40];
    header[0] = kind;
    header[4..8].copy_from_slice(&len.to_le_bytes());
    header[8..12].copy_from_slice(&tag.to_le_bytes());
    header[16..24].copy_from_slice(&(dice.roll() as u64).to_le_bytes());
    header[24..32].copy_from_slice(&key.to_le_bytes());
    header[32..40].copy_from_slice(&base.to_le_bytes());
    stream.write_all(&header).await?;
    if kind > 1 {
        // Often less than was announced.
        let some = dice.below(len.min(1 << 20) as usize + 1);
        let bytes = vec![dice.roll() as u8; some];
        let _ = tokio::time::timeout(SILENT_MAX, stream.write_all(&bytes)).await;
    }
    let mut answer = vec![0; 64 << 10];
    let _ = tokio::time::timeout(SILENT_MAX, stream.read(&mut answer)).await;
    Ok(())
}
