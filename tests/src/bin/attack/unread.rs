//! Attack: 40 clients with a token that ask about long links and read no answer; and 6,
//! of a server of their own, that begin uploads of 16 MiB chunks, fill every slot they are granted and say nothing of it.
//! Measures the memory of the server.

use crate::Flags;
use crate::table::Table;
use crate::victim::{LINKS, Victim, crowd};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use verbatim_control::ClientKey;
use verbatim_fabric::tcp::JOIN_MAGIC;
use verbatim_proto::message::{
    CreateFile, FileInfo, Grant, LinkAnswer, LinkOffer, WriteReply, WriteRequest,
};
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX};
use verbatim_proto::{ClientMessage, FileId, LinkId, Look, ServerMessage, WirePath};
use verbatim_tests::frames::{Frames, connect_from};

/// Clients that do not read.
const CLIENTS: usize = 40;

/// Messages of each. Their answers are 55 MiB, a little less than ends a session.
const LOOKS: usize = 110;

/// Uploads that never end, and links of each.
const UPLOADS: usize = 6;
const LINKS_EACH: u16 = 7;

/// How long each file is said to be.
const FILE_BYTES: u64 = 8 << 30;

/// A frame of a data connection that writes, and is notified of.
const WRITE_NOTIFY: u8 = 3;

pub fn run(flags: &Flags) -> Table {
    let victim = Victim::start(flags, 1 << 20);
    let mut table = victim.table("unread");
    let asked = Arc::new(AtomicUsize::new(0));
    let written = Arc::new(AtomicUsize::new(0));
    attack(&victim, &mut table, flags, "answers nobody reads", CLIENTS, {
        let asked = asked.clone();
        move |from, to, key| ask(from, to, key, asked.clone())
    });
    table.row("requests that were sent", asked.load(Ordering::Relaxed) as f64, "");
    drop(victim);
    let victim = Victim::start(flags, 1 << 20);
    attack(&victim, &mut table, flags, "uploads without end", UPLOADS, {
        let written = written.clone();
        move |from, to, key| upload(from, to, key, written.clone())
    });
    let mib = written.load(Ordering::Relaxed) >> 20;
    table.row("bytes that were written to slots", mib as f64, "MiB");
    table
}

/// Runs so many clients of a kind at a time for the attack's seconds, and measures.
fn attack<F: Future<Output = io::Result<()>> + Send + 'static>(
    victim: &Victim,
    table: &mut Table,
    flags: &Flags,
    what: &str,
    clients: usize,
    client: impl Fn(Ipv4Addr, SocketAddr, ClientKey) -> F,
) {
    let failed = Arc::new(AtomicUsize::new(0));
    victim.measure_memory(table, what, |look| {
        let runtime = crowd();
        for number in 0..clients {
            let from = Ipv4Addr::new(127, 0, 0, 2 + number as u8);
            let client = client(from, victim.serve.address, victim.key.clone());
            let failed = failed.clone();
            runtime.spawn(async move {
                let ended = client.await;
                failed.fetch_add(usize::from(ended.is_err()), Ordering::Relaxed);
            });
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(flags.seconds) {
            look();
            std::thread::sleep(Duration::from_millis(20));
        }
        runtime.shutdown_background();
    });
    let ended = failed.load(Ordering::Relaxed);
    table.row(format!("{what}: sessions the server ended"), ended as f64, "");
}

/// Asks, and never reads.
async fn ask(
    from: Ipv4Addr,
    to: SocketAddr,
    key: ClientKey,
    asked: Arc<AtomicUsize>,
) -> io::Result<()> {
    let stream = connect_from(from, to).await?;
    let mut frames = Frames::enter(stream, &key, CHUNK_BYTES_DEFAULT).await?;
    let path = |number| WirePath::parse(format!("export/links/{number}").as_bytes());
    let paths: Vec<_> = (0..LINKS).map(|number| path(number).expect("plain")).collect();
    for request in 0..LOOKS as u32 {
        let look = Look { follow: false, paths: paths.clone() };
        frames.say(&ClientMessage::Stat { request, look }).await?;
        asked.fetch_add(1, Ordering::Relaxed);
    }
    std::future::pending().await
}

/// Fills slots, and never says with what.
async fn upload(
    from: Ipv4Addr,
    to: SocketAddr,
    key: ClientKey,
    written: Arc<AtomicUsize>,
) -> io::Result<()> {
    let stream = connect_from(from, to).await?;
    let mut frames = Frames::enter(stream, &key, CHUNK_BYTES_MAX).await?;
    for index in 0..LINKS_EACH {
        let link = LinkId { index, epoch: 0 };
        frames.say(&ClientMessage::Attach { link, offer: LinkOffer::Tcp }).await?;
    }
    let create = |number: u8| {
        let path = format!("in/{}-{number}", from.octets()[3]);
        let path = WirePath::parse(path.as_bytes()).expect("plain");
        let (size, allocated) = (FILE_BYTES, 0);
        let info = FileInfo { size, mode: 0o644, mtime_ns: 0, allocated, version: None };
        CreateFile { file: FileId(u32::from(number)), path, info, stream: false }
    };
    let files = vec![create(1), create(2)];
    frames.say(&ClientMessage::Write(WriteRequest::Create { files })).await?;
    let mut links = std::collections::BTreeMap::new();
    loop {
        match frames.answers.recv().await.map_err(io::Error::other)? {
            Some(ServerMessage::Attached { link, answer: Ok(LinkAnswer::Tcp { secret }) }) => {
                let mut stream = connect_from(from, to).await?;
                stream.write_all(&[&JOIN_MAGIC[..], &secret.0].concat()).await?;
                let (to_write, grants) = mpsc::unbounded_channel();
                tokio::spawn(fill(stream, grants, written.clone()));
                links.insert(link, to_write);
            }
            Some(ServerMessage::Write(WriteReply::Granted { grants, .. })) => {
                for grant in grants {
                    if let Some(link) = links.get(&grant.link) {
                        let _ = link.send(grant);
                    }
                }
            }
            Some(ServerMessage::Refused(fault)) => return Err(io::Error::other(fault.text)),
            Some(_) => {}
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Writes to every slot that is granted on a link.
async fn fill(
    mut stream: TcpStream,
    mut grants: mpsc::UnboundedReceiver<Grant>,
    written: Arc<AtomicUsize>,
) {
    let bytes = vec![7; 1 << 20];
    let mut ticket = 0_u64;
    while let Some(Grant { tag, region, bytes: len, .. }) = grants.recv().await {
        let mut header = [0; 40];
        header[0] = WRITE_NOTIFY;
        header[4..8].copy_from_slice(&len.to_le_bytes());
        header[8..12].copy_from_slice(&tag.0.to_le_bytes());
        header[16..24].copy_from_slice(&ticket.to_le_bytes());
        header[24..32].copy_from_slice(&region.key.to_le_bytes());
        header[32..40].copy_from_slice(&region.base.to_le_bytes());
        ticket += 1;
        if stream.write_all(&header).await.is_err() {
            return;
        }
        let mut rest = len as usize;
        while rest > 0 {
            let some = rest.min(bytes.len());
            if stream.write_all(&bytes[..some]).await.is_err() {
                return;
            }
            written.fetch_add(some, Ordering::Relaxed);
            rest -= some;
        }
    }
    // The connection stays as long as the session.
    std::future::pending::<()>().await;
}
