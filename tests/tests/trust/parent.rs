//! The parent of `--reloadable`, which keeps all rights that it was started with: attacked
//! with signals, files of configuration, and what its confined child may put in its state.

use crate::process::{Home, NOBODY, Serve, Signal, Text, seen, skip, wait_for, when};
use crate::{FOLLOW_MAX, text};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A server with a parent, and its files.
struct Kept {
    serve: Serve,
    home: Arc<Home>,
    dir: TempDir,
}

impl Kept {
    /// Starts one by a configuration with these lines.
    fn start(lines: &str) -> Self {
        let (dir, home) = (crate::folders(), Arc::new(Home::new()));
        for folder in [dir.path(), home.path()] {
            fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).expect("ours");
        }
        fs::create_dir_all(home.state()).expect("a folder");
        if lines.contains("nobody") {
            chown(home.state(), Some(NOBODY), Some(NOBODY)).expect("root may");
        }
        let data = dir.path().join("data");
        let text_of = format!("{lines}\ninsecure_no_auth = true\n[[export]]\npath = {data:?}\n");
        fs::write(dir.path().join("good.toml"), text_of).expect("a file");
        fs::copy(dir.path().join("good.toml"), dir.path().join("serve.toml")).expect("a file");
        let config = text(&dir.path().join("serve.toml"));
        let serve = Serve::of(&home, "127.0.0.1:0", &["--reloadable", "--config", &config]);
        Self { serve, home, dir }
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("serve.toml")
    }

    /// Puts the configuration that it was started with in its place again.
    fn restore(&self) {
        fs::rename(self.config(), self.dir.path().join("other")).expect("ours");
        fs::copy(self.dir.path().join("good.toml"), self.config()).expect("a file");
    }

    /// The process that serves.
    #[track_caller]
    fn child(&self) -> u32 {
        let id = self.serve.id();
        wait_for("the parent has a child", FOLLOW_MAX, || {
            let list = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
            let first = list.as_deref().unwrap_or_default().split_whitespace().next();
            first.and_then(|first| first.parse().ok()).ok_or_else(|| Text(self.serve.log()))
        })
    }

    /// Has it read its configuration, and waits until it says why it does not take it.
    #[track_caller]
    fn refuses(&mut self, words: &str) {
        self.serve.signal(Signal::HUP);
        let line = self.serve.said(words);
        assert!(line.contains("configuration rejected"), "{line}");
    }

    /// Ends it, and returns its exit code once its child is gone as well.
    #[track_caller]
    fn stop(self) -> Option<i32> {
        let child = self.child();
        self.serve.signal(Signal::TERM);
        let code = self.serve.end();
        assert!(!Path::new(&format!("/proc/{child}")).exists(), "the child is left");
        code
    }
}

fn make_pipe(at: &Path) {
    mknodat(CWD, at, FileType::Fifo, Mode::from_raw_mode(0o644), 0).expect("a pipe");
}

