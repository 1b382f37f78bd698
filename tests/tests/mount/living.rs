//! How a mount comes and goes: places that are refused, the background, signals,
//! umount, and a hundred times in a row.

use super::*;
use verbatim_tests::holding::Holding;
use verbatim_tests::http::{get, request, series};
use verbatim_tests::process::{Ended, binary, trials};

/// What the memory of a server may grow by while mounts come and go: less than 50 KiB for each.
const HELD_KIB_MORE_MAX: u64 = 4 << 10;

fn fill(dir: &Path) {
    fs::write(dir.join("file"), b"hello").expect("writes");
}

/// Tries to mount where that is refused.
fn refused(source: &Source, from: &str, at: &Path, cache: &Path) -> Ended {
    let words = [from, at.to_str().expect("text"), "--cache", cache.to_str().expect("text")];
    Running::start(source.home.command("rdma-mount", &words)).end()
}

#[test]
fn a_place_that_cannot_be_used_is_refused_with_what_to_do() {
    if !can_mount("a_place_that_cannot_be_used_is_refused_with_what_to_do") {
        return;
    }
    let mut source = Source::new(fill);
    let from = source.serve().at("data");
    let (dir, cache) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let cache = cache.path();
    let said = ["cannot mount on", "hint: give an empty folder"];
    refused(&source, &from, &dir.path().join("no"), cache).refused(1, &said);
    fs::write(dir.path().join("x"), b"x").expect("writes");
    refused(&source, &from, &dir.path().join("x"), cache).refused(1, &["it is not a folder"]);
    refused(&source, &from, dir.path(), cache).refused(1, &["is not empty", "hint: "]);
    let mounted = source.mount(&[]);
    refused(&source, &from, &mounted.path(""), cache).refused(1, &["is mounted already", "umount"]);
    let empty = tempfile::tempdir().expect("folder");
    let file = source.serve().at("data/file");
    refused(&source, &file, empty.path(), cache).refused(1, &["is not a folder"]);
    let nothing = source.serve().at("data/nothing");
    refused(&source, &nothing, empty.path(), cache).refused(1, &["nothing"]);
    refused(&source, "/tmp", empty.path(), cache).refused(2, &["is not on a server"]);
    mounted.end();
    source.kill();
    refused(&source, &from, empty.path(), cache).refused(3, &["cannot connect"]);
}

#[test]
fn in_the_background_it_stands_when_the_command_ends_and_umount_ends_it() {
    if !can_mount("in_the_background_it_stands_when_the_command_ends_and_umount_ends_it") {
        return;
    }
    let source = Source::new(fill);
    let (at, cache) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let log = cache.path().join("log");
    let from = source.serve().at("data");
    let words = [
        from.as_str(),
        at.path().to_str().expect("text"),
        "--cache",
        cache.path().to_str().expect("text"),
        "--log-file",
        log.to_str().expect("text"),
    ];
    Running::start(source.home.command("rdma-mount", &words)).end().done();
    // Whatever happens, it does not stay.
    let guard = Mounted { running: None, cache: Arc::new(cache), at: Some(at) };
    assert_eq!(fs::read(guard.path("file")).expect("reads"), b"hello");
    let gone = Command::new("umount").arg(guard.path("")).status().expect("umount runs");
    assert!(gone.success());
    wait_for("the daemon has released the lock of its cache", STAND_MAX, || {
        use rustix::fs::{FlockOperation, flock};
        let said = || Text(fs::read_to_string(&log).unwrap_or_default());
        let lock = fs::File::open(guard.cache.path().join("lock"));
        let lock = lock.map_err(|error| (error.to_string(), said()))?;
        let taken = flock(&lock, FlockOperation::NonBlockingLockExclusive);
        taken.map_err(|error| (error.to_string(), said()))
    });
    assert!(log.exists());
}

