//! Owns one client's session: its protocol machines, its domain and its links. One task takes
//! messages of the client and events of jobs and workers, feeds them to the machines, and carries
//! out their effects. Never blocks: jobs on the blocking pool do file work, workers move data.
//! `net` and `server` stand above it; `exports`, `limits`, `observe`, `worker` and `verbatim_serve`
//! below.
//!
//! `ReadService`, `writing`, `namespace` and `mirror` do the work; this file only routes. Dropping
//! a session ends its links and frees its regions.

mod backpressure;
mod client;
mod disclosed_owners;
mod end;
mod event;
mod fd_queue;
mod folder_watches;
mod housekeeping;
mod links;
mod mirror;
mod namespace;
mod pacing;
mod read_host;
mod services;
mod session_host;
mod sync_lock;
mod writing;

use crate::exports::client_view::ClientView;
use crate::limits::fair_pool::Permit;
use crate::limits::memory_budget::SessionBudget;
use crate::observe::session_stats::SessionStats;
use crate::worker::LinkEvent;
use backpressure::JOBS_MAX;
use client::{CancelFlag, Client};
use disclosed_owners::DisclosedOwners;
pub(crate) use end::End;
use event::Event;
use fd_queue::{FdQueue, ReadyFiles, TimedOut};
use folder_watches::FolderWatches;
use links::port_admission::{self, HeldMessage};
use links::{LinkNews, Links, PairEvent};
use mirror::Mirrors;
use namespace::{Namespace, NamespaceEvent};
use pacing::Pacing;
use read_host::{ReadableFiles, serve_reads};
pub(crate) use services::Services;
pub(crate) use session_host::SessionHost;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use verbatim_control::{ControlError, Outbox, Policy, Receiver, Who};
use verbatim_files::Over;
use verbatim_proto::message::{CreateFile, LinkId, OpenFile, ServerMessage};
use verbatim_proto::units::WORKING_SECONDS;
use verbatim_proto::write::ServerEffect;
use verbatim_proto::{ClientMessage, Code, Dropped};
use verbatim_serve::jobs::Semaphores;
use verbatim_serve::{EVENTS_MAX, EventPort, Guard, JobLimits, Jobs, ReadOut, ReadService};
use writing::{WriteEvent, WriteOut, Writing};

/// A session and everything it owns.
pub(crate) struct Session {
    client: Client,
    limits: Arc<JobLimits>,
    /// Bytes of requests that were read ahead of busy threads, and the memory that counts them.
    ahead_bytes: usize,
    ahead: Vec<Permit>,
    links: Links,
    /// A message that waits until links are dead.
    held_message: Option<HeldMessage>,
    pacing: Pacing,
    fd_queue: FdQueue,
    reading: ReadService<ReadableFiles>,
    writing: Writing,
    namespace: Namespace,
    watches: FolderWatches,
    mirrors: Mirrors,
    disclosed_owners: DisclosedOwners,
}

/// Events that are handled before the session looks at its other sources.
const EVENTS_AT_ONCE: usize = 16;

impl Session {
    /// A session for a client that was accepted.
    pub fn new(
        services: Arc<Services>,
        outbox: Outbox<ServerMessage>,
        chunk_bytes: u32,
        local: Option<IpAddr>,
        view: Arc<SessionStats>,
        (who, reach): (Who, ClientView),
    ) -> (Self, mpsc::Receiver<Event>) {
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let pacing = Pacing::of(&services, &view);
        let share = services.shares.of(&view.who, view.peer.ip());
        let memory = share.memory.child();
        view.set_memory_share(memory.clone());
        let outbox = outbox.lent_by(Arc::new(SessionBudget(memory.clone())));
        let limits = JobLimits::new(EventPort::of(&events), outbox.unread().clone());
        let semaphores = [&share.threads, &share.name.threads].map(Arc::clone);
        let of = (&limits, &semaphores, &events, &view);
        let namespace = Namespace::new(jobs_of(of, NamespaceEvent::count));
        let (walks, trees) = (jobs_of(of, uncounted), jobs_of(of, uncounted));
        let mirrors = Mirrors::new(jobs_of(of, uncounted), walks, trees);
        let links = Links::new(
            EventPort::of(&events),
            EventPort::of(&events),
            jobs_of(of, PairEvent::count),
            EventPort::of(&events),
        );
        let writing = Writing::new(jobs_of(of, WriteEvent::count));
        let client = Client {
            id: view.id,
            services,
            outbox,
            domain: view.domain.clone(),
            local,
            chunk_bytes,
            view,
            who,
            reach: Arc::new(reach),
            share,
            memory,
            dropped: Dropped::default(),
            cancel: CancelFlag::default(),
            memory_wait: None,
        };
        let reading = serve_reads(&client, &limits, EventPort::of(&events));
        let mut session = Self {
            limits,
            ahead_bytes: 0,
            ahead: Vec::new(),
            links,
            held_message: None,
            pacing,
            fd_queue: FdQueue::new(client.share.files.child(), client.memory.clone()),
            reading,
            writing,
            namespace,
            watches: FolderWatches::new(EventPort::of(&events)),
            mirrors,
            disclosed_owners: DisclosedOwners::default(),
            client,
        };
        session.lease_more();
        (session, receiver)
    }

