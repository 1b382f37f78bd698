//! The port of a server: how its address is taken before anybody listens there, and how
//! serving may end. Accepts nothing itself: `server` does.

use std::net::{SocketAddr, TcpStream};

/// How a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Running transfers may finish, for as long as the configuration says.
    Drained,
    /// Sessions end; their clients may come back to another server.
    AtOnce,
}

/// Takes an address without listening on it yet; one that a server had a moment ago is free.
/// The binary does so while it is root, for ports that only root may have.
pub fn take_port(address: SocketAddr) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    verbatim_fabric::tcp::unpace(&socket, address);
    bind(&socket, &address)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::tcp_congestion;

    #[test]
    fn a_server_that_only_this_machine_reaches_paces_nothing() {
        let usual = tcp_congestion(take_port(([0, 0, 0, 0], 0).into()).expect("a port"));
        let here = tcp_congestion(take_port(([127, 0, 0, 1], 0).into()).expect("a port"));
        let first = tcp_congestion(std::net::TcpListener::bind("0.0.0.0:0").expect("a port"));
        assert_eq!((usual, here), (first, Ok("reno".into())));
    }
}
