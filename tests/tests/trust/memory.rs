//! The memory that clients have a server keep: bounded by its configuration, whatever
//! they ask for and do not take, and given back when they are gone.

use crate::process::{seen, wait_for};
use crate::{FOLLOW_MAX, World};
use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};
use verbatim_proto::message::ServerMessage;
use verbatim_proto::units::LOOK_PATHS_MAX;
use verbatim_proto::{ClientMessage, Look, Watch, WatchReply, WatchRequest, WirePath};
use verbatim_tests::http;
use verbatim_tests::raw::Raw;
use verbatim_tests::tree::content;

/// The budget of the servers here: the least there is.
const BUDGET_KIB: u64 = 64 << 10;

/// What a server of so few clients takes beside its budget.
const BASE_KIB: u64 = 64 << 10;

fn with_limits(limits: &str) -> World {
    World::configured(&format!(
        "{limits}\n[[export]]\npath = \"DIR/data\"\n[[export]]\n\
         path = \"DIR/in\"\nmode = \"rw\"\n"
    ))
}

/// As many as would have a server without bounds keep twice what it may.
const CLIENTS: usize = 16;

/// Memory of a server that is in no file.
fn anonymous_kib(world: &World) -> u64 {
    let path = format!("/proc/{}/status", world.serve.pid());
    let status = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a kernel");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn metric(world: &World, name: &str) -> f64 {
    let page = http::get(world.serve.metrics.expect("it has a page"), "/metrics").body;
    http::series(&page, &format!("rdma_serve_{name}")).unwrap_or_else(|| panic!("{name}: {page}"))
}

/// The most memory that a server has while it answers its clients, and how much of that it counts.
/// The server has answered when its memory has not grown for two seconds.
fn most_memory(world: &World) -> (u64, f64) {
    let (begin, mut grew) = (Instant::now(), Instant::now());
    let (mut top, mut counted) = (0, 0.0_f64);
    while grew.elapsed() < Duration::from_secs(2) && begin.elapsed() < FOLLOW_MAX {
        let now = anonymous_kib(world);
        if now > top + 1024 {
            grew = Instant::now();
        }
        top = top.max(now);
        counted = counted.max(metric(world, "client_memory_bytes"));
    }
    (top, counted)
}

/// The folder of the links. Its name is long, so that a few thousand requests fill the buffers of
/// both sockets.
fn folder_of_links() -> String {
    "x".repeat(80)
}

/// Asks for the targets of links until the server takes no more requests, and reads no answer.
fn asks_and_reads_nothing(world: &World) -> Raw {
    let mut raw = Raw::connect(&world.options());
    let path = |number| {
        WirePath::parse(format!("data/{}/{number}", folder_of_links()).as_bytes()).expect("a path")
    };
    let paths: Vec<WirePath> = (0..LOOK_PATHS_MAX).map(path).collect();
    for request in 0..4000 {
        let look = Look { paths: paths.clone(), follow: false };
        let said = raw.say_within(ClientMessage::Stat { request, look }, UNHEARD);
        if !said {
            return raw;
        }
    }
    panic!("a server took 4,000 requests for half a MiB each of a client that reads nothing");
}

/// A server that has not taken a request for so long, with all that fits between, hears no more.
const UNHEARD: Duration = Duration::from_millis(500);

#[test]
fn clients_that_read_no_answer_cost_a_bounded_amount_of_memory_and_leave_none_behind() {
    let world = with_limits("[limits]\nmemory_mb = 64\n");
    let links = world.path("data").join(folder_of_links());
    fs::create_dir_all(&links).expect("folders");
    for number in 0..LOOK_PATHS_MAX {
        symlink("x".repeat(4000), links.join(number.to_string())).expect("a link");
    }
    // What the first client has a server allocate stays: threads, TLS.
    world.serve.cp(&["--list", &world.serve.at("data")]).done();
    let before = anonymous_kib(&world);
    let silent: Vec<Raw> = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| asks_and_reads_nothing(&world));
        let asking: Vec<_> = (0..CLIENTS).map(|_| ask()).collect();
        asking.into_iter().map(|one| one.join().expect("it asks")).collect()
    });
    let (top, counted) = most_memory(&world);
    assert!(top < BASE_KIB + BUDGET_KIB, "{top} KiB for {} clients", silent.len());
    assert!(counted > 0.0 && counted <= (BUDGET_KIB << 10) as f64, "{counted} bytes are counted");
    world.add("other", &["--export", "data:ro"]);
    drop(silent);
    wait_for("the memory of clients that are gone is given back", FOLLOW_MAX, || {
        let (now, counted) = (anonymous_kib(&world), metric(&world, "client_memory_bytes"));
        seen(now < before + (32 << 10) && counted == 0.0, (before, top, now, counted))
    });
}

/// Folders in the one that is watched.
const FOLDERS: usize = 200;

/// Changes that a watch keeps until its client asks for more, each of a path of this length.
const CHANGES: usize = 1000;
const CHANGED_PATH_BYTES: usize = 200;

#[test]
fn watched_folders_and_changes_that_wait_count_as_memory_of_the_client() {
    let world = with_limits("");
    for number in 0..FOLDERS {
        fs::create_dir(world.path("in").join(format!("folder-{number}"))).unwrap();
    }
    let mut raw = Raw::connect(&world.options());
    let (path, exclude) = (WirePath::parse(b"in").expect("a path"), Vec::new());
    raw.say(ClientMessage::Watch(WatchRequest::Begin {
        request: 1,
        watch: Watch { path, exclude },
    }));
    raw.hear("the watch has begun", |message| {
        matches!(message, ServerMessage::Watch(WatchReply::Changed { .. })).then_some(())
    });
    let before = metric(&world, "client_memory_bytes");
    assert!(before >= (FOLDERS * 300) as f64, "{before} bytes for {FOLDERS} folders");
    for number in 0..CHANGES {
        fs::write(world.path("in").join(format!("{number:0CHANGED_PATH_BYTES$}")), b"").unwrap();
    }
    let waiting = (CHANGES * CHANGED_PATH_BYTES) as f64;
    wait_for("changes that wait are counted", FOLLOW_MAX, || {
        let now = metric(&world, "client_memory_bytes");
        seen(now >= before + waiting && now < before + 3.0 * waiting, (before, now, waiting))
    });
    drop(raw);
    wait_for("a client that is gone has no memory", FOLLOW_MAX, || {
        let now = metric(&world, "client_memory_bytes");
        seen(now == 0.0, now)
    });
}

#[test]
fn uploads_keep_to_the_buffers_there_are_however_long_their_chunks() {
    let world = with_limits("[rdma]\nrecv_buffer_mb = 16\n");
    let source = world.path("source");
    fs::write(&source, content(38, 200 << 20)).expect("a file");
    let long = ["--chunk-size", "16M", &world.text("source"), &world.serve.at("in/")];
    let mut upload = world.serve.start_cp(&long);
    let (mut links, mut slots) = (0.0_f64, 0.0_f64);
    while !upload.has_ended() {
        links = links.max(metric(&world, "links{transport=\"tcp\"}"));
        slots = slots.max(metric(&world, "slots"));
    }
    upload.end().done();
    assert!(links > 1.0 && slots == 1.0, "{slots} slots of 16 MiB in 16 MiB, {links} links");
    assert!(fs::read(world.path("in/source")).expect("it is there") == fs::read(&source).unwrap());
}
