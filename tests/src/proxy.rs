//! A proxy on loopback between client and server that does to connections what
//! networks do: flips bits, cuts, falls silent, refuses. Owns its threads and
//! sockets and ends with its handle. It tells data connections from control by
//! the magic they begin with, and changes nothing it was not told to.

use crate::process::Home;
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, lchown};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use verbatim_control::LocalDoor;

/// What a data connection begins with, plain or inside TLS.
const DATA_MAGICS: [&[u8; 8]; 2] = [b"VBTMJOIN", b"VBTMSEAL"];

/// What was passed on, by the number of the connection and whether it went up.
type Tapes = BTreeMap<(u64, bool), Vec<u8>>;

/// Bytes that are kept of one direction of one connection.
const TAPE_BYTES_MAX: usize = 16 << 20;

/// Connections one proxy takes, alive or not.
const CONNECTIONS_MAX: u64 = 512;

/// How often a waiting thread looks whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Which connections a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The control connection.
    Control,
    /// Those that carry file data.
    Data,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// What happens to a connection, counted in bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// One bit is flipped in the last of every so many bytes.
    FlipEvery(u64),
    /// Both directions end after so many bytes.
    CutAfter(u64),
    /// This direction falls silent after so many bytes, and stays open.
    StallAfter(u64),
    /// Both directions fall silent after so many bytes, and stay open.
    FreezeAfter(u64),
}

/// What happens to which connections.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Of which kind.
    pub kind: Kind,
    /// Which direction is counted, and harmed.
    pub direction: Direction,
    /// What happens.
    pub harm: Harm,
    /// To how many connections, from the first on.
    pub connections: u64,
}

impl Rule {
    /// Harms every connection of this kind.
    pub fn all(kind: Kind, direction: Direction, harm: Harm) -> Self {
        Self { kind, direction, harm, connections: u64::MAX }
    }

    /// Harms the first connection of this kind.
    pub fn first(kind: Kind, direction: Direction, harm: Harm) -> Self {
        Self { kind, direction, harm, connections: 1 }
    }
}

/// What a proxy did so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Data connections it took.
    pub data: u64,
    /// Control connections it took.
    pub control: u64,
    /// Bits it flipped.
    pub flips: u64,
    /// Connections it cut.
    pub cuts: u64,
    /// Directions it silenced.
    pub stalls: u64,
    /// Connections it refused.
    pub refused: u64,
    /// Bytes of data connections that it passed on, both ways.
    pub data_bytes: u64,
    /// The same of control connections.
    pub control_bytes: u64,
}

/// A running proxy.
pub struct Proxy {
    port: u16,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    upstream: u16,
    rules: Vec<Rule>,
    ending: AtomicBool,
    refusing: Option<u64>,
    data: AtomicU64,
    control: AtomicU64,
    flips: AtomicU64,
    cuts: AtomicU64,
    stalls: AtomicU64,
    refused: AtomicU64,
    data_bytes: AtomicU64,
    control_bytes: AtomicU64,
    pumps: Mutex<Vec<JoinHandle<()>>>,
    /// What was passed on over data connections, where that is kept.
    tapes: Option<Mutex<Tapes>>,
}

impl Proxy {
    /// Starts a proxy before the server on this port.
    pub fn start(upstream: u16, rules: &[Rule]) -> Self {
        Self::start_refusing(upstream, rules, None)
    }

    /// Starts a proxy that refuses data connections once it has taken this many.
    pub fn start_refusing(upstream: u16, rules: &[Rule], refusing: Option<u64>) -> Self {
        Self::begin(upstream, rules, refusing, false)
    }

    /// Starts a proxy that keeps what it passes on over data connections.
    pub fn taped(upstream: u16, rules: &[Rule]) -> Self {
        Self::begin(upstream, rules, None, true)
    }

    fn begin(upstream: u16, rules: &[Rule], refusing: Option<u64>, taped: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("has an address").port();
        listener.set_nonblocking(true).expect("does not block");
        let zero = || AtomicU64::new(0);
        let state = Arc::new(State {
            upstream,
            rules: rules.to_vec(),
            ending: AtomicBool::new(false),
            refusing,
            data: zero(),
            control: zero(),
            flips: zero(),
            cuts: zero(),
            stalls: zero(),
            refused: zero(),
            data_bytes: zero(),
            control_bytes: zero(),
            pumps: Mutex::default(),
            tapes: taped.then(Mutex::default),
        });
        let accepting = state.clone();
        let thread = Some(spawn(move || accepting.accept(&listener)));
        Self { port, state, thread }
    }

