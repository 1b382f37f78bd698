//! Golden bytes: one frame per variant of every message, as it was first written.
//! A change that makes an old peer misread a new one fails here, not in a field.
//!
//! To append a variant: add it at the end of its enum, then its name at the end of
//! its `variants!` line (the compiler asks for it), then a sample in `samples`
//! (`every_variant_has_a_sample` asks for it), then paste the two lines that
//! `every_sample_has_its_golden_bytes` prints into `GOLDEN`. Bytes already in the
//! table never change without a new protocol version.

#![forbid(unsafe_code)]

use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::fmt::Debug;
use verbatim_proto::message::{
    CommitFile, CreateFile, Entry, EntryKind, FileInfo, Grant, Hello, Holes, JoinSecret, Lease,
    LinkAnswer, LinkOffer, NewEntry, Offer, OpenFile, Piece, Proof, RailAnswer, ReadReply,
    ReadRequest, SealedAnswer, SentChunk, Spot, SpotReply, SpotRequest, Taken, Verdict, Welcome,
    WindowHoles, WindowRails, WriteReply, WriteRequest,
};
use verbatim_proto::meta::{Keeps, Xattr};
use verbatim_proto::mirror::{About, Edit, MirrorReply, MirrorRequest, Staged, TreeScan};
use verbatim_proto::owners::{Owner, OwnerName};
use verbatim_proto::probing::{ProbeRequest, Probed};
use verbatim_proto::tree::{Node, Twin};
use verbatim_proto::units::FRAME_BYTES_MAX;
use verbatim_proto::wire::{body_bytes, decode, encode};
use verbatim_proto::{
    Change, Changes, ClientMessage, Code, Digest, Dropped, Extent, Fault, FileId, Habits, Kept,
    Lacks, LinkId, Look, Meta, Named, Region, Resolution, Scan, ServerMessage, Tag, Ties, Watch,
    WatchReply, WatchRequest, WindowId, WirePath,
};

/// An enum that crosses the wire, with a sample of each of its variants.
trait Golden: Serialize + DeserializeOwned + Debug + PartialEq {
    const ENUM: &'static str;
    const NAMES: &'static [&'static str];
    fn name_of(&self) -> &'static str;
    fn samples() -> Vec<Self>;
}

/// Names every variant of an enum. The match has no wildcard: a new variant does not
/// compile until it is named here.
macro_rules! variants {
    ($enum:ident: $($name:ident)* => $samples:expr) => {
        impl Golden for $enum {
            const ENUM: &'static str = stringify!($enum);
            const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];
            fn name_of(&self) -> &'static str {
                match self { $(Self::$name { .. } => stringify!($name)),* }
            }
            fn samples() -> Vec<Self> {
                $samples
            }
        }
    };
}

variants!(ClientMessage: Hello Attach Fence Stat Scan ScanMore Make Read Write Bye Watch Mirror Probe
    TellTies ReplaceNothing TellRehashed => client());
variants!(ServerMessage: Welcome Refused Attached Fenced Stated Page Made Read Write Working Dropped
    Watch Mirror Probed Ties Rehashed => server());
variants!(ReadRequest: Open Release Refresh Close => read_requests());
variants!(ReadReply: Opened Lease Failed Closed Holes Rails => read_replies());
variants!(WriteRequest: Create Sent Commit Discard Holes End Spots Offer => write_requests());
variants!(WriteReply: Created Granted Committed Zeroed Spots Taken => write_replies());
variants!(WatchRequest: Begin More End => watch_requests());
variants!(WatchReply: Changed Ended => watch_replies());
variants!(MirrorRequest: Begin Walk WalkMore Edit WalkOnly Stage Publish NamesOf NumbersOf Share
    WalkPlain WalkUnless HabitsOf => mirror_requests());
variants!(MirrorReply: Begun Walked Changed Staged Published Names Numbers Alike Habits
    => mirror_replies());
variants!(Resolution: Nanosecond HundredNanoseconds Microsecond Millisecond TenMilliseconds Second
    TwoSeconds => Resolution::ALL.to_vec());
