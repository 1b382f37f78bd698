//! What is to be told of a watched tree, and when. Signs of changes come in as
//! they happen; what they amount to comes out once, when it has been quiet for a
//! moment and the writer of a file has closed it. Pure: the clock is given, and
//! no more than `PENDING_MAX` paths wait, nor more than there is room for: beyond
//! that, everything is looked at again instead. Used by `watcher`.

use super::Room;
use std::collections::BTreeMap;
use std::time::Duration;
use verbatim_proto::units::{CHANGES_MAX, FRAME_BYTES_MAX};
use verbatim_proto::{Change, Changes, WirePath};

/// Paths that may wait to be told.
const PENDING_MAX: usize = 4096;

/// What the paths that wait may take, in bytes.
const PENDING_BYTES_MAX: usize = 1 << 20;

/// What a path that waits takes beside its bytes.
const PENDING_BYTES: usize = 128;

/// Room is asked for so many bytes at a time.
const ROOM_BYTES: usize = 16 << 10;

/// What the paths of one batch may take, in bytes, but for the last one.
const BATCH_BYTES_MAX: usize = FRAME_BYTES_MAX / 4;

/// How long is waited for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// After a change is complete: what follows at once is told with it.
    pub quiet: Duration,
    /// After a file was found of which nobody knows whether it is being written.
    pub found: Duration,
    /// After the last write to a file that its writer does not close.
    pub settle: Duration,
    /// After the first write to a file that is written to all the time.
    pub writing_max: Duration,
    /// Between two looks whether the folder is where it was.
    pub place_check: Duration,
    /// Before each comparison of the tree with its watches and change times; none is never.
    pub compare: Option<Duration>,
    /// How long a difference that a comparison finds waits for its event.
    pub doubt: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(50),
            found: Duration::from_millis(250),
            settle: Duration::from_secs(2),
            writing_max: Duration::from_secs(30),
            place_check: Duration::from_secs(2),
            compare: Some(Duration::from_secs(30)),
            // A single write may take so long, and its event comes behind it.
            doubt: Duration::from_secs(10),
        }
    }
}

/// A sign that something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// It is complete: closed by its writer, renamed, made in one step, or gone.
    Complete,
    /// Its metadata changed, which says nothing of a writer.
    Touched,
    /// It was found in a folder that was not watched before.
    Found,
    /// A writer is at work on it.
    Written,
    /// A folder that came with everything in it.
    Below,
}

/// What waits to be told.
pub(super) struct Coalescer {
    timing: Timing,
    pending: BTreeMap<WirePath, Pending>,
    bytes: usize,
    rescan: bool,
    /// Asked before these take more.
    room: Room,
    /// How many bytes there is room for.
    held: usize,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    state: State,
    /// Since when it waits.
    since: Duration,
    below: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Complete since then.
    Complete(Duration),
    /// Found then.
    Found(Duration),
    /// Last written to then.
    Writing(Duration),
}

impl Coalescer {
    /// Nothing waits yet, and there is room for all that will.
    pub fn new(timing: Timing) -> Self {
        Self::within(Box::new(|_| true), timing)
    }

    /// The same, with `room` asked for what will.
    pub fn within(room: Room, timing: Timing) -> Self {
        Self { timing, pending: BTreeMap::new(), bytes: 0, rescan: false, room, held: 0 }
    }

    /// Takes a sign. Too many, and everything is to be looked at again.
    pub fn note(&mut self, path: WirePath, sign: Sign, now: Duration) {
        // Whoever looks at everything will see this one too, or another sign of it.
        if self.rescan {
            return;
        }
        let weight = path.as_bytes().len();
        let known = self.pending.get_mut(&path);
        if let Some(known) = known {
            known.state = known.state.after(sign, now);
            known.below |= sign == Sign::Below;
            return;
        }
        self.bytes += weight;
        if self.pending.len() == PENDING_MAX || self.bytes > PENDING_BYTES_MAX {
            return self.rescan();
        }
        let state = State::Complete(now).first(sign, now);
        self.pending.insert(path, Pending { state, since: now, below: sign == Sign::Below });
        if !self.hold() {
            self.rescan();
        }
    }

