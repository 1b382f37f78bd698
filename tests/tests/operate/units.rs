//! The units of systemd: it takes them without a word, finds little to say against
//! them, and a server does what they promise. It is told when the server listens,
//! that it is still there, and when it stops.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use verbatim_tests::process::{Home, Running, Signal, binary, skip};

/// What `systemd-analyze security` may count at most, of 100. A mirror is root, to keep owners; a
/// mount has to be seen by everybody, which forbids most of what closes the others.
const EXPOSURE_MAX: [(&str, &str); 3] = [
    ("rdma-serve.service", "20"),
    ("rdma-sync@data.service", "32"),
    ("rdma-mount@data.service", "48"),
];

/// The units, with paths that are here instead of where they are installed.
fn units(dir: &Path) -> Vec<PathBuf> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/systemd");
    let entries = fs::read_dir(from).expect("the project's units");
    let mut units = Vec::new();
    for entry in entries.map(|entry| entry.expect("entry")) {
        let text = fs::read_to_string(entry.path()).expect("text");
        // It takes openat2 away, and with it every file: seen under a real systemd.
        assert!(!text.contains("\nRestrictSUIDSGID=yes"), "{:?}", entry.path());
        let here = binary("rdma-serve").parent().expect("a folder").display().to_string();
        let text = text.replace("=rdma-", &format!("={here}/rdma-"));
        let name = entry.file_name().to_string_lossy().replace("@.", "@data.");
        let unit = dir.join(name);
        fs::write(&unit, text).expect("writes");
        units.push(unit);
    }
    units
}

#[test]
fn systemd_takes_the_units_and_finds_them_closed() {
    let name = "systemd_takes_the_units_and_finds_them_closed";
    let dir = tempfile::tempdir().expect("folder");
    let units = units(dir.path());
    assert_eq!(units.len(), EXPOSURE_MAX.len());
    for unit in &units {
        let verify =
            Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(unit).output();
        let Ok(said) = verify else { return skip(name, "no systemd-analyze") };
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        // Of other units of this machine it may say what it likes.
        let own = unit.file_name().expect("a name").to_string_lossy().into_owned();
        let of_ours = text.lines().filter(|line| line.contains(&own)).collect::<Vec<_>>();
        assert!(of_ours.is_empty() && said.status.success(), "{text}");
    }
    for (unit, exposure_max) in EXPOSURE_MAX {
        let mut security = Command::new("systemd-analyze");
        security.args(["security", "--no-pager", "--offline=true", "--threshold", exposure_max]);
        let said = security.arg(dir.path().join(unit)).output().expect("it was there before");
        assert!(said.status.success(), "{unit}: {}", String::from_utf8_lossy(&said.stdout));
    }
}

#[test]
fn what_is_above_a_mount_is_for_everybody() {
    let dir = tempfile::tempdir().expect("folder");
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/systemd/rdma-mount@.service");
    let text = fs::read_to_string(unit).expect("text");
    let before = text.lines().find_map(|line| line.strip_prefix("ExecStartPre=-/bin/sh -c '"));
    let script = before.and_then(|line| line.strip_suffix('\'')).expect("a line of shell");
    // As systemd has it: what is doubled is left for the shell.
    let script = script.replace("$$", "$");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "umask 0077 && exec /bin/sh -c \"$1\"", "sh", &script]);
    let done = shell.env("MOUNTPOINT", dir.path().join("a b/set")).status().expect("it starts");
    assert!(done.success());
    assert!(dir.path().join("a b/set").is_dir());
    let mode = fs::metadata(dir.path().join("a b")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
}

/// A server that a systemd started which this test is.
struct Told {
    serve: Running,
    socket: UnixDatagram,
    _kept: (tempfile::TempDir, Home),
}

impl Told {
    fn start(watchdog_us: &str, more: &[&str]) -> Self {
        let (dir, home) = (tempfile::tempdir().expect("folder"), Home::new());
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("binds");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("takes it");
        let export = format!("data={}", dir.path().display());
        let flags = ["--listen", "127.0.0.1:0", "--metrics", "off", &export];
        let mut command = home.command("rdma-serve", &[&flags, more].concat());
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", watchdog_us);
        Self { serve: Running::start(command), socket, _kept: (dir, home) }
    }

    fn heard(&self) -> String {
        let mut buffer = [0; 512];
        let bytes = self.socket.recv(&mut buffer).expect("it is told in time");
        String::from_utf8_lossy(&buffer[..bytes]).into_owned()
    }

    /// What is told until a line begins so, and that line.
    fn heard_until(&self, begin: &str) -> Vec<String> {
        let mut lines = Vec::new();
        while !lines.last().is_some_and(|line: &String| line.starts_with(begin)) {
            assert!(lines.len() < 1000, "not a word of {begin}: {lines:?}");
            lines.push(self.heard());
        }
        lines
    }
}

#[test]
fn the_watchdog_begins_anew_with_each_server_that_a_reload_starts() {
    // Longer than this test: what is told here is told beside the beats of a server.
    let told = Told::start("600000000", &["--reloadable"]);
    told.heard_until("READY=1");
    told.heard_until("WATCHDOG=1");
    for _ in 0..2 {
        told.serve.signal(Signal::HUP);
        let between = told.heard_until("READY=1");
        let alive = between.iter().filter(|line| *line == "WATCHDOG=1\n").count();
        assert!(alive >= 2, "before one ends, and when the other starts: {between:?}");
        told.heard_until("WATCHDOG=1");
    }
    told.serve.signal(Signal::TERM);
    told.heard_until("STOPPING=1");
    assert_eq!(told.serve.end().code, Some(0));
}

#[test]
fn systemd_is_told_when_a_server_listens_lives_and_stops() {
    let told = Told::start("400000", &[]);
    let ready = told.heard();
    assert!(ready.starts_with("READY=1\nSTATUS=serving 1 exports at 127.0.0.1:"), "{ready}");
    for _ in 0..3 {
        assert_eq!(told.heard(), "WATCHDOG=1\n");
    }
    told.serve.signal(Signal::TERM);
    let stopping = (0..100).map(|_| told.heard()).find(|text| text != "WATCHDOG=1\n");
    assert_eq!(stopping.as_deref(), Some("STOPPING=1\nSTATUS=ending sessions\n"));
    assert_eq!(told.serve.end().code, Some(0));
}

#[test]
fn a_configuration_is_checked_and_nothing_is_made() {
    let home = Home::new();
    let dir = tempfile::tempdir().expect("folder");
    let check = |more: &[&str]| {
        Running::start(home.command("rdma-serve", &[&["--check-config"], more].concat())).end()
    };
    let export = format!("data={}", dir.path().display());
    let said = check(&[&export]).done();
    assert_eq!(said.stdout, "good: 1 exports, to be served at 127.0.0.1:20490\n");
    assert!(!home.state().exists(), "it only looks");
    check(&["data=/nowhere"]).refused(2, &["cannot export /nowhere as data", "create the folder"]);
    check(&[&export, "--listen", "0.0.0.0:20490"]).refused(2, &["rdma-token add"]);
    check(&[&export, "--user", "nobody-at-all"]).refused(2, &["there is no such user"]);
    let config = dir.path().join("serve.toml");
    fs::write(&config, "[tls]\ncert = \"/nowhere/cert.pem\"\nkey = \"/nowhere/key.pem\"\n")
        .expect("writes");
    let config = config.to_str().expect("plain");
    check(&[&export, "--config", config]).refused(2, &["/nowhere/key.pem"]);
    check(&["--config", "/nowhere.toml"]).refused(2, &["/nowhere.toml"]);
}