variants!(Edit: Link Describe Remove Sweep Own => edits());
variants!(LinkOffer: Tcp Sim Verbs => vec![
    LinkOffer::Tcp,
    LinkOffer::Sim,
    LinkOffer::Verbs { address: vec![1, 1, 0xfe] },
]);
variants!(LinkAnswer: Tcp Sim Verbs Rail Sealed => vec![
    LinkAnswer::Tcp { secret: JoinSecret([0x5e; 32]) },
    LinkAnswer::Sim { endpoint: 300 },
    LinkAnswer::Verbs { address: vec![1, 0, 0x80] },
    LinkAnswer::Rail(RailAnswer { rail: 300, address: vec![1, 0, 0x80] }),
    LinkAnswer::Sealed(SealedAnswer { secret: JoinSecret([0x5e; 32]), reason: "so".into() }),
]);
variants!(EntryKind: File Folder Symlink Special => vec![
    EntryKind::File,
    EntryKind::Folder,
    EntryKind::Symlink { target: b"../b".to_vec() },
    EntryKind::Special,
]);
variants!(Verdict: Stored Mismatch Failed => vec![
    Verdict::Stored,
    Verdict::Mismatch,
    Verdict::Failed(fault()),
]);
variants!(Code: NotFound Denied BadPath IsFolder NotFolder Special ReadOnly NoSpace Changed
    Mismatch Io Limit Protocol Version NotAuthenticated LinkLost TimedOut Stopping
    Interrupted Bug Exists => codes());

fn codes() -> Vec<Code> {
    use Code::*;
    let first = [NotFound, Denied, BadPath, IsFolder, NotFolder, Special, ReadOnly, NoSpace];
    let second = [Changed, Mismatch, Io, Limit, Protocol, Version, NotAuthenticated, LinkLost];
    [&first[..], &second, &[TimedOut, Stopping, Interrupted, Bug, Exists]].concat()
}

fn client() -> Vec<ClientMessage> {
    let (request, agent) = (7, "rdma-cp 0.1".to_owned());
    let proof = Some(Proof { key: [0xab; 32], signature: vec![0xcd; 64] });
    let folder = NewEntry {
        path: path("x/new"),
        kind: EntryKind::Folder,
        force: true,
        mode: 0o755,
        meta: None,
        unfinished: true,
    };
    let symlink = NewEntry {
        path: path("x/link"),
        kind: EntryKind::Symlink { target: b"new".to_vec() },
        force: false,
        mode: 0o777,
        meta: kept(),
        unfinished: false,
    };
    let look = Look { follow: true, paths: vec![path("x/a.bin"), path("y")] };
    let exclude = vec![b"*.tmp".to_vec()];
    let scan = Scan { path: path("x"), recursive: true, follow: false, describe: true, exclude };
    vec![
        ClientMessage::Hello(Hello { agent: agent.clone(), proof, chunk_bytes: 1 << 20 }),
        ClientMessage::Hello(Hello { agent, proof: None, chunk_bytes: 1 << 18 }),
        ClientMessage::Attach { link: link(), offer: LinkOffer::Tcp },
        ClientMessage::Fence { link: link() },
        ClientMessage::Stat { request, look },
        ClientMessage::Scan { request, scan },
        ClientMessage::ScanMore { request: u32::MAX },
        ClientMessage::Make { request, entries: vec![folder, symlink] },
        ClientMessage::Read(ReadRequest::Close { files: vec![FileId(1)], describe: false }),
        ClientMessage::Write(WriteRequest::Discard { files: vec![FileId(2)] }),
        ClientMessage::Bye,
        ClientMessage::Watch(WatchRequest::More { request }),
        ClientMessage::Mirror(MirrorRequest::WalkMore { request }),
        ClientMessage::Probe(ProbeRequest { link: LinkId { index: 3, epoch: 1 }, bytes: 1 << 20 }),
        ClientMessage::TellTies,
        ClientMessage::ReplaceNothing,
        ClientMessage::TellRehashed,
    ]
}

