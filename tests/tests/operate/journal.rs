//! Logs in the journal, without systemd: the commands run where another folder
//! lies over the journal's, and the test listens on the socket in it.

use crate::{Watched, has};
use std::collections::BTreeMap;
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
