//! fio reads what it wrote at the source, through the mount, and checks each block that
//! it gets: in order, at random, without the page cache and mapped, eight jobs at a
//! time, as it arrives and when all of it is here. Skipped where there is no fio.

use super::*;

/// What each of eight jobs has: two files, whose blocks tell their place and their checksum.
const JOB_BYTES: u64 = 8 << 20;
const JOBS: u64 = 8;

/// What a run of fio may take.
const FIO_MAX: Duration = Duration::from_secs(60);

/// How the files are read.
const WAYS: [&[&str]; 4] = [
    &["--rw=read", "--bs=64k"],
    &["--rw=randread", "--bs=4k"],
    &["--rw=randread", "--bs=16k", "--ioengine=mmap"],
    &["--rw=read", "--bs=64k", "--direct=1", "--ioengine=libaio", "--iodepth=8"],
];

/// Runs fio in a folder; fails where a block is not what was written.
fn fio(folder: &Path, way: &[&str]) {
    let mut command = Command::new("fio");
    command.current_dir(std::env::temp_dir()).arg(format!("--directory={}", folder.display()));
    command.args(["--name=f", "--nrfiles=2", "--thread", "--minimal"]);
    command.arg(format!("--size={JOB_BYTES}")).arg(format!("--numjobs={JOBS}"));
    command.args(["--verify=crc32c", "--verify_interval=4096", "--verify_fatal=1"]);
    command.arg("--verify_state_save=0").args(way);
    let mut running = Running::start(command);
    wait_for(&format!("fio {way:?} ends"), FIO_MAX, || seen(running.has_ended(), running.report()));
    running.end().done();
}

#[test]
fn fio_finds_each_block_as_it_was_written_whichever_way_it_reads() {
    let test = "fio_finds_each_block_as_it_was_written_whichever_way_it_reads";
    if !can_mount(test) {
        return;
    }
    if Command::new("fio").arg("--version").output().is_err() {
        return skip(test, "there is no fio");
    }
    let source = Source::new(|dir| {
        fio(dir, &["--rw=write", "--bs=64k", "--do_verify=0", "--fallocate=none"])
    });
    // What is younger is looked at more than once.
    std::thread::sleep(SETTLED);
    for way in WAYS {
        let way = [way, &["--readonly"]].concat();
        let mounted = source.mount(&[]);
        // As it arrives, and when all of it is here.
        for passes in [false, true] {
            fio(&mounted.path(""), &way);
            let told = mounted.status();
            assert_eq!(told["fetched_bytes"], JOBS * JOB_BYTES, "{way:?}: each block once: {told}");
            assert_eq!(told["failures"], 0, "{way:?}: {told}");
            match told["passthrough"]["why_not"].as_str() {
                None => assert_eq!(told["passthrough"]["opens"] != 0, passes, "{way:?}: {told}"),
                Some(why) => skip("passthrough under fio", why),
            }
        }
        mounted.end();
    }
}
