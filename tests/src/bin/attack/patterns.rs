//! Attack: scans of a folder 127 deep that leave out 256 patterns, each of which takes long
//! to match: four at a time in four sessions of one client, once or again and again. Measures
//! what of its rate another client keeps; quiet and attacked copies take turns.

use crate::Flags;
use crate::table::{Table, median};
use crate::victim::{Victim, crowd};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use verbatim_control::ClientKey;
use verbatim_proto::pattern::EXCLUDES_MAX;
use verbatim_proto::units::CHUNK_BYTES_DEFAULT;
use verbatim_proto::{ClientMessage, Scan, ServerMessage, WirePath};
use verbatim_tests::frames::{Frames, connect_from};

/// Sessions of the enemy, and scans that each has under way.
const SESSIONS: u8 = 4;
const SCANS: u32 = 4;

/// How long a pattern is, in folders.
const PATTERN_DEPTH: usize = 70;

/// How long the attack is under way before a copy begins.
const BEFORE: Duration = Duration::from_millis(100);

pub fn run(flags: &Flags) -> Table {
    // Long enough that starting a command counts for little.
    let mib = 128 * flags.seconds;
    let victim = Victim::start(flags, mib << 20);
    let mut table = victim.table("patterns");
    let rate = || mib as f64 / victim.copy("large");
    rate();
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    for (how, is_repeated) in [("asked once", false), ("asked again and again", true)] {
        let [asked, answered] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let (mut quiet, mut attacked) = (vec![], vec![]);
        for _ in 0..flags.rounds {
            quiet.push(rate());
            let runtime = crowd();
            for session in 0..SESSIONS {
                let from = Ipv4Addr::new(127, 0, 0, 2 + session);
                let (to, key) = (victim.serve.address, victim.key.clone());
                let counts = (asked.clone(), answered.clone());
                runtime.spawn(scan(from, to, key, counts, is_repeated));
            }
            std::thread::sleep(BEFORE);
            attacked.push(rate());
            runtime.shutdown_background();
            // What the server has begun for them ends.
            std::thread::sleep(BEFORE);
        }
        for (what, values) in [("quiet", &quiet), ("attacked", &attacked)] {
            let count = values.len();
            let what = format!("{how}: a copy of {mib} MiB, {what}");
            table.row(format!("{what}, best of {count}"), most(values), "MiB/s");
            table.row(format!("{what}, median"), median(values), "MiB/s");
        }
        let kept = [most(&attacked) / most(&quiet), median(&attacked) / median(&quiet)];
        table.row(format!("{how}: part of its rate that is kept, best"), kept[0], "");
        table.row(format!("{how}: part of its rate that is kept, median"), kept[1], "");
        for (what, count) in [("asked for", asked), ("answered", answered)] {
            let count = count.load(Ordering::Relaxed) as f64;
            table.row(format!("{how}: scans that were {what}"), count, "");
        }
    }
    table
}

/// Has scans under way, without end where they are repeated.
async fn scan(
    from: Ipv4Addr,
    to: SocketAddr,
    key: ClientKey,
    (asked, answered): (Arc<AtomicUsize>, Arc<AtomicUsize>),
    is_repeated: bool,
) -> io::Result<()> {
    let stream = connect_from(from, to).await?;
    let mut frames = Frames::enter(stream, &key, CHUNK_BYTES_DEFAULT).await?;
    let pattern = format!("**/*[qrstuvwxyza]{}", "/x".repeat(PATTERN_DEPTH)).into_bytes();
    let path = WirePath::parse(b"export/deep").expect("plain");
    let exclude = vec![pattern; EXCLUDES_MAX];
    let scan = Scan { path, recursive: true, follow: false, describe: false, exclude };
    for request in 0..SCANS {
        asked.fetch_add(1, Ordering::Relaxed);
        frames.say(&ClientMessage::Scan { request, scan: scan.clone() }).await?;
    }
    loop {
        match frames.answers.recv().await.map_err(io::Error::other)? {
            Some(ServerMessage::Page { request, done, .. }) => {
                answered.fetch_add(1, Ordering::Relaxed);
                if !done {
                    frames.say(&ClientMessage::ScanMore { request }).await?;
                } else if is_repeated {
                    asked.fetch_add(1, Ordering::Relaxed);
                    frames.say(&ClientMessage::Scan { request, scan: scan.clone() }).await?;
                }
            }
            Some(_) => {}
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
