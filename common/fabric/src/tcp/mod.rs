//! The TCP link: one-sided operations as small frames that the peer's worker
//! answers. A read is answered with sendfile from the file itself; a write
//! lands in the registered slot and is acknowledged, so that its completion
//! means what it means on a queue pair. Sockets never block.

mod body;
mod frame;
mod link;
mod reads;
mod wire;

pub use link::TcpLink;

use crate::error::FabricError;
use rustix::net::sockopt;
use socket2::{Domain, Socket, Type};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// What a data connection begins with; no TLS record begins like this.
pub const JOIN_MAGIC: [u8; 8] = *b"VBTMJOIN";

/// What a data connection inside TLS begins with, in the clear; the rest of it is sealed.
pub const SEALED_MAGIC: [u8; 8] = *b"VBTMSEAL";

/// Bytes of the secret behind the magic.
pub const SECRET_BYTES: usize = 32;

/// Connects a data connection to a server and says which session it belongs to.
pub fn join(
    peer: SocketAddr,
    secret: &[u8; SECRET_BYTES],
    timeout: Duration,
) -> Result<TcpStream, FabricError> {
    let mut stream = connect(peer, timeout)
        .map_err(|e| FabricError::system("cannot connect a data connection", e))?;
    let mut hello = Vec::with_capacity(JOIN_MAGIC.len() + SECRET_BYTES);
    hello.extend_from_slice(&JOIN_MAGIC);
    hello.extend_from_slice(secret);
    stream
        .set_write_timeout(Some(timeout))
        .and_then(|()| stream.write_all(&hello))
        .map_err(|e| FabricError::system("cannot join the session", e))?;
    Ok(stream)
}

/// Connects a socket that will be a link.
pub fn connect(peer: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(peer), Type::STREAM, None)?;
    unpace(&socket, peer);
    socket.connect_timeout(&peer.into(), timeout)?;
    Ok(socket.into())
}

/// Has nothing paced between a loopback address and whoever speaks with it, on a socket that is
/// about to connect to one or to listen on one; a connection that is there would stay paced. What
/// the system does for its networks it does on loopback too: BBR has a timer for every few
/// packets, a tenth of the time of a copy, and there is no network that would be spared.
pub fn unpace(socket: impl AsFd, address: SocketAddr) {
    if address.ip().to_canonical().is_loopback() {
        // Every kernel has it, and anybody may choose it. If not, a copy only takes longer.
        let _ = sockopt::set_tcp_congestion(socket, "reno");
    }
}
