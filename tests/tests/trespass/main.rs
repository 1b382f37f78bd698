//! A client that breaks the rules on a real RDMA device: it speaks the protocol
//! by hand, writes where it may not, says things twice and asks for too much.
//! Each time it gets nothing by it, its session goes on or is told why it ends,
//! and another client's copy is whole. Run by `tests/softroce/run`.

mod exhausting;
mod keys;

use std::sync::Arc;
use std::time::{Duration, Instant};
use verbatim_fabric::verbs::{
    self, Address, DomainLimits, Options, Place, VerbsDomain, VerbsEndpoint, VerbsLink, Wish,
};
use verbatim_fabric::{Buffer, Completion, FabricError, Link, Op, RemoteRange, Ticket};
use verbatim_proto::message::{
    CommitFile, CreateFile, FileInfo, Grant, LinkAnswer, LinkOffer, Piece, SentChunk, Spot,
    SpotReply, SpotRequest, Verdict, WriteReply, WriteRequest,
};
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, SLOTS_PER_LINK};
use verbatim_proto::{
    ClientMessage, Code, Digest, Extent, Fault, FileId, LinkId, ServerMessage, Tag, WirePath,
};
use verbatim_tests::pair::{Backend, Pair, read};
use verbatim_tests::raw::{ANSWER_MAX, Raw};
use verbatim_tests::tree;

const CHUNK: usize = CHUNK_BYTES_DEFAULT as usize;

const FILE: FileId = FileId(1);

/// A session whose every message is chosen by the test.
struct Rude {
    raw: Raw,
    place: Place,
    domain: Arc<VerbsDomain>,
    grants: Vec<Grant>,
    verdicts: Vec<(Tag, Vec<Verdict>)>,
    tickets: u64,
}

impl Rude {
    fn connect(pair: &Pair) -> Self {
        let raw = Raw::connect(&pair.up(&[], "rw").session.connect);
        let local = verbs::local_address_towards(raw.connection.peer);
        let place = verbs::find_place(&Wish { local, ..Wish::default() }).expect("a device");
        let domain = VerbsDomain::open(&place, DomainLimits::default()).expect("a domain");
        let (grants, verdicts) = (Vec::new(), Vec::new());
        Self { raw, place, domain, grants, verdicts, tickets: 0 }
    }

    fn say(&mut self, message: ClientMessage) {
        self.raw.say(message);
    }

    /// Waits for the answer that `wanted` takes. Grants and verdicts are kept, the rest is not.
    #[track_caller]
    fn hear<T>(&mut self, what: &str, mut wanted: impl FnMut(&ServerMessage) -> Option<T>) -> T {
        let (begin, mut last) = (Instant::now(), None);
        loop {
            let late = begin.elapsed() >= ANSWER_MAX;
            assert!(!late, "the server sends no {what} in {ANSWER_MAX:?}; heard last: {last:?}");
            let message = self.raw.next(what).unwrap_or_else(|| {
                panic!("the server hung up before it sent a {what}; heard last: {last:?}")
            });
            if let ServerMessage::Write(WriteReply::Granted { verdicts, grants }) = &message {
                self.verdicts.extend(verdicts.iter().cloned());
                self.grants.extend(grants.iter().copied());
            }
            if let Some(answer) = wanted(&message) {
                return answer;
            }
            last = Some(message);
        }
    }

    fn attach(&mut self, link: LinkId) -> Result<VerbsLink, Fault> {
        let endpoint = VerbsEndpoint::new(&self.domain, &self.place, Options::default());
        let endpoint = endpoint.expect("an endpoint");
        let address = Address { spots: true, ..endpoint.address() }.to_bytes().to_vec();
        self.say(ClientMessage::Attach { link, offer: LinkOffer::Verbs { address } });
        let answer = self.hear("link", |message| match message {
            ServerMessage::Attached { link: made, answer } if *made == link => Some(answer.clone()),
            _ => None,
        })?;
        let LinkAnswer::Verbs { address } = answer else { panic!("not of a device: {answer:?}") };
        let peer = Address::from_bytes(&address).expect("an address");
        Ok(endpoint.connect(&peer).expect("connects"))
    }

