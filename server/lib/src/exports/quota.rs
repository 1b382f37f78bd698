//! What clients may still write into an export, in bytes and in files: content is
//! taken as it arrives, from every session, and never given back; what takes an inode
//! is taken before it is made (`files::charge`), and given back only where it was not
//! made, or was removed before it got its name. What is replaced or removed later stays
//! counted.
//! Owns that count, and the file in the state folder that keeps it over a restart:
//! written once a second where it changed, and when the server stops, so a server that
//! is killed forgets what was written in its last second. A file that cannot be read
//! keeps the server from starting, and so does one that is cut short or damaged, which
//! its first line tells: counted from nothing, a quota would be used twice.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use verbatim_control::ControlError;
use verbatim_files::meta::{Kind, allowed};
use verbatim_files::{Charge, Cost, Rules};
use verbatim_proto::{Code, Digest, Fault, Meta};

/// How often counts are written that changed.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// How long writing them may take before somebody is told, and how long a server that stops waits.
const SAVE_TIME_MAX: Duration = Duration::from_secs(5);

/// The quota of one export.
#[derive(Debug)]
pub(crate) struct Quota {
    export: String,
    /// What may be taken; all there is of what has no limit.
    max: Cost,
    used: Mutex<Cost>,
}

impl Quota {
    pub fn new(export: &str, max: Cost, used: Cost) -> Self {
        Self { export: export.into(), max, used: Mutex::new(used) }
    }

    /// Whether this would fit now; nothing is taken.
    pub fn check(&self, cost: Cost) -> Result<(), Fault> {
        let used = *self.used();
        self.with(used, cost).map(drop)
    }

    /// What is used when this is taken as well. Nothing of a kind never is too much of it.
    fn with(&self, used: Cost, more: Cost) -> Result<Cost, Fault> {
        let (Self { export, max, .. }, sum) = (self, used.and(more));
        let why = if more.bytes > 0 && sum.bytes > max.bytes {
            let (left, bytes, max) = (left(max.bytes, used.bytes), more.bytes, max.bytes);
            format!(
                "{left} of {max} bytes are left, {bytes} are needed; ask who runs the server to \
                 raise quota_mb"
            )
        } else if more.files > 0 && sum.files > max.files {
            let (left, max) = (left(max.files, used.files), max.files);
            format!(
                "{left} of {max} files, folders and links are left; ask who runs the server to \
                 raise quota_files"
            )
        } else {
            return Ok(sum);
        };
        Err(Fault::new(Code::NoSpace, format!("the quota of {export} is used up: {why}")))
    }

    fn used(&self) -> MutexGuard<'_, Cost> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Charge for Quota {
    fn take(&self, cost: Cost) -> Result<(), Fault> {
        let mut used = self.used();
        *used = self.with(*used, cost)?;
        Ok(())
    }

    fn give_back(&self, cost: Cost) {
        let mut used = self.used();
        *used = Cost { bytes: left(used.bytes, cost.bytes), files: left(used.files, cost.files) };
    }
}

fn left(max: u64, used: u64) -> u64 {
    max.saturating_sub(used)
}

/// About how many bytes of extended attributes these rules let be written, at most.
pub(crate) fn attribute_bytes(meta: &Meta, rules: &Rules) -> u64 {
    let (kept, _) = allowed(meta, Kind::Folder, rules);
    kept.xattrs.into_iter().map(|xattr| xattr.weight() as u64).sum()
}

/// Takes this many bytes where there is a quota.
pub(crate) fn take(quota: Option<&Arc<Quota>>, bytes: u64) -> Result<(), Fault> {
    quota.map_or(Ok(()), |quota| quota.take(Cost::of_bytes(bytes)))
}

/// What was written and made so far, by export, as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    #[serde(default)]
    written_bytes: BTreeMap<String, u64>,
    /// Older servers did not count them.
    #[serde(default)]
    made_files: BTreeMap<String, u64>,
}

