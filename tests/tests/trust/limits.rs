//! Limits of the door, each hit by a client that goes too far, with another that
//! is served meanwhile.

use crate::process::{Home, Running, Signal, Text, seen, wait_for, when};
use crate::{FOLLOW_MAX, World, folders};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbatim_control::SENT_AWAY;
use verbatim_fabric::tcp::JOIN_MAGIC;
use verbatim_proto::message::{
    JoinSecret, LinkAnswer, LinkOffer, OpenFile, ReadReply, ReadRequest,
};
use verbatim_proto::units::{BATCH_FILES_MAX, LOOK_PATHS_MAX, OPEN_FILES_MAX};
use verbatim_proto::{ClientMessage, FileId, LinkId, Look, ServerMessage, WirePath};
use verbatim_tests::http::get;
use verbatim_tests::raw::Raw;

fn with_limits(limits: &str) -> World {
    World::configured(&format!("[limits]\n{limits}\n[[export]]\npath = \"DIR/data\"\n"))
}

/// So many who come and say nothing.
fn silent(world: &World, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(world.serve.address).expect("it listens")).collect()
}

/// So many who say that a handshake comes, and nothing more.
fn stalled(world: &World, count: usize) -> Vec<TcpStream> {
    let stall = |mut stream: TcpStream| {
        stream.write_all(&[0x16]).expect("it is open");
        stream
    };
    (0..count).flat_map(|_| silent(world, 1)).map(stall).collect()
}

/// So many who come from an address of their own and say nothing.
fn silent_from(world: &World, last: u8, count: usize) -> Vec<OwnedFd> {
    let connect = || {
        let kind = (AddressFamily::INET, SocketType::STREAM);
        let socket = socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrV4::new([127, 0, 0, last].into(), 0))?;
        rustix::net::connect(&socket, &world.serve.address)?;
        rustix::io::Result::Ok(socket)
    };
    (0..count).map(|_| connect().expect("it listens")).collect()
}

/// Waits until the server has no more room for connections of this address.
#[track_caller]
fn wait_until_full(world: &World) {
    wait_for("the server logs that it sent a connection away", FOLLOW_MAX, || {
        when(world.serve.log(), |log| log.contains("connection rejected")).map_err(Text)
    });
}

#[test]
fn a_full_server_says_so_to_who_comes_next_and_serves_who_is_in() {
    let world = with_limits("sessions_max = 1");
    let (from, out) = (world.serve.at("data/large"), world.text("out"));
    let mut first = world.serve.start_cp(&["--bwlimit", "2M", &from, &out]);
    world.wait_until_begun(&mut first);
    let second = world.serve.cp(&["--list", &world.serve.at("data")]);
    second.refused(3, &["the server is full: it has 1 sessions; try again"]);
    first.end().done();
    let listed = world.serve.cp(&["--list", &world.serve.at("data")]);
    listed.done();
}

#[test]
fn one_client_leaves_sessions_to_others() {
    let world = with_limits("sessions_max = 9");
    let _five = [(); 5].map(|()| Raw::connect(&world.options()));
    let sixth = Raw::try_connect(&world.options()).err().expect("it has its share");
    let told = sixth.to_string();
    assert!(told.contains("this client has 5 of the server's 9 sessions; try again"), "{told}");
    // As soon as its token is known.
    world.add("bob", &["--export", "data:ro"]);
}

/// Opens as many files as a session may.
fn open_all_it_may(world: &World) -> Raw {
    let mut raw = Raw::connect(&world.options());
    let path = WirePath::parse(b"data/small").expect("a path");
    let open = |number| OpenFile { file: FileId(number), path: path.clone(), have: Vec::new() };
    let files: Vec<OpenFile> = (0..OPEN_FILES_MAX as u32).map(open).collect();
    for batch in files.chunks(BATCH_FILES_MAX) {
        raw.say(ClientMessage::Read(ReadRequest::Open { files: batch.to_vec() }));
    }
    raw.hear("file", |message| {
        matches!(message, ServerMessage::Read(ReadReply::Opened { .. })).then_some(())
    });
    raw
}

