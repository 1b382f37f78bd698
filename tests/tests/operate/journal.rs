//! Logs in the journal, without systemd: the commands run where another folder
//! lies over the journal's. Once the test listens on the socket in it, once a real
//! journald does, and journalctl finds a copy by the request id its client told.

use crate::{Watched, has};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;
use verbatim_tests::process::{Running, binary, skip};

/// How long a line may take.
const LINE_MAX: Duration = Duration::from_secs(20);

/// The fields of a datagram: `NAME=value`, or the name, a length of eight bytes and the value;
/// a line end behind each.
fn fields(mut rest: &[u8]) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut fields = BTreeMap::new();
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, behind) = (&rest[..end], &rest[end + 1..]);
        if let Some(equals) = line.iter().position(|byte| *byte == b'=') {
            fields.insert(text(&line[..equals]), text(&line[equals + 1..]));
            rest = behind;
        } else {
            let (length, behind) = behind.split_first_chunk().expect("a length");
            let (value, behind) = behind.split_at(u64::from_le_bytes(*length) as usize);
            fields.insert(text(line), text(value));
            rest = &behind[1..];
        }
    }
    fields
}

#[test]
fn under_systemd_every_field_is_a_field_of_the_journal() {
    let name = "under_systemd_every_field_is_a_field_of_the_journal";
    if !has(name, "unshare") {
        return;
    }
    let over = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
                mount --bind \"$1\" /run/systemd/journal && shift && exec \"$@\"";
    let within = |folder: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", over, "sh", folder]);
        command
    };
    let journal = tempfile::tempdir().expect("a folder");
    let folder = journal.path().to_str().expect("a plain name");
    if !within(folder).arg("true").output().is_ok_and(|output| output.status.success()) {
        return skip(name, "no mount namespace can be made here");
    }
    let socket = UnixDatagram::bind(journal.path().join("socket")).expect("a socket");
    socket.set_read_timeout(Some(LINE_MAX)).expect("a socket takes it");
    let watched = Watched::start();
    watched.make("data/a", 1 << 20);
    let mut command = within(folder);
    let state = watched.home.state();
    command.arg(binary("rdma-serve")).arg("--state").arg(state.join("second"));
    command.args(["--listen", "127.0.0.1:0", "--metrics", "off", "--log-format", "journald"]);
    let serve = Running::start({
        command.arg(watched.path("data"));
        command
    });
    let mut buffer = vec![0; 64 << 10];
    let listening = loop {
        let length = socket.recv(&mut buffer).expect("the journal is told");
        let fields = fields(&buffer[..length]);
        if fields.get("MESSAGE").is_some_and(|message| message == "listening") {
            break fields;
        }
    };
    let field = |name: &str| listening.get(name).map_or("", String::as_str);
    assert!(field("VERBATIM_FINGERPRINT").starts_with("SHA256:"), "{listening:?}");
    assert!(field("VERBATIM_ADDRESS").starts_with("127.0.0.1:"), "{listening:?}");
    assert_eq!((field("PRIORITY"), field("SYSLOG_IDENTIFIER")), ("5", "rdma-serve"));
    drop(serve);
}

/// A journald of its own, a server whose standard error leads to it, one copy, and what the
/// journal has of it. Everything in it ends with the shell, within the bounds of its loops.
const JOURNALED: &str = r#"
set -eu
mount -t tmpfs none /run
mkdir -p /run/systemd/journal
/lib/systemd/systemd-journald & journald=$!
serve=
trap 'kill $serve $journald 2>/dev/null || true' EXIT
tries=0
until [ -S /run/systemd/journal/socket ] && [ -S /run/systemd/journal/stdout ]; do
    tries=$((tries + 1)); [ $tries -lt 200 ]; sleep 0.05
done
# As systemd does for a unit, so that the server knows where its standard error leads.
known='export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2); exec "$@"'
systemd-cat sh -c "$known" sh "$1" --state "$3" --listen 127.0.0.1:0 --metrics off "data=$4" &
serve=$!
until door=$(ls "$3/local" 2>/dev/null) && [ -n "$door" ]; do
    tries=$((tries + 1)); [ $tries -lt 600 ]; sleep 0.05
done
port=${door%%.*}
"$2" --state "$3" --json "rdma://127.0.0.1:$port/data/a" "$5"
# The journal may be late.
until journalctl --directory /run/log/journal --output cat --no-pager _COMM=rdma-serve |
    grep -q "file sent"; do
    tries=$((tries + 1)); [ $tries -lt 1000 ]; sleep 0.05
done
kill $serve && wait $serve || true
journalctl --directory /run/log/journal --output json --no-pager _COMM=rdma-serve
"#;

#[test]
fn a_real_journal_finds_a_copy_by_its_request() {
    let name = "a_real_journal_finds_a_copy_by_its_request";
    for command in ["unshare", "systemd-cat", "journalctl", "/lib/systemd/systemd-journald"] {
        if !has(name, command) {
            return;
        }
    }
    if !Command::new("unshare")
        .args(["--mount", "mount", "-t", "tmpfs", "none", "/run"])
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return skip(name, "no mount namespace can be made here");
    }
    let dir = tempfile::tempdir().expect("a folder");
    for folder in ["data", "out", "state"] {
        fs::create_dir(dir.path().join(folder)).expect("a folder");
    }
    fs::write(dir.path().join("data/a"), "content").expect("a file");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", JOURNALED, "sh"]);
    command.args([binary("rdma-serve"), binary("rdma-cp")]);
    command.args(["state", "data", "out"].map(|folder| dir.path().join(folder)));
    command.env_remove("RUST_LOG").env_remove("JOURNAL_STREAM");
    let told = Running::start(command).end().done().stdout;
    let lines: Vec<Value> =
        told.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect();
    let summary = lines.iter().find(|line| line["event"] == "summary").expect("a summary");
    let of_request = |line: &&Value| {
        summary["request"].is_string() && line["VERBATIM_REQUEST"] == summary["request"]
    };
    let found: Vec<_> = lines.iter().filter(of_request).collect();
    let sent = found.iter().find(|line| line["MESSAGE"] == "file sent");
    let sent = sent.unwrap_or_else(|| panic!("no line of {summary} in {lines:#?}"));
    let field = |name: &str| sent[name].as_str().unwrap_or_default();
    assert_eq!((field("VERBATIM_PATH"), field("VERBATIM_BYTES")), ("data/a", "7"), "{sent}");
    assert_eq!((field("VERBATIM_TRANSPORT"), field("PRIORITY")), ("tcp", "5"), "{sent}");
    assert!(field("VERBATIM_PEER").starts_with("127.0.0.1:"), "{sent}");
    assert_eq!(field("_TRANSPORT"), "journal", "auto is the journal under systemd: {sent}");
}