#[test]
fn in_the_background_it_finds_what_it_was_given_from_where_it_was_started() {
    let test = "in_the_background_it_finds_what_it_was_given_from_where_it_was_started";
    if !can_mount(test) {
        return;
    }
    let mut source = Source::new(|dir| {
        fill(dir);
        fs::write(dir.join("later"), b"again").expect("writes");
    });
    let at = tempfile::tempdir().expect("folder");
    let cache = tempfile::Builder::new().prefix("c").tempdir_in(source.home.path());
    let cache = Arc::new(cache.expect("folder"));
    let program = binary("rdma-mount");
    let mut command = source.home.command_of(program.to_str().expect("text"));
    let given = ["--cache", cache.path().file_name().expect("a name").to_str().expect("text")];
    command.arg(source.serve().at("data")).arg(at.path()).args(given);
    command.args(["--state", "state/verbatim"]).current_dir(source.home.path());
    Running::start(command).end().done();
    let guard = Mounted { running: None, cache, at: Some(at) };
    assert_eq!(fs::read(guard.path("file")).expect("reads"), b"hello");
    assert_eq!(reading::data_files(guard.cache.path()).len(), 1, "it is kept where it was said");
    // Who the server is stands in its state, which is looked at again.
    source.kill();
    source.start();
    let what = "the file later can be read: the server is reached again";
    assert_eq!(wait_for(what, STAND_MAX, || fs::read(guard.path("later"))), b"again");
}

#[test]
fn a_mount_that_is_in_use_ends_when_it_is_told_to() {
    if !can_mount("a_mount_that_is_in_use_ends_when_it_is_told_to") {
        return;
    }
    let source = Source::new(fill);
    let mounted = source.mount(&[]);
    let held = fs::File::open(mounted.path("file")).expect("opens");
    mounted.end();
    drop(held);
}

#[test]
fn a_mount_that_waits_for_its_server_ends_when_it_is_told_to() {
    if !can_mount("a_mount_that_waits_for_its_server_ends_when_it_is_told_to") {
        return;
    }
    // Takes who comes, and never says anything.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let from = format!("rdma://{}/data", silent.local_addr().expect("has one"));
    let (at, cache) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let text = |dir: &TempDir| dir.path().display().to_string();
    let words = [&from, &text(&at), "--foreground", "--cache", &text(&cache)];
    for signal in [Signal::TERM, Signal::INT] {
        let running = Running::start(Home::new().command("rdma-mount", &words));
        let held = silent.accept().expect("it comes");
        running.signal(signal);
        running.end().refused(130, &["interrupted"]);
        drop(held);
        assert!(!is_mounted(at.path()));
    }
}

/// A place for a mount, which does not stay there whatever happens.
fn place() -> (PathBuf, Mounted) {
    let at = tempfile::tempdir().expect("folder");
    let cache = Arc::new(tempfile::tempdir().expect("folder"));
    (at.path().to_owned(), Mounted { running: None, cache, at: Some(at) })
}

/// Mounts by a command that may do something to it first; it stands if it does not end.
#[track_caller]
fn begun(source: &Source, at: &Path, cache: &Path, wrapper: &[&str], flags: &[&str]) -> Running {
    let from = source.serve().at("data");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let mut words = vec![from, text(at), "--cache".into(), text(cache)];
    words.extend(flags.iter().map(|&flag| flag.to_owned()));
    let mut running =
        Running::start(source.home.again().wrapped(wrapper).command("rdma-mount", &words));
    let place = at.canonicalize().expect("it is there");
    let what = format!("something is mounted on {}, or rdma-mount ends", place.display());
    wait_for(&what, STAND_MAX, || {
        seen(is_mounted(&place) || running.has_ended(), running.report())
    });
    running
}

/// Gives a command a pipe that nobody reads.
const NOBODY_READS: [&str; 4] = [
    "sh",
    "-c",
    "f=$(mktemp -u) && mkfifo $f && exec 3<>$f 4>$f 3<&- && rm $f && exec \"$@\" >&4 4>&-",
    "sh",
];

#[test]
fn what_goes_wrong_when_a_mount_stands_leaves_none() {
    if !can_mount("what_goes_wrong_when_a_mount_stands_leaves_none") {
        return;
    }
    let source = Source::new(fill);
    let (at, guard) = place();
    let cache = guard.cache.path();
    let log = cache.join("no/such/folder/log");
    let flags = ["--log-file", log.to_str().expect("text")];
    let refused = begun(&source, &at, cache, &[], &flags).end();
    refused.refused(1, &["cannot write the log to", "no/such/folder/log"]);
    assert!(!is_mounted(&at), "it is left behind");
    // The command that was called is gone before the mount stands.
    let ended = begun(&source, &at, cache, &NOBODY_READS, &["--background"]).end();
    assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
    assert!(!is_mounted(&at), "it is left behind");
    // In the foreground it stands, whoever listens.
    let running = begun(&source, &at, cache, &NOBODY_READS, &["--foreground"]);
    assert_eq!(fs::read(guard.path("file")).expect("reads"), b"hello");
    let gone = Command::new("umount").arg(&at).status().expect("umount runs");
    assert!(gone.success());
    let ended = running.end();
    assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
}

