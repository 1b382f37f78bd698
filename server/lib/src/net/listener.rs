//! The listening socket: binding before listening, the accept loop, and shutdown. While the
//! server drains, sessions may finish; after the deadline they are cut off.

use crate::net::accept::{Admission, Host};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How a server shuts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Running transfers may finish, for as long as the configuration says.
    Drain,
    /// Sessions end at once; their clients may reconnect to another server.
    Immediate,
}

/// Binds a socket without listening on it yet, with SO_REUSEADDR. The binary calls it while it is
/// root, for privileged ports.
pub fn bind_port(address: SocketAddr) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    verbatim_fabric::tcp::unpace(&socket, address);
    bind(&socket, &address)?;
    Ok(socket.into())
}

/// Accepts connections and serves each, until `stop` completes. Then waits for sessions for
/// `drain`, unless the mode is immediate, and cuts off the remaining ones.
pub(crate) async fn accept_until<H: Host + 'static>(
    listener: TcpListener,
    admission: Arc<Admission<H>>,
    mut stop: Pin<Box<dyn Future<Output = ShutdownMode> + Send + '_>>,
    drain: Duration,
    draining: impl Fn(),
) {
    let (stopping, _) = watch::channel(false);
    let mut sessions = JoinSet::new();
    let mut ends = None;
    // A draining server still accepts connections: a session may need another link, and a new
    // client is told why it is refused.
    while ends.is_none() || !sessions.is_empty() {
        let end = ends.unwrap_or_else(Instant::now);
        let accepted = tokio::select! {
            mode = &mut stop, if ends.is_none() => {
                let drain = if mode == ShutdownMode::Immediate { Duration::ZERO } else { drain };
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
                // Most likely EMFILE: wait for some descriptors to be closed.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(incoming) = admission.admit(stream, peer) else { continue };
        let (admission, stopping) = (admission.clone(), stopping.subscribe());
        sessions.spawn(async move { admission.handle(incoming, stopping).await });
    }
    // A parent process may hold the socket open: without this, clients would wait in its backlog.
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
        let usual = tcp_congestion(bind_port(([0, 0, 0, 0], 0).into()).expect("a port"));
        let here = tcp_congestion(bind_port(([127, 0, 0, 1], 0).into()).expect("a port"));
        let first = tcp_congestion(std::net::TcpListener::bind("0.0.0.0:0").expect("a port"));
        assert_eq!((usual, here), (first, Ok("reno".into())));
    }
}
