//! The pin budget: how much memory all clients together may register with devices. `ClientPins` is
//! one client's part of it, a `Pin` some bytes of that; dropping either returns them and notifies
//! waiting clients. `pin_book` decides; this file adds the lock, the notifications and the memlock
//! limit. It registers nothing itself: sessions do, with a pin in hand.

use crate::rdma::pin_book::PinBook;
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use verbatim_fabric::FabricError;
use verbatim_fabric::proof::PROOF_PAGE_BYTES;
use verbatim_proto::units::{GRAIN_BYTES, PACK_BYTES_MAX, WINDOW_BYTES};

/// The budget of one server.
pub struct PinBudget {
    state: Mutex<BudgetState>,
    limit: BudgetLimit,
}

struct BudgetState {
    book: PinBook,
    next_client: u64,
    /// The callbacks of clients.
    notifiers: HashMap<u64, Notify>,
    /// When each client last pinned, unpinned or used memory.
    moved: HashMap<u64, Instant>,
}

type Notify = Arc<dyn Fn(PinEvent) + Send + Sync>;

/// An event for a client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinEvent {
    /// A refused request may succeed now.
    Available,
    /// It has held more than its floor for too long while others wait: the session must end.
    Hoarding,
}

/// How long a client with nothing may wait while another holds more than its floor.
const HOARD_MAX: Duration = Duration::from_secs(15);

/// The limit that decided the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BudgetLimit {
    Configured,
    Memlock,
}

impl PinBudget {
    /// A budget of `configured` bytes, or of the memlock limit if that is lower; one client may
    /// have `client_max` of them.
    pub fn new(configured: u64, client_max: u64) -> Arc<Self> {
        let memlock = getrlimit(Resource::Memlock).current.filter(|_| !is_exempt());
        let (budget, limit) = bounded(configured, memlock);
        let state = BudgetState {
            book: PinBook::new(budget, client_max),
            next_client: 0,
            notifiers: HashMap::new(),
            moved: HashMap::new(),
        };
        Arc::new(Self { state: Mutex::new(state), limit })
    }

    /// Bytes that may be pinned at a time.
    pub fn budget(&self) -> u64 {
        self.state().book.budget()
    }

    /// Admits a client with upload slots of this length; `on_pin_event` is called when a refused
    /// request may succeed.
    pub fn admit(
        self: &Arc<Self>,
        slot_bytes: u64,
        on_pin_event: impl Fn(PinEvent) + Send + Sync + 'static,
    ) -> Result<ClientPins, FabricError> {
        let floor = floor_bytes(slot_bytes);
        let mut state = self.state();
        let id = state.next_client;
        if !state.book.admit(id, floor) {
            return Err(self.refusal(&state.book));
        }
        state.next_client += 1;
        state.notifiers.insert(id, Arc::new(on_pin_event));
        drop(state);
        let account = Account { pins: self.clone(), id, floor, rails: AtomicU64::new(1) };
        Ok(ClientPins(Arc::new(account)))
    }

    fn refusal(&self, book: &PinBook) -> FabricError {
        let what = "the server can pin nothing more";
        let (allowed, clients) = (size(book.budget()), book.client_count());
        match self.limit {
            BudgetLimit::Memlock => FabricError::device(
                what,
                format!("its memlock limit allows {allowed}, and {clients} clients share that"),
                "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity in the service",
            ),
            BudgetLimit::Configured => FabricError::device(
                what,
                format!("its budget is {allowed}, and {clients} clients share that"),
                "raise rdma.pin_budget_mb in its configuration, or come back later",
            ),
        }
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the book, then notifies the clients that waited, without the lock.
    fn change(&self, change: impl FnOnce(&mut PinBook) -> Vec<u64>) {
        let mut state = self.state();
        let waiting = change(&mut state.book);
        let notifiers: Vec<Notify> =
            waiting.iter().filter_map(|id| state.notifiers.get(id).cloned()).collect();
        drop(state);
        notifiers.iter().for_each(|notify| notify(PinEvent::Available));
    }
}

/// One client's part of the budget.
pub struct ClientPins(Arc<Account>);

struct Account {
    pins: Arc<PinBudget>,
    id: u64,
    /// The floor on one rail.
    floor: u64,
    rails: AtomicU64,
}

impl ClientPins {
    /// The bytes that no other client can take: enough for some windows, a pack of small files or
    /// one slot.
    pub fn floor(&self) -> u64 {
        self.0.floor * self.0.rails.load(Ordering::Relaxed)
    }

