//! The metrics that a server shows, each moved by its cause; and their names
//! against those of docs/metrics.md. What needs an RDMA device to move is not here.
//! Nothing from outside makes an error of the class `bug`, nor one of `local` that
//! is not refused before it is asked for.

use crate::prometheus::{altered, root};
use crate::{PROXY, Watched, proxied, put};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use verbatim_control::ConnectOptions;
use verbatim_proto::message::{OpenFile, ReadRequest};
use verbatim_proto::units::CHUNK_BYTES_DEFAULT;
use verbatim_proto::{ClientMessage, FileId, WirePath};
use verbatim_tests::http::get;
use verbatim_tests::process::{Home, Running, Signal, exists, wait_for, when};
use verbatim_tests::proxy::{Direction, Harm, Kind, Rule};
use verbatim_tests::raw::Raw;

/// How long a number may take to move: ports and disks are looked at every two seconds.
const MOVE_MAX: Duration = Duration::from_secs(30);

const MIB: usize = 1 << 20;

/// All series, without what every name begins with.
fn look(watched: &Watched) -> BTreeMap<String, f64> {
    let text = get(watched.metrics, "/metrics").body;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let name = name.strip_prefix("rdma_serve_").expect("all names begin alike");
        (name.to_owned(), value.parse().expect("a number"))
    });
    series.collect()
}

/// Makes a cause, and waits until each of these series has grown by it.
#[track_caller]
fn grow<T>(watched: &Watched, names: &[&str], cause: impl FnOnce() -> T) -> T {
    let before = look(watched);
    let of = |all: &BTreeMap<String, f64>, name: &str| {
        *all.get(name).unwrap_or_else(|| panic!("no {name} in {all:#?}"))
    };
    for name in names {
        let _ = of(&before, name);
    }
    let made = cause();
    for name in names {
        let before = of(&before, name);
        wait_for(&format!("{name} is more than {before}"), MOVE_MAX, || {
            when(of(&look(watched), name), |now| *now > before)
        });
    }
    made
}

#[test]
fn the_docs_name_every_metric_and_no_other() {
    let watched = Watched::start();
    // Ports are looked at soon after the server began.
    let shown = wait_for("the server shows port_bytes_total", MOVE_MAX, || {
        let names = look(&watched).into_keys().map(|name| family(&name).to_owned());
        when(names.collect::<BTreeSet<_>>(), |names| names.contains("port_bytes_total"))
    });
    let docs = fs::read_to_string(root().join("docs/metrics.md")).expect("the docs");
    let table = docs.split("## Metrics").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows = table.expect("a section").lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let named: BTreeSet<_> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(|name| family(name).to_owned())
        // Not on this machine: drivers other than mlx5 do not count it.
        .filter(|name| name != "port_requests_total")
        .collect();
    assert_eq!(shown, named);
}

/// The name of a series without its labels, and of a histogram without its parts.
fn family(series: &str) -> &str {
    let name = series.split('{').next().unwrap_or_default();
    let parts = ["_bucket", "_sum", "_count"];
    parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name)
}

#[test]
fn each_metric_moves_with_what_is_copied() {
    let watched = Watched::start();
    watched.make("data/big", 24 * MIB);
    fs::create_dir(watched.path("data/folder")).expect("a folder");
    watched.make("data/folder/small", 5000);
    let (out, cp) = (watched.text("out"), |arguments: &[&str]| watched.home.cp(arguments));
    let read = [
        "bytes_total{direction=\"read\",transport=\"tcp\"}",
        "chunks_total{direction=\"read\",transport=\"tcp\",verdict=\"verified\"}",
        "operations_total{operation=\"open\",outcome=\"ok\"}",
        "operations_total{operation=\"close\",outcome=\"ok\"}",
        "operations_total{operation=\"scan\",outcome=\"ok\"}",
        "step_seconds_count{step=\"open\"}",
        "step_seconds_count{step=\"prepare\"}",
        "step_seconds_count{step=\"read\"}",
        "step_seconds_sum{step=\"read\"}",
        "connections_total{result=\"accepted\"}",
        "fallbacks_total{reason=\"no_device\"}",
    ];
    grow(&watched, &read, || cp(&["-r", &watched.at("data/."), &out]).done());
    let write = [
        "bytes_total{direction=\"write\",transport=\"tcp\"}",
        "chunks_total{direction=\"write\",transport=\"tcp\",verdict=\"verified\"}",
        "operations_total{operation=\"create\",outcome=\"ok\"}",
        "operations_total{operation=\"commit\",outcome=\"ok\"}",
        "operations_total{operation=\"make\",outcome=\"ok\"}",
        "step_seconds_count{step=\"write\"}",
        "step_seconds_count{step=\"commit\"}",
        "notifications_total{transport=\"tcp\"}",
    ];
    grow(&watched, &write, || cp(&["-r", &format!("{out}/."), &watched.at("in")]).done());
    // A file that was just written is not trusted, so it is some time until it is in the cache.
    let cached = [HIT, "cache_lookups_total{result=\"miss\"}", "cache_entries", "cache_bytes"];
    grow(&watched, &cached, || {
        // Of its own: others may be in the cache by now.
        watched.make("data/cached", 24 * MIB);
        let before = look(&watched)[HIT];
        let what = format!("a copy finds its file in the cache: {HIT} is more than {before}");
        wait_for(&what, MOVE_MAX, || {
            cp(&["-f", &watched.at("data/cached"), &out]).done();
            when(look(&watched)[HIT], |now| *now > before)
        });
    });
    // While a client is in, and gone with it.
    let held = ["sessions", "links{transport=\"tcp\"}", "slots", "regions"];
    let slow = ["-q", "--bwlimit", "256K", &format!("{out}/big"), &watched.at("in/slow")];
    let all_are_zero = || {
        for name in held {
            wait_for(&format!("the server shows {name} as 0"), MOVE_MAX, || {
                when(look(&watched)[name], |now| *now == 0.0)
            });
        }
    };
    all_are_zero();
    let slow = grow(&watched, &held, || Running::start(watched.home.command("rdma-cp", &slow)));
    drop(slow);
    all_are_zero();
}

