//! A request to the port that shows metrics, as a scraper makes it. One request a
//! connection, with a deadline. Used by tests of what a server shows.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Its number.
    pub status: u16,
    /// What stands before the body.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Asks for a path.
#[track_caller]
pub fn get(address: SocketAddr, path: &str) -> Answer {
    request(address, "GET", path, &address.to_string())
}

/// Makes a request with any method, under any name.
#[track_caller]
pub fn request(address: SocketAddr, method: &str, path: &str, host: &str) -> Answer {
    let what = format!("{method} {path} from {address}");
    let stream = TcpStream::connect_timeout(&address, ANSWER_MAX);
    let mut stream = stream.unwrap_or_else(|error| panic!("{what}: cannot connect: {error}"));
    stream.set_read_timeout(Some(ANSWER_MAX)).expect("a socket takes it");
    let text = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    let written = stream.write_all(text.as_bytes());
    written.unwrap_or_else(|error| panic!("{what}: the request is not read: {error}"));
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let limit_s = ANSWER_MAX.as_secs();
    read.unwrap_or_else(|error| {
        panic!("{what}: the answer does not end within {limit_s} s: {error}; so far: {answer:?}")
    });
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{what}: no end of the head: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|number| number.parse().ok());
    let status = status.unwrap_or_else(|| panic!("{what}: no status: {head:?}"));
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// The value of a series, such as `rdma_serve_sessions`; none if it is not there.
pub fn series(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}