fn server() -> Vec<ServerMessage> {
    let (request, agent) = (7, "rdma-serve 0.1".to_owned());
    let answer = LinkAnswer::Sim { endpoint: 9 };
    let (entries, faults) = (vec![entry()], vec![(path("locked"), fault())]);
    vec![
        ServerMessage::Welcome(Welcome { agent, session: u64::MAX, links_max: 64 }),
        ServerMessage::Refused(fault()),
        ServerMessage::Attached { link: link(), answer: Ok(answer) },
        ServerMessage::Attached { link: link(), answer: Err(fault()) },
        ServerMessage::Fenced { link: link() },
        ServerMessage::Stated { request, answers: vec![Ok(entry()), Err(fault())] },
        ServerMessage::Page { request, entries, faults, done: true },
        ServerMessage::Made { request, answers: vec![Ok(()), Err(fault())] },
        ServerMessage::Read(ReadReply::Closed { files: vec![(FileId(1), Ok(None))] }),
        ServerMessage::Write(WriteReply::Committed { files: vec![(FileId(2), Ok(()))] }),
        ServerMessage::Working,
        ServerMessage::Dropped(Dropped { owners: 1, special_bits: 300, xattrs: 0 }),
        ServerMessage::Watch(WatchReply::Ended { request, fault: fault() }),
        ServerMessage::Mirror(MirrorReply::Changed { request, answers: vec![Ok(())] }),
        ServerMessage::Probed(Ok(Probed {
            read: Region { key: 300, base: 4096 },
            write: Region { key: 301, base: 8192 },
            bytes: 1 << 20,
        })),
        ServerMessage::Ties { request, ties: vec![None, Some(tied(None)), Some(tied(Some(9)))] },
        ServerMessage::Rehashed { bytes: 300 },
    ]
}

fn tied(version: Option<u64>) -> Ties {
    let twin = version.map(|_| Named { file: 300, version });
    Ties { uid: 1000, gid: 7, names: 2, twin }
}

fn watch_requests() -> Vec<WatchRequest> {
    let watch = Watch { path: path("x/data"), exclude: vec![b"*.tmp".to_vec()] };
    vec![
        WatchRequest::Begin { request: 300, watch },
        WatchRequest::More { request: 300 },
        WatchRequest::End { request: u32::MAX },
    ]
}

fn watch_replies() -> Vec<WatchReply> {
    let change = |name: &str, below| Change { path: path(name), below };
    let changes = Changes { changes: vec![change("", false), change("a/b", true)], rescan: false };
    vec![
        WatchReply::Changed { request: 300, changes },
        WatchReply::Changed { request: 300, changes: Changes::rescan() },
        WatchReply::Ended { request: 300, fault: fault() },
    ]
}

fn read_requests() -> Vec<ReadRequest> {
    let have = vec![Extent::new(0, 1 << 20)];
    let pieces = vec![(FileId(3), Extent::new(1 << 24, 1 << 18))];
    vec![
        ReadRequest::Open {
            files: vec![OpenFile { file: FileId(3), path: path("x/a.bin"), have }],
        },
        ReadRequest::Release { windows: vec![WindowId(1), WindowId(u64::MAX)] },
        ReadRequest::Refresh { window: WindowId(5), pieces },
        ReadRequest::Close { files: vec![FileId(0), FileId(u32::MAX)], describe: true },
    ]
}

fn read_replies() -> Vec<ReadReply> {
    let region = Region { key: 0x1122_3344_5566, base: u64::MAX };
    vec![
        ReadReply::Opened { files: vec![(FileId(3), Ok(info())), (FileId(4), Err(fault()))] },
        ReadReply::Lease(Lease { window: WindowId(5), region, pieces: vec![piece()] }),
        ReadReply::Failed { file: FileId(3), fault: fault() },
        ReadReply::Closed { files: vec![(FileId(3), Ok(kept())), (FileId(4), Err(fault()))] },
        ReadReply::Holes(WindowHoles { window: WindowId(6), holes: holes() }),
        ReadReply::Rails(WindowRails { window: WindowId(7), regions: vec![region, region] }),
    ]
}

fn write_requests() -> Vec<WriteRequest> {
    let file = CreateFile { file: FileId(6), path: path("x/b.bin"), info: info(), stream: true };
    let spot = Spot { tag: Tag(900), file: FileId(6), extent: Extent::new(1 << 20, 1 << 20) };
    let commit = CommitFile { file: FileId(6), root: Digest([0xd1; 32]), meta: kept() };
    vec![
        WriteRequest::Create { files: vec![file] },
        WriteRequest::Sent { chunks: vec![SentChunk { tag: Tag(900), pieces: vec![piece()] }] },
        WriteRequest::Commit { files: vec![commit] },
        WriteRequest::Discard { files: vec![FileId(6), FileId(200)] },
        WriteRequest::Holes(holes()),
        WriteRequest::End { file: FileId(6), size: 5_000_000_000 },
        WriteRequest::Spots(SpotRequest::Ask(vec![spot])),
        WriteRequest::Spots(SpotRequest::Return(vec![Tag(900), Tag(1)])),
        WriteRequest::Offer(Offer { basis: path("x/b.bin"), piece: piece() }),
    ]
}

