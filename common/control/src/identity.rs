//! Who a server is: an Ed25519 key and a self-signed certificate in its state
//! folder, or the certificate of a user's own authority. Never renews by itself, because
//! clients remember the fingerprint. `rdma-serve` loads it once at its start.

use crate::{ControlError, Fingerprint, authority::Shown, expiry, private};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// The certificate and private key of a server.
pub struct ServerIdentity {
    shown: Shown,
    path: PathBuf,
}

impl ServerIdentity {
    /// Loads the identity kept in `state_dir`, or makes one and keeps it there.
    ///
    /// Of several processes that make one at the same time, one wins and all load the winner's:
    /// first they agree on the key, then on the certificate of that key.
    pub fn load_or_create(state_dir: &Path) -> Result<Self, ControlError> {
        private::make_dir(state_dir).map_err(unwritable)?;
        let path = state_dir.join("identity.key");
        let key = settle(&path, private::read_secret, || {
            Ok(KeyPair::generate_for(&PKCS_ED25519)?.serialize_der())
        })?;
        let key = PrivatePkcs8KeyDer::from(key);
        let certificate = settle(&state_dir.join("identity.crt"), private::read_public, || {
            let pair = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519)?;
            let params = CertificateParams::new([SUBJECT.to_owned()])?;
            Ok(params.self_signed(&pair)?.der().to_vec())
        })?;
        let shown = Shown { chain: vec![certificate.into()], key: key.into() };
        Ok(Self { shown, path })
    }

    /// Takes the certificate that an authority of the user's made for this server.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, ControlError> {
        Ok(Self { shown: Shown::load(cert, key)?, path: key.into() })
    }

    /// Returns what clients know this server by.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.certificate())
    }

    /// Returns when the certificate ends, in seconds since 1970, if it can be told.
    pub fn ends_at(&self) -> Option<i64> {
        expiry::ends_at(self.certificate())
    }

    /// Returns what TLS needs to speak for this server.
    pub(crate) fn shown(&self) -> Shown {
        Shown { chain: self.shown.chain.clone(), key: self.shown.key.clone_key() }
    }

    fn certificate(&self) -> &CertificateDer<'static> {
        self.shown.chain.first().expect("what is shown begins with a certificate")
    }

    /// Makes the error of an identity that TLS does not take.
    pub(crate) fn unusable(&self, cause: impl ToString) -> ControlError {
        ControlError::Local {
            what: format!("cannot use {}", self.path.display()),
            cause: cause.to_string(),
            hint: Some(
                "if identity.key and identity.crt cannot be restored, remove both: a new identity \
                 is made, and clients must be told its fingerprint"
                    .into(),
            ),
        }
    }
}

impl fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerIdentity").field(&self.fingerprint()).finish()
    }
}

/// Returns what `read` finds at `path`, or what `make` makes if it was first to keep it there.
fn settle(
    path: &Path,
    read: impl Fn(&Path) -> Result<Option<Vec<u8>>, ControlError>,
    make: impl FnOnce() -> Result<Vec<u8>, rcgen::Error>,
) -> Result<Vec<u8>, ControlError> {
    if let Some(bytes) = read(path).map_err(unwritable)? {
        return Ok(bytes);
    }
    let bytes = make().map_err(|e| private::bad(path, e))?;
    if private::write_new(path, &bytes).map_err(unwritable)? {
        return Ok(bytes);
    }
    read(path)?.ok_or_else(|| private::bad(path, "it was removed while it was read"))
}

/// The error of a state folder in which a server cannot keep what it has to.
pub(crate) fn unwritable(error: ControlError) -> ControlError {
    error.or_hint("the server keeps its keys there; name a folder that it may use: --state DIR")
}

/// The name in the certificate. Nobody checks it: the fingerprint is the identity.
const SUBJECT: &str = "verbatim";

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::fs::PermissionsExt, sync::Barrier};

    #[test]
    fn an_identity_survives_a_reload() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("deep/state");
        let made = ServerIdentity::load_or_create(&state).unwrap();
        let loaded = ServerIdentity::load_or_create(&state).unwrap();
        assert_eq!(made.fingerprint(), loaded.fingerprint());
        assert_eq!(made.shown.key.secret_der(), loaded.shown.key.secret_der());
        let mode = state.join("identity.key").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn racing_creators_agree() {
        let dir = tempfile::tempdir().unwrap();
        let barrier = Barrier::new(8);
        let prints: Vec<Fingerprint> = std::thread::scope(|scope| {
            let create = || {
                barrier.wait();
                ServerIdentity::load_or_create(dir.path()).unwrap().fingerprint()
            };
            let racers: Vec<_> = (0..8).map(|_| scope.spawn(create)).collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        assert!(prints.iter().all(|print| *print == prints[0]), "{prints:?}");
    }

    #[test]
    fn a_private_key_open_to_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        ServerIdentity::load_or_create(dir.path()).unwrap();
        let key = dir.path().join("identity.key");
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o640)).unwrap();
        let error = ServerIdentity::load_or_create(dir.path()).unwrap_err();
        assert!(error.to_string().contains("0640"), "{error}");
    }
}
