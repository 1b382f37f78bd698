//! A mounted tree over a real device: what is read through the kernel's FUSE came by
//! RDMA READs, and is what the source has.

use super::*;

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn what_is_read_through_a_mount_comes_over_verbs() {
    let (dir, serve) = serve_big(3 << 20);
    tree::write(&dir.path().join("data/small"), &tree::content(2, 5000));
    // What is younger is looked at more than once.
    std::thread::sleep(Duration::from_millis(2100));
    let (at, cache) = (dir.path().join("out"), dir.path().join("cache"));
    let path = |path: &Path| path.display().to_string();
    let words =
        [serve.at("data"), path(&at), "--foreground".into(), "--cache".into(), path(&cache)];
    let mut mount = Running::start(serve.home().command("rdma-mount", &words));
    wait_for("the mount shows the file small", BEGIN_MAX, || {
        mount.assert_runs("rdma-mount ended before it showed a file");
        exists(&at.join("small")).map_err(|missing| (missing, mount.report()))
    });
    for name in ["big", "small"] {
        assert!(is_same(dir.path().join("data").join(name), at.join(name)), "{name}");
    }
    let status = serve.home().command("rdma-mount", &["--status", &path(&at), "--json"]);
    let told = summary(&Running::start(status).end().done());
    let transport = told["transport"].as_str().expect("a transport");
    assert!(transport.starts_with("verbs ") && !transport.contains("tcp"), "{told}");
    assert!(told["rdma_reads"].as_u64() > Some(0), "no request was posted: {told}");
    mount.signal(Signal::TERM);
    mount.end().done();
    assert!(!at.join("small").exists(), "it is still mounted");
}
