//! Lines of the log on their way out. Each is written at once, until a command that
//! has a line for every file asks for them to be gathered; then those of a burst are
//! written together, because a `write` was most of what a line cost. Owns the lines
//! that wait and the thread that writes them in time. Never cuts a line, never changes
//! their order, never keeps a warning or an error back. Used by `logging` alone.

use std::io::{ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// How many bytes of lines wait at most. It is what the kernel writes to a pipe as a whole
/// (PIPE_BUF), so that lines of two processes that share one cannot cut each other. A line that is
/// longer goes alone.
pub(crate) const GATHERED_BYTES_MAX: usize = 4096;

/// The same for a file, where every write is whole.
pub(crate) const FILE_BYTES_MAX: usize = 32 << 10;

/// How long a line waits at most: what a process that is killed takes with it.
pub(crate) const GATHERED_FOR_MAX: Duration = Duration::from_millis(100);

/// How often a thread that panics tries to have what waits written, a millisecond apart: another
/// one may be writing, or it may be this one.
const PANIC_TRIES_MAX: u32 = 100;

/// Where lines go, and those that wait.
pub(crate) struct Lines {
    kept: Mutex<Kept>,
    /// Wakes the thread when the pace changes.
    changed: Condvar,
    gathered_for_max: Duration,
}

struct Kept {
    to: Box<dyn Write + Send>,
    /// Whole lines.
    bytes: Vec<u8>,
    pace: Pace,
    /// Whether the last line was written in part, because there was no room for more.
    torn: bool,
    bytes_max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Each line is written at once, and there is no thread.
    AtOnce,
    /// The next line is written at once, because there was none for a while.
    Calm,
    /// Lines wait; the thread writes them in time.
    Busy,
}

impl Lines {
    pub fn new(to: Box<dyn Write + Send>, gathered_for_max: Duration, bytes_max: usize) -> Self {
        let kept = Kept { to, bytes: Vec::new(), pace: Pace::AtOnce, torn: false, bytes_max };
        Self { kept: Mutex::new(kept), changed: Condvar::new(), gathered_for_max }
    }

    /// Gathers lines from now on until what is returned is dropped. Starts a thread; where that
    /// cannot be, lines are written as before.
    pub fn gather(self: &Arc<Self>) -> Gathering {
        self.lock().pace = Pace::Calm;
        let lines = self.clone();
        let thread = std::thread::Builder::new().name("log".into());
        let thread = thread.spawn(move || lines.attend()).ok();
        if thread.is_none() {
            self.lock().pace = Pace::AtOnce;
        }
        Gathering { lines: Some(self.clone()), thread }
    }

    /// Has what waits written before a panic of any thread of the process is told, from now on.
    pub fn write_out_at_panics(self: &Arc<Self>) {
        let (lines, before) = (self.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            lines.write_out_if_free();
            before(info);
        }));
    }

    /// Writes what waits.
    pub fn write_out(&self) {
        self.lock().write_out();
    }

    /// Takes a line.
    fn take(&self, line: &[u8], urgent: bool) {
        let mut kept = self.lock();
        kept.add(line);
        if kept.pace != Pace::Busy || urgent {
            kept.write_out();
        }
        if kept.pace == Pace::Calm {
            kept.pace = Pace::Busy;
            self.changed.notify_one();
        }
    }

    /// What the thread does: writes what waits, in time, until lines are no longer gathered.
    fn attend(&self) {
        let mut kept = self.lock();
        while kept.pace != Pace::AtOnce {
            let calm = |kept: &mut Kept| kept.pace == Pace::Calm;
            kept = self.changed.wait_while(kept, calm).unwrap_or_else(PoisonError::into_inner);
            let busy = |kept: &mut Kept| kept.pace == Pace::Busy;
            let waited = self.changed.wait_timeout_while(kept, self.gathered_for_max, busy);
            kept = waited.unwrap_or_else(PoisonError::into_inner).0;
            if kept.pace == Pace::Busy && kept.bytes.is_empty() {
                kept.pace = Pace::Calm;
            }
            kept.write_out();
        }
    }

    /// Writes what waits, unless that cannot be: for a panic, which may be that of whoever writes.
    fn write_out_if_free(&self) {
        for _ in 0..PANIC_TRIES_MAX {
            match self.kept.try_lock() {
                Ok(mut kept) => return kept.write_out(),
                Err(TryLockError::Poisoned(kept)) => return kept.into_inner().write_out(),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // What waits are whole lines, whoever panicked.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Lets a line wait behind the others, which are written if there is no room for it.
    fn add(&mut self, line: &[u8]) {
        if self.bytes.len() + line.len() > self.bytes_max {
            self.write_out();
        }
        self.bytes.extend_from_slice(line);
    }

    /// Writes what waits. What cannot be written is lost: there is nobody to tell.
    fn write_out(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        if self.torn {
            self.bytes.insert(0, b'\n');
        }
        let mut rest = self.bytes.as_slice();
        while !rest.is_empty() {
            match self.to.write(rest) {
                Ok(0) => break,
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let (written, _) = self.bytes.split_at(self.bytes.len() - rest.len());
        self.torn = written.last().map_or(self.torn, |last| *last != b'\n');
        self.bytes.clear();
        self.bytes.shrink_to(self.bytes_max);
    }
}

/// Lines are gathered as long as this is there. When it goes, what waits is written, and each line
/// at once from then on.
#[must_use]
#[derive(Default)]
pub struct Gathering {
    /// None where lines are written one by one anyway.
    lines: Option<Arc<Lines>>,
    thread: Option<JoinHandle<()>>,
}

impl Gathering {
    /// Writes what waits, for a line that somebody waits for.
    pub fn write_out(&self) {
        if let Some(lines) = &self.lines {
            lines.write_out();
        }
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        let Some(lines) = &self.lines else { return };
        let mut kept = lines.lock();
        kept.pace = Pace::AtOnce;
        kept.write_out();
        drop(kept);
        lines.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It panics only if writing does.
            let _ = thread.join();
        }
    }
}

/// Makes writers for the formatter, which hands each a line.
pub(crate) struct Writers(pub Arc<Lines>);

impl<'a> MakeWriter<'a> for Writers {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { lines: &self.0, urgent: true }
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> Line<'a> {
        Line { lines: &self.0, urgent: *of.level() <= Level::WARN }
    }
}

/// Takes one line, which the formatter hands over as a whole.
pub(crate) struct Line<'a> {
    lines: &'a Lines,
    urgent: bool,
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.lines.take(line, self.urgent);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::time::Instant;

    /// Longer than a test.
    const NEVER: Duration = Duration::from_secs(3600);

    /// Each write that was made, and how many bytes there is room for.
    #[derive(Clone)]
    struct Sink(Arc<Mutex<(Vec<String>, usize)>>);

    impl Sink {
        fn new() -> Self {
            Self(Arc::new(Mutex::new((Vec::new(), usize::MAX))))
        }

        fn writes(&self) -> Vec<String> {
            self.0.lock().expect("not poisoned").0.clone()
        }

        fn set_room(&self, bytes: usize) {
            self.0.lock().expect("not poisoned").1 = bytes;
        }
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (writes, room) = &mut *self.0.lock().expect("not poisoned");
            let taken = bytes.len().min(*room);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            *room -= taken;
            writes.push(String::from_utf8(bytes[..taken].to_vec()).expect("text"));
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(gathered_for_max: Duration) -> (Sink, Arc<Lines>) {
        let sink = Sink::new();
        (sink.clone(), Arc::new(Lines::new(Box::new(sink), gathered_for_max, GATHERED_BYTES_MAX)))
    }

    fn take_all(lines: &Lines, all: &[&str]) {
        all.iter().for_each(|line| lines.take(line.as_bytes(), false));
    }

    /// Logs through the formatter, as a command does.
    fn logging(lines: &Arc<Lines>, log: impl FnOnce()) {
        let subscriber = tracing_subscriber::fmt().without_time().with_target(false);
        let subscriber = subscriber.with_ansi(false).with_writer(Writers(lines.clone()));
        tracing::subscriber::with_default(subscriber.finish(), log);
    }

    #[test]
    fn each_line_is_written_at_once_before_and_after_lines_are_gathered() {
        let (sink, lines) = lines(NEVER);
        lines.take(b"a\n", false);
        lines.take(b"b\n", false);
        assert_eq!(sink.writes(), ["a\n", "b\n"]);
        let gathering = lines.gather();
        take_all(&lines, &["c\n", "d\n", "e\n"]);
        assert_eq!(sink.writes(), ["a\n", "b\n", "c\n"], "the first of a burst does not wait");
        drop(gathering);
        assert_eq!(sink.writes()[3..], ["d\ne\n"], "the end of a process loses nothing");
        lines.take(b"f\n", false);
        assert_eq!(sink.writes()[4..], ["f\n"]);
    }

    #[test]
    fn a_warning_is_written_at_once_behind_what_came_before_it() {
        let (sink, lines) = lines(NEVER);
        let _gathering = lines.gather();
        logging(&lines, || {
            tracing::info!("first");
            tracing::info!("second");
            tracing::warn!("third");
            tracing::debug!("not logged");
            tracing::info!("fourth");
            assert_eq!(sink.writes(), [" INFO first\n", " INFO second\n WARN third\n"]);
            tracing::error!("fifth");
        });
        assert_eq!(sink.writes()[2..], [" INFO fourth\nERROR fifth\n"]);
    }

    #[test]
    fn what_waits_is_written_in_time_and_a_line_after_a_pause_at_once() {
        let (sink, lines) = lines(Duration::from_millis(20));
        let gathering = lines.gather();
        let until = |reached: &dyn Fn() -> bool| {
            let begin = Instant::now();
            while !reached() {
                assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", sink.writes());
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for burst in 0..3 {
            let before = sink.writes().len();
            (0..10).for_each(|_| lines.take(b"line\n", false));
            let written = || sink.writes().concat().lines().count();
            until(&|| written() == (burst + 1) * 10);
            assert!(sink.writes().len() <= before + 4, "{:?}", sink.writes());
            until(&|| lines.lock().pace == Pace::Calm);
        }
        drop(gathering);
    }

    #[test]
    fn lines_of_many_threads_are_whole_and_each_threads_in_order_and_writes_are_bounded() {
        let (sink, lines) = lines(Duration::from_millis(1));
        let gathering = lines.gather();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let lines = &lines;
                scope.spawn(move || {
                    for at in 0..2_000 {
                        let line = format!("{thread} {at} {}\n", "x".repeat(at % 200));
                        lines.take(line.as_bytes(), at % 500 == 499);
                    }
                });
            }
        });
        drop(gathering);
        let writes = sink.writes();
        assert!(writes.iter().all(|write| write.len() <= GATHERED_BYTES_MAX));
        assert!(writes.iter().all(|write| write.ends_with('\n')), "a line was cut");
        assert!(writes.len() < 2_000, "{} writes for 8,000 lines", writes.len());
        let mut next = [0; 4];
        for line in writes.concat().lines() {
            let parts: Vec<_> = line.split(' ').collect();
            let (thread, at): (usize, usize) =
                (parts[0].parse().expect("a number"), parts[1].parse().expect("a number"));
            assert_eq!(at, next[thread], "of thread {thread}");
            assert_eq!(parts[2], "x".repeat(at % 200));
            next[thread] += 1;
        }
        assert_eq!(next, [2_000; 4]);
    }

    #[test]
    fn a_line_longer_than_what_may_wait_goes_alone_and_its_memory_is_given_back() {
        let (sink, lines) = lines(NEVER);
        let _gathering = lines.gather();
        let long = format!("{}\n", "x".repeat(3 * GATHERED_BYTES_MAX));
        take_all(&lines, &["a\n", "b\n", &long, "c\n"]);
        lines.write_out();
        assert_eq!(sink.writes(), ["a\n", "b\n", &long, "c\n"]);
        assert!(lines.lock().bytes.capacity() <= GATHERED_BYTES_MAX);
    }

    #[test]
    fn a_line_behind_one_that_a_full_disk_cut_begins_anew() {
        let (sink, lines) = lines(NEVER);
        sink.set_room(3);
        lines.take(b"first\n", false);
        lines.take(b"second\n", false);
        sink.set_room(usize::MAX);
        lines.take(b"third\n", false);
        lines.take(b"fourth\n", false);
        assert_eq!(sink.writes().concat(), "fir\nthird\nfourth\n");
    }

    /// The one test that attends to panics: they are those of all tests.
    #[test]
    fn a_panic_writes_what_waits_first() {
        let (sink, lines) = lines(NEVER);
        lines.write_out_at_panics();
        let gathering = lines.gather();
        take_all(&lines, &["a\n", "b\n"]);
        let panicked = std::thread::spawn(|| panic!("meant")).join();
        assert!(panicked.is_err());
        assert_eq!(sink.writes(), ["a\n", "b\n"]);
        // One of whoever writes does not wait for himself.
        let kept = lines.lock();
        assert!(std::panic::catch_unwind(|| panic!("meant")).is_err());
        drop(kept);
        drop(gathering);
    }
}
