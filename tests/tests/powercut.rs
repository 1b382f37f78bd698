//! The power is cut while a command writes. Each command is run once, under
//! strace; then what a disk may have is sampled a thousand times for each manner
//! in which file systems keep names, with a seed that is printed. In no sample a
//! final name has what its source never had, or is gone; when the command has
//! said that it is done, all of it is there. Some samples are made real, and the
//! same command, in another boot, makes the trees equal. In the same boot a journal
//! is believed without a look: it is true whenever the command is killed.
//!
//! SEED=N runs one sample alone, VERBATIM_TRIALS=N so many times as many.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use verbatim_files::journal::read;
use verbatim_proto::Digest;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_tests::dice::Dice;
use verbatim_tests::port::Port;
use verbatim_tests::powercut::crash::Cuts;
use verbatim_tests::powercut::disk::Kind;
use verbatim_tests::powercut::{Disk, Manner, State, trace};
use verbatim_tests::process::{Home, Running, Serve, Signal};
use verbatim_tests::process::{another_boot, binary, skip, trials, wait_for, when};
use verbatim_tests::tree;

/// Samples of each command and manner.
const SAMPLES: u64 = 1000;

/// Samples of each command that are made real.
const REAL: u64 = 4;

/// How long strace may take to write what it knows.
const LOG_MAX: Duration = Duration::from_secs(20);

/// How a command is run.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// To the server, which then is the one that writes.
    up: bool,
    program: &'static str,
    flags: &'static [&'static str],
}

/// Sources, targets, and the commands between them.
struct World {
    dir: TempDir,
    way: Way,
    home: Home,
    /// Where the server listens.
    port: Port,
}

