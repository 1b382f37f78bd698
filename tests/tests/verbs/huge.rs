//! Huge pages of a real kernel: slots and buffers are in them while there are some, the
//! kernel says so, and what is pinned is counted as before. Where a kernel has none
//! (user-mode Linux), that is said.

use super::{assert_verbs, both_ways, is_same, serve_big, summary};
use crate::budget::pinned_by;
use std::fs;
use verbatim_tests::process::{seen, skip, wait_for, when};

const NAME: &str = "slots_are_in_huge_pages_while_there_are_some";
const COUNT: &str = "/proc/sys/vm/nr_hugepages";

/// What the kernel says a process has in huge pages, in bytes.
fn huge_of(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("HugetlbPages:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn slots_are_in_huge_pages_while_there_are_some() {
    if std::env::var_os("VERBATIM_GUEST").is_none() {
        return skip(NAME, "it would take memory of this machine for huge pages");
    }
    // 64 MiB, for both sides.
    let given = fs::write(COUNT, "32").and_then(|()| fs::read_to_string(COUNT));
    if !given.as_ref().is_ok_and(|count| count.trim() == "32") {
        return skip(NAME, &format!("this kernel has no huge pages to give: {given:?}"));
    }
    let (dir, serve) = serve_big(8 << 20);
    for (command, folder, reads) in both_ways(&serve, dir.path(), "--bwlimit=4M") {
        let mut copy = serve.start_cp(&command);
        let side = if reads { copy.id() } else { serve.id() };
        let what = format!("process {side} has memory in huge pages");
        let huge = wait_for(&what, super::BEGIN_MAX, || {
            copy.assert_runs("the copy ended without huge pages");
            when(huge_of(side), |bytes| *bytes > 0).map_err(|bytes| (bytes, copy.report()))
        });
        assert!(huge % (2 << 20) == 0 && huge <= 64 << 20, "{huge} bytes");
        if !reads {
            // They are mapped first, and registered a moment later.
            wait_for("the server has pinned its slots in huge pages", super::BEGIN_MAX, || {
                copy.assert_runs("the copy ended and nothing was seen pinned");
                let pinned = pinned_by(serve.id());
                seen(pinned > 0, (pinned, copy.report()))
            });
        }
        let done = copy.end().done();
        assert_verbs(&done, reads);
        assert!(is_same(dir.path().join("data/big"), folder.join("big")));
        assert!(summary(&done)["huge_page_bytes"].as_u64() > Some(0), "{}", summary(&done));
    }
    assert!(serve.log().contains("huge_pages_free=32"), "{}", serve.log());
    wait_for("the server has no bytes in huge pages any more", super::BEGIN_MAX, || {
        when(huge_of(serve.id()), |bytes| *bytes == 0)
    });
    // None are left: ordinary pages do.
    fs::write(COUNT, "0").expect("writes");
    for (command, ..) in both_ways(&serve, dir.path(), "--force") {
        let done = serve.cp(&command).done();
        assert_eq!(summary(&done)["huge_page_bytes"], 0);
    }
}