    fn create(&mut self, path: &str, bytes: &[u8]) {
        let size = bytes.len() as u64;
        let info = FileInfo { size, mode: 0o644, mtime_ns: 0, allocated: size, version: None };
        let path = WirePath::parse(path.as_bytes()).expect("a path");
        let files = vec![CreateFile { file: FILE, path, info, stream: false }];
        self.say(ClientMessage::Write(WriteRequest::Create { files }));
        self.hear("file", |message| match message {
            ServerMessage::Write(WriteReply::Created { files }) => {
                Some(files[0].1.as_ref().expect("it is made").clone())
            }
            _ => None,
        });
    }

    /// Takes a grant of a link.
    fn grant(&mut self, link: LinkId) -> Grant {
        let of_link = |grant: &Grant| grant.link == link;
        if !self.grants.iter().any(of_link) {
            self.hear("grant", |message| match message {
                ServerMessage::Write(WriteReply::Granted { grants, .. }) => {
                    grants.iter().any(of_link).then_some(())
                }
                _ => None,
            });
        }
        let at = self.grants.iter().position(of_link).expect("it was just there");
        self.grants.remove(at)
    }

    /// Has a grant be for a range of the file; where that is.
    fn spot(&mut self, grant: &Grant, offset: usize, len: usize) -> RemoteRange {
        let extent = Extent { offset: offset as u64, len: len as u64 };
        let spots = vec![Spot { tag: grant.tag, file: FILE, extent }];
        self.say(ClientMessage::Write(WriteRequest::Spots(SpotRequest::Ask(spots))));
        let region = self.hear("spot", |message| match message {
            ServerMessage::Write(WriteReply::Spots(SpotReply::Made(spots))) => {
                Some(spots[0].1.clone())
            }
            _ => None,
        });
        let region = region.expect("the file is in memory");
        RemoteRange { key: region.key, address: region.base }
    }

    /// Says what a slot holds, and waits for the verdict.
    fn sent(&mut self, tag: Tag, offset: usize, bytes: &[u8], size: usize) -> Vec<Verdict> {
        self.say_sent(tag, offset, bytes, size);
        self.verdict(tag)
    }

    fn say_sent(&mut self, tag: Tag, offset: usize, bytes: &[u8], size: usize) {
        let extent = Extent { offset: offset as u64, len: bytes.len() as u64 };
        let digests = Digest::of_grains(extent.offset, size as u64, bytes);
        let pieces = vec![Piece { file: FILE, extent, digests }];
        let chunks = vec![SentChunk { tag, pieces }];
        self.say(ClientMessage::Write(WriteRequest::Sent { chunks }));
    }

    fn verdict(&mut self, tag: Tag) -> Vec<Verdict> {
        self.hear("verdict", |message| match message {
            ServerMessage::Write(WriteReply::Granted { verdicts, .. }) => {
                verdicts.iter().find(|(of, _)| *of == tag).map(|(_, verdicts)| verdicts.clone())
            }
            _ => None,
        })
    }

    /// Posts a write with a notification; how it ended.
    fn write(&mut self, link: &mut VerbsLink, to: RemoteRange, tag: Tag, bytes: &[u8]) -> Ended {
        self.post(link, to, tag, bytes);
        self.ended(link, 1)
    }

    fn post(&mut self, link: &mut VerbsLink, to: RemoteRange, tag: Tag, bytes: &[u8]) {
        let from = buffer_of(bytes);
        self.submit(link, Op::WriteNotify { from, to, tag: tag.0 });
    }

    fn submit(&mut self, link: &mut VerbsLink, op: Op) {
        self.tickets += 1;
        link.submit(Ticket(self.tickets), op).expect("room");
    }

