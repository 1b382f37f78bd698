//! Attack: 1,100 connections of eleven addresses that shake hands, announce a greeting and
//! send all of it but its end. A server that takes no frame of 1 MiB before the welcome is
//! sent frames of 4 KiB. Measures the memory of the server.

use crate::Flags;
use crate::table::Table;
use crate::victim::{Victim, crowd};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use verbatim_proto::units::FRAME_BYTES_MAX;
use verbatim_tests::frames::{Frames, connect_from};

/// Connections of each address: as many as may shake hands in a second.
const PER_ADDRESS: usize = 100;

/// All of them.
const STRANGERS: usize = 1_100;

/// A frame that is taken from anybody.
const SMALL_BYTES: usize = 4 << 10;

/// How soon a server that takes no frame of 1 MiB hangs up.
const REFUSED_WITHIN: Duration = Duration::from_secs(3);

/// How long a handshake may take.
const SHAKE_MAX: Duration = Duration::from_secs(20);

pub fn run(flags: &Flags) -> Table {
    let victim = Victim::start(flags, 1 << 20);
    let mut table = victim.table("greetings");
    let announced = crowd().block_on(taken(victim.serve.address));
    let sent = Arc::new(AtomicUsize::new(0));
    victim.measure_memory(&mut table, "greetings", |look| {
        let runtime = crowd();
        for stranger in 0..STRANGERS {
            let from = Ipv4Addr::new(127, 0, 0, 2 + (stranger / PER_ADDRESS) as u8);
            let to = victim.serve.address;
            runtime.spawn(greet(from, to, announced, sent.clone()));
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(flags.seconds) {
            look();
            std::thread::sleep(Duration::from_millis(20));
        }
        runtime.shutdown_background();
    });
    table.row("a greeting that is taken", announced as f64, "bytes");
    table.row("greetings that were sent", sent.load(Ordering::Relaxed) as f64, "");
    table
}

/// A greeting without its end.
fn greeting(announced: usize) -> Vec<u8> {
    let mut bytes = vec![1; 4 + announced - 16];
    bytes[..4].copy_from_slice(&(announced as u32).to_le_bytes());
    bytes
}

/// How long a greeting is that the server waits for the end of.
async fn taken(to: SocketAddr) -> usize {
    let stream = connect_from(Ipv4Addr::new(127, 0, 0, 2), to).await.expect("it listens");
    let (mut frames, _) = Frames::shake(stream).await.expect("it shakes hands");
    let _ = frames.write(&greeting(FRAME_BYTES_MAX)).await;
    let answer = tokio::time::timeout(REFUSED_WITHIN, frames.answers.recv()).await;
    if answer.is_err() { FRAME_BYTES_MAX } else { SMALL_BYTES }
}

/// One stranger, who comes again when it is sent away.
async fn greet(from: Ipv4Addr, to: SocketAddr, announced: usize, sent: Arc<AtomicUsize>) {
    loop {
        let shaken = async { Frames::shake(connect_from(from, to).await?).await };
        if let Ok(Ok((mut frames, _))) = tokio::time::timeout(SHAKE_MAX, shaken).await {
            let is_sent = frames.write(&greeting(announced)).await.is_ok();
            sent.fetch_add(usize::from(is_sent), Ordering::Relaxed);
            let _ = frames.answers.recv().await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
