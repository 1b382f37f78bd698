//! What one client sees of the exports: which of them, and whether it may write
//! there. Owns that decision, made once when a session begins, because a session
//! ends when what it came in with changes. Never opens a file: `files` does.

use crate::export::Mode;
use std::collections::BTreeMap;
use std::sync::Arc;
use verbatim_control::Who;
use verbatim_files::{Folder, Rules};
use verbatim_proto::{Code, Fault, WirePath};

/// An export, open.
#[derive(Clone)]
pub(crate) struct ExportFolder {
    pub folder: Arc<Folder>,
    pub mode: Mode,
    /// What of the metadata of uploads is kept.
    pub rules: Rules,
}

/// The exports by name.
pub(crate) type Exports = BTreeMap<Vec<u8>, Arc<ExportFolder>>;

/// Who has come in, as far as exports care.
pub(crate) struct Visitor<'a> {
    pub who: &'a Who,
}

impl Visitor<'_> {
    /// What it may do in an export; none if it may not know of it.
    fn mode_in(&self, name: &[u8], export: &ExportFolder) -> Option<Mode> {
        let Who::Token(token) = self.who else { return Some(export.mode) };
        let may_write = token.may_write(str::from_utf8(name).ok()?)?;
        Some(if may_write { export.mode } else { Mode::ReadOnly })
    }
}

/// The exports as one client sees them.
pub(crate) struct Reach {
    exports: Exports,
}

impl Reach {
    /// Leaves out what a visitor may not use, and makes read-only what it may only read.
    pub fn of(all: &Exports, visitor: &Visitor<'_>) -> Self {
        let seen = |(name, export): (&Vec<u8>, &Arc<ExportFolder>)| {
            let mode = visitor.mode_in(name, export)?;
            let export = match mode == export.mode {
                true => export.clone(),
                false => Arc::new(ExportFolder { mode, ..(**export).clone() }),
            };
            Some((name.clone(), export))
        };
        Self { exports: all.iter().filter_map(seen).collect() }
    }

    /// The names a client is told.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.exports.keys().map(Vec::as_slice)
    }

    /// The export a path is in, and the path within it. One that this client may not use does
    /// not exist for it.
    pub fn resolve(&self, path: &WirePath) -> Result<(Arc<ExportFolder>, WirePath), Fault> {
        let (name, rest) = path.split_first().ok_or_else(|| {
            Fault::new(Code::BadPath, "the path names no export; use HOST:/EXPORT/PATH")
        })?;
        let export = self.exports.get(name).ok_or_else(|| {
            let text = format!("no export is called {}", String::from_utf8_lossy(name));
            Fault::new(Code::NotFound, text)
        })?;
        Ok((export.clone(), rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_control::{ClientKey, Token};

    fn exports(dir: &std::path::Path) -> Exports {
        let open = |mode| {
            let folder = Arc::new(Folder::open(dir).unwrap());
            Arc::new(ExportFolder { folder, mode, rules: Rules::of_user() })
        };
        let named = |(name, mode): (&str, Mode)| (name.as_bytes().to_vec(), open(mode));
        let modes = [("ckpt", Mode::ReadWrite), ("data", Mode::ReadOnly), ("in", Mode::ReadWrite)];
        modes.into_iter().map(named).collect()
    }

    fn token(grants: &[&str]) -> Who {
        let grants = grants.iter().map(|text| text.parse().unwrap()).collect();
        let key = ClientKey::generate().unwrap().public();
        Who::Token(Arc::new(Token::new("alice", key, grants, None).unwrap()))
    }

    fn seen(reach: &Reach) -> Vec<(String, Mode)> {
        let shown = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
        reach.exports.iter().map(|(name, export)| (shown(name), export.mode)).collect()
    }

    #[test]
    fn a_token_sees_its_exports_and_never_more_than_they_allow() {
        use Mode::{ReadOnly, ReadWrite};
        let dir = tempfile::tempdir().unwrap();
        let all = exports(dir.path());
        for (grants, expected) in [
            (&["ckpt:rw", "data:rw"][..], &[("ckpt", ReadWrite), ("data", ReadOnly)][..]),
            (&["ckpt:ro"], &[("ckpt", ReadOnly)]),
            (&["*:ro"], &[("ckpt", ReadOnly), ("data", ReadOnly), ("in", ReadOnly)]),
            (&["none:rw"], &[]),
        ] {
            let who = token(grants);
            let reach = Reach::of(&all, &Visitor { who: &who });
            let expected: Vec<_> =
                expected.iter().map(|(name, mode)| ((*name).to_owned(), *mode)).collect();
            assert_eq!(seen(&reach), expected, "{grants:?}");
        }
        assert_eq!(all[&b"ckpt"[..].to_vec()].mode, ReadWrite, "others see what they saw");
    }

    #[test]
    fn who_came_in_by_key_sees_all() {
        let dir = tempfile::tempdir().unwrap();
        let reach = Reach::of(&exports(dir.path()), &Visitor { who: &Who::Local });
        assert_eq!(reach.names().count(), 3);
    }

    #[test]
    fn what_is_not_seen_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let who = token(&["data:ro"]);
        let reach = Reach::of(&exports(dir.path()), &Visitor { who: &who });
        let said = |path: &[u8]| match reach.resolve(&WirePath::parse(path).unwrap()) {
            Ok((_, below)) => below.to_string(),
            Err(fault) => fault.text,
        };
        assert_eq!(said(b"data/a/b"), "a/b");
        assert_eq!(said(b"ckpt/a"), "no export is called ckpt");
        assert_eq!(said(b"nowhere/a"), "no export is called nowhere");
        assert!(said(b"").contains("names no export"));
    }
}