#[test]
fn a_client_that_opens_all_it_can_locks_nobody_out_and_hides_no_revocation() {
    let limit = ["sh", "-c", "ulimit -n 1024 && exec \"$@\"", "sh"];
    let (dir, home) = (folders(), Arc::new(Home::new().wrapped(&limit)));
    let serve = World::start(&home, &dir, &[]);
    let world = World { serve, dir, home };
    let token = world.add("alice", &["--export", "data:ro"]);
    let (_home, running) = world.start_slowly(&token);
    // Twice as many as there are descriptors, each.
    let _greedy = [(); 3].map(|()| open_all_it_may(&world));
    world.token(&["revoke", "alice"]).done();
    running.end().refused(3, &["the token alice was revoked"]);
    world.add("bob", &["--export", "data:ro"]);
    assert!(!world.serve.log().contains("connection not accepted"), "{}", world.serve.log());
}

#[test]
fn who_says_nothing_takes_no_session_and_is_sent_away_in_time() {
    let world = with_limits("sessions_max = 2\nhandshake_seconds = 2");
    // More than there are sessions; from one address, so not without end.
    let mut silent = silent(&world, 300);
    let begin = Instant::now();
    // All of this address's room is taken: it says so in the log, and closes what is too much.
    wait_until_full(&world);
    // All stay here: what makes room again is the server's doing.
    let first = &mut silent[0];
    first.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    first.read_to_end(&mut Vec::new()).expect("the first was sent away too");
    assert!(begin.elapsed() < Duration::from_secs(8));
    wait_for("the server has room again: rdma-cp may list data", FOLLOW_MAX, || {
        when(world.serve.cp(&["--list", &world.serve.at("data")]), |ended| ended.code == Some(0))
    });
    drop(silent);
}

#[test]
fn silent_connections_leave_room_for_those_who_speak() {
    let world = with_limits("sessions_max = 2\nhandshake_seconds = 30");
    let _silent = silent(&world, 200);
    world.serve.cp(&[world.serve.at("data/large"), world.text("out")]).done();
    // When there is no room any more, the oldest of them leave.
    let _more = silent(&world, 60);
    wait_until_full(&world);
    world.serve.cp(&["--list", &world.serve.at("data")]).done();
}

#[test]
fn stalled_handshakes_of_one_address_are_too_many_at_some_point() {
    let world = with_limits("handshake_seconds = 60");
    let _stalled = stalled(&world, 257);
    wait_until_full(&world);
    let full = world.serve.cp(&["--list", &world.serve.at("data")]);
    full.refused(3, &["sent it away: too many come at once; try again"]);
}

#[test]
fn strangers_who_fill_the_server_keep_no_copy_out() {
    let world = with_limits("handshake_seconds = 60");
    let crowd: Vec<_> = (2..=5).map(|last| silent_from(&world, last, 256)).collect();
    world.serve.cp(&[world.serve.at("data/large"), world.text("out")]).done();
    let log = world.serve.log();
    let away = |line: &str| line.contains("sent away") && line.contains("peer=127.0.0.1:");
    assert!(!log.lines().any(away), "the copy was sent away once: {log}");
    // Where so many come, they have a second to say something.
    let gone = |stream: &OwnedFd| {
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recv(stream, &mut [0; 1], peek) != Err(rustix::io::Errno::AGAIN)
    };
    wait_for("half of the strangers are gone", FOLLOW_MAX, || {
        let left = crowd.iter().flatten().filter(|stream| !gone(stream)).count();
        seen(left <= 512, left)
    });
}

#[test]
fn a_late_first_byte_does_not_lengthen_the_time_to_say_who_one_is() {
    let world = with_limits("handshake_seconds = 4");
    let mut stream = TcpStream::connect(world.serve.address).expect("it listens");
    let begin = Instant::now();
    std::thread::sleep(Duration::from_millis(3500));
    stream.write_all(&[0x16]).expect("it is open");
    stream.set_read_timeout(Some(FOLLOW_MAX)).expect("a time");
    let end = stream.read_to_end(&mut Vec::new());
    let took = begin.elapsed();
    // Four seconds from the byte would be seven and a half.
    assert!(end.is_ok() && took < Duration::from_secs(7), "after {took:?}: {end:?}");
}

