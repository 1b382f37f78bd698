//! A relay on loopback that counts what a command puts on the wire, both ways, all
//! connections. It changes nothing. Its threads end with their connections, and
//! the one that listens with the process.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A running relay.
pub struct Relay {
    /// Where commands connect to.
    pub port: u16,
    bytes: Arc<AtomicU64>,
}

impl Relay {
    /// Begins to relay to a port of this machine.
    pub fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("has an address").port();
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = bytes.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", to)).expect("the server is there");
                for (from, into) in [(&client, &server), (&server, &client)] {
                    let from = from.try_clone().expect("clones");
                    let into = into.try_clone().expect("clones");
                    let counted = counted.clone();
                    std::thread::spawn(move || pump(from, into, &counted));
                }
            }
        });
        Self { port, bytes }
    }

    /// What was relayed since this was last asked.
    pub fn take_bytes(&self) -> u64 {
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

fn pump(mut from: TcpStream, mut into: TcpStream, counted: &AtomicU64) {
    let mut buffer = vec![0; 256 << 10];
    // Small messages are not to wait for one another here.
    let _ = into.set_nodelay(true);
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        counted.fetch_add(got as u64, Ordering::Relaxed);
        if into.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
    // One that is gone is as shut as it can be.
    let _ = into.shutdown(Shutdown::Write);
}
