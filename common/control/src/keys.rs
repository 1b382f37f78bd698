//! Client keys: the Ed25519 seed a user handles as a token, its public half,
//! and the list of public halves a server lets in. A seed leaves this module
//! only as a token that somebody asked for, never through `Debug` or an error.
//! `connect` signs with it, `accept` verifies; the commands make and list keys.

use crate::{ControlError, ParseError, fingerprint::BASE64, private};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::{SecureRandom, SystemRandom},
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use std::{fmt, path::Path, str::FromStr};
use zeroize::Zeroizing;

/// The secret half of a client's key: 32 bytes of seed, in one place of the heap, so that moving
/// it leaves no copy behind, and wiped when it goes.
#[derive(Clone)]
pub struct ClientKey(Box<Zeroizing<[u8; 32]>>);

impl ClientKey {
    /// Makes a new key out of the system's randomness.
    pub fn generate() -> Result<Self, ControlError> {
        let mut key = Self(Box::default());
        SystemRandom::new().fill(&mut **key.0).map_err(|_| ControlError::Local {
            what: "cannot make a key".into(),
            cause: "the system gives no random bytes".into(),
            hint: None,
        })?;
        Ok(key)
    }

    /// Reads a key from its token.
    pub fn from_token(token: &str) -> Result<Self, ParseError> {
        let bad = |cause| ParseError { what: "token", cause };
        let digits = token.strip_prefix(TOKEN_PREFIX).ok_or(bad("it begins with vbt1-"))?;
        let bytes = URL_SAFE_NO_PAD.decode(digits).map_err(|_| bad("it has a mistyped letter"))?;
        let bytes = Zeroizing::new(bytes);
        let mut key = Self(Box::default());
        if bytes.len() != key.0.len() {
            return Err(bad("it is not 48 letters long"));
        }
        key.0.copy_from_slice(&bytes);
        Ok(key)
    }

    /// Writes the key as a token; whoever reads it can use it. It is wiped when it goes.
    pub fn to_token(&self) -> Zeroizing<String> {
        let digits = Zeroizing::new(URL_SAFE_NO_PAD.encode(self.0.as_slice()));
        let mut token = Zeroizing::new(String::with_capacity(TOKEN_PREFIX.len() + digits.len()));
        token.push_str(TOKEN_PREFIX);
        token.push_str(&digits);
        token
    }

    /// Loads a key from a file that holds its token and that only its owner can read.
    pub fn load(path: &Path) -> Result<Self, ControlError> {
        let missing = || private::bad(path, "there is no such file");
        let bytes = private::read_secret(path)?.ok_or_else(missing)?;
        let text = Zeroizing::new(private::text(path, bytes)?);
        Self::from_token(text.trim()).map_err(|e| private::bad(path, e))
    }

    /// Saves the key in a new file that only this user can read; one that is there is kept.
    pub fn save_new(&self, path: &Path) -> Result<(), ControlError> {
        let token = self.to_token();
        // As long as it will be: what it grew out of would be left behind.
        let mut line = Zeroizing::new(String::with_capacity(token.len() + 1));
        line.push_str(&token);
        line.push('\n');
        if private::write_new(path, line.as_bytes())? {
            return Ok(());
        }
        let what = format!("cannot write {}", path.display());
        Err(ControlError::Local { what, cause: "there is a file already".into(), hint: None })
    }

    /// Returns the half that a server may know.
    pub fn public(&self) -> PublicKey {
        let bytes = self.pair().public_key().as_ref().try_into();
        PublicKey(bytes.expect("an Ed25519 public key has 32 bytes"))
    }

    /// Signs a message.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair().sign(message).as_ref().to_vec()
    }

    fn pair(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&**self.0).expect("every 32 bytes are an Ed25519 seed")
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientKey({})", self.public())
    }
}

/// The public half of a client's key, written as `ed25519:<base64>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Returns whether the holder of the secret half signed this message.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(message, signature).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC_PREFIX}{}", BASE64.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bad = |cause| ParseError { what: "public key", cause };
        let digits = text.strip_prefix(PUBLIC_PREFIX).ok_or(bad("it begins with ed25519:"))?;
        let bytes = BASE64.decode(digits).map_err(|_| bad("ed25519: is followed by base64"))?;
        bytes.try_into().map(Self).map_err(|_| bad("ed25519: is followed by 43 letters of base64"))
    }
}

/// The clients a server lets in: a name for each public key, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizedKeys(Vec<(PublicKey, String)>);

impl AuthorizedKeys {
    /// Loads a list of `ed25519:<base64> NAME` lines; no file is an empty list.
    pub fn load(path: &Path) -> Result<Self, ControlError> {
        let Some(bytes) = private::read_public(path)? else { return Ok(Self::default()) };
        let mut keys = Self::default();
        for (number, line) in private::text(path, bytes)?.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = |cause: String| private::bad(path, format!("line {}: {cause}", number + 1));
            let (key, name) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let key = key.parse::<PublicKey>().map_err(|e| at(e.to_string()))?;
            if name.trim().is_empty() {
                return Err(at("the key has no name behind it".into()));
            }
            keys.insert(name.trim(), key);
        }
        Ok(keys)
    }

    /// Adds a key under a name, or renames one that is there.
    pub fn insert(&mut self, name: impl Into<String>, key: PublicKey) {
        self.0.retain(|(known, _)| *known != key);
        self.0.push((key, name.into()));
    }

    /// Returns the name of a key, if it is in the list.
    pub fn find(&self, key: &PublicKey) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, name)| name.as_str())
    }

    /// Returns every name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, name)| name.as_str())
    }

    /// Returns whether nobody is in the list.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

