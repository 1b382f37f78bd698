//! Copies that are cut short, by Ctrl-C, by kill -9 of either side, by a server
//! that goes away, and go on when the same command runs again: nothing under a
//! final name is ever wrong, what was verified is not moved again, and nothing
//! is left behind at the end. Randomness prints its seed.

#![allow(clippy::print_stdout)] // a failing seed prints itself

use crate::process::{Ended, Home, Running, Serve, Signal};
use crate::process::{another_boot, contents, seen, skip, trials, wait_for, when};
use crate::stopping::{BEGIN_MAX, make_sparse, wait_for_bytes};
use crate::{World, assert_same, bytes, exports, names, text};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_tests::holding::Holding;
use verbatim_tests::port::Port;

/// How often each side is killed, each way.
const KILLS: u64 = 30;

/// A file whose copy takes a few hundred milliseconds.
pub(crate) const BIG_BYTES: usize = 96 << 20;

/// Waits until a journal in the folder speaks of a dozen chunks.
#[track_caller]
pub(crate) fn wait_for_journal(copy: &mut Running, folder: &Path) {
    wait_for_growth(copy, folder, 0);
}

/// Waits until a journal in the folder speaks of a dozen chunks more than when it was `before`
/// bytes long; says how long it is then.
#[track_caller]
pub(crate) fn wait_for_growth(copy: &mut Running, folder: &Path, before: u64) -> u64 {
    let what = format!("the copy has a journal of more than {} bytes", before + 2000);
    wait_for(&what, BEGIN_MAX, || {
        copy.assert_runs("the copy ended before it was looked at");
        let journals = names(folder).into_iter().filter(|name| name.ends_with("-journal"));
        let longest = journals.filter_map(|name| Some(fs::metadata(folder.join(name)).ok()?.len()));
        let longest = longest.max().filter(|longest| *longest > before + 2000);
        longest.ok_or_else(|| (contents(folder), copy.report()))
    })
}

/// Waits until there is nothing but the file that was copied.
#[track_caller]
pub(crate) fn wait_for_big_alone(folder: &Path) {
    let what = format!("only the file big is in {}", folder.display());
    wait_for(&what, BEGIN_MAX, || when(names(folder), |names| *names == ["big"]));
}

/// Makes a file, and waits until a later write would change its time.
pub(crate) fn make_settled(path: &Path) {
    fs::write(path, bytes(9, BIG_BYTES)).expect("a file");
    std::thread::sleep(Duration::from_millis(2100));
}

/// Makes the copy of such a file take some seconds.
pub(crate) const SLOWLY: &str = "--bwlimit=32M";

/// The same command, slowly.
fn slowly(command: &[String]) -> Vec<String> {
    [&[SLOWLY.to_owned()], command].concat()
}

/// What a summary line of `--json` says of one number.
pub(crate) fn told(stdout: &str, key: &str) -> u64 {
    let line = stdout.lines().last().expect("a summary");
    let summary: serde_json::Value = serde_json::from_str(line).expect("JSON");
    summary[key].as_u64().unwrap_or_else(|| panic!("no {key} in {summary}"))
}

#[test]
fn an_interrupted_download_keeps_what_is_verified_and_goes_on() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let World { serve, dir } = World::new();
        make_settled(&dir.path().join("data/big"));
        let out = dir.path().join("out");
        let command = ["--json".to_owned(), serve.at("data/big"), text(&out)];
        let mut copy = serve.start_cp(&slowly(&command));
        wait_for_journal(&mut copy, &out);
        copy.signal(signal);
        let cut = copy.end();
        if signal != Signal::KILL {
            cut.refused(130, &[]);
        }
        assert!(!out.join("big").exists(), "a partial file has the final name");
        let done = serve.cp(&command).done();
        assert!(told(&done.stdout, "resumed_bytes") > 0, "{done:?}");
        assert_eq!(names(&out), ["big"], "something is left behind");
        assert_eq!(fs::metadata(out.join("big")).unwrap().len(), BIG_BYTES as u64);
    }
}

#[test]
fn an_interrupted_upload_keeps_what_is_verified_and_goes_on() {
    let World { serve, dir } = World::new();
    let (big, landing) = (dir.path().join("big"), dir.path().join("in"));
    fs::write(&big, bytes(8, BIG_BYTES)).unwrap();
    let command = ["--json".to_owned(), text(&big), serve.at("in")];
    let mut copy = serve.start_cp(&slowly(&command));
    wait_for_journal(&mut copy, &landing);
    copy.signal(Signal::INT);
    copy.end().refused(130, &[]);
    assert!(!landing.join("big").exists(), "a partial file has the final name");
    serve.cp(&command).done();
    wait_for_big_alone(&landing);
    assert_eq!(fs::metadata(landing.join("big")).unwrap().len(), BIG_BYTES as u64);
}