#[test]
fn a_client_that_watches_is_in_and_holds_nothing() {
    let watched = Watched::start();
    watched.make("data/a", MIB);
    let words = ["-q", "--watch", &watched.at("data"), &watched.text("out/mirror")];
    let mut watcher = Running::start(watched.home.command("rdma-sync", &words));
    wait_for("rdma-sync has copied the file data/a", MOVE_MAX, || {
        exists(&watched.path("out/mirror/a")).map_err(|missing| (missing, watcher.report()))
    });
    let idle = Held { sessions: 1.0, links: 0.0, regions: 0.0, links_lost: 0.0 };
    wait_for("rdma-sync waits for changes: a session without links and regions", MOVE_MAX, || {
        when(Held::now(&watched), |held| *held == idle).map_err(|held| (held, watcher.report()))
    });
    std::thread::sleep(Duration::from_secs(1));
    let held = Held::now(&watched);
    assert_eq!(held, idle, "a second later: {:?}", watcher.report());
    drop(watcher);
}

/// What a server shows of its clients.
#[derive(Debug, PartialEq)]
struct Held {
    sessions: f64,
    links: f64,
    regions: f64,
    /// Of clients that went on without them: one that closes its links loses none.
    links_lost: f64,
}

impl Held {
    fn now(watched: &Watched) -> Self {
        let now = look(watched);
        let sum = |family: &str| {
            let series = now.iter().filter(|(name, _)| name.starts_with(family));
            series.map(|(_, count)| count).sum()
        };
        Self {
            sessions: now["sessions"],
            links: sum("links{"),
            regions: now["regions"],
            links_lost: sum("links_lost_total"),
        }
    }
}

#[test]
fn each_metric_of_trouble_moves_with_its_cause() {
    let watched = Watched::start();
    watched.make("data/big", 24 * MIB);
    let (big, out) = (watched.text("data/big"), watched.text("out"));
    let refused = ["operations_total{operation=\"create\",outcome=\"failed\"}", PEER];
    grow(&watched, &refused, || {
        watched.home.cp(&[&big, &watched.at("data/new")]).refused(1, &["read-only"])
    });
    // Somebody writes to a file while it is read.
    let changed = ["operations_total{operation=\"close\",outcome=\"failed\"}", RETRY];
    grow(&watched, &changed, || {
        let slow = ["-q", "--bwlimit", "8M", &watched.at("data/big"), &out];
        let slow = Running::start(watched.home.command("rdma-cp", &slow));
        wait_for("the copy reads: the server shows bytes read over TCP", MOVE_MAX, || {
            let bytes = look(&watched)["bytes_total{direction=\"read\",transport=\"tcp\"}"];
            when(bytes, |bytes| *bytes > 0.0)
        });
        let file = fs::File::options().append(true).open(&big).expect("opens");
        file.set_len(24 * MIB as u64 + 1).expect("it grows");
        slow.end().done()
    });
    grow(&watched, &["connections_total{result=\"refused\"}", PEER], || {
        let stranger = Home::new();
        let token = watched.text("stranger");
        stranger.cp(&["--new-token", &token]).done();
        let known = ["--trust-on-first-use", "--token-file", &token];
        stranger.cp(&[&known[..], &[&watched.at("data/big"), &out]].concat()).refused(3, &[])
    });
    std::os::unix::fs::symlink("/etc/hostname", watched.path("data/out")).expect("a link");
    grow(&watched, &[LOCAL], || open_by_hand(&watched, "data/out"));
    let mismatched = "chunks_total{direction=\"write\",transport=\"tcp\",verdict=\"mismatched\"}";
    grow(&watched, &[mismatched], || altered(&watched, "data/big"));
    // Of one link, so that it is the one which carries.
    let cut = Rule::first(Kind::Data, Direction::Down, Harm::CutAfter(3 << 20));
    grow(&watched, &["links_lost_total{transport=\"tcp\"}"], || {
        proxied(&watched, cut, &["-j", "1", &format!("{PROXY}/data/big"), &out]).done()
    });
}

