//! Servers seen before: `host:port SHA256:...`, one a line, in the user's config
//! folder. Owns that file and nothing else; never decides whom to trust, which
//! is what `trust` does with it.

use crate::{ControlError, Fingerprint, private};
use std::path::{Path, PathBuf};

/// The file of servers this user has met.
#[derive(Clone, Debug)]
pub struct KnownServers {
    path: PathBuf,
}

/// A server in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// What it presented when it was met.
    pub fingerprint: Fingerprint,
    /// Its line, counted from one.
    pub line: usize,
}

impl KnownServers {
    /// Names the file in a config folder; it need not be there.
    pub fn in_dir(config_dir: &Path) -> Self {
        Self { path: config_dir.join("known_servers") }
    }

    /// Returns where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks up a server; a line that cannot be read is an error, not a stranger.
    pub fn lookup(&self, host_port: &str) -> Result<Option<Known>, ControlError> {
        let text = self.text()?;
        for (index, line) in text.lines().enumerate() {
            let Some((name, print)) = entry(line) else { continue };
            if name.eq_ignore_ascii_case(host_port) {
                let line = index + 1;
                let bad = |e| private::bad(&self.path, format!("line {line}: {e}"));
                return Ok(Some(Known { fingerprint: print.parse().map_err(bad)?, line }));
            }
        }
        Ok(None)
    }

    /// Remembers a server, in the place of what was remembered of it.
    pub fn remember(&self, host_port: &str, fingerprint: Fingerprint) -> Result<(), ControlError> {
        let _lock = private::lock_folder_of(&self.path)?;
        let same =
            |line: &str| entry(line).is_some_and(|(name, _)| name.eq_ignore_ascii_case(host_port));
        let text = self.text()?;
        let mut kept: Vec<&str> = text.lines().filter(|line| !same(line)).collect();
        let added = format!("{host_port} {fingerprint}");
        kept.push(&added);
        private::replace(&self.path, format!("{}\n", kept.join("\n")).as_bytes())
    }

    fn text(&self) -> Result<String, ControlError> {
        private::text(&self.path, private::read_public(&self.path)?.unwrap_or_default())
    }
}

/// Splits a line into name and fingerprint; comments and empty lines are none.
fn entry(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (name, print) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    Some((name, print.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(letter: &str) -> Fingerprint {
        format!("SHA256:{}", letter.repeat(43)).parse().unwrap()
    }

    #[test]
    fn a_server_is_remembered_replaced_and_found_on_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let known = KnownServers::in_dir(&dir.path().join("config"));
        assert_eq!(known.lookup("a:1").unwrap(), None);
        known.remember("a:1", print("A")).unwrap();
        known.remember("b:1", print("A")).unwrap();
        known.remember("a:1", print("Q")).unwrap();
        let b = Known { fingerprint: print("A"), line: 1 };
        let a = Known { fingerprint: print("Q"), line: 2 };
        assert_eq!(known.lookup("B:1").unwrap(), Some(b));
        assert_eq!(known.lookup("a:1").unwrap(), Some(a));
        assert_eq!(known.lookup("a:2").unwrap(), None);
    }

    #[test]
    fn a_file_cut_at_any_length_never_names_another_server() {
        let dir = tempfile::tempdir().unwrap();
        let known = KnownServers::in_dir(dir.path());
        known.remember("a:1", print("A")).unwrap();
        known.remember("b:12", print("Q")).unwrap();
        let bytes = std::fs::read(known.path()).unwrap();
        for cut in 0..bytes.len() {
            std::fs::write(known.path(), &bytes[..cut]).unwrap();
            for (name, letter) in [("a:1", "A"), ("b:12", "Q")] {
                if let Ok(Some(found)) = known.lookup(name) {
                    assert_eq!(found.fingerprint, print(letter), "{name}, cut at {cut}");
                }
            }
            assert!(!matches!(known.lookup("b:1"), Ok(Some(_))), "cut at {cut}");
        }
    }

    #[test]
    fn a_damaged_line_is_an_error_and_comments_stay() {
        let dir = tempfile::tempdir().unwrap();
        let known = KnownServers::in_dir(dir.path());
        std::fs::write(known.path(), "# mine\na:1 SHA256:oops\n").unwrap();
        let error = known.lookup("a:1").unwrap_err().to_string();
        assert!(error.contains("line 2: not a fingerprint"), "{error}");
        known.remember("b:1", print("A")).unwrap();
        assert!(std::fs::read_to_string(known.path()).unwrap().starts_with("# mine\na:1 "));
    }

    #[test]
    fn two_clients_at_once_both_remember() {
        let dir = tempfile::tempdir().unwrap();
        let known = KnownServers::in_dir(dir.path());
        std::thread::scope(|scope| {
            for host in 0..8 {
                let known = &known;
                scope.spawn(move || known.remember(&format!("h{host}:1"), print("A")).unwrap());
            }
        });
        for host in 0..8 {
            assert!(known.lookup(&format!("h{host}:1")).unwrap().is_some());
        }
    }
}
