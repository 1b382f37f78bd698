//! `rdma-doctor` as a user runs it: on recorded machines (`machine`), on folders of
//! this one (`exports`), against real servers over loopback (`server`), and through
//! networks (`way`). Real processes, real sockets, real exit codes. A stage of its
//! own in `tests/run`. What needs a device is in `tests/tests/verbs`.

#![forbid(unsafe_code)]

mod exports;
mod machine;
#[path = "../../../common/fabric/src/ports/tests/record.rs"]
mod record;
mod served;
mod server;
mod way;

use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use verbatim_tests::process::{Ended, Home, Running};

/// How long something may take to be seen.
const SEEN_MAX: Duration = Duration::from_secs(30);

/// Runs the doctor to its end.
fn doctor(home: &Home, arguments: &[&str]) -> Ended {
    Running::start(home.command("rdma-doctor", arguments)).end()
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// The checks that found something.
fn checks(said: &Value) -> Vec<&str> {
    let findings = said["findings"].as_array().expect("findings");
    findings.iter().map(|it| it["check"].as_str().expect("a check")).collect()
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A machine as `common/doctor/tests/machines` records it; `more` is laid over it.
fn recorded(name: &str, more: &str) -> TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let text = repository().join("common/doctor/tests/machines").join(format!("{name}.txt"));
    record::unfold(&std::fs::read_to_string(text).expect("a record"), root.path());
    record::unfold(more, root.path());
    root
}
