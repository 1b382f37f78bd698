//! A file larger than 4 GiB, where 32 bits end, and the memory that both sides
//! take for it: a bound that does not grow with the file.

use crate::process::{Home, Running, Serve, seen, skip, wait_for};
use crate::text;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How large the file is: past 32 bits, and not a whole number of chunks.
const FILE_BYTES: u64 = (5 << 30) + 12_345;

/// What must be free where it goes.
const FREE_BYTES: u64 = 12 << 30;

/// The most memory of its own either side may take.
const ANON_KIB_MAX: u64 = 192 << 10;

/// How long the copy may take on a slow machine.
const COPY_MAX: Duration = Duration::from_secs(120);

/// A folder with room: in memory if it can be, on disk if it must.
fn roomy() -> Option<PathBuf> {
    let free = |folder: &Path| {
        rustix::fs::statvfs(folder).is_ok_and(|stat| stat.f_bavail * stat.f_frsize >= FREE_BYTES)
    };
    let is_tmpfs =
        |folder: &Path| rustix::fs::statfs(folder).is_ok_and(|stat| stat.f_type == TMPFS_MAGIC);
    let memory = Path::new("/dev/shm");
    if is_tmpfs(memory) && free(memory) {
        return Some(memory.to_owned());
    }
    Some(std::env::temp_dir()).filter(|folder| free(folder))
}

/// What the kernel calls a tmpfs.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Memory of a process that no file backs, in KiB; none once it has ended.
fn anon_kib(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// Makes a file that is mostly hole, with marks where numbers wrap.
fn make_large(path: &Path) {
    let file = fs::File::create(path).expect("a file");
    file.set_len(FILE_BYTES).expect("a hole");
    let wrap = 1u64 << 32;
    for (number, at) in
        [0, (1 << 20) - 3, wrap - 5, wrap, wrap + 9, FILE_BYTES - 8].iter().enumerate()
    {
        let mark = [number as u8 + 1; 8];
        file.write_all_at(&mark, *at).expect("a mark");
    }
}

fn digest_of(path: &Path) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut file = fs::File::open(path).expect("the file is there");
    std::io::copy(&mut file, &mut hasher).expect("it can be read");
    hasher.finalize().to_string()
}

/// Watches both sides until the copy ends; returns the most memory of each.
fn watch(copy: &mut Running, serve: &Serve) -> (u64, u64) {
    let (mut client, mut server) = (0, 0);
    wait_for("the copy ends", COPY_MAX, || {
        client = client.max(anon_kib(copy.id()).unwrap_or(0));
        server = server.max(anon_kib(serve.id()).unwrap_or(0));
        seen(copy.has_ended(), copy.report())
    });
    (client, server)
}

#[test]
fn five_gib_arrive_in_bounded_memory() {
    let Some(room) = roomy() else {
        return skip("five_gib_arrive_in_bounded_memory", "12 GiB free are needed");
    };
    let dir = tempfile::tempdir_in(room).unwrap();
    let (from, to) = (dir.path().join("data/large"), dir.path().join("out/large"));
    fs::create_dir_all(from.parent().unwrap()).unwrap();
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    make_large(&from);
    let export = format!("data={}", text(from.parent().unwrap()));
    let serve = Serve::of(&Arc::new(Home::new()), "127.0.0.1:0", &[export]);
    let mut copy = serve.start_cp(&["--digest", &serve.at("data/large"), &text(&to)]);
    let (client_kib, server_kib) = watch(&mut copy, &serve);
    let ended = copy.end().done();
    assert_eq!(fs::metadata(&to).unwrap().len(), FILE_BYTES);
    let told = ended.stdout.split_whitespace().next().expect("a digest is told").to_owned();
    let source = std::thread::spawn(move || digest_of(&from));
    assert_eq!(digest_of(&to), told, "what has arrived");
    assert_eq!(source.join().unwrap(), told, "what was sent");
    for (side, kib) in [("rdma-cp", client_kib), ("rdma-serve", server_kib)] {
        assert!((1..=ANON_KIB_MAX).contains(&kib), "{side} took {kib} KiB");
    }
    println!("RssAnon at most: rdma-cp {client_kib} KiB, rdma-serve {server_kib} KiB");
}
