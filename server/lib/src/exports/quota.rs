//! Quota of an export, in bytes and in files. Bytes are charged as they arrive, from every
//! session, and never refunded. An inode is charged before it is created (`files::charge`), and
//! refunded only if it was not created, or was removed before it got its final name. Replaced
//! and removed files stay counted.
//! Owns these counts and their file in the state folder, saved once a second if changed and when
//! the server stops. A killed server forgets the writes of its last second. A server does not
//! start with an unreadable, truncated or damaged file, which a checksum in its first line
//! detects: counted from zero, a quota could be used twice.

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

/// How often changed counts are saved.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a save may take before an error is logged, and how long a stopping server waits.
const SAVE_TIME_MAX: Duration = Duration::from_secs(5);

/// The quota of one export.
#[derive(Debug)]
pub(crate) struct Quota {
    export: String,
    /// The limits; the largest number where there is none.
    max: Cost,
    used: Mutex<Cost>,
}

impl Quota {
    pub fn new(export: &str, max: Cost, used: Cost) -> Self {
        Self { export: export.into(), max, used: Mutex::new(used) }
    }

    /// Whether this would fit now; charges nothing.
    pub fn check(&self, cost: Cost) -> Result<(), Fault> {
        let used = *self.used();
        self.sum_within_max(used, cost).map(drop)
    }

    /// The usage after this charge. A charge of zero never exceeds a limit.
    fn sum_within_max(&self, used: Cost, more: Cost) -> Result<Cost, Fault> {
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
        *used = self.sum_within_max(*used, cost)?;
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

/// The bytes of extended attributes that these rules allow, approximately.
pub(crate) fn attribute_bytes(meta: &Meta, rules: &Rules) -> u64 {
    let (saved, _) = allowed(meta, Kind::Folder, rules);
    saved.xattrs.into_iter().map(|xattr| xattr.weight() as u64).sum()
}

/// Charges bytes if there is a quota.
pub(crate) fn take(quota: Option<&Arc<Quota>>, bytes: u64) -> Result<(), Fault> {
    quota.map_or(Ok(()), |quota| quota.take(Cost::of_bytes(bytes)))
}

/// Quota usage by export, as saved in the state folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuotaUsage {
    #[serde(default)]
    written_bytes: BTreeMap<String, u64>,
    /// Older servers did not count them.
    #[serde(default)]
    made_files: BTreeMap<String, u64>,
}

impl QuotaUsage {
    /// Reads the saved usage; a missing file means none.
    pub fn load(state_dir: &Path) -> Result<Self, ControlError> {
        let path = path(state_dir);
        let unusable = |cause: String| ControlError::Local {
            what: format!("cannot know how much of the quotas is used: {}", path.display()),
            cause,
            hint: Some("make it readable, or remove it: quotas begin anew then".into()),
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::from_checked_text(&text)
                .ok_or_else(|| unusable("it is not what rdma-serve wrote".into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    /// The usage of an export before this server started.
    pub fn of(&self, export: &str) -> Cost {
        let count = |counts: &BTreeMap<String, u64>| counts.get(export).copied().unwrap_or(0);
        Cost { bytes: count(&self.written_bytes), files: count(&self.made_files) }
    }

    /// Updates the usage of these exports; others keep theirs.
    fn update<'a>(&mut self, quotas: impl Iterator<Item = &'a Arc<Quota>>) {
        for quota in quotas {
            let Cost { bytes, files } = *quota.used();
            self.written_bytes.insert(quota.export.clone(), bytes);
            self.made_files.insert(quota.export.clone(), files);
        }
    }

    /// The text of the file: a checksum first, so that a truncated file is detected.
    fn to_checked_text(&self) -> std::io::Result<String> {
        let counts = toml::to_string(self).map_err(std::io::Error::other)?;
        Ok(format!("{}\n{counts}", checksum_line(&counts)))
    }

    /// Parses such a text; `None` if its checksum does not match.
    fn from_checked_text(text: &str) -> Option<Self> {
        let (first, counts) = text.split_once('\n')?;
        if first == checksum_line(counts) { toml::from_str(counts).ok() } else { None }
    }

    /// Saves them atomically.
    fn save(&self, state_dir: &Path) -> std::io::Result<()> {
        let (path, text) = (path(state_dir), self.to_checked_text()?);
        let next = path.with_extension("next");
        let mut file = File::create(&next)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(next, path)
    }
}

/// Saves quota usage until it is stopped, and once more then.
pub(crate) struct QuotaSaver {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl QuotaSaver {
    /// Keeps counts that were `saved` like this. Needs a tokio runtime.
    pub fn start(quotas: Vec<Arc<Quota>>, state_dir: PathBuf, saved: QuotaUsage) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(SaveLoop { quotas, state_dir, saved }.run(stopped));
        Self { stop, task }
    }

    /// Saves a last time, unless that takes too long.
    pub async fn stop(self) {
        drop(self.stop);
        if tokio::time::timeout(SAVE_TIME_MAX, self.task).await.is_err() {
            tracing::error!("the last counts of quotas are lost");
        }
    }
}

struct SaveLoop {
    quotas: Vec<Arc<Quota>>,
    state_dir: PathBuf,
    saved: QuotaUsage,
}

impl SaveLoop {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut last = self.quotas.is_empty();
        while !last {
            last = tokio::time::timeout(SAVE_INTERVAL, &mut stopped).await.is_ok();
            self.save().await;
        }
    }

    /// Saves changed counts, on a thread that may block on the state folder. One save at a time,
    /// however long it takes.
    async fn save(&mut self) {
        let mut now = self.saved.clone();
        now.update(self.quotas.iter());
        if now == self.saved {
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
            Ok(()) => self.saved = now,
            Err(error) => tracing::error!(%error, "quotas are not kept"),
        }
    }
}

/// The first line of a text with these counts.
fn checksum_line(counts: &str) -> String {
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
        let saved = || QuotaUsage::load(dir.path()).unwrap();
        let quota = quota(Cost::default());
        let keeper = QuotaSaver::start(vec![quota.clone()], dir.path().into(), saved());
        quota.take(cost(60, 5)).unwrap();
        keeper.stop().await;
        assert_eq!((saved().of("in"), saved().of("other")), (cost(60, 5), Cost::default()));
        // A quota that was lowered meanwhile leaves nothing, and forgets nothing.
        let lower = Arc::new(Quota::new("in", cost(50, 4), cost(60, 5)));
        assert!(lower.take(cost(1, 0)).is_err() && lower.take(Cost::default()).is_ok());
        assert!(lower.take(cost(0, 1)).is_err());
        QuotaSaver::start(vec![lower], dir.path().into(), saved()).stop().await;
        assert_eq!(saved().of("in"), cost(60, 5));
    }

    #[test]
    fn counts_of_a_server_that_counted_no_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let counts = "[written_bytes]\nin = 60\n";
        std::fs::write(path(dir.path()), format!("{}\n{counts}", checksum_line(counts))).unwrap();
        assert_eq!(QuotaUsage::load(dir.path()).unwrap().of("in"), cost(60, 0));
    }

