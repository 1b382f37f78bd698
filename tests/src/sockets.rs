//! The TCP sockets of this machine as the kernel lists them: whether a port has a listener,
//! and how many connections were made to it. Opens none.

use std::fs;

/// The state of a socket that listens, as the kernel writes it.
const LISTENING: &str = "0A";

/// Whether somebody listens on a port of 127.0.0.1.
pub fn is_listening(port: u16) -> bool {
    listener(port).is_some()
}

/// The line of the kernel's table about the socket that listens on a port of 127.0.0.1.
pub fn listener(port: u16) -> Option<String> {
    let end = format!("0100007F:{port:04X}");
    let table = fs::read_to_string("/proc/self/net/tcp").expect("the kernel tells");
    let mut sockets = table.lines().skip(1).map(str::trim);
    let found = sockets.find(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[1] == end && words[3] == LISTENING
    });
    found.map(str::to_owned)
}

/// Connections of this process that were made to a port of it, and have not been closed here.
pub fn connected_to(port: u16) -> usize {
    let port = format!(":{port:04X}");
    let table = fs::read_to_string("/proc/self/net/tcp").expect("the kernel tells");
    // A line a socket: its number, its end, the other, its state, and the inode as the tenth.
    let is_ours = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[1].ends_with(&port) && words[3] != LISTENING && words[9] != "0"
    };
    table.lines().skip(1).filter(is_ours).count()
}
