//! A mount whose changes are told: the kernel believes what it knows for half a minute,
//! and forgets it as soon as it is no longer so.

use super::*;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

/// How soon a change must be seen; what is not told is believed for far longer. The server needs
/// a moment to be sure that it is over, and this machine may be busy.
const SEEN_MAX: Duration = Duration::from_secs(8);

fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("a/b")).expect("makes");
    for name in ["a/b/file", "a/b/other", "a/b/gone", "top"] {
        fs::write(dir.join(name), b"old").expect("writes");
    }
}

#[test]
fn what_changes_is_forgotten_by_the_kernel_long_before_it_would_ask_again() {
    if !can_mount("what_changes_is_forgotten_by_the_kernel_long_before_it_would_ask_again") {
        return;
    }
    let mut source = Source::new(fill);
    let mounted = source.mount(&["--watch", "--timeout", "5"]);
    let watched = |what: &str| mounted.wait_for_status(what, |status| status["watched"] == true);
    watched("the status says watched");
    let stat = |name: &str| fs::metadata(mounted.path(name)).map(|it| (it.len(), it.mtime()));
    for name in ["a/b/file", "a/b/other", "a/b/gone", "top", "a", "a/b"] {
        stat(name).expect("is there");
    }
    // Whoever is in a folder stays there, whatever changes in it.
    let mut inside = Command::new("sh");
    inside.args(["-c", "while ! test -e new; do sleep 0.05; done; pwd -P"]);
    let inside = Running::start({
        inside.current_dir(mounted.path("a/b")).stdin(std::process::Stdio::null());
        inside
    });
    let begin = Instant::now();
    fs::write(source.path("a/b/file"), b"newer").expect("writes");
    fs::write(source.path("a/b/new"), b"new").expect("writes");
    fs::remove_file(source.path("a/b/gone")).expect("removes");
    fs::rename(source.path("top"), source.path("a/b/other")).expect("renames");
    let time = |path| fs::metadata(path).expect("is there").mtime_nsec();
    let times = |name| [time(mounted.path(name)), time(source.path(name))];
    let what = "the mount shows file longer, gone and top gone, and the new time of a/b";
    wait_for(what, STAND_MAX, || {
        let (file, gone) = (stat("a/b/file"), [stat("a/b/gone"), stat("top")]);
        let names =
            file.as_ref().is_ok_and(|(len, _)| *len == 5) && gone.iter().all(Result::is_err);
        let times = names.then(|| times("a/b"));
        seen(times.is_some_and(|times| times[0] == times[1]), (file, gone, times))
    });
    assert!(begin.elapsed() < SEEN_MAX, "{:?}", begin.elapsed());
    // A name that the kernel does not know changes the folder that it is in, and nothing else.
    for name in ["added", "a/b/added"] {
        let folder = name.trim_end_matches("added");
        let what = format!("the folder {folder:?} has the same time here and at the source");
        let as_it_is = || when(times(folder), |times| times[0] == times[1]);
        wait_for(&what, STAND_MAX, as_it_is);
        let begin = Instant::now();
        fs::write(source.path(name), b"new").expect("writes");
        wait_for(&format!("{what}, after {name} was made"), STAND_MAX, as_it_is);
        assert!(begin.elapsed() < SEEN_MAX, "{folder}: {:?}", begin.elapsed());
    }
    assert_eq!(inside.end().done().stdout.trim(), mounted.path("a/b").to_str().expect("text"));
    assert_eq!(fs::read(mounted.path("a/b/file")).expect("reads"), b"newer");
    // A server that comes back is watched again, and what happened meanwhile is seen.
    source.kill();
    mounted.wait_for_status("the status says not watched, as the server is gone", |status| {
        status["watched"] == false
    });
    fs::write(source.path("a/b/file"), b"newest").expect("writes");
    source.start();
    wait_for("the mount shows 6 bytes of a/b/file", STAND_MAX, || {
        let stat = stat("a/b/file");
        seen(stat.as_ref().is_ok_and(|(len, _)| *len == 6), (stat, Text(mounted.status())))
    });
    watched("the status says watched again, as the server is back");
    mounted.end();
}

#[test]
fn a_folder_that_stays_open_tells_its_time_as_it_becomes() {
    if !can_mount("a_folder_that_stays_open_tells_its_time_as_it_becomes") {
        return;
    }
    let source = Source::new(fill);
    let mounted = source.mount(&[]);
    let open = fs::File::open(mounted.path("a/b")).expect("opens");
    let time = || open.metadata().expect("is told").mtime_nsec();
    time();
    fs::write(source.path("a/b/new"), b"new").expect("writes");
    let now = fs::metadata(source.path("a/b")).expect("is there").mtime_nsec();
    let what = format!("the open folder has the time of the source, {now} ns in its second");
    wait_for(&what, STAND_MAX, || when(time(), |time| *time == now));
    fs::remove_dir_all(source.path("a/b")).expect("removes");
    std::thread::sleep(Duration::from_millis(1_100));
    assert_eq!(time(), now, "one that is gone is what it was");
    drop(open);
    mounted.end();
}

#[test]
fn a_folder_that_stays_open_shows_what_is_there_when_it_is_read_again() {
    if !can_mount("a_folder_that_stays_open_shows_what_is_there_when_it_is_read_again") {
        return;
    }
    let source = Source::new(fill);
    let mounted = source.mount(&[]);
    let open = fs::File::open(mounted.path("a/b")).expect("opens");
    let mut folder = rustix::fs::Dir::new(open).expect("a folder");
    let mut names = || {
        folder.rewind();
        let names = folder.by_ref().map(|entry| entry.expect("reads").file_name().to_owned());
        names.filter_map(|name| name.into_string().ok()).collect::<Vec<_>>()
    };
    assert!(names().contains(&"gone".to_owned()));
    fs::write(source.path("a/b/new"), b"new").expect("writes");
    fs::remove_file(source.path("a/b/gone")).expect("removes");
    wait_for("the open folder lists new and file, and not gone", STAND_MAX, || {
        when(names(), |names| {
            let has = |name: &str| names.iter().any(|it| it == name);
            has("new") && has("file") && !has("gone")
        })
    });
    mounted.end();
}
