//! The way up on modelled rails: the real machines of writing, over the links and the
//! clock of the way down. A worker of the client hashes a chunk and submits it; the
//! notification and what the client said of the chunk meet at the server, whose worker
//! hashes what is in the slot; verdict and next grant come back together. Files are
//! made, and renamed, in no time.

use super::clock::{Clock, Course};
use super::{Figures, Model};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use verbatim_fabric::sim::SimLink;
use verbatim_fabric::{
    Buffer, Completion, Domain, Link, Memory, Op, RemoteRange, SharedSlot, SoftDomain, Ticket,
};
use verbatim_proto::message::{
    FileId, FileInfo, LinkId, Region, Tag, Verdict, WriteReply, WriteRequest,
};
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::write::{
    Absorb, ClientEffect, ClientOptions, Post, Posted, ServerEffect, SlotId, WriteClient,
    WriteServer,
};
use verbatim_proto::{Digest, Survey, WirePath};

/// Something that happens at its time.
pub(super) enum Event {
    ToServer(WriteRequest),
    ToClient(WriteReply),
    Fence(LinkId),
    Fenced(LinkId),
    /// A worker of the client has hashed a chunk.
    Hashed(usize, Post),
    /// A worker of the server has.
    Absorbed(usize, Absorb),
    RailDies(u16),
}

/// One thread: what it was told, and whether it is at something.
struct Worker<W> {
    told: VecDeque<W>,
    busy: bool,
}

impl<W> Worker<W> {
    fn several(count: usize) -> Vec<Self> {
        (0..count).map(|_| Self { told: VecDeque::new(), busy: false }).collect()
    }

    /// Takes what it is to do next, unless it is at something.
    fn begin(&mut self) -> Option<W> {
        let next = if self.busy { None } else { self.told.pop_front() };
        self.busy |= next.is_some();
        next
    }
}

struct Wire {
    near: SimLink,
    far: SimLink,
    rail: u16,
    spare: Vec<Buffer>,
}

pub(super) struct Up {
    model: Model,
    clock: Clock<Event>,
    client: WriteClient,
    server: WriteServer,
    wires: BTreeMap<LinkId, Wire>,
    hashing: Vec<Worker<Post>>,
    absorbing: Vec<Worker<Absorb>>,
    region: Region,
    next_slot: u32,
    next_ticket: u64,
    rail_bytes: Vec<u64>,
}

impl Course for Up {
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
        let hash_ns = self.model.hash_ns();
        for number in 0..self.model.cores {
            if let Some(post) = self.hashing[number].begin() {
                let event = Event::Hashed(number, post);
                self.clock.later(hash_ns + self.model.submit_ns, event);
            }
            if let Some(absorb) = self.absorbing[number].begin() {
                self.clock.later(hash_ns, Event::Absorbed(number, absorb));
            }
        }
    }

    fn collect(&mut self) {
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for (id, wire) in &mut self.wires {
            // Links die where their rail does.
            let _ = wire.near.poll(&mut near);
            let _ = wire.far.poll(&mut far);
            for completion in near.drain(..) {
                if let Completion::Done { buffer, .. } = completion {
                    self.rail_bytes[usize::from(wire.rail)] += buffer.len() as u64;
                    wire.spare.push(buffer);
                }
            }
            for completion in far.drain(..) {
                if let Completion::Notified { tag } = completion {
                    self.server.notified(*id, Tag(tag));
                }
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToServer(request) => self.server.request(request),
            Event::ToClient(reply) => self.client.reply(reply, self.clock.now()),
            Event::Fence(link) => self.server.fence(link),
            Event::Fenced(link) => self.client.fenced(link),
            Event::Hashed(worker, post) => {
                self.hashing[worker].busy = false;
                self.submit(&post);
            }
            Event::Absorbed(worker, absorb) => {
                self.absorbing[worker].busy = false;
                let verdicts = vec![Verdict::Stored; absorb.pieces.len()];
                self.server.absorbed(absorb.tag, verdicts);
            }
            Event::RailDies(rail) => {
                self.clock.net.cut_rail(rail);
                let dead = self.wires.extract_if(.., |_, wire| wire.rail == rail);
                for (id, _) in dead.collect::<Vec<_>>() {
                    self.client.link_down(id, self.clock.now());
                    self.clock.later(self.model.control_ns, Event::Fence(id));
                }
            }
        }
    }
}

impl Up {
    pub fn run(model: &Model) -> Figures {
        let mut up = Self::new(*model);
        let size = model.file_bytes;
        let info = FileInfo { size, mode: 0o644, mtime_ns: 0, allocated: size, version: None };
        let survey = Survey { holes: Vec::new(), until: size };
        up.client.create(FileId(0), WirePath::root(), info, survey, Duration::ZERO);
        Course::run(&mut up);
        model.figures(up.clock.net.now_ns(), up.rail_bytes)
    }