fn write_replies() -> Vec<WriteReply> {
    let have = vec![Extent::new(0, 1 << 18), Extent::new(1 << 20, 5)];
    let verdicts = vec![(Tag(900), vec![Verdict::Stored, Verdict::Mismatch])];
    let region = Region { key: 1, base: 0x7f00_0000_1000 };
    let extent = Extent::new(1 << 20, 5);
    let grant = Grant { tag: Tag(u32::MAX), link: link(), region, bytes: 1 << 20 };
    vec![
        WriteReply::Created { files: vec![(FileId(6), Ok(have)), (FileId(7), Err(fault()))] },
        WriteReply::Granted { verdicts, grants: vec![grant] },
        WriteReply::Committed { files: vec![(FileId(6), Ok(())), (FileId(7), Err(fault()))] },
        WriteReply::Zeroed { file: FileId(6), answer: Ok(()) },
        WriteReply::Zeroed { file: FileId(6), answer: Err(fault()) },
        WriteReply::Spots(SpotReply::Taken(vec![FileId(6), FileId(200)])),
        WriteReply::Spots(SpotReply::Made(vec![(Tag(900), Ok(region)), (Tag(1), Err(fault()))])),
        WriteReply::Taken(Taken { file: FileId(6), extent, answer: Ok(vec![extent]) }),
        WriteReply::Taken(Taken { file: FileId(6), extent, answer: Err(fault()) }),
    ]
}

fn mirror_requests() -> Vec<MirrorRequest> {
    let request = 7;
    let (filter, avoid) = (vec![b"*.o".to_vec()], Some(Twin { device: 1, inode: 300 }));
    let walk = TreeScan { path: path("x"), filter, digests: true, avoid };
    let change = Change { path: path("a/b"), below: true };
    let only = Changes { changes: vec![change], rescan: false };
    let named = OwnerName { is_group: true, name: "ada".into() };
    vec![
        MirrorRequest::Begin { request, path: path("x/y"), hold: true },
        MirrorRequest::Walk { request, walk: walk.clone() },
        MirrorRequest::WalkMore { request },
        MirrorRequest::Edit { request, edits: edits()[..4].to_vec() },
        MirrorRequest::WalkOnly { request, walk: walk.clone(), only },
        MirrorRequest::Stage { request, path: path("x/y"), key: Digest([9; 32]) },
        MirrorRequest::Publish { request, path: path("x/y"), changed: true },
        MirrorRequest::NamesOf { request, owners: vec![Owner::user(300), Owner::group(5)] },
        MirrorRequest::NumbersOf { request, names: vec![named] },
        MirrorRequest::Share { key: Digest([9; 32]) },
        MirrorRequest::WalkPlain { request, walk },
        MirrorRequest::WalkUnless { request, alike: Digest([0xa1; 32]), owners: true },
        MirrorRequest::HabitsOf { request, path: path("x/y"), tries: true },
    ]
}

fn mirror_replies() -> Vec<MirrorReply> {
    let request = 7;
    let keeps = Keeps {
        user: (1, 2),
        give_away: true,
        squash: Some((3, 4)),
        special_bits: false,
        privileged_xattrs: true,
    };
    let twin = Twin { device: 5, inode: 6 };
    let (root, above, boot) = (Some(twin), vec![twin], b"boot".to_vec());
    let about = About { boot, root, above, keeps, folds_case: false };
    let node = Node {
        path: path("a"),
        kind: EntryKind::File,
        size: 300,
        meta: *kept().expect("a sample"),
        twin: Some(twin),
        digest: Some(Digest([9; 32])),
    };
    let staged = Staged { about: about.clone(), path: path("x/.y") };
    let found = vec![Ok(Box::new(node)), Err((path("b"), fault()))];
    let lacks = Lacks { user: true, lists: false, security: true, trusted: false };
    let leftovers = vec![path(".c.0123456789abcdef.verbatim-part")];
    vec![
        MirrorReply::Begun { request, answer: Ok(about.clone()) },
        MirrorReply::Walked { request, found, leftovers, done: true },
        MirrorReply::Changed { request, answers: vec![Ok(()), Err(fault())] },
        MirrorReply::Staged { request, answer: Ok(staged) },
        MirrorReply::Published { request, answer: Err(fault()) },
        MirrorReply::Names { request, names: vec![Some("ada".into()), None] },
        MirrorReply::Numbers { request, numbers: vec![Some(300), None] },
        MirrorReply::Alike { request, done: true },
        MirrorReply::Habits { request, habits: Habits { resolution: Resolution::Second, lacks } },
    ]
}

