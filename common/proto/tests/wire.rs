//! Properties of the wire: what a peer may send, however odd, is a message or an
//! error, and never a panic, a long wait or more memory than its frame explains.
//! The bytes of each message are fixed in `golden.rs`, not here.

#![forbid(unsafe_code)]

use proptest::collection::vec;
use proptest::prelude::*;
use serde::{Serialize, de::DeserializeOwned};
use std::time::{Duration, Instant};
use verbatim_proto::message::{
    CommitFile, CreateFile, Entry, EntryKind, FileInfo, Grant, Hello, Holes, JoinSecret, Lease,
    LinkAnswer, LinkOffer, NewEntry, Offer, OpenFile, Piece, Proof, RailAnswer, ReadReply,
    ReadRequest, SentChunk, Spot, SpotReply, SpotRequest, Taken, Verdict, Welcome, WindowHoles,
    WindowRails, WriteReply, WriteRequest,
};
use verbatim_proto::meta::Xattr;
use verbatim_proto::units::{FRAME_BYTES_MAX, PATH_BYTES_MAX};
use verbatim_proto::wire::{PREFIX_BYTES, WireError, body_bytes, decode, encode};
use verbatim_proto::{
    ClientMessage, Code, Digest, Dropped, Extent, Fault, FileId, Kept, LinkId, Look, Meta, Region,
    Scan, ServerMessage, Tag, WindowId, WirePath,
};

/// Entries of a generated list: enough to have none, one and several.
const LIST_MAX: usize = 4;

/// How long the refusal of a frame may take; a frame that is believed takes for ever.
const REFUSAL_MAX: Duration = Duration::from_secs(2);

fn list<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    vec(of, 0..LIST_MAX)
}

fn path() -> impl Strategy<Value = WirePath> {
    let name = vec(prop_oneof![1..=46_u8, 48..=255_u8], 1..12);
    vec(name, 0..4)
        .prop_filter_map("a path that is refused", |names| WirePath::parse(&names.join(&b'/')).ok())
}

/// Text as it is heard: nothing in it acts on a terminal.
fn text() -> impl Strategy<Value = String> {
    ".{0,20}".prop_map(|text| verbatim_proto::text::clean(&text).into_owned())
}

fn fault() -> impl Strategy<Value = Fault> {
    let codes = vec![Code::NotFound, Code::Mismatch, Code::Limit, Code::Interrupted];
    (prop::sample::select(codes), text()).prop_map(|(code, text)| Fault::new(code, text))
}

fn file() -> impl Strategy<Value = FileId> {
    any::<u32>().prop_map(FileId)
}

fn link() -> impl Strategy<Value = LinkId> {
    any::<(u16, u16)>().prop_map(|(index, epoch)| LinkId { index, epoch })
}

fn extent() -> impl Strategy<Value = Extent> {
    any::<(u64, u64)>().prop_map(|(offset, len)| Extent::new(offset, len))
}

fn region() -> impl Strategy<Value = Region> {
    any::<(u64, u64)>().prop_map(|(key, base)| Region { key, base })
}

fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest)
}

fn piece() -> impl Strategy<Value = Piece> {
    (file(), extent(), list(digest())).prop_map(|(file, extent, digests)| Piece {
        file,
        extent,
        digests,
    })
}

fn holes() -> impl Strategy<Value = Holes> {
    (file(), list(extent())).prop_map(|(file, extents)| Holes { file, extents })
}

fn info() -> impl Strategy<Value = FileInfo> {
    let values = any::<(u64, u32, i64, u64, Option<u64>)>();
    values.prop_map(|(size, mode, mtime_ns, allocated, version)| FileInfo {
        size,
        mode,
        mtime_ns,
        allocated,
        version,
    })
}