#[test]
fn a_mount_on_a_link_goes_and_a_dead_one_behind_it_is_cleared() {
    if !can_mount("a_mount_on_a_link_goes_and_a_dead_one_behind_it_is_cleared") {
        return;
    }
    let source = Source::new(fill);
    let ((at, guard), dir) = (place(), tempfile::tempdir().expect("folder"));
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&at, &link).expect("links");
    let running = begun(&source, &link, guard.cache.path(), &[], &["--foreground"]);
    running.signal(Signal::KILL);
    running.end();
    assert!(is_mounted(&at), "a dead mount is left");
    let mut running = begun(&source, &link, guard.cache.path(), &[], &["--foreground"]);
    let file = link.join("file");
    let what = "the next mount shows the file, or rdma-mount ends";
    let alive = wait_for(what, STAND_MAX, || match fs::read(&file) {
        Err(_) if running.has_ended() => Ok(Vec::new()),
        read => read.map_err(|error| (error, running.report())),
    });
    assert_eq!(alive, b"hello", "{:?}", running.report());
    running.signal(Signal::TERM);
    running.end().done();
    assert!(!is_mounted(&at), "it is left behind");
}

#[test]
fn a_terminal_that_goes_away_ends_a_mount_unless_it_was_told_to_outlive_it() {
    if !can_mount("a_terminal_that_goes_away_ends_a_mount_unless_it_was_told_to_outlive_it") {
        return;
    }
    let source = Source::new(fill);
    let (at, guard) = place();
    let cache = guard.cache.path();
    // Whoever started the tests may have told them to outlive it.
    let told = ["env", "--default-signal=HUP"];
    let running = begun(&source, &at, cache, &told, &["--foreground"]);
    running.signal(Signal::HUP);
    running.end().done();
    assert!(!is_mounted(&at), "it is left behind");
    let mut running = begun(&source, &at, cache, &["nohup"], &["--foreground"]);
    running.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    running.assert_runs("SIGHUP ended what nohup protects");
    assert!(is_mounted(&at), "{:?}", running.report());
    assert_eq!(fs::read(guard.path("file")).expect("reads"), b"hello");
    running.signal(Signal::TERM);
    running.end().done();
    assert!(!is_mounted(&at), "it is left behind");
}

#[test]
fn the_kernel_asks_root_for_a_mebibyte_at_a_time() {
    use std::os::unix::fs::MetadataExt;
    let test = "the_kernel_asks_root_for_a_mebibyte_at_a_time";
    if !can_mount(test) {
        return;
    }
    let source = Source::new(fill);
    let mounted = source.mount(&[]);
    // Who is answered knows that it was set: nobody is before.
    let device = fs::metadata(mounted.path("")).expect("it is there").dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
    if fs::OpenOptions::new().write(true).open(&setting).is_err() {
        return skip(test, "the settings of mounts cannot be written");
    }
    assert_eq!(fs::read_to_string(&setting).expect("is told").trim(), "1024");
    mounted.end();
}

#[test]
fn a_hundred_mounts_leave_nothing_behind() {
    if !can_mount("a_hundred_mounts_leave_nothing_behind") {
        return;
    }
    let source = Source::new(fill);
    let cache = Arc::new(tempfile::tempdir().expect("folder"));
    let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("tells").lines().count();
    let cycle = || {
        let mounted = source.mount_with(&cache, &[]);
        assert_eq!(fs::read(mounted.path("file")).expect("reads"), b"hello");
        mounted.end();
    };
    // The first ones make what is kept: threads, connections, caches.
    (0..10).for_each(|_| cycle());
    let held = || Holding::of(source.serve().id());
    let before = held();
    (0..trials(90)).for_each(|_| cycle());
    wait_for(&format!("the server holds no more than {before:?}"), STAND_MAX, || {
        when(held(), |now| {
            now.descriptors <= before.descriptors + 2
                && now.threads <= before.threads + 2
                && now.anonymous_kib <= before.anonymous_kib + HELD_KIB_MORE_MAX
        })
    });
    let text = fs::read_to_string("/proc/self/mountinfo").expect("tells");
    assert!(!text.contains(cache.path().to_str().expect("text")), "{}", mounts());
    let entries = fs::read_dir(cache.path()).expect("lists").flatten();
    let parts = entries.filter(|entry| entry.path().is_dir()).count();
    assert_eq!(parts, 1, "the one part that holds the file");
}

