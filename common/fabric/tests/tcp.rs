//! Two TCP links over a socket pair on loopback, driven by hand: what arrives,
//! what is refused, what comes back when a link ends, and what a peer that
//! sends nonsense can do, which is to lose its link. No worker, no session.

use proptest::prelude::*;
use rustix::net::sockopt;
use std::fmt::Debug;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbatim_fabric::tcp::{self, TcpLink};
use verbatim_fabric::{
    Buffer, Completion, Domain, FabricError, FromFiles, Full, Link, MappedFile, Memory, Op,
    RegionHandle, RemoteRange, SharedSlot, SoftDomain, Ticket,
};

/// How long anything here may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Bytes of a frame's header.
const HEADER_BYTES: usize = 40;

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connects");
    let (far, _) = listener.accept().expect("accepts");
    far.set_read_timeout(Some(DEADLINE)).expect("has a timeout");
    (near, far)
}

/// Both ends of a TLS session that has not begun.
fn sessions() -> (rustls::ClientConnection, rustls::ServerConnection) {
    let made = rcgen::generate_simple_self_signed(["far".to_owned()]).expect("a certificate");
    let certificate = made.cert.der().clone();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).expect("a root");
    let provider = || Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .expect("a server");
    let name = "far".try_into().expect("a name");
    let client = rustls::ClientConnection::new(Arc::new(client), name).expect("a client");
    let server = rustls::ServerConnection::new(Arc::new(server)).expect("a server");
    (client, server)
}

/// Both ends of a link, and the memory of the far one.
struct Ends {
    near: TcpLink,
    far: TcpLink,
    domain: Arc<SoftDomain>,
}

impl Ends {
    fn new(domain: Arc<SoftDomain>) -> Self {
        let (near, far) = sockets();
        let near = TcpLink::new(near, SoftDomain::new()).expect("link");
        let far = TcpLink::new(far, domain.clone()).expect("link");
        Self { near, far, domain }
    }

    /// The same inside TLS.
    fn sealed(domain: Arc<SoftDomain>) -> Self {
        let (mut near, mut far) = sockets();
        let (mut client, mut server) = sessions();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while client.is_handshaking() {
                    client.complete_io(&mut near).expect("client");
                }
            });
            while server.is_handshaking() {
                server.complete_io(&mut far).expect("server");
            }
        });
        let near = TcpLink::sealed(near, client.into(), SoftDomain::new()).expect("link");
        let far = TcpLink::sealed(far, server.into(), domain.clone()).expect("link");
        Self { near, far, domain }
    }

    fn register(&self, memory: Memory) -> RegionHandle {
        self.domain.register(memory).expect("registers")
    }

    /// Polls both ends until the near one has `count` completions.
    #[track_caller]
    fn near_completes(&mut self, count: usize) -> Vec<Completion> {
        let (mut near, mut far) = (Vec::new(), Vec::new());
        until(&format!("the near end has {count} completions"), || {
            self.far.poll(&mut far).expect("the far end lives");
            self.near.poll(&mut near).expect("the near end lives");
            seen(near.len() >= count, completed(&near, &far))
        });
        near
    }
}

