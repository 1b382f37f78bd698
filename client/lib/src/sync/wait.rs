//! `rdma-sync --wait`: waits until another process's mirror is current, by its status file. Never
//! writes anything. Called by the commands, for a job that needs the data.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use verbatim_engine::model::follow_status::{FollowState, FollowStatus};
use verbatim_proto::{Code, Fault};

/// The status file is read this often.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Returns once the status is current and fresh; fails with the reason after `at_most`.
pub async fn wait(path: &Path, at_most: Duration) -> Result<FollowStatus, Fault> {
    let begin = Instant::now();
    loop {
        let status = FollowStatus::read(path)?;
        let why_not = match status {
            Some(status) if status.is_fresh(SystemTime::now()) => match status.state {
                FollowState::Current => return Ok(status),
                FollowState::Stopped => "it was stopped; start it again".to_owned(),
                state => {
                    let why = status.error.map_or_else(String::new, |error| format!(": {error}"));
                    format!("it is {}{why}", name_of(state))
                }
            },
            Some(status) => format!(
                "nobody writes it any more: process {} is gone or hangs; start it again",
                status.process
            ),
            None => "there is no such file; start rdma-sync --watch --status-file".to_owned(),
        };
        if begin.elapsed() >= at_most {
            let seconds = at_most.as_secs_f64();
            let text = format!("{} is not current after {seconds} s: {why_not}", path.display());
            return Err(Fault::new(Code::TimedOut, text));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn name_of(state: FollowState) -> &'static str {
    match state {
        FollowState::Starting => "starting",
        FollowState::Syncing => "copying",
        FollowState::Current => "current",
        FollowState::Behind => "behind",
        FollowState::Lost => "without its source",
        FollowState::Stopped => "stopped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_engine::model::follow_status::StatusFile;

    #[tokio::test]
    async fn only_a_fresh_and_current_status_ends_the_wait() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("status");
        let short = Duration::from_millis(1);
        let refused = async |words: &str| {
            let text = wait(&path, short).await.expect_err("not yet").text;
            assert!(text.contains(words), "{text}");
        };
        refused("there is no such file").await;
        let file = StatusFile::new(Some(path.clone()));
        let mut status = FollowStatus::new("h:/data".into(), "data".into());
        file.write(&mut status).expect("writes");
        refused("it is starting").await;
        (status.state, status.error) = (FollowState::Lost, Some("h hung up".into()));
        file.write(&mut status).expect("writes");
        refused("it is without its source: h hung up").await;
        // A process that died while current.
        status.state = FollowState::Current;
        let old = FollowStatus { written: status.written - 60.0, ..status.clone() };
        let text = serde_json::to_string(&old).expect("JSON");
        std::fs::write(&path, text).expect("writes");
        refused("nobody writes it any more").await;
        let waiting = {
            let path = path.clone();
            tokio::spawn(async move { wait(&path, Duration::from_secs(20)).await })
        };
        file.write(&mut status).expect("writes");
        assert_eq!(waiting.await.expect("ends").expect("current").state, FollowState::Current);
    }
}
