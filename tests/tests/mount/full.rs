//! What readers get when the disk under the cache is full, of what is cached or of what
//! others have put there: the right bytes, from the network where they cannot be kept.
//! As root only, for a disk of its own.

use super::*;

const MIB: usize = 1 << 20;

/// A small disk, gone when this is dropped.
struct Disk(Arc<TempDir>);

impl Disk {
    fn new(mib: usize) -> Option<Self> {
        let at = Arc::new(tempfile::tempdir().expect("a folder"));
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "cache"]).arg(at.path());
        let made = command.output().is_ok_and(|output| output.status.success());
        made.then_some(Self(at))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Ours alone; what is mounted below has its own end.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
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
    let Some(disk) = Disk::new(24) else { return skip(test, "no disk can be made") };
    let big = noise(40 * MIB + 17, 31);
    let small: Vec<_> = (0..30).map(|number| noise(700_000 + number, number as u64)).collect();
    let source = Source::new(|dir| {
        fs::write(dir.join("big"), &big).expect("writes");
        for (number, content) in small.iter().enumerate() {
            fs::write(dir.join(format!("{number}")), content).expect("writes");
        }
    });
    std::thread::sleep(SETTLED);
    let mounted = source.mount_with(&disk.0, &["--cache-size", "1G"]);
    read_twice(&mounted, "big", &big);
    for (number, content) in small.iter().enumerate() {
        read_twice(&mounted, &format!("{number}"), content);
    }
    // What others put there leaves room for nothing at all.
    let free = rustix::fs::statvfs(disk.0.path()).expect("tells").f_bfree;
    let rest = vec![1; (free as usize) * 4096 + MIB];
    fs::write(disk.0.path().join("others"), rest).expect_err("there is no room for that");
    fs::write(source.path("new"), &big).expect("writes");
    fs::write(source.path("small"), &small[0]).expect("writes");
    read_twice(&mounted, "new", &big);
    read_twice(&mounted, "small", &small[0]);
    read_twice(&mounted, "big", &big);
    let told = mounted.status();
    assert_eq!(told["failures"], 0, "{told}");
    // And when there is room again, things are kept again.
    fs::remove_file(disk.0.path().join("others")).expect("removes");
    read_twice(&mounted, "1", &small[1]);
    let before = mounted.status();
    read_twice(&mounted, "1", &small[1]);
    assert_eq!(mounted.status()["fetched_bytes"], before["fetched_bytes"], "{before}");
    mounted.end();
    // The next run has a cache that is good.
    let mounted = source.mount_with(&disk.0, &["--cache-size", "1G"]);
    read_twice(&mounted, "big", &big);
    mounted.end();
}
