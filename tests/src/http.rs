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
pub fn get(address: SocketAddr, path: &str) -> Answer {
    request(address, "GET", path, &address.to_string())
}

/// Makes a request with any method, under any name.
pub fn request(address: SocketAddr, method: &str, path: &str, host: &str) -> Answer {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX).expect("it listens");
    stream.set_read_timeout(Some(ANSWER_MAX)).expect("a socket takes it");
    let text = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    let status = head.split(' ').nth(1).and_then(|number| number.parse().ok());
    Answer { status: status.expect("a number"), head: head.to_owned(), body: body.to_owned() }
}

/// The value of a series, such as `rdma_serve_sessions`; none if it is not there.
pub fn series(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}
