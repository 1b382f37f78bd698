//! A mirror that follows its source: what changes is soon at the target, bursts
//! and slow writers included; a server that is killed is waited for; and whoever
//! asks is told how it is, by the status file, by systemd's socket and by --wait.

use crate::process::{Ended, Running, Signal, Text, seen, wait_for, when};
use crate::{BOTH, LET_GO_MAX, Way, World, is_held, text, tree, write};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The longest anything may take to be followed, on a machine that has other things to do.
const SOON: Duration = Duration::from_secs(30);

/// A mirror that follows.
pub(crate) struct Following {
    pub world: World,
    pub way: Way,
    pub run: Running,
}

impl Following {
    pub fn start(world: World, way: Way) -> Self {
        Self::start_with(world, way, "100%")
    }

    fn start_with(world: World, way: Way, most: &str) -> Self {
        let run = Self::run(&world, way, most);
        let following = Self { world, way, run };
        following.wait();
        following
    }

    fn run(world: &World, way: Way, most: &str) -> Running {
        let status = text(&status(world));
        let flags = ["--watch", "--status-file", &status, "--delete", "--max-delete", most];
        let [source, target] = world.ends(way);
        let mut command = world.home.command("rdma-sync", &[source.as_str(), target.as_str()]);
        command.args(flags).env("NOTIFY_SOCKET", world.path("notify"));
        Running::start(command)
    }

    /// Starts it again, behind one that was killed: the server may still be at its work.
    fn again(mut world: World, way: Way) -> Self {
        let begin = Instant::now();
        loop {
            let run = Self::run(&world, way, "100%");
            let mut following = Self { world, way, run };
            let has_ended = wait_for("rdma-sync has made a pass, or ends", SOON, || {
                let (has_ended, status) = (following.run.has_ended(), following.status());
                let passed = status["passes"].as_u64() > Some(0);
                let has_it = status["process"] == following.run.id() && passed;
                match has_ended || has_it {
                    true => Ok(has_ended),
                    false => Err((Text(status), following.run.report())),
                }
            });
            if !has_ended {
                return following;
            }
            let ended = following.run.end();
            assert!(is_held(&ended) && begin.elapsed() < LET_GO_MAX, "{way:?}: {ended:?}");
            world = following.world;
        }
    }

    /// Waits as a job would.
    #[track_caller]
    pub fn wait(&self) {
        let status = text(&status(&self.world));
        let flags = ["--wait", &status, "--wait-timeout", "30"];
        Running::start(self.world.home.command("rdma-sync", &flags)).end().done();
    }