fn edits() -> Vec<Edit> {
    vec![
        Edit::Link { path: path("x/b"), to: path("x/a") },
        Edit::Describe { path: path("x/a"), meta: kept().expect("a sample") },
        Edit::Remove { path: path("x/c"), is_folder: true },
        Edit::Sweep { path: path("x/d") },
        Edit::Own { path: path("x/e"), meta: kept().expect("a sample") },
    ]
}

fn path(text: &str) -> WirePath {
    WirePath::parse(text.as_bytes()).expect("samples are plain")
}

fn fault() -> Fault {
    Fault::new(Code::NoSpace, "cannot write x: disk full")
}

fn link() -> LinkId {
    LinkId { index: 2, epoch: 513 }
}

fn info() -> FileInfo {
    let mtime_ns = 1_700_000_000_123_456_789;
    FileInfo { size: 5_000_000_000, mode: 0o644, mtime_ns, allocated: 4096, version: Some(300) }
}

fn entry() -> Entry {
    Entry {
        path: path("a.bin"),
        kind: EntryKind::File,
        size: 300,
        mode: 0o600,
        mtime_ns: -1,
        meta: None,
    }
}

fn kept() -> Kept {
    let xattrs = vec![Xattr { name: b"user.a".to_vec(), value: b"\xff\0".to_vec() }];
    let (uid, gid) = (1000, u32::MAX);
    Some(Box::new(Meta { mode: 0o4755, uid, gid, atime_ns: -1, mtime_ns: 5, xattrs }))
}

fn holes() -> Holes {
    let extents = vec![Extent::new(1 << 18, 1 << 40), Extent::new(1 << 41, 1 << 18)];
    Holes { file: FileId(6), extents }
}

fn piece() -> Piece {
    let digests = vec![Digest([0x11; 32]), Digest([0x22; 32])];
    Piece { file: FileId(3), extent: Extent::new(1 << 18, 300_000), digests }
}

/// Checks one enum: every sample comes back from its bytes, and its bytes are those of the
/// table. Returns the entries the table lacks or has otherwise, ready to paste.
fn compare<E: Golden>(table: &mut BTreeMap<String, String>) -> String {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut paste = String::new();
    for sample in E::samples() {
        let frame = encode(&sample).expect("a sample is below the cap");
        let (prefix, body) = frame.split_first_chunk().expect("every frame has a prefix");
        assert_eq!(body_bytes(*prefix, FRAME_BYTES_MAX), Ok(body.len()));
        assert_eq!(decode::<E>(body).as_ref(), Ok(&sample));

        let count = seen.entry(sample.name_of()).or_default();
        *count += 1;
        let label = match count {
            1 => format!("{}::{}", E::ENUM, sample.name_of()),
            n => format!("{}::{}#{n}", E::ENUM, sample.name_of()),
        };
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        if table.remove(&label).as_ref() != Some(&hex) {
            paste += &entry_of(&label, &hex);
        }
    }
    paste
}

/// An entry of the table as it is written: the label, then indented lines of hex.
fn entry_of(label: &str, hex: &str) -> String {
    let lines =
        hex.as_bytes().chunks(88).map(|line| std::str::from_utf8(line).expect("hex is text"));
    lines.fold(format!("{label}\n"), |text, line| format!("{text}    {line}\n"))
}

/// Reads a table: label -> hex. A label twice is an error of whoever pasted it.
fn parse(table: &str) -> BTreeMap<String, String> {
    let mut entries = BTreeMap::new();
    let mut label = "";
    for line in table.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("    ") {
            Some(hex) => *entries.get_mut(label).expect("a label comes first") += hex,
            None => {
                label = line;
                let earlier = entries.insert(label.to_owned(), String::new());
                assert_eq!(earlier, None, "{label} is in the table twice");
            }
        }
    }
    entries
}