    #[test]
    fn counts_that_cannot_be_read_are_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            QuotaUsage::load(dir.path()).unwrap(),
            QuotaUsage::default(),
            "nothing was written"
        );
        std::fs::write(path(dir.path()), "nonsense").unwrap();
        let broken = QuotaUsage::load(dir.path()).unwrap_err();
        assert!(broken.to_string().contains("quotas.toml"), "{broken}");
        std::fs::remove_file(path(dir.path())).unwrap();
        std::fs::create_dir(path(dir.path())).unwrap();
        let unreadable = QuotaUsage::load(dir.path()).unwrap_err();
        assert!(unreadable.to_string().contains("Is a directory"), "{unreadable}");
        assert!(unreadable.hint().unwrap().contains("remove it"));
    }

    #[test]
    fn a_file_cut_at_any_length_or_with_any_bit_flipped_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let written_bytes = [("in".to_owned(), 1234), ("up".to_owned(), 7)].into();
        let made_files = [("in".to_owned(), 56), ("up".to_owned(), 0)].into();
        let counts = QuotaUsage { written_bytes, made_files };
        counts.save(dir.path()).unwrap();
        assert_eq!(QuotaUsage::load(dir.path()).unwrap(), counts);
        let whole = std::fs::read(path(dir.path())).unwrap();
        let refuse = |bytes: &[u8], what: &str| {
            std::fs::write(path(dir.path()), bytes).unwrap();
            assert!(QuotaUsage::load(dir.path()).is_err(), "believed, {what}");
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
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let reader = std::thread::spawn(move || {
            let _ = stopped.recv_timeout(SAVE_TIME_MAX);
            std::fs::read(pipe)
        });
        let quota = quota(Cost::default());
        quota.take(cost(60, 1)).unwrap();
        let (quotas, state_dir) = (vec![quota], dir.path().to_owned());
        let mut task = SaveLoop { quotas, state_dir, saved: QuotaUsage::default() };
        let begin = std::time::Instant::now();
        let saved = tokio::time::timeout(Duration::from_millis(20), task.save()).await;
        let at_once = begin.elapsed() < SAVE_TIME_MAX;
        assert!(saved.is_err() && at_once, "it held the runtime until somebody read");
        drop(stop);
        reader.join().unwrap().unwrap();
    }
}
