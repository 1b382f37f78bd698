//! The one way this project speaks TLS: 1.3 with ring, the protocol version in
//! ALPN, no resumption, no early data. Owns both configurations and the exporter
//! that proofs sign; never decides about trust. `connect` and `accept` call it.

use crate::{
    Authority, ControlError, Distrust, ServerIdentity, authority::Shown, crypto_provider::provider,
};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ServerConfig, SupportedProtocolVersion,
    client::{Resumption, danger::ServerCertVerifier},
    server::NoServerSessionStorage,
};
use std::{io, sync::Arc};
use verbatim_proto::{Code, Fault, message::VERSIONS};

/// Makes the configuration of a server.
pub(crate) fn server_config(
    identity: &ServerIdentity,
    authority: Option<&Authority>,
) -> Result<ServerConfig, ControlError> {
    let Shown { chain, key } = identity.shown();
    let builder = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(TLS_VERSIONS)
        .expect("ring has suites of TLS 1.3");
    let builder = match authority {
        Some(authority) => builder.with_client_cert_verifier(authority.of_clients()?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| identity.unusable(e))?;
    config.alpn_protocols = versions();
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

/// Makes the configuration of a server's data connections out of that of its control ones.
pub(crate) fn data_config(control: &ServerConfig) -> ServerConfig {
    let mut config = control.clone();
    config.alpn_protocols = vec![DATA_PROTOCOL.to_vec()];
    config
}

/// Makes the configuration of a client that asks `verifier` about the server, and shows a
/// certificate if it has one.
pub(crate) fn client_config(
    verifier: Arc<dyn ServerCertVerifier>,
    shown: Option<Shown>,
) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(TLS_VERSIONS)
        .expect("ring has suites of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match shown {
        Some(Shown { chain, key }) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = versions();
    config.resumption = Resumption::disabled();
    // A server has one identity, whatever it is called; its name need not cross in the clear.
    config.enable_sni = false;
    Ok(config)
}

/// Says which protocol version both ends agreed on; an end without ALPN agrees on nothing.
pub(crate) fn check_version(peer: &str, agreed: Option<&[u8]>) -> Result<usize, ControlError> {
    let found = agreed.and_then(|agreed| VERSIONS.iter().position(|version| *version == agreed));
    found.map(|newer| VERSIONS.len() - newer).ok_or_else(|| no_version(peer))
}

/// Exports what a proof signs: both ends of this TLS session know it, and nobody else.
pub(crate) fn exporter<D>(
    peer: &str,
    session: &rustls::ConnectionCommon<D>,
) -> Result<[u8; 32], ControlError> {
    session
        .export_keying_material([0; 32], EXPORTER_LABEL, None)
        .map_err(|e| ControlError::Tls { peer: peer.into(), cause: e.to_string() })
}

/// Names this session in the logs of both ends: they compute the same, and nobody else can.
/// Says nothing about what proofs sign.
pub(crate) fn request_id<D>(
    peer: &str,
    session: &rustls::ConnectionCommon<D>,
) -> Result<String, ControlError> {
    let id = session
        .export_keying_material([0; 6], REQUEST_LABEL, None)
        .map_err(|e| ControlError::Tls { peer: peer.into(), cause: e.to_string() })?;
    Ok(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What a server says to who is sent away before a handshake, which would cost it more than
/// the other end: an alert of TLS, `internal_error`, in the clear. Anybody in between could
/// say so, or cut the connection.
pub const SENT_AWAY: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 80];

/// Says in this project's words why a handshake failed.
pub(crate) fn failed(peer: &str, error: &io::Error) -> ControlError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(
            rustls::Error::NoApplicationProtocol
            | rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol),
        ) => no_version(peer),
        Some(rustls::Error::InvalidCertificate(cause))
            if *cause != CertificateError::BadSignature =>
        {
            let because = Distrust::Certificate { cause: unfit(cause) };
            ControlError::NotTrusted { peer: peer.into(), because }
        }
        Some(rustls::Error::AlertReceived(AlertDescription::InternalError)) => {
            ControlError::SentAway { peer: peer.into() }
        }
        Some(other) => ControlError::Tls { peer: peer.into(), cause: other.to_string() },
        None => ControlError::broken(error),
    }
}

/// Says what is wrong with a certificate.
fn unfit(cause: &CertificateError) -> String {
    use CertificateError as Cause;
    match cause {
        Cause::Expired | Cause::ExpiredContext { .. } => "it has expired".into(),
        Cause::NotValidYet | Cause::NotValidYetContext { .. } => "it is not valid yet".into(),
        Cause::NotValidForName | Cause::NotValidForNameContext { .. } => {
            "it is for another name".into()
        }
        Cause::UnknownIssuer => "it is of another authority".into(),
        other => other.to_string(),
    }
}

fn no_version(peer: &str) -> ControlError {
    let ours: Vec<_> = VERSIONS.iter().map(|v| String::from_utf8_lossy(v)).collect();
    let text = format!("no common protocol version: {peer} does not speak {}", ours.join(" or "));
    ControlError::Refused(Fault::new(Code::Version, text))
}

fn versions() -> Vec<Vec<u8>> {
    VERSIONS.iter().map(|version| version.to_vec()).collect()
}

static TLS_VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// The protocol of data connections inside TLS.
pub(crate) const DATA_PROTOCOL: &[u8] = b"verbatim-data/1";

const REQUEST_LABEL: &[u8] = b"EXPORTER-verbatim-request-v1";

const EXPORTER_LABEL: &[u8] = b"EXPORTER-verbatim-auth-v1";
