//! What commands endure as they run on real machines: a server that is restarted under many
//! clients, clients that are killed by the dozen, disks that cannot be read any more. Nothing
//! is lost, nobody else is harmed, and nothing is left behind: descriptors, threads and memory
//! are counted before and after.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use verbatim_tests::holding::Holding;
use verbatim_tests::http::{get, series};
use verbatim_tests::place::Place;
use verbatim_tests::process::{Home, Running, Serve, Signal, contents, seen};
use verbatim_tests::process::{skip, wait_for, when};
use verbatim_tests::tree;

/// How long a server may take to forget a client that is gone.
const FORGET_MAX: Duration = Duration::from_secs(20);

/// How long threads of a pool wait for more to do, and a little.
const IDLE_THREADS_STAY: Duration = Duration::from_secs(12);

#[test]
fn a_server_that_is_restarted_under_ten_clients_loses_none_of_them() {
    const CLIENTS: usize = 10;
    let (place, serve) = Place::new();
    tree::write(&place.path("data/file"), &tree::content(1, 17 << 20));
    tree::write(&place.path("up"), &tree::content(2, 17 << 20));
    let mut copies: Vec<Running> = (0..CLIENTS)
        .map(|number| {
            let (up, out) = (place.text("up"), place.text(&format!("out/{number}")));
            let slowly = "--bwlimit=2M".to_owned();
            match number % 2 {
                0 => serve.start_cp(&[slowly, serve.at("data/file"), out]),
                _ => serve.start_cp(&[slowly, up, serve.at(&format!("in/{number}"))]),
            }
        })
        .collect();
    let parts = || [tree::parts(&place.path("out")), tree::parts(&place.path("in"))].concat();
    let what = format!("{CLIENTS} copies have begun: each has a partial file");
    wait_for(&what, Duration::from_secs(30), || {
        let begun = parts();
        let reports = copies.iter_mut().map(Running::report).collect::<Vec<_>>();
        seen(begun.len() >= CLIENTS, (begun, reports))
    });
    serve.signal(Signal::KILL);
    assert_eq!(serve.end(), None, "it was killed");
    let serve = place.serve();
    let before = Holding::of(serve.id());
    for copy in copies {
        copy.end().done();
    }
    for number in 0..CLIENTS {
        let (from, to) = match number % 2 {
            0 => ("data/file", format!("out/{number}")),
            _ => ("up", format!("in/{number}")),
        };
        assert!(fs::read(place.path(from)).unwrap() == fs::read(place.path(&to)).unwrap(), "{to}");
    }
    wait_for("no partial file is left", FORGET_MAX, || when(parts(), Vec::is_empty));
    before.comes_back(&serve);
}

#[test]
fn copies_and_killed_clients_leave_nothing_behind_in_the_server() {
    const WARM: usize = 8;
    const COPIES: usize = 32;
    let (place, serve) = Place::new();
    tree::small_files(&place.path("data/tree"), 50, 3000, 7);
    tree::write(&place.path("data/big"), &tree::content(3, 8 << 20));
    let out = place.text("out");
    let round = |number: usize| {
        let to = format!("{out}/{number}");
        serve.cp(&["-r".to_owned(), serve.at("data/tree"), to.clone()]).done();
        serve.cp(&["-r".to_owned(), to, serve.at(&format!("in/{number}"))]).done();
        // And one that dies on the way.
        let copy = [serve.at("data/big"), format!("{out}/dying"), "--bwlimit=4M".into()];
        let dying = serve.start_cp(&copy);
        std::thread::sleep(Duration::from_millis(40 + 7 * number as u64 % 60));
        dying.signal(Signal::KILL);
        assert_eq!(dying.end().code, None, "it was killed");
    };
    (0..WARM).for_each(round);
    // A pool has a thread more or less, and each thread keeps the folder it wrote to last; what
    // every round left would be one a round, at least.
    std::thread::sleep(IDLE_THREADS_STAY);
    let before = Holding::of(serve.id());
    (WARM..WARM + COPIES).for_each(round);
    let what = format!("the server has hardly more descriptors and threads than {before:?}");
    let after = wait_for(&what, FORGET_MAX, || {
        let now = Holding::of(serve.id());
        let room = COPIES / 4;
        if now.descriptors < before.descriptors + room && now.threads < before.threads + room {
            return Ok(now);
        }
        let open = fs::read_dir(format!("/proc/{}/fd", serve.id())).into_iter().flatten();
        let open = open.flatten().flat_map(|entry| fs::read_link(entry.path()));
        Err((now, open.collect::<Vec<_>>()))
    });
    let grown = after.anonymous_kib.saturating_sub(before.anonymous_kib);
    assert!(grown < 16 << 10, "{COPIES} rounds left {grown} KiB: {before:?}, {after:?}");
}

