//! The worker thread, driven as a session drives it: commands go in, what links
//! complete and how they end comes out, and dropping the handle ends the thread
//! with its links. The handler here only tells a channel what it was told.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use verbatim_fabric::sim::{Faults, SimClock, SimNet};
use verbatim_fabric::tcp::TcpLink;
use verbatim_fabric::worker::{COMMANDS_MAX, Handler, LinkKey, LinkSet, WorkerHandle};
use verbatim_fabric::{
    Buffer, Completion, Domain, FabricError, Full, Limits, Link, Memory, Op, RemoteRange,
    SharedSlot, SoftDomain, Ticket, Wake,
};

/// How long anything here may take.
const DEADLINE: Duration = Duration::from_secs(10);

type AnyLink = Box<dyn Link>;

enum Command {
    Adopt(LinkKey, AnyLink),
    Submit(LinkKey, Ticket, Op),
    Remove(LinkKey),
}

#[derive(Debug, PartialEq)]
enum Told {
    Removed(LinkKey),
    Done(LinkKey, Ticket, usize, Result<(), FabricError>),
    Notified(LinkKey, u32),
    Lost(LinkKey, usize, FabricError),
    Over,
}

struct Teller(Sender<Told>);

impl Teller {
    fn tell(&self, told: Told) {
        // A test that has seen enough does not listen.
        let _ = self.0.send(told);
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.tell(Told::Over);
    }
}

impl Handler<AnyLink> for Teller {
    type Command = Command;

    fn command(&mut self, links: &mut LinkSet<AnyLink>, command: Command) {
        match command {
            Command::Adopt(key, link) => drop(links.insert(key, link)),
            Command::Submit(key, ticket, op) => {
                let link = links.get_mut(&key).expect("the link is there");
                link.submit(ticket, op).expect("has room");
            }
            Command::Remove(key) => {
                drop(links.remove(&key));
                self.tell(Told::Removed(key));
            }
        }
    }

    fn completed(&mut self, _: &mut LinkSet<AnyLink>, link: LinkKey, completion: Completion) {
        self.tell(match completion {
            Completion::Done { ticket, buffer, result } => {
                Told::Done(link, ticket, buffer.len(), result)
            }
            Completion::Notified { tag } => Told::Notified(link, tag),
        });
    }

    fn lost(&mut self, link: LinkKey, flushed: Vec<Completion>, error: FabricError) {
        self.tell(Told::Lost(link, flushed.len(), error));
    }
}

fn start() -> (WorkerHandle<Command>, Receiver<Told>) {
    let (sender, told) = channel();
    (WorkerHandle::spawn("worker-test", Teller(sender)).expect("starts"), told)
}

#[track_caller]
fn next(told: &Receiver<Told>) -> Told {
    let told = told.recv_timeout(DEADLINE);
    told.unwrap_or_else(|error| panic!("the worker says nothing for {DEADLINE:?}: {error}"))
}

fn read_op(key: u64, address: u64) -> Op {
    Op::Read { from: RemoteRange { key, address }, into: Buffer::new(10).expect("buffer") }
}

/// Two ends of a link on loopback.
fn tcp_pair(near: Arc<SoftDomain>, far: Arc<SoftDomain>) -> (AnyLink, AnyLink) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let stream = TcpStream::connect(listener.local_addr().expect("address")).expect("connects");
    let (accepted, _) = listener.accept().expect("accepts");
    let link = |stream, domain| Box::new(TcpLink::new(stream, domain).expect("link")) as AnyLink;
    (link(stream, near), link(accepted, far))
}

fn sim_pair(near: Arc<SoftDomain>, far: Arc<SoftDomain>) -> (AnyLink, AnyLink) {
    let (near, far) = SimNet::new(1, Faults::default(), SimClock::Real).pair(near, far);
    (Box::new(near), Box::new(far))
}

type Connect = fn(Arc<SoftDomain>, Arc<SoftDomain>) -> (AnyLink, AnyLink);

const LINKS: [Connect; 2] = [tcp_pair, sim_pair];

#[test]
fn two_workers_move_data_and_notifications_between_their_links() {
    for connect in LINKS {
        let domain = SoftDomain::new();
        let slot = SharedSlot::new(1000).expect("slot");
        let staged = domain.register(Memory::Staged(slot.clone())).expect("registers");
        let upload = domain.register(Memory::Upload(slot)).expect("registers");
        let (near, far) = connect(SoftDomain::new(), domain);
        let ((client, client_told), (server, server_told)) = (start(), start());
        client.send(Command::Adopt(LinkKey(1), near)).expect("is taken");
        server.send(Command::Adopt(LinkKey(2), far)).expect("is taken");
        let from = Buffer::new(1000).expect("buffer");
        let to = RemoteRange { key: upload.key, address: upload.base };
        let write = Op::WriteNotify { from, to, tag: 5 };
        client.send(Command::Submit(LinkKey(1), Ticket(1), write)).expect("is taken");
        assert_eq!(next(&server_told), Told::Notified(LinkKey(2), 5));
        assert_eq!(next(&client_told), Told::Done(LinkKey(1), Ticket(1), 1000, Ok(())));
        let read = read_op(staged.key, staged.base);
        client.send(Command::Submit(LinkKey(1), Ticket(2), read)).expect("is taken");
        assert_eq!(next(&client_told), Told::Done(LinkKey(1), Ticket(2), 10, Ok(())));
    }
}