/// A download of a large file that was killed in the middle, its source, and where it goes.
fn cut_download() -> (World, PathBuf, PathBuf) {
    let world = World::new();
    let (source, out) = (world.path("data/big"), world.path("out"));
    make_settled(&source);
    let command = [world.serve.at("data/big"), text(&out)];
    let mut copy = world.serve.start_cp(&slowly(&command));
    wait_for_journal(&mut copy, &out);
    copy.signal(Signal::KILL);
    drop(copy.end());
    (world, source, out)
}

#[test]
fn a_source_that_changed_since_is_not_mixed_with_what_was_there() {
    let (world, source, out) = cut_download();
    let serve = &world.serve;
    let other = bytes(77, BIG_BYTES);
    fs::write(&source, &other).unwrap();
    let done = serve.cp(&["--json".to_owned(), serve.at("data/big"), text(&out)]).done();
    assert_eq!(told(&done.stdout, "resumed_bytes"), 0, "nothing of it could be used");
    assert!(fs::read(out.join("big")).unwrap() == other, "the copy is a mixture");
    assert_eq!(names(&out), ["big"], "something is left behind");
}

/// Uploads a file until some of it is verified, and kills the client. The source is
/// two seconds old before that, so that what is read of it may be noted.
fn cut_upload() -> (World, [String; 3]) {
    let world = World::in_memory();
    make_settled(&world.path("big"));
    let command = ["--json".to_owned(), world.text("big"), world.serve.at("in")];
    let mut copy = world.serve.start_cp(&slowly(&command));
    wait_for_journal(&mut copy, &world.path("in"));
    copy.signal(Signal::KILL);
    drop(copy.end());
    (world, command)
}

/// Changes a few bytes of each chunk of a large file, and nothing else that is easy to see: its
/// size and the time of its content are as before, and in the end it is not young.
fn rewrite_behind_its_time(path: &Path) {
    let file = fs::OpenOptions::new().write(true).open(path).expect("opens");
    let before = file.metadata().expect("it is there").modified().expect("has a time");
    for chunk in 0..BIG_BYTES as u64 >> 20 {
        file.write_all_at(b"another", 1000 + (chunk << 20)).expect("writes");
    }
    file.set_modified(before).expect("sets the time");
    drop(file);
    std::thread::sleep(Duration::from_millis(2100));
}

/// Runs the upload again; says how much the server had, and how much of that was hashed again.
fn finish_upload(world: &World, command: &[String]) -> (u64, u64) {
    let done = world.serve.cp(command).done();
    wait_for_big_alone(&world.path("in"));
    assert_eq!(fs::metadata(world.path("in/big")).expect("it is there").len(), BIG_BYTES as u64);
    assert_same(&world.path("big"), &world.path("in/big"));
    resumed_and_rehashed(&done)
}

/// How much was there of an earlier run, and how much either side hashed again.
fn resumed_and_rehashed(done: &Ended) -> (u64, u64) {
    (told(&done.stdout, "resumed_bytes"), told(&done.stdout, "rehashed_bytes"))
}

#[test]
fn an_upload_that_goes_on_hashes_nothing_again_within_one_boot() {
    let (world, command) = cut_upload();
    let memos = world.serve.home().state().join("uploads");
    assert_eq!(names(&memos).len(), 1, "what was hashed is noted");
    let (resumed, rehashed) = finish_upload(&world, &command);
    assert!(resumed > 0, "nothing was gone on with");
    assert_eq!(rehashed, 0, "of {resumed}");
    assert!(names(&memos).is_empty(), "the note outlives its upload");
}

#[test]
fn an_upload_without_its_notes_hashes_what_the_server_has() {
    let (world, command) = cut_upload();
    fs::remove_dir_all(world.serve.home().state().join("uploads")).unwrap();
    let (resumed, rehashed) = finish_upload(&world, &command);
    assert!(resumed > 0 && rehashed == resumed, "{rehashed} of {resumed}");
}

#[test]
fn a_download_that_goes_on_after_a_boot_counts_what_it_hashes_again() {
    let (world, _, out) = cut_download();
    let Some(wrapper) = another_boot(world.dir.path()) else {
        return skip("counting what is hashed after a boot", "not root, or no unshare");
    };
    let wrapper = wrapper.each_ref().map(String::as_str);
    let command = ["--json".to_owned(), world.serve.at("data/big"), text(&out)];
    let done = world.serve.home().again().wrapped(&wrapper).cp(&command).done();
    let (resumed, rehashed) = resumed_and_rehashed(&done);
    assert!(resumed > 0 && rehashed == resumed, "{rehashed} of {resumed}: {done:?}");
}