#[test]
fn the_status_tells_how_far_the_fill_is_and_which_way_files_are_read() {
    if !can_mount("the_status_tells_how_far_the_fill_is_and_which_way_files_are_read") {
        return;
    }
    let big = noise(5 << 20, 3);
    let source = Source::new(|dir| {
        fs::create_dir(dir.join("a")).expect("makes");
        fs::write(dir.join("a/big"), &big).expect("writes");
        (0..20)
            .for_each(|it| fs::write(dir.join(format!("f{it}")), noise(9000, it)).expect("writes"));
    });
    // What is younger is looked at more than once.
    std::thread::sleep(SETTLED);
    let mounted = source.mount(&["--fill"]);
    let status = |json: bool| {
        let at = mounted.path("");
        let mut words = vec!["--status", at.to_str().expect("text")];
        words.extend(json.then_some("--json"));
        Running::start(source.home.command("rdma-mount", &words)).end().done().stdout
    };
    let filled = || {
        let told: serde_json::Value = serde_json::from_str(&status(true)).expect("JSON");
        when(told, |told| told["fill"]["state"] == "complete").map_err(Text)
    };
    wait_for("rdma-mount --status says that the fill is complete", STAND_MAX, filled);
    // Both folders are remembered, and count from when they are there.
    wait_for("the cache has the names of two folders", STAND_MAX, || {
        when(reading::files_of(mounted.cache.path(), "names"), |files| files.len() == 2)
    });
    let told = filled().expect("it stays complete");
    assert_eq!(
        (&told["fill"]["files"], &told["fill"]["failed"]),
        (&21.into(), &0.into()),
        "{told}"
    );
    assert_eq!(told["fetched_bytes"], (5 << 20) + 20 * 9000);
    // Each version has notes beside it.
    let whole = (5 << 20) + 20 * 12_288 + 21 * 4096 + 2 * 4096;
    assert_eq!(told["cache"]["bytes"], whole, "as the disk has it");
    assert_eq!(told["server"]["up"], true);
    assert!(status(false).contains("complete"));
    assert!(fs::read(mounted.path("a/big")).expect("reads") == big);
    let read: serde_json::Value = serde_json::from_str(&status(true)).expect("JSON");
    assert_eq!(read["fetched_bytes"], told["fetched_bytes"], "nothing is fetched twice");
    match read["passthrough"]["why_not"].as_str() {
        None => assert_eq!(read["passthrough"]["opens"], 1, "{read}"),
        Some(why) => skip("passthrough", why),
    }
    mounted.end();
    let nowhere = tempfile::tempdir().expect("folder");
    let words = ["--status", nowhere.path().to_str().expect("text")];
    let none = Running::start(source.home.command("rdma-mount", &words)).end();
    none.refused(1, &["is no mount of this command", "hint: "]);
}

#[test]
fn two_mounts_share_a_cache_and_what_one_has_brought_is_not_fetched_again() {
    if !can_mount("two_mounts_share_a_cache_and_what_one_has_brought_is_not_fetched_again") {
        return;
    }
    let (big, more) = (noise(20 << 20, 5), noise(60 << 20, 6));
    let source = Source::new(|dir| {
        fs::write(dir.join("big"), &big).expect("writes");
        fs::write(dir.join("more"), &more).expect("writes");
    });
    std::thread::sleep(SETTLED);
    let cache = Arc::new(tempfile::tempdir().expect("folder"));
    let one = source.mount_with(&cache, &["--cache-size", "64M"]);
    let two = source.mount_with(&cache, &["--cache-size", "64M", "--no-passthrough"]);
    assert!(fs::read(one.path("big")).expect("reads") == big);
    assert!(fs::read(two.path("big")).expect("reads") == big);
    assert_eq!(two.status()["fetched_bytes"], 0, "it came with the other: {}", two.status());
    // Held by one, while the other needs more than there is room for: neither gets wrong bytes.
    let held = fs::File::open(one.path("big")).expect("opens");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(two.path("more")).expect("reads"));
        for _ in 0..4 {
            assert!(fs::read(one.path("big")).expect("reads") == big);
        }
        assert!(reader.join().expect("reads") == more);
    });
    drop(held);
    assert!(fs::read(one.path("more")).expect("reads") == more);
    assert!(fs::read(two.path("big")).expect("reads") == big);
    one.end();
    assert!(fs::read(two.path("big")).expect("reads") == big);
    two.end();
}