#[test]
fn a_flood_of_refused_connections_is_a_few_lines_and_a_summary() {
    let world = with_limits("handshake_seconds = 60");
    let _stalled = stalled(&world, 256);
    // The first of these that is sent away has heard so.
    let _flood = silent(&world, 500);
    wait_for("the server logs how many more it sent away", FOLLOW_MAX, || {
        let summary = "more connections refused, not logged singly";
        when(world.serve.log(), |log| log.contains(summary)).map_err(Text)
    });
    let log = world.serve.log();
    let lines = log.lines().filter(|line| line.contains("connection rejected")).count();
    assert!((1..=20).contains(&lines), "{lines} lines: {log}");
}

#[test]
fn a_copy_that_comes_when_too_many_do_is_let_in_later() {
    let world = with_limits("handshake_seconds = 3");
    // All the room of this address, for three seconds.
    let _stalled = stalled(&world, 257);
    wait_until_full(&world);
    let copy = world.serve.cp(&[world.serve.at("data/large"), world.text("out")]);
    copy.done();
    assert!(world.serve.log().contains("connection rejected"), "{}", world.serve.log());
    let [sent, came] = ["data/large", "out/large"].map(|path| std::fs::read(world.path(path)));
    assert!(sent.unwrap() == came.unwrap(), "other bytes");
}

#[test]
fn a_data_connection_takes_no_room_of_those_who_wait() {
    let world = with_limits("handshake_seconds = 60");
    let mut raw = Raw::connect(&world.options());
    raw.say(ClientMessage::Attach { link: LinkId { index: 0, epoch: 0 }, offer: LinkOffer::Tcp });
    let JoinSecret(secret) = raw.hear("secret", |message| match message {
        ServerMessage::Attached { answer: Ok(LinkAnswer::Tcp { secret }), .. } => {
            Some(secret.clone())
        }
        _ => None,
    });
    let _silent = silent(&world, 257);
    wait_until_full(&world);
    // What it says is there when the server looks, as it is when many come.
    world.serve.signal(Signal::STOP);
    let mut data = TcpStream::connect(world.serve.address).unwrap();
    data.write_all(&[&JOIN_MAGIC[..], &secret].concat()).unwrap();
    world.serve.signal(Signal::CONT);
    let metrics = world.serve.metrics.expect("it shows them");
    wait_for("the server shows one link over TCP", FOLLOW_MAX, || {
        let shown = get(metrics, "/metrics").body;
        let links = shown.lines().filter(|line| line.starts_with("rdma_serve_links{"));
        let links: Vec<_> = links.map(str::to_owned).collect();
        let done = links.iter().any(|line| line == "rdma_serve_links{transport=\"tcp\"} 1");
        seen(done, (links, Text(world.serve.log())))
    });
}

#[test]
fn everybody_who_is_sent_away_is_told_so() {
    let world = with_limits("handshake_seconds = 60");
    let _stalled = stalled(&world, 257);
    wait_until_full(&world);
    // All at once, and all have spoken before the server looks.
    world.serve.signal(Signal::STOP);
    let mut many = silent(&world, 50);
    many.iter_mut().for_each(|one| one.write_all(&[0x16; 500]).unwrap());
    world.serve.signal(Signal::CONT);
    for (number, one) in many.iter_mut().enumerate() {
        one.set_read_timeout(Some(FOLLOW_MAX)).unwrap();
        let mut heard = Vec::new();
        let end = one.read_to_end(&mut heard);
        assert!(end.is_ok() && heard == SENT_AWAY, "number {number}: {end:?} {heard:?}");
    }
}

