//! Certificates of a user's own authority, in PEM: whom a side believes by its
//! signature, and what a side shows of itself. Owns the reading of these files and
//! whom a certificate names. Never decides who may do what: the policy and the rules
//! of exports do. Keys that others can read are refused, as tokens are.

use crate::{ControlError, crypto_provider::provider, expiry, private};
use rustls::{
    RootCertStore,
    client::WebPkiServerVerifier,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The files of a client: all may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The authority whose servers are believed, instead of known ones.
    pub ca: Option<PathBuf>,
    /// What this side shows of itself, its own certificate first.
    pub cert: Option<PathBuf>,
    /// The private key of that.
    pub key: Option<PathBuf>,
}

impl CertificateFiles {
    /// Takes what is missing here from others.
    pub fn or(self, others: Self) -> Self {
        Self {
            ca: self.ca.or(others.ca),
            cert: self.cert.or(others.cert),
            key: self.key.or(others.key),
        }
    }

    /// Reads what a client shows of itself.
    pub(crate) fn shown(&self) -> Result<Option<Shown>, ControlError> {
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Shown::load(cert, key).map(Some),
            (None, None) => Ok(None),
            (cert, _) => Err(ControlError::Local {
                what: "cannot show a certificate".into(),
                cause: format!("only its {} is given", if cert.is_some() { "cert" } else { "key" }),
                hint: Some("give both: --cert FILE and --key FILE".into()),
            }),
        }
    }
}

/// An authority whose signature is believed.
#[derive(Clone)]
pub struct Authority {
    roots: Arc<RootCertStore>,
    path: PathBuf,
}

impl Authority {
    /// Reads the certificates of an authority.
    pub fn load(path: &Path) -> Result<Self, ControlError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|e| private::bad(path, e))?;
        }
        Ok(Self { roots: Arc::new(roots), path: path.into() })
    }

    /// Makes what checks servers.
    pub(crate) fn of_servers(&self) -> Result<Arc<WebPkiServerVerifier>, ControlError> {
        WebPkiServerVerifier::builder_with_provider(self.roots.clone(), provider().into())
            .build()
            .map_err(|e| private::bad(&self.path, e))
    }

    /// Makes what checks clients that show a certificate; those that do not come in by a key or
    /// a token, or not at all.
    pub(crate) fn of_clients(&self) -> Result<Arc<dyn ClientCertVerifier>, ControlError> {
        WebPkiClientVerifier::builder_with_provider(self.roots.clone(), provider().into())
            .allow_unauthenticated()
            .build()
            .map_err(|e| private::bad(&self.path, e))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Authority").field(&self.path).finish()
    }
}

/// A chain of certificates and the key of the first.
pub(crate) struct Shown {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Shown {
    /// Reads both files.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, ControlError> {
        let missing = || private::bad(key, "there is no such file");
        let secret = private::read_secret(key)?.ok_or_else(missing)?;
        let secret =
            PrivateKeyDer::from_pem_slice(&secret).map_err(|_| private::bad(key, NO_KEY))?;
        Ok(Self { chain: certificates(cert)?, key: secret })
    }
}

/// Whom a certificate that was checked names, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The first DNS name in it.
    pub name: String,
    /// When it ends, in seconds since 1970.
    pub ends: Option<i64>,
}

impl Named {
    /// Reads a certificate; none if it names nobody.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
        let name = parsed.valid_dns_names().next()?.to_ascii_lowercase();
        Some(Self { name, ends: expiry::ends_at(certificate) })
    }

    /// Returns whether its time is over.
    pub(crate) fn is_over(&self, now: u64) -> bool {
        self.ends.is_some_and(|ends| now as i64 >= ends)
    }
}

/// Reads all certificates in a file; there must be one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ControlError> {
    let missing = || private::bad(path, "there is no such file");
    let bytes = private::read_public(path)?.ok_or_else(missing)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match read {
        Ok(read) if !read.is_empty() => Ok(read),
        _ => Err(private::bad(path, "it holds no certificate in PEM")),
    }
}

const NO_KEY: &str = "it holds no private key in PEM";
