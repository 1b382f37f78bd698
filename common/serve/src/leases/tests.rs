//! Reads of a folder by a client without a link: tests look up leased memory in its domain, as a
//! link without a device does. They need neither a server nor a connection.

use super::*;
use crate::event_port::EventPort;
use crate::host::{FileRecord, HostFile, LeaseRecord, SourceFolder};
use crate::jobs::{JobLimits, Panicked};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Weak};
use tempfile::TempDir;
use tokio::sync::{Semaphore, mpsc};
use verbatim_control::Loan;
use verbatim_fabric::Memory;
use verbatim_fabric::domain::Access;
use verbatim_files::{Folder, Identity, Source};
use verbatim_proto::message::Lease;
use verbatim_proto::{Code, Digest, WirePath};

/// The deadline of anything that should happen at once.
const SOON: Duration = Duration::from_secs(20);

enum Event {
    Read(ReadEvent),
    Panicked,
}

impl From<ReadEvent> for Event {
    fn from(event: ReadEvent) -> Self {
        Self::Read(event)
    }
}

impl From<Panicked> for Event {
    fn from(_: Panicked) -> Self {
        Self::Panicked
    }
}

struct OpenFolder(Folder);

impl SourceFolder for OpenFolder {
    fn open(&self, path: &WirePath) -> Result<Source, Fault> {
        Source::open(&self.0, path, path)
    }

    fn tells_privileged_xattrs(&self) -> bool {
        false
    }
}

/// Serves one folder.
struct Host {
    folder: Arc<OpenFolder>,
    /// Whether the client has no memory left.
    is_full: AtomicBool,
    loans: AtomicUsize,
    bytes_taken: Mutex<u64>,
    /// The file that was opened last.
    opened: Mutex<Weak<File>>,
}

impl ReadHost for Host {
    fn open(&self, path: &WirePath) -> Result<HostFile, Fault> {
        let source = self.folder.open(path)?;
        *self.opened.lock().unwrap() = Arc::downgrade(source.file());
        Ok(HostFile { source, folder: self.folder.clone(), path: path.clone() })
    }

    fn digests(
        &self,
        source: &Source,
        extent: Extent,
        _cell: u64,
        _fresh: bool,
    ) -> Result<Vec<Digest>, Fault> {
        source.hash(extent)
    }

    fn forget(&self, _identity: &Identity) {}

    fn holes(&self, source: &Source, from: u64) -> Survey {
        source.find_holes(from)
    }

    fn lend(&self, _bytes: usize) -> Option<Loan> {
        if self.is_full.load(Ordering::Relaxed) {
            return None;
        }
        self.loans.fetch_add(1, Ordering::Relaxed);
        Some(Box::new(()))
    }

    fn no_memory(&self, what: &str) -> Fault {
        Fault::new(Code::Limit, format!("no memory for {what}"))
    }
}

impl ReadObserver for Host {
    fn began(&self, _file: FileId, _path: &WirePath, _bytes: u64) {}

    fn over(&self, _file: FileId) {}

    fn log(&self, _of: &FileRecord, _answer: Result<(), &Fault>) {}

    fn window_returned(&self, window: &LeaseRecord) {
        *self.bytes_taken.lock().unwrap() += window.bytes;
    }

    fn mismatched(&self, _pieces: usize) {}

    fn took(&self, _step: Step, _time: Duration) {}

    fn ended(&self, _operation: Operation, _faults: &mut dyn Iterator<Item = Option<&Fault>>) {}
}

/// Allows all windows, or none.
#[derive(Default)]
struct Gate {
    is_shut: bool,
}

impl Pace for Gate {
    fn window_bytes(&self) -> u64 {
        u64::MAX
    }

    fn may_lease(&mut self, _bytes: u64) -> bool {
        !self.is_shut
    }

    fn refund(&self, _bytes: u64) {}
}

/// Records, when it is dropped, whether a file was closed by then.
struct ClosedBefore(Arc<Host>, Arc<Mutex<Option<bool>>>);

impl Drop for ClosedBefore {
    fn drop(&mut self) {
        let is_closed = self.0.opened.lock().unwrap().strong_count() == 0;
        *self.1.lock().unwrap() = Some(is_closed);
    }
}