/// A disk that can be read no further than a few MiB, with an old file system on it.
struct Failing {
    dir: TempDir,
}

impl Failing {
    /// Makes one, unless this machine does not let us; then the test says why it is skipped.
    fn new(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let image = dir.path().join("image");
        File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("an image");
        fs::create_dir(dir.path().join("disk")).expect("a folder");
        let disk = Self { dir };
        let made = run("mkfs.ext4", &["-q".as_ref(), image.as_os_str()])
            && run(
                "mount",
                &["-o".as_ref(), "loop".as_ref(), image.as_ref(), disk.at("").as_ref()],
            );
        if !made {
            skip(test, "cannot mount an image (needs root, loop, mkfs.ext4)");
            return None;
        }
        Some(disk)
    }

    fn at(&self, below: &str) -> PathBuf {
        self.dir.path().join("disk").join(below)
    }

    /// From now on nothing behind its first part can be read.
    fn fail(&self) {
        rustix::fs::sync();
        fs::write("/proc/sys/vm/drop_caches", "3").expect("root may");
        let image = File::options().write(true).open(self.dir.path().join("image"));
        image.and_then(|image| image.set_len(12 << 20)).expect("cuts the image");
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        run("umount", &["-l".as_ref(), self.at("").as_ref()]);
    }
}

fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A small file at the beginning of a disk, and a large one, most of it behind.
fn fill(folder: &Path) {
    tree::write(&folder.join("good"), &tree::content(4, 64 << 10));
    rustix::fs::sync();
    tree::write(&folder.join("lost"), &tree::content(5, 40 << 20));
}

/// A server of such a disk, and a folder for what is copied from it.
fn serve_failing(test: &str) -> Option<(Failing, Serve, TempDir)> {
    let disk = Failing::new(test)?;
    fs::create_dir(disk.at("data")).expect("a folder");
    fill(&disk.at("data"));
    let exports = [format!("data={}", disk.at("data").display())];
    let serve = Serve::of(&Arc::new(Home::new()), "127.0.0.1:0", &exports);
    Some((disk, serve, tempfile::tempdir().expect("a folder")))
}

#[test]
fn what_the_disk_of_the_server_cannot_read_fails_and_the_rest_arrives() {
    let test = "what_the_disk_of_the_server_cannot_read_fails_and_the_rest_arrives";
    let Some((disk, serve, out)) = serve_failing(test) else { return };
    let to = out.path().join("all").to_str().expect("plain").to_owned();
    disk.fail();
    let copied = serve.cp(&["-r".to_owned(), serve.at("data"), to.clone()]);
    copied.refused(1, &["lost", "nput/output error"]);
    assert_eq!(fs::read(out.path().join("all/good")).expect("it arrived").len(), 64 << 10);
    assert!(!out.path().join("all/lost").exists(), "a name without its content");
    // It is served on.
    serve.cp(&[serve.at("data/good"), format!("{to}/again")]).done();
}

#[test]
fn what_was_served_before_and_can_be_read_no_more_fails_and_the_rest_arrives() {
    let test = "what_was_served_before_and_can_be_read_no_more_fails_and_the_rest_arrives";
    let Some((disk, serve, out)) = serve_failing(test) else { return };
    let to = |name: &str| out.path().join(name).to_str().expect("plain").to_owned();
    // Then its digests are kept, and it is not read before it is sent.
    std::thread::sleep(Duration::from_millis(2100));
    serve.cp(&["-r".to_owned(), serve.at("data"), to("first")]).done();
    disk.fail();
    let copied = serve.cp(&["-r".to_owned(), "-v".into(), serve.at("data"), to("all")]);
    let copied = copied.refused(1, &["lost", "nput/output error"]);
    assert!(copied.stderr.contains(", 0 links were lost"), "{copied:?}");
    let log = serve.logged("file failed", 1);
    let line = log.lines().find(|line| line.contains("file failed")).expect("just found");
    assert!(line.contains("data/lost") && line.contains("nput/output error"), "{line}");
    // Nobody altered it.
    let counted = get(serve.metrics.expect("it shows metrics"), "/metrics").body;
    let labels = "direction=\"read\",transport=\"tcp\",verdict=\"mismatched\"";
    assert_eq!(series(&counted, &format!("rdma_serve_chunks_total{{{labels}}}")), Some(0.0));
    assert_eq!(fs::read(out.path().join("all/good")).expect("it arrived").len(), 64 << 10);
    assert!(!out.path().join("all/lost").exists(), "a name without its content");
}

