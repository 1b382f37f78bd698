//! The port of a server: how its address is taken before anybody listens there, the accept loop,
//! and how it ends: draining, sessions may finish; after that they are cut off.

use crate::net::accept::{Guests, Host};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

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

/// Accepts connections and serves each, until `stop` says how to end; then waits for sessions as
/// long as `drain`, unless they are to end at once, and cuts off those that are left.
pub(crate) async fn accept_until<H: Host + 'static>(
    listener: TcpListener,
    guests: Arc<Guests<H>>,
    mut stop: Pin<Box<dyn Future<Output = Ending> + Send + '_>>,
    drain: Duration,
    draining: impl Fn(),
) {
    let (stopping, _) = watch::channel(false);
    let mut sessions = JoinSet::new();
    let mut ends = None;
    // While it drains it still takes connections: a session may need another link, and a
    // client that comes now is told why it is sent away.
    while ends.is_none() || !sessions.is_empty() {
        let end = ends.unwrap_or_else(Instant::now);
        let accepted = tokio::select! {
            ending = &mut stop, if ends.is_none() => {
                let drain = if ending == Ending::AtOnce { Duration::ZERO } else { drain };
                stopping.send_replace(true);
                draining();
                ends = Some(Instant::now() + drain);
                tracing::info!(sessions = sessions.len(), seconds = drain.as_secs(), "draining");
                continue;
            }
            () = tokio::time::sleep_until(end), if ends.is_some() => {
                tracing::warn!(sessions = sessions.len(), "sessions ended before they were done");
                break;
            }
            Some(_) = sessions.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                // Out of descriptors, most likely: let some go first.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(caller) = guests.arrive(stream, peer) else { continue };
        let (guests, stopping) = (guests.clone(), stopping.subscribe());
        sessions.spawn(async move { guests.receive(caller, stopping).await });
    }
    // Another process may hold the port: nobody is to wait there for a server to come.
    let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
    drop(listener);
    sessions.shutdown().await;
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
