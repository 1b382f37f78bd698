//! Paths as they cross the wire: bytes, relative to an export, already plain.
//! A path that could leave its export cannot be made into a `WirePath`; the
//! server still resolves it beneath the export's folder, because links move.

use crate::fault::{Code, Fault};
use crate::text::{clean, is_harmful};
use crate::units::{NAME_BYTES_MAX, PATH_BYTES_MAX};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// A plain relative path: names joined by `/`, none of them empty, `.` or `..`. The empty
/// path is the folder itself.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WirePath(Vec<u8>);

impl WirePath {
    /// The folder itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// Takes a path as a user or a peer wrote it: leading, trailing and repeated slashes and
    /// `.` are dropped, `..` and NUL are refused.
    pub fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        check_length(bytes)?;
        let mut plain = Vec::with_capacity(bytes.len());
        for name in bytes.split(|&byte| byte == b'/') {
            if name.is_empty() || name == b"." {
                continue;
            }
            check_name(name, bytes)?;
            if !plain.is_empty() {
                plain.push(b'/');
            }
            plain.extend_from_slice(name);
        }
        Ok(Self(plain))
    }

    /// The bytes of the path.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the folder itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of the path, in order.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
    }

    /// The last name, or `None` for the folder itself.
    pub fn name(&self) -> Option<&[u8]> {
        self.0.rsplit(|&byte| byte == b'/').next().filter(|name| !name.is_empty())
    }

    /// The folder the last name is in; the root's is the root.
    pub fn parent(&self) -> Self {
        Self(self.parent_bytes().to_vec())
    }

    /// The bytes of that folder's path.
    pub fn parent_bytes(&self) -> &[u8] {
        let cut = self.0.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        &self.0[..cut]
    }

    /// This path with `below` under it.
    pub fn join(&self, below: &Self) -> Self {
        if self.is_root() || below.is_root() {
            return Self([self.0.as_slice(), &below.0].concat());
        }
        Self([self.0.as_slice(), b"/", &below.0].concat())
    }

    /// This path with one name under it, if that is a name and the whole is not too long.
    pub fn with(&self, name: &[u8]) -> Result<Self, Fault> {
        // What a folder is read for is a name; anything else is taken apart, or refused.
        if !name.is_empty() && name != b"." && !name.contains(&b'/') {
            check_name(name, name)?;
            let slash: &[u8] = if self.is_root() { b"" } else { b"/" };
            return Self([self.0.as_slice(), slash, name].concat()).checked();
        }
        self.join(&Self::parse(name)?).checked()
    }

    /// Refuses a path that grew, by joining, beyond what may cross the wire.
    pub fn checked(self) -> Result<Self, Fault> {
        check_length(&self.0)?;
        Ok(self)
    }

    /// Whether this lies below `folder`, at any depth. Nothing is below itself.
    pub fn is_below(&self, folder: &Self) -> bool {
        let rest = self.0.strip_prefix(folder.0.as_slice());
        rest.is_some_and(|rest| !rest.is_empty() && (folder.is_root() || rest.starts_with(b"/")))
    }

    /// The order of a walk that sorts every folder by its names: a folder, then all below it,
    /// then the next name.
    pub fn tree_cmp(&self, other: &Self) -> std::cmp::Ordering {
        // No name holds a NUL byte, so a slash that counts as one is less than any letter.
        let key = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
        self.0.iter().map(key).cmp(other.0.iter().map(key))
    }

    /// The first name and the rest.
    pub fn split_first(&self) -> Option<(&[u8], Self)> {
        let first = self.names().next()?;
        let rest = self.0.get(first.len() + 1..).unwrap_or_default();
        Some((first, Self(rest.to_vec())))
    }
}

fn check_length(bytes: &[u8]) -> Result<(), Fault> {
    if bytes.len() > PATH_BYTES_MAX {
        let text = format!("path of {} bytes is longer than {PATH_BYTES_MAX}", bytes.len());
        return Err(Fault::new(Code::Limit, text));
    }
    Ok(())
}

fn check_name(name: &[u8], path: &[u8]) -> Result<(), Fault> {
    let refuse = |why: String| {
        let text = format!("path {:?} {why}", String::from_utf8_lossy(path));
        Err(Fault::new(Code::BadPath, text))
    };
    if name == b".." {
        return refuse("has a .. in it".into());
    }
    if name.contains(&0) {
        return refuse("has a NUL byte in it".into());
    }
    if name.len() > NAME_BYTES_MAX {
        return refuse(format!("has a name longer than {NAME_BYTES_MAX} bytes"));
    }
    Ok(())
}