fn compare_all(table: &mut BTreeMap<String, String>) -> String {
    [
        compare::<ClientMessage>,
        compare::<ServerMessage>,
        compare::<ReadRequest>,
        compare::<ReadReply>,
        compare::<WriteRequest>,
        compare::<WriteReply>,
        compare::<WatchRequest>,
        compare::<WatchReply>,
        compare::<MirrorRequest>,
        compare::<MirrorReply>,
        compare::<Resolution>,
        compare::<Edit>,
        compare::<LinkOffer>,
        compare::<LinkAnswer>,
        compare::<EntryKind>,
        compare::<Verdict>,
        compare::<Code>,
    ]
    .iter()
    .map(|compare| compare(table))
    .collect()
}

#[test]
fn every_sample_has_its_golden_bytes() {
    let mut table = parse(GOLDEN);
    let paste = compare_all(&mut table);
    assert!(
        paste.is_empty(),
        "the wire changed. An old variant must keep its bytes; for a new one, paste this into \
         GOLDEN in common/proto/tests/golden.rs:\n\n{paste}"
    );
    assert!(table.is_empty(), "GOLDEN has entries without a sample: {:?}", table.keys());
}

#[test]
fn a_changed_byte_is_noticed() {
    let mut table = parse(GOLDEN);
    table.insert("ClientMessage::Bye".into(), "010000000a".into());
    assert_eq!(compare_all(&mut table), "ClientMessage::Bye\n    0100000009\n");
}

#[test]
fn every_variant_has_a_sample() {
    fn missing<E: Golden>() -> Vec<String> {
        let have: Vec<&str> = E::samples().iter().map(E::name_of).collect();
        let lacks = E::NAMES.iter().filter(|name| !have.contains(name));
        lacks.map(|name| format!("{}::{name}", E::ENUM)).collect()
    }
    let missing = [
        missing::<ClientMessage>(),
        missing::<ServerMessage>(),
        missing::<ReadRequest>(),
        missing::<ReadReply>(),
        missing::<WriteRequest>(),
        missing::<WriteReply>(),
        missing::<WatchRequest>(),
        missing::<WatchReply>(),
        missing::<MirrorRequest>(),
        missing::<MirrorReply>(),
        missing::<Resolution>(),
        missing::<Edit>(),
        missing::<LinkOffer>(),
        missing::<LinkAnswer>(),
        missing::<EntryKind>(),
        missing::<Verdict>(),
        missing::<Code>(),
    ];
    assert_eq!(missing.concat(), [""; 0], "add a sample of each to golden.rs");
}

/// The frames, length prefix first, in hex.
const GOLDEN: &str = "
ClientMessage::Hello
    72000000000b72646d612d637020302e3101abababababababababababababababababababababababababab
    abababababab40cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd
    cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd808040
ClientMessage::Hello#2
    11000000000b72646d612d637020302e3100808010
ClientMessage::Attach
    050000000102810400
ClientMessage::Fence
    0400000002028104
ClientMessage::Stat
    0e0000000307010207782f612e62696e0179
ClientMessage::Scan
    0e0000000407017801000101052a2e746d70
ClientMessage::ScanMore
    0600000005ffffffff0f
ClientMessage::Make
    3600000006070205782f6e65770101ed03000106782f6c696e6b02036e657700ff0301ed13e807ffffffff0f
    010a0106757365722e6102ff0000
ClientMessage::Read
    050000000703010100
ClientMessage::Write
    0400000008030102
ClientMessage::Bye
    0100000009
ServerMessage::Welcome
    1b000000000e72646d612d736572766520302e31ffffffffffffffffff0140
ServerMessage::Refused
    1c00000001071963616e6e6f7420777269746520783a206469736b2066756c6c
ServerMessage::Attached
    0700000002028104000109
ServerMessage::Attached#2
    200000000202810401071963616e6e6f7420777269746520783a206469736b2066756c6c
ServerMessage::Fenced
    0400000003028104
ServerMessage::Stated
    2d0000000407020005612e62696e00ac028003010001071963616e6e6f7420777269746520783a206469736b
    2066756c6c
ServerMessage::Page
    3400000005070105612e62696e00ac028003010001066c6f636b6564071963616e6e6f742077726974652078
    3a206469736b2066756c6c01