    fn new(model: Model) -> Self {
        let clock = Clock::new(&model);
        let domain = SoftDomain::new();
        let slot = SharedSlot::new(model.chunk_bytes as usize).expect("memory for a slot");
        // What lands is not looked at, so all slots are one.
        let region = domain.register(Memory::Upload(slot)).expect("registers");
        let timeout = Duration::from_secs(60);
        let mut up = Self {
            model,
            clock,
            client: WriteClient::new(ClientOptions { chunk_bytes: model.chunk_bytes, timeout }),
            server: WriteServer::new(),
            wires: BTreeMap::new(),
            hashing: Worker::several(model.cores),
            absorbing: Worker::several(model.cores),
            region: Region { key: region.key, base: region.base },
            next_slot: 0,
            next_ticket: 0,
            rail_bytes: vec![0; usize::from(model.rails)],
        };
        for (id, rail) in model.links() {
            up.clock.net.set_rail(Some(rail));
            let (near, far) = up.clock.net.pair(SoftDomain::new(), domain.clone());
            up.wires.insert(id, Wire { near, far, rail, spare: Vec::new() });
            up.client.link_up(id);
            up.server.link_up(id);
        }
        if let Some((rail, at_ns)) = model.dies {
            up.clock.later(at_ns, Event::RailDies(rail));
        }
        up
    }

    fn submit(&mut self, post: &Post) {
        let (tag, now) = (post.grant.tag, self.clock.now());
        let Some(wire) = self.wires.get_mut(&post.grant.link) else {
            return self.client.posted(tag, Posted::LinkLost, now);
        };
        let bytes: u64 = post.pieces.iter().map(|(_, extent)| extent.len).sum();
        let mut from = wire.spare.pop().unwrap_or_else(|| {
            Buffer::new(self.model.chunk_bytes as usize).expect("memory for a chunk")
        });
        from.set_len(bytes as usize);
        let to = RemoteRange { key: post.grant.region.key, address: post.grant.region.base };
        self.next_ticket += 1;
        let write = Op::WriteNotify { from, to, tag: tag.0 };
        wire.near.submit(Ticket(self.next_ticket), write).expect("has room");
        let digests = |len: u64| vec![Digest([0; 32]); len.div_ceil(GRAIN_BYTES) as usize];
        let said = post.pieces.iter().map(|(_, extent)| digests(extent.len)).collect();
        self.client.posted(tag, Posted::Sent(said), now);
    }

    fn client_effect(&mut self, effect: ClientEffect) {
        match effect {
            ClientEffect::Send(request) => {
                self.clock.later(self.model.control_ns, Event::ToServer(request));
            }
            ClientEffect::Post(post) => {
                let worker = usize::from(post.grant.link.index) % self.hashing.len();
                self.hashing[worker].told.push_back(post);
            }
            ClientEffect::CheckSource { file, root } => {
                self.client.source_checked(file, root, Ok(None));
            }
            ClientEffect::Finished { .. } => {}
            other => panic!("a perfect network asks for {other:?}"),
        }
    }

    fn server_effect(&mut self, effect: ServerEffect) {
        match effect {
            ServerEffect::Send(reply) => {
                self.clock.later(self.model.control_ns, Event::ToClient(reply));
            }
            ServerEffect::Provision { link, slots } => {
                let slot = |number| (SlotId(number), self.region, self.model.chunk_bytes);
                let from = self.next_slot;
                self.next_slot += u32::from(slots);
                let slots = (from..self.next_slot).map(slot).collect();
                self.server.provisioned(link, slots);
            }
            ServerEffect::Create(files) => {
                self.server.created(files.iter().map(|it| (it.file, Ok(None))).collect());
            }
            ServerEffect::Absorb(absorb) => {
                let worker = usize::from(absorb.link.index) % self.absorbing.len();
                self.absorbing[worker].told.push_back(absorb);
            }
            ServerEffect::Commit(files) => {
                self.server.committed(files.iter().map(|(id, _)| (*id, Ok(()))).collect());
            }
            ServerEffect::Kill(link) => self.server.killed(link),
            ServerEffect::Fenced(link) => {
                self.clock.later(self.model.control_ns, Event::Fenced(link));
            }
            // The model passes every notification on.
            ServerEffect::Expect(_) | ServerEffect::Free(_) => {}
            other => panic!("a whole file asks for {other:?}"),
        }
    }
}
