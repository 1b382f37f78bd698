//! What people compare to know a server: the SHA-256 of its certificate, as text and back.
//! Owns the Base64 in which keys are written too. Never decides about trust.

use crate::ParseError;
use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use rustls::pki_types::CertificateDer;
use std::{fmt, str::FromStr};

/// The SHA-256 of a server's certificate, written as ssh writes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Computes the fingerprint of a certificate.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        Self(digest.as_ref().try_into().expect("a SHA-256 has 32 bytes"))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FINGERPRINT_PREFIX}{}", BASE64.encode(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bad = |cause| ParseError { what: "fingerprint", cause };
        let digits = text.strip_prefix(FINGERPRINT_PREFIX).ok_or(bad("it begins with SHA256:"))?;
        let bytes = BASE64.decode(digits).map_err(|_| bad("SHA256: is followed by base64"))?;
        bytes.try_into().map(Self).map_err(|_| bad("SHA256: is followed by 43 letters of base64"))
    }
}

/// Base64 as ssh prints it, without padding; padding is taken when read.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

const FINGERPRINT_PREFIX: &str = "SHA256:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_reads_back_what_it_prints() {
        let print = Fingerprint([7; 32]);
        let text = print.to_string();
        assert!(text.starts_with("SHA256:") && !text.ends_with('='), "{text}");
        assert_eq!(text.parse(), Ok(print));
        assert_eq!(format!("{text}=").parse(), Ok(print));
        for bad in ["", "MD5:ab", "SHA256:%%", "SHA256:abcd"] {
            let error = bad.parse::<Fingerprint>().unwrap_err().to_string();
            assert!(error.contains("SHA256:"), "{error}");
        }
    }
}
