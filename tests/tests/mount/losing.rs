//! What readers get when the server or the daemon is lost: what is here, then an error
//! in time, and all of it when the server is back. Nobody hangs.

use super::*;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const MIB: usize = 1 << 20;

#[test]
fn what_is_here_is_served_on_and_the_rest_waits_for_the_server_or_fails_in_time() {
    if !can_mount("what_is_here_is_served_on_and_the_rest_waits_for_the_server_or_fails_in_time") {
        return;
    }
    let (big, small) = (noise(64 * MIB, 1), noise(100_000, 2));
    let mut source = Source::new(|dir| {
        fs::write(dir.join("big"), &big).expect("writes");
        fs::write(dir.join("small"), &small).expect("writes");
    });
    let mounted = source.mount(&["--timeout", "10"]);
    assert!(fs::read(mounted.path("small")).expect("reads") == small);
    let reader = fs::File::open(mounted.path("big")).expect("opens");
    let mut bytes = vec![0; 4096];
    let far = 50 * MIB as u64;
    reader.read_exact_at(&mut bytes, 0).expect("reads");
    source.kill();
    assert!(fs::read(mounted.path("small")).expect("is here") == small);
    reader.read_exact_at(&mut bytes, 0).expect("is here");
    let begin = Instant::now();
    let error = reader.read_exact_at(&mut bytes, far).expect_err("is not here");
    assert_eq!(errno(&error), EIO, "{error}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    let missing = fs::metadata(mounted.path("unknown")).expect_err("nobody knows");
    assert_eq!(errno(&missing), EIO, "{missing}");
    source.start();
    wait_for("the reader that had an error reads again", STAND_MAX, || {
        let read = reader.read_exact_at(&mut bytes, far);
        read.map_err(|error| (error, Text(mounted.status())))
    });
    assert!(fs::read(mounted.path("big")).expect("reads") == big);
    mounted.end();
}

#[test]
fn a_fill_waits_for_a_server_that_is_away_for_long_and_brings_all_of_it() {
    if !can_mount("a_fill_waits_for_a_server_that_is_away_for_long_and_brings_all_of_it") {
        return;
    }
    const FOLDERS: u64 = 30;
    let mut source = Source::new(|dir| {
        for folder in 0..FOLDERS {
            let folder = dir.join(format!("d{folder}/below"));
            fs::create_dir_all(&folder).expect("makes");
            fs::write(folder.join("file"), noise(MIB, 1)).expect("writes");
        }
    });
    std::thread::sleep(SETTLED);
    let mounted = source.mount(&["--fill=4M", "--timeout", "2"]);
    let fill = || mounted.status()["fill"].clone();
    wait_for("the fill has brought more than one file", STAND_MAX, || {
        when(fill(), |fill| fill["files"].as_u64() > Some(1)).map_err(Text)
    });
    source.kill();
    // Longer than what is under way waits, and some folders after each other.
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(fill()["state"], "filling");
    source.start();
    let over = |fill: &serde_json::Value| fill["state"] != "filling";
    let told = wait_for("the fill is over", STAND_MAX, || when(fill(), over).map_err(Text));
    let seen = (&told["state"], &told["files"], &told["failed"]);
    assert_eq!(seen, (&"complete".into(), &FOLDERS.into(), &0.into()));
    mounted.end();
}

#[test]
fn a_server_that_comes_back_in_time_is_not_noticed_by_who_reads() {
    if !can_mount("a_server_that_comes_back_in_time_is_not_noticed_by_who_reads") {
        return;
    }
    let big = noise(96 * MIB, 3);
    let mut source = Source::new(|dir| fs::write(dir.join("big"), &big).expect("writes"));
    let mounted = source.mount(&["--bwlimit", "24M"]);
    let path = mounted.path("big");
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(|| fs::read(&path))).collect();
        std::thread::sleep(Duration::from_millis(1_500));
        source.kill();
        std::thread::sleep(Duration::from_millis(500));
        source.start();
        for reader in readers {
            let read = reader.join().expect("reads").expect("no error");
            assert!(read == big);
        }
    });
    mounted.end();
}

#[test]
fn a_daemon_that_is_killed_frees_its_readers_and_the_next_one_clears_the_place() {
    if !can_mount("a_daemon_that_is_killed_frees_its_readers_and_the_next_one_clears_the_place") {
        return;
    }
    let big = noise(8 * MIB, 4);
    let source = Source::new(|dir| fs::write(dir.join("big"), &big).expect("writes"));
    // So slow that the reader waits when the daemon dies.
    let mut mounted = source.mount(&["--bwlimit", "1M"]);
    let path = mounted.path("big");
    let cache = mounted.cache.clone();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(&path));
        std::thread::sleep(Duration::from_millis(3_000));
        mounted.running().signal(Signal::KILL);
        let begin = Instant::now();
        let error = reader.join().expect("ends").expect_err("it was cut off");
        assert!([ENOTCONN, ECONNABORTED, EIO].contains(&errno(&error)), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    });
    drop(mounted.running.take());
    let at = mounted.at.take().expect("it has a place");
    assert!(is_mounted(at.path()), "nobody has cleared it");
    let from = source.serve().at("data");
    let again = Mounted::start_on(&source.home, &from, &cache, at, &[]);
    let what = "the file big can be read through the next mount";
    assert!(wait_for(what, STAND_MAX, || fs::read(again.path("big"))) == big);
    again.end();
}
