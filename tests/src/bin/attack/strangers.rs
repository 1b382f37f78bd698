//! Attack: 1,024 connections of four addresses that say nothing, or one byte after 9 s,
//! and are opened again as they are closed. Measures how long a new copy of a small file
//! takes meanwhile. Knows no protocol.

use crate::Flags;
use crate::table::{Table, median};
use crate::victim::{Victim, crowd};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Mutex;
use tokio::time::Interval;
use verbatim_tests::frames::connect_from;

/// Connections of each address.
const PER_ADDRESS: usize = 256;

/// Addresses: 127.0.0.2 and so on.
const ADDRESSES: u8 = 4;

/// When the late byte comes.
const LATE: Duration = Duration::from_secs(9);

/// How long an honest client waits before a copy, so that copies fall into every part of the time
/// that a silent connection has.
const BETWEEN: Duration = Duration::from_millis(700);

/// How long the crowd may take to be there; a server may let fewer in.
const GATHER_MAX: Duration = Duration::from_secs(3);

/// What a crowd did.
#[derive(Default)]
struct Counts {
    open: AtomicUsize,
    opened: AtomicUsize,
}

pub fn run(flags: &Flags) -> Table {
    let victim = Victim::start(flags, 1 << 20);
    let mut table = victim.table("strangers");
    let copy = |_| {
        std::thread::sleep(BETWEEN);
        victim.copy("small")
    };
    let copies = || -> Vec<f64> { (0..flags.rounds).map(copy).collect() };
    let quiet = copies();
    table.spread("a copy of 64 KiB, quiet", &quiet, "s");
    for (what, late) in [("silent connections", None), ("one byte after 9 s", Some(LATE))] {
        let (runtime, counts) = (crowd(), Arc::<Counts>::default());
        let every = tokio::time::interval;
        let pace = runtime.block_on(async { every(Duration::from_secs(1) / flags.per_second) });
        let pace = Arc::new(Mutex::new(pace));
        for stranger in 0..usize::from(ADDRESSES) * PER_ADDRESS {
            let from = Ipv4Addr::new(127, 0, 0, 2 + (stranger / PER_ADDRESS) as u8);
            let (to, pace, counts) = (victim.serve.address, pace.clone(), counts.clone());
            runtime.spawn(stand(from, to, late, pace, counts));
        }
        gather(&counts);
        let (begin, before) = (Instant::now(), counts.opened.load(Ordering::Relaxed));
        let attacked = copies();
        let opened = counts.opened.load(Ordering::Relaxed) - before;
        runtime.shutdown_background();
        table.spread(&format!("{what}: a copy"), &attacked, "s");
        table.row(format!("{what}: times as long"), median(&attacked) / median(&quiet), "");
        let rate = opened as f64 / begin.elapsed().as_secs_f64();
        table.row(format!("{what}: opened again"), rate.round(), "/s");
    }
    table
}

/// Waits until as many are there as can be.
fn gather(counts: &Counts) {
    let begin = Instant::now();
    let all = usize::from(ADDRESSES) * PER_ADDRESS;
    while counts.open.load(Ordering::Relaxed) < all && begin.elapsed() < GATHER_MAX {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One stranger, who comes again when it is sent away.
async fn stand(
    from: Ipv4Addr,
    to: SocketAddr,
    late: Option<Duration>,
    pace: Arc<Mutex<Interval>>,
    counts: Arc<Counts>,
) {
    loop {
        if let Ok(mut stream) = connect_from(from, to).await {
            counts.opened.fetch_add(1, Ordering::Relaxed);
            counts.open.fetch_add(1, Ordering::Relaxed);
            let mut answer = [0; 64];
            let is_open = match late {
                None => true,
                Some(late) => tokio::time::timeout(late, stream.read(&mut answer)).await.is_err(),
            };
            // The first byte of a handshake.
            if is_open && (late.is_none() || stream.write_all(&[0x16]).await.is_ok()) {
                while stream.read(&mut answer).await.is_ok_and(|bytes| bytes > 0) {}
            }
            counts.open.fetch_sub(1, Ordering::Relaxed);
        }
        pace.lock().await.tick().await;
    }
}
