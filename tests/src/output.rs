//! What a process of a test prints, gathered while it runs, and a report of the process for a
//! test that fails: how it ended or what its threads wait for, and what it printed so far.
//! Owns the threads that read the pipes; `process` owns the children.

use crate::wait::LOOK_EVERY;
use std::fmt::{self, Debug};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a report waits for the last words of a process that has ended.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// What came out of a pipe so far.
#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    is_all: bool,
}

/// What a process prints: read on a thread of its own, so that the pipe never fills and the
/// process never waits for it.
pub struct Output {
    gathered: Arc<Mutex<Gathered>>,
    reader: Option<JoinHandle<()>>,
}

impl Output {
    /// Gathers what comes, as it comes.
    pub fn of(mut from: impl Read + Send + 'static) -> Self {
        Self::start(move |gathered| {
            let mut piece = vec![0; 64 << 10];
            loop {
                match from.read(&mut piece) {
                    Ok(0) => return,
                    Ok(count) => lock(gathered).bytes.extend_from_slice(&piece[..count]),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => panic!("a pipe of our own child: {error}"),
                }
            }
        })
    }

    /// Gathers whole lines only: who looks at a log never sees half of one.
    pub fn of_lines(from: impl Read + Send + 'static) -> Self {
        Self::start(move |gathered| {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            while from.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                if line.last() != Some(&b'\n') {
                    line.push(b'\n');
                }
                lock(gathered).bytes.append(&mut line);
            }
        })
    }

    fn start(read: impl FnOnce(&Mutex<Gathered>) + Send + 'static) -> Self {
        let gathered = Arc::<Mutex<Gathered>>::default();
        let reader = std::thread::spawn({
            let gathered = gathered.clone();
            move || {
                read(&gathered);
                lock(&gathered).is_all = true;
            }
        });
        Self { gathered, reader: Some(reader) }
    }

    /// What came so far.
    pub fn so_far(&self) -> String {
        String::from_utf8_lossy(&lock(&self.gathered).bytes).into_owned()
    }

    /// All of it: waits until nobody has the other end of the pipe.
    pub fn all(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("reading does not panic");
        }
        self.so_far()
    }
}

fn lock(gathered: &Mutex<Gathered>) -> MutexGuard<'_, Gathered> {
    gathered.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process, for a test that fails: Debug prints how it ended, or else its threads, and what
/// it printed. Looks when it is printed, so that making one costs nothing.
pub struct Report {
    process: u32,
    ended: Option<ExitStatus>,
    outputs: Vec<(&'static str, Arc<Mutex<Gathered>>)>,
}

impl Report {
    /// Of a child of ours, and what it prints under these names.
    pub fn of(child: &mut Child, outputs: &[(&'static str, &Output)]) -> Self {
        let ended = child.try_wait().expect("our own child");
        let outputs = outputs.iter().map(|(name, output)| (*name, output.gathered.clone()));
        Self { process: child.id(), ended, outputs: outputs.collect() }
    }
}

impl Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ended {
            Some(status) => write!(f, "process {} has ended: {status}", self.process)?,
            None => {
                write!(f, "process {} has not ended; its threads:", self.process)?;
                for thread in threads(self.process) {
                    write!(f, "\n  {thread}")?;
                }
            }
        }
        for (name, gathered) in &self.outputs {
            let begin = Instant::now();
            while self.ended.is_some() && !lock(gathered).is_all && begin.elapsed() < LAST_WORDS_MAX
            {
                std::thread::sleep(LOOK_EVERY);
            }
            let text = String::from_utf8_lossy(&lock(gathered).bytes).into_owned();
            match text.trim_end() {
                "" => write!(f, "\n{name}: nothing")?,
                text => write!(f, "\n{name}:\n{text}")?,
            }
        }
        Ok(())
    }
}

/// The threads of a process: number, name, state, and where in the kernel each waits, as far as
/// the kernel tells. None of a process that is gone.
fn threads(process: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let described = |task: fs::DirEntry| {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let status = read("status");
        let state = status.lines().find_map(|line| line.strip_prefix("State:"));
        let state = state.unwrap_or("gone").trim();
        let (number, name, place) = (task.file_name(), read("comm"), read("wchan"));
        format!("{} {}: {state}, in {:?}", number.to_string_lossy(), name.trim(), place.trim())
    };
    tasks.map(described).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::{wait_for, when};
    use std::process::{Command, Stdio};

    #[test]
    fn a_report_has_the_threads_of_a_process_or_its_end_and_what_it_printed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo said; exec sleep 60"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell runs");
        let mut output = Output::of(child.stdout.take().expect("it is piped"));
        let what = "the shell has printed its line";
        wait_for(what, Duration::from_secs(20), || when(output.so_far(), |it| it == "said\n"));
        let thread = format!("\n  {} s", child.id());
        let running = format!("{:?}", Report::of(&mut child, &[("stdout", &output)]));
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        assert!(running.contains("has not ended; its threads:"), "{running}");
        assert!(running.contains(&thread) && running.ends_with("\nstdout:\nsaid"), "{running}");
        let ended = format!("{:?}", Report::of(&mut child, &[("stdout", &output)]));
        assert!(ended.contains("has ended: signal: 9"), "{ended}");
        assert_eq!(output.all(), "said\n");
    }
}
