//! What readers get when the disk under the cache is full, of what is cached or of what
//! others have put there: the right bytes, from the network where they cannot be kept.
//! As root only, for a disk of its own, in a namespace of its own: whatever ends the test,
//! nothing of it stays mounted.

use super::*;

const MIB: usize = 1 << 20;

/// Says that this is the test itself, in its namespace.
const INSIDE: &str = "VERBATIM_TEST_FULL_DISK";

/// Runs a test of this file again, in a mount namespace that ends with it; whether it could.
fn apart(test: &str) -> bool {
    let own = std::env::current_exe().expect("a running test has a file");
    let mut command = Command::new("unshare");
    // Who is killed takes along what it started there.
    command.args(["--mount", "--propagation", "private", "--fork", "--kill-child"]).arg(own);
    command.args(["--exact", &format!("full::{test}"), "--nocapture"]).env(INSIDE, "1");
    let can = Command::new("unshare").args(["--mount", "true"]).output();
    if !can.is_ok_and(|tried| tried.status.success()) {
        return false;
    }
    let ran = command.output().expect("unshare runs");
    let said = [ran.stdout, ran.stderr].concat();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&said));
    assert!(String::from_utf8_lossy(&said).contains("1 passed"), "it found no such test");
    true
}

/// A small disk.
fn disk(mib: usize) -> Arc<TempDir> {
    let at = Arc::new(tempfile::tempdir().expect("a folder"));
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=700"), "verbatim-test-cache"]);
    let made = command.arg(at.path()).output().expect("mount runs");
    assert!(made.status.success(), "{made:?}");
    at
}

/// Fails unless a file is read as it is, twice.
fn read_twice(mounted: &Mounted, name: &str, content: &[u8]) {
    for _ in 0..2 {
        assert!(fs::read(mounted.path(name)).expect("reads") == content, "{name}");
    }
}

#[test]
fn when_the_disk_of_the_cache_is_full_readers_get_right_bytes_and_no_error() {
    let test = "when_the_disk_of_the_cache_is_full_readers_get_right_bytes_and_no_error";
    if !can_mount(test) {
        return;
    }
    if std::env::var_os(INSIDE).is_none() {
        if !apart(test) {
            skip(test, "no mount namespace of its own (needs root, unshare)");
        }
        return;
    }
    let disk = disk(24);
    let big = noise(40 * MIB + 17, 31);
    let small: Vec<_> = (0..30).map(|number| noise(700_000 + number, number as u64)).collect();
    let source = Source::new(|dir| {
        fs::write(dir.join("big"), &big).expect("writes");
        for (number, content) in small.iter().enumerate() {
            fs::write(dir.join(format!("{number}")), content).expect("writes");
        }
    });
    std::thread::sleep(SETTLED);
    let mounted = source.mount_with(&disk, &["--cache-size", "1G"]);
    read_twice(&mounted, "big", &big);
    for (number, content) in small.iter().enumerate() {
        read_twice(&mounted, &format!("{number}"), content);
    }
    // What others put there leaves room for nothing at all.
    let free = rustix::fs::statvfs(disk.path()).expect("tells").f_bfree;
    let rest = vec![1; (free as usize) * 4096 + MIB];
    fs::write(disk.path().join("others"), rest).expect_err("there is no room for that");
    fs::write(source.path("new"), &big).expect("writes");
    fs::write(source.path("small"), &small[0]).expect("writes");
    read_twice(&mounted, "new", &big);
    read_twice(&mounted, "small", &small[0]);
    read_twice(&mounted, "big", &big);
    let told = mounted.status();
    assert_eq!(told["failures"], 0, "{told}");
    // And when there is room again, things are kept again.
    fs::remove_file(disk.path().join("others")).expect("removes");
    read_twice(&mounted, "1", &small[1]);
    let before = mounted.status();
    read_twice(&mounted, "1", &small[1]);
    assert_eq!(mounted.status()["fetched_bytes"], before["fetched_bytes"], "{before}");
    mounted.end();
    // The next run has a cache that is good.
    let mounted = source.mount_with(&disk, &["--cache-size", "1G"]);
    read_twice(&mounted, "big", &big);
    mounted.end();
    // The folder itself goes with the test; the disk is unmounted first.
    let gone = Command::new("umount").arg(disk.path()).status();
    assert!(gone.is_ok_and(|status| status.success()), "nobody uses it");
}
