//! Named tokens: whose public key may use which exports, how, and until when.
//! Owns the file `tokens.toml` of a server's state folder and the rules of one
//! token. Never holds a secret half: that goes to the user and nowhere else.
//! `rdma-token` writes the file, `rdma-serve` reads it again when it changes.

use crate::{ControlError, ParseError, PublicKey, private};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// What one key may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// What people call it; no two have the same.
    pub name: String,
    /// The public half.
    pub key: PublicKey,
    /// The exports it is good for.
    pub exports: Vec<Grant>,
    /// When it ends, in seconds since 1970; none for never.
    pub expires: Option<u64>,
}

impl Token {
    /// Makes a token; a name that would confuse a log or a list is refused.
    pub fn new(
        name: &str,
        key: PublicKey,
        exports: Vec<Grant>,
        expires: Option<u64>,
    ) -> Result<Self, ParseError> {
        let bad = |cause| Err(ParseError { what: "name of a token", cause });
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "._@-".contains(letter);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
            return bad("it has 1 to 64 letters, digits or . _ @ -");
        }
        Ok(Self { name: name.into(), key, exports, expires })
    }

    /// Returns whether its time is over.
    pub fn is_over(&self, now: u64) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }

    /// Returns whether it may write to an export; none if it may not use it at all. What is said
    /// of the export by name counts, and `*` for those that are not named.
    pub fn may_write(&self, export: &str) -> Option<bool> {
        let of = |name: &str| self.exports.iter().find(|grant| grant.export == name);
        of(export).or_else(|| of(EVERY_EXPORT)).map(|grant| grant.write)
    }
}

/// An export a token is good for, written as `NAME:ro` or `NAME:rw`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its name; `*` is every export.
    pub export: String,
    /// Whether the token may write to it, where the export itself allows that.
    pub write: bool,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.export, if self.write { "rw" } else { "ro" })
    }
}

impl FromStr for Grant {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (export, write) = match text.strip_suffix(":rw") {
            Some(export) => (export, true),
            None => (text.strip_suffix(":ro").unwrap_or(text), false),
        };
        if export.is_empty() || export.contains('/') {
            let cause = "write NAME:ro or NAME:rw, or *:ro for every export";
            return Err(ParseError { what: "grant", cause });
        }
        Ok(Self { export: export.into(), write })
    }
}

/// The tokens of a server, as read from its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<Token>);

impl Tokens {
    /// Adds a token that is in no file.
    pub fn insert(&mut self, token: Token) {
        self.0.push(token);
    }

    /// Returns the token of a key.
    pub fn find(&self, key: &PublicKey) -> Option<&Token> {
        self.0.iter().find(|token| token.key == *key)
    }

    /// Returns every token, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Token> {
        self.0.iter()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The file of tokens.
#[derive(Clone, Debug)]
pub struct TokenStore {
    path: PathBuf,
}

impl TokenStore {
    /// Names the file in a state folder; it need not be there.
    pub fn in_dir(state_dir: &Path) -> Self {
        Self { path: state_dir.join("tokens.toml") }
    }

    /// Returns where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the tokens; no file is none.
    pub fn load(&self) -> Result<Tokens, ControlError> {
        let Some(bytes) = private::read_public(&self.path)? else { return Ok(Tokens::default()) };
        let file: TokenFile = toml::from_str(&private::text(&self.path, bytes)?)
            .map_err(|e| private::bad(&self.path, e.message()))?;
        let read = |entry: TokenEntry| {
            let bad = |e: ParseError| private::bad(&self.path, format!("{}: {e}", entry.name));
            let grants: Result<_, _> = entry.exports.iter().map(|text| text.parse()).collect();
            let (key, exports) = (entry.key.parse().map_err(bad)?, grants.map_err(bad)?);
            Token::new(&entry.name, key, exports, entry.expires).map_err(bad)
        };
        Ok(Tokens(file.token.into_iter().map(read).collect::<Result<_, _>>()?))
    }

    /// Adds a token; one of the same name must be over.
    pub fn add(&self, token: Token, now: u64) -> Result<(), ControlError> {
        self.change(|tokens| {
            let same = |other: &Token| other.name == token.name;
            if tokens.iter().any(|other| same(other) && !other.is_over(now)) {
                return Err(ControlError::Local {
                    what: format!("cannot add {}", token.name),
                    cause: "there is a token of this name".into(),
                    hint: Some(format!("rdma-token revoke {}, or choose another name", token.name)),
                });
            }
            tokens.retain(|other| !same(other));
            tokens.push(token);
            Ok(())
        })
    }

    /// Takes a token away; sessions that came in with it end.
    pub fn revoke(&self, name: &str) -> Result<(), ControlError> {
        self.change(|tokens| {
            let before = tokens.len();
            tokens.retain(|token| token.name != name);
            if tokens.len() < before {
                return Ok(());
            }
            Err(ControlError::Local {
                what: format!("cannot revoke {name}"),
                cause: format!("there is no token of this name in {}", self.path.display()),
                hint: Some("rdma-token list shows those there are; --state chooses another".into()),
            })
        })
    }