    /// Where clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The flags of a client of this user that connects here: the local door is for the server's own
    /// port and user, so what it says is handed over.
    pub fn known(&self, home: &Home) -> [String; 4] {
        let place = tempfile::tempdir_in(home.path()).expect("a folder").keep();
        let door = format!("local/{}.toml", self.state.upstream);
        fs::create_dir(place.join("local")).expect("a folder");
        fs::copy(home.state().join(&door), place.join(&door)).expect("the server left a door");
        let held = fs::File::open(place.join(&door)).expect("opens");
        held.lock().expect("as a server that lives does");
        let found = LocalDoor::find(&place, self.state.upstream).expect("reads the door");
        let (fingerprint, key) = found.expect("somebody holds it");
        let token = place.join("token");
        key.save_new(&token).expect("saves");
        let user = fs::metadata(home.path()).expect("there").uid();
        for path in [&place, &token] {
            lchown(path, Some(user), None).expect("it is the user's");
        }
        let token = token.to_str().expect("temporary folders have plain names").to_owned();
        ["--fingerprint".into(), fingerprint.to_string(), "--token-file".into(), token]
    }

    /// What it passed on over data connections, one tape for each direction of each.
    pub fn tapes(&self) -> Vec<Vec<u8>> {
        let tapes = self.state.tapes.as_ref().expect("it was started to keep them");
        tapes.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// What it did so far.
    pub fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let state = &self.state;
        Counts {
            data: of(&state.data),
            control: of(&state.control),
            flips: of(&state.flips),
            cuts: of(&state.cuts),
            stalls: of(&state.stalls),
            refused: of(&state.refused),
            data_bytes: of(&state.data_bytes),
            control_bytes: of(&state.control_bytes),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ending.store(true, Ordering::Relaxed);
        let pumps = || self.state.pumps.lock().unwrap_or_else(PoisonError::into_inner);
        let accepting = self.thread.take();
        let threads = accepting.into_iter().chain(std::mem::take(&mut *pumps()));
        // One that panicked has said so already.
        threads.for_each(|thread| drop(thread.join()));
        let late = std::mem::take(&mut *pumps());
        late.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl State {
    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while !self.is_ending() {
            match listener.accept() {
                Ok((client, _)) => {
                    let state = self.clone();
                    self.keep(spawn(move || state.connect(client)));
                }
                Err(_) => std::thread::sleep(LOOK_EVERY / 4),
            }
        }
    }

    fn keep_bytes(&self, tape: (u64, bool), bytes: &[u8]) {
        if let Some(tapes) = &self.tapes {
            let mut tapes = tapes.lock().unwrap_or_else(PoisonError::into_inner);
            let tape = tapes.entry(tape).or_default();
            let room = TAPE_BYTES_MAX - tape.len();
            tape.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    fn keep(&self, thread: JoinHandle<()>) {
        self.pumps.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Tells what kind of connection it is, and starts a pump for each direction.
    fn connect(self: Arc<Self>, mut client: TcpStream) {
        client.set_nonblocking(false).expect("blocks");
        client.set_read_timeout(Some(Duration::from_secs(5))).expect("has a timeout");
        let mut first = [0; DATA_MAGICS[0].len()];
        if client.read_exact(&mut first).is_err() {
            return;
        }
        let kind = if DATA_MAGICS.contains(&&first) { Kind::Data } else { Kind::Control };
        let taken = if kind == Kind::Data { &self.data } else { &self.control };
        if kind == Kind::Data
            && self.refusing.is_some_and(|max| taken.load(Ordering::Relaxed) >= max)
        {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let number = taken.fetch_add(1, Ordering::Relaxed);
        assert!(number < CONNECTIONS_MAX, "more than {CONNECTIONS_MAX} connections");
        let server = TcpStream::connect(("127.0.0.1", self.upstream)).expect("the server is there");
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("sends at once");
            stream.set_read_timeout(Some(LOOK_EVERY)).expect("has a timeout");
            stream.set_write_timeout(Some(LOOK_EVERY)).expect("has a timeout");
        }
        let silent = Arc::new(AtomicBool::new(false));
        for direction in [Direction::Up, Direction::Down] {
            let (from, to) = match direction {
                Direction::Up => (&client, &server),
                Direction::Down => (&server, &client),
            };
            let of_this = |rule: &&Rule| {
                (rule.kind, rule.direction) == (kind, direction) && number < rule.connections
            };
            let pump = Pump {
                state: self.clone(),
                from: from.try_clone().expect("clones"),
                to: to.try_clone().expect("clones"),
                harms: self.rules.iter().filter(of_this).map(|rule| rule.harm).collect(),
                silent: silent.clone(),
                kind,
                tape: (number, direction == Direction::Up),
                passed: 0,
            };
            let begin = if direction == Direction::Up { first.to_vec() } else { Vec::new() };
            self.keep(spawn(move || pump.run(begin)));
        }
    }
}

/// One direction of one connection.
struct Pump {
    state: Arc<State>,
    from: TcpStream,
    to: TcpStream,
    harms: Vec<Harm>,
    silent: Arc<AtomicBool>,
    kind: Kind,
    tape: (u64, bool),
    passed: u64,
}

/// What is left of a connection after a harm.
#[derive(PartialEq, Eq)]
enum Then {
    GoOn,
    End,
}

impl Pump {
    fn run(mut self, begin: Vec<u8>) {
        let mut buffer = vec![0; 64 << 10];
        let mut got = begin.len();
        buffer[..got].copy_from_slice(&begin);
        loop {
            if self.pass(&mut buffer[..got]) == Then::End {
                break;
            }
            got = match self.from.read(&mut buffer) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) if is_wait(&error) => 0,
                Err(_) => break,
            };
            if self.state.is_ending() {
                break;
            }
        }
        for stream in [&self.from, &self.to] {
            // One that is gone is as shut as it can be.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Harms what must be harmed, and sends it on.
    fn pass(&mut self, bytes: &mut [u8]) -> Then {
        let (begin, mut end) = (self.passed, bytes.len());
        let mut cut = false;
        for harm in &self.harms {
            match *harm {
                Harm::FlipEvery(every) => {
                    let next = every - begin % every - 1;
                    for at in (next as usize..end).step_by(every as usize) {
                        bytes[at] ^= 1 << (at % 8);
                        self.state.flips.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Harm::CutAfter(max) if begin + end as u64 >= max => {
                    end = (max - begin) as usize;
                    cut = true;
                    self.state.cuts.fetch_add(1, Ordering::Relaxed);
                }
                Harm::StallAfter(max) if begin + end as u64 >= max => {
                    return self.stall(&mut bytes[..(max - begin) as usize], false);
                }
                Harm::FreezeAfter(max) if begin + end as u64 >= max => {
                    return self.stall(&mut bytes[..(max - begin) as usize], true);
                }
                _ => {}
            }
        }
        let sent = self.send(&bytes[..end]);
        if cut { Then::End } else { sent }
    }

    /// Passes nothing any more, until the proxy ends.
    fn stall(&mut self, last: &mut [u8], both: bool) -> Then {
        let sent = self.send(last);
        self.silent.fetch_or(both, Ordering::Relaxed);
        self.state.stalls.fetch_add(1, Ordering::Relaxed);
        if sent == Then::GoOn {
            self.wait_for_end();
        }
        Then::End
    }

    fn wait_for_end(&self) {
        while !self.state.is_ending() {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> Then {
        while !bytes.is_empty() {
            if self.silent.load(Ordering::Relaxed) {
                self.wait_for_end();
            }
            if self.state.is_ending() {
                return Then::End;
            }
            match self.to.write(bytes) {
                Ok(sent) => {
                    self.passed += sent as u64;
                    let passed = match self.kind {
                        Kind::Data => &self.state.data_bytes,
                        Kind::Control => &self.state.control_bytes,
                    };
                    passed.fetch_add(sent as u64, Ordering::Relaxed);
                    if self.kind == Kind::Data {
                        self.state.keep_bytes(self.tape, &bytes[..sent]);
                    }
                    bytes = &bytes[sent..];
                }
                Err(error) if is_wait(&error) => {}
                Err(_) => return Then::End,
            }
        }
        Then::GoOn
    }
}

fn is_wait(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let thread = std::thread::Builder::new().name("proxy".into());
    thread.spawn(work).expect("starts a thread")
}
