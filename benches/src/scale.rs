//! The scheduler on rails that no test machine has, in virtual time: the real
//! machines of both sides, over simulated links that share the bandwidth of their
//! rail, with workers that hash as a modelled resource. Nothing here depends on how
//! fast this machine is: the same model gives the same numbers everywhere.
//!
//! What is modelled: a link belongs to one worker, as in the client; a worker does
//! one thing at a time, submits what it was told before it hashes what has come,
//! and hashes a chunk in one go. A control message takes its time each way; the
//! server prepares a few windows at a time. Bytes are moved, digests are not looked at.
//! This file has the model and the way down; the way up is in `up`.

mod clock;
mod up;

use clock::{Clock, Course};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use verbatim_fabric::sim::SimLink;
use verbatim_fabric::{
    Buffer, Completion, Domain, Link, Memory, Op, RemoteRange, SharedSlot, SoftDomain, Ticket,
};
use verbatim_proto::message::{FileId, FileInfo, LinkId, ReadReply, ReadRequest, Region, WindowId};
use verbatim_proto::read::{
    ClientEffect, ClientOptions, Fetch, Outcome, PieceOutcome, Prepare, Prepared, ReadClient,
    ReadServer, ServerEffect,
};
use verbatim_proto::units::{GRAIN_BYTES, WINDOW_BYTES};
use verbatim_proto::{Digest, Survey, WirePath};

/// What is modelled.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Rails between the two nodes.
    pub rails: u16,
    /// What one rail carries in a second.
    pub rail_bytes_per_s: u64,
    /// How long the first byte takes.
    pub latency_ns: u64,
    /// Queue pairs on each rail.
    pub links_per_rail: u16,
    /// Reads in flight on each queue pair.
    pub reads_per_link: u16,
    /// The unit of transfer.
    pub chunk_bytes: u32,
    /// Cores that hash, each with a worker.
    pub cores: usize,
    /// What one core hashes in a second.
    pub hash_bytes_per_s: u64,
    /// How long a worker takes to submit a read.
    pub submit_ns: u64,
    /// How long a control message takes.
    pub control_ns: u64,
    /// How long the server takes to make a window whose digests it knows.
    pub prepare_ns: u64,
    /// Windows it makes at a time.
    pub prepares_at_a_time: usize,
    /// How much is read.
    pub file_bytes: u64,
    /// A rail that dies, and when.
    pub dies: Option<(u16, u64)>,
}

