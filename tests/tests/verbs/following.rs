//! A mirror that follows its source over a real device, both ways: what changes after
//! the first pass is carried by verbs, and by nothing else.

use super::*;

/// Bytes that the server moved with clients, by direction and transport.
fn moved(serve: &Serve, direction: &str, transport: &str) -> f64 {
    let text = get(serve.metrics.expect("it shows metrics"), "/metrics").body;
    let name =
        format!("rdma_serve_bytes_total{{direction=\"{direction}\",transport=\"{transport}\"}}");
    series(&text, &name).unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_source_that_is_followed_comes_over_verbs_both_ways() {
    let dir = folders();
    let path = |name: &str| dir.path().join(name);
    let text = |name: &str| path(name).display().to_string();
    let serve = Serve::start(&exports(dir.path()));
    for (direction, source, target, there) in [
        ("read", serve.at("data"), text("out/copy"), path("out/copy")),
        ("write", text("data"), serve.at("in/copy"), path("in/copy")),
    ] {
        tree::write(&path("data/a/first"), &tree::content(1, 3 << 20));
        let words = [source.as_str(), target.as_str(), "--watch", "--delete", "--max-delete=100%"];
        let mut follower = Running::start(serve.home().command("rdma-sync", &words));
        let mut follows = |what: &str, bytes: f64| {
            let before = moved(&serve, direction, "verbs");
            wait_for(&format!("{direction}: {what} is at the target"), BEGIN_MAX, || {
                follower.assert_runs("rdma-sync ended before its target was equal");
                let different = match there.is_dir() {
                    true => tree::differences(&path("data"), &there),
                    false => vec!["there is no target".to_owned()],
                };
                seen(different.is_empty(), (different, follower.report()))
            });
            // What is read counts when its window is given back.
            wait_for(&format!("{direction}: {what} came over verbs"), BEGIN_MAX, || {
                let now = moved(&serve, direction, "verbs");
                seen(now >= bytes, format!("{before} bytes, then {now}, of {bytes}"))
            });
        };
        let mega = f64::from(1 << 20);
        follows("the first file", 3.0 * mega);
        tree::write(&path("data/a/second"), &tree::content(2, 2 << 20));
        follows("a second file", 5.0 * mega);
        fs::rename(path("data/a"), path("data/b")).expect("renames");
        follows("a folder that was renamed", 5.0 * mega);
        tree::write(&path("data/b/third"), &tree::content(3, 1 << 20));
        follows("a file behind that", 6.0 * mega);
        assert_eq!(moved(&serve, direction, "tcp"), 0.0, "{direction}: nothing goes over TCP");
        follower.signal(Signal::TERM);
        follower.end();
        fs::remove_dir_all(path("data/b")).expect("removes");
    }
}