fn kind() -> impl Strategy<Value = EntryKind> {
    prop_oneof![
        Just(EntryKind::File),
        Just(EntryKind::Folder),
        Just(EntryKind::Special),
        vec(any::<u8>(), 0..20).prop_map(|target| EntryKind::Symlink { target }),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    (path(), kind(), info(), kept()).prop_map(|(path, kind, info, meta)| Entry {
        path,
        kind,
        size: info.size,
        mode: info.mode,
        mtime_ns: info.mtime_ns,
        meta,
    })
}

fn new_entry() -> impl Strategy<Value = NewEntry> {
    (path(), kind(), any::<bool>(), any::<u32>(), kept(), any::<bool>()).prop_map(
        |(path, kind, force, mode, meta, unfinished)| NewEntry {
            path,
            kind,
            force,
            mode,
            meta,
            unfinished,
        },
    )
}

fn kept() -> impl Strategy<Value = Kept> {
    let bytes = || vec(any::<u8>(), 0..20);
    let xattr = (bytes(), bytes()).prop_map(|(name, value)| Xattr { name, value });
    let numbers = any::<(u32, u32, u32, i64, i64)>();
    let meta = (numbers, list(xattr)).prop_map(|((mode, uid, gid, atime_ns, mtime_ns), xattrs)| {
        Box::new(Meta { mode, uid, gid, atime_ns, mtime_ns, xattrs })
    });
    prop::option::of(meta)
}

fn or_fault<T: Clone + std::fmt::Debug>(
    good: impl Strategy<Value = T>,
) -> impl Strategy<Value = Result<T, Fault>> {
    prop::result::maybe_ok(good, fault())
}

fn read_request() -> impl Strategy<Value = ReadRequest> {
    let open = (file(), path(), list(extent())).prop_map(|(file, path, have)| OpenFile {
        file,
        path,
        have,
    });
    let window = || any::<u64>().prop_map(WindowId);
    prop_oneof![
        list(open).prop_map(|files| ReadRequest::Open { files }),
        list(window()).prop_map(|windows| ReadRequest::Release { windows }),
        (window(), list((file(), extent())))
            .prop_map(|(window, pieces)| ReadRequest::Refresh { window, pieces }),
        (list(file()), any::<bool>())
            .prop_map(|(files, describe)| ReadRequest::Close { files, describe }),
    ]
}

fn read_reply() -> impl Strategy<Value = ReadReply> {
    let lease = (any::<u64>(), region(), list(piece()));
    prop_oneof![
        list((file(), or_fault(info()))).prop_map(|files| ReadReply::Opened { files }),
        lease.prop_map(|(window, region, pieces)| {
            ReadReply::Lease(Lease { window: WindowId(window), region, pieces })
        }),
        (file(), fault()).prop_map(|(file, fault)| ReadReply::Failed { file, fault }),
        list((file(), or_fault(kept()))).prop_map(|files| ReadReply::Closed { files }),
        (any::<u64>(), holes()).prop_map(|(window, holes)| {
            ReadReply::Holes(WindowHoles { window: WindowId(window), holes })
        }),
        (any::<u64>(), list(region())).prop_map(|(window, regions)| {
            ReadReply::Rails(WindowRails { window: WindowId(window), regions })
        }),
    ]
}

fn write_request() -> impl Strategy<Value = WriteRequest> {
    let create = (file(), path(), info(), any::<bool>())
        .prop_map(|(file, path, info, stream)| CreateFile { file, path, info, stream });
    let chunk =
        (any::<u32>(), list(piece())).prop_map(|(tag, pieces)| SentChunk { tag: Tag(tag), pieces });
    let tag = || any::<u32>().prop_map(Tag);
    let spot = (tag(), file(), extent()).prop_map(|(tag, file, extent)| Spot { tag, file, extent });
    let commit =
        (file(), digest(), kept()).prop_map(|(file, root, meta)| CommitFile { file, root, meta });
    prop_oneof![
        list(create).prop_map(|files| WriteRequest::Create { files }),
        list(chunk).prop_map(|chunks| WriteRequest::Sent { chunks }),
        list(commit).prop_map(|files| WriteRequest::Commit { files }),
        list(file()).prop_map(|files| WriteRequest::Discard { files }),
        holes().prop_map(WriteRequest::Holes),
        (file(), any::<u64>()).prop_map(|(file, size)| WriteRequest::End { file, size }),
        list(spot).prop_map(|spots| WriteRequest::Spots(SpotRequest::Ask(spots))),
        list(tag()).prop_map(|tags| WriteRequest::Spots(SpotRequest::Return(tags))),
        (path(), piece()).prop_map(|(basis, piece)| WriteRequest::Offer(Offer { basis, piece })),
    ]
}

fn write_reply() -> impl Strategy<Value = WriteReply> {
    let verdict = prop_oneof![
        Just(Verdict::Stored),
        Just(Verdict::Mismatch),
        fault().prop_map(Verdict::Failed),
    ];
    let tag = || any::<u32>().prop_map(Tag);
    let grant = (tag(), link(), region(), any::<u32>())
        .prop_map(|(tag, link, region, bytes)| Grant { tag, link, region, bytes });
    prop_oneof![
        list((file(), or_fault(list(extent())))).prop_map(|files| WriteReply::Created { files }),
        (list((tag(), list(verdict))), list(grant))
            .prop_map(|(verdicts, grants)| WriteReply::Granted { verdicts, grants }),
        list((file(), or_fault(Just(())))).prop_map(|files| WriteReply::Committed { files }),
        (file(), or_fault(Just(()))).prop_map(|(file, answer)| WriteReply::Zeroed { file, answer }),
        list(file()).prop_map(|files| WriteReply::Spots(SpotReply::Taken(files))),
        list((tag(), or_fault(region())))
            .prop_map(|spots| WriteReply::Spots(SpotReply::Made(spots))),
        (file(), extent(), or_fault(list(extent()))).prop_map(|(file, extent, answer)| {
            WriteReply::Taken(Taken { file, extent, answer })
        }),
    ]
}

fn scan() -> impl Strategy<Value = Scan> {
    let exclude = list(vec(any::<u8>(), 0..20));
    (path(), any::<[bool; 3]>(), exclude).prop_map(
        |(path, [recursive, follow, describe], exclude)| Scan {
            path,
            recursive,
            follow,
            describe,
            exclude,
        },
    )
}

fn client_message() -> impl Strategy<Value = ClientMessage> {
    let proof = (any::<[u8; 32]>(), vec(any::<u8>(), 0..70))
        .prop_map(|(key, signature)| Proof { key, signature });
    let hello = (".{0,20}", prop::option::of(proof), any::<u32>());
    let offer = prop::sample::select(vec![LinkOffer::Tcp, LinkOffer::Sim]);
    prop_oneof![
        hello.prop_map(|(agent, proof, chunk_bytes)| {
            ClientMessage::Hello(Hello { agent, proof, chunk_bytes })
        }),
        (link(), offer).prop_map(|(link, offer)| ClientMessage::Attach { link, offer }),
        link().prop_map(|link| ClientMessage::Fence { link }),
        (any::<u32>(), any::<bool>(), list(path())).prop_map(|(request, follow, paths)| {
            ClientMessage::Stat { request, look: Look { follow, paths } }
        }),
        (any::<u32>(), scan()).prop_map(|(request, scan)| ClientMessage::Scan { request, scan }),
        any::<u32>().prop_map(|request| ClientMessage::ScanMore { request }),
        (any::<u32>(), list(new_entry()))
            .prop_map(|(request, entries)| ClientMessage::Make { request, entries }),
        read_request().prop_map(ClientMessage::Read),
        write_request().prop_map(ClientMessage::Write),
        Just(ClientMessage::Bye),
    ]
}

fn server_message() -> impl Strategy<Value = ServerMessage> {
    let answer = prop_oneof![
        any::<[u8; 32]>().prop_map(|secret| LinkAnswer::Tcp { secret: JoinSecret(secret) }),
        any::<u64>().prop_map(|endpoint| LinkAnswer::Sim { endpoint }),
        (any::<u16>(), any::<Vec<u8>>())
            .prop_map(|(rail, address)| LinkAnswer::Rail(RailAnswer { rail, address })),
    ];
    let page = (any::<u32>(), list(entry()), list((path(), fault())), any::<bool>());
    prop_oneof![
        (text(), any::<u64>(), any::<u16>()).prop_map(|(agent, session, links_max)| {
            ServerMessage::Welcome(Welcome { agent, session, links_max })
        }),
        fault().prop_map(ServerMessage::Refused),
        (link(), or_fault(answer))
            .prop_map(|(link, answer)| ServerMessage::Attached { link, answer }),
        link().prop_map(|link| ServerMessage::Fenced { link }),
        (any::<u32>(), list(or_fault(entry())))
            .prop_map(|(request, answers)| ServerMessage::Stated { request, answers }),
        page.prop_map(|(request, entries, faults, done)| ServerMessage::Page {
            request,
            entries,
            faults,
            done
        }),
        (any::<u32>(), list(or_fault(Just(()))))
            .prop_map(|(request, answers)| ServerMessage::Made { request, answers }),
        read_reply().prop_map(ServerMessage::Read),
        write_reply().prop_map(ServerMessage::Write),
        Just(ServerMessage::Working),
        any::<(u64, u64, u64)>().prop_map(|(owners, special_bits, xattrs)| {
            ServerMessage::Dropped(Dropped { owners, special_bits, xattrs })
        }),
    ]
}

/// The frame of a message without its prefix.
fn body_of<M: Serialize>(message: &M) -> Vec<u8> {
    encode(message).expect("it is below the cap").split_off(PREFIX_BYTES)
}

/// Checks everything a peer could do to the frame of `message` by cutting or growing it.
fn check_frame<M>(message: &M) -> Result<(), TestCaseError>
where
    M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let frame = encode(message).expect("it is below the cap");
    let (prefix, body) = frame.split_first_chunk().expect("every frame has a prefix");
    prop_assert_eq!(body_bytes(*prefix, FRAME_BYTES_MAX), Ok(body.len()));
    let back = decode::<M>(body);
    prop_assert_eq!(back.as_ref(), Ok(message));
    for cut in 0..body.len() {
        prop_assert!(decode::<M>(&body[..cut]).is_err(), "cut at {} is read", cut);
    }
    let longer = [body, &[0]].concat();
    prop_assert_eq!(decode::<M>(&longer), Err(WireError::Malformed("1 bytes left over".into())));
    Ok(())
}

