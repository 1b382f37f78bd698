//! An export whose data moves encrypted only, on a machine where RDMA works: it goes
//! over TCP inside TLS and the copy says why, while the export beside it goes over
//! verbs as ever.

use crate::*;

/// An export that must be encrypted, and one that need not be, both writable.
fn serve_both(dir: &Path) -> Serve {
    let export = |name: &str, more: &str| {
        format!("[[export]]\nname = {name:?}\npath = {:?}\nmode = \"rw\"\n{more}", dir.join(name))
    };
    let config = dir.join("serve.toml");
    let toml = export("data", "") + &export("in", "encryption = \"required\"\n");
    fs::write(&config, toml).expect("writes");
    Serve::start(&["--config", &config.display().to_string()])
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn verbs_is_refused_where_data_must_be_encrypted_and_the_copy_runs_in_tls() {
    let dir = folders();
    let at = |path: &str| dir.path().join(path);
    let text = |path: &str| at(path).display().to_string();
    tree::write(&at("data/a"), &tree::content(1, 3 << 20));
    let serve = serve_both(dir.path());
    assert!(serve.log().contains("RDMA is offered"), "{}", serve.log());
    let why = "data of in moves encrypted only";
    for (from, to) in [(text("data/a"), serve.at("in")), (serve.at("in/a"), text("out/back"))] {
        let told = summary(&serve.cp(&["--json", &from, &to]).done());
        assert_eq!(told["transport"], "tcp+tls", "{told}");
        assert!(told["reason"].as_str().is_some_and(|reason| reason.contains(why)), "{told}");
        assert_eq!((&told["rdma_reads"], &told["rdma_writes"]), (&0.into(), &0.into()), "{told}");
    }
    assert!(is_same(at("data/a"), at("in/a")) && is_same(at("data/a"), at("out/back")));
    // Who insists on verbs gets nothing, and hears why.
    let insisted = serve.cp(&["--transport", "verbs", &serve.at("in/a"), &text("out/verbs")]);
    insisted.refused(3, &[why]);
    assert!(!at("out/verbs").exists(), "it was copied all the same");
    // The other export of the same server is not slowed by it.
    assert_verbs(&serve.cp(&["--json", &serve.at("data/a"), &text("out/plain")]).done(), true);
}
