//! The files that facts are read from, below a root that is a parameter: `/` for
//! this machine, a folder for a recorded one. What may not be read is noted, and
//! becomes a finding; what is not there is nothing. Commands that tell what no file
//! does are run on this machine only, with a deadline; of a recorded one their
//! output is in `command/`. Reads are short: no file of the kernel is long.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Bytes of a file that are looked at.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Names of a folder that are looked at.
const NAMES_MAX: usize = 4096;

/// Paths that may not be read and are named.
const DENIED_MAX: usize = 16;

/// How long a command may take.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(3);

/// Holds a token of whoever asks, which is none of those commands' business.
const TOKEN_VARIABLE: &str = "RDMA_TOKEN";

/// Between two looks at a command that runs.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A machine's files.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    denied: RefCell<Vec<String>>,
    refusals: Cell<usize>,
}

impl Tree {
    /// The files of this machine.
    pub fn here() -> Self {
        Self::below("/")
    }

    /// The files below a folder.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), denied: RefCell::default(), refusals: Cell::default() }
    }

    /// The folder that all is below.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether it is this machine and no record.
    pub fn is_here(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The text of a file without blanks at its ends; none where there is none, or nothing.
    pub fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let read = File::open(self.root.join(path))
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
        if let Err(error) = read {
            if error.kind() == ErrorKind::PermissionDenied {
                self.note(path);
            }
            return None;
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The number in a file.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Whether there is such a thing.
    pub fn has(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// The names in a folder, sorted.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = match std::fs::read_dir(self.root.join(path)) {
            Ok(entries) => entries,
            Err(error) => {
                if error.kind() == ErrorKind::PermissionDenied {
                    self.note(path);
                }
                return Vec::new();
            }
        };
        let names = entries.flatten().take(NAMES_MAX);
        let mut names: Vec<_> =
            names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// What a command prints; none where it is missing, fails or takes too long. One that
    /// complains of missing rights is noted as what may not be read.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Option<String> {
        let words: Vec<_> = std::iter::once(program).chain(arguments.iter().copied()).collect();
        let name = words.join(" ");
        if !self.is_here() {
            return self.text(&format!("command/{}", name.replace('/', "_")));
        }
        let mut child = Command::new(program)
            .args(arguments)
            .env_remove(TOKEN_VARIABLE)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let (said, complained) = (reader(child.stdout.take()?), reader(child.stderr.take()?));
        let begin = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if begin.elapsed() < COMMAND_TIME_MAX => std::thread::sleep(LOOK_EVERY),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return None;
                }
            }
        };
        // What a command left behind may hold its pipes open for ever.
        let heard = |from: Receiver<String>| from.recv_timeout(COMMAND_TIME_MAX).ok();
        if status.success() {
            return heard(said);
        }
        let complaint = heard(complained).unwrap_or_default().to_lowercase();
        if REFUSALS.iter().any(|words| complaint.contains(words)) {
            self.note(&name);
        }
        None
    }

    /// What may not be read.
    pub fn denied(&self) -> Vec<String> {
        self.denied.borrow().clone()
    }

    /// How often something might not be read, also what is not named for want of room.
    pub fn refusals(&self) -> usize {
        self.refusals.get()
    }

    /// Notes a file below the root, or a command, that tells us nothing for want of rights.
    fn note(&self, what: &str) {
        self.refusals.update(|count| count + 1);
        let mut denied = self.denied.borrow_mut();
        let is_command = what.contains(' ');
        let what = if is_command { format!("output of {what}") } else { format!("/{what}") };
        if denied.len() < DENIED_MAX && !denied.contains(&what) {
            denied.push(what);
        }
    }
}

/// Reads on a thread of its own: a pipe that is full would hold the command.
fn reader(from: impl Read + Send + 'static) -> Receiver<String> {
    let (done, answer) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was said before an error was said; who asked may be gone.
        let _ = from.take(FILE_BYTES_MAX).read_to_end(&mut bytes);
        let _ = done.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    answer
}

/// How commands say that only root is told.
const REFUSALS: &[&str] = &["not permitted", "permission denied", "be root"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_given_up_in_time() {
        let begin = Instant::now();
        assert_eq!(Tree::here().output("sleep", &["60"]), None);
        assert!(begin.elapsed() < COMMAND_TIME_MAX * 3, "it waited too long");
        assert_eq!(Tree::here().output("no-such-command", &[]), None);
        assert_eq!(Tree::here().output("echo", &["a"]).as_deref(), Some("a\n"));
    }

    #[test]
    fn a_command_that_only_root_may_run_is_noted() {
        let tree = Tree::here();
        let refused = "echo 'Operation not permitted (you must be root)' >&2; exit 1";
        assert_eq!(tree.output("sh", &["-c", refused]), None);
        assert_eq!(tree.output("sh", &["-c", "echo 'no such device' >&2; exit 1"]), None);
        assert_eq!(tree.denied(), [format!("output of sh -c {refused}")]);
        assert_eq!(tree.refusals(), 1);
    }

    #[test]
    fn a_record_tells_what_a_command_printed() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(root.path().join("command")).expect("a folder");
        std::fs::write(root.path().join("command/dcb pfc show"), "yes\n").expect("a file");
        let tree = Tree::below(root.path());
        assert_eq!(tree.output("dcb", &["pfc", "show"]).as_deref(), Some("yes"));
        assert_eq!(tree.output("nft", &[]), None);
    }
}
