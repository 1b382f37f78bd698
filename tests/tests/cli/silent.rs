//! Networks and servers that fall silent: packets are dropped or nobody reads them, nothing is
//! refused, and no connection ends. Whatever a command waits for then, it ends with its error
//! within 1.2 times its `--timeout`. The times are printed.

#![allow(clippy::print_stdout)] // how long each command took

use crate::process::{Ended, Home, Running, Signal, skip, wait_for};
use crate::resuming::{BIG_BYTES, wait_for_journal};
use crate::{World, bytes, process};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use verbatim_tests::proxy::{Direction, Harm, Kind, Proxy, Rule};

/// After how long each command must have ended: 1.2 times its timeout of 10 s, of which a fifth
/// is no race on a loaded machine.
const END_MAX: Duration = Duration::from_secs(12);

/// What is waited for so that a failure can tell how long it took.
const LOOK_MAX: Duration = Duration::from_secs(45);

/// Makes each copy take longer than it is watched.
const SLOWLY: [&str; 2] = ["--bwlimit=4M", "--timeout=10"];

/// Both programs, both ways.
const WAYS: [(&str, bool); 4] =
    [("rdma-cp", false), ("rdma-cp", true), ("rdma-sync", false), ("rdma-sync", true)];

/// A command that waits for a server that says nothing since `since`.
struct Waiting {
    name: String,
    command: Running,
    since: Instant,
    took: Option<Duration>,
}

impl Waiting {
    fn new(name: String, command: Running) -> Self {
        Self { name, command, since: Instant::now(), took: None }
    }

    fn look(&mut self) {
        if self.took.is_none() && self.command.has_ended() {
            self.took = Some(self.since.elapsed());
        }
    }
}

/// Waits for the end of each command, and says how it ended; fails if one took too long.
#[track_caller]
fn end_in_time(mut all: Vec<Waiting>) -> Vec<(String, Ended)> {
    wait_for("every command ends", LOOK_MAX, || {
        all.iter_mut().for_each(Waiting::look);
        if all.iter().all(|waiting| waiting.took.is_some()) {
            return Ok(());
        }
        let alive = all.iter_mut().filter(|waiting| waiting.took.is_none());
        Err(alive.map(|it| (it.name.clone(), it.command.report())).collect::<Vec<_>>())
    });
    let took = |it: &Waiting| it.took.unwrap_or(LOOK_MAX);
    for waiting in &all {
        println!("{}: ended after {:.1} s", waiting.name, took(waiting).as_secs_f64());
    }
    let late: Vec<_> = all.iter().filter(|it| took(it) > END_MAX).map(|it| &it.name).collect();
    assert!(late.is_empty(), "later than {END_MAX:?}: {late:?}");
    let end = |waiting: Waiting| (waiting.name, waiting.command.end());
    let ended: Vec<_> = all.into_iter().map(end).collect();
    for (name, ended) in &ended {
        assert!(!ended.stderr.contains("panicked"), "{name}: {ended:?}");
    }
    ended
}

/// A world with a large file to copy each way, and a folder of its own for each copy.
fn world(home: Home) -> World {
    let world = World::of(process::memory(), home);
    for folder in ["up", "out/rdma-cp", "out/rdma-sync", "in/rdma-cp", "in/rdma-sync"] {
        fs::create_dir(world.path(folder)).expect("a folder");
    }
    let content = bytes(4, BIG_BYTES);
    for name in ["data/big", "up/big"] {
        fs::write(world.path(name), &content).expect("a file");
    }
    world
}

/// Where a copy comes from and goes to.
fn ends(world: &World, (program, up): (&str, bool)) -> [String; 2] {
    let file = if program == "rdma-cp" { "/big" } else { "" };
    match up {
        true => [world.text(&format!("up{file}")), world.serve.at(&format!("in/{program}"))],
        false => [world.serve.at(&format!("data{file}")), world.text(&format!("out/{program}"))],
    }
}

fn start(world: &World, (program, up): (&str, bool)) -> Running {
    let ends = ends(world, (program, up));
    let arguments: Vec<&str> = SLOWLY.into_iter().chain(ends.iter().map(String::as_str)).collect();
    Running::start(world.serve.home().command(program, &arguments))
}

fn name_of((program, up): (&str, bool)) -> String {
    format!("{program} {}", if up { "up" } else { "down" })
}