ServerMessage::Made
    200000000607020001071963616e6e6f7420777269746520783a206469736b2066756c6c
ServerMessage::Read
    06000000070301010000
ServerMessage::Write
    050000000802010200
ServerMessage::Working
    0100000009
ServerMessage::Dropped
    050000000a01ac0200
ReadRequest::Open
    1000000000010307782f612e62696e0100808040
ReadRequest::Release
    0d000000010201ffffffffffffffffff01
ReadRequest::Refresh
    0b0000000205010380808008808010
ReadRequest::Close
    09000000030200ffffffff0f01
ReadReply::Opened
    360000000002030080e497d012a403aab4aed8c7bfce972f802001ac020401071963616e6e6f742077726974
    6520783a206469736b2066756c6c
ReadReply::Lease
    5c0000000105e6aa919aa3a404ffffffffffffffffff010103808010e0a71202111111111111111111111111
    1111111111111111111111111111111111111111222222222222222222222222222222222222222222222222
    2222222222222222
ReadReply::Failed
    1d0000000203071963616e6e6f7420777269746520783a206469736b2066756c6c
ReadReply::Closed
    380000000302030001ed13e807ffffffff0f010a0106757365722e6102ff000401071963616e6e6f74207772
    69746520783a206469736b2066756c6c
ReadReply::Holes
    1600000004060602808010808080808020808080808040808010
ReadReply::Rails
    25000000050702e6aa919aa3a404ffffffffffffffffff01e6aa919aa3a404ffffffffffffffffff01
WriteRequest::Create
    2100000000010607782f622e62696e80e497d012a403aab4aed8c7bfce972f802001ac0201
WriteRequest::Sent
    4d000000010184070103808010e0a71202111111111111111111111111111111111111111111111111111111
    11111111112222222222222222222222222222222222222222222222222222222222222222
WriteRequest::Commit
    3a000000020106d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d101ed13e807
    ffffffff0f010a0106757365722e6102ff00
WriteRequest::Discard
    05000000030206c801
WriteRequest::Holes
    15000000040602808010808080808020808080808040808010
WriteRequest::End
    07000000050680e497d012
WriteRequest::Spots
    0c000000060001840706808040808040
WriteRequest::Spots#2
    06000000060102840701
WriteRequest::Offer
    510000000707782f622e62696e03808010e0a712021111111111111111111111111111111111111111111111
    1111111111111111112222222222222222222222222222222222222222222222222222222222222222
WriteReply::Created
    2a000000000206000200808010808040050701071963616e6e6f7420777269746520783a206469736b206675
    6c6c
WriteReply::Granted
    1b0000000101840702000101ffffffff0f0281040180a0808080e01f808040
WriteReply::Committed
    21000000020206000701071963616e6e6f7420777269746520783a206469736b2066756c6c
WriteReply::Zeroed
    03000000030600
WriteReply::Zeroed#2
    1e000000030601071963616e6e6f7420777269746520783a206469736b2066756c6c
WriteReply::Spots
    0600000004000206c801
WriteReply::Spots#2
    2b0000000401028407000180a0808080e01f0101071963616e6e6f7420777269746520783a206469736b2066
    756c6c
WriteReply::Taken
    0c000000050680804005000180804005
WriteReply::Taken#2
    2200000005068080400501071963616e6e6f7420777269746520783a206469736b2066756c6c
LinkOffer::Tcp
    0100000000
LinkOffer::Sim
    0100000001
LinkOffer::Verbs
    0500000002030101fe
LinkAnswer::Tcp
    21000000005e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e
LinkAnswer::Sim
    0300000001ac02
LinkAnswer::Verbs
    050000000203010080
LinkAnswer::Rail
    0700000003ac0203010080
LinkAnswer::Sealed
    24000000045e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e02736f
EntryKind::File
    0100000000
EntryKind::Folder
    0100000001
EntryKind::Symlink
    0600000002042e2e2f62
EntryKind::Special
    0100000003
Verdict::Stored
    0100000000
Verdict::Mismatch
    0100000001
Verdict::Failed
    1c00000002071963616e6e6f7420777269746520783a206469736b2066756c6c
Code::NotFound
    0100000000
Code::Denied
    0100000001
Code::BadPath
    0100000002
Code::IsFolder
    0100000003
Code::NotFolder
    0100000004
Code::Special
    0100000005
Code::ReadOnly
    0100000006