    /// Waits for so many operations; how the worst of them ended.
    fn ended(&mut self, link: &mut VerbsLink, count: usize) -> Ended {
        let (begin, mut done) = (Instant::now(), Vec::new());
        while done.len() < count {
            link.poll(&mut done)?;
            let late = begin.elapsed() >= ANSWER_MAX;
            assert!(!late, "{count} writes have not completed in {ANSWER_MAX:?}; so far: {done:?}");
            std::thread::sleep(Duration::from_micros(100));
        }
        done.into_iter().try_for_each(|done| match done {
            Completion::Done { result, .. } => result,
            Completion::Notified { tag } => panic!("the server writes to us: {tag}"),
        })
    }

    fn fence(&mut self, link: LinkId) {
        self.say(ClientMessage::Fence { link });
        self.hear("fence", |message| {
            matches!(message, ServerMessage::Fenced { link: over } if *over == link).then_some(())
        });
        self.grants.retain(|grant| grant.link != link);
    }

    fn commit(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let files = vec![CommitFile { file: FILE, root: Digest::of(bytes), meta: None }];
        self.say(ClientMessage::Write(WriteRequest::Commit { files }));
        self.hear("commit", |message| match message {
            ServerMessage::Write(WriteReply::Committed { files }) => Some(files[0].1.clone()),
            _ => None,
        })
    }
}

type Ended = Result<(), FabricError>;

fn buffer_of(bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(bytes.len()).expect("a buffer");
    buffer.copy_from_slice(bytes);
    buffer
}

fn start_of(grant: &Grant) -> RemoteRange {
    RemoteRange { key: grant.region.key, address: grant.region.base }
}