#[test]
fn an_upload_that_goes_on_after_a_boot_of_the_server_counts_what_that_hashes_again() {
    let (world, command) = cut_upload();
    let World { mut serve, dir } = world;
    let Some(wrapper) = another_boot(dir.path()) else {
        return skip("counting what a server hashes after a boot", "not root, or no unshare");
    };
    let wrapper = wrapper.each_ref().map(String::as_str);
    serve.signal(Signal::TERM);
    serve.gone();
    let home = Arc::new(serve.home().again().wrapped(&wrapper));
    let again = Serve::of(&home, &serve.address.to_string(), &exports(dir.path()));
    let done = serve.home().again().cp(&command).done();
    wait_for_big_alone(&dir.path().join("in"));
    assert_same(&dir.path().join("big"), &dir.path().join("in/big"));
    let (resumed, rehashed) = resumed_and_rehashed(&done);
    assert!(resumed > 0 && rehashed == resumed, "{rehashed} of {resumed}: {done:?}");
    drop(again);
}

#[test]
fn a_source_that_was_rewritten_behind_its_time_is_not_believed_by_the_notes() {
    let (world, command) = cut_upload();
    rewrite_behind_its_time(&world.path("big"));
    finish_upload(&world, &command);
}

#[test]
fn a_download_is_not_mixed_with_a_source_that_was_rewritten_behind_its_time() {
    let (world, source, out) = cut_download();
    let serve = &world.serve;
    rewrite_behind_its_time(&source);
    serve.cp(&[serve.at("data/big"), text(&out)]).done();
    assert_same(&source, &out.join("big"));
    assert_eq!(names(&out), ["big"], "something is left behind");
}

#[test]
fn what_takes_longer_to_hash_after_a_boot_than_a_server_may_be_silent_is_gone_on_with() {
    const HOLE_BYTES: u64 = 8 << 30;
    let world = World::new();
    let (source, out) = (world.path("data/big"), world.path("out"));
    let Some(wrapper) = another_boot(world.dir.path()) else {
        return skip("going on after a boot", "not root, or no unshare");
    };
    let wrapper = wrapper.each_ref().map(String::as_str);
    // A hole costs no room, and is hashed as data is.
    let file = fs::File::create(&source).unwrap();
    let content = bytes(5, BIG_BYTES);
    file.write_all_at(&content, HOLE_BYTES).unwrap();
    std::thread::sleep(Duration::from_millis(2100));
    let serve = &world.serve;
    let command = ["--json".to_owned(), "--timeout=2".to_owned(), serve.at("data/big"), text(&out)];
    let mut copy = serve.start_cp(&slowly(&command));
    // 32 bytes for each grain; most of them are there.
    wait_for_growth(&mut copy, &out, HOLE_BYTES / GRAIN_BYTES * 30);
    copy.signal(Signal::KILL);
    drop(copy.end());
    let done = serve.home().again().wrapped(&wrapper).cp(&command).done();
    assert!(told(&done.stdout, "resumed_bytes") > HOLE_BYTES / 8 * 7, "{}", done.stdout);
    let copied = fs::File::open(out.join("big")).unwrap();
    let mut end = vec![0; content.len()];
    copied.read_exact_at(&mut end, HOLE_BYTES).unwrap();
    assert!(end == content && copied.metadata().unwrap().len() == HOLE_BYTES + BIG_BYTES as u64);
    assert_eq!(names(&out), ["big"], "something is left behind");
}

#[test]
fn a_source_that_is_too_young_to_be_told_from_a_later_one_is_copied_anew() {
    let World { serve, dir } = World::new();
    let (source, out) = (dir.path().join("data/big"), dir.path().join("out"));
    fs::write(&source, bytes(3, BIG_BYTES)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&source).unwrap();
    let command = ["--json".to_owned(), serve.at("data/big"), text(&out)];
    // Young when it is opened, for which a busy machine may be too slow.
    let begun_in_time = |_| {
        names(&out).iter().for_each(|name| fs::remove_file(out.join(name)).unwrap());
        let begin = Instant::now();
        file.set_modified(SystemTime::now()).unwrap();
        let mut copy = serve.start_cp(&slowly(&command));
        wait_for_bytes(&mut copy, &out);
        let in_time = begin.elapsed() < Duration::from_secs(2);
        copy.signal(Signal::KILL);
        drop(copy.end());
        in_time
    };
    assert!((0..10).any(begun_in_time), "no copy begins within two seconds");
    let done = serve.cp(&command).done();
    assert_eq!(told(&done.stdout, "resumed_bytes"), 0);
    assert_eq!(names(&out), ["big"], "something is left behind");
}