/// Starts copies that move data, has `die` end the network, and starts others behind that.
fn dies(world: &World, die: impl FnOnce()) {
    let mut copies: Vec<_> = WAYS.iter().map(|way| (*way, start(world, *way))).collect();
    for ((program, up), copy) in &mut copies {
        let folder = if *up { "in" } else { "out" };
        wait_for_journal(copy, &world.path(&format!("{folder}/{program}")));
    }
    die();
    let copying = copies
        .into_iter()
        .map(|(way, copy)| Waiting::new(format!("{}, copying", name_of(way)), copy));
    let mut all: Vec<Waiting> = copying.collect();
    for way in WAYS {
        all.push(Waiting::new(format!("{}, connecting", name_of(way)), start(world, way)));
    }
    for (name, ended) in end_in_time(all) {
        assert_eq!(ended.code, Some(3), "{name}: {ended:?}");
    }
}

#[test]
fn a_server_that_stops_ends_each_command_within_its_timeout() {
    let world = world(Home::in_memory());
    dies(&world, || world.serve.signal(Signal::STOP));
}

/// A network of its own, with nothing but loopback.
struct Network(String);

impl Network {
    /// None where it cannot be had.
    fn new() -> Option<Self> {
        let network = Self(format!("verbatim-{}-silent", std::process::id()));
        let made = run(&format!("ip netns add {}", network.0))
            && run(&format!("ip -n {} link set lo up", network.0));
        // A queue in which no packet fits, tried and taken away again.
        let can = made && network.drop_all() && run(&format!("{} del dev lo root", network.tc()));
        can.then_some(network)
    }

    fn tc(&self) -> String {
        format!("ip netns exec {} tc qdisc", self.0)
    }

    /// Drops every packet from now on; nobody is told.
    fn drop_all(&self) -> bool {
        run(&format!("{} add dev lo root bfifo limit 1", self.tc()))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        run(&format!("ip netns del {}", self.0));
    }
}

fn run(command: &str) -> bool {
    let words: Vec<_> = command.split_whitespace().collect();
    let ended = Command::new(words[0]).args(&words[1..]).output();
    ended.is_ok_and(|output| output.status.success())
}

#[test]
fn a_network_that_drops_every_packet_ends_each_command_within_its_timeout() {
    let Some(network) = Network::new() else {
        return skip("a network that dies", "not root, or no ip and tc");
    };
    let world = world(Home::in_memory().wrapped(&["ip", "netns", "exec", &network.0]));
    dies(&world, || assert!(network.drop_all(), "no packet is dropped"));
}

#[test]
fn a_server_that_falls_silent_at_any_answer_ends_each_command_within_its_timeout() {
    let world = World::in_memory();
    fs::create_dir_all(world.path("up/sub")).expect("folders");
    for name in ["up/a.bin", "up/sub/b.bin"] {
        fs::write(world.path(name), bytes(6, 2_000_000)).expect("a file");
    }
    let mut silent = Vec::new();
    for (program, up) in WAYS {
        for bytes in [100, 900, 1300, 1700, 2300] {
            let rule = Rule::all(Kind::Control, Direction::Down, Harm::StallAfter(bytes));
            let proxy = Proxy::start(world.serve.address.port(), &[rule]);
            let at = |path: &str| format!("rdma://127.0.0.1:{}/{path}", proxy.port());
            let target = format!("{program}-{bytes}");
            let [from, to] = match up {
                true => [world.text("up"), at(&format!("in/{target}"))],
                false => [at("data"), world.text(&format!("out/{target}"))],
            };
            let known = proxy.known(world.serve.home());
            let mut arguments: Vec<&str> = known.iter().map(String::as_str).collect();
            arguments.extend(["--timeout=10", &from, &to]);
            arguments.extend((program == "rdma-cp").then_some("-r"));
            let command = Running::start(world.serve.home().command(program, &arguments));
            let name = format!("{}, silent after {bytes} bytes", name_of((program, up)));
            silent.push((proxy, Waiting::new(name, command)));
        }
    }
    // The clock of each runs from when its server fell silent.
    wait_for("each server is silent, or the command is done", LOOK_MAX, || {
        for (proxy, waiting) in &mut silent {
            if proxy.counts().stalls == 0 && waiting.took.is_none() {
                waiting.since = Instant::now();
            }
            waiting.look();
        }
        let goes_on =
            |(proxy, it): &&(Proxy, Waiting)| proxy.counts().stalls == 0 && it.took.is_none();
        let going_on: Vec<_> = silent.iter().filter(goes_on).map(|it| it.1.name.clone()).collect();
        if going_on.is_empty() { Ok(()) } else { Err(going_on) }
    });
    let (proxies, all): (Vec<_>, Vec<_>) = silent.into_iter().unzip();
    let stalled = proxies.iter().zip(all).filter(|(proxy, _)| proxy.counts().stalls > 0);
    let stalled: Vec<_> = stalled.map(|(_, waiting)| waiting).collect();
    for way in WAYS {
        let of_way = stalled.iter().filter(|it| it.name.starts_with(&name_of(way))).count();
        assert!(of_way >= 3, "{}: {of_way} fell silent before the end", name_of(way));
    }
    end_in_time(stalled);
}