    /// Says how much of the room what waits takes now; false where there is none for more.
    fn hold(&mut self) -> bool {
        let bytes = self.bytes + self.pending.len() * PENDING_BYTES;
        let wanted = bytes.next_multiple_of(ROOM_BYTES);
        if wanted != self.held && (self.room)(wanted) {
            self.held = wanted;
        }
        self.held >= bytes
    }

    /// Everything is to be looked at again.
    pub fn rescan(&mut self) {
        self.pending.clear();
        self.bytes = 0;
        self.rescan = true;
        self.hold();
    }

    /// Whether a path waits to be told, by itself or with all that a folder above it has.
    pub fn waits(&self, path: &WirePath) -> bool {
        let above =
            std::iter::successors(Some(path.clone()), |at| (!at.is_root()).then(|| at.parent()));
        self.rescan
            || self.pending.contains_key(path)
            || above.into_iter().any(|at| self.pending.get(&at).is_some_and(|it| it.below))
    }

    /// When there is something to tell.
    pub fn due(&self) -> Option<Duration> {
        if self.rescan {
            return Some(Duration::ZERO);
        }
        self.pending.values().map(|pending| pending.due(&self.timing)).min()
    }

    /// What is to be told now. What is complete goes along with what is due.
    pub fn take(&mut self, now: Duration) -> Option<Changes> {
        if self.due().is_none_or(|due| due > now) {
            return None;
        }
        if std::mem::take(&mut self.rescan) {
            return Some(Changes::rescan());
        }
        let mut changes = Vec::new();
        let mut bytes = 0;
        let timing = self.timing;
        self.pending.retain(|path, pending| {
            let ready = matches!(pending.state, State::Complete(_)) || pending.due(&timing) <= now;
            if !ready || changes.len() == CHANGES_MAX || bytes >= BATCH_BYTES_MAX {
                return true;
            }
            bytes += path.as_bytes().len();
            changes.push(Change { path: path.clone(), below: pending.below });
            false
        });
        self.bytes -= bytes;
        self.hold();
        Some(Changes { changes, rescan: false })
    }
}

impl Pending {
    fn due(&self, timing: &Timing) -> Duration {
        match self.state {
            State::Found(at) => at + timing.found,
            // Opened, written to and closed over and over, it would never be quiet.
            State::Complete(at) => (at + timing.quiet).min(self.since + timing.writing_max),
            State::Writing(last) => (last + timing.settle).min(self.since + timing.writing_max),
        }
    }
}

impl State {
    /// The state of what was not known before.
    fn first(self, sign: Sign, now: Duration) -> Self {
        match sign {
            Sign::Found => Self::Found(now),
            other => self.after(other, now),
        }
    }