struct Scene {
    service: ReadService<Host>,
    host: Arc<Host>,
    domain: Arc<SessionDomain>,
    pace: Gate,
    events: mpsc::Receiver<Event>,
    limits: Arc<JobLimits>,
    /// Whether the file opened last was closed before its guard was dropped.
    closed_first: Arc<Mutex<Option<bool>>>,
    lacks_memory: bool,
    dir: TempDir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = Arc::new(Host {
            folder: Arc::new(OpenFolder(Folder::open(dir.path()).unwrap())),
            is_full: AtomicBool::new(false),
            loans: AtomicUsize::new(0),
            bytes_taken: Mutex::new(0),
            opened: Mutex::default(),
        });
        let (queue, events) = mpsc::channel(100);
        let limits = JobLimits::new(EventPort::of(&queue), Arc::default());
        let rooms = [Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1))];
        let jobs = Jobs::new(limits.clone(), rooms, EventPort::of(&queue), |_, _| ());
        let domain = Arc::new(SessionDomain::default());
        let service = ReadService::new((1, host.clone()), domain.clone(), jobs, 1);
        let (pace, closed_first) = (Gate::default(), Arc::default());
        let lacks_memory = false;
        Self { service, host, domain, pace, events, limits, closed_first, lacks_memory, dir }
    }

    /// Opens a new file of this many bytes.
    fn open(&mut self, file: u32, bytes: usize) {
        let name = file.to_string();
        std::fs::write(self.dir.path().join(&name), vec![7; bytes]).unwrap();
        let path = WirePath::parse(name.as_bytes()).unwrap();
        let files = vec![OpenFile { file: FileId(file), path, have: Vec::new() }];
        self.service.request(ReadRequest::Open { files });
    }

    /// Carries out the effects; returns the messages to the client.
    fn run(&mut self) -> Vec<ReadReply> {
        let mut sent = Vec::new();
        while let Some(out) = self.service.next(&mut self.pace) {
            match out.expect("the client keeps to the protocol") {
                ReadOut::Send(reply) => sent.push(reply),
                ReadOut::Open(files) => {
                    let guard = || ClosedBefore(self.host.clone(), self.closed_first.clone());
                    let boxed = |file| (file, Box::new(guard()) as Guard);
                    self.service.open(files.into_iter().map(boxed).collect());
                }
                ReadOut::LacksMemory => self.lacks_memory = true,
                ReadOut::Done => {}
            }
        }
        sent
    }

    /// Runs until no job is under way; returns the messages to the client.
    async fn settle(&mut self) -> Vec<ReadReply> {
        let mut sent = self.run();
        while self.limits.under_way() > 0 {
            let event = tokio::time::timeout(SOON, self.events.recv()).await;
            match event.expect("a job answers soon").expect("the queue is open") {
                Event::Read(event) => self.service.event(event),
                Event::Panicked => panic!("a job panicked"),
            }
            self.limits.done();
            sent.extend(self.run());
        }
        sent
    }

    async fn lease(&mut self) -> Option<Lease> {
        let lease = |reply| match reply {
            ReadReply::Lease(lease) => Some(lease),
            _ => None,
        };
        self.settle().await.into_iter().find_map(lease)
    }

    fn is_registered(&self, lease: &Lease) -> bool {
        let (key, base) = (lease.region.key, lease.region.base);
        let found = self.domain.soft().find(key, base, 1, Access::Read);
        matches!(found, Ok((Memory::Staged(_), _)))
    }
}

#[tokio::test]
async fn a_file_is_leased_taken_back_and_closed_before_its_guard_is_dropped() {
    let mut scene = Scene::new();
    scene.open(1, 1000);
    let lease = scene.lease().await.expect("a window");
    assert_eq!(lease.pieces[0].digests, [Digest::of(&[7; 1000])]);
    assert!(scene.is_registered(&lease) && scene.service.has_windows());
    scene.service.request(ReadRequest::Release { windows: vec![lease.window] });
    assert_eq!(scene.run(), []);
    assert!(!scene.is_registered(&lease), "the client could read what is packed next");
    assert_eq!(*scene.host.bytes_taken.lock().unwrap(), 1000);
    assert_eq!(*scene.closed_first.lock().unwrap(), None, "it is open");
    scene.service.request(ReadRequest::Close { files: vec![FileId(1)], describe: false });
    let files = vec![(FileId(1), Ok(None))];
    assert_eq!(scene.settle().await, [ReadReply::Closed { files }]);
    assert_eq!(*scene.closed_first.lock().unwrap(), Some(true));
    assert!(scene.service.is_idle());
}

#[tokio::test]
async fn a_slot_for_small_files_is_used_again_once_its_window_was_taken_back() {
    let mut scene = Scene::new();
    for (file, loans) in [(1, 1), (2, 2), (3, 2)] {
        scene.open(file, 1000);
        let lease = scene.lease().await.expect("a window");
        assert_eq!(scene.host.loans.load(Ordering::Relaxed), loans, "window of file {file}");
        if file == 2 {
            scene.service.request(ReadRequest::Release { windows: vec![lease.window] });
            scene.run();
            assert!(!scene.is_registered(&lease), "the next files would show under its key");
        }
    }
}

#[tokio::test]
async fn a_window_for_which_there_is_no_memory_waits_until_there_is() {
    let mut scene = Scene::new();
    scene.host.is_full.store(true, Ordering::Relaxed);
    scene.open(1, 1000);
    assert_eq!(scene.lease().await, None);
    assert!(scene.lacks_memory && scene.service.waits() && !scene.service.has_windows());
    scene.host.is_full.store(false, Ordering::Relaxed);
    scene.service.lease_more(&scene.pace);
    assert!(scene.lease().await.is_some());
    assert!(!scene.service.waits());
}

#[tokio::test]
async fn a_window_of_a_rate_limited_client_is_made_when_its_debt_is_paid() {
    let mut scene = Scene::new();
    scene.pace.is_shut = true;
    scene.open(1, 1000);
    assert_eq!(scene.lease().await, None);
    assert!(!scene.service.waits(), "there is memory for it");
    scene.pace.is_shut = false;
    scene.service.lease_deferred(&scene.pace);
    assert!(scene.lease().await.is_some());
}

#[tokio::test]
async fn a_service_that_ends_closes_its_files_first_and_keeps_none() {
    let mut scene = Scene::new();
    scene.open(1, 1000);
    assert!(scene.lease().await.is_some());
    scene.service.end();
    assert_eq!(*scene.closed_first.lock().unwrap(), Some(true));
    assert!(!scene.service.has_windows() && scene.service.is_idle());
}