/// A pause that a seed decides, up to `max_ms`.
fn pause(seed: u64, max_ms: u64) {
    println!("SEED={seed}");
    let mixed = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    std::thread::sleep(Duration::from_millis(mixed % max_ms));
}

/// Whatever is under the final name is all of the source.
fn check(copy: &Path, content: &[u8]) {
    if copy.exists() {
        assert!(
            fs::read(copy).expect("it can be read") == content,
            "a wrong byte under the final name"
        );
    }
}

#[test]
fn a_client_killed_at_random_moments_leaves_only_whole_files_and_finishes() {
    for up in [false, true] {
        let World { serve, dir } = World::new();
        let before = Holding::of(serve.id());
        let content = bytes(5, BIG_BYTES);
        let (here, there) = (dir.path().join("big"), dir.path().join("data/big"));
        fs::write(if up { &here } else { &there }, &content).unwrap();
        let landing = dir.path().join(if up { "in" } else { "out" });
        let command = match up {
            true => ["--json".to_owned(), text(&here), serve.at("in")],
            false => ["--json".to_owned(), serve.at("data/big"), text(&landing)],
        };
        for seed in 0..trials(KILLS) {
            let copy = serve.start_cp(&command);
            pause(seed, 400);
            copy.signal(Signal::KILL);
            drop(copy.end());
            check(&landing.join("big"), &content);
            // Every third time the copy begins from nothing again.
            if seed % 3 == 2 {
                let _ = fs::remove_file(landing.join("big"));
            }
        }
        serve.cp(&command).done();
        check(&landing.join("big"), &content);
        wait_for_big_alone(&landing);
        before.comes_back(&serve);
    }
}

/// A copy may only end well; but one whose server was killed at its first question has not begun.
fn had_begun(ended: Ended) -> bool {
    if ended.code == Some(3) && ended.stderr.starts_with("rdma-cp: connection lost") {
        return false;
    }
    ended.done();
    true
}

#[test]
fn a_server_killed_at_random_moments_leaves_only_whole_files_and_finishes() {
    for up in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["data", "in", "out"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let content = bytes(6, BIG_BYTES);
        let (here, there) = (dir.path().join("big"), dir.path().join("data/big"));
        fs::write(if up { &here } else { &there }, &content).unwrap();
        let landing = dir.path().join(if up { "in" } else { "out" });
        let home = Arc::new(Home::new());
        let exports =
            [text(&dir.path().join("data")), format!("{}:rw", text(&dir.path().join("in")))];
        let port = Port::take();
        let start = || Serve::of(&home, &port.text(), &exports);
        let mut serve = start();
        let command = match up {
            true => [text(&here), serve.at("in")],
            false => [serve.at("data/big"), text(&landing)],
        };
        let mut copy = serve.start_cp(&command);
        for seed in 0..trials(KILLS) {
            // The copy that runs comes back by itself, unless that was its end.
            wait_for("the copy has a session with the new server, or ends", BEGIN_MAX, || {
                let done = copy.has_ended() || serve.log().contains("session began");
                seen(done, (copy.report(), serve.report()))
            });
            if copy.has_ended() {
                if had_begun(copy.end()) {
                    fs::remove_file(landing.join("big")).expect("the copy is there");
                }
                // A new server, so that the session that begins there is that of the new copy.
                drop(serve);
                serve = start();
                copy = serve.start_cp(&command);
                serve.said("session began");
            }
            pause(seed, 400);
            serve.signal(Signal::KILL);
            assert_eq!(serve.end(), None, "it was killed");
            check(&landing.join("big"), &content);
            serve = start();
        }
        if !had_begun(copy.end()) {
            serve.cp(&command).done();
        }
        check(&landing.join("big"), &content);
        wait_for_big_alone(&landing);
    }
}

#[test]
fn a_server_that_dies_ends_the_copy_with_a_hint() {
    let World { serve, dir } = World::in_memory();
    make_sparse(&dir.path().join("data/big"), 8);
    let out = dir.path().join("out");
    let mut copy = serve.start_cp(&["--timeout", "2", &serve.at("data/big"), &text(&out)]);
    wait_for_bytes(&mut copy, &out);
    let peer = serve.address.to_string();
    drop(serve);
    copy.end().refused(3, &["data/big", &peer, "hint: run the same command again"]);
    assert!(!out.join("big").exists(), "a partial file has the final name");
}
