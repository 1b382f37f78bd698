//! The client's way in: resolve, connect, TLS, trust, greet. Owns the order of
//! these steps and the one deadline over them. Never tries again, and never says
//! anything before the server is trusted. `client` calls [`connect`].

use crate::{
    Authority, CertificateFiles, ClientKey, ControlError, Distrust, Fingerprint, KnownServers,
    LocalDoor, Receiver, Sender, Trust, Voucher,
    authority::Shown,
    error, tls,
    trust::{self, Witness},
};
use rustls::pki_types::ServerName;
use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::TlsConnector;
use verbatim_proto::{
    ClientMessage, Code, Fault, ServerMessage,
    message::{Hello, Proof, Welcome},
};

/// Whom to connect to, and as whom.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// A name or an address.
    pub host: String,
    /// The port of the control connection.
    pub port: u16,
    /// Where a server on this machine leaves its local door.
    pub state_dir: PathBuf,
    /// Where the known servers are.
    pub config_dir: PathBuf,
    /// Whose key to prove; without one, that of a local door, or none.
    pub key: Option<ClientKey>,
    /// The one server to accept; without one, that of a local door, or the known one.
    pub fingerprint: Option<Fingerprint>,
    /// Whether to believe, and remember, a server that nobody vouches for.
    pub trust_on_first_use: bool,
    /// Certificates of the user's own authority, for either side.
    pub certificates: CertificateFiles,
    /// Program and version, for the server's log.
    pub agent: String,
    /// The chunk size to ask for.
    pub chunk_bytes: u32,
    /// How long all of it may take.
    pub timeout: Duration,
}

/// A session the server has welcomed.
#[derive(Debug)]
pub struct Connection {
    /// To the server.
    pub sender: Sender<ClientMessage>,
    /// From the server.
    pub receiver: Receiver<ServerMessage>,
    /// What the server granted.
    pub welcome: Welcome,
    /// The address that took the connection; links go there too.
    pub peer: SocketAddr,
    /// Who the server is.
    pub server: Fingerprint,
    /// What both ends call this session in their logs.
    pub request: String,
    /// The version of the protocol that both speak.
    pub version: usize,
}

/// Connects to a server and greets it; everything happens within `options.timeout`.
pub async fn connect(options: &ConnectOptions) -> Result<Connection, ControlError> {
    let name = host_port(&options.host, options.port);
    let attempt = async {
        let (stream, peer) = dial(options, &name).await?;
        let (trust, key) = credentials(options, peer)?;
        let hello = (options.agent.clone(), options.chunk_bytes);
        let shown = options.certificates.shown()?;
        let own = Own { key: key.as_ref(), shown };
        let greeted = greet(stream, &name, &trust, own, hello).await?;
        let (sender, receiver, welcome, (server, request, version)) = greeted;
        Ok(Connection { sender, receiver, welcome, peer, server, request, version })
    };
    timeout(options.timeout, attempt).await.unwrap_or_else(|_| {
        let seconds = options.timeout.as_secs_f64();
        Err(ControlError::TimedOut { what: format!("connecting to {name}"), seconds })
    })
}

/// What greeting a server yields.
pub(crate) type Greeted =
    (Sender<ClientMessage>, Receiver<ServerMessage>, Welcome, (Fingerprint, String, usize));

/// What a client proves about itself.
#[derive(Default)]
pub(crate) struct Own<'a> {
    pub key: Option<&'a ClientKey>,
    pub shown: Option<Shown>,
}

/// Turns a connected stream into a welcomed session.
pub(crate) async fn greet<S>(
    stream: S,
    peer: &str,
    trust: &Trust,
    own: Own<'_>,
    (agent, chunk_bytes): (String, u32),
) -> Result<Greeted, ControlError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let expected = trust.expected(peer)?;
    let authority = trust.authority.as_ref().map(Authority::of_servers).transpose()?;
    let witness = Witness::new(expected.as_ref().map(|(fingerprint, _)| *fingerprint), authority);
    let config = tls::client_config(witness.clone(), own.shown);
    let config = config.map_err(|e| ControlError::Local {
        what: "cannot show a certificate".into(),
        cause: e.to_string(),
        hint: Some("--cert and --key must belong together".into()),
    })?;
    let connector = TlsConnector::from(Arc::new(config));
    let host = peer.rsplit_once(':').map_or(peer, |(host, _)| host);
    // Only an authority asks for it, and one cannot vouch for what is no name.
    let subject = match ServerName::try_from(bare(host).to_owned()) {
        Ok(subject) => subject,
        Err(_) if trust.authority.is_some() => {
            let cause = format!("no certificate can be for {host}, which is no name of a machine");
            let because = Distrust::Certificate { cause };
            return Err(ControlError::NotTrusted { peer: peer.into(), because });
        }
        Err(_) => ServerName::try_from("verbatim").expect("it is a DNS name"),
    };
    let handshake = connector.connect(subject, stream).await;
    if let Some(presented) = witness.presented() {
        trust::check(peer, expected.as_ref(), presented)?;
    }
    let stream = handshake.map_err(|e| tls::failed(peer, &e))?;
    let server = witness.presented().expect("TLS 1.3 without resumption shows a certificate");
    trust.settle(peer, expected.as_ref(), server)?;

    let (_, session) = stream.get_ref();
    let version = tls::check_version(peer, session.alpn_protocol())?;
    let exporter = tls::exporter(peer, session)?;
    let request = tls::request_id(peer, session)?;
    let proof = own.key.map(|key| Proof { key: key.public().0, signature: key.sign(&exporter) });
    let (read, write) = tokio::io::split(stream);
    let (mut sender, mut receiver) = (Sender::new(write), Receiver::new(read));
    sender.send(&ClientMessage::Hello(Hello { agent, proof, chunk_bytes })).await?;
    sender.flush().await?;
    let welcome = welcome(peer, &mut receiver).await?;
    Ok((sender, receiver, welcome, (server, request, version)))
}

