//! Many clients of one server: sessions that are let in and say nothing, and what a
//! server that so many come to at once must be told. Called by `crowd-bench` and by
//! the comparison.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use verbatim_control::{ConnectOptions, Connection, connect};
use verbatim_proto::units::CHUNK_BYTES_DEFAULT;

/// As many as come at once: they are of one address, and shake hands first.
pub const CONFIG: &str = "[limits]\nhandshakes_per_second = 100000\n\
     handshakes_per_second_per_address = 100000\n[log]\nlevel = \"error\"\n";

/// How long one of the crowd may take to be let in.
const ENTER_MAX: Duration = Duration::from_secs(60);

/// Those that come in at a time, fewer than one address may have at the door.
const AT_THE_DOOR: usize = 100;

/// How long a server may take to answer who watches it.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Lets so many in to the server of this state, who stay as long as what is returned.
pub async fn enter(state: &Path, port: u16, count: usize) -> Vec<Connection> {
    let options = ConnectOptions {
        host: "127.0.0.1".into(),
        port,
        state_dir: state.to_owned(),
        config_dir: state.join("config"),
        key: None,
        fingerprint: None,
        trust_on_first_use: false,
        certificates: Default::default(),
        agent: "crowd-bench".into(),
        chunk_bytes: CHUNK_BYTES_DEFAULT,
        timeout: ENTER_MAX,
    };
    let mut crowd = Vec::with_capacity(count);
    while crowd.len() < count {
        let mut coming = tokio::task::JoinSet::new();
        for _ in 0..AT_THE_DOOR.min(count - crowd.len()) {
            let options = options.clone();
            coming.spawn(async move { connect(&options).await.expect("it is let in") });
        }
        crowd.extend(coming.join_all().await);
    }
    crowd
}

/// Asks a server on this machine for a page of those who watch.
///
/// # Errors
/// When it does not answer.
pub fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The value of a metric in a text of them, by its name and labels.
pub fn metric(text: &str, name: &str) -> Option<f64> {
    let of = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_all_of_its_name() {
        let text =
            "# HELP a_total x\na_total{result=\"hit\"} 7\na_total{result=\"miss\"} 3\nb_total 5\n";
        assert_eq!(metric(text, "a_total{result=\"miss\"}"), Some(3.0));
        assert_eq!(metric(text, "a_total"), None);
        assert_eq!(metric(text, "b_total"), Some(5.0));
        assert_eq!(metric(text, "_total"), None);
    }
}
