//! What clients may still write into an export: bytes are taken as they arrive,
//! from every session, and never given back. Owns that count, and the file in the
//! state folder that keeps it over a restart: written once a second where it
//! changed, and when the server stops, so a server that is killed forgets what was
//! written in its last second. Who writes asks it first.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use verbatim_proto::{Code, Fault};

/// How often counts are written that changed.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// The quota of one export.
#[derive(Debug)]
pub(crate) struct Quota {
    export: String,
    bytes_max: u64,
    used: AtomicU64,
}

impl Quota {
    pub fn new(export: &str, bytes_max: u64, used: u64) -> Self {
        Self { export: export.into(), bytes_max, used: AtomicU64::new(used) }
    }

    /// Whether this many bytes would fit now; nothing is taken.
    pub fn check(&self, bytes: u64) -> Result<(), Fault> {
        let left = self.bytes_max.saturating_sub(self.used.load(Ordering::Relaxed));
        if bytes <= left { Ok(()) } else { Err(self.over(bytes, left)) }
    }

    /// Takes this many bytes, or none.
    pub fn take(&self, bytes: u64) -> Result<(), Fault> {
        let more = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.bytes_max);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            if bytes == 0 { Some(used) } else { more(used) }
        });
        taken.map(|_| ()).map_err(|used| self.over(bytes, self.bytes_max.saturating_sub(used)))
    }

    fn over(&self, bytes: u64, left: u64) -> Fault {
        let Self { export, bytes_max, .. } = self;
        let text = format!(
            "the quota of {export} is used up: {left} of {bytes_max} bytes are left, {bytes} are \
             needed; ask who runs the server to raise quota_mb"
        );
        Fault::new(Code::NoSpace, text)
    }
}

/// What was written so far, by export, as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    #[serde(default)]
    written_bytes: BTreeMap<String, u64>,
}

impl Counts {
    /// Reads what was kept; a file that makes no sense is complained about, and counts nothing.
    pub fn load(state_dir: &Path) -> Self {
        let path = path(state_dir);
        let Ok(text) = std::fs::read_to_string(&path) else { return Self::default() };
        toml::from_str(&text).unwrap_or_else(|_| {
            let path = path.display().to_string();
            tracing::error!(path, "quotas are not as they were written; they begin anew");
            Self::default()
        })
    }

    /// What was written into an export before this server began.
    pub fn of(&self, export: &str) -> u64 {
        self.written_bytes.get(export).copied().unwrap_or(0)
    }

    /// Takes the counts as they are now. Exports that are not there now keep theirs.
    fn update<'a>(&mut self, quotas: impl Iterator<Item = &'a Arc<Quota>>) {
        for quota in quotas {
            self.written_bytes.insert(quota.export.clone(), quota.used.load(Ordering::Relaxed));
        }
    }

    /// Writes them, all or nothing.
    fn save(&self, state_dir: &Path) -> std::io::Result<()> {
        let (path, text) = (path(state_dir), toml::to_string(self).unwrap_or_default());
        let next = path.with_extension("next");
        let mut file = File::create(&next)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(next, path)
    }
}

/// Keeps counts for as long as it lives, and once more when it goes.
pub(crate) struct Keeper {
    quotas: Vec<Arc<Quota>>,
    state_dir: PathBuf,
    kept: Counts,
}

impl Keeper {
    pub fn new(quotas: Vec<Arc<Quota>>, state_dir: PathBuf) -> Self {
        let kept = Counts::load(&state_dir);
        Self { quotas, state_dir, kept }
    }

    /// Keeps counts without end, where there are any.
    pub async fn run(mut self) {
        while !self.quotas.is_empty() {
            tokio::time::sleep(SAVE_EVERY).await;
            self.save();
        }
    }

    fn save(&mut self) {
        let mut now = self.kept.clone();
        now.update(self.quotas.iter());
        if now == self.kept {
            return;
        }
        match now.save(&self.state_dir) {
            Ok(()) => self.kept = now,
            Err(error) => tracing::error!(%error, "quotas are not kept"),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.save();
    }
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("quotas.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_until_none_are_left() {
        let quota = Quota::new("in", 100, 0);
        assert!(quota.check(100).is_ok() && quota.check(101).is_err());
        quota.take(60).unwrap();
        let fault = quota.take(41).unwrap_err();
        assert_eq!(fault.code, Code::NoSpace);
        assert!(fault.text.contains("40 of 100 bytes are left, 41 are needed"), "{fault}");
        quota.take(40).unwrap();
        assert!(quota.take(1).is_err() && quota.take(0).is_ok());
    }

    #[test]
    fn what_was_written_is_known_to_the_next_server() {
        let dir = tempfile::tempdir().unwrap();
        let quota = Arc::new(Quota::new("in", 100, 0));
        let keeper = Keeper::new(vec![quota.clone()], dir.path().into());
        quota.take(60).unwrap();
        drop(keeper);
        assert_eq!(Counts::load(dir.path()).of("in"), 60);
        assert_eq!(Counts::load(dir.path()).of("other"), 0);
        // A quota that was lowered meanwhile leaves nothing, and forgets nothing.
        let lower = Arc::new(Quota::new("in", 50, 60));
        assert!(lower.take(1).is_err() && lower.take(0).is_ok());
        drop(Keeper::new(vec![lower], dir.path().into()));
        assert_eq!(Counts::load(dir.path()).of("in"), 60);
        std::fs::write(path(dir.path()), "nonsense").unwrap();
        assert_eq!(Counts::load(dir.path()), Counts::default());
    }
}