/// A link that notes its polls in a list of all, and wants so many turns.
struct Greedy {
    number: u32,
    turns_left: u32,
    polled: Sender<u32>,
}

impl Link for Greedy {
    fn submit(&mut self, _: Ticket, op: Op) -> Result<(), Full> {
        Err(Full(op))
    }

    fn poll(&mut self, _: &mut Vec<Completion>) -> Result<(), FabricError> {
        self.turns_left = self.turns_left.saturating_sub(1);
        // A test that has seen enough does not listen.
        let _ = self.polled.send(self.number);
        Ok(())
    }

    fn wants_turn(&self) -> bool {
        self.turns_left > 0
    }

    fn wake(&self) -> Wake<'_> {
        Wake { fd: None, readable: false, writable: false, at_most: None }
    }

    fn abort(&mut self, _: &mut Vec<Completion>) {}

    fn limits(&self) -> Limits {
        let (depth_max, message_bytes_max) = (0, 0);
        Limits { depth_max, message_bytes_max, sends_from_file: false, registers_buffers: false }
    }

    fn transport(&self) -> &str {
        "greedy"
    }
}

#[test]
fn links_that_want_to_go_on_take_turns_and_are_not_slept_on() {
    const TURNS: u32 = 1000;
    let (worker, told) = start();
    let (polled, polls) = channel();
    for (number, turns_left) in [(1, TURNS), (2, 0), (3, TURNS)] {
        let link = Greedy { number, turns_left, polled: polled.clone() };
        worker.send(Command::Adopt(LinkKey(number.into()), Box::new(link))).expect("is taken");
    }
    let end = Instant::now() + DEADLINE;
    let next_poll = || polls.recv_timeout(end.saturating_duration_since(Instant::now()));
    let seen: Vec<u32> =
        (0..3 * TURNS - 100).map(|_| next_poll().expect("no sleep between turns")).collect();
    // From where all are there, each is polled once before any is polled again.
    let all = seen.iter().position(|number| *number == 3).expect("the third has its turn") + 1;
    let (rounds, _) = seen[all..].as_chunks();
    assert!(rounds.iter().all(|round| *round == [1, 2, 3]), "{seen:?}");
    worker.send(Command::Remove(LinkKey(9))).expect("is taken");
    assert_eq!(next(&told), Told::Removed(LinkKey(9)), "commands have their turn as well");
}

/// Notes what it is told in the list that its links note their polls in.
struct Noter(Sender<u32>);

const COMMAND: u32 = 100;
const COMMANDED: u32 = 101;

impl Handler<AnyLink> for Noter {
    type Command = AnyLink;

    fn command(&mut self, links: &mut LinkSet<AnyLink>, link: AnyLink) {
        let _ = self.0.send(COMMAND);
        links.insert(LinkKey(links.len() as u64), link);
    }

    fn commanded(&mut self) {
        let _ = self.0.send(COMMANDED);
    }

    fn completed(&mut self, _: &mut LinkSet<AnyLink>, _: LinkKey, _: Completion) {}

    fn lost(&mut self, _: LinkKey, _: Vec<Completion>, _: FabricError) {}
}

#[test]
fn a_handler_is_told_that_it_has_its_commands_before_links_are_polled() {
    let (noted, notes) = channel();
    let worker = WorkerHandle::spawn("worker-test", Noter(noted.clone())).expect("starts");
    for number in 0..40_u64 {
        // Some come while it sleeps, some while it is at others.
        std::thread::sleep(Duration::from_millis(number % 3));
        let link = Greedy { number: 1, turns_left: 0, polled: noted.clone() };
        worker.send(Box::new(link)).expect("is taken");
    }
    drop((worker, noted));
    let notes: Vec<u32> = notes.iter().collect();
    assert_eq!(notes.iter().filter(|note| **note == COMMAND).count(), 40);
    for pair in notes.windows(2) {
        assert!(!matches!(pair, [COMMAND, 1]), "polled before it was told: {notes:?}");
        assert!(!matches!(pair, [1 | COMMANDED, COMMANDED]), "told of nothing: {notes:?}");
    }
}

