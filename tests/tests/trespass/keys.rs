//! Keys to memory that a client should not use: another client's, guessed ones, those
//! of a lease that it gave back and of a grant that was taken from it. The device
//! refuses each, it costs the client its own queue pair, and whoever the memory
//! belongs to goes on.

use crate::*;
use verbatim_proto::WindowId;
use verbatim_proto::message::{Lease, OpenFile, ReadReply, ReadRequest};

/// Guesses on either side of a key, each on a queue pair of its own.
const GUESSES: u64 = 8;

impl Rude {
    /// Opens a file of the read-only export, and waits for its first window.
    fn lease(&mut self, path: &str) -> Lease {
        let path = WirePath::parse(path.as_bytes()).expect("a path");
        let files = vec![OpenFile { file: FILE, path, have: Vec::new() }];
        self.say(ClientMessage::Read(ReadRequest::Open { files }));
        self.hear("lease", |message| match message {
            ServerMessage::Read(ReadReply::Lease(lease)) => Some(lease.clone()),
            _ => None,
        })
    }

    /// Gives a window back, and waits until that is done: what is asked behind it is answered.
    fn release(&mut self, window: WindowId) {
        self.say(ClientMessage::Read(ReadRequest::Release { windows: vec![window] }));
        self.say(ClientMessage::Read(ReadRequest::Close { files: vec![FILE], describe: false }));
        self.hear("end of the file", |message| {
            matches!(message, ServerMessage::Read(ReadReply::Closed { .. })).then_some(())
        });
    }

    /// Reads a little over a link; what it brought.
    fn read(&mut self, link: &mut VerbsLink, from: RemoteRange) -> Result<Buffer, FabricError> {
        let into = Buffer::new(4096).expect("a buffer");
        self.submit(link, Op::Read { from, into });
        let (begin, mut done) = (Instant::now(), Vec::new());
        while done.is_empty() {
            link.poll(&mut done)?;
            let late = begin.elapsed() >= ANSWER_MAX;
            assert!(!late, "the read from {from:?} has not completed in {ANSWER_MAX:?}");
            std::thread::sleep(Duration::from_micros(100));
        }
        match done.swap_remove(0) {
            Completion::Done { result, buffer, .. } => result.map(|()| buffer),
            Completion::Notified { tag } => panic!("the server writes to us: {tag}"),
        }
    }
}

#[track_caller]
fn assert_refused<T>(ended: Result<T, FabricError>, what: &str) {
    let refused = ended.err().unwrap_or_else(|| panic!("{what} was let through"));
    assert!(refused.to_string().contains("remote access error"), "{what}: {refused}");
}

fn window_of(lease: &Lease) -> RemoteRange {
    RemoteRange { key: lease.region.key, address: lease.region.base }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_lease_is_read_by_its_own_session_and_only_until_it_is_released() {
    let pair = Pair::in_memory(Backend::Verbs);
    let bytes = tree::content(8, CHUNK);
    tree::write(&pair.served("ro/a"), &bytes);
    beside_an_honest_client(&pair, || {
        let link = |epoch| LinkId { index: 0, epoch };
        let (mut owner, mut thief) = (Rude::connect(&pair), Rude::connect(&pair));
        let mut first = owner.attach(link(0)).expect("a link");
        let mut at = thief.attach(link(0)).expect("a link");
        let (lease, own) = (owner.lease("ro/a"), thief.lease("ro/a"));
        // Another client's key, then those beside its own. Each costs a queue pair.
        let near = (1..=GUESSES).map(|step| own.region.key ^ (step << 8));
        for (key, epoch) in std::iter::once(lease.region.key).chain(near).zip(1..) {
            let from = RemoteRange { key, ..window_of(&lease) };
            assert_refused(thief.read(&mut at, from), "a key of somebody else");
            thief.fence(link(epoch - 1));
            at = thief.attach(link(epoch)).expect("another link");
        }
        let got = thief.read(&mut at, window_of(&own)).expect("its own lease");
        assert!(got[..] == bytes[..4096], "its own window is as it was");
        // Whose key it was read with it all the while, and not when it was given back.
        let got = owner.read(&mut first, window_of(&lease)).expect("its own lease");
        assert!(got[..] == bytes[..4096], "the owner reads something else");
        owner.release(lease.window);
        assert_refused(owner.read(&mut first, window_of(&lease)), "a READ after the release");
    });
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_write_after_its_grant_was_revoked_lands_nowhere() {
    let pair = Pair::in_memory(Backend::Verbs);
    let bytes = tree::content(9, CHUNK);
    let junk = vec![0xEE; 4096];
    beside_an_honest_client(&pair, || {
        let link = |index, epoch| LinkId { index, epoch };
        let (mut rude, mut other) = (Rude::connect(&pair), Rude::connect(&pair));
        let (one, two) = (rude.attach(link(0, 0)), rude.attach(link(1, 0)));
        let (one, mut two) = (one.expect("a link"), two.expect("another"));
        let mut foreign = other.attach(link(0, 0)).expect("a link");
        rude.create("rw/rude", &bytes);
        let (revoked, kept) = (rude.grant(link(0, 0)), rude.grant(link(1, 0)));
        // Somebody else may not write there while it is granted, either.
        let tag = Tag(u32::MAX);
        let ended = other.write(&mut foreign, start_of(&kept), tag, &junk);
        assert_refused(ended, "a WRITE to a grant of somebody else");
        // The link that it was granted on is over, so the grant is; another link is not.
        rude.fence(link(0, 0));
        drop(one);
        let ended = rude.write(&mut two, start_of(&revoked), revoked.tag, &junk);
        assert_refused(ended, "a WRITE after revocation");
        rude.fence(link(1, 0));
        let mut anew = rude.attach(link(0, 1)).expect("another link");
        let grant = rude.grant(link(0, 1));
        rude.write(&mut anew, start_of(&grant), grant.tag, &bytes).expect("inside");
        assert_eq!(rude.sent(grant.tag, 0, &bytes, bytes.len()), [Verdict::Stored]);
        rude.commit(&bytes).expect("it is whole");
    });
    assert!(read(&pair.served("rw/rude")) == bytes, "a late write reached the file");
}