/// Decodes bytes from nowhere. What is read must have been in them: written again it is no
/// longer than they were.
fn check_bytes<M: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(message) = decode::<M>(bytes) {
        let again = body_of(&message).len();
        prop_assert!(again <= bytes.len(), "{} bytes became {}", bytes.len(), again);
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_client_message_survives_and_its_pieces_do_not(message in client_message()) {
        check_frame(&message)?;
    }

    #[test]
    fn a_server_message_survives_and_its_pieces_do_not(message in server_message()) {
        check_frame(&message)?;
    }

    #[test]
    fn a_prefix_above_the_cap_is_refused(bytes in any::<u32>()) {
        let answer = body_bytes(bytes.to_le_bytes(), FRAME_BYTES_MAX);
        let bytes = bytes as usize;
        match bytes <= FRAME_BYTES_MAX {
            true => prop_assert_eq!(answer, Ok(bytes)),
            false => prop_assert_eq!(answer, Err(WireError::TooLarge { bytes, most: FRAME_BYTES_MAX })),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    #[test]
    fn any_bytes_are_a_message_or_an_error(
        // A small first byte names a variant, so that the fields behind it are reached.
        head in 0..12_u8,
        second in 0..5_u8,
        tail in vec(any::<u8>(), 0..200),
    ) {
        for bytes in [&[head, second], &tail[..]].concat().windows(tail.len() + 1) {
            check_bytes::<ClientMessage>(bytes)?;
            check_bytes::<ServerMessage>(bytes)?;
        }
    }

    #[test]
    fn a_message_with_a_flipped_byte_is_a_message_or_an_error(
        message in client_message(),
        at in any::<prop::sample::Index>(),
        mask in 1..=255_u8,
    ) {
        let mut body = body_of(&message);
        let at = at.index(body.len());
        body[at] ^= mask;
        check_bytes::<ClientMessage>(&body)?;
    }
}

/// The frame of `message` cut before its last byte, the length of an empty list, and with a
/// length in its place that no memory has.
fn with_a_list_of<M: Serialize>(message: &M, claimed: u64) -> Vec<u8> {
    let mut body = body_of(message);
    assert_eq!(body.pop(), Some(0), "the last field is an empty list");
    body.extend(body_of(&claimed));
    // Some content, so that the first elements are really read.
    body.extend([0; 64]);
    body
}

#[test]
fn a_list_that_claims_more_than_the_frame_is_refused_at_once() {
    let region = Region { key: 0, base: 0 };
    let piece = Piece { file: FileId(0), extent: Extent::new(0, 0), digests: vec![] };
    let chunk = SentChunk { tag: Tag(0), pieces: vec![piece] };
    let clients = [
        ClientMessage::Stat { request: 0, look: Look { follow: false, paths: vec![] } },
        ClientMessage::Scan { request: 0, scan: Scan::default() },
        ClientMessage::Make { request: 0, entries: vec![] },
        ClientMessage::Read(ReadRequest::Open { files: vec![] }),
        ClientMessage::Read(ReadRequest::Release { windows: vec![] }),
        ClientMessage::Read(ReadRequest::Refresh { window: WindowId(0), pieces: vec![] }),
        ClientMessage::Write(WriteRequest::Create { files: vec![] }),
        ClientMessage::Write(WriteRequest::Sent { chunks: vec![] }),
        ClientMessage::Write(WriteRequest::Sent { chunks: vec![chunk] }),
        ClientMessage::Write(WriteRequest::Commit { files: vec![] }),
    ];
    let servers = [
        ServerMessage::Refused(Fault::new(Code::Io, "")),
        ServerMessage::Made { request: 0, answers: vec![] },
        ServerMessage::Read(ReadReply::Opened { files: vec![] }),
        ServerMessage::Read(ReadReply::Lease(Lease {
            window: WindowId(0),
            region,
            pieces: vec![],
        })),
        ServerMessage::Write(WriteReply::Created { files: vec![] }),
        ServerMessage::Write(WriteReply::Granted { verdicts: vec![], grants: vec![] }),
    ];
    let began = Instant::now();
    for claimed in [1 << 20, 1 << 32, 1 << 60, u64::MAX] {
        for message in &clients {
            let body = with_a_list_of(message, claimed);
            assert!(decode::<ClientMessage>(&body).is_err(), "{message:?} with {claimed}");
        }
        for message in &servers {
            let body = with_a_list_of(message, claimed);
            assert!(decode::<ServerMessage>(&body).is_err(), "{message:?} with {claimed}");
        }
    }
    assert!(began.elapsed() < REFUSAL_MAX, "took {:?}", began.elapsed());
}

#[test]
fn a_message_larger_than_the_cap_is_not_made() {
    let fits = |files| ClientMessage::Write(WriteRequest::Discard { files });
    // Two variant bytes, three bytes of length, one byte for each file number.
    let most = FRAME_BYTES_MAX - 5;
    let frame = encode(&fits(vec![FileId(0); most])).expect("exactly the cap");
    assert_eq!(frame.len(), PREFIX_BYTES + FRAME_BYTES_MAX);
    let bytes = FRAME_BYTES_MAX + 1;
    assert_eq!(
        encode(&fits(vec![FileId(0); most + 1])),
        Err(WireError::TooLarge { bytes, most: FRAME_BYTES_MAX })
    );
}

#[test]
fn a_path_longer_than_the_bound_is_refused_on_the_wire() {
    // A `Stat` by hand, because a path this long cannot be made into a message.
    let stat = |slashes: usize| {
        let path = "a/".repeat(slashes) + "a";
        decode::<ClientMessage>(&[body_of(&(3_u8, 0_u32, false, 1_u8)), body_of(&path)].concat())
    };
    let longest = PATH_BYTES_MAX / 2 - 1;
    assert!(matches!(stat(longest), Ok(ClientMessage::Stat { .. })));
    assert!(stat(longest + 1).is_err());
}