    /// The state after one more sign. Completeness is dated by its first sign, so that what is
    /// touched all the time is told all the same.
    fn after(self, sign: Sign, now: Duration) -> Self {
        match (sign, self) {
            (Sign::Written, _) => Self::Writing(now),
            (Sign::Found | Sign::Touched, state) => state,
            (Sign::Complete | Sign::Below, Self::Complete(at)) => Self::Complete(at),
            (Sign::Complete | Sign::Below, _) => Self::Complete(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    const QUIET: Duration = Duration::from_millis(50);

    fn path(text: &str) -> WirePath {
        WirePath::parse(text.as_bytes()).expect("plain")
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// What is told at a time: paths, with a slash where all below is meant.
    fn told(coalescer: &mut Coalescer, now: Duration) -> Vec<String> {
        let changes = coalescer.take(now).unwrap_or_default();
        assert!(!changes.rescan);
        let shown = |change: Change| match change.below {
            true => format!("{}/", change.path),
            false => change.path.to_string(),
        };
        changes.changes.into_iter().map(shown).collect()
    }

    #[test]
    fn a_burst_is_told_once_and_soon() {
        let mut coalescer = Coalescer::new(Timing::default());
        assert_eq!(coalescer.due(), None);
        for ms in 0..40 {
            coalescer.note(path("a"), Sign::Complete, at(ms));
            coalescer.note(path("b"), Sign::Touched, at(ms));
        }
        assert_eq!(coalescer.due(), Some(QUIET), "the first of them counts");
        assert!(told(&mut coalescer, at(49)).is_empty());
        assert_eq!(told(&mut coalescer, at(50)), ["a", "b"]);
        assert_eq!(coalescer.due(), None);
        assert_eq!(coalescer.bytes, 0);
    }

    #[test]
    fn a_file_is_told_when_its_writer_closes_it() {
        let mut coalescer = Coalescer::new(Timing::default());
        for ms in (0..1900).step_by(100) {
            coalescer.note(path("a"), Sign::Written, at(ms));
            coalescer.note(path("a"), Sign::Touched, at(ms));
        }
        assert!(told(&mut coalescer, at(1900)).is_empty());
        coalescer.note(path("other"), Sign::Complete, at(1900));
        assert_eq!(told(&mut coalescer, at(1950)), ["other"], "it does not wait for the writer");
        coalescer.note(path("a"), Sign::Complete, at(1960));
        assert_eq!(coalescer.due(), Some(at(2010)));
        assert_eq!(told(&mut coalescer, at(2010)), ["a"]);
    }

    #[test]
    fn a_file_that_stays_open_is_told_when_it_settles_and_now_and_then() {
        let mut coalescer = Coalescer::new(Timing::default());
        coalescer.note(path("quiet"), Sign::Written, at(0));
        assert_eq!(told(&mut coalescer, at(2000)), ["quiet"]);
        let mut times = 0;
        for ms in (0..65_000).step_by(500) {
            coalescer.note(path("log"), Sign::Written, at(10_000 + ms));
            times += told(&mut coalescer, at(10_000 + ms)).len();
        }
        assert_eq!(times, 2, "every half minute");
    }

    #[test]
    fn a_file_that_is_opened_and_closed_all_the_time_is_told_now_and_then() {
        let mut coalescer = Coalescer::new(Timing::default());
        let mut times = 0;
        for ms in (0..65_000).step_by(40) {
            coalescer.note(path("log"), Sign::Written, at(ms));
            coalescer.note(path("log"), Sign::Complete, at(ms));
            times += told(&mut coalescer, at(ms)).len();
        }
        assert_eq!(times, 2, "every half minute");
    }

    #[test]
    fn a_file_that_is_opened_again_is_waited_for_again() {
        let mut coalescer = Coalescer::new(Timing::default());
        coalescer.note(path("a"), Sign::Complete, at(0));
        coalescer.note(path("a"), Sign::Written, at(10));
        assert!(told(&mut coalescer, at(60)).is_empty());
        coalescer.note(path("a"), Sign::Complete, at(100));
        assert_eq!(told(&mut coalescer, at(150)), ["a"]);
    }

    #[test]
    fn a_file_that_was_found_is_told_unless_somebody_writes_it() {
        let mut coalescer = Coalescer::new(Timing::default());
        for name in ["idle", "written", "closed"] {
            coalescer.note(path(name), Sign::Found, at(0));
        }
        coalescer.note(path("written"), Sign::Written, at(100));
        coalescer.note(path("closed"), Sign::Complete, at(100));
        coalescer.note(path("written"), Sign::Found, at(110));
        assert_eq!(told(&mut coalescer, at(150)), ["closed"]);
        assert_eq!(told(&mut coalescer, at(250)), ["idle"]);
        assert_eq!(coalescer.due(), Some(at(2100)));
    }

    #[test]
    fn a_folder_comes_before_what_is_in_it_and_says_when_it_came_whole() {
        let mut coalescer = Coalescer::new(Timing::default());
        coalescer.note(path("f/x"), Sign::Complete, at(0));
        coalescer.note(path("f"), Sign::Complete, at(1));
        coalescer.note(path("f"), Sign::Below, at(2));
        coalescer.note(path(""), Sign::Touched, at(2));
        assert_eq!(told(&mut coalescer, at(60)), ["", "f/", "f/x"]);
    }

    #[test]
    fn a_batch_is_bounded_and_the_rest_follows() {
        let mut coalescer = Coalescer::new(Timing::default());
        for number in 0..CHANGES_MAX + 10 {
            coalescer.note(path(&format!("{number:05}")), Sign::Complete, at(0));
        }
        assert_eq!(told(&mut coalescer, at(50)).len(), CHANGES_MAX);
        assert_eq!(told(&mut coalescer, at(50)).len(), 10);
        let long = "n".repeat(250);
        let deep = [long.as_str(); 100].join("/");
        for number in 0..20 {
            coalescer.note(path(&format!("{deep}/{number:02}")), Sign::Complete, at(100));
        }
        let first = coalescer.take(at(150)).expect("due");
        assert_eq!(first.changes.len(), BATCH_BYTES_MAX.div_ceil(deep.len() + 3));
        let frame = verbatim_proto::wire::encode(&first).expect("fits");
        assert!(frame.len() < FRAME_BYTES_MAX / 2, "{}", frame.len());
    }

    #[test]
    fn too_much_becomes_one_look_at_everything() {
        let mut coalescer = Coalescer::new(Timing::default());
        for number in 0..=PENDING_MAX {
            coalescer.note(path(&format!("{number}")), Sign::Written, at(0));
        }
        coalescer.note(path("late"), Sign::Complete, at(1));
        assert_eq!(coalescer.take(at(1)), Some(Changes::rescan()));
        assert_eq!((coalescer.take(at(99_999)), coalescer.bytes), (None, 0));
        // Bytes count as well as paths.
        let deep = ["n".repeat(250).as_str(); 100].join("/");
        for number in 0..PENDING_BYTES_MAX / deep.len() + 1 {
            coalescer.note(path(&format!("{deep}/{number}")), Sign::Complete, at(0));
        }
        assert_eq!(coalescer.take(at(50)), Some(Changes::rescan()));
        coalescer.note(path("after"), Sign::Complete, at(100));
        assert_eq!(told(&mut coalescer, at(150)), ["after"]);
    }

    #[test]
    fn paths_that_wait_take_room_and_without_room_everything_is_looked_at() {
        let (asked, most) = (Arc::new(AtomicUsize::new(0)), 64 << 10);
        let room = {
            let asked = asked.clone();
            move |bytes| {
                let fits = bytes <= most;
                fits.then(|| asked.store(bytes, Relaxed));
                fits
            }
        };
        let mut coalescer = Coalescer::within(Box::new(room), Timing::default());
        let long = ["n".repeat(255).as_str(); 3].join("/");
        let note = |coalescer: &mut Coalescer, number| {
            coalescer.note(path(&format!("{long}/{number:04}")), Sign::Complete, at(0));
        };
        (0..70).for_each(|number| note(&mut coalescer, number));
        assert_eq!(asked.load(Relaxed), most, "70 paths of 772 bytes");
        assert_eq!(told(&mut coalescer, at(50)).len(), 70);
        assert_eq!(asked.load(Relaxed), 0, "what was told is given back");
        (0..73).for_each(|number| note(&mut coalescer, number));
        assert_eq!(asked.load(Relaxed), 0, "and so is what nobody tells");
        assert_eq!(coalescer.take(at(50)), Some(Changes::rescan()));
    }
}