impl Counts {
    /// Reads what was kept; where there is no file nothing was written.
    pub fn load(state_dir: &Path) -> Result<Self, ControlError> {
        let path = path(state_dir);
        let unusable = |cause: String| ControlError::Local {
            what: format!("cannot know how much of the quotas is used: {}", path.display()),
            cause,
            hint: Some("make it readable, or remove it: quotas begin anew then".into()),
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::unsealed(&text)
                .ok_or_else(|| unusable("it is not what rdma-serve wrote".into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    /// What was written into an export, and made in it, before this server began.
    pub fn of(&self, export: &str) -> Cost {
        let count = |counts: &BTreeMap<String, u64>| counts.get(export).copied().unwrap_or(0);
        Cost { bytes: count(&self.written_bytes), files: count(&self.made_files) }
    }

    /// Takes the counts as they are now. Exports that are not there now keep theirs.
    fn update<'a>(&mut self, quotas: impl Iterator<Item = &'a Arc<Quota>>) {
        for quota in quotas {
            let Cost { bytes, files } = *quota.used();
            self.written_bytes.insert(quota.export.clone(), bytes);
            self.made_files.insert(quota.export.clone(), files);
        }
    }

    /// The text that is kept: its digest first, so that no part of it passes for all of it.
    fn sealed(&self) -> std::io::Result<String> {
        let counts = toml::to_string(self).map_err(std::io::Error::other)?;
        Ok(format!("{}\n{counts}", seal(&counts)))
    }

    /// What such a text says, if it is whole.
    fn unsealed(text: &str) -> Option<Self> {
        let (first, counts) = text.split_once('\n')?;
        if first == seal(counts) { toml::from_str(counts).ok() } else { None }
    }

    /// Writes them, all or nothing.
    fn save(&self, state_dir: &Path) -> std::io::Result<()> {
        let (path, text) = (path(state_dir), self.sealed()?);
        let next = path.with_extension("next");
        let mut file = File::create(&next)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(next, path)
    }
}

/// Keeps counts until it is ended, and once more then.
pub(crate) struct Keeper {
    end: oneshot::Sender<()>,
    keeping: JoinHandle<()>,
}

impl Keeper {
    /// Keeps counts that were `kept` like this. Needs a tokio runtime.
    pub fn start(quotas: Vec<Arc<Quota>>, state_dir: PathBuf, kept: Counts) -> Self {
        let (end, ended) = oneshot::channel();
        let keeping = tokio::spawn(Keeping { quotas, state_dir, kept }.run(ended));
        Self { end, keeping }
    }

    /// Writes them a last time, unless that takes too long.
    pub async fn end(self) {
        drop(self.end);
        if tokio::time::timeout(SAVE_TIME_MAX, self.keeping).await.is_err() {
            tracing::error!("the last counts of quotas are lost");
        }
    }
}

struct Keeping {
    quotas: Vec<Arc<Quota>>,
    state_dir: PathBuf,
    kept: Counts,
}

impl Keeping {
    async fn run(mut self, mut ended: oneshot::Receiver<()>) {
        let mut last = self.quotas.is_empty();
        while !last {
            last = tokio::time::timeout(SAVE_EVERY, &mut ended).await.is_ok();
            self.save().await;
        }
    }

    /// Writes counts that changed, on a thread that may wait for the state folder. There is one
    /// such write at a time, however long it takes.
    async fn save(&mut self) {
        let mut now = self.kept.clone();
        now.update(self.quotas.iter());
        if now == self.kept {
            return;
        }
        let (counts, state_dir) = (now.clone(), self.state_dir.clone());
        let mut saving = tokio::task::spawn_blocking(move || counts.save(&state_dir));
        let saved = loop {
            match tokio::time::timeout(SAVE_TIME_MAX, &mut saving).await {
                Ok(saved) => break saved,
                Err(_) => tracing::error!("quotas are not kept: the state folder does not answer"),
            }
        };
        match saved.map_err(std::io::Error::other).flatten() {
            Ok(()) => self.kept = now,
            Err(error) => tracing::error!(%error, "quotas are not kept"),
        }
    }
}

/// The first line of a text with these counts.
fn seal(counts: &str) -> String {
    format!("check = \"{}\"", Digest::of(counts.as_bytes()))
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("quotas.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quota of 100 bytes and 9 files.
    fn quota(used: Cost) -> Arc<Quota> {
        Arc::new(Quota::new("in", Cost { bytes: 100, files: 9 }, used))
    }

    fn cost(bytes: u64, files: u64) -> Cost {
        Cost { bytes, files }
    }

    #[test]
    fn bytes_are_taken_until_none_are_left() {
        let quota = quota(Cost::default());
        let take = |bytes| quota.take(cost(bytes, 0));
        assert!(quota.check(cost(100, 0)).is_ok() && quota.check(cost(101, 0)).is_err());
        take(60).unwrap();
        let fault = take(41).unwrap_err();
        assert_eq!(fault.code, Code::NoSpace);
        assert!(fault.text.contains("40 of 100 bytes are left, 41 are needed"), "{fault}");
        assert!(fault.text.contains("quota_mb"), "{fault}");
        take(40).unwrap();
        assert!(take(1).is_err() && take(0).is_ok());
    }

    #[test]
    fn files_are_taken_until_none_are_left_and_bytes_with_them_or_not_at_all() {
        let quota = quota(Cost::default());
        quota.take(cost(10, 8)).unwrap();
        let fault = quota.take(cost(10, 2)).unwrap_err();
        assert!(fault.text.contains("1 of 9 files, folders and links are left"), "{fault}");
        assert!(fault.text.contains("quota_files") && fault.code == Code::NoSpace, "{fault}");
        quota.take(cost(90, 1)).expect("nothing was taken by what was refused");
        quota.give_back(cost(30, 1));
        assert!(quota.take(cost(31, 1)).is_err() && quota.take(cost(30, 1)).is_ok());
        let unbounded = Quota::new("in", cost(u64::MAX, 2), Cost::default());
        unbounded.take(cost(u64::MAX, 1)).expect("bytes have no limit");
        assert!(unbounded.take(cost(u64::MAX, 1)).is_ok() && unbounded.take(cost(0, 1)).is_err());
    }

    #[tokio::test]
    async fn what_was_written_is_known_to_the_next_server() {
        let dir = tempfile::tempdir().unwrap();
        let kept = || Counts::load(dir.path()).unwrap();
        let quota = quota(Cost::default());
        let keeper = Keeper::start(vec![quota.clone()], dir.path().into(), kept());
        quota.take(cost(60, 5)).unwrap();
        keeper.end().await;
        assert_eq!((kept().of("in"), kept().of("other")), (cost(60, 5), Cost::default()));
        // A quota that was lowered meanwhile leaves nothing, and forgets nothing.
        let lower = Arc::new(Quota::new("in", cost(50, 4), cost(60, 5)));
        assert!(lower.take(cost(1, 0)).is_err() && lower.take(Cost::default()).is_ok());
        assert!(lower.take(cost(0, 1)).is_err());
        Keeper::start(vec![lower], dir.path().into(), kept()).end().await;
        assert_eq!(kept().of("in"), cost(60, 5));
    }

    #[test]
    fn counts_of_a_server_that_counted_no_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let counts = "[written_bytes]\nin = 60\n";
        std::fs::write(path(dir.path()), format!("{}\n{counts}", seal(counts))).unwrap();
        assert_eq!(Counts::load(dir.path()).unwrap().of("in"), cost(60, 0));
    }

    #[test]
    fn counts_that_cannot_be_read_are_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Counts::load(dir.path()).unwrap(), Counts::default(), "nothing was written");
        std::fs::write(path(dir.path()), "nonsense").unwrap();
        let broken = Counts::load(dir.path()).unwrap_err();
        assert!(broken.to_string().contains("quotas.toml"), "{broken}");
        std::fs::remove_file(path(dir.path())).unwrap();
        std::fs::create_dir(path(dir.path())).unwrap();
        let unreadable = Counts::load(dir.path()).unwrap_err();
        assert!(unreadable.to_string().contains("Is a directory"), "{unreadable}");
        assert!(unreadable.hint().unwrap().contains("remove it"));
    }

    #[test]
    fn a_file_cut_at_any_length_or_with_any_bit_flipped_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let written_bytes = [("in".to_owned(), 1234), ("up".to_owned(), 7)].into();
        let made_files = [("in".to_owned(), 56), ("up".to_owned(), 0)].into();
        let counts = Counts { written_bytes, made_files };
        counts.save(dir.path()).unwrap();
        assert_eq!(Counts::load(dir.path()).unwrap(), counts);
        let whole = std::fs::read(path(dir.path())).unwrap();
        let refuse = |bytes: &[u8], what: &str| {
            std::fs::write(path(dir.path()), bytes).unwrap();
            assert!(Counts::load(dir.path()).is_err(), "believed, {what}");
        };
        for len in 0..whole.len() {
            refuse(&whole[..len], &format!("cut at {len}"));
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            refuse(&flipped, &format!("with bit {bit} flipped"));
        }
    }

    #[tokio::test]
    async fn a_state_folder_that_does_not_answer_holds_a_thread_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        // A pipe that nobody reads: whoever opens it to write waits.
        let pipe = path(dir.path()).with_extension("next");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, 0o600.into(), 0).unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let reader = std::thread::spawn(move || {
            let _ = ended.recv_timeout(SAVE_TIME_MAX);
            std::fs::read(pipe)
        });
        let quota = quota(Cost::default());
        quota.take(cost(60, 1)).unwrap();
        let (quotas, state_dir) = (vec![quota], dir.path().to_owned());
        let mut keeping = Keeping { quotas, state_dir, kept: Counts::default() };
        let begin = std::time::Instant::now();
        let saved = tokio::time::timeout(Duration::from_millis(20), keeping.save()).await;
        let at_once = begin.elapsed() < SAVE_TIME_MAX;
        assert!(saved.is_err() && at_once, "it held the runtime until somebody read");
        drop(end);
        reader.join().unwrap().unwrap();
    }
}
