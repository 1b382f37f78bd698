//! Uploads that a device writes straight into files in memory, where the server is
//! set so: no byte of them goes through a write of the server, and what arrives is
//! what was sent.

use super::budget::serve_with;
use super::{assert_verbs, folders, is_same, summary};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use verbatim_tests::process::Serve;
use verbatim_tests::tree;

const MIB: usize = 1 << 20;

/// Bytes that the server has given to write calls of any kind, where the kernel counts them:
/// Debian's do, a user-mode one may not.
fn written(serve: &Serve) -> Option<u64> {
    let io = fs::read_to_string(format!("/proc/{}/io", serve.pid())).ok()?;
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("what is written");
    Some(line.parse().expect("a number"))
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn an_upload_is_written_by_the_device_and_by_nobody_else() {
    let dir = folders();
    // One that lasts and has a journal, one that has no name until it is whole.
    let sizes = [17 * MIB + 5, 3 * MIB - 1];
    let total: usize = sizes.iter().sum();
    for (index, size) in sizes.into_iter().enumerate() {
        tree::write(&dir.path().join(format!("data/{index}")), &tree::content(index as u64, size));
    }
    let source = format!("{}/.", dir.path().join("data").display());
    for into_files in [true, false] {
        let serve = serve_with(dir.path(), &format!("write_into_files = {into_files}"));
        let before = written(&serve);
        let done = serve.cp(&["-r", "--json", &source, &serve.at("in")]).done();
        let by_calls = written(&serve).zip(before).map(|(after, before)| after - before);
        assert_verbs(&done, false);
        let told = summary(&done);
        for index in 0..sizes.len() {
            let name = index.to_string();
            assert!(is_same(
                dir.path().join("data").join(&name),
                dir.path().join("in").join(&name)
            ));
            fs::remove_file(dir.path().join("in").join(&name)).expect("removes");
        }
        if into_files {
            // What is left of both may have travelled packed.
            assert!(told["in_place_bytes"].as_u64() >= Some((total - 2 * MIB) as u64), "{told}");
            let few = by_calls.is_none_or(|bytes| bytes < 3 * MIB as u64);
            assert!(few, "{by_calls:?} bytes were written by calls");
        } else {
            assert_eq!(told["in_place_bytes"], 0, "{told}");
            let all = by_calls.is_none_or(|bytes| bytes > total as u64);
            assert!(all, "only {by_calls:?} bytes were written by calls");
        }
    }
}

/// A small disk of its own with ext4, mounted until dropped.
struct Disk {
    at: PathBuf,
}

impl Disk {
    fn mounted(at: PathBuf, image: &Path) -> Self {
        fs::File::create(image).and_then(|file| file.set_len(96 << 20)).expect("an image");
        let run = |program: &str, arguments: &[&str]| {
            let out = Command::new(program).args(arguments).output().expect("starts");
            assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
        };
        let (image, folder) = (image.display().to_string(), at.display().to_string());
        run("mkfs.ext4", &["-q", "-F", &image]);
        // Built in, where there are no modules.
        let _ = Command::new("modprobe").args(["-qa", "loop", "ext4"]).status();
        run("mount", &["-o", "loop", &image, &folder]);
        Self { at }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn an_upload_to_a_disk_is_written_by_a_device_that_pages_on_demand() {
    let dir = folders();
    let _disk = Disk::mounted(dir.path().join("in"), &dir.path().join("disk"));
    let size = 17 * MIB + 5;
    tree::write(&dir.path().join("data/f"), &tree::content(9, size));
    let serve = serve_with(dir.path(), "write_into_files = true");
    let done = serve
        .cp(&["--json", &dir.path().join("data/f").display().to_string(), &serve.at("in/")])
        .done();
    assert_verbs(&done, false);
    assert!(is_same(dir.path().join("data/f"), dir.path().join("in/f")));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let major: u32 = kernel.split('.').next().and_then(|n| n.parse().ok()).expect("a number");
    let in_place = summary(&done)["in_place_bytes"].as_u64().expect("a number");
    if major >= 7 {
        assert!(in_place >= (size - 2 * MIB) as u64, "{in_place} on {kernel}");
    } else {
        // Soft-RoCE of older kernels pins every page, and those of a disk cannot be.
        assert_eq!(in_place, 0, "on {kernel}");
    }
}

/// Makes a file of so many MiB with 4 KiB of data every 128 KiB; returns how much room it takes.
fn make_finely_sparse(path: &Path, mib: u64) -> u64 {
    let file = fs::File::create(path).expect("creates");
    file.set_len(mib << 20).expect("grows");
    for at in (0..mib << 20).step_by(128 << 10) {
        file.write_all_at(&tree::content(at, 4096), at).expect("writes");
    }
    allocated(path)
}

fn allocated(path: &Path) -> u64 {
    fs::metadata(path).expect("there").blocks() * 512
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_finely_sparse_file_takes_the_room_of_its_data_over_verbs() {
    let dir = folders();
    let (source, out) = (dir.path().join("data/f"), dir.path().join("out/f"));
    // One file that lasts and one that does not.
    for (mib, into_files) in [(17, true), (17, false), (3, true), (3, false)] {
        let serve = serve_with(dir.path(), &format!("write_into_files = {into_files}"));
        for reads in [true, false] {
            // Anew each time: in memory, a device that reads the holes of a file fills them.
            let had = make_finely_sparse(&source, mib);
            let (from, to) = match reads {
                true => (serve.at("data/f"), out.display().to_string()),
                false => (source.display().to_string(), serve.at("in/")),
            };
            assert_verbs(&serve.cp(&["--json", &from, &to]).done(), reads);
            let copy = if reads { out.clone() } else { dir.path().join("in/f") };
            let case = format!("{mib} MiB, into files: {into_files}, reads: {reads}");
            let has = allocated(&copy);
            let most = had + had / 10 + (64 << 10);
            assert!(has <= most, "{case}: the copy takes {has} bytes, its source took {had}");
            assert!(is_same(source.clone(), copy.clone()), "{case}");
            fs::remove_file(&copy).expect("removes");
            fs::remove_file(&source).expect("removes");
        }
    }
}