impl World {
    /// A tree that replaces another: files that are new, changed, as they were, and gone.
    fn new(way: Way) -> Self {
        let (dir, home) = (tempfile::tempdir().expect("a folder"), Home::new());
        let world = Self { dir, way, home, port: Port::take() };
        for (folder, seed) in [("from/tree", 1), ("to/tree", 2)] {
            let root = world.path(folder);
            tree::small_files(&root.join("many"), 24, 6000, seed);
            tree::write(&root.join("same"), &tree::content(7, 70_000));
            tree::write(&root.join("medium"), &tree::content(seed, 600_000));
            // Some of it is as it was, and need not move.
            let large = [tree::content(7, 4 << 20), tree::content(seed, (12 << 20) + 5)];
            tree::write(&root.join("large"), &large.concat());
            tree::write(&root.join(format!("only {seed}/deep/er")), &tree::content(seed, 5000));
        }
        world
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Runs the command with this folder to write to, and the side that writes by these words.
    fn run(&self, to: &Path, wrapper: &[&str]) {
        let (by_server, by_client) =
            if self.way.up { (wrapper, &[][..]) } else { (&[][..], wrapper) };
        let home = Arc::new(self.home.again().wrapped(by_server));
        let exports =
            [format!("from={}", self.path("from").display()), format!("to={}:rw", to.display())];
        let serve = Serve::of(&home, &self.port.text(), &exports);
        let (from, to) = match self.way.up {
            true => (self.path("from/tree").display().to_string(), serve.at("to")),
            false => (serve.at("from/tree"), to.display().to_string()),
        };
        // A copy goes into a folder that is there, a mirror is named.
        let to = if self.way.program == "rdma-sync" { format!("{to}/tree") } else { to };
        let program = binary(self.way.program);
        let words = [by_client, &[program.to_str().expect("plain")]].concat();
        let mut command = home.command_of(words[0]);
        command.args(&words[1..]).arg("--state").arg(home.state());
        command.args(self.way.flags).args([from, to]);
        Running::start(command).end().done();
        serve.signal(Signal::TERM);
        assert_eq!(serve.end(), Some(0));
    }

    /// Runs the command under strace, and returns what it did to the folder it writes to.
    fn record(&self) -> Disk {
        let to = self.path("to");
        let mut disk = Disk::read(&to);
        let log = self.path("log");
        self.run(&to, &trace::wrapper(log.to_str().expect("plain")));
        let log = wait_for("the log of strace has its last line", LOG_MAX, || {
            let bytes = fs::read(&log).map_err(|error| error.to_string())?;
            when(bytes, |bytes| trace::is_over(bytes)).map_err(|bytes| {
                let end = &bytes[bytes.len().saturating_sub(500)..];
                format!("{} bytes that end with {}", bytes.len(), String::from_utf8_lossy(end))
            })
        });
        disk.replay(&trace::parse(&log));
        disk
    }
}

/// The digests of the files of a tree, by path.
fn digests(root: &Path) -> BTreeMap<PathBuf, Digest> {
    let files = tree::walk(root).into_iter().filter(|path| path.is_file());
    let name = |path: &Path| path.strip_prefix(root).expect("below").to_owned();
    files.map(|path| (name(&path), Digest::of(&fs::read(&path).expect("reads")))).collect()
}

/// Whether it is what it is called, and not on its way to it.
fn is_final(path: &Path) -> bool {
    !path.display().to_string().contains(".verbatim-")
}

/// What must hold after any power cut.
struct Promise {
    old: BTreeMap<PathBuf, Digest>,
    new: BTreeMap<PathBuf, Digest>,
    /// Trees are exchanged whole.
    atomic: bool,
    /// What the source has not is removed.
    removes: bool,
}

impl Promise {
    fn check(&self, state: &State, done: bool, manner: Manner) -> Result<(), String> {
        let files = state.tree().into_iter().filter_map(|(path, node)| {
            let is_file = matches!(state.kind(node), Kind::File(_));
            let path = path.strip_prefix("tree").ok().filter(|path| is_final(path))?;
            is_file.then(|| (path.to_owned(), state.digest(node)))
        });
        let files: BTreeMap<PathBuf, Digest> = files.collect();
        for (path, digest) in &files {
            let versions = [self.old.get(path), self.new.get(path)];
            if !versions.contains(&Some(digest)) {
                return Err(format!("{} has what no version had", path.display()));
            }
        }
        let stays = |path: &&PathBuf| self.new.contains_key(*path) || !self.removes;
        if let Some(path) = self.old.keys().filter(stays).find(|path| !files.contains_key(*path)) {
            return Err(format!("{} is gone", path.display()));
        }
        if self.atomic && files != self.old && files != self.new {
            return Err("it is neither the old tree nor the new one".into());
        }
        // A folder that is new is made durable by flushing it, which POSIX alone does not say.
        let is_safe = |path: &Path| {
            let in_old = |folder| self.old.keys().any(|old| old.parent() == Some(folder));
            manner == Manner::Ordered || path.parent().is_some_and(in_old)
        };
        let missing = |(path, digest): &(&PathBuf, &Digest)| files.get(*path) != Some(*digest);
        match self.new.iter().filter(|(path, _)| is_safe(path)).find(missing) {
            Some((path, _)) if done => Err(format!("{} was called done", path.display())),
            _ => Ok(()),
        }
    }
}

/// Samples the power cuts of a command.
fn try_all(test: &str, way: Way) {
    let found = Command::new("strace").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return skip(test, "no strace");
    }
    let world = World::new(way);
    let old = digests(&world.path("to/tree"));
    let disk = world.record();
    let new = digests(&world.path("from/tree"));
    let has = |flag| way.flags.contains(&flag);
    let promise = Promise { old, new, atomic: has("--atomic"), removes: has("--delete") };
    let cuts = Cuts::new(&disk);
    journals_are_true(&disk, &cuts);
    let one = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    let seeds = one.map_or(0..trials(SAMPLES), |seed| seed..seed + 1);
    for seed in seeds.clone() {
        for manner in [Manner::Ordered, Manner::Scattered] {
            let mut dice = Dice::new(test, seed);
            let at = cuts.moment(&mut dice);
            let state = cuts.cut(at, manner, &mut dice);
            let all = disk.changes.len();
            if let Err(what) = promise.check(&state, at == all, manner) {
                panic!("{test}, seed {seed}, {manner:?}, cut after {at} of {all}: {what}");
            }
            if seed - seeds.start < trials(REAL) {
                go_on(&world, &state, &promise);
            }
        }
    }
}