/// Another client copies all the while, one way and back; it is slow enough to be disturbed.
fn beside_an_honest_client(pair: &Pair, offend: impl FnOnce()) {
    let bytes = tree::content(7, 6 * CHUNK);
    tree::write(&pair.local("honest"), &bytes);
    let (up, begun) = pair.up(&["honest"], "rw").paced(4 << 20).tell_when(CHUNK as u64);
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| up.run().whole());
        begun.recv_timeout(ANSWER_MAX).expect("the honest copy begins");
        offend();
        honest.join().expect("the honest copy is whole");
    });
    assert!(read(&pair.served("rw/honest")) == bytes, "the honest file differs");
    std::fs::rename(pair.served("rw/honest"), pair.served("ro/honest")).expect("moves");
    pair.down(&["ro/honest"], "back").run().whole();
    assert!(read(&pair.local("back")) == bytes, "the server serves no more");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_write_outside_a_grant_ends_its_link_and_nothing_else() {
    let pair = Pair::in_memory(Backend::Verbs);
    let bytes = tree::content(3, 2 * CHUNK);
    let link = |epoch| LinkId { index: 0, epoch };
    beside_an_honest_client(&pair, || {
        let mut rude = Rude::connect(&pair);
        let mut first = rude.attach(link(0)).expect("a link");
        rude.create("rw/rude", &bytes);
        let grant = rude.grant(link(0));
        let past = RemoteRange {
            address: grant.region.base + u64::from(grant.bytes) - 100,
            ..start_of(&grant)
        };
        let refused = rude.write(&mut first, past, grant.tag, &[9; 200]).expect_err("outside");
        assert!(refused.to_string().contains("remote access error"), "{refused}");
        // The session goes on: the link is over, and nothing that was granted on it is left.
        rude.fence(link(0));
        let mut second = rude.attach(link(1)).expect("another link");
        for (at, chunk) in bytes.chunks(CHUNK).enumerate() {
            let grant = rude.grant(link(1));
            rude.write(&mut second, start_of(&grant), grant.tag, chunk).expect("inside");
            let verdict = rude.sent(grant.tag, at * CHUNK, chunk, bytes.len());
            assert_eq!(verdict, [Verdict::Stored]);
        }
        rude.commit(&bytes).expect("it is whole");
        assert!(rude.domain.counters().writes() >= 3, "requests were posted");
    });
    assert!(read(&pair.served("rw/rude")) == bytes, "what it wrote within its rights differs");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_notification_that_comes_twice_or_names_nothing_stores_nothing() {
    let pair = Pair::in_memory(Backend::Verbs);
    let bytes = tree::content(4, 2 * CHUNK);
    let (first, second) = bytes.split_at(CHUNK);
    let id = LinkId { index: 0, epoch: 0 };
    beside_an_honest_client(&pair, || {
        let mut rude = Rude::connect(&pair);
        let mut link = rude.attach(id).expect("a link");
        rude.create("rw/rude", &bytes);
        let (one, two) = (rude.grant(id), rude.grant(id));
        // Said twice before the chunk is told of: it is taken once.
        rude.write(&mut link, start_of(&one), one.tag, first).expect("inside");
        rude.write(&mut link, start_of(&one), one.tag, first).expect("inside");
        assert_eq!(rude.sent(one.tag, 0, first, bytes.len()), [Verdict::Stored]);
        // Said again when it is over, with other bytes, and of a tag that nobody has.
        rude.write(&mut link, start_of(&one), one.tag, second).expect("its own slot");
        rude.write(&mut link, start_of(&one), Tag(u32::MAX), second).expect("its own slot");
        // Said again while the chunk is being stored: hashing it takes longer than a byte.
        rude.say_sent(two.tag, CHUNK, second, bytes.len());
        rude.post(&mut link, start_of(&two), two.tag, second);
        rude.post(&mut link, start_of(&two), two.tag, &second[..1]);
        rude.ended(&mut link, 2).expect("inside");
        // In order on the same link, so all of that is over when this is stored.
        assert_eq!(rude.verdict(two.tag), [Verdict::Stored]);
        rude.commit(&bytes).expect("it is whole");
        let tags: Vec<Tag> = rude.verdicts.iter().map(|(tag, _)| *tag).collect();
        assert_eq!(tags, [one.tag, two.tag], "each tag is judged once");
    });
    assert!(read(&pair.served("rw/rude")) == bytes, "a late write reached the file");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_client_that_asks_for_too_much_is_told_what_it_may_have() {
    let pair = Pair::in_memory(Backend::Verbs);
    beside_an_honest_client(&pair, || {
        let mut rude = Rude::connect(&pair);
        let most = rude.raw.connection.welcome.links_max;
        let link = |index| LinkId { index, epoch: 0 };
        let kept: Vec<_> = (0..2).map(|index| rude.attach(link(index)).expect("a link")).collect();
        let refused = rude.attach(link(most)).err().expect("one too many");
        assert_eq!(refused.code, Code::Limit);
        assert_eq!(refused.text, format!("a session may have {most} links"));
        // Slots: so many for each link, and a tag that was not granted is nobody's.
        rude.create("rw/rude", &[1; 100]);
        for index in 0..2 {
            for _ in 0..SLOTS_PER_LINK {
                rude.grant(link(index));
            }
        }
        assert!(rude.grants.is_empty(), "more was granted: {:?}", rude.grants);
        let piece = Piece { file: FILE, extent: Extent { offset: 0, len: 100 }, digests: vec![] };
        let chunks = vec![SentChunk { tag: Tag(1000), pieces: vec![piece] }];
        rude.say(ClientMessage::Write(WriteRequest::Sent { chunks }));
        let fault = rude.hear("end of the session", |message| match message {
            ServerMessage::Refused(fault) => Some(fault.clone()),
            _ => None,
        });
        assert_eq!(fault.code, Code::Protocol);
        assert_eq!(fault.text, "client sent a tag it was not granted");
        drop(kept);
    });
    assert!(!pair.served("rw/rude").exists(), "a file appeared");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn what_was_verified_in_its_file_cannot_be_written_to_again() {
    let pair = Pair::writing_into_files();
    let bytes = tree::content(5, 4 * CHUNK);
    let junk = vec![0xEE; CHUNK];
    let link = |epoch| LinkId { index: 0, epoch };
    let mut refusals = 0;
    beside_an_honest_client(&pair, || {
        let mut rude = Rude::connect(&pair);
        let mut made = rude.attach(link(0)).expect("a link");
        let mut epoch = 0;
        rude.create("rw/rude", &bytes);
        for (at, chunk) in bytes.chunks(CHUNK).enumerate() {
            let offset = at * CHUNK;
            // Until it is stored, each time with something that should not be there.
            loop {
                let grant = rude.grant(link(epoch));
                let to = rude.spot(&grant, offset, CHUNK);
                let racing = at % 2 == 1 && epoch < 8;
                rude.say_sent(grant.tag, offset, chunk, bytes.len());
                rude.post(&mut made, to, grant.tag, chunk);
                if racing {
                    // Behind the notification, while the server looks.
                    (0..4).for_each(|_| {
                        rude.submit(&mut made, Op::Write { from: buffer_of(&junk), to });
                    });
                }
                let verdict = rude.verdict(grant.tag);
                let late = rude.ended(&mut made, if racing { 5 } else { 1 });
                // Over now, whether it matched or not: nothing can be written there.
                let again = late.and_then(|()| rude.write(&mut made, to, grant.tag, &junk));
                let refused = again.expect_err("a spot that was judged was written to");
                assert!(refused.to_string().contains("remote access error"), "{refused}");
                refusals += 1;
                rude.fence(link(epoch));
                epoch += 1;
                made = rude.attach(link(epoch)).expect("another link");
                match &verdict[..] {
                    [Verdict::Stored] => break,
                    [Verdict::Mismatch] => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        rude.commit(&bytes).expect("it is whole");
    });
    assert!(refusals >= 4);
    assert!(read(&pair.served("rw/rude")) == bytes, "a byte came behind its verification");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_range_has_one_spot_or_none_and_a_file_with_one_is_not_committed() {
    const ID: LinkId = LinkId { index: 0, epoch: 0 };
    let pair = Pair::writing_into_files();
    let bytes = tree::content(6, 2 * CHUNK);
    let told = |offend: fn(&mut Rude, &mut VerbsLink, &[u8])| {
        let mut rude = Rude::connect(&pair);
        let mut link = rude.attach(ID).expect("a link");
        rude.create("rw/rude", &bytes);
        offend(&mut rude, &mut link, &bytes);
        let fault = rude.hear("end of the session", |message| match message {
            ServerMessage::Refused(fault) => Some(fault.clone()),
            _ => None,
        });
        assert!(!pair.served("rw/rude").exists(), "a file appeared: {fault}");
        fault.text
    };
    // What may be written to may not be sent as well.
    let text = told(|rude, link, bytes| {
        let (one, two) = (rude.grant(ID), rude.grant(ID));
        rude.spot(&one, 0, CHUNK);
        rude.write(link, start_of(&two), two.tag, &bytes[..CHUNK]).expect("its slot");
        rude.say_sent(two.tag, 0, &bytes[..CHUNK], bytes.len());
    });
    assert!(text.contains("range it sent before"), "{text}");
    let text = told(|rude, _, bytes| {
        let grant = rude.grant(ID);
        rude.spot(&grant, 0, CHUNK);
        let files = vec![CommitFile { file: FILE, root: Digest::of(bytes), meta: None }];
        rude.say(ClientMessage::Write(WriteRequest::Commit { files }));
    });
    assert!(text.contains("not whole"), "{text}");
    let text = told(|rude, _, bytes| {
        let extent = Extent { offset: 0, len: bytes.len() as u64 };
        let spots = vec![Spot { tag: rude.grant(ID).tag, file: FILE, extent }];
        rude.say(ClientMessage::Write(WriteRequest::Spots(SpotRequest::Ask(spots))));
    });
    assert!(text.contains("no chunk of its file"), "{text}");
}