    /// Sets the floor for so many rails, because memory is registered on each. A client without
    /// rails takes nothing from others.
    pub fn serve_rails(&self, rails: usize) -> Result<(), FabricError> {
        let rails = rails as u64;
        let mut state = self.0.pins.state();
        if !state.book.set_floor(self.0.id, self.0.floor * rails) {
            return Err(self.0.pins.refusal(&state.book));
        }
        self.0.rails.store(rails, Ordering::Relaxed);
        Ok(())
    }

    /// Pins some bytes; if the budget refuses, `PinEvent::Available` follows.
    pub fn pin(&self, bytes: u64) -> Option<Pin> {
        let mut state = self.0.pins.state();
        let taken = state.book.ask(self.0.id, bytes);
        if taken {
            state.moved.insert(self.0.id, Instant::now());
        }
        drop(state);
        taken.then(|| Pin { account: Some(self.0.clone()), bytes })
    }

    /// Records that the client used its slots: they are pinned once and filled many times.
    pub fn used(&self, now: Instant) {
        self.0.pins.state().moved.insert(self.0.id, now);
    }

    /// A client waits with nothing: ends the one that has held more than its floor for longest, if
    /// that is too long.
    pub fn evict(&self, now: Instant) {
        let state = self.0.pins.state();
        let since = |id: &u64| state.moved.get(id).copied().unwrap_or(now);
        let others = state.book.above_floor().filter(|&id| id != self.0.id);
        let oldest = others.min_by_key(since);
        let hoarder = oldest.filter(|id| now.saturating_duration_since(since(id)) > HOARD_MAX);
        let notify = hoarder.and_then(|id| state.notifiers.get(&id).cloned());
        drop(state);
        if let Some(notify) = notify {
            notify(PinEvent::Hoarding);
        }
    }

    /// The length of windows now, if they are registered on so many rails.
    pub fn window_bytes(&self, rails: u64) -> u64 {
        self.0.pins.state().book.window_bytes(self.0.id, rails, GRAIN_BYTES, WINDOW_BYTES)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut state = self.pins.state();
        state.notifiers.remove(&self.id);
        state.moved.remove(&self.id);
        let (held_bytes, peak_bytes) = state.book.held();
        drop(state);
        tracing::debug!(held_bytes, peak_bytes, "a client gave back what it pinned");
        self.pins.change(|book| book.leave(self.id));
    }
}

/// Pinned bytes. Stored with the registered memory, and dropped after it.
pub struct Pin {
    account: Option<Arc<Account>>,
    bytes: u64,
}

impl Pin {
    /// A pin for memory that no device pins.
    pub fn none() -> Self {
        Self { account: None, bytes: 0 }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.pins.state().moved.insert(account.id, Instant::now());
            account.pins.change(|book| book.give_back(account.id, self.bytes));
        }
    }
}

/// The least that a client needs: four grains, a pack of small files, or one slot; and the page
/// that probes its links.
fn floor_bytes(slot_bytes: u64) -> u64 {
    let work = (4 * GRAIN_BYTES).max(u64::from(PACK_BYTES_MAX)).max(slot_bytes);
    work + PROOF_PAGE_BYTES as u64
}