#[test]
fn a_mount_shows_its_numbers_at_a_port_and_is_ready_while_its_server_is_there() {
    if !can_mount("a_mount_shows_its_numbers_at_a_port") {
        return;
    }
    let mut source = Source::new(fill);
    let port = Port::take();
    let address = port.address;
    let taken = std::net::TcpListener::bind(address).expect("a port");
    let (from, text) = (source.serve().at("data"), address.to_string());
    let (at, cache) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let path = |dir: &TempDir| dir.path().display().to_string();
    let words = [&from, &path(&at), "--cache", &path(&cache), "--metrics", &text];
    let refused = Running::start(source.home.command("rdma-mount", &words)).end();
    refused.refused(1, &["cannot listen for metrics on", "hint: give another address"]);
    drop(taken);
    let mounted = source.mount(&["--metrics", &text]);
    assert_eq!(fs::read(mounted.path("file")).expect("reads"), b"hello");
    let shown = get(address, "/metrics");
    let run = mounted.at.as_ref().expect("it has a place").path().display().to_string();
    let up = format!("rdma_mount_server_up{{run=\"{run}\"}}");
    assert_eq!((shown.status, series(&shown.body, &up)), (200, Some(1.0)), "{shown:?}");
    assert!(shown.head.contains("text/plain; version=0.0.4"), "{shown:?}");
    let status: serde_json::Value =
        serde_json::from_str(&get(address, "/status").body).expect("JSON");
    assert_eq!(status["opens"], 1, "{status}");
    let answers = |path: &str| get(address, path).status;
    assert_eq!((answers("/healthz"), answers("/readyz"), answers("/")), (200, 200, 404));
    assert_eq!(request(address, "GET", "/metrics", "elsewhere.example").status, 403);
    source.kill();
    let unready = || when(get(address, "/readyz"), |answer| answer.status == 503);
    let why = wait_for("/readyz answers 503, as the server is gone", STAND_MAX, unready).body;
    assert!(why.contains("127.0.0.1:") || why.contains("server"), "{why}");
    assert_eq!(answers("/healthz"), 200);
    assert_eq!(series(&get(address, "/metrics").body, &up), Some(0.0));
    assert_eq!(fs::read(mounted.path("file")).expect("is here"), b"hello");
    mounted.end();
}

#[test]
fn a_mount_writes_its_numbers_and_tells_how_far_the_fill_is() {
    if !can_mount("a_mount_writes_its_numbers_and_tells_how_far_the_fill_is") {
        return;
    }
    let source = Source::new(|dir| {
        (0..5)
            .for_each(|it| fs::write(dir.join(format!("f{it}")), noise(9000, it)).expect("writes"));
    });
    std::thread::sleep(SETTLED);
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("mine.prom");
    let flags = ["--fill", "--json", "--metrics-file", file.to_str().expect("text")];
    let mut mounted = source.mount(&flags);
    let text = wait_for("the file of the numbers is there", STAND_MAX, || {
        fs::read_to_string(&file).map_err(|error| (error, contents(folder.path())))
    });
    assert!(text.contains("rdma_mount_server_up{run=\"mine\"} 1"), "{text}");
    mounted.wait_for_fill();
    assert_eq!(fs::read(mounted.path("f3")).expect("reads"), noise(9000, 3));
    // Told once a second, and what was not is told at the end.
    let running = mounted.running.take().expect("it runs");
    running.signal(Signal::TERM);
    let said = running.end().done().stdout;
    let events: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(events[0]["event"], "mounted", "{said}");
    let last = events.last().expect("there is one");
    let told = (&last["event"], &last["fill"]["files"], &last["fill"]["complete"]);
    assert_eq!(told, (&"progress".into(), &5.into(), &true.into()), "{said}");
    let text = fs::read_to_string(&file).expect("is there");
    for line in ["fill_complete{run=\"mine\"} 1", "fetched_bytes_total{run=\"mine\"} 45000"] {
        assert!(text.contains(line), "no {line}: {text}");
    }
}