#[test]
fn handshakes_of_one_address_are_spread_over_time() {
    let world = with_limits("handshakes_per_second_per_address = 1\nhandshake_seconds = 2");
    let begin = Instant::now();
    let list = |_| {
        let command = world.home.command("rdma-cp", &["--list", &world.serve.at("data")]);
        Running::start(command)
    };
    let ended: Vec<_> =
        (0..6).map(list).collect::<Vec<_>>().into_iter().map(Running::end).collect();
    let done = ended.iter().filter(|ended| ended.code == Some(0)).count();
    assert!((2..6).contains(&done), "two at once, then one a second, for two seconds: {ended:#?}");
    assert!(begin.elapsed() >= Duration::from_secs(1), "the third had to wait");
    assert!(
        world.serve.log().contains("too many handshakes wait before it"),
        "{}",
        world.serve.log()
    );
    for ended in ended.into_iter().filter(|ended| ended.code != Some(0)) {
        ended.refused(3, &["sent it away: too many come at once; try again"]);
    }
}

#[test]
fn a_session_that_wants_too_much_or_says_nothing_is_told_so() {
    let world = with_limits("idle_seconds = 10");
    let refusal = |raw: &mut Raw| {
        raw.hear("refusal", |message| match message {
            ServerMessage::Refused(fault) => Some(fault.text.clone()),
            _ => None,
        })
    };
    let mut idle = Raw::connect(&world.options());
    let mut raw = Raw::connect(&world.options());
    let link = LinkId { index: 16, epoch: 0 };
    raw.say(ClientMessage::Attach { link, offer: LinkOffer::Tcp });
    let text = raw.hear("answer", |message| match message {
        ServerMessage::Attached { answer, .. } => answer.clone().err().map(|fault| fault.text),
        _ => None,
    });
    assert_eq!(text, "a session may have 16 links");
    let paths = vec![WirePath::parse(b"data/large").unwrap(); LOOK_PATHS_MAX + 1];
    raw.say(ClientMessage::Stat { request: 1, look: Look { follow: true, paths } });
    assert_eq!(refusal(&mut raw), "more than 128 paths to look at");
    assert_eq!(refusal(&mut idle), "nothing was heard for 10 s");
}

#[test]
fn a_server_cannot_gain_privileges() {
    let world = World::new(&[]);
    let status = format!("/proc/{}/task", world.serve.id());
    let mut seen = 0;
    for thread in std::fs::read_dir(status).unwrap() {
        // One that has ended meanwhile has nothing to gain.
        let Ok(text) = std::fs::read_to_string(thread.unwrap().path().join("status")) else {
            continue;
        };
        assert!(text.contains("NoNewPrivs:\t1"), "{text}");
        seen += 1;
    }
    assert!(seen > 0, "the server has threads");
}

#[test]
fn a_server_stops_although_a_job_of_it_hangs() {
    // Its keys are in a pipe that somebody keeps open and writes no more to: who reads it waits.
    // It has no name, because one that has is not opened.
    let (pipe, mut keys) = std::io::pipe().unwrap();
    let standard_input = format!("/proc/{}/fd/{}", std::process::id(), pipe.as_raw_fd());
    let wrapper = ["sh", "-c", "exec \"$@\" <\"$0\"", &standard_input];
    let (dir, home) = (folders(), Arc::new(Home::new().wrapped(&wrapper)));
    let serve = World::start(&home, &dir, &[]);
    let mut world = World { serve, dir, home };
    keys.write_all(b"#").unwrap();
    let file = world.home.state().join("authorized_keys");
    let _ = std::fs::remove_file(&file);
    std::os::unix::fs::symlink("/proc/self/fd/0", &file).unwrap();
    wait_for("the server reads what is in the pipe in the place of its keys", FOLLOW_MAX, || {
        let left = rustix::io::ioctl_fionread(&pipe);
        seen(left == Ok(0), (left, world.serve.report()))
    });
    let begin = Instant::now();
    world.serve.signal(Signal::TERM);
    world.serve.said(" stopped");
    assert_eq!(world.serve.end(), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
}