    /// Reads, changes and replaces the file, while nobody else does.
    fn change(
        &self,
        change: impl FnOnce(&mut Vec<Token>) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let _lock = private::lock_folder_of(&self.path)?;
        let Tokens(mut tokens) = self.load()?;
        change(&mut tokens)?;
        let entry = |token: Token| TokenEntry {
            name: token.name,
            key: token.key.to_string(),
            expires: token.expires,
            exports: token.exports.iter().map(Grant::to_string).collect(),
        };
        let file = TokenFile { token: tokens.into_iter().map(entry).collect() };
        let text = toml::to_string(&file).map_err(|e| private::bad(&self.path, e))?;
        private::replace_public(&self.path, text.as_bytes())
    }
}

/// Returns the seconds since 1970.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// What is in the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    #[serde(default)]
    token: Vec<TokenEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    /// Last, because it must be there: a file that is cut does not lose the end of a token's time.
    exports: Vec<String>,
}

/// Stands for every export.
const EVERY_EXPORT: &str = "*";

/// The longest name of a token.
const NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientKey;

    fn token(name: &str, grants: &[&str], expires: Option<u64>) -> Token {
        let grants = grants.iter().map(|text| text.parse().unwrap()).collect();
        Token::new(name, ClientKey::generate().unwrap().public(), grants, expires).unwrap()
    }

    #[test]
    fn a_token_opens_what_it_names_and_nothing_else() {
        let named = token("alice", &["data:ro", "ckpt:rw"], None);
        assert_eq!(named.may_write("data"), Some(false));
        assert_eq!(named.may_write("ckpt"), Some(true));
        assert_eq!(named.may_write("other"), None);
        let every = token("ops", &["*:rw", "data:ro"], None);
        assert_eq!((every.may_write("any"), every.may_write("data")), (Some(true), Some(false)));
        assert_eq!(token("none", &[], None).may_write("data"), None);
        for bad in ["", ":rw", "a/b:ro"] {
            assert!(bad.parse::<Grant>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_is_over_from_its_last_second_on() {
        let short = token("a", &[], Some(100));
        assert!(!short.is_over(99) && short.is_over(100));
        assert!(!token("b", &[], None).is_over(u64::MAX));
    }

    #[test]
    fn what_is_added_is_read_back_until_it_is_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let store = TokenStore::in_dir(&dir.path().join("state"));
        assert!(store.load().unwrap().is_empty());
        let (alice, bob) = (token("alice", &["data:ro"], Some(50)), token("bob", &["*:rw"], None));
        store.add(alice.clone(), 10).unwrap();
        store.add(bob.clone(), 10).unwrap();
        assert_eq!(store.load().unwrap(), Tokens(vec![alice.clone(), bob.clone()]));
        assert_eq!(store.load().unwrap().find(&bob.key), Some(&bob));

        let again = token("alice", &["data:rw"], None);
        let error = store.add(again.clone(), 49).unwrap_err();
        assert!(error.to_string().contains("of this name") && error.hint().is_some(), "{error}");
        // One that is over makes room for another.
        store.add(again.clone(), 50).unwrap();
        store.revoke("bob").unwrap();
        assert_eq!(store.load().unwrap(), Tokens(vec![again]));
        let error = store.revoke("bob").unwrap_err();
        assert!(error.to_string().contains("no token of this name"), "{error}");
    }

    #[test]
    fn a_damaged_file_is_an_error_and_not_an_empty_list() {
        let dir = tempfile::tempdir().unwrap();
        let store = TokenStore::in_dir(dir.path());
        store.add(token("alice", &["data:ro"], None), 0).unwrap();
        let text = std::fs::read_to_string(store.path()).unwrap();
        for damaged in [
            text.replace("ed25519:", "rsa:"),
            text.replace("data:ro", ":ro"),
            text.replace("alice", "al ice"),
            text.replace("exports", "export"),
        ] {
            std::fs::write(store.path(), damaged).unwrap();
            let error = store.load().unwrap_err().to_string();
            assert!(error.contains("tokens.toml"), "{error}");
        }
    }

    #[test]
    fn a_file_cut_at_any_length_has_fewer_tokens_and_none_that_may_more() {
        let dir = tempfile::tempdir().unwrap();
        let store = TokenStore::in_dir(dir.path());
        store.add(token("alice", &["data:ro", "ckpt:rw"], Some(50)), 0).unwrap();
        store.add(token("bob", &["*:ro"], Some(7_000_000_000)), 0).unwrap();
        let (all, bytes) = (store.load().unwrap(), std::fs::read(store.path()).unwrap());
        for cut in 0..bytes.len() {
            std::fs::write(store.path(), &bytes[..cut]).unwrap();
            if let Ok(Tokens(read)) = store.load() {
                assert!(all.0.starts_with(&read), "cut at {cut}: {read:?}");
            }
        }
    }

    #[test]
    fn a_file_with_any_bit_flipped_is_an_error_or_a_list() {
        let dir = tempfile::tempdir().unwrap();
        let store = TokenStore::in_dir(dir.path());
        store.add(token("alice", &["data:ro"], Some(50)), 0).unwrap();
        let bytes = std::fs::read(store.path()).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(store.path(), flipped).unwrap();
            // What it says is for its owner to see; nobody gets in as two, or as nobody.
            if let Ok(Tokens(read)) = store.load() {
                assert!(read.len() <= 1 && read.iter().all(|token| !token.name.is_empty()));
            }
        }
    }

    #[test]
    fn names_are_plain() {
        let key = ClientKey::generate().unwrap().public();
        for bad in ["", "a b", "a\nb", "a/b", &"x".repeat(65)] {
            assert!(Token::new(bad, key, Vec::new(), None).is_err(), "{bad:?}");
        }
        assert!(Token::new("alice@host-7.lab_2", key, Vec::new(), None).is_ok());
    }
}