/// Waits until `look` returns Ok; panics after `DEADLINE`, and says what `look` saw last.
#[track_caller]
fn until<T, S: Debug>(what: &str, mut look: impl FnMut() -> Result<T, S>) -> T {
    let begin = Instant::now();
    loop {
        let seen = match look() {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        let late = begin.elapsed() >= DEADLINE;
        assert!(!late, "{what}: not within {DEADLINE:?}; last seen: {seen:?}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// What a look returns: Ok when it is done, else what it saw.
fn seen<S>(done: bool, seen: S) -> Result<(), S> {
    if done { Ok(()) } else { Err(seen) }
}

/// How much completed at both ends of a link, for a message.
fn completed(near: &[Completion], far: &[Completion]) -> String {
    format!("{} completions at the near end, {} at the far end", near.len(), far.len())
}

/// Polls a link until it dies; says why, and what completed before.
#[track_caller]
fn death_of(link: &mut TcpLink) -> (FabricError, Vec<Completion>) {
    let mut completions = Vec::new();
    let cause = until("the link dies", || match link.poll(&mut completions) {
        Ok(()) => Err(format!("it lives, after {} completions", completions.len())),
        Err(cause) => Ok(cause),
    });
    (cause, completions)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

fn buffer_with(bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(bytes.len()).expect("buffer");
    buffer.copy_from_slice(bytes);
    buffer
}

fn file_with(bytes: &[u8]) -> Arc<File> {
    let file = tempfile::tempfile().expect("file");
    file.write_all_at(bytes, 0).expect("writes");
    Arc::new(file)
}

fn range(region: RegionHandle, offset: u64) -> RemoteRange {
    RemoteRange { key: region.key, address: region.base + offset }
}

fn read_op(from: RemoteRange, len: usize) -> Op {
    Op::Read { from, into: Buffer::new(len).expect("buffer") }
}

/// The buffer of the one operation that ended well.
fn only(mut completions: Vec<Completion>, ticket: u64) -> Buffer {
    assert_eq!(completions.len(), 1, "{completions:?}");
    match completions.remove(0) {
        Completion::Done { ticket: Ticket(number), buffer, result: Ok(()) } => {
            assert_eq!(number, ticket);
            buffer
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_read_brings_a_range_of_a_file_and_of_a_staged_slot() {
    let mut ends = Ends::new(SoftDomain::new());
    let bytes = pattern(3 << 20);
    let window = MappedFile::new(file_with(&bytes), 1 << 20, 2 << 20).expect("maps");
    let file = ends.register(Memory::File(window));
    ends.near.submit(Ticket(7), read_op(range(file, 12_345), 1 << 20)).expect("has room");
    let got = only(ends.near_completes(1), 7);
    assert!(*got == bytes[(1 << 20) + 12_345..][..1 << 20], "the range of the window");

    let slot = SharedSlot::new(1000).expect("slot");
    slot.copy_in(0, &bytes[..1000]);
    let staged = ends.register(Memory::Staged(slot));
    ends.near.submit(Ticket(8), read_op(range(staged, 999), 1)).expect("has room");
    assert_eq!(*only(ends.near_completes(1), 8), bytes[999..1000]);
}

#[test]
fn what_lies_in_files_is_sent_from_them_among_what_lies_in_memory() {
    for connect in [Ends::new, Ends::sealed] {
        let mut ends = connect(SoftDomain::new());
        let bytes = pattern(1 << 20);
        let file = file_with(&bytes);
        let slot = SharedSlot::new(bytes.len()).expect("slot");
        slot.copy_in(0, &bytes[..100]);
        slot.copy_in(500_100, &bytes[500_100..]);
        let mut from_files = FromFiles::default();
        from_files.push(100, 400_000, file.clone(), 100);
        from_files.push(400_100, 100_000, file.clone(), 400_100);
        let region = ends.register(Memory::Gathered(slot, Arc::new(from_files)));
        for begin in [0, 50, 100, 101, 400_099, 400_100, 500_100] {
            let len = bytes.len() - begin;
            let op = read_op(range(region, begin as u64), len);
            ends.near.submit(Ticket(1), op).expect("has room");
            let got = only(ends.near_completes(1), 1);
            assert!(*got == bytes[begin..], "from {begin}");
        }

        let upload = SharedSlot::new(bytes.len()).expect("slot");
        let to = range(ends.register(Memory::Upload(upload.clone())), 0);
        let mut from = buffer_with(&bytes);
        from[100..900_100].fill(0);
        from.send_from(100, 400_000, file.clone(), 100);
        from.send_from(400_100, 500_000, file.clone(), 400_100);
        if !ends.near.limits().sends_from_file {
            from.fill();
        }
        ends.near.submit(Ticket(2), Op::WriteNotify { from, to, tag: 1 }).expect("has room");
        only(ends.near_completes(1), 2);
        upload.with(0, bytes.len(), |stored| assert!(stored[..] == bytes[..], "it differs"));
    }
}

#[test]
fn a_file_that_shrank_among_others_takes_nothing_from_them() {
    let mut ends = Ends::new(SoftDomain::new());
    let bytes = pattern(300_000);
    let (short, whole) = (file_with(&bytes[..150_000]), file_with(&bytes));
    let mut from_files = FromFiles::default();
    from_files.push(0, 100_000, whole.clone(), 0);
    from_files.push(100_000, 100_000, short, 100_000);
    from_files.push(200_000, 100_000, whole, 200_000);
    let slot = SharedSlot::new(bytes.len()).expect("slot");
    let region = ends.register(Memory::Gathered(slot, Arc::new(from_files)));
    ends.near.submit(Ticket(1), read_op(range(region, 0), bytes.len())).expect("has room");
    let got = only(ends.near_completes(1), 1);
    assert!(got[..150_000] == bytes[..150_000] && got[200_000..] == bytes[200_000..]);
    assert!(got[150_000..200_000].iter().all(|&byte| byte == 0), "filled up");
}

#[test]
fn what_cannot_be_sent_from_its_file_is_read() {
    // Kernels since 5.10 read it and do not send from it.
    let path = "/proc/self/auxv";
    let (bytes, file) = (std::fs::read(path).expect("reads"), File::open(path).expect("opens"));
    let mut ends = Ends::new(SoftDomain::new());
    let mut from_files = FromFiles::default();
    from_files.push(0, bytes.len(), Arc::new(file), 0);
    let slot = SharedSlot::new(bytes.len()).expect("slot");
    let region = ends.register(Memory::Gathered(slot, Arc::new(from_files)));
    ends.near.submit(Ticket(1), read_op(range(region, 0), bytes.len())).expect("has room");
    assert!(*only(ends.near_completes(1), 1) == bytes);
}

#[test]
fn a_file_that_cannot_be_read_costs_its_message_and_not_the_link() {
    for connect in [Ends::new, Ends::sealed] {
        let mut ends = connect(SoftDomain::new());
        let bytes = pattern(300_000);
        let whole = file_with(&bytes);
        // A folder opens, and does not read.
        let unreadable = Arc::new(File::open("/").expect("opens"));
        let mut from_files = FromFiles::default();
        from_files.push(0, 100_000, whole.clone(), 0);
        from_files.push(100_000, 100_000, unreadable.clone(), 0);
        from_files.push(200_000, 100_000, whole.clone(), 200_000);
        let slot = SharedSlot::new(bytes.len()).expect("slot");
        let region = ends.register(Memory::Gathered(slot, Arc::new(from_files)));
        ends.near.submit(Ticket(1), read_op(range(region, 0), bytes.len())).expect("has room");
        let got = only(ends.near_completes(1), 1);
        assert!(got[..100_000] == bytes[..100_000], "what was sent before");
        assert!(got[100_000..].iter().all(|&byte| byte == 0), "the rest is not read");

        let upload = SharedSlot::new(bytes.len()).expect("slot");
        let to = range(ends.register(Memory::Upload(upload.clone())), 0);
        let mut from = buffer_with(&bytes);
        from.send_from(100_000, 100_000, unreadable, 0);
        if ends.near.limits().sends_from_file {
            ends.near.submit(Ticket(2), Op::WriteNotify { from, to, tag: 1 }).expect("has room");
            only(ends.near_completes(1), 2);
            upload.with(0, bytes.len(), |stored| {
                assert!(stored[..100_000] == bytes[..100_000], "what was sent before");
                assert!(stored[100_000..].iter().all(|&byte| byte == 0), "the rest is not read");
            });
        }

        let window = MappedFile::new(whole, 0, bytes.len()).expect("maps");
        let region = ends.register(Memory::File(window));
        ends.near.submit(Ticket(3), read_op(range(region, 0), bytes.len())).expect("has room");
        assert!(*only(ends.near_completes(1), 3) == bytes, "the link lives");
    }
}

#[test]
fn many_reads_at_once_come_back_each_with_its_own_bytes() {
    let mut ends = Ends::new(SoftDomain::new());
    let bytes = pattern(1 << 20);
    let window = MappedFile::new(file_with(&bytes), 0, 1 << 20).expect("maps");
    let file = ends.register(Memory::File(window));
    for number in 0..64_u64 {
        let op = read_op(range(file, number * 1000), 10_000);
        ends.near.submit(Ticket(number), op).expect("has room");
    }
    let mut completions = ends.near_completes(64);
    for number in 0..64 {
        let got = only(vec![completions.remove(0)], number);
        assert!(*got == bytes[number as usize * 1000..][..10_000]);
    }
}

#[test]
fn data_goes_through_one_buffer_when_it_is_handed_back() {
    let mut ends = Ends::new(SoftDomain::new());
    let bytes = pattern(4096);
    let window = MappedFile::new(file_with(&bytes), 0, 4096).expect("maps");
    let region = ends.register(Memory::File(window));
    let read = |ends: &mut Ends, ticket, mut into: Buffer| {
        into.set_len(100);
        let op = Op::Read { from: range(region, ticket * 100), into };
        ends.near.submit(Ticket(ticket), op).expect("has room");
    };
    (0..3).for_each(|ticket| read(&mut ends, ticket, Buffer::new(100).expect("buffer")));
    let mut addresses = Vec::new();
    for ticket in 0..20 {
        let landed = only(ends.near_completes(1), ticket);
        assert_eq!(landed[..], bytes[ticket as usize * 100..][..100]);
        addresses.push(landed.as_ptr());
        let other = ends.near.exchange(landed);
        read(&mut ends, ticket + 3, other);
    }
    addresses.dedup();
    assert_eq!(addresses.len(), 1, "{addresses:?}");
}

#[test]
fn an_abort_returns_the_buffer_that_data_arrives_in() {
    let (near, mut far) = sockets();
    let mut link = TcpLink::new(near, SoftDomain::new()).expect("link");
    for ticket in 0..2 {
        let from = RemoteRange { key: 1, address: 0 };
        link.submit(Ticket(ticket), read_op(from, 100)).expect("has room");
    }
    far.write_all(&[&header(4, 100, 0, 0, 0)[..], &[7; 40]].concat()).expect("sends");
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(200) {
        let mut none = Vec::new();
        link.poll(&mut none).expect("it lives");
        assert!(none.is_empty(), "not all of it is there");
    }
    let mut flushed = Vec::new();
    link.abort(&mut flushed);
    let ended = |completion: &Completion| match completion {
        Completion::Done { ticket, buffer, result } => {
            (ticket.0, buffer.len(), result.clone().expect_err("it was aborted"))
        }
        Completion::Notified { .. } => panic!("nobody wrote"),
    };
    let mut ended: Vec<_> = flushed.iter().map(ended).collect();
    ended.sort_by_key(|(ticket, ..)| *ticket);
    assert_eq!(ended, [(0, 100, FabricError::Aborted), (1, 100, FabricError::Aborted)]);
}

#[test]
fn a_poll_sends_no_more_than_its_turn() {
    const TURN_BYTES: usize = 256 << 10;
    const READS: usize = 32;
    for connect in [Ends::new, Ends::sealed] {
        let mut ends = connect(SoftDomain::new());
        let bytes = pattern(TURN_BYTES / 2);
        let window = MappedFile::new(file_with(&bytes), 0, bytes.len()).expect("maps");
        let file = ends.register(Memory::File(window));
        for number in 0..READS {
            let op = read_op(range(file, 0), bytes.len());
            ends.near.submit(Ticket(number as u64), op).expect("has room");
        }
        // As soon as anything arrives it is taken, so that the socket is never what stops.
        let (mut arrived, mut polls, mut turns) = (Vec::new(), 0, 0);
        until(&format!("{READS} reads have arrived"), || {
            polls += 1;
            ends.far.poll(&mut Vec::new()).expect("the far end lives");
            turns += usize::from(ends.far.wants_turn());
            let mut had = usize::MAX;
            while had != arrived.len() {
                had = arrived.len();
                ends.near.poll(&mut arrived).expect("the near end lives");
            }
            seen(arrived.len() == READS, format!("{} in {polls} polls", arrived.len()))
        });
        let whole = READS * bytes.len();
        assert!(polls >= whole / TURN_BYTES, "{whole} bytes in {polls} polls");
        assert!(turns > 0, "it never says that it would go on");
        ends.far.poll(&mut Vec::new()).expect("the far end lives");
        assert!(!ends.far.wants_turn(), "nothing is left");
    }
}

#[test]
fn a_write_is_in_the_slot_before_the_peer_hears_of_it() {
    let mut ends = Ends::new(SoftDomain::new());
    let slot = SharedSlot::new(2 << 20).expect("slot");
    let region = ends.register(Memory::Upload(slot.clone()));
    let bytes = pattern(1 << 20);
    let (to, from) = (range(region, 100), buffer_with(&bytes));
    ends.near.submit(Ticket(1), Op::WriteNotify { from, to, tag: 77 }).expect("has room");
    let mut heard = Vec::new();
    until("the far end hears of the write", || {
        ends.near.poll(&mut Vec::new()).expect("lives");
        ends.far.poll(&mut heard).expect("lives");
        seen(!heard.is_empty(), "no completion at the far end")
    });
    assert!(matches!(heard[..], [Completion::Notified { tag: 77 }]), "{heard:?}");
    let mut stored = vec![0; bytes.len()];
    slot.copy_out(100, &mut stored);
    assert!(stored == bytes);
    assert!(*only(ends.near_completes(1), 1) == bytes, "the buffer comes back");

    let (to, from) = (range(region, 0), buffer_with(b"quiet"));
    ends.near.submit(Ticket(2), Op::Write { from, to }).expect("has room");
    only(ends.near_completes(1), 2);
    let mut stored = [0; 5];
    slot.copy_out(0, &mut stored);
    assert_eq!(&stored, b"quiet");
}

#[test]
fn inside_tls_bytes_arrive_as_they_do_outside() {
    let mut ends = Ends::sealed(SoftDomain::new());
    assert_eq!(ends.near.transport(), "tcp+tls");
    assert!(!ends.near.limits().sends_from_file, "what is encrypted is read first");
    // Larger than any step, and odd, both ways, several at a time.
    let bytes = pattern((5 << 20) + 3);
    let window = MappedFile::new(file_with(&bytes), 0, bytes.len()).expect("window");
    let region = ends.register(Memory::File(window));
    for ticket in 0..3 {
        let from = range(region, ticket);
        ends.near.submit(Ticket(ticket), read_op(from, (4 << 20) + 1)).expect("room");
    }
    for completion in ends.near_completes(3) {
        let Completion::Done { ticket: Ticket(at), buffer, result: Ok(()) } = completion else {
            panic!("{completion:?}");
        };
        assert!(buffer[..] == bytes[at as usize..][..(4 << 20) + 1], "read {at} differs");
    }
    let slot = SharedSlot::new(1 << 20).expect("slot");
    let region = ends.register(Memory::Upload(slot.clone()));
    let from = buffer_with(&bytes[7..][..1 << 20]);
    let op = Op::WriteNotify { from, to: range(region, 0), tag: 9 };
    ends.near.submit(Ticket(9), op).expect("room");
    only(ends.near_completes(1), 9);
    slot.with(0, 1 << 20, |stored| assert!(stored[..] == bytes[7..][..1 << 20], "it differs"));
    // Where something may wait inside TLS nobody sleeps; once it was looked for, they do.
    assert_eq!(ends.near.wake().at_most, Some(Duration::ZERO));
    ends.near.poll(&mut Vec::new()).expect("the near end lives");
    assert_eq!(ends.near.wake().at_most, None);
    assert!(!ends.near.wake().writable);
}

#[test]
fn an_access_that_is_not_allowed_ends_its_link_and_no_other() {
    let domain = SoftDomain::new();
    let mut other = Ends::new(domain.clone());
    let slot = SharedSlot::new(4096).expect("slot");
    let staged = other.register(Memory::Staged(slot.clone()));
    let upload = other.register(Memory::Upload(slot));
    let write = |to| Op::WriteNotify { from: buffer_with(&[1; 100]), to, tag: 1 };
    let bad = [
        read_op(RemoteRange { key: staged.key ^ 1, address: 0 }, 100),
        read_op(range(staged, 4000), 100),
        read_op(range(staged, u64::MAX - 10), 100),
        read_op(range(upload, 0), 100),
        write(range(staged, 0)),
        write(range(upload, 3997)),
    ];
    for (number, op) in bad.into_iter().enumerate() {
        let mut ends = Ends::new(domain.clone());
        ends.near.submit(Ticket(3), op).expect("has room");
        ends.near.poll(&mut Vec::new()).expect("it is on its way");
        let (far, _) = death_of(&mut ends.far);
        assert!(matches!(far, FabricError::Access(_)), "{number}: {far}");
        let (near, mut completions) = death_of(&mut ends.near);
        assert!(matches!(near, FabricError::Access(_)), "{number}: {near}");
        ends.near.abort(&mut completions);
        let refused = |completion: &Completion| {
            matches!(completion, Completion::Done { result: Err(FabricError::Access(_)), .. })
        };
        assert!(completions.len() == 1 && refused(&completions[0]), "{number}: {completions:?}");
    }
    other.near.submit(Ticket(4), read_op(range(staged, 0), 4096)).expect("has room");
    only(other.near_completes(1), 4);
}

#[test]
fn a_region_that_was_taken_back_cannot_be_read() {
    let mut ends = Ends::new(SoftDomain::new());
    let region = ends.register(Memory::Staged(SharedSlot::new(10).expect("slot")));
    ends.domain.deregister(region.key);
    ends.near.submit(Ticket(1), read_op(range(region, 0), 10)).expect("has room");
    ends.near.poll(&mut Vec::new()).expect("it is on its way");
    assert!(matches!(death_of(&mut ends.far).0, FabricError::Access(_)));
}

#[test]
fn a_full_link_hands_the_operation_back_until_there_is_room() {
    let mut ends = Ends::new(SoftDomain::new());
    let region = ends.register(Memory::Staged(SharedSlot::new(64).expect("slot")));
    let depth = ends.near.limits().depth_max;
    for number in 0..depth as u64 {
        ends.near.submit(Ticket(number), read_op(range(region, 0), 64)).expect("has room");
    }
    let full = ends.near.submit(Ticket(999), read_op(range(region, 0), 63));
    let Err(Full(op)) = full else { panic!("more than {depth} operations") };
    assert_eq!(op.into_buffer().len(), 63, "the buffer comes back");
    ends.near_completes(1);
    ends.near.submit(Ticket(999), read_op(range(region, 0), 63)).expect("has room again");
}

#[test]
fn an_abort_returns_every_buffer_once_and_the_link_stays_dead() {
    let mut ends = Ends::new(SoftDomain::new());
    let slot = SharedSlot::new(1 << 20).expect("slot");
    let staged = ends.register(Memory::Staged(slot.clone()));
    let upload = ends.register(Memory::Upload(slot));
    for number in 0..10 {
        ends.near.submit(Ticket(number), read_op(range(staged, 0), 1 << 20)).expect("has room");
        let (from, to) = (Buffer::new(1 << 20).expect("buffer"), range(upload, 0));
        ends.near.submit(Ticket(100 + number), Op::Write { from, to }).expect("has room");
    }
    // Some are on their way, some are half done.
    let mut completions = Vec::new();
    for _ in 0..5 {
        ends.far.poll(&mut Vec::new()).expect("lives");
        ends.near.poll(&mut completions).expect("lives");
    }
    ends.near.abort(&mut completions);
    let mut tickets: Vec<u64> = completions
        .iter()
        .map(|completion| match completion {
            Completion::Done { ticket, .. } => ticket.0,
            Completion::Notified { .. } => panic!("nobody notifies"),
        })
        .collect();
    tickets.sort_unstable();
    assert_eq!(tickets, (0..10).chain(100..110).collect::<Vec<u64>>());
    assert!(ends.near.submit(Ticket(500), read_op(range(staged, 0), 1)).is_err());
    assert_eq!(ends.near.poll(&mut completions), Err(FabricError::Aborted));
    assert_eq!(death_of(&mut ends.far).0, FabricError::Closed);
}

#[test]
fn a_peer_that_vanishes_closes_the_link() {
    let Ends { mut near, far, domain } = Ends::new(SoftDomain::new());
    let slot = SharedSlot::new(100).expect("slot");
    let region = domain.register(Memory::Staged(slot)).expect("registers");
    near.submit(Ticket(1), read_op(range(region, 0), 100)).expect("has room");
    drop(far);
    let (cause, mut completions) = death_of(&mut near);
    assert_eq!(cause, FabricError::Closed);
    near.abort(&mut completions);
    assert_eq!(completions.len(), 1, "the buffer comes back");
}

#[test]
fn a_peer_that_vanishes_in_the_middle_of_what_is_sent_to_it_closes_the_link() {
    let Ends { mut near, mut far, domain } = Ends::new(SoftDomain::new());
    let file = file_with(&pattern(16 << 20));
    let window = MappedFile::new(file, 0, 16 << 20).expect("maps");
    let region = domain.register(Memory::File(window)).expect("registers");
    near.submit(Ticket(1), read_op(range(region, 0), 16 << 20)).expect("has room");
    near.poll(&mut Vec::new()).expect("asks");
    until("the far end is in the middle of what it sends: it wants a turn", || {
        far.poll(&mut Vec::new()).expect("the peer is there");
        seen(far.wants_turn(), "it wants no turn")
    });
    drop(near);
    assert_eq!(death_of(&mut far).0, FabricError::Closed);
}

#[test]
fn a_file_that_shrank_under_its_window_is_filled_up_with_zeros() {
    let mut ends = Ends::new(SoftDomain::new());
    let bytes = pattern(1 << 20);
    let file = file_with(&bytes);
    let window = MappedFile::new(file.clone(), 0, 1 << 20).expect("maps");
    let region = ends.register(Memory::File(window));
    file.set_len(10_000).expect("shrinks");
    ends.near.submit(Ticket(1), read_op(range(region, 0), 1 << 20)).expect("has room");
    let got = only(ends.near_completes(1), 1);
    assert!(got[..10_000] == bytes[..10_000] && got[10_000..].iter().all(|&byte| byte == 0));
}

/// A header as it is on the wire.
fn header(kind: u8, len: u32, ticket: u64, key: u64, address: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0] = kind;
    bytes[4..8].copy_from_slice(&len.to_le_bytes());
    bytes[16..24].copy_from_slice(&ticket.to_le_bytes());
    bytes[24..32].copy_from_slice(&key.to_le_bytes());
    bytes[32..40].copy_from_slice(&address.to_le_bytes());
    bytes
}

const READ: u8 = 1;
const DATA: u8 = 4;
const DONE: u8 = 5;
const REFUSED: u8 = 6;

#[test]
fn answers_that_nobody_asked_for_end_the_link() {
    for (kind, len, ticket) in [(DATA, 10, 1), (DATA, 99, 5), (DONE, 0, 1), (DONE, 0, 5)] {
        let (near, mut peer) = sockets();
        let mut link = TcpLink::new(near, SoftDomain::new()).expect("link");
        let from = RemoteRange { key: 1, address: 0 };
        link.submit(Ticket(5), read_op(from, 100)).expect("has room");
        peer.write_all(&header(kind, len, ticket, 0, 0)).expect("writes");
        let (cause, mut completions) = death_of(&mut link);
        assert!(matches!(cause, FabricError::Protocol(_)), "kind {kind}: {cause}");
        link.abort(&mut completions);
        assert_eq!(completions.len(), 1, "the buffer comes back");
    }
}

#[test]
fn a_write_that_is_acknowledged_before_it_was_sent_ends_the_link() {
    let (near, mut peer) = sockets();
    let mut link = TcpLink::new(near, SoftDomain::new()).expect("link");
    // More than both sockets hold, so that most of it is still here.
    let (from, to) = (Buffer::new(16 << 20).expect("buffer"), RemoteRange { key: 1, address: 0 });
    link.submit(Ticket(5), Op::Write { from, to }).expect("has room");
    link.poll(&mut Vec::new()).expect("some of it is on its way");
    peer.write_all(&header(DONE, 0, 5, 0, 0)).expect("writes");
    let (cause, mut completions) = death_of(&mut link);
    assert!(matches!(cause, FabricError::Protocol(_)), "{cause}");
    link.abort(&mut completions);
    assert_eq!(completions.len(), 1, "the buffer comes back");
}

#[test]
fn a_peer_that_asks_for_more_than_it_takes_is_cut_off() {
    let domain = SoftDomain::new();
    let slot = SharedSlot::new(1 << 20).expect("slot");
    let region = domain.register(Memory::Staged(slot)).expect("registers");
    let (near, mut peer) = sockets();
    let mut link = TcpLink::new(near, domain).expect("link");
    for ticket in 0..200 {
        let read = header(READ, 1 << 20, ticket, region.key, region.base);
        peer.write_all(&read).expect("writes");
    }
    let (cause, _) = death_of(&mut link);
    assert!(matches!(cause, FabricError::Protocol(_)), "{cause}");
}

#[test]
fn a_refusal_is_told_to_the_peer_before_the_link_ends() {
    let (near, mut peer) = sockets();
    let mut link = TcpLink::new(near, SoftDomain::new()).expect("link");
    peer.write_all(&header(READ, 10, 42, 7, 0)).expect("writes");
    assert!(matches!(death_of(&mut link).0, FabricError::Access(_)));
    link.abort(&mut Vec::new());
    let mut answer = [0; HEADER_BYTES];
    peer.read_exact(&mut answer).expect("an answer comes");
    assert_eq!(answer, header(REFUSED, 0, 42, 0, 0));
}

#[test]
fn a_refusal_is_told_before_all_that_waits_and_that_is_not_sent() {
    let domain = SoftDomain::new();
    let bytes = pattern(1 << 20);
    let window = MappedFile::new(file_with(&bytes), 0, bytes.len()).expect("maps");
    let file = domain.register(Memory::File(window)).expect("registers");
    let (near, mut peer) = sockets();
    let mut link = TcpLink::new(near, domain).expect("link");
    let read = |ticket, key| header(READ, bytes.len() as u32, ticket, key, file.base);
    let asked: Vec<_> = (0..50).flat_map(|ticket| read(ticket, file.key)).collect();
    peer.write_all(&asked).expect("writes");
    peer.write_all(&read(99, file.key + 1)).expect("writes");
    assert!(matches!(death_of(&mut link).0, FabricError::Access(_)));
    link.abort(&mut Vec::new());
    drop(link);
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer).expect("an answer comes");
    assert_eq!(answer, header(REFUSED, 0, 99, 0, 0), "50 MiB would keep its worker");
}

/// How the kernel avoids congestion for a socket.
fn congestion(socket: impl AsFd) -> String {
    sockopt::tcp_congestion(socket).expect("a name")
}

#[test]
fn nothing_is_paced_on_loopback_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let usual = congestion(&listener);
    let address = listener.local_addr().expect("address");
    tcp::unpace(&listener, "192.0.2.1:1".parse().expect("an address"));
    assert_eq!(congestion(&listener), usual, "somebody's network");
    tcp::unpace(&listener, address);
    let near = tcp::join(address, &[7; tcp::SECRET_BYTES], DEADLINE).expect("joins");
    let (far, _) = listener.accept().expect("accepts");
    assert_eq!((congestion(near), congestion(far)), ("reno".into(), "reno".into()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn garbage_ends_the_link_and_returns_every_buffer(
        kind in 0_u8..9,
        zeros: bool,
        mut head: [u8; 32],
        tail in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let (near, mut peer) = sockets();
        let domain = SoftDomain::new();
        let slot = SharedSlot::new(1000).expect("slot");
        domain.register(Memory::Upload(slot)).expect("registers");
        let mut link = TcpLink::new(near, domain).expect("link");
        let from = RemoteRange { key: 1, address: 0 };
        link.submit(Ticket(1), read_op(from, 100)).expect("has room");
        head[0] = kind;
        if zeros {
            head[1..4].fill(0);
            head[12..16].fill(0);
        }
        peer.write_all(&head).expect("writes");
        peer.write_all(&tail).expect("writes");
        peer.shutdown(std::net::Shutdown::Write).expect("ends");
        let (cause, mut completions) = death_of(&mut link);
        let known = matches!(
            cause,
            FabricError::Protocol(_) | FabricError::Access(_) | FabricError::Closed
        );
        prop_assert!(known, "{}", cause);
        link.abort(&mut completions);
        prop_assert_eq!(completions.len(), 1, "the buffer comes back");
    }
}
