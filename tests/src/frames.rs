//! A control connection whose every byte is chosen by its owner: half a greeting, frames
//! that are no messages, answers that nobody reads. Owns the TLS session and nothing else;
//! whom it speaks to is not checked, because it has nothing to lose. Used by attacks; a
//! client that says whole messages is in `raw`.

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use tokio::io::{AsyncWriteExt, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme, version};
use verbatim_control::{ClientKey, Receiver};
use verbatim_proto::message::{Hello, Proof, VERSIONS};
use verbatim_proto::{ClientMessage, ServerMessage, wire};

/// What a proof signs is exported under this name.
const EXPORTER_LABEL: &[u8] = b"EXPORTER-verbatim-auth-v1";

/// A control connection after its handshake.
pub struct Frames {
    /// Takes any bytes.
    pub out: WriteHalf<TlsStream<TcpStream>>,
    /// What the server says.
    pub answers: Receiver<ServerMessage>,
}

/// Connects to a server on this machine from one of the addresses of this machine.
pub async fn connect_from(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, kind, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(from, 0))?;
    let socket = tokio::net::TcpSocket::from_std_stream(socket.into());
    socket.connect(to).await
}

/// Shakes hands with any server, which has to speak one of these protocols.
pub async fn tls(stream: TcpStream, protocols: &[&[u8]]) -> io::Result<TlsStream<TcpStream>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&version::TLS13]).expect("ring has it");
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody));
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.enable_sni = false;
    let name = ServerName::try_from("verbatim").expect("a DNS name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

impl Frames {
    /// Shakes hands, and says nothing yet. Returns what a proof has to sign as well.
    pub async fn shake(stream: TcpStream) -> io::Result<(Self, [u8; 32])> {
        let stream = tls(stream, VERSIONS).await?;
        let exporter = stream.get_ref().1.export_keying_material([0; 32], EXPORTER_LABEL, None);
        let exporter = exporter.map_err(io::Error::other)?;
        let (read, out) = tokio::io::split(stream);
        Ok((Self { out, answers: Receiver::new(read) }, exporter))
    }

    /// Shakes hands and is let in with a key.
    pub async fn enter(stream: TcpStream, key: &ClientKey, chunk_bytes: u32) -> io::Result<Self> {
        let (mut frames, exporter) = Self::shake(stream).await?;
        let proof = Some(Proof { key: key.public().0, signature: key.sign(&exporter) });
        let agent = "attack".to_owned();
        frames.say(&ClientMessage::Hello(Hello { agent, proof, chunk_bytes })).await?;
        match frames.answers.recv().await.map_err(io::Error::other)? {
            Some(ServerMessage::Welcome(_)) => Ok(frames),
            other => Err(io::Error::other(format!("no welcome: {other:?}"))),
        }
    }

    /// Says a message.
    pub async fn say(&mut self, message: &ClientMessage) -> io::Result<()> {
        self.write(&wire::encode(message).map_err(io::Error::other)?).await
    }

    /// Says any bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes).await?;
        self.out.flush().await
    }
}

/// Takes any server for the right one.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 alone is spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
