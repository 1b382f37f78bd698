//! The status file of a mirror that follows its source, for scripts and for `--wait`. One JSON
//! object, replaced atomically, so that no reader sees half of it. The mirror rewrites it every few
//! seconds: readers do not trust a stale file of a process that died while current.
//! `sync/follow_loop` writes it, `sync/wait` reads it.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use verbatim_proto::{Code, Fault};

/// The mirror rewrites the status this often, even if nothing changed.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);

/// A status older than this belongs to a process that died or hangs.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(12);

/// The most bytes read of a status file.
const STATUS_BYTES_MAX: u64 = 64 << 10;

/// The state of a mirror that follows its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FollowState {
    /// The target has not been equal to the source yet.
    Starting,
    /// The source changed, and the mirror copies the changes.
    Syncing,
    /// The target is equal to the source, as far as the source has reported changes.
    Current,
    /// Part of the source could not be copied; the mirror retries.
    Behind,
    /// The source sends no changes; the mirror retries.
    Lost,
    /// The mirror has ended.
    Stopped,
}

/// The content of the status file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FollowStatus {
    /// The state of the mirror.
    pub state: FollowState,
    /// The error, while the state is not current.
    pub error: Option<String>,
    /// The source, as the user named it.
    pub source: String,
    /// The target, as the user named it.
    pub target: String,
    /// The process that writes the file.
    pub process: u32,
    /// When the file was written, in seconds since 1970.
    pub written: f64,
    /// When the target was last equal to the source, as far as the source had reported changes.
    pub current: Option<f64>,
    /// How many passes have compared the trees.
    pub passes: u64,
    /// How many entries all passes changed at the target.
    pub changes: u64,
    /// How many bytes of files all passes copied.
    pub bytes: u64,
    /// Changes of a local source that a scan found and no event reported.
    #[serde(default)]
    pub healed: u64,
    /// How many entries failed in the last pass.
    pub failed: u64,
    /// How long the last pass took.
    pub pass_seconds: f64,
}

impl FollowStatus {
    /// The status of a mirror that starts now.
    pub fn new(source: String, target: String) -> Self {
        Self {
            state: FollowState::Starting,
            error: None,
            source,
            target,
            process: std::process::id(),
            written: unix_seconds(SystemTime::now()),
            current: None,
            passes: 0,
            changes: 0,
            bytes: 0,
            healed: 0,
            failed: 0,
            pass_seconds: 0.0,
        }
    }

    /// Reads a status file; `None` if there is none yet.
    pub fn read(path: &Path) -> Result<Option<Self>, Fault> {
        use std::io::Read;
        let what = format!("cannot read {}", path.display());
        let file = match std::fs::File::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| Fault::from_io(&what, &error))?,
        };
        let mut text = String::new();
        let read = file.take(STATUS_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| Fault::from_io(&what, &error))?;
        let status = serde_json::from_str(&text);
        status.map(Some).map_err(|error| {
            let text = format!("{what}: it is no status file of rdma-sync: {error}");
            Fault::new(Code::BadPath, text)
        })
    }

    /// Whether the process that wrote the status is still alive, judging by the age of the file.
    pub fn is_fresh(&self, now: SystemTime) -> bool {
        // A time in the future is of a clock that was set back; the next heartbeat corrects it.
        (unix_seconds(now) - self.written).abs() <= HEARTBEAT_MAX.as_secs_f64()
    }
}

/// The status file, if the user asked for one.
#[derive(Debug)]
pub struct StatusFile {
    path: Option<PathBuf>,
}

impl StatusFile {
    /// Writes to `path`; without one, writes nothing.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path }
    }

    /// Replaces the file atomically.
    pub fn write(&self, status: &mut FollowStatus) -> Result<(), Fault> {
        status.written = unix_seconds(SystemTime::now());
        let Some(path) = &self.path else { return Ok(()) };
        let cannot = |error: &std::io::Error| {
            Fault::from_io(format!("cannot write {}", path.display()), error)
        };
        let text = serde_json::to_string_pretty(status);
        let text = text.map_err(|error| Fault::new(Code::Bug, error.to_string()))?;
        verbatim_files::replace::replace(path, &format!("{text}\n")).map_err(|error| cannot(&error))
    }
}

/// Converts a time to seconds since 1970 in whole milliseconds: JSON readers do not always preserve
/// more digits.
pub fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_millis() as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_replaced_atomically_and_read_again() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("status");
        assert_eq!(FollowStatus::read(&path).expect("none yet"), None);
        let file = StatusFile::new(Some(path.clone()));
        let mut status = FollowStatus::new("h:/data".into(), "/scratch/data".into());
        file.write(&mut status).expect("writes");
        status.state = FollowState::Current;
        file.write(&mut status).expect("replaces");
        assert_eq!(FollowStatus::read(&path).expect("reads"), Some(status.clone()));
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(text.contains("\"state\": \"current\"") && text.ends_with("}\n"), "{text}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is left");
        std::fs::write(&path, "{").expect("writes");
        let fault = FollowStatus::read(&path).expect_err("no status");
        assert!(fault.text.contains("no status file of rdma-sync"), "{fault}");
        let missing = StatusFile::new(Some(dir.path().join("no/status")));
        assert_eq!(missing.write(&mut status).expect_err("no folder").code, Code::NotFound);
    }

    #[test]
    fn a_status_is_believed_for_as_long_as_it_is_fresh() {
        let mut status = FollowStatus::new(String::new(), String::new());
        let now = SystemTime::now();
        status.written = unix_seconds(now);
        assert!(
            status.is_fresh(now + HEARTBEAT_INTERVAL * 2)
                && status.is_fresh(now - HEARTBEAT_INTERVAL)
        );
        assert!(
            !status.is_fresh(now + HEARTBEAT_MAX * 2) && !status.is_fresh(now - HEARTBEAT_MAX * 2)
        );
    }

    #[test]
    fn a_damaged_status_is_never_taken_for_a_current_one() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("status");
        let file = StatusFile::new(Some(path.clone()));
        let mut status = FollowStatus::new("h:/data".into(), "/scratch/data".into());
        status.state = FollowState::Behind;
        status.error = Some("disk full, current is far".into());
        file.write(&mut status).expect("writes");
        let whole = std::fs::read(&path).expect("reads");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("writes");
            FollowStatus::read(&path).ok().flatten()
        };
        // The last byte is the newline.
        for len in 0..whole.len() - 1 {
            assert_eq!(read(&whole[..len]), None, "believed, cut at {len}");
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let state = read(&flipped).map_or(FollowState::Behind, |status| status.state);
            assert_eq!(state, FollowState::Behind, "bit {bit} flipped");
        }
    }
}