const TOKEN_PREFIX: &str = "vbt1-";
const PUBLIC_PREFIX: &str = "ed25519:";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A key whose seed is of one byte.
    fn of(byte: u8) -> ClientKey {
        ClientKey(Box::new(Zeroizing::new([byte; 32])))
    }

    #[test]
    fn a_token_reads_back_what_it_writes() {
        let key = ClientKey::generate().unwrap();
        let token = key.to_token();
        assert_eq!(token.len(), 48);
        assert_eq!(ClientKey::from_token(&token).unwrap().public(), key.public());
        assert_eq!(key.public().to_string().parse(), Ok(key.public()));
    }

    #[test]
    fn a_bad_token_is_named_but_not_quoted() {
        for bad in ["hunter2", "vbt1-!!", "vbt1-c2hvcnQ"] {
            let error = ClientKey::from_token(bad).unwrap_err().to_string();
            assert!(error.starts_with("not a token: ") && !error.contains(bad), "{error}");
        }
    }

    #[test]
    fn the_seed_never_appears_in_debug() {
        let key = of(0xAB);
        let shown = format!("{key:?}");
        assert!(!shown.contains(&key.to_token()[5..]));
        assert!(!shown.contains("171") && !shown.to_lowercase().contains("abab"), "{shown}");
    }

    /// Whether bytes, told as their complement, are anywhere in this process's heap.
    fn is_in_heap(inverse: &[u8]) -> bool {
        use std::os::unix::fs::FileExt;
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let writable = maps.lines().filter(|line| line.contains(" rw-p 00000000 00:00 0 "));
        writable.filter(|line| !line.contains("[stack]")).any(|line| {
            let (begin, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let [begin, end] = [begin, end].map(|text| u64::from_str_radix(text, 16).unwrap());
            let mut bytes = vec![0; (end - begin) as usize];
            // What was unmapped meanwhile, or has no pages, holds nothing.
            let _ = memory.read_at(&mut bytes, begin);
            let is_it = |at: &[u8]| at.iter().zip(inverse).all(|(here, not)| *here == !*not);
            let begins = |window: &&[u8]| window[0] == !inverse[0];
            let found = bytes.windows(inverse.len()).filter(begins).any(is_it);
            // Or the next look would find it in what this one read.
            bytes.fill(0);
            std::hint::black_box(&bytes);
            found
        })
    }

    #[test]
    fn a_key_and_its_token_are_wiped_when_they_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let made = ClientKey::generate().unwrap();
        let seed: Vec<u8> = made.0.iter().map(|byte| !byte).collect();
        let token: Vec<u8> = made.to_token().bytes().map(|byte| !byte).collect();
        assert!(is_in_heap(&seed), "it is looked at the right place");
        made.save_new(&path).unwrap();
        drop(made);
        drop(ClientKey::load(&path).unwrap().clone());
        // Most of it: the allocator keeps its own lists in the first bytes of what is free.
        assert!(!is_in_heap(&seed[16..]), "a seed is left");
        assert!(!is_in_heap(&token[16..]), "a token is left");
    }

    #[test]
    fn only_the_signed_message_verifies() {
        let key = ClientKey::generate().unwrap();
        let signature = key.sign(b"this");
        assert!(key.public().verify(b"this", &signature));
        assert!(!key.public().verify(b"that", &signature));
        assert!(!key.public().verify(b"this", &signature[..63]));
    }

    #[test]
    fn a_key_file_readable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = ClientKey::generate().unwrap();
        key.save_new(&path).unwrap();
        assert_eq!(ClientKey::load(&path).unwrap().public(), key.public());
        assert!(key.save_new(&path).unwrap_err().to_string().contains("already"));

        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let error = ClientKey::load(&path).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()) && text.contains("0644"), "{text}");
        assert_eq!(error.hint().unwrap(), format!("chmod 600 {}", path.display()));
    }

    #[test]
    fn authorized_keys_are_read_line_by_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized_keys");
        assert!(AuthorizedKeys::load(&path).unwrap().is_empty());

        let (a, b) = (of(1).public(), of(2).public());
        std::fs::write(&path, format!("# trainers\n\n{a} alice laptop\n  {b}\tbob\n")).unwrap();
        let keys = AuthorizedKeys::load(&path).unwrap();
        assert_eq!(keys.names().collect::<Vec<_>>(), ["alice laptop", "bob"]);
        assert_eq!(keys.find(&b), Some("bob"));
        assert_eq!(keys.find(&of(3).public()), None);

        for (bad, cause) in [("rsa:abc eve", "ed25519:"), (&a.to_string(), "no name")] {
            std::fs::write(&path, format!("# one\n{bad}\n")).unwrap();
            let error = AuthorizedKeys::load(&path).unwrap_err().to_string();
            assert!(error.contains("line 2: ") && error.contains(cause), "{error}");
        }
    }
}
