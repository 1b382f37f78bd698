//! Whether a client believes a server. A pin must match; else a server met
//! before must be the same, or the user's own authority must have signed for its
//! name; else the user may have chosen to trust at first
//! sight. The handshake's signature is always checked for real. Nothing secret
//! is sent to anybody, trusted or not. `connect` calls it.

use crate::{
    Authority, ControlError, Distrust, Fingerprint, KnownServers, Voucher,
    crypto_provider::provider,
};
use rustls::{
    CertificateError, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use std::sync::{Arc, OnceLock};

/// On what grounds a client trusts a server.
#[derive(Clone, Debug)]
pub struct Trust {
    /// The one fingerprint to accept, and who vouched for it.
    pub pin: Option<(Fingerprint, Voucher)>,
    /// Whether to believe, and remember, a server that nobody vouches for.
    pub trust_on_first_use: bool,
    /// The servers met before; not asked where there is a pin.
    pub known: KnownServers,
    /// The authority that vouches for servers by their names, instead of those met before.
    pub authority: Option<Authority>,
}

impl Trust {
    /// Returns what the server must present, and who says so; none if nobody vouches for it.
    pub fn expected(&self, peer: &str) -> Result<Option<(Fingerprint, Voucher)>, ControlError> {
        if let Some(pin) = &self.pin {
            return Ok(Some(pin.clone()));
        }
        if self.authority.is_some() {
            return Ok(None);
        }
        let path = self.known.path().to_owned();
        let voucher = |line| Voucher::Known { path, line };
        Ok(self.known.lookup(peer)?.map(|known| (known.fingerprint, voucher(known.line))))
    }

    /// Decides about a server whose handshake is done, and remembers one that is new.
    pub(crate) fn settle(
        &self,
        peer: &str,
        expected: Option<&(Fingerprint, Voucher)>,
        presented: Fingerprint,
    ) -> Result<(), ControlError> {
        if expected.is_some() {
            return check(peer, expected, presented);
        }
        if self.authority.is_some() {
            // The handshake would have failed.
            return Ok(());
        }
        if self.trust_on_first_use {
            return self.known.remember(peer, presented);
        }
        Err(not_trusted(peer, Distrust::Unknown { presented }))
    }
}

/// Checks a presented fingerprint against what was expected, if anything was.
pub(crate) fn check(
    peer: &str,
    expected: Option<&(Fingerprint, Voucher)>,
    presented: Fingerprint,
) -> Result<(), ControlError> {
    match expected {
        Some((expected, voucher)) if *expected != presented => {
            let (expected, voucher) = (*expected, voucher.clone());
            Err(not_trusted(peer, Distrust::Differs { presented, expected, voucher }))
        }
        _ => Ok(()),
    }
}

/// Accepts exactly the expected certificate, or takes down which one was presented.
#[derive(Debug)]
pub(crate) struct Witness {
    expected: Option<Fingerprint>,
    presented: OnceLock<Fingerprint>,
    algorithms: WebPkiSupportedAlgorithms,
    /// Who must have signed it as well, for the name it is called by.
    authority: Option<Arc<WebPkiServerVerifier>>,
}

impl Witness {
    /// Makes a verifier for one handshake.
    pub(crate) fn new(
        expected: Option<Fingerprint>,
        authority: Option<Arc<WebPkiServerVerifier>>,
    ) -> Arc<Self> {
        let algorithms = provider().signature_verification_algorithms;
        Arc::new(Self { expected, presented: OnceLock::new(), algorithms, authority })
    }

    /// Returns what the server presented, if it got so far; proven once the handshake is done.
    pub(crate) fn presented(&self) -> Option<Fingerprint> {
        self.presented.get().copied()
    }
}

impl ServerCertVerifier for Witness {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let presented = *self.presented.get_or_init(|| Fingerprint::of(end_entity));
        if self.expected.is_some_and(|expected| expected != presented) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        match &self.authority {
            Some(authority) => authority.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            ),
            None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is never offered".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn not_trusted(peer: &str, because: Distrust) -> ControlError {
    ControlError::NotTrusted { peer: peer.into(), because }
}
