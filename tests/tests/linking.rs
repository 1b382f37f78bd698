//! What our programs need to start. RDMA libraries are opened at run time, so
//! that one binary runs on machines with and without them; this is where an
//! accidental link-time dependency fails.

#![forbid(unsafe_code)]

use std::process::Command;
use verbatim_tests::process::{Running, Serve, binary, skip};

#[test]
fn no_program_needs_an_rdma_library_to_start() {
    for name in ["rdma-serve", "rdma-cp"] {
        let Ok(told) = Command::new("readelf").arg("-d").arg(binary(name)).output() else {
            return skip("no_program_needs_an_rdma_library_to_start", "no readelf here");
        };
        let text = String::from_utf8_lossy(&told.stdout);
        let needed: Vec<_> = text.lines().filter(|line| line.contains("(NEEDED)")).collect();
        assert!(needed.iter().any(|line| line.contains("libc.so")), "{name}: {text}");
        let rdma = ["libibverbs", "librdmacm", "libmlx"];
        let wrong: Vec<_> =
            needed.iter().filter(|line| rdma.iter().any(|it| line.contains(it))).collect();
        assert!(wrong.is_empty(), "{name} does not start where these are missing: {wrong:?}");
    }
}

#[test]
fn a_copy_over_tcp_opens_no_rdma_library() {
    let dir = tempfile::tempdir().expect("folder");
    std::fs::write(dir.path().join("a"), "a").expect("writes");
    let serve = Serve::start(&[format!("data={}", dir.path().display())]);
    let (from, to) = (serve.at("data/a"), dir.path().join("b").display().to_string());
    let mut command = serve.home().command("rdma-cp", &["--transport", "tcp", &from, &to]);
    // The loader tells every library that is looked for.
    command.env("LD_DEBUG", "libs");
    let ended = Running::start(command).end().done();
    assert!(ended.stderr.contains("libc.so"), "the loader says nothing: {}", ended.stderr);
    assert!(!ended.stderr.contains("libibverbs"), "{}", ended.stderr);
}
