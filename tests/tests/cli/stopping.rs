//! How a server stops: at once when it is idle, after its copies when it is not.
//! How copies are cut short, and go on, is in `resuming`.

use crate::process::{Home, Running, Serve, Signal, contents, seen, wait_for};
use crate::{World, bytes, names, text};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a copy may take to write its first bytes.
pub(crate) const BEGIN_MAX: Duration = Duration::from_secs(20);

/// Makes a file whose copy takes the time of hashing `gib` GiB of zeros, and hardly any disk:
/// behind its beginning is a hole.
pub(crate) fn make_sparse(path: &Path, gib: u64) {
    fs::write(path, bytes(gib, 8 << 20)).expect("a file");
    let file = fs::OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(gib << 30)).expect("a hole");
}

/// Waits until the first bytes have landed in a folder that was empty.
#[track_caller]
pub(crate) fn wait_for_bytes(copy: &mut Running, folder: &Path) {
    wait_for("the copy has begun: a file in its target has blocks", BEGIN_MAX, || {
        copy.assert_runs("the copy ended before it was looked at");
        let blocks = |name: &String| fs::metadata(folder.join(name)).map_or(0, |m| m.blocks());
        let done = names(folder).iter().any(|name| blocks(name) > 0);
        seen(done, (contents(folder), copy.report()))
    });
}

#[test]
fn an_idle_server_stops_at_once_and_takes_its_door_away() {
    let dir = tempfile::tempdir().unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        // Its cache is closed in time, whoever else flushes.
        let home = Arc::new(Home::in_memory());
        let mut serve = Serve::of(&home, "127.0.0.1:0", &[dir.path()]);
        let doors = home.state().join("local");
        assert_eq!(names(&doors).len(), 1);
        let begin = Instant::now();
        serve.signal(signal);
        serve.said(" stopped");
        assert_eq!(serve.end(), Some(0));
        assert!(begin.elapsed() < Duration::from_secs(3), "it took {:?}", begin.elapsed());
        assert!(names(&doors).is_empty());
    }
}

#[test]
fn a_running_download_may_finish_when_the_server_stops() {
    let World { serve, dir } = World::in_memory();
    fs::write(dir.path().join("data/big"), bytes(3, DRAINED_BYTES)).unwrap();
    let out = dir.path().join("out");
    let copy = serve.start_cp(&["--bwlimit", "4M", &serve.at("data/big"), &text(&out)]);
    finishes_while_draining(serve, copy, &out);
}

#[test]
fn a_running_upload_may_finish_when_the_server_stops() {
    let World { serve, dir } = World::in_memory();
    let big = dir.path().join("big");
    fs::write(&big, bytes(3, DRAINED_BYTES)).unwrap();
    let copy = serve.start_cp(&["--bwlimit", "4M", &text(&big), &serve.at("in")]);
    finishes_while_draining(serve, copy, &dir.path().join("in"));
}

/// What a copy takes four seconds for at 4 MiB/s, wherever: a server waits ten for it. It is
/// long enough to have a name from its first byte on.
const DRAINED_BYTES: usize = 16 << 20;

/// Stops the server in the middle of a copy of `big` into a folder that was empty.
/// Links that are still on their way are made all the same; new clients are sent away.
fn finishes_while_draining(mut serve: Serve, mut copy: Running, folder: &Path) {
    wait_for_bytes(&mut copy, folder);
    serve.signal(Signal::TERM);
    let line = serve.said(" draining ");
    assert!(!line.contains("sessions=0"), "the copy was over too soon: {line}");
    serve.cp(&["--list", &serve.at("data")]).refused(3, &["the server is stopping"]);
    copy.end().done();
    assert_eq!(serve.end(), Some(0));
    assert_eq!(names(folder), ["big"]);
    assert_eq!(fs::metadata(folder.join("big")).expect("it is there").len(), DRAINED_BYTES as u64);
}