Code::NoSpace
    0100000007
Code::Changed
    0100000008
Code::Mismatch
    0100000009
Code::Io
    010000000a
Code::Limit
    010000000b
Code::Protocol
    010000000c
Code::Version
    010000000d
Code::NotAuthenticated
    010000000e
Code::LinkLost
    010000000f
Code::TimedOut
    0100000010
Code::Stopping
    0100000011
Code::Interrupted
    0100000012
Code::Bug
    0100000013
Code::Exists
    0100000014
ClientMessage::Watch
    030000000a0107
ServerMessage::Watch
    1e0000000b0107071963616e6e6f7420777269746520783a206469736b2066756c6c
WatchRequest::Begin
    1100000000ac0206782f6461746101052a2e746d70
WatchRequest::More
    0300000001ac02
WatchRequest::End
    0600000002ffffffff0f
WatchReply::Changed
    0c00000000ac0202000003612f620100
WatchReply::Changed#2
    0500000000ac020001
WatchReply::Ended
    1e00000001ac02071963616e6e6f7420777269746520783a206469736b2066756c6c
ClientMessage::Mirror
    030000000b0207
ClientMessage::Probe
    060000000c0301808040
ServerMessage::Mirror
    050000000c02070100
ServerMessage::Probed
    0d0000000d00ac028020ad028040808040
ClientMessage::TellTies
    010000000d
ClientMessage::ReplaceNothing
    010000000e
ClientMessage::TellRehashed
    010000000f
ServerMessage::Ties
    140000000e07030001e80707020001e807070201ac020109
ServerMessage::Rehashed
    030000000fac02
MirrorRequest::Begin
    07000000000703782f7901
MirrorRequest::Walk
    0e0000000107017801032a2e6f010101ac02
MirrorRequest::WalkMore
    020000000207
MirrorRequest::Edit
    320000000307040003782f6203782f610103782f61ed13e807ffffffff0f010a0106757365722e6102ff0002
    03782f63010303782f64
MirrorReply::Begun
    1700000000070004626f6f74010506010506010201010304000100
MirrorReply::Walked
    8500000001070200016100ac02ed13e807ffffffff0f010a0106757365722e6102ff00010506010909090909
    090909090909090909090909090909090909090909090909090909010162071963616e6e6f74207772697465
    20783a206469736b2066756c6c01212e632e303132333435363738396162636465662e766572626174696d2d
    7061727401
MirrorReply::Changed
    200000000207020001071963616e6e6f7420777269746520783a206469736b2066756c6c
Edit::Link
    090000000003782f6203782f61
Edit::Describe
    1b0000000103782f61ed13e807ffffffff0f010a0106757365722e6102ff00
Edit::Remove
    060000000203782f6301
Edit::Sweep
    050000000303782f64
MirrorRequest::WalkOnly
    150000000407017801032a2e6f010101ac020103612f620100
MirrorRequest::Stage
    26000000050703782f790909090909090909090909090909090909090909090909090909090909090909
MirrorRequest::Publish
    07000000060703782f7901
MirrorReply::Staged
    1c00000003070004626f6f7401050601050601020101030400010004782f2e79
MirrorReply::Published
    1e000000040701071963616e6e6f7420777269746520783a206469736b2066756c6c
Edit::Own
    1b0000000403782f65ed13e807ffffffff0f010a0106757365722e6102ff00
MirrorRequest::NamesOf
    0800000007070200ac020105
MirrorRequest::NumbersOf
    080000000807010103616461
MirrorRequest::Share
    21000000090909090909090909090909090909090909090909090909090909090909090909
MirrorReply::Names
    09000000050702010361646100
MirrorReply::Numbers
    0700000006070201ac0200
MirrorRequest::WalkPlain
    0e0000000a07017801032a2e6f010101ac02
MirrorRequest::WalkUnless
    230000000b07a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a101
MirrorReply::Alike
    03000000070701
MirrorRequest::HabitsOf
    070000000c0703782f7901
MirrorReply::Habits
    0700000008070501000100
Resolution::Nanosecond
    0100000000
Resolution::HundredNanoseconds
    0100000001
Resolution::Microsecond
    0100000002
Resolution::Millisecond
    0100000003
Resolution::TenMilliseconds
    0100000004
Resolution::Second
    0100000005
Resolution::TwoSeconds
    0100000006
";