#[test]
fn what_the_disk_of_the_client_cannot_read_is_not_stored() {
    let test = "what_the_disk_of_the_client_cannot_read_is_not_stored";
    let Some(disk) = Failing::new(test) else { return };
    fs::create_dir(disk.at("all")).expect("a folder");
    fill(&disk.at("all"));
    disk.fail();
    let (place, serve) = Place::new();
    let from = disk.at("all").to_str().expect("plain").to_owned();
    let copied = serve.cp(&["-r".to_owned(), from, serve.at("in/all")]);
    copied.refused(1, &["lost", "nput/output error"]);
    assert_eq!(fs::read(place.path("in/all/good")).expect("it arrived").len(), 64 << 10);
    assert!(!place.path("in/all/lost").exists(), "a name without its content");
}

/// A disk whose room turns out to be less than it says, as that of a thin pool. It has no journal
/// of its own: what the kernel writes of it there is there from the beginning.
struct Thin {
    dir: TempDir,
}

impl Thin {
    /// Makes one, unless this machine does not let us; then the test says why it is skipped.
    fn new(test: &str) -> Option<Self> {
        let disk = Self { dir: tempfile::tempdir().expect("a temporary folder") };
        let (pool, image) = (disk.at("pool"), disk.at("pool/image"));
        for folder in [&pool, &disk.at("disk")] {
            fs::create_dir(folder).expect("a folder");
        }
        let small = ["-t", "tmpfs", "-o", "size=40m", "pool"].map(std::ffi::OsStr::new);
        let made = run("mount", &[&small[..], &[pool.as_os_str()]].concat()) && {
            File::create(&image).and_then(|file| file.set_len(120 << 20)).expect("an image");
            let plain =
                ["-qF", "-b", "4096", "-O", "^has_journal", "-N", "64"].map(std::ffi::OsStr::new);
            let made = run("mkfs.ext4", &[&plain[..], &[image.as_os_str()]].concat());
            let file = File::options().read(true).write(true).open(&image).expect("opens");
            let mut own = vec![0; 4 << 20];
            file.read_exact_at(&mut own, 0).expect("reads");
            file.write_all_at(&own, 0).expect("gives all of it room");
            let disk = disk.at("disk");
            let mount = ["-o", "loop,dioread_lock"].map(std::ffi::OsStr::new);
            made && run("mount", &[&mount[..], &[image.as_os_str(), disk.as_os_str()]].concat())
        };
        if !made {
            skip(test, "cannot mount an image in memory (needs root, loop, mkfs.ext4)");
            return None;
        }
        Some(disk)
    }

    fn at(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// The kernel writes what there is room for, forgets the rest, and then there is room.
    fn lose(&self) {
        rustix::fs::sync();
        fs::write("/proc/sys/vm/drop_caches", "3").expect("root may");
        let larger = ["-o", "remount,size=300m"].map(std::ffi::OsStr::new);
        assert!(run("mount", &[&larger[..], &[self.at("pool").as_os_str()]].concat()));
    }
}

impl Drop for Thin {
    fn drop(&mut self) {
        for folder in ["disk", "pool"] {
            run("umount", &["-l".as_ref(), self.at(folder).as_ref()]);
        }
    }
}

#[test]
fn what_the_disk_lost_of_a_copy_that_was_cut_short_is_fetched_again() {
    let test = "what_the_disk_lost_of_a_copy_that_was_cut_short_is_fetched_again";
    let Some(disk) = Thin::new(test) else { return };
    let (place, serve) = Place::new();
    let content = tree::content(6, 80 << 20);
    tree::write(&place.path("data/big"), &content);
    std::thread::sleep(Duration::from_millis(2100));
    let out = disk.at("disk/out");
    fs::create_dir(&out).expect("a folder");
    let command = ["--json".to_owned(), serve.at("data/big"), out.display().to_string()];
    // In order, so that where it lies is said in its inode.
    let slowly = ["--bwlimit=32M".to_owned(), "--streams=1".to_owned()];
    let mut copy = serve.start_cp(&[&slowly, &command[..]].concat());
    // More than there is room for.
    let chunks = 60;
    let what = format!("the copy has a journal of {chunks} chunks");
    let journal = wait_for(&what, Duration::from_secs(30), || {
        let entries = fs::read_dir(&out).expect("lists").flatten();
        let mut paths = entries.map(|entry| entry.path());
        let journal = paths.find(|path| path.to_string_lossy().ends_with("-journal"));
        let is_long = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|meta| meta.len() > chunks * (20 + 4 * 32 + 8))
        };
        journal.filter(is_long).ok_or_else(|| (contents(&out), copy.report()))
    });
    copy.signal(Signal::KILL);
    drop(copy.end());
    File::open(&journal).and_then(|file| file.sync_all()).expect("it has room");
    disk.lose();
    let done = serve.cp(&command).done();
    assert!(fs::read(out.join("big")).expect("it is there") == content, "zeros in its place");
    let summary: serde_json::Value =
        done.stdout.lines().last().expect("a summary").parse().expect("JSON");
    let resumed = summary["resumed_bytes"].as_u64().expect("a number");
    assert!((1..chunks << 20).contains(&resumed), "{resumed} bytes were gone on with");
}
