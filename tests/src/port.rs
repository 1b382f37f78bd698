//! A port of 127.0.0.1 that a test has as long as it lives: bound, and never
//! listening. A server can be started at it again and again, and while there is
//! none whoever connects is refused; nobody else is given it meanwhile.

use std::net::{SocketAddr, TcpStream};
use verbatim_server::bind_port;

/// A port that is held.
pub struct Port {
    /// Where it is.
    pub address: SocketAddr,
    _socket: TcpStream,
}

impl Port {
    /// Takes one that is free.
    pub fn take() -> Self {
        let socket = bind_port(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let address = rustix::net::getsockname(&socket).expect("it is bound");
        Self { address: address.try_into().expect("an address and a port"), _socket: socket }
    }

    /// What `--listen` is given.
    pub fn text(&self) -> String {
        self.address.to_string()
    }
}