#[test]
fn a_link_that_dies_is_told_and_the_others_live_on() {
    for connect in LINKS {
        let domain = SoftDomain::new();
        let slot = SharedSlot::new(1000).expect("slot");
        let region = domain.register(Memory::Staged(slot)).expect("registers");
        let (near, far) = connect(SoftDomain::new(), domain.clone());
        let (other_near, other_far) = connect(SoftDomain::new(), domain);
        let ((client, client_told), (server, server_told)) = (start(), start());
        client.send(Command::Adopt(LinkKey(1), near)).expect("is taken");
        client.send(Command::Adopt(LinkKey(2), other_near)).expect("is taken");
        server.send(Command::Adopt(LinkKey(2), other_far)).expect("is taken");
        drop(far);
        assert_eq!(next(&client_told), Told::Lost(LinkKey(1), 0, FabricError::Closed));
        let read = read_op(region.key, region.base);
        client.send(Command::Submit(LinkKey(2), Ticket(3), read)).expect("is taken");
        assert_eq!(next(&client_told), Told::Done(LinkKey(2), Ticket(3), 10, Ok(())));
        server.send(Command::Remove(LinkKey(2))).expect("is taken");
        assert_eq!(next(&server_told), Told::Removed(LinkKey(2)));
        assert_eq!(next(&client_told), Told::Lost(LinkKey(2), 0, FabricError::Closed));
    }
}

#[test]
fn an_operation_in_flight_on_a_dying_link_comes_back_flushed() {
    let (near, far) = tcp_pair(SoftDomain::new(), SoftDomain::new());
    let (client, told) = start();
    client.send(Command::Adopt(LinkKey(1), near)).expect("is taken");
    client.send(Command::Submit(LinkKey(1), Ticket(1), read_op(1, 0))).expect("is taken");
    // The far end is never polled, so it answers nothing.
    std::thread::sleep(Duration::from_millis(20));
    drop(far);
    assert_eq!(next(&told), Told::Lost(LinkKey(1), 1, FabricError::Closed));
}

#[test]
fn a_sleeping_worker_takes_a_command_at_once() {
    let (worker, told) = start();
    let mut slowest = Duration::ZERO;
    for round in 0..20 {
        // Long enough that it sleeps.
        std::thread::sleep(Duration::from_millis(5));
        let begin = Instant::now();
        worker.send(Command::Remove(LinkKey(round))).expect("is taken");
        assert_eq!(next(&told), Told::Removed(LinkKey(round)));
        slowest = slowest.max(begin.elapsed());
    }
    assert!(slowest < Duration::from_millis(500), "a command waited for {slowest:?}");
}

/// Is at its first command until it may go on.
struct Held(Receiver<()>);

impl Handler<AnyLink> for Held {
    type Command = ();

    fn command(&mut self, _: &mut LinkSet<AnyLink>, (): ()) {
        // Whoever holds it may be gone.
        let _ = self.0.recv_timeout(DEADLINE);
    }

    fn completed(&mut self, _: &mut LinkSet<AnyLink>, _: LinkKey, _: Completion) {}

    fn lost(&mut self, _: LinkKey, _: Vec<Completion>, _: FabricError) {}
}

#[test]
fn what_waits_for_a_worker_is_bounded_and_there_is_room_again_when_it_is_done() {
    let (go_on, held) = channel();
    let worker = WorkerHandle::spawn("worker-test", Held(held)).expect("starts");
    // Let go of before the worker, whatever happens: that is waited for.
    let (go_on, begin) = (go_on, Instant::now());
    // It takes the first one, sooner or later.
    let mut taken = 0;
    while taken <= COMMANDS_MAX && begin.elapsed() < DEADLINE {
        taken += usize::from(worker.send(()).is_ok());
    }
    assert_eq!(taken, COMMANDS_MAX + 1, "commands taken in {:?}", begin.elapsed());
    let refused = worker.send(()).expect_err("there is no room");
    assert!(matches!(&refused, FabricError::Limit(text) if text.contains("8192")), "{refused:?}");
    worker.send_anyway(()).expect("what must not be lost is taken");
    drop(go_on);
    while let Err(refused) = worker.send(()) {
        let late = begin.elapsed() >= DEADLINE;
        assert!(!late, "the worker has no room for a command within {DEADLINE:?}: {refused:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn commands_are_done_in_order() {
    let (worker, told) = start();
    for number in 0..5000 {
        worker.send(Command::Remove(LinkKey(number))).expect("is taken");
    }
    for number in 0..5000 {
        assert_eq!(next(&told), Told::Removed(LinkKey(number)));
    }
}

#[test]
fn dropping_the_handle_ends_the_thread_and_its_links() {
    for connect in LINKS {
        let (near, mut far) = connect(SoftDomain::new(), SoftDomain::new());
        let (worker, told) = start();
        worker.send(Command::Adopt(LinkKey(1), near)).expect("is taken");
        let begin = Instant::now();
        drop(worker);
        assert!(begin.elapsed() < Duration::from_millis(500), "the thread was woken");
        assert_eq!(next(&told), Told::Over, "the handler is gone");
        let mut ended = Ok(());
        while ended.is_ok() && begin.elapsed() < DEADLINE {
            ended = far.poll(&mut Vec::new());
        }
        assert_eq!(ended, Err(FabricError::Closed), "the far end, after {:?}", begin.elapsed());
    }
}