impl WirePath {
    /// As text: control bytes escaped, bytes that are not UTF-8 replaced.
    pub fn text(&self) -> Cow<'_, str> {
        // Most have nothing to escape, and every file of a tree is named at least once: all bytes
        // are looked at, many at a time.
        let plain = self.0.iter().fold(true, |plain, byte| plain & (b' '..=b'~').contains(byte));
        let text = String::from_utf8_lossy(&self.0);
        if plain {
            return text;
        }
        if text.contains(is_harmful) { clean(&text).into_owned().into() } else { text }
    }
}

impl std::fmt::Display for WirePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

impl std::fmt::Debug for WirePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl Serialize for WirePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_bytes::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for WirePath {
    /// What arrives must already be plain: a peer that sends another spelling is refused.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes: Vec<u8> = serde_bytes::deserialize(deserializer)?;
        check_length(&bytes).map_err(serde::de::Error::custom)?;
        if !bytes.is_empty() {
            for name in bytes.split(|&byte| byte == b'/') {
                check_name(name, &bytes).map_err(serde::de::Error::custom)?;
                if name.is_empty() || name == b"." {
                    return Err(serde::de::Error::custom("path is not plain"));
                }
            }
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slashes_and_dots_fold() {
        let path = WirePath::parse(b"//data/./a.bin/").expect("plain");
        assert_eq!(path.as_bytes(), b"data/a.bin");
        assert_eq!(path.name(), Some(&b"a.bin"[..]));
        assert_eq!(path.parent().as_bytes(), b"data");
        assert_eq!(path.parent().parent(), WirePath::root());
        let (first, rest) = path.split_first().expect("two names");
        assert_eq!((first, rest.as_bytes()), (&b"data"[..], &b"a.bin"[..]));
    }

    #[test]
    fn paths_that_leave_are_refused() {
        for bad in [&b".."[..], b"a/../..", b"a/\0", &[b'x'; 256]] {
            assert_eq!(WirePath::parse(bad).expect_err("refused").code, Code::BadPath);
        }
    }

    #[test]
    fn a_path_that_grew_too_long_is_refused_before_a_peer_refuses_it() {
        let deep = WirePath::parse("folder/".repeat(4681).as_bytes()).expect("just short enough");
        assert_eq!(deep.as_bytes().len(), PATH_BYTES_MAX - 2);
        assert_eq!(deep.with(b"a").expect("fits").as_bytes().len(), PATH_BYTES_MAX);
        assert_eq!(deep.with(b"ab").expect_err("too long").code, Code::Limit);
        assert!(deep.join(&deep).checked().is_err());
    }

    #[test]
    fn a_spelling_that_is_not_plain_is_refused_on_the_wire() {
        for bad in [&b"/etc"[..], b"a//b", b"a/.", b"a/../b"] {
            let frame = postcard::to_stdvec(serde_bytes::Bytes::new(bad)).expect("encodes");
            assert!(postcard::from_bytes::<WirePath>(&frame).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_order_of_trees_keeps_a_folder_together() {
        let path = |text: &str| WirePath::parse(text.as_bytes()).expect("plain");
        let order = ["", "a", "a/b", "a/b/c", "a/c", "a b", "a-b", "ab"].map(path);
        assert!(order.is_sorted_by(|a, b| a.tree_cmp(b).is_lt()));
        assert!(path("a/b").is_below(&path("a")) && path("a").is_below(&WirePath::root()));
        assert!(!path("ab").is_below(&path("a")) && !path("a").is_below(&path("a")));
    }

    proptest! {
        #[test]
        fn what_parses_is_plain_and_stays_beneath(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(path) = WirePath::parse(&bytes) {
                prop_assert!(path.names().all(|n| n != b".." && n != b"." && !n.contains(&0)));
                prop_assert!(!path.as_bytes().starts_with(b"/"));
                prop_assert_eq!(WirePath::parse(path.as_bytes()).expect("again"), path);
            }
        }

        #[test]
        fn joining_and_splitting_are_inverse(a in "[a-z]{1,4}", b in "[a-z]{1,4}(/[a-z]{1,4}){0,3}") {
            let (a, b) = (WirePath::parse(a.as_bytes()).unwrap(), WirePath::parse(b.as_bytes()).unwrap());
            let joined = a.join(&b);
            let (first, rest) = joined.split_first().unwrap();
            prop_assert_eq!(first, a.as_bytes());
            prop_assert_eq!(rest, b);
        }
    }
}
