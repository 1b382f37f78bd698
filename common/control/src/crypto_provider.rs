//! The cryptography that both ends use: that of ring. TLS and the check of certificates
//! take it from here, so that no process-wide default decides.

use rustls::crypto::CryptoProvider;

/// Returns the cryptography of both ends.
pub(crate) fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}
