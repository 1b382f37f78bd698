//! The attacks of `tests/attack`, each for a second against this build, so that they can be
//! run when figures are wanted: docs/faults.md has those. Here nothing is timed; what is
//! asserted does not depend on the machine.

#![forbid(unsafe_code)]

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use verbatim_tests::process::{Running, binary};

/// Runs an attack that has a script of its name, and returns its figures.
fn attack(name: &str) -> Vec<(String, f64)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("attack").join(name);
    assert!(script.exists(), "tests/attack/{name} runs it");
    let mut command = Command::new(binary("attack"));
    command.args([name, "--seconds", "1", "--rounds", "1", "--json"]);
    let ended = Running::start(command).end().done();
    let table: Value = serde_json::from_str(&ended.stdout).expect("it prints JSON");
    assert!(table["version"].as_str().is_some_and(|it| it.contains("rdma-serve")), "{table}");
    let rows = table["rows"].as_array().expect("rows");
    let row = |row: &Value| Some((row["what"].as_str()?.to_owned(), row["value"].as_f64()?));
    rows.iter().map(|it| row(it).expect("a row has words and a number")).collect()
}

/// The value in the row with these words.
fn value(rows: &[(String, f64)], words: &str) -> f64 {
    let found = rows.iter().find(|(what, _)| what.contains(words));
    found.unwrap_or_else(|| panic!("no row has {words:?}: {rows:?}")).1
}

#[test]
fn new_copies_are_served_beside_silent_strangers() {
    let rows = attack("strangers");
    assert!(value(&rows, "one byte after 9 s: a copy, median") > 0.0, "{rows:?}");
}

#[test]
fn greetings_before_the_welcome_are_small() {
    let rows = attack("greetings");
    assert_eq!(value(&rows, "a greeting that is taken"), 4096.0, "{rows:?}");
    assert!(value(&rows, "memory at most") < 256.0, "{rows:?}");
}

#[test]
fn answers_that_nobody_reads_are_asked_for() {
    let rows = attack("unread");
    assert!(value(&rows, "requests that were sent") > 0.0, "{rows:?}");
    assert!(value(&rows, "bytes that were written to slots") > 0.0, "{rows:?}");
}

#[test]
fn patterns_that_take_long_are_asked_for_beside_copies() {
    let rows = attack("patterns");
    for how in ["asked once", "asked again and again"] {
        assert!(value(&rows, &format!("{how}: scans that were asked for")) > 0.0, "{rows:?}");
    }
}

#[test]
fn damaged_frames_harm_nobody_else() {
    let rows = attack("fuzz");
    assert!(value(&rows, "of these damaged") > 0.0, "{rows:?}");
    assert!(value(&rows, "copies of an honest client") >= 2.0, "{rows:?}");
}
