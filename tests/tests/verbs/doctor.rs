//! The doctor with a real device: well, and ill in the ways that a guest kernel can
//! be made ill; and servers with and without RDMA, tried for real. What it says of
//! each case is here, word for word but for figures.

use super::{exports, folders, guest};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use verbatim_tests::process::{Ended, Home, Running, Serve, seen, skip, wait_for};

fn doctor(home: &Home, arguments: &[&str]) -> Ended {
    let ended = Running::start(home.command("rdma-doctor", arguments)).end();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    ended
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// Compares what the doctor says with `said/NAME.txt`, all of it, which a person has read.
#[derive(Default)]
struct Snapshots {
    wrong: Vec<String>,
}

impl Snapshots {
    fn look(&mut self, name: &str, home: &Home, arguments: &[&str]) {
        let ended = doctor(home, &[&["--sample", "0"], arguments].concat());
        let exit = ended.code.unwrap_or(-1);
        let said = format!("{}exit {exit}\n", masked(&ended.stdout));
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs/said");
        let read = std::fs::read_to_string(place.join(format!("{name}.txt"))).unwrap_or_default();
        if read != said {
            self.wrong.push(format!("---- {name} is told of otherwise:\n{said}"));
        }
    }

    fn end(self) {
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
    }
}

/// A report without what differs between two looks or two kernels: figures, ports of TCP,
/// fingerprints, rates and physical states of software devices, and notes.
fn masked(text: &str) -> String {
    let paragraphs = text.split("\n\n").filter(|it| !it.starts_with("NOTE "));
    let text = paragraphs.collect::<Vec<_>>().join("\n\n");
    text.lines().map(|line| masked_line(line) + "\n").collect()
}

fn masked_line(line: &str) -> String {
    let is_unit = |word: &str| ["us", "ms"].contains(&word) || word.contains("B/s");
    let measured = line.split(' ').any(is_unit);
    let is_port = line.contains(" Gb/sec ");
    let word = |word: &str| -> String {
        if word.starts_with('#') {
            return "#".into();
        }
        if is_unit(word) {
            return word.replace("us", "s").replace("ms", "s").replace(['M', 'G'], "");
        }
        let own = word.contains("127.0.0.1:") || word.contains("SHA256:");
        let (kept, rest) = match word.split_once(':') {
            Some((kept, rest)) if own => (kept, rest),
            _ if measured => ("", word),
            _ => return word.to_owned(),
        };
        if kept.ends_with("SHA256") {
            return "SHA256:...".into();
        }
        let mut rest = rest.replace(|letter: char| letter.is_ascii_digit(), "N");
        while rest.contains("NN") || rest.contains("N.N") {
            rest = rest.replace("NN", "N").replace("N.N", "N");
        }
        if kept.is_empty() { rest } else { format!("{kept}:{rest}") }
    };
    let words: Vec<_> = line.split(' ').map(word).collect();
    let indent = line.len() - line.trim_start().len();
    let said: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let said = match is_port {
        // Name, state, physical state, layer, rate; then the network device.
        true => [&said[..2], &["-".into(), said[3].clone(), "-".into()], &said[8..]].concat(),
        false => said,
    };
    let line = format!("{}{}", " ".repeat(indent), said.join(" "));
    let line = match line.split_once("limited by the ") {
        Some((before, rest)) if measured => {
            format!("{before}limited by the -:{}", rest.split_once(':').map_or("", |it| it.1))
        }
        _ => line,
    };
    match line.split_once(" (physically ") {
        Some((before, rest)) if !line.contains("LinkUp") => {
            format!("{before} (physically -){}", rest.split_once(')').map_or("", |it| it.1))
        }
        _ => line,
    }
}

#[test]
fn only_what_differs_is_masked() {
    let text = "rxe0/1         ACTIVE  LinkUp       Ethernet   2.5 Gb/sec (1X SDR)        eth0 mtu \
                9000\n  read    1024 KiB x 4 ######### 12.25 GB/s\n\nNOTE    x: y\n        fix: \
                z\n\nBLOCKS  127.0.0.1:4711: 64 KiB may be (physically Disabled) locked\n";
    let said = "rxe0/1 ACTIVE - Ethernet - eth0 mtu 9000\n  read N KiB x N # N B/s\n\nBLOCKS \
                127.0.0.1:N: 64 KiB may be (physically -) locked\n";
    assert_eq!(masked(text), said);
}

/// A device of its own to make ill; gone when this is.
struct Patient;

impl Patient {
    fn new() -> Self {
        guest("ip link add sick0 address 02:00:00:00:00:77 type dummy");
        let patient = Self;
        guest("ip link set sick0 mtu 9000 up");
        guest("ip addr add 10.77.0.1/24 dev sick0");
        guest("rdma link add rxesick type rxe netdev sick0");
        patient.is("ACTIVE", true);
        patient
    }

    /// Waits until its port is in this state, and has its address or not: the kernel follows the
    /// network device on a thread of its own.
    #[track_caller]
    fn is(&self, state: &str, addressed: bool) {
        let port = Path::new("/sys/class/infiniband/rxesick/ports/1");
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let what = format!("the port is {state}, and that it has 10.77.0.1 is {addressed}");
        wait_for(&what, PORT_MAX, || {
            let gids = std::fs::read_dir(port.join("gids")).map_err(|error| error.to_string())?;
            let gids: Vec<String> = gids.flatten().map(|gid| read(gid.path())).collect();
            let has = gids.iter().any(|gid| gid.contains("ffff:0a4d:0001"));
            let now = read(port.join("state"));
            let done = now.contains(state) && has == addressed;
            let used = gids.iter().map(|gid| gid.trim()).filter(|gid| gid.contains("ffff:"));
            seen(done, format!("{}; IPv4 addresses {:?}", now.trim(), used.collect::<Vec<_>>()))
        });
    }
}

/// How long a port may take to be what it was told to be.
const PORT_MAX: Duration = Duration::from_secs(10);

impl Drop for Patient {
    fn drop(&mut self) {
        // What is not there any more is gone already.
        let _ = Command::new("rdma").args(["link", "del", "rxesick"]).status();
        let _ = Command::new("ip").args(["link", "del", "sick0"]).status();
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_device_is_told_of_as_it_is_made_ill_and_well() {
    const NAME: &str = "a_device_is_told_of_as_it_is_made_ill_and_well";
    if std::env::var_os("VERBATIM_GUEST").is_none() {
        return skip(NAME, "it would add a device to this machine");
    }
    let (home, patient) = (Home::new(), Patient::new());
    let device = ["--device", "rxesick"];
    let mut said = Snapshots::default();
    said.look("healthy", &home, &device);
    let env = doctor(&home, &["--sample", "0", "--env", "--device", "rxesick"]).done();
    assert_eq!(env.stdout, "export NCCL_IB_HCA='=rxesick:1'\nexport NCCL_IB_GID_INDEX=1\n");

    guest("ip link set sick0 mtu 1500");
    said.look("wrong-mtu", &home, &device);
    guest("ip link set sick0 mtu 9000");

    // The kernel of the guest makes RoCE v2 entries of every address, so there is none when
    // there is no address but the link's own.
    guest("ip addr del 10.77.0.1/24 dev sick0");
    patient.is("ACTIVE", false);
    said.look("no-address", &home, &device);
    guest("ip addr add 10.77.0.1/24 dev sick0");
    patient.is("ACTIVE", true);

    guest("ip link set sick0 down");
    patient.is("DOWN", true);
    said.look("port-down", &home, &device);
    let script = doctor(&home, &["--sample", "0", "--fix-script", "--device", "rxesick"]).stdout;
    assert!(script.lines().any(|line| line == "ip link set sick0 up"), "{script}");
    // What the script says mends it.
    guest("ip link set sick0 up");
    patient.is("ACTIVE", true);
    said.look("healthy", &home, &device);

    // Somebody who may lock next to nothing.
    let shell = "ulimit -l 64; exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"";
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o777)).expect("a mode");
    let home = home.wrapped(&["sh", "-c", shell, "sh"]);
    // The guest has the files of whoever runs it, and that may be a container.
    let marks = ["/.dockerenv", "/run/.containerenv"];
    let container = marks.iter().any(|mark| Path::new(mark).exists());
    let name = if container { "low-memlock-container" } else { "low-memlock" };
    said.look(name, &home, &device);
    said.end();
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn servers_are_tried_over_verbs_and_over_tcp() {
    let dir = folders();
    let serve = Serve::start(&exports(dir.path()));
    let there = serve.address.to_string();
    let data = dir.path().join("data").display().to_string();
    let ended = doctor(serve.home(), &["--json", "--sample", "0", "--export", &data, &there]);
    let said = json(&ended);
    // As the server found it, by which its log says.
    let mapped = serve.log().contains("files are registered as they are");
    let read_path = if mapped { "mapped" } else { "staged" };
    let export = &said["exports"][0];
    assert_eq!(
        (&export["file_system"], &export["read_path"]),
        (&"tmpfs".into(), &read_path.into())
    );
    let tried = said["way"]["transports"].as_array().expect("transports");
    let carriers: Vec<_> =
        tried.iter().map(|it| it["carrier"].as_str().unwrap_or("none")).collect();
    assert!(carriers[0].starts_with("verbs ") && carriers[1] == "tcp", "{said}");
    for it in tried {
        let rates = it["rates"].as_array().expect("rates");
        assert_eq!(rates.len(), 10, "five shapes each way: {it}");
        assert!(rates.iter().all(|it| it["bytes_per_second"].as_f64() > Some(0.0)), "{it}");
        let latencies = it["latency_seconds"].as_array().expect("latencies");
        assert!(latencies.iter().all(|it| it["p50"].as_f64() > Some(0.0)), "{it}");
    }
    assert_eq!(said["way"]["verdict"]["path"], tried[0]["carrier"], "{said}");
    drop(serve);

    let [data, landing] = exports(dir.path());
    let serve = Serve::start(&["--no-rdma".to_owned(), data, landing]);
    let there = serve.address.to_string();
    let mut said = Snapshots::default();
    said.look("server-without-verbs", serve.home(), &[&there]);
    drop(serve);
    said.look("no-server", &Home::new(), &[&there]);
    said.end();
}
