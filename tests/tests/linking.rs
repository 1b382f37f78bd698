//! What our programs need to start. RDMA libraries are opened at run time, so
//! that one binary runs on machines with and without them; this is where an
//! accidental link-time dependency fails.

#![forbid(unsafe_code)]

use std::process::Command;
use verbatim_tests::process::{binary, skip};

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