    /// Waits until the target is equal; says how long that took.
    #[track_caller]
    pub fn follows(&mut self, what: &str) -> Duration {
        let begin = Instant::now();
        let (source, target) = (self.world.source(), self.world.target(self.way));
        loop {
            let different = tree::differences(&source, &target);
            if different.is_empty() {
                return begin.elapsed();
            }
            let status = fs::read_to_string(status(&self.world)).unwrap_or_default();
            let seen = format!("different: {different:?}; status: {status}");
            self.run.assert_runs(&format!("{what} is not at the target; {seen}"));
            let (late, limit_s) = (begin.elapsed() >= SOON, SOON.as_secs());
            assert!(
                !late,
                "{what}: not at the target within {limit_s} s; {seen}; {:?}",
                self.run.report()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn status(&self) -> Value {
        let text = fs::read_to_string(status(&self.world)).expect("there is a status");
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    #[track_caller]
    fn wait_for_state(&self, state: &str) {
        wait_for(&format!("the state in the status file is {state:?}"), SOON, || {
            when(self.status(), |status| status["state"] == state).map_err(Text)
        });
    }
}

fn status(world: &World) -> PathBuf {
    world.path("status")
}

#[test]
fn what_changes_is_soon_at_the_target() {
    for way in BOTH {
        let world = World::new();
        let systemd = UnixDatagram::bind(world.path("notify")).expect("binds");
        systemd.set_read_timeout(Some(SOON)).expect("takes it");
        tree::sample(&world.source(), 1);
        let mut following = Following::start(world, way);
        following.follows("the first pass");
        let mut told = [0; 4096];
        while !String::from_utf8_lossy(&told).contains("READY=1") {
            told.fill(0);
            systemd.recv(&mut told).expect("systemd is told");
        }
        let source = following.world.source();
        // A machine may be busy for a while, and is not for ever.
        let mut number = 0;
        wait_for("a file is at the target in less than a second", SOON, || {
            write(source.join("new/file"), &tree::content(number, 5000));
            number += 1;
            when(following.follows("a file"), |took| *took < Duration::from_secs(1))
        });
        following.wait();
        let passes = |following: &Following| following.status()["passes"].as_u64().expect("some");
        let before = passes(&following);
        fs::rename(source.join("new"), source.join("renamed")).expect("renames");
        following.follows("a folder with another name");
        fs::remove_dir_all(source.join("renamed")).expect("removes");
        following.follows("a folder that is gone");
        tree::small_files(&source.join("burst"), 700, 2000, 9);
        following.follows("a burst");
        following.wait();
        assert!(passes(&following) - before < 55, "{before}: {}", following.status());
        let Following { run, world, .. } = following;
        run.signal(Signal::TERM);
        assert_eq!(run.end().code, Some(130));
        let text = fs::read_to_string(status(&world)).expect("there is a status");
        assert!(text.contains("\"state\": \"stopped\""), "{text}");
    }
}

#[test]
fn a_target_is_held_between_two_passes_and_no_longer() {
    for (way, more) in
        [(Way::Down, &[][..]), (Way::Down, &["--atomic"]), (Way::Up, &[]), (Way::Up, &["--atomic"])]
    {
        let world = World::new();
        write(world.source().join("a"), b"1");
        let [source, target] = world.ends(way);
        let mut command = world.home.command("rdma-sync", &[source.as_str(), target.as_str()]);
        command.args(["--watch", "--status-file", &text(&status(&world))]).args(more);
        let run = Running::start(command);
        let mut following = Following { world, way, run };
        following.wait();
        for round in 0..2 {
            let who = match way {
                Way::Down => format!("process {} (rdma-sync)", following.run.id()),
                Way::Up => "by client ".into(),
            };
            for flags in [&[][..], &["--atomic"]] {
                following.world.sync(way, flags).refused(1, &["is being synchronised", &who]);
            }
            write(following.world.source().join("a"), format!("{round} again").as_bytes());
            following.follows("a change");
            following.wait();
            assert_eq!(following.status()["error"], Value::Null, "{way:?}: {more:?}");
        }
        let Following { run, world, .. } = following;
        run.signal(Signal::TERM);
        assert_eq!(run.end().code, Some(130));
        wait_for("another rdma-sync may have the target", SOON, || {
            let ended = world.sync(way, more);
            let held = |ended: &Ended| ended.stderr.contains("is being synchronised");
            when(ended, |ended| !held(ended)).map(Ended::done)
        });
    }
}

#[test]
fn a_file_is_copied_when_its_writer_is_done() {
    for way in BOTH {
        let world = World::new();
        write(world.source().join("a"), b"");
        let mut following = Following::start(world, way);
        let path = following.world.source().join("slow/checkpoint");
        fs::create_dir(path.parent().expect("a folder")).expect("makes");
        // What is in a folder when that is found is taken as it is.
        following.follows("a folder");
        following.wait();
        let mut file = fs::File::create(&path).expect("makes");
        let there = following.world.target(way).join("slow/checkpoint");
        // Longer than anything but a writer is waited for, and never as long as one is.
        for number in 0..12_u8 {
            file.write_all(&[number; 1000]).expect("writes");
            std::thread::sleep(Duration::from_millis(100));
            assert!(!there.exists(), "{way:?}: its writer was at work");
        }
        drop(file);
        following.follows("a file that is closed");
    }
}

#[test]
fn a_server_that_is_killed_and_restarted_is_followed_again() {
    for way in BOTH {
        let world = World::new();
        tree::sample(&world.source(), 2);
        let mut following = Following::start(world, way);
        for round in 0..2 {
            following.world.serve.signal(Signal::KILL);
            let source = following.world.source();
            write(source.join(format!("meanwhile/{round}")), &tree::content(round, 3000));
            let bad = if way == Way::Down { "lost" } else { "behind" };
            following.wait_for_state(bad);
            following.run.assert_runs("rdma-sync does not wait for the server");
            following.world.serve_again();
            following.follows("what changed meanwhile");
            write(source.join("afterwards"), &tree::content(round + 10, 3000));
            following.follows("what changed afterwards");
            following.wait();
        }
    }
}

#[test]
fn a_follower_is_stopped_while_it_waits_for_a_server_that_does_not_answer() {
    let world = World::new();
    tree::sample(&world.source(), 2);
    let following = Following::start(world, Way::Up);
    following.world.serve.signal(Signal::STOP);
    write(following.world.source().join("new"), b"new");
    following.wait_for_state("syncing");
    let begin = Instant::now();
    following.run.signal(Signal::TERM);
    let Following { world, run, .. } = following;
    let ended = run.end();
    // By its own deadline it would be a minute.
    assert!(begin.elapsed() < SOON, "it took {:?}", begin.elapsed());
    assert_eq!(ended.code, Some(130), "{ended:?}");
    world.serve.signal(Signal::CONT);
}

#[test]
fn a_follower_that_is_killed_goes_on_where_it_was() {
    for way in BOTH {
        let world = World::new();
        tree::sample(&world.source(), 3);
        let mut following = Following::start(world, way);
        for round in 0..3 {
            let source = following.world.source();
            tree::small_files(&source.join(format!("round {round}")), 300, 3000, round);
            std::thread::sleep(Duration::from_millis(40 * round));
            let Following { world, run, .. } = following;
            run.signal(Signal::KILL);
            assert_eq!(run.end().code, None, "it was killed");
            write(source.join("while it was dead"), &tree::content(round, 100));
            following = Following::again(world, way);
            following.follows("all of it");
        }
    }
}

#[test]
fn names_of_one_file_change_together_and_a_folder_may_go() {
    for way in BOTH {
        let world = World::new();
        let source = world.source();
        write(source.join("a/one"), b"old");
        fs::hard_link(source.join("a/one"), source.join("two")).expect("links");
        for number in 0..40 {
            write(source.join(format!("many/{number}")), b"");
            write(source.join(format!("more/{number}")), b"");
        }
        // Of a part it is nearly all that goes, of all of it half.
        let mut following = Following::start_with(world, way, "60%");
        let target = following.world.target(way);
        // Only one of its names is told.
        fs::OpenOptions::new()
            .write(true)
            .open(source.join("two"))
            .and_then(|mut file| file.write_all(b"new content"))
            .expect("writes");
        following.follows("all names of a file");
        following.wait_for_state("current");
        let inode = |name: &str| {
            std::os::unix::fs::MetadataExt::ino(&fs::metadata(target.join(name)).expect("there"))
        };
        assert_eq!(inode("a/one"), inode("two"), "it is one file there too");
        fs::remove_dir_all(source.join("many")).expect("removes");
        following.follows("a folder that is much of the tree");
        following.wait_for_state("current");
        assert_eq!(following.status()["error"], Value::Null);
        // Most of what is left: more than may go, however it is looked at.
        fs::remove_dir_all(source.join("a")).expect("removes");
        fs::remove_dir_all(source.join("more")).expect("removes");
        let what = "the status is behind, with the error that nothing is deleted";
        wait_for(what, SOON, || {
            let status = following.status();
            let said = status["error"].to_string().contains("nothing is deleted");
            seen(status["state"] == "behind" && said, Text(status))
        });
    }
}

#[test]
fn what_happens_to_a_file_that_left_its_twin_happens_to_it_alone() {
    for way in BOTH {
        let world = World::new();
        let source = world.source();
        write(source.join("a/one"), b"same");
        fs::hard_link(source.join("a/one"), source.join("two")).expect("links");
        let mut following = Following::start(world, way);
        // Another file of the same size and time: nothing that would be copied.
        let times = fs::metadata(source.join("two")).and_then(|it| it.modified()).expect("a time");
        fs::remove_file(source.join("two")).expect("removes");
        fs::copy(source.join("a/one"), source.join("two")).expect("copies");
        let copy = fs::File::options().write(true).open(source.join("two")).expect("opens");
        copy.set_modified(times).expect("own");
        following.follows("another file");
        following.wait_for_state("current");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(source.join("two"), mode).expect("own");
        following.follows("the mode of one of them");
    }
}

#[test]
fn too_many_folders_for_this_user_end_it_with_what_to_do() {
    let world = World::new();
    for name in ["a", "b", "c", "d"] {
        write(world.source().join(name).join("x"), b"");
    }
    let [source, target] = world.ends(Way::Up);
    // A limit of one's own takes a user namespace, which not every machine gives.
    let script = "echo 3 > /proc/sys/user/max_inotify_watches || exit 99; exec \"$@\"";
    let mut command = world.home.command_of("unshare");
    command.args(["-Ur", "sh", "-c", script, "sh"]).arg(crate::process::binary("rdma-sync"));
    command.args([&source, &target]).arg("--watch");
    let ended = Running::start(command).end();
    if ended.code == Some(99) || ended.stderr.starts_with("unshare") {
        return crate::process::skip("too_many_folders_for_this_user", "no user namespaces");
    }
    ended.refused(1, &["cannot watch", "sysctl fs.inotify.max_user_watches"]);
}

#[test]
fn what_cannot_be_followed_is_an_error_with_what_to_do() {
    let world = World::new();
    write(world.source().join("a/b/c/d"), b"");
    world.sync(Way::Down, &["--watch", "-n"]).refused(2, &["--dry-run"]);
    world.sync(Way::Down, &["--status-file", "x"]).refused(2, &["--watch"]);
    let nowhere = text(&world.path("no/status"));
    let ended = world.sync(Way::Down, &["--watch", "--status-file", &nowhere]);
    ended.refused(1, &["cannot write", "no/status", "hint: give a --status-file in a folder"]);
    let missing = text(&world.path("missing"));
    let command = world.home.command("rdma-sync", &[missing.as_str(), &world.serve.at("in/copy")]);
    let mut command = command;
    command.arg("--watch");
    Running::start(command).end().refused(1, &["cannot watch", "missing"]);
    let gone = ["--wait", &missing, "--wait-timeout", "0"];
    let ended = Running::start(world.home.command("rdma-sync", &gone)).end();
    ended.refused(1, &["is not current after 0 s", "there is no such file"]);
}