/// Opens a file as the commands do only when somebody changed it behind their look.
fn open_by_hand(watched: &Watched, path: &str) -> Raw {
    let mut raw = Raw::connect(&ConnectOptions {
        host: "127.0.0.1".into(),
        port: watched.address.port(),
        state_dir: watched.home.state(),
        config_dir: watched.home.path().join("config"),
        key: None,
        fingerprint: None,
        trust_on_first_use: false,
        certificates: Default::default(),
        agent: "operate test".into(),
        chunk_bytes: CHUNK_BYTES_DEFAULT,
        timeout: MOVE_MAX,
    });
    let path = WirePath::parse(path.as_bytes()).expect("a path");
    let files = vec![OpenFile { file: FileId(1), path, have: Vec::new() }];
    raw.say(ClientMessage::Read(ReadRequest::Open { files }));
    raw
}

const HIT: &str = "cache_lookups_total{result=\"hit\"}";
const PEER: &str = "errors_total{class=\"peer\"}";
/// What whoever asked must ask otherwise. The fourth, `bug`, is what cannot happen.
const LOCAL: &str = "errors_total{class=\"local\"}";
const RETRY: &str = "errors_total{class=\"retry\"}";

#[test]
fn what_an_upload_does_not_move_is_counted() {
    let watched = Watched::start();
    watched.make("out/big", 24 * MIB);
    let ends = [watched.text("out/"), watched.at("in/")];
    let sync = || Running::start(watched.home.command("rdma-sync", &ends)).end().done();
    sync();
    // A byte of it changes; the rest of the file is there.
    let file = fs::File::options().write(true).open(watched.path("out/big")).expect("opens");
    file.write_all_at(b"x", 7).expect("writes");
    let found = "spared_bytes_total{reason=\"found\"}";
    grow(&watched, &[found], sync);
    let value = look(&watched)[found];
    assert!((20 << 20..24 << 20).contains(&(value as usize)), "{value} bytes");

    let sparse = fs::File::create(watched.path("out/sparse")).expect("a file");
    sparse.set_len(64 << 20).expect("it grows");
    grow(&watched, &["spared_bytes_total{reason=\"hole\"}"], sync);

    let slow = ["-q", "--bwlimit", "8M", &watched.text("out/big"), &watched.at("in/again")];
    let moved = "bytes_total{direction=\"write\",transport=\"tcp\"}";
    let slow = grow(&watched, &[moved], || Running::start(watched.home.command("rdma-cp", &slow)));
    slow.signal(Signal::KILL);
    slow.end();
    let big = watched.text("out/big");
    grow(&watched, &["spared_bytes_total{reason=\"resumed\"}"], || {
        watched.home.cp(&[&big, &watched.at("in/again")]).done()
    });
}

#[test]
fn what_ports_count_is_shown_in_bytes() {
    let watched = Watched::start();
    let port = watched.path("machine/sys/class/infiniband/mlx5_0/ports/1");
    let of = |what: &str, more: &str| format!("port_{what}{{device=\"mlx5_0\",port=\"1\"{more}}}");
    fs::create_dir(port.join("hw_counters")).expect("a folder");
    for name in ["rx_read_requests", "rx_write_requests"] {
        put(watched.dir.path(), &port.join("hw_counters").join(name), "5");
    }
    let [received, sent] = ["received", "sent"].map(|way| format!(",direction=\"{way}\""));
    let expected = [
        (of("active", ""), 1.0),
        (of("rate_bytes_per_second", ""), 50e9),
        (of("bytes_total", &received), 4000.0),
        (of("bytes_total", &sent), 4000.0),
        (of("packets_total", &received), 1000.0),
        (of("errors_total", ",error=\"link_downed\""), 1.0),
        (of("requests_total", ",operation=\"read\""), 5.0),
        (of("requests_total", ",operation=\"write\""), 5.0),
    ];
    for (name, value) in expected {
        wait_for(&format!("{name} is {value}"), MOVE_MAX, || {
            when(look(&watched).remove(&name), |now| *now == Some(value))
        });
    }
    let changed = [
        ("counters/port_rcv_data", of("bytes_total", &received)),
        ("counters/port_xmit_packets", of("packets_total", &sent)),
        ("counters/link_downed", of("errors_total", ",error=\"link_downed\"")),
        ("hw_counters/rx_read_requests", of("requests_total", ",operation=\"read\"")),
    ];
    let names: Vec<_> = changed.iter().map(|(_, name)| name.as_str()).collect();
    grow(&watched, &names, || {
        for (file, _) in &changed {
            put(watched.dir.path(), &port.join(file), "2500");
        }
    });
    let now = look(&watched);
    assert_eq!(now[&of("bytes_total", &received)], 10_000.0, "words of four bytes");
    let (free, size) =
        (now["export_free_bytes{export=\"in\"}"], now["export_size_bytes{export=\"in\"}"]);
    assert!(0.0 < free && free <= size, "{free} of {size}");
    let begun = now["start_time_seconds"];
    assert!(now["certificate_expiry_seconds{}"] > begun && begun > 1.7e9, "{begun}");
}
