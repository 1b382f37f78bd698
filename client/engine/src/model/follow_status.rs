//! The status file: how a mirror that is kept current is, for scripts and for
//! who waits for it. One JSON object, replaced as a whole, so that nobody reads
//! half of it; written anew every few seconds, so that one who died with the
//! word "current" on his lips is not believed for long. Written by the loop in
//! `sync/follow_loop`, read by `sync/wait`.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use verbatim_proto::{Code, Fault};

/// How often a status is written even if nothing changes.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);

/// A status that is older than this is that of somebody who is gone.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(12);

/// The largest status file that is read.
const STATUS_BYTES_MAX: u64 = 64 << 10;

/// How a mirror is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FollowState {
    /// It has not been equal yet.
    Starting,
    /// Something changed, and is being copied.
    Syncing,
    /// The target is equal to the source, as far as the source has told.
    Current,
    /// Some of it could not be made equal; it is tried again.
    Behind,
    /// The source cannot be heard; it is tried again.
    Lost,
    /// It is over.
    Stopped,
}

/// What the status file says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FollowStatus {
    /// How it is.
    pub state: FollowState,
    /// Why, where it is not current.
    pub error: Option<String>,
    /// What is copied.
    pub source: String,
    /// Where to.
    pub target: String,
    /// The process that writes this.
    pub process: u32,
    /// When this was written, in seconds since 1970.
    pub written: f64,
    /// When the target was last equal to the source, as far as it had told.
    pub current: Option<f64>,
    /// How often the trees were compared.
    pub passes: u64,
    /// What was changed at the target by all passes.
    pub changes: u64,
    /// The bytes of files that were copied by all passes.
    pub bytes: u64,
    /// Changes of a local source that no event told and a comparison found.
    #[serde(default)]
    pub healed: u64,
    /// How much of the last pass failed.
    pub failed: u64,
    /// How long the last pass took.
    pub pass_seconds: f64,
}

impl FollowStatus {
    /// The status of what begins now.
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

    /// Reads a status file; none where there is none yet.
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

    /// Whether whoever wrote it is still there to write another, as far as the clock tells.
    pub fn is_fresh(&self, now: SystemTime) -> bool {
        // One of the future is of a clock that was set back; the next beat mends it.
        (unix_seconds(now) - self.written).abs() <= HEARTBEAT_MAX.as_secs_f64()
    }
}

/// Where the status is written, if it is.
#[derive(Debug)]
pub struct StatusFile {
    path: Option<PathBuf>,
}

impl StatusFile {
    /// A file to write to; none writes nothing.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path }
    }

    /// Replaces the file, all of it at once.
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

/// Converts a time to seconds since 1970, cut to milliseconds: more digits are not always read
/// from JSON as they were written.
pub fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_millis() as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_replaced_as_a_whole_and_read_again() {
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
        // The last byte ends the line.
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