    /// Serves the client until the session ends. `stopping` turns true when the server drains; the
    /// policy says whether the client's credentials are still valid.
    pub async fn run(
        mut self,
        mut receiver: Receiver<ClientMessage>,
        mut events: mpsc::Receiver<Event>,
        mut stopping: watch::Receiver<bool>,
        mut policy: watch::Receiver<Arc<Policy>>,
    ) {
        let mut working = tokio::time::interval(Duration::from_secs(WORKING_SECONDS));
        let mut heard = Instant::now();
        let unread = self.client.outbox.unread().clone();
        receiver.lend_from(Arc::new(SessionBudget(self.client.memory.clone())));
        let end = loop {
            if *stopping.borrow() && self.is_idle() {
                break End::refused(Code::Stopping, "the server is stopping");
            }
            // A client whose messages are not read is not silent.
            heard = if self.accepts_requests() { heard } else { Instant::now() };
            let paced = self.pace_wait();
            let result = tokio::select! {
                message = receiver.recv(), if self.accepts_requests() => {
                    heard = Instant::now();
                    match message {
                        Ok(Some(message)) => self.handle_messages(message, &mut receiver),
                        Ok(None) => Err(End::Bye),
                        Err(ControlError::Refused(fault)) => Err(End::Refused(fault)),
                        Err(error) => Err(End::Lost(error)),
                    }
                }
                Some(event) = events.recv() => {
                    // Events that are queued already are cheaper to handle at once.
                    let rest = std::iter::from_fn(|| events.try_recv().ok()).take(EVENTS_AT_ONCE);
                    let mut events = std::iter::once(event).chain(rest);
                    events.try_for_each(|event| self.event(event).and_then(|()| self.run_effects()))
                }
                // Then its messages are read again.
                () = unread.less(), if unread.is_much() => Ok(()),
                _ = working.tick() => {
                    self.tick(heard.elapsed()).and_then(|()| self.check_standing(&policy))
                }
                _ = stopping.changed() => Ok(()),
                Ok(()) = policy.changed() => self.check_standing(&policy),
                // Created only where a deadline exists: it reads the clock.
                () = async { tokio::time::sleep(paced.unwrap_or_default()).await },
                    if paced.is_some() => self.resume_paced(),
            };
            if let Err(end) = result.and_then(|()| self.run_effects()) {
                break end;
            }
        };
        // Jobs that wait for a thread do not start for a client that is gone.
        drop(events);
        self.finish(end).await;
    }

    /// Handles a message and those that arrived with it. The effects of each are carried out before
    /// the next, which may be `Bye`.
    fn handle_messages(
        &mut self,
        first: ClientMessage,
        receiver: &mut Receiver<ClientMessage>,
    ) -> Result<(), End> {
        let mut next = Some(first);
        while let Some(message) = next {
            self.handle_or_hold(message)?;
            self.run_effects()?;
            self.count_ahead(receiver.frame_bytes());
            next =
                if self.accepts_requests() { receiver.arrived().map_err(End::Lost)? } else { None };
        }
        Ok(())
    }

    /// Handles a message, or holds it until links to ports that its files may not use are dead.
    fn handle_or_hold(&mut self, message: ClientMessage) -> Result<(), End> {
        let waits = port_admission::leave_ports(&self.client, &mut self.links, &message)?;
        self.carry_link_news();
        if !waits {
            return self.handle_message(message);
        }
        self.held_message = Some(HeldMessage::new(message));
        Ok(())
    }

    /// A link died: if it was the last to wait for, handles the held message.
    fn resume_held_message(&mut self) -> Result<(), End> {
        match self.held_message.take() {
            Some(held) if port_admission::has_links_to_leave(&self.client, &self.links) => {
                self.held_message = Some(held);
                Ok(())
            }
            Some(held) => self.handle_or_hold(held.into_message()),
            None => Ok(()),
        }
    }

