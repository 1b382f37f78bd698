//! How each contender copies: us and our peers, each with what serves it on loopback.
//! Everything started here ends when the world goes.

use super::contender::Peer;
use super::work::{self, Before, Work};
use crate::rsync::Daemon;
use crate::{Serve, wait_for};
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A process that runs until this goes.
pub(super) struct Helper(pub(super) Child);

impl Drop for Helper {
    fn drop(&mut self) {
        // Ours, and it may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Everybody, ready to copy from `source` to `target`.
pub struct World {
    /// Where workloads are.
    pub source: PathBuf,
    target: PathBuf,
    state: PathBuf,
    bins: PathBuf,
    cached: Serve,
    /// A server that has no digests: started anew for each copy, in a state folder of its own.
    fresh: RefCell<Option<Serve>>,
    exports: [String; 2],
    rsync: Daemon,
    rclone: Helper,
    sshd: Helper,
}

const RCLONE_PORT: u16 = 21_523;
const SSH_PORT: u16 = 21_524;

impl World {
    /// Starts all servers; what they need to keep goes to `state`.
    pub fn start(bins: &Path, source: &Path, target: &Path, state: &Path) -> Self {
        let exports = [format!("src={}", source.display()), format!("up={}:rw", target.display())];
        let mut rclone = Command::new("rclone");
        rclone.args(["serve", "http", "--config", "/dev/null", "--read-only", "--addr"]);
        rclone.arg(format!("127.0.0.1:{RCLONE_PORT}")).arg(source);
        let world = Self {
            cached: serve(bins, &state.join("cached"), 21_520, &exports),
            fresh: RefCell::default(),
            exports,
            rsync: Daemon::start(&[("src", source), ("up", target)], state, 21_522),
            rclone: Helper(quietly(&mut rclone)),
            sshd: Helper(quietly(&mut sshd(state))),
            source: source.to_owned(),
            target: target.to_owned(),
            state: state.to_owned(),
            bins: bins.to_owned(),
        };
        wait_for("rclone", RCLONE_PORT);
        wait_for("sshd", SSH_PORT);
        world
    }

    /// The process that serves it, and with it its children; none where nobody does.
    pub fn server(&self, peer: Peer) -> Option<u32> {
        match peer {
            // Both sides of the links are in the command.
            Peer::Cp | Peer::Tar | Peer::RawDown | Peer::RawUp => None,
            Peer::Rsync | Peer::RsyncUp => Some(self.rsync.pid()),
            Peer::Rclone => Some(self.rclone.0.id()),
            Peer::Scp => Some(self.sshd.0.id()),
            Peer::FirstDown => self.fresh.borrow().as_ref().map(Serve::pid),
            _ => Some(self.cached.pid()),
        }
    }

    fn place(&self, work: &Work) -> PathBuf {
        self.target.join(work.name)
    }

    /// Makes the target what it has to be before the clock starts.
    ///
    /// # Errors
    /// When a copy that is needed for it fails.
    pub fn prepare(&self, work: &Work, peer: Peer, round: usize) -> Result<(), String> {
        let _ = fs::remove_dir_all(self.place(work));
        if peer == Peer::FirstDown {
            // The last one ends first: both have the same port.
            drop(self.fresh.take());
            let state = self.state.join(format!("fresh-{}-{round}", work.name));
            self.fresh.replace(Some(serve(&self.bins, &state, 21_521, &self.exports)));
        }
        if work.before == Before::Nothing {
            // Who hashes once has done so by now, as with every copy but the first.
            if peer == Peer::Down && round == 0 {
                fs::create_dir(self.place(work)).expect("a folder");
                crate::try_run(&mut self.command(work, peer))?;
                fs::remove_dir_all(self.place(work)).expect("it can be removed");
            }
            fs::create_dir(self.place(work)).expect("a folder");
            return Ok(());
        }
        fs::create_dir(self.place(work)).expect("a folder");
        crate::try_run(&mut self.command(work, peer))?;
        if work.before == Before::Same {
            // As a mirror that has run before: what was just made would be looked at more closely.
            crate::let_settle();
            crate::try_run(&mut self.command(work, peer))?;
        }
        if work.before == Before::OneInHundred {
            // Of no other round and of nobody else: what is there already would not be sent.
            let seed = (round as u64) << 8 | peer as u64;
            work::change(&self.source.join(work.name).join("file"), seed);
            crate::let_settle();
        }
        Ok(())
    }

    /// Uses as much memory as a copy takes, and gives it back. What a virtual machine does not use
    /// its host takes away, and whoever comes after a pause would wait for all of it.
    pub fn warm(&self, work: &Work) {
        if work.before != Before::Nothing || work.name == "holes" {
            return;
        }
        let path = self.target.join("warm");
        let mut file = File::create(&path).expect("a file");
        let zeros = vec![0; 1 << 20];
        for _ in 0..work.bytes.div_ceil(1 << 20) {
            file.write_all(&zeros).expect("there is room for a copy");
        }
        drop(file);
        fs::remove_file(&path).expect("it can be removed");
    }

    /// The command that copies the workload.
    pub fn command(&self, work: &Work, peer: Peer) -> Command {
        let source = self.source.join(work.name).display().to_string();
        let target = self.place(work).display().to_string();
        let holes = work.name == "holes";
        let ours = |serve: &Serve, path: &str| {
            format!("rdma://127.0.0.1:{}/{path}/{}", serve.port, work.name)
        };
        match peer {
            Peer::Cp => with("cp", &["-a", &format!("{source}/."), &target]),
            Peer::Tar => {
                let sparse = if holes { "-S" } else { "" };
                let pipe = format!("tar -C {source} {sparse} -cf - . | tar -C {target} -xf -");
                with("sh", &["-c", &pipe])
            }
            Peer::Rsync => {
                let from = format!("rsync://127.0.0.1:{}/src/{}/", self.rsync.port, work.name);
                with("rsync", &[if holes { "-aS" } else { "-a" }, &from, &target])
            }
            Peer::RsyncUp => {
                let to = format!("rsync://127.0.0.1:{}/up/{}/", self.rsync.port, work.name);
                with("rsync", &["-a", &format!("{source}/"), &to])
            }
            Peer::Rclone => {
                let url = format!("http://127.0.0.1:{RCLONE_PORT}/{}/", work.name);
                let mut command = with("rclone", &["copy", "--config", "/dev/null", "-q"]);
                command.args(["--transfers", "4", "--multi-thread-streams", "4"]);
                command.args(["--http-url", &url, ":http:", &target]);
                command
            }
            Peer::Scp => {
                let key = self.state.join("key").display().to_string();
                let port = SSH_PORT.to_string();
                let mut command = with("scp", &["-r", "-p", "-q", "-P", &port, "-i", &key]);
                command.args([
                    "-o",
                    "StrictHostKeyChecking=no",
                    "-o",
                    "UserKnownHostsFile=/dev/null",
                ]);
                command.args([&format!("127.0.0.1:{source}/."), &target]);
                command
            }
            Peer::RawDown | Peer::RawUp => {
                let way = if peer == Peer::RawDown { "down" } else { "up" };
                let raw = self.bins.join("raw-copy").display().to_string();
                with(&raw, &[way, &format!("{source}/file"), &format!("{target}/file")])
            }
            Peer::Down | Peer::FirstDown => {
                let fresh = self.fresh.borrow();
                let serve = match peer {
                    Peer::Down => &self.cached,
                    _ => fresh.as_ref().expect("it is started before"),
                };
                serve.cp(&["-q", "-r", "-p", &format!("{}/.", ours(serve, "src")), &target])
            }
            Peer::Up => {
                let to = ours(&self.cached, "up");
                self.cached.cp(&["-q", "-r", "-p", &format!("{source}/."), &to])
            }
            Peer::SyncDown => self.cached.sync(&["-q", &ours(&self.cached, "src"), &target]),
            Peer::SyncUp => self.cached.sync(&["-q", &source, &ours(&self.cached, "up")]),
        }
    }

    /// Whether a copy is what its source is.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&self, work: &Work, peer: Peer) -> Result<(), String> {
        let (source, target) = (self.source.join(work.name), self.place(work));
        let same = match work.name {
            "holes" => work::same_holes(&source.join("file"), &target.join("file")),
            _ => same_tree(&source, &target),
        };
        same.map_err(|differs| format!("{peer:?}: {differs}"))
    }

    /// Removes the copy.
    pub fn clear(&self, work: &Work) {
        let removed = fs::remove_dir_all(self.place(work));
        removed.unwrap_or_else(|error| panic!("a copy cannot be removed: {error}"));
    }
}

/// Compares two trees; says what differs, or why that cannot be told.
fn same_tree(source: &Path, target: &Path) -> Result<(), String> {
    let diff = Command::new("diff").arg("-rq").args([source, target]).output();
    let diff = diff.expect("diff is there");
    let said = [diff.stdout, diff.stderr].concat();
    diff.status.success().then_some(()).ok_or_else(|| String::from_utf8_lossy(&said).into_owned())
}

/// A server of ours, with everything at its default.
fn serve(bins: &Path, state: &Path, port: u16, exports: &[String; 2]) -> Serve {
    Serve::start(bins, state, port, &exports.each_ref().map(String::as_str))
}

fn with(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn quietly(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}

/// An sshd of its own: its key, and one who may come in.
fn sshd(state: &Path) -> Command {
    for name in ["host", "key"] {
        let key = state.join(name);
        let mut made = with("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f"]);
        let made = made.arg(&key).status().expect("ssh is installed");
        assert!(made.success(), "no key could be made");
    }
    let config = state.join("sshd.conf");
    let at = state.display();
    let lines = format!(
        "ListenAddress 127.0.0.1:{SSH_PORT}\nHostKey {at}/host\nPidFile none\nUsePAM no\n\
         AuthorizedKeysFile {at}/key.pub\nStrictModes no\nPermitRootLogin yes\n\
         Subsystem sftp internal-sftp\n"
    );
    fs::write(&config, lines).expect("a configuration");
    // The server insists on it, and on being started by its whole path.
    let _ = fs::create_dir_all("/run/sshd");
    let mut command = Command::new("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f"]).arg(config);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_the_same_only_if_diff_says_so() {
        let top = tempfile::tempdir().expect("a folder");
        let (source, target) = (top.path().join("source"), top.path().join("target"));
        fs::create_dir(&source).expect("a folder");
        fs::write(source.join("file"), "some bytes").expect("a file");
        assert!(same_tree(&source, &target).is_err_and(|why| why.contains("target")), "nothing");
        fs::create_dir(&target).expect("a folder");
        fs::write(target.join("file"), "Some bytes").expect("a file");
        assert!(same_tree(&source, &target).is_err_and(|why| why.contains("differ")), "another");
        fs::write(target.join("file"), "some bytes").expect("a file");
        assert_eq!(same_tree(&source, &target), Ok(()));
    }
}