impl Default for Model {
    /// 8 rails of 400 Gb/s, and cores that hash as fast as they carry.
    fn default() -> Self {
        Self {
            rails: 8,
            rail_bytes_per_s: 50_000_000_000,
            latency_ns: 5_000,
            links_per_rail: 8,
            reads_per_link: 3,
            chunk_bytes: 1 << 20,
            cores: 64,
            hash_bytes_per_s: 8_000_000_000,
            submit_ns: 1_000,
            control_ns: 30_000,
            prepare_ns: 150_000,
            prepares_at_a_time: 16,
            file_bytes: 4 << 30,
            dies: None,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Figures {
    /// How long it took.
    pub ns: u64,
    /// Bytes in a second.
    pub bytes_per_s: f64,
    /// What the model allows at most, of rails, cores and the server.
    pub possible_bytes_per_s: f64,
    /// Bytes that came over each rail.
    pub rail_bytes: Vec<u64>,
}

impl Figures {
    /// How much of what is possible was kept.
    pub fn kept(&self) -> f64 {
        self.bytes_per_s / self.possible_bytes_per_s
    }
}

impl Model {
    /// What is possible: the least of what rails carry, cores hash and the server prepares.
    pub fn possible_bytes_per_s(&self) -> f64 {
        let rails = f64::from(self.rails) * self.rail_bytes_per_s as f64;
        let cores = self.cores.min(usize::from(self.rails * self.links_per_rail));
        let chunk = f64::from(self.chunk_bytes);
        let chunk_ns = chunk * 1e9 / self.hash_bytes_per_s as f64 + self.submit_ns as f64;
        let hashing = cores as f64 * chunk * 1e9 / chunk_ns;
        let windows = self.prepares_at_a_time as f64 * 1e9 / self.prepare_ns as f64;
        rails.min(hashing).min(windows * WINDOW_BYTES as f64)
    }

    /// What is possible on the way up: the same, but for the server, which prepares nothing and
    /// hashes as the client does.
    pub fn possible_up_bytes_per_s(&self) -> f64 {
        Self { prepare_ns: 1, ..*self }.possible_bytes_per_s()
    }

    /// Writes the file instead.
    ///
    /// # Panics
    /// When the machines make no progress: then they are broken.
    pub fn run_up(&self) -> Figures {
        let figures = up::Up::run(self);
        Figures { possible_bytes_per_s: self.possible_up_bytes_per_s(), ..figures }
    }

    fn figures(&self, ns: u64, rail_bytes: Vec<u64>) -> Figures {
        Figures {
            ns,
            bytes_per_s: self.file_bytes as f64 * 1e9 / ns as f64,
            possible_bytes_per_s: self.possible_bytes_per_s(),
            rail_bytes,
        }
    }

    /// The links, and the rail of each.
    fn links(&self) -> impl Iterator<Item = (LinkId, u16)> + use<> {
        let rails = self.rails;
        let links = 0..rails * self.links_per_rail;
        links.map(move |index| (LinkId { index, epoch: 0 }, index % rails))
    }

    /// How long a core takes to hash a chunk.
    fn hash_ns(&self) -> u64 {
        u64::from(self.chunk_bytes) * 1_000_000_000 / self.hash_bytes_per_s
    }

    /// Runs it.
    ///
    /// # Panics
    /// When the machines make no progress: then they are broken.
    pub fn run(&self) -> Figures {
        let mut run = Run::new(*self);
        run.client.open(FileId(0), WirePath::root(), None, Duration::ZERO);
        run.run();
        self.figures(run.clock.net.now_ns(), run.rail_bytes)
    }
}

/// Something that happens at its time.
enum Event {
    ToServer(ReadRequest),
    ToClient(ReadReply),
    Prepared(Prepare),
    /// A worker has done what it was at.
    Free(usize, Option<Fetched>),
    RailDies(u16),
}

/// A chunk that was read and hashed.
struct Fetched {
    link: LinkId,
    slot: u16,
    pieces: usize,
}

/// One thread: what it was told, what has come, and whether it is at something.
#[derive(Default)]
struct Worker {
    told: VecDeque<Fetch>,
    came: VecDeque<Fetched>,
    busy: bool,
}

struct Wire {
    link: SimLink,
    _far: SimLink,
    rail: u16,
    spare: Vec<Buffer>,
    flights: BTreeMap<u64, Fetch>,
}

struct Run {
    model: Model,
    clock: Clock<Event>,
    client: ReadClient,
    server: ReadServer,
    wires: BTreeMap<LinkId, Wire>,
    workers: Vec<Worker>,
    region: Region,
    preparing: usize,
    to_prepare: VecDeque<Prepare>,
    next_ticket: u64,
    rail_bytes: Vec<u64>,
}

impl Course for Run {
    type Event = Event;

    fn clock(&mut self) -> &mut Clock<Event> {
        &mut self.clock
    }

    fn is_over(&self) -> bool {
        self.client.is_idle()
    }

    fn talk(&mut self) -> bool {
        self.client.advance(self.clock.now());
        let mut any = false;
        while let Some(effect) = self.client.next_effect() {
            self.client_effect(effect);
            any = true;
        }
        while let Some(effect) = self.server.next_effect() {
            self.server_effect(effect);
            any = true;
        }
        any
    }

    fn work(&mut self) {
        while self.preparing < self.model.prepares_at_a_time
            && let Some(prepare) = self.to_prepare.pop_front()
        {
            self.preparing += 1;
            self.clock.later(self.model.prepare_ns, Event::Prepared(prepare));
        }
        (0..self.workers.len()).for_each(|worker| self.work_at(worker));
    }

    fn collect(&mut self) {
        let mut completions = Vec::new();
        for (id, wire) in &mut self.wires {
            // Dead links are looked for where they die.
            let _ = wire.link.poll(&mut completions);
            for completion in completions.drain(..) {
                let Completion::Done { ticket, buffer, result } = completion else { continue };
                let fetch = wire.flights.remove(&ticket.0).expect("it was submitted");
                wire.spare.push(buffer);
                if result.is_ok() {
                    self.rail_bytes[usize::from(wire.rail)] += u64::from(fetch.chunk.bytes);
                    let pieces = fetch.chunk.pieces.len();
                    let worker = usize::from(id.index) % self.workers.len();
                    self.workers[worker].came.push_back(Fetched {
                        link: *id,
                        slot: fetch.slot,
                        pieces,
                    });
                }
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToServer(request) => self.server.request(request),
            Event::ToClient(reply) => self.client.reply(reply, self.clock.now()),
            Event::Prepared(prepare) => {
                self.preparing -= 1;
                let extent = prepare.pieces[0].1;
                let digests = vec![Digest([0; 32]); extent.len.div_ceil(GRAIN_BYTES) as usize];
                let region = Some(self.region);
                let answer = Prepared { region, rails: Vec::new(), pieces: vec![Ok(digests)] };
                self.server.prepared(prepare.window, answer);
            }
            Event::Free(worker, fetched) => {
                self.workers[worker].busy = false;
                if let Some(Fetched { link, slot, pieces }) = fetched {
                    let outcome = Outcome::Landed(vec![PieceOutcome::Verified; pieces]);
                    self.client.fetched(link, slot, outcome, self.clock.now());
                }
            }
            Event::RailDies(rail) => self.clock.net.cut_rail(rail),
        }
        self.collect_dead();
    }
}

impl Run {
    fn new(model: Model) -> Self {
        let domain = SoftDomain::new();
        let memory = SharedSlot::new(WINDOW_BYTES as usize).expect("memory for one window");
        let region = domain.register(Memory::Staged(memory)).expect("registers");
        let mut run = Self {
            model,
            client: ReadClient::new(ClientOptions {
                chunk_bytes: model.chunk_bytes,
                slots_per_link: model.reads_per_link,
                timeout: Duration::from_secs(60),
                describe: false,
            }),
            server: ReadServer::new(),
            wires: BTreeMap::new(),
            workers: (0..model.cores).map(|_| Worker::default()).collect(),
            region: Region { key: region.key, base: region.base },
            preparing: 0,
            to_prepare: VecDeque::new(),
            next_ticket: 0,
            rail_bytes: vec![0; usize::from(model.rails)],
            clock: Clock::new(&model),
        };
        for (id, rail) in model.links() {
            run.clock.net.set_rail(Some(rail));
            let (link, far) = run.clock.net.pair(SoftDomain::new(), domain.clone());
            let wire = Wire { link, _far: far, rail, spare: Vec::new(), flights: BTreeMap::new() };
            run.wires.insert(id, wire);
            run.client.link_up(id);
        }
        if let Some((rail, at_ns)) = model.dies {
            run.clock.later(at_ns, Event::RailDies(rail));
        }
        run
    }

    fn collect_dead(&mut self) {
        let mut completions = Vec::new();
        let mut dead = Vec::new();
        for (id, wire) in &mut self.wires {
            if self.model.dies.is_some_and(|(rail, _)| rail == wire.rail)
                && wire.link.poll(&mut completions).is_err()
            {
                dead.push(*id);
            }
        }
        for id in dead {
            self.wires.remove(&id);
            self.client.link_down(id, self.clock.now());
        }
    }

    fn work_at(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        if worker.busy {
            return;
        }
        if let Some(fetch) = worker.told.pop_front() {
            worker.busy = true;
            self.submit(fetch);
            self.clock.later(self.model.submit_ns, Event::Free(number, None));
        } else if let Some(fetched) = worker.came.pop_front() {
            worker.busy = true;
            self.clock.later(self.model.hash_ns(), Event::Free(number, Some(fetched)));
        }
    }

    fn submit(&mut self, fetch: Fetch) {
        let Some(wire) = self.wires.get_mut(&fetch.link) else {
            return self.client.fetched(
                fetch.link,
                fetch.slot,
                Outcome::LinkLost,
                self.clock.now(),
            );
        };
        let bytes = fetch.chunk.bytes as usize;
        let spare = wire.spare.pop();
        let mut into = spare.unwrap_or_else(|| {
            Buffer::new(self.model.chunk_bytes as usize).expect("memory for a chunk")
        });
        into.set_len(bytes);
        let from = RemoteRange { key: fetch.chunk.key, address: fetch.chunk.address };
        self.next_ticket += 1;
        wire.link.submit(Ticket(self.next_ticket), Op::Read { from, into }).expect("has room");
        wire.flights.insert(self.next_ticket, fetch);
    }

    fn client_effect(&mut self, effect: ClientEffect) {
        match effect {
            ClientEffect::Send(request) => {
                self.clock.later(self.model.control_ns, Event::ToServer(request));
            }
            ClientEffect::Fetch(fetch) => {
                let worker = usize::from(fetch.link.index) % self.workers.len();
                self.workers[worker].told.push_back(fetch);
            }
            ClientEffect::Opened { .. } | ClientEffect::Finished { .. } => {}
            other => panic!("a perfect network asks for {other:?}"),
        }
    }

    fn server_effect(&mut self, effect: ServerEffect) {
        match effect {
            ServerEffect::Send(reply) => {
                self.clock.later(self.model.control_ns, Event::ToClient(reply))
            }
            ServerEffect::Prepare(prepare) => self.to_prepare.push_back(prepare),
            ServerEffect::Retire(WindowId(_)) => {}
            ServerEffect::Open(files) => {
                let size = self.model.file_bytes;
                let info =
                    FileInfo { size, mode: 0o644, mtime_ns: 0, allocated: size, version: None };
                let survey = || Survey { holes: Vec::new(), until: size };
                let answers = files.iter().map(|file| (file.file, Ok((info, survey()))));
                self.server.opened(answers.collect());
            }
            ServerEffect::Close(files) => {
                self.server.closed(files.into_iter().map(|(id, _)| (id, Ok(None))).collect());
            }
            other => panic!("a whole file asks for {other:?}"),
        }
    }
}
