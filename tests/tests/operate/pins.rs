//! What needs an RDMA device to happen: the pin budget fills up under real clients,
//! and a real Prometheus fires the alert. `tests/run --full` has it in a guest, where
//! an emulated processor takes its time for Prometheus. On every run the guest shows
//! that a budget of real clients fills up as far as the rule asks
//! (`budget: a_budget_that_is_full_is_seen_from_outside`), and promtool that the rule
//! fires then (`rules.test.yml`).

use crate::has;
use crate::prometheus::Prometheus;
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use verbatim_tests::http::{get, series};
use verbatim_tests::process::{Home, Running, Serve, wait_for, when};

/// How long an emulated machine may take for what a real one does in a second.
const MOVE_MAX: Duration = Duration::from_secs(60);

/// What the server may pin. The first client gets half of it, the next half of what is left.
const BUDGET_MB: u32 = 8;
const CLIENTS: usize = 4;

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_full_pin_budget_fires_its_alert() {
    if !has("a_full_pin_budget_fires_its_alert", "prometheus") {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let text = |name: &str| dir.path().join(name).display().to_string();
    fs::create_dir(dir.path().join("in")).expect("a folder");
    fs::write(text("big"), vec![7; 16 << 20]).expect("a file");
    fs::write(text("serve.toml"), format!("[rdma]\npin_budget_mb = {BUDGET_MB}\n"))
        .expect("a file");
    let export = format!("in={}:rw", text("in"));
    let config = ["--config", &text("serve.toml"), &export];
    let serve = Serve::of(&Arc::new(Home::new()), "127.0.0.1:0", &config);
    let metrics = serve.metrics.expect("it shows metrics");
    let value = |name: &str| {
        let name = format!("rdma_serve_{name}");
        series(&get(metrics, "/metrics").body, &name).unwrap_or_else(|| panic!("no {name}"))
    };
    let prometheus = Prometheus::start(dir.path(), metrics);
    assert_eq!(value("pinned_limit_bytes"), f64::from(BUDGET_MB << 20));
    assert!(prometheus.query("ALERTS{alertname=\"RdmaServePinBudgetFull\"}").is_empty());

    // Slots stay pinned as long as their client is in: these take their time.
    let slow = |client: usize| {
        let there = serve.at(&format!("in/{client}"));
        let flags = ["-q", "--transport", "verbs", "--chunk-size", "256K", "--bwlimit", "256K"];
        serve.start_cp(&[&flags[..], &[&text("big"), &there]].concat())
    };
    let copies: Vec<Running> = (0..CLIENTS).map(slow).collect();
    prometheus.wait_for_alert("RdmaServePinBudgetFull");
    assert!(value("queue_pairs{state=\"rts\"}") >= 1.0 && value("regions") >= 1.0);
    assert!(value("links{transport=\"verbs\"}") >= 1.0 && value("slots") >= 1.0);
    drop(copies);
    for name in ["pinned_bytes", "regions", "slots", "queue_pairs{state=\"rts\"}"] {
        let what = format!("the server shows {name} as 0, as its clients are gone");
        wait_for(&what, MOVE_MAX, || when(value(name), |value| *value == 0.0));
    }
}