/// Waits for the answer to `Hello`.
async fn welcome(
    peer: &str,
    receiver: &mut Receiver<ServerMessage>,
) -> Result<Welcome, ControlError> {
    let refused = |code, text| Err(ControlError::Refused(Fault::new(code, text)));
    match receiver.recv().await? {
        Some(ServerMessage::Welcome(welcome)) => Ok(welcome),
        Some(ServerMessage::Refused(fault)) => {
            refused(fault.code, format!("{peer} refused the session: {}", fault.text))
        }
        Some(_) => refused(Code::Protocol, format!("{peer} answered the greeting with no welcome")),
        None => Err(ControlError::Closed { cause: format!("{peer} hung up at the greeting") }),
    }
}

/// Connects to the first address that takes it; each has its share of the time.
async fn dial(
    options: &ConnectOptions,
    name: &str,
) -> Result<(TcpStream, SocketAddr), ControlError> {
    let cannot = |cause: String| ControlError::CannotConnect { peer: name.into(), cause };
    let found = lookup_host((bare(&options.host), options.port)).await;
    let found = found.map_err(|e| cannot(error::plain(&e)))?;
    let addresses: Vec<SocketAddr> = found.take(ADDRESSES_MAX).collect();
    let share = options.timeout / (addresses.len().max(1) as u32);
    let mut causes = Vec::new();
    for address in &addresses {
        let cause = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true).map_err(|e| cannot(error::plain(&e)))?;
                return Ok((stream, *address));
            }
            Ok(Err(e)) => error::plain(&e),
            Err(_) => format!("no answer in {} s", share.as_secs_f64()),
        };
        causes.push(if addresses.len() == 1 { cause } else { format!("{address}: {cause}") });
    }
    if causes.is_empty() {
        causes.push("the name has no address".into());
    }
    Err(cannot(causes.join(", ")))
}

/// Chooses whom to trust and as whom to come; a local door fills in what was not given.
fn credentials(
    options: &ConnectOptions,
    peer: SocketAddr,
) -> Result<(Trust, Option<ClientKey>), ControlError> {
    let mut pin = options.fingerprint.map(|fingerprint| (fingerprint, Voucher::Given));
    let mut key = options.key.clone();
    let files = &options.certificates;
    let authority = files.ca.as_deref().map(Authority::load).transpose()?;
    // Who brings certificates means to be known by them.
    let near = peer.ip().to_canonical().is_loopback() && *files == CertificateFiles::default();
    if near
        && (pin.is_none() || key.is_none())
        && let Some((fingerprint, local)) = LocalDoor::find(&options.state_dir, peer.port())?
    {
        let path = LocalDoor::path(&options.state_dir, peer.port());
        let pin = pin.get_or_insert((fingerprint, Voucher::Door { path }));
        // The key of a door is for the server that left it, not for another on its port.
        if pin.0 == fingerprint {
            key.get_or_insert(local);
        }
    }
    let known = KnownServers::in_dir(&options.config_dir);
    let trust_on_first_use = options.trust_on_first_use;
    Ok((Trust { pin, trust_on_first_use, known, authority }, key))
}

/// Writes a peer as the known servers list it; an IPv6 address gets its brackets.
pub(crate) fn host_port(host: &str, port: u16) -> String {
    let host = bare(host).to_ascii_lowercase();
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Takes the brackets off an IPv6 address.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// How many addresses of one name are tried.
const ADDRESSES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_one_spelling() {
        assert_eq!(host_port("Host7", 1), "host7:1");
        assert_eq!(host_port("[::1]", 1), "[::1]:1");
        assert_eq!(host_port("::1", 1), "[::1]:1");
    }
}