fn size(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

/// The lower limit. An eighth of the memlock limit is left to the queues of the devices.
fn bounded(configured: u64, memlock: Option<u64>) -> (u64, BudgetLimit) {
    match memlock.map(|limit| limit - limit / 8) {
        Some(allowed) if allowed < configured => (allowed, BudgetLimit::Memlock),
        _ => (configured, BudgetLimit::Configured),
    }
}

/// Whether the memlock limit does not apply: the process has CAP_IPC_LOCK, like root.
fn is_exempt() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn the_smaller_of_both_bounds_is_the_budget() {
        assert_eq!(bounded(100, None), (100, BudgetLimit::Configured));
        assert_eq!(bounded(100, Some(1000)), (100, BudgetLimit::Configured));
        assert_eq!(bounded(1000, Some(80)), (70, BudgetLimit::Memlock));
    }

    #[test]
    fn returned_pins_notify_a_waiting_client() {
        let pins = PinBudget::new(4 << 20, u64::MAX);
        let rung = Arc::new(AtomicU32::new(0));
        let count = rung.clone();
        let first = pins.admit(1 << 20, |_| ()).expect("room");
        let ring = move |ring| {
            assert_eq!(ring, PinEvent::Available);
            count.fetch_add(1, Ordering::Relaxed);
        };
        let second = pins.admit(1 << 20, ring);
        let second = second.expect("room");
        let held: Vec<Pin> = std::iter::from_fn(|| first.pin(1 << 18)).collect();
        let mine = second.pin(1 << 20).expect("its floor");
        assert!(second.pin(1 << 20).is_none(), "more than there is");
        assert_eq!(rung.load(Ordering::Relaxed), 0);
        drop(held);
        assert_eq!(rung.load(Ordering::Relaxed), 1, "once, not once a pin");
        assert!(second.pin(1 << 20).is_some());
        drop((mine, first, second));
        let state = pins.state();
        assert_eq!((state.book.held().0, state.book.client_count()), (0, 0));
    }

    #[test]
    fn a_client_without_a_device_leaves_its_floor_to_others() {
        let pins = PinBudget::new(floor_bytes(1 << 20), u64::MAX);
        let first = pins.admit(1 << 20, |_| ()).expect("room");
        assert!(pins.admit(1 << 20, |_| ()).is_err(), "room for one");
        first.serve_rails(0).expect("less always fits");
        let second = pins.admit(1 << 20, |_| ()).expect("room again");
        assert!(first.serve_rails(1).is_err(), "there is none left to come back to");
        drop(second);
        first.serve_rails(1).expect("there is again");
    }

    #[test]
    fn a_client_that_hoards_pins_while_others_wait_must_end() {
        let pins = PinBudget::new(8 << 20, u64::MAX);
        let told = Arc::new(AtomicU32::new(0));
        let count = told.clone();
        let ring = move |ring| {
            count.fetch_add(u32::from(ring == PinEvent::Hoarding), Ordering::Relaxed);
        };
        let hog = pins.admit(1 << 20, ring).expect("room");
        let _held: Vec<Pin> = std::iter::from_fn(|| hog.pin(1 << 18)).collect();
        let other = pins.admit(1 << 20, |_| ()).expect("room");
        other.evict(Instant::now());
        assert_eq!(told.load(Ordering::Relaxed), 0, "not at once");
        other.evict(Instant::now() + HOARD_MAX + Duration::from_secs(1));
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_client_that_uses_its_slots_is_no_hoarder_and_none_evicts_itself() {
        let pins = PinBudget::new(8 << 20, u64::MAX);
        let ends = Arc::new(AtomicU32::new(0));
        let count = ends.clone();
        let ring = move |ring| {
            count.fetch_add(u32::from(ring == PinEvent::Hoarding), Ordering::Relaxed);
        };
        // It has all slots it may have, wants more, and fills them again and again.
        let uploader = pins.admit(1 << 20, ring).expect("room");
        let _slots: Vec<Pin> = std::iter::from_fn(|| uploader.pin(1 << 20)).collect();
        let other = pins.admit(1 << 20, |_| ()).expect("room");
        let long_ago = Instant::now();
        let at = |seconds| long_ago + Duration::from_secs(seconds);
        for second in (0..120).step_by(10) {
            uploader.used(at(second));
            uploader.evict(at(second + 9));
            other.evict(at(second + 9));
        }
        uploader.evict(at(600));
        assert_eq!(ends.load(Ordering::Relaxed), 0);
        other.evict(at(600));
        assert_eq!(ends.load(Ordering::Relaxed), 1, "it has done nothing for too long");
    }

    #[test]
    fn a_refused_client_is_told_which_limit_to_raise() {
        let pins = PinBudget::new(floor_bytes(0), u64::MAX);
        let _first = pins.admit(0, |_| ()).expect("room");
        let error = pins.admit(0, |_| ()).err().expect("no room for two");
        assert!(error.to_string().contains("its budget is 1 MiB"), "{error}");
        assert!(error.hint().expect("a hint").contains("pin_budget_mb"));
    }
}