/// Whoever is killed leaves a journal that says no more than is there: the next run believes it.
fn journals_are_true(disk: &Disk, cuts: &Cuts<'_>) {
    let mut said = 0;
    for at in 1..=disk.changes.len() {
        let Some(node) = disk.changes[at - 1].node() else { continue };
        let state = cuts.kill(at);
        let tree = state.tree();
        let Some((path, _)) = tree.iter().find(|(_, is)| **is == node) else { continue };
        let Some(name) = path.to_str().expect("plain").strip_suffix("-journal") else { continue };
        let part = state.content(tree[Path::new(&format!("{name}-part"))]);
        let journal = tempfile::tempfile().expect("a file");
        journal.write_all_at(&state.content(node), 0).expect("writes");
        let mut known = 0;
        read(&journal, |head, extent, digests| {
            known += 1;
            if known <= said {
                return;
            }
            let bytes = &part[extent.offset as usize..][..extent.len as usize];
            let starts = (extent.offset..).step_by(GRAIN_BYTES as usize);
            let grains = bytes.chunks(GRAIN_BYTES as usize).zip(starts);
            let is = grains.map(|(grain, offset)| Digest::of_grain(offset, head.size, grain));
            assert_eq!(is.collect::<Vec<_>>(), digests, "{name}: {extent:?} is not there yet");
        });
        said = known;
    }
    assert!(said > 8, "the journal of the large file was not seen: {said}");
}

/// Makes a sample real, and runs the command on it, in a boot after that power cut.
fn go_on(world: &World, state: &State, promise: &Promise) {
    let Some(wrapper) = another_boot(world.dir.path()) else {
        return skip("going on after a power cut", "not root, or no unshare");
    };
    let wrapper = wrapper.each_ref().map(String::as_str);
    let real = tempfile::tempdir().expect("a folder");
    state.write_to(real.path());
    world.run(real.path(), &wrapper);
    let mut left = tree::parts(real.path());
    // What a copy left of small files has the number of its process, and waits for the reaper.
    left.retain(|path| world.way.program != "rdma-cp" || !path.display().to_string().contains('-'));
    assert_eq!(left, Vec::<PathBuf>::new(), "something is left");
    let mut files = digests(&real.path().join("tree"));
    files.retain(|path, _| is_final(path));
    let wrong = files.iter().find(|(path, is)| {
        let only_old = promise.old.get(*path).filter(|_| !promise.removes);
        promise.new.get(*path).or(only_old) != Some(*is)
    });
    assert_eq!(wrong, None);
    assert!(promise.new.keys().all(|path| files.contains_key(path)));
}

macro_rules! tests {
    ($($name:ident: $program:literal $up:literal $flags:expr;)*) => {
        $(#[test]
        fn $name() {
            try_all(stringify!($name), Way { up: $up, program: $program, flags: &$flags });
        })*
    };
}

tests! {
    copies_down: "rdma-cp" false ["-r"];
    copies_up: "rdma-cp" true ["-r"];
    mirrors_down: "rdma-sync" false ["--delete", "--max-delete=100%"];
    mirrors_up: "rdma-sync" true ["--delete", "--max-delete=100%"];
    exchanges_down: "rdma-sync" false ["--atomic", "--delete", "--max-delete=100%"];
    exchanges_up: "rdma-sync" true ["--atomic", "--delete", "--max-delete=100%"];
}