/// Files that are no configuration, and what is said of each.
type Put = (fn(&Path), &'static str);

const NO_CONFIGURATION: [Put; 5] = [
    (make_pipe, "it is not a regular file"),
    (|at| fs::create_dir(at).expect("a folder"), "it is a folder"),
    (|at| symlink("/dev/zero", at).expect("a link"), "it is not a regular file"),
    (|at| symlink(at, at).expect("a link"), "ymbolic link"),
    (
        |at| fs::File::create(at).and_then(|file| file.set_len(1 << 30)).expect("a sparse file"),
        "it is larger than",
    ),
];

#[test]
fn what_takes_the_place_of_the_configuration_neither_stops_nor_fills_the_parent() {
    let mut kept = Kept::start("");
    let (child, parent) = (kept.child(), kept.serve.id());
    for (number, (put, words)) in NO_CONFIGURATION.into_iter().enumerate() {
        fs::remove_file(kept.config()).expect("ours");
        put(&kept.config());
        let before = kept.serve.log().matches("configuration rejected").count();
        kept.serve.signal(Signal::HUP);
        let log = kept.serve.logged("configuration rejected", before + 1);
        let line = log
            .lines()
            .rfind(|line| line.contains("configuration rejected"))
            .expect("it was logged");
        assert!(line.contains(words), "of {number}: {line}");
        kept.restore();
        let left = kept.dir.path().join("other");
        if left.is_dir() { fs::remove_dir(left) } else { fs::remove_file(left) }.expect("ours");
    }
    let status = fs::read_to_string(format!("/proc/{parent}/status")).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak_kib = peak.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    assert!(peak_kib < Some(256 << 10), "it read all of it: {status}");
    assert_eq!(kept.child(), child, "the server goes on");
    kept.refuses_nothing();
    assert_eq!(kept.stop(), Some(0));
}

impl Kept {
    /// Has it read its configuration, and waits until the next server listens.
    #[track_caller]
    fn refuses_nothing(&mut self) {
        let before = self.serve.log().matches(" listening ").count();
        self.serve.signal(Signal::HUP);
        self.serve.logged(" listening ", before + 1);
    }
}

#[test]
fn a_child_that_gave_up_root_cannot_have_its_parent_open_pipes_and_devices() {
    let name = "a_child_that_gave_up_root_cannot_have_its_parent_open_pipes_and_devices";
    if !rustix::process::geteuid().is_root() {
        return skip(name, "needs root");
    }
    let mut kept = Kept::start("user = \"nobody\"");
    // In the folder of its state the child may make anything but devices.
    for file in ["authorized_keys", "tokens.toml"] {
        let at = kept.home.state().join(file);
        let _ = fs::remove_file(&at);
        make_pipe(&at);
        kept.refuses(file);
        fs::remove_file(&at).expect("ours");
        symlink("/dev/tty", &at).expect("a link");
        kept.refuses(file);
        fs::remove_file(&at).expect("ours");
    }
    kept.refuses_nothing();
    assert_eq!(kept.stop(), Some(0));
}

#[test]
fn a_child_that_is_killed_is_not_started_without_end() {
    // By itself: the parent ends as well, and whoever started it decides.
    let kept = Kept::start("");
    let kill = |id: u32| {
        let id = rustix::process::Pid::from_raw(id as i32).expect("a number");
        let _ = rustix::process::kill_process(id, Signal::KILL);
    };
    kill(kept.child());
    assert_eq!(kept.serve.end(), Some(1));
    // While it starts anew: the one before is gone back to, once.
    let mut kept = Kept::start("");
    kept.serve.signal(Signal::HUP);
    let log = wait_for("the parent gives up", FOLLOW_MAX, || {
        let id = kept.serve.id();
        let list = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        for child in list.unwrap_or_default().split_whitespace() {
            child.parse().into_iter().for_each(kill);
        }
        when(kept.serve.log(), |log| log.contains("the server died")).map_err(Text)
    });
    assert_eq!(kept.serve.gone(), Some(1), "{log}");
    assert!(log.matches(" listening ").count() <= 2, "one start for one signal: {log}");
}

#[test]
fn a_storm_of_signals_leaves_one_server_that_serves_and_ends() {
    let kept = Kept::start("");
    for _ in 0..500 {
        [Signal::HUP, Signal::CHILD].into_iter().for_each(|signal| kept.serve.signal(signal));
    }
    kept.serve.logged(" listening ", 2);
    let id = kept.serve.id();
    let children = || fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    wait_for("one child is left, and serves", FOLLOW_MAX, || {
        let count = children().unwrap_or_default().split_whitespace().count();
        let served = kept.serve.cp(&["--list", &kept.serve.at("data")]);
        seen(count == 1 && served.code == Some(0), (children(), served))
    });
    assert_eq!(kept.stop(), Some(0));
}

/// What the descriptors of a process lead to.
fn descriptors(id: u32) -> Vec<String> {
    let list = fs::read_dir(format!("/proc/{id}/fd")).expect("it runs").flatten();
    let targets = list.filter_map(|entry| fs::read_link(entry.path()).ok());
    let names = targets.map(|target| target.to_string_lossy().into_owned());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn a_confined_child_reaches_nothing_of_its_parent() {
    let name = "a_confined_child_reaches_nothing_of_its_parent";
    if !rustix::process::geteuid().is_root() {
        return skip(name, "needs root");
    }
    let kept = Kept::start("");
    if !kept.serve.log().contains("confined by Landlock") {
        return skip(name, "no Landlock here");
    }
    let (parent, child) = (kept.serve.id(), kept.child());
    // Both have the port, what they log to, and what whoever runs this test left open.
    let (of_parent, of_test) = (descriptors(parent), descriptors(std::process::id()));
    let shared: Vec<String> = descriptors(child)
        .into_iter()
        .filter(|target| of_parent.contains(target) && !of_test.contains(target))
        .filter(|target| target != "/dev/null" && !target.starts_with("anon_inode"))
        .collect();
    assert!(shared.len() == 1 && shared[0].starts_with("socket:"), "{shared:?}");
    // What Landlock does not bound: who has these shows every environment, and loads modules.
    let status = fs::read_to_string(format!("/proc/{child}/status")).expect("it runs");
    let bits = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
    let bits = u64::from_str_radix(bits.expect("a line").trim(), 16).expect("bits");
    for (number, name) in
        [(16, "sys_module"), (19, "sys_ptrace"), (21, "sys_admin"), (38, "perfmon")]
    {
        assert_eq!(bits >> number & 1, 0, "{name} is kept: {bits:x}");
    }
    // The child reads its tokens by a name that leads to its parent, of the same user: root.
    let tokens = kept.home.state().join("tokens.toml");
    for (number, below) in ["environ", "mem"].into_iter().enumerate() {
        let _ = fs::remove_file(&tokens);
        symlink(format!("/proc/{parent}/{below}"), &tokens).expect("a link");
        let log = kept.serve.logged("keys not read", 2 * number + 1);
        let line = log.lines().rfind(|line| line.contains("keys not read")).expect("logged");
        assert!(line.contains("ermission denied"), "{below}: {line}");
        // What is said twice is logged once: something else between.
        fs::remove_file(&tokens).expect("ours");
        fs::write(&tokens, "no list").expect("a file");
        fs::set_permissions(&tokens, PermissionsExt::from_mode(0o600)).expect("ours");
        kept.serve.logged("keys not read", 2 * number + 2);
    }
}
