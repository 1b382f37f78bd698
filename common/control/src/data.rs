//! Data connections inside TLS: the same identity and the same cryptography as the
//! control connection, under a protocol name of their own, so that neither can be
//! taken for the other. The secret that joins a session is said inside. Owns the
//! handshake and its deadline; never moves data: the fabric gets what is returned.
//! The server's door and the client's links call it.

use crate::{Acceptor, ControlError, Fingerprint, tls, trust::Witness};
use rustls::pki_types::ServerName;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// Bytes of the secret that joins a session.
pub const SECRET_BYTES: usize = 32;

/// A data connection whose handshake is done.
pub type Sealed = (std::net::TcpStream, rustls::Connection);

impl Acceptor {
    /// Shakes hands on a data connection, and returns the secret it was joined with.
    pub async fn accept_data(
        &self,
        stream: TcpStream,
    ) -> Result<(Sealed, [u8; SECRET_BYTES]), ControlError> {
        let deadline = self.policy().deadline;
        let attempt = async {
            let mut stream = self.data_tls().accept(stream).await.map_err(|e| failed(&e))?;
            check_protocol(stream.get_ref().1.alpn_protocol())?;
            let mut secret = [0; SECRET_BYTES];
            stream.read_exact(&mut secret).await.map_err(|e| ControlError::broken(&e))?;
            let (stream, session) = stream.into_inner();
            let stream = stream.into_std().map_err(|e| ControlError::broken(&e))?;
            Ok(((stream, session.into()), secret))
        };
        timeout(deadline, attempt).await.unwrap_or_else(|_| Err(late(deadline)))
    }
}

/// Connects a data connection to the server of a session and says its secret, inside TLS.
/// `magic` goes in front, in the clear, and says what the connection is.
pub async fn join_sealed(
    peer: SocketAddr,
    server: Fingerprint,
    (magic, secret): (&[u8], &[u8; SECRET_BYTES]),
    time: Duration,
) -> Result<Sealed, ControlError> {
    let attempt = async {
        let broken = |e| ControlError::broken(&e);
        let mut stream = TcpStream::connect(peer).await.map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        stream.write_all(magic).await.map_err(broken)?;
        let config = tls::client_config(Witness::new(Some(server), None), None);
        let mut config = config.expect("a client that shows nothing can be set up");
        config.alpn_protocols = vec![tls::DATA_PROTOCOL.to_vec()];
        let subject = ServerName::try_from("verbatim").expect("it is a DNS name");
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(subject, stream).await.map_err(|e| failed(&e))?;
        check_protocol(stream.get_ref().1.alpn_protocol())?;
        stream.write_all(secret).await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        let (stream, session) = stream.into_inner();
        Ok((stream.into_std().map_err(broken)?, session.into()))
    };
    timeout(time, attempt).await.unwrap_or_else(|_| Err(late(time)))
}

/// An end that does not name the protocol agrees on nothing.
fn check_protocol(agreed: Option<&[u8]>) -> Result<(), ControlError> {
    if agreed == Some(tls::DATA_PROTOCOL) {
        return Ok(());
    }
    let cause = "the other end does not speak encrypted data".into();
    Err(ControlError::Tls { peer: PEER.into(), cause })
}

fn failed(error: &std::io::Error) -> ControlError {
    tls::failed(PEER, error)
}

fn late(time: Duration) -> ControlError {
    let what = "an encrypted data connection".into();
    ControlError::TimedOut { what, seconds: time.as_secs_f64() }
}

/// How the other end is called here; the caller's log knows its address.
const PEER: &str = "the data connection";