    fn handle_message(&mut self, message: ClientMessage) -> Result<(), End> {
        tracing::trace!(session = self.client.id, content = ?message, "message received");
        if self.limits.under_way() >= JOBS_MAX {
            let text = format!("the client has more than {JOBS_MAX} requests in progress");
            return Err(End::refused(Code::Limit, text));
        }
        match message {
            ClientMessage::Hello(_) => {
                return Err(End::refused(Code::Protocol, "the client sent Hello twice"));
            }
            ClientMessage::Bye => return Err(End::Bye),
            ClientMessage::Attach { link, offer } => {
                self.links.attach(&self.client, link, offer)?;
                self.carry_link_news();
            }
            ClientMessage::Fence { link } => self.fence(link)?,
            ClientMessage::Stat { request, look } => {
                self.namespace.stat(&self.client, request, look)?
            }
            ClientMessage::Scan { request, scan } => {
                self.namespace.scan(&self.client, request, scan)?
            }
            ClientMessage::ScanMore { request } => {
                self.namespace.scan_more(&self.client, request)?
            }
            ClientMessage::Make { request, entries } => {
                let locks = self.mirrors.carry_locks(self.client.cancel.flag());
                self.namespace.make(&self.client, request, entries, locks)?;
            }
            ClientMessage::Read(request) => self.reading.request(request),
            ClientMessage::Write(request) => self.writing.machine.request(request),
            ClientMessage::Watch(request) => self.watches.request(&self.client, request)?,
            ClientMessage::Mirror(request) => {
                let disclosed_owners = &mut self.disclosed_owners;
                if let Some(edits) =
                    self.mirrors.request(&self.client, disclosed_owners, request)?
                {
                    let locks = self.mirrors.carry_locks(self.client.cancel.flag());
                    self.namespace.change(&self.client, edits, locks)?;
                }
            }
            ClientMessage::Probe(request) => self.links.probe(&self.client, request)?,
            ClientMessage::TellTies => self.namespace.tell_ties(),
            ClientMessage::ReplaceNothing => {
                self.writing.over = Over::Nothing;
                self.namespace.replace_nothing();
            }
            ClientMessage::TellRehashed => self.writing.tells_rehashed = true,
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> Result<(), End> {
        if event.is_of_job() {
            self.limits.done();
        }
        match event {
            Event::Panicked => {
                let text = "the server failed at a job of this session; its log says where";
                return Err(End::refused(Code::Bug, text));
            }
            Event::Read(event) => self.reading.event(event),
            Event::Write(event) => self.writing.event(&mut self.client, event)?,
            Event::Namespace(event) => {
                let locks = self.mirrors.carry_locks(self.client.cancel.flag());
                let disclosed_owners = &mut self.disclosed_owners;
                self.namespace.event(&mut self.client, disclosed_owners, event, locks)?;
            }
            Event::Mirror(event) => {
                self.mirrors.event(&self.client, &mut self.disclosed_owners, event)?
            }
            Event::Pair(event) => self.pair_event(event)?,
            Event::Joined(joined) => {
                self.links.joined(&self.client, joined);
                self.carry_link_news();
            }
            Event::Link(event) => self.link_event(event)?,
            Event::Watch(event) => self.watches.event(&self.client, event)?,
            Event::Pins(event) => self.pins_event(event)?,
        }
        Ok(())
    }

    /// Handles an event of queue pair set-up.
    fn pair_event(&mut self, event: PairEvent) -> Result<(), End> {
        self.links.pair_event(&self.client, event)?;
        self.carry_link_news();
        self.links.setup.connect_next(&self.client);
        self.resume_held_message()
    }

    /// Handles an event of a worker: a link's, or a chunk's.
    fn link_event(&mut self, event: LinkEvent) -> Result<(), End> {
        match event {
            LinkEvent::Notified { link, tag } => {
                self.writing.notified(&self.client, &self.links, link, tag)
            }
            LinkEvent::Absorbed { tag, bytes, verdicts } => {
                self.client.domain.used_slot();
                self.pacing.took(bytes);
                self.pace_grants();
                self.writing.machine.absorbed(tag, verdicts);
                Ok(())
            }
            LinkEvent::Report(event) => self.writing.direct_write_event(&self.client, event),
            LinkEvent::Dead { link, why } => {
                self.links.died(&self.client, link, why);
                self.carry_link_news();
                self.resume_held_message()
            }
        }
    }

    /// Ends a link on the client's request.
    fn fence(&mut self, link: LinkId) -> Result<(), End> {
        self.links.fence(&self.client, link)?;
        self.writing.machine.fence(link);
        Ok(())
    }

    /// Tells other activities about links.
    fn carry_link_news(&mut self) {
        while let Some(news) = self.links.next_news() {
            match news {
                LinkNews::Up(link) => self.writing.machine.link_up(link),
                LinkNews::Dead(link) => self.writing.link_died(link),
                LinkNews::DeviceJoined => self.lease_more(),
                LinkNews::DirectWritesSupported => self.writing.enable_direct_writes(),
            }
        }
    }

    /// Carries out an effect of the writing machine.
    fn write_effect(&mut self, effect: ServerEffect) -> Result<(), End> {
        let out = self.writing.effect(&mut self.client, &mut self.links, effect)?;
        self.carry_link_news();
        match out {
            Some(WriteOut::Create(files)) => self.create(files),
            Some(WriteOut::Commit(files)) => {
                let locks = self.mirrors.carry_locks(self.client.cancel.flag());
                self.writing.commit(&self.client, files, locks);
            }
            None => {}
        }
        Ok(())
    }

    /// Carries out the effects of both machines until none is left.
    fn run_effects(&mut self) -> Result<(), End> {
        loop {
            if let Some(out) = self.reading.next(&mut self.pacing) {
                self.read_out(out?)?;
            } else if let Some(effect) = self.writing.machine.next_effect() {
                self.write_effect(effect)?;
            } else {
                self.open_waiting();
                return Ok(());
            }
        }
    }

    /// Carries out what the `ReadService` leaves to the session.
    fn read_out(&mut self, out: ReadOut) -> Result<(), End> {
        match out {
            ReadOut::Send(reply) => self.client.send(ServerMessage::Read(reply))?,
            ReadOut::Open(files) => self.open(files),
            ReadOut::LacksMemory => self.client.lacks_memory(),
            ReadOut::Done => {}
        }
        Ok(())
    }

    /// Queues files to read, and opens those that descriptors are free for.
    fn open(&mut self, files: Vec<OpenFile>) {
        self.fd_queue.queue_reads(files);
        self.open_waiting();
    }

    /// The same for files to write.
    fn create(&mut self, files: Vec<CreateFile>) {
        self.fd_queue.queue_writes(files);
        self.open_waiting();
    }

    /// Opens queued files while descriptors are free. Called after every event, and every second:
    /// another session that closes files sends no event.
    fn open_waiting(&mut self) {
        while let Some(ReadyFiles { reads, writes }) = self.fd_queue.next_ready() {
            if !reads.is_empty() {
                let boxed = |(file, room)| (file, Box::new(room) as Guard);
                self.reading.open(reads.into_iter().map(boxed).collect());
            }
            if !writes.is_empty() {
                self.writing.create_ready(&self.client, writes);
            }
        }
    }

    /// Fails the files that waited too long for descriptors.
    fn time_out_opening(&mut self) {
        let Some(TimedOut { reads, writes }) = self.fd_queue.time_out() else { return };
        if !reads.is_empty() {
            self.reading.refuse(reads);
        }
        if !writes.is_empty() {
            self.writing.refuse(writes);
        }
    }

    async fn finish(mut self, end: End) {
        self.links.end_all(&self.client);
        self.writing.revoke_direct_writes(&self.client);
        // Before the last message, which may take a while: the client may have reconnected, and
        // wants its partial files.
        self.reading.end();
        drop(self.writing);
        self.watches.end_all();
        self.client.cancel.set();
        self.mirrors.end_all();
        let session = self.client.id;
        if !self.client.dropped.is_empty() {
            let Dropped { owners, special_bits, xattrs } = self.client.dropped;
            tracing::info!(session, owners, special_bits, xattrs, "metadata not kept");
        }
        match end {
            End::Bye => tracing::info!(session, "session ended"),
            End::Lost(error) => tracing::info!(session, %error, "session lost"),
            End::Refused(fault) => {
                tracing::warn!(session, code = ?fault.code, cause = %fault, "session refused");
                self.client.view.report_error(&fault);
                // The session ends either way.
                let _ = self.client.outbox.push_last(&ServerMessage::Refused(fault));
            }
        }
        if let Err(error) = self.client.outbox.close().await {
            tracing::debug!(session, %error, "last message not delivered");
        }
    }
}

/// The jobs of an activity; `count` adds their answers to the counters.
fn jobs_of<E: Send + 'static>(
    (limits, semaphores, events, view): (
        &Arc<JobLimits>,
        &Semaphores<2>,
        &mpsc::Sender<Event>,
        &Arc<SessionStats>,
    ),
    count: fn(&E, &SessionStats, Duration),
) -> Jobs<E>
where
    Event: From<E>,
{
    let view = view.clone();
    let count = move |event: &E, time| count(event, &view, time);
    Jobs::new(limits.clone(), semaphores.clone(), EventPort::of(events), count)
}

/// For answers without a counter.
fn uncounted<E>(_: &E, _: &SessionStats, _: Duration) {}

#[cfg(test)]
mod tests;
