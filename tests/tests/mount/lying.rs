//! What readers get of a server that lies: names, attributes and bytes that cannot be,
//! lists without an end, silence. Each is an error in time or something harmless, never a
//! wrong byte; the mount lives, makes nothing outside of its cache, and shows what the
//! server tells the truth about. The liar stands in front of an honest server.

use super::*;
use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use verbatim_control::ConnectOptions;
use verbatim_proto::message::{
    ClientMessage, Entry, EntryKind, FileId, FileInfo, OpenFile, ReadReply, ReadRequest,
    ServerMessage,
};
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, GRAIN_BYTES};
use verbatim_proto::{Look, Scan, WirePath};
use verbatim_tests::liar::{Liar, Lie, entry};

const MIB: usize = 1 << 20;

/// What `--timeout` is given, and how much later an error may come on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(3);
const ERROR_MAX: Duration = Duration::from_secs(10);

/// How much more memory a mount may have after it was lied to, and how much more when it fills
/// from a tree without an end: the folders that wait may take 256 MiB.
const GROWN_KIB_MAX: u64 = 128 << 10;
const FILLING_KIB_MAX: u64 = 384 << 10;

/// A mount of an honest server behind a liar.
struct LiedTo {
    source: Source,
    mounted: Mounted,
    /// The cache is in it, and nothing else.
    around: TempDir,
    before_kib: u64,
    _liar: Liar,
}

impl LiedTo {
    #[track_caller]
    fn mount(source: Source, lie: Arc<dyn Lie>, arguments: &[&str]) -> Self {
        let honest = ConnectOptions {
            host: "127.0.0.1".into(),
            port: source.serve().address.port(),
            state_dir: source.home.state(),
            config_dir: source.home.path().join("config/verbatim"),
            key: None,
            fingerprint: None,
            trust_on_first_use: true,
            certificates: Default::default(),
            agent: "liar".into(),
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            timeout: Duration::from_secs(20),
        };
        let liar = Liar::before(honest, lie);
        let around = tempfile::tempdir().expect("a folder");
        let cache = Arc::new(tempfile::tempdir_in(around.path()).expect("a folder"));
        let (from, known) =
            (format!("rdma://127.0.0.1:{}/data", liar.port), liar.fingerprint.to_string());
        let timeout = TIMEOUT.as_secs().to_string();
        let given = ["--fingerprint", &known, "--timeout", &timeout];
        let arguments = [&given, arguments].concat();
        let mounted = Mounted::start(&source.home, &from, &cache, &arguments);
        let before_kib = anonymous_kib(mounted.running().id());
        Self { source, mounted, around, before_kib, _liar: liar }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(name)
    }

    /// Fails unless a file that the server tells the truth about reads as it is at the source.
    #[track_caller]
    fn reads(&self, name: &str) {
        let begin = Instant::now();
        let read = fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(read == fs::read(self.source.path(name)).expect("reads"), "{name} is another");
        assert!(begin.elapsed() < ERROR_MAX, "{name}: {:?}", begin.elapsed());
    }

    /// Fails where its memory grew by more.
    #[track_caller]
    fn grew_less_than(&self, most_kib: u64) {
        let grown = anonymous_kib(self.mounted.running().id()).saturating_sub(self.before_kib);
        assert!(grown < most_kib, "the mount has {grown} KiB more, and may have {most_kib}");
    }

    /// Ends it; fails where it panicked, or made something outside of its cache.
    #[track_caller]
    fn end(self) {
        let ended = self.mounted.end();
        assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
        assert_eq!(fs::read_dir(self.around.path()).expect("lists").count(), 0, "beside the cache");
    }
}

/// RssAnon of a process.
fn anonymous_kib(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a kernel");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}

/// The number of the error of something that must fail in time.
#[track_caller]
fn fails<T>(what: &str, work: impl FnOnce() -> io::Result<T>) -> i32 {
    let begin = Instant::now();
    let Err(error) = work() else { panic!("{what} is no error") };
    assert!(begin.elapsed() < ERROR_MAX, "{what}: {error} after {:?}", begin.elapsed());
    errno(&error)
}

/// The names in a folder, in their order.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let mut names: Vec<String> =
        entries.iter().map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// Which requests are about what: the answers do not say.
#[derive(Default)]
struct Asked {
    requests: Mutex<HashMap<u32, WirePath>>,
    files: Mutex<HashMap<FileId, WirePath>>,
}

impl Asked {
    fn note(&self, message: &ClientMessage) {
        let mut requests = self.requests.lock().expect("whole");
        match message {
            ClientMessage::Stat { request, look: Look { paths, .. } } if paths.len() == 1 => {
                requests.insert(*request, paths[0].clone());
            }
            ClientMessage::Scan { request, scan: Scan { path, .. } } => {
                requests.insert(*request, path.clone());
            }
            ClientMessage::Read(ReadRequest::Open { files }) => {
                let named = files.iter().map(|it| (it.file, it.path.clone()));
                self.files.lock().expect("whole").extend(named);
            }
            _ => {}
        }
    }

    /// What a request is about, below the export.
    fn about(&self, request: u32) -> String {
        let path = self.requests.lock().expect("whole").get(&request).cloned();
        path.map_or(String::new(), |path| below(&path))
    }

    fn file(&self, file: FileId) -> String {
        let path = self.files.lock().expect("whole").get(&file).cloned();
        path.map_or(String::new(), |path| below(&path))
    }
}

fn below(path: &WirePath) -> String {
    path.to_string().strip_prefix("data/").unwrap_or_default().to_owned()
}

/// A server that names what no folder can have.
#[derive(Default)]
struct BadNames(Asked);

/// What stands in a frame for a name that no encoder takes, as long as that.
const STAND_INS: [(&str, &[u8], &[u8]); 4] = [
    ("dots", b"@@", b".."),
    ("dot", b"@", b"."),
    ("nul", b"@nul@", b"a\0b.c"),
    ("long", b"/@long@", b"xxxxxxx"),
];

impl Lie for BadNames {
    fn asked(&self, message: ClientMessage) -> (Option<ClientMessage>, Vec<ServerMessage>) {
        self.0.note(&message);
        (Some(message), Vec::new())
    }

    fn answered(&self, message: ServerMessage) -> Vec<ServerMessage> {
        let (request, entries, faults, done) = match message {
            ServerMessage::Page { request, entries, faults, done } => {
                (request, entries, faults, done)
            }
            // Whose these are was told of the entries that are not shown.
            ServerMessage::Ties { request, .. } if self.0.about(request) == "odd" => return vec![],
            message => return vec![message],
        };
        let file = |name: &str| entry(name, EntryKind::File, 5);
        let entries = match &*self.0.about(request) {
            "dots" => vec![file("@@")],
            "dot" => vec![file("@")],
            "nul" => vec![file("@nul@")],
            "long" => vec![file(&format!("{}/@long@{}", "y".repeat(150), "z".repeat(143)))],
            // The folder itself, what is not in it, and one name twice.
            "odd" => {
                let root = Entry { path: WirePath::root(), ..file("x") };
                vec![root, file("a/b"), file("twice"), file("twice")]
            }
            _ => entries,
        };
        vec![ServerMessage::Page { request, entries, faults, done }]
    }

    fn encoded(&self, frame: &mut Vec<u8>) {
        for (_, stand_in, name) in STAND_INS {
            // Behind its length: a letter alone may be anything.
            let of = |bytes: &[u8]| [&[bytes.len() as u8][..], bytes].concat();
            let (from, to) = match stand_in.len() {
                7 => (stand_in.to_vec(), name.to_vec()),
                _ => (of(stand_in), of(name)),
            };
            if let Some(at) = frame.windows(from.len()).position(|it| *it == *from) {
                frame[at..at + to.len()].copy_from_slice(&to);
            }
        }
    }
}

#[test]
fn names_that_no_folder_can_have_are_an_error_or_left_out() {
    let test = "names_that_no_folder_can_have_are_an_error_or_left_out";
    if !can_mount(test) {
        return;
    }
    let folders = ["dots", "dot", "nul", "long", "odd", "honest"];
    let source = Source::new(|dir| {
        for name in folders {
            fs::create_dir(dir.join(name)).expect("makes");
            fs::write(dir.join(name).join("file"), b"hello").expect("writes");
        }
    });
    std::thread::sleep(SETTLED);
    let lied = LiedTo::mount(source, Arc::new(BadNames::default()), &[]);
    std::thread::scope(|scope| {
        for (name, ..) in STAND_INS {
            let at = lied.path(name);
            scope.spawn(move || {
                assert_eq!(fails(name, || names(&at)), EIO, "{name}");
            });
        }
    });
    assert_eq!(names(&lied.path("odd")).expect("lists"), ["twice"]);
    assert_eq!(names(&lied.path("honest")).expect("lists"), ["file"]);
    lied.reads("honest/file");
    // Also where its folder cannot be listed.
    lied.reads("dots/file");
    lied.grew_less_than(GROWN_KIB_MAX);
    lied.end();
}

/// A server whose lists have no end, or never come.
#[derive(Default)]
struct Endless {
    asked: Asked,
    pages: AtomicUsize,
}

impl Endless {
    fn page(&self, request: u32) -> Vec<ServerMessage> {
        let page = self.pages.fetch_add(1, Ordering::Relaxed);
        let file = |number: usize| entry(&format!("{number}"), EntryKind::File, 5);
        let entries = match &*self.asked.about(request) {
            "more" => (0..1000).map(|number| file(page * 1000 + number)).collect(),
            "same" => (0..10).map(file).collect(),
            _ => Vec::new(),
        };
        vec![ServerMessage::Page { request, entries, faults: Vec::new(), done: false }]
    }
}

impl Lie for Endless {
    fn asked(&self, message: ClientMessage) -> (Option<ClientMessage>, Vec<ServerMessage>) {
        self.asked.note(&message);
        let (ClientMessage::Scan { request, .. } | ClientMessage::ScanMore { request }) = message
        else {
            return (Some(message), Vec::new());
        };
        match &*self.asked.about(request) {
            "more" | "same" | "none" => (None, self.page(request)),
            about if about.starts_with("silent") => (None, Vec::new()),
            _ => (Some(message), Vec::new()),
        }
    }
}

#[test]
fn a_list_without_an_end_is_given_up_and_leaves_room_for_others() {
    let test = "a_list_without_an_end_is_given_up_and_leaves_room_for_others";
    if !can_mount(test) {
        return;
    }
    // More of them than are listed at a time.
    let silent: Vec<String> = (0..6).map(|number| format!("silent{number}")).collect();
    let source = Source::new(|dir| {
        let endless = ["more", "same", "none", "honest", "honest/below"];
        for name in endless.into_iter().chain(silent.iter().map(String::as_str)) {
            fs::create_dir(dir.join(name)).expect("makes");
        }
        fs::write(dir.join("honest/file"), b"hello").expect("writes");
    });
    std::thread::sleep(SETTLED);
    let lie = Arc::new(Endless::default());
    let lied = LiedTo::mount(source, lie.clone(), &[]);
    for round in [&["more", "same", "none"].map(str::to_owned)[..], &silent] {
        std::thread::scope(|scope| {
            for name in round {
                let at = lied.path(name);
                scope.spawn(move || assert_eq!(fails(name, || names(&at)), EIO, "{name}"));
            }
        });
        let mut before = usize::MAX;
        wait_for("the server is asked for no more pages", STAND_MAX, || {
            let pages = lie.pages.load(Ordering::Relaxed);
            let more = pages - std::mem::replace(&mut before, pages).min(pages);
            std::thread::sleep(Duration::from_millis(200));
            seen(more == 0 && pages == lie.pages.load(Ordering::Relaxed), (pages, more))
        });
        assert_eq!(names(&lied.path("honest")).expect("lists"), ["below", "file"]);
        lied.reads("honest/file");
    }
    lied.grew_less_than(GROWN_KIB_MAX);
    lied.end();
}

/// A server whose folders contain a thousand folders each, however deep.
#[derive(Default)]
struct Bottomless {
    asked: Asked,
    lists: AtomicUsize,
}

impl Lie for Bottomless {
    fn asked(&self, message: ClientMessage) -> (Option<ClientMessage>, Vec<ServerMessage>) {
        self.asked.note(&message);
        let ClientMessage::Scan { request, .. } = message else {
            return (Some(message), Vec::new());
        };
        if !self.asked.about(request).starts_with("deep") {
            return (Some(message), Vec::new());
        }
        self.lists.fetch_add(1, Ordering::Relaxed);
        let folder = |number| entry(&format!("{number:0250}"), EntryKind::Folder, 0);
        let (entries, faults) = ((0..1000).map(folder).collect(), Vec::new());
        (None, vec![ServerMessage::Page { request, entries, faults, done: true }])
    }
}

#[test]
fn a_fill_of_folders_that_contain_themselves_takes_little_memory() {
    let test = "a_fill_of_folders_that_contain_themselves_takes_little_memory";
    if !can_mount(test) {
        return;
    }
    let source = Source::new(|dir| {
        fs::create_dir(dir.join("deep")).expect("makes");
        fs::write(dir.join("honest"), b"hello").expect("writes");
    });
    std::thread::sleep(SETTLED);
    let lie = Arc::new(Bottomless::default());
    let lied = LiedTo::mount(source, lie.clone(), &["--fill"]);
    // The folders that wait after these would take 800 MB.
    wait_for("the fill has listed 80 folders", STAND_MAX, || {
        when(lie.lists.load(Ordering::Relaxed), |lists| *lists >= 80)
    });
    lied.grew_less_than(FILLING_KIB_MAX);
    let failed = |fill: &serde_json::Value| fill["fill"]["failed"].as_u64() >= Some(1);
    lied.mounted.wait_for_status("the fill counts what it leaves out", failed);
    lied.reads("honest");
    lied.grew_less_than(FILLING_KIB_MAX);
    lied.end();
}

/// A server that lies about the attributes of what it has.
#[derive(Default)]
struct BadAttributes {
    asked: Asked,
    /// Whether what was a file is a folder, and a folder a file.
    turned: AtomicBool,
}

impl BadAttributes {
    fn change(&self, name: &str, entry: &mut Entry) {
        match name {
            "past" => entry.mtime_ns = i64::MIN,
            "future" => entry.mtime_ns = i64::MAX,
            "setuid" => entry.mode = 0o7777,
            "device" => entry.mode = 0o066_777,
            "all" => entry.mode = u32::MAX,
            "huge" => entry.size = u64::MAX,
            "long" => entry.size = i64::MAX as u64 + 1,
            "nul" => entry.kind = EntryKind::Symlink { target: b"a\0b".to_vec() },
            "far" => entry.kind = EntryKind::Symlink { target: vec![b'a'; 100_000] },
            "nowhere" => entry.kind = EntryKind::Symlink { target: Vec::new() },
            "turns" if self.turned.load(Ordering::Relaxed) => entry.kind = EntryKind::Folder,
            _ => {}
        }
    }
}

impl Lie for BadAttributes {
    fn asked(&self, message: ClientMessage) -> (Option<ClientMessage>, Vec<ServerMessage>) {
        self.asked.note(&message);
        (Some(message), Vec::new())
    }

    fn answered(&self, mut message: ServerMessage) -> Vec<ServerMessage> {
        match &mut message {
            ServerMessage::Page { entries, .. } => {
                for entry in entries {
                    self.change(&entry.path.to_string(), entry);
                }
            }
            ServerMessage::Stated { request, answers } => {
                let name = self.asked.about(*request);
                answers.iter_mut().flatten().for_each(|entry| self.change(&name, entry));
            }
            ServerMessage::Ties { ties, .. } => {
                let owners = [(u32::MAX, 0), (0, u32::MAX), (u32::MAX, u32::MAX), (1, 1)];
                for (tied, (uid, gid)) in ties.iter_mut().flatten().zip(owners) {
                    (tied.uid, tied.gid, tied.names) = (uid, gid, u32::MAX);
                }
            }
            _ => {}
        }
        vec![message]
    }
}

#[test]
fn attributes_that_cannot_be_are_errors_or_harmless() {
    let test = "attributes_that_cannot_be_are_errors_or_harmless";
    if !can_mount(test) {
        return;
    }
    let files = [
        "past", "future", "setuid", "device", "all", "huge", "long", "nul", "far", "nowhere",
        "turns", "honest",
    ];
    let source = Source::new(|dir| {
        for name in files {
            fs::write(dir.join(name), b"hello").expect("writes");
        }
    });
    std::thread::sleep(SETTLED);
    let lie = Arc::new(BadAttributes::default());
    let lied = LiedTo::mount(source, lie.clone(), &[]);
    let look = |name: &str| fs::symlink_metadata(lied.path(name));
    // By itself, as it is listed, and by itself again.
    for round in 0..3 {
        for name in files {
            let Ok(found) = look(name) else {
                assert!(["huge", "long"].contains(&name), "{name} cannot be looked at");
                continue;
            };
            assert_eq!(found.mode() & 0o7000, 0, "{name} has power: {:o}", found.mode());
            let kind = found.file_type();
            assert!(kind.is_file() || kind.is_symlink(), "{name} is {kind:?}");
            assert!(!kind.is_block_device() && !kind.is_char_device(), "{name} is a device");
        }
        for name in ["nul", "far", "nowhere"] {
            let leads = fs::read_link(lied.path(name)).map(|it| it.as_os_str().as_bytes().len());
            assert!(leads.is_err(), "{name} leads somewhere: {leads:?}");
        }
        for name in ["huge", "long"] {
            fails(name, || fs::read(lied.path(name)));
        }
        for name in ["setuid", "device", "all", "honest"] {
            lied.reads(name);
        }
        if round == 0 {
            let listed = names(&lied.path("")).expect("lists");
            assert!(listed.iter().any(|name| name == "honest"), "{listed:?}");
        }
    }
    let open = fs::File::open(lied.path("turns")).expect("opens");
    lie.turned.store(true, Ordering::Relaxed);
    wait_for("a file is a folder now", STAND_MAX, || {
        when(look("turns").expect("is there").file_type(), fs::FileType::is_dir)
    });
    let mut bytes = [0; 5];
    open.read_exact_at(&mut bytes, 0).expect("what was opened stays");
    assert_eq!(&bytes, b"hello");
    fails("turns", || names(&lied.path("turns")));
    lied.reads("honest");
    lied.grew_less_than(GROWN_KIB_MAX);
    lied.end();
}

/// A server that lies about the bytes of files, by their names; whether it is honest for now.
#[derive(Default)]
struct BadBytes(Asked, AtomicBool);

impl BadBytes {
    fn opened(&self, file: FileId, info: &mut FileInfo) {
        match &*self.0.file(file) {
            "grown" => info.size += 1,
            "shrunk" => info.size -= 1,
            "endless" => info.size = u64::MAX,
            "later" => info.mtime_ns += 1,
            _ => {}
        }
    }
}

impl Lie for BadBytes {
    fn asked(&self, message: ClientMessage) -> (Option<ClientMessage>, Vec<ServerMessage>) {
        self.0.note(&message);
        (Some(message), Vec::new())
    }

    fn answered(&self, mut message: ServerMessage) -> Vec<ServerMessage> {
        let is_honest = self.1.load(Ordering::Relaxed);
        let ServerMessage::Read(reply) = &mut message else { return vec![message] };
        if is_honest {
            return vec![message];
        }
        match reply {
            ReadReply::Opened { files } => {
                for (file, answer) in &mut *files {
                    answer.iter_mut().for_each(|info| self.opened(*file, info));
                }
                if files.iter().any(|(file, _)| self.0.file(*file) == "unasked") {
                    let other = files.iter().map(|(file, it)| (FileId(file.0 + 77), it.clone()));
                    *files = other.collect();
                }
            }
            ReadReply::Lease(lease) => {
                for piece in &mut lease.pieces {
                    match &*self.0.file(piece.file) {
                        "digests" => piece.digests.iter_mut().for_each(|it| it.0[7] ^= 1),
                        "elsewhere" => lease.region.base += 1,
                        "more" => piece.extent.len += GRAIN_BYTES,
                        "fewer" => {
                            piece.extent.len -= GRAIN_BYTES;
                            piece.digests.pop();
                        }
                        "before" => piece.extent.offset = piece.extent.offset.wrapping_sub(1),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        vec![message]
    }
}

#[test]
fn no_reader_gets_a_byte_that_is_not_as_its_digest_says() {
    let test = "no_reader_gets_a_byte_that_is_not_as_its_digest_says";
    if !can_mount(test) {
        return;
    }
    let lies = [
        "grown",
        "shrunk",
        "endless",
        "later",
        "unasked",
        "digests",
        "elsewhere",
        "more",
        "fewer",
        "before",
    ];
    let source = Source::new(|dir| {
        for (seed, name) in lies.iter().chain(&["honest0", "honest1", "honest2"]).enumerate() {
            fs::write(dir.join(name), noise(3 * MIB, seed as u64)).expect("writes");
        }
    });
    std::thread::sleep(SETTLED);
    let lied = LiedTo::mount(source, Arc::new(BadBytes::default()), &[]);
    std::thread::scope(|scope| {
        for name in lies {
            let (at, is) = (lied.path(name), fs::read(lied.source.path(name)).expect("reads"));
            scope.spawn(move || {
                let error = fails(name, || {
                    let file = fs::File::open(&at)?;
                    // Whatever does come before the error is as it is at the source.
                    for offset in (0..is.len()).step_by(64 << 10) {
                        let mut bytes = vec![0; 64 << 10];
                        file.read_exact_at(&mut bytes, offset as u64)?;
                        assert!(bytes == is[offset..offset + bytes.len()], "{name}: wrong bytes");
                    }
                    Ok(())
                });
                let expected = match name {
                    "grown" | "shrunk" | "endless" | "later" => [ESTALE, EIO],
                    _ => [EIO, EIO],
                };
                assert!(expected.contains(&error), "{name}: error {error}");
            });
        }
    });
    for name in ["honest0", "honest1", "honest2"] {
        lied.reads(name);
    }
    lied.grew_less_than(GROWN_KIB_MAX);
    lied.end();
}

/// A server that opens files and then says nothing more of those that are called silent.
#[derive(Default)]
struct Silent {
    asked: Asked,
    /// Whether it speaks of them, for now.
    speaks: AtomicBool,
}

impl Silent {
    fn is_silent(&self, file: FileId) -> bool {
        !self.speaks.load(Ordering::Relaxed) && self.asked.file(file).starts_with("silent")
    }
}

impl Lie for Silent {
    fn asked(&self, message: ClientMessage) -> (Option<ClientMessage>, Vec<ServerMessage>) {
        self.asked.note(&message);
        let ClientMessage::Read(ReadRequest::Open { files }) = message else {
            return (Some(message), Vec::new());
        };
        let files: Vec<OpenFile> =
            files.into_iter().filter(|it| !self.is_silent(it.file)).collect();
        let on = (!files.is_empty()).then_some(ClientMessage::Read(ReadRequest::Open { files }));
        (on, Vec::new())
    }
}

#[test]
fn bytes_that_never_come_are_an_error_in_time_for_each_who_waits() {
    let test = "bytes_that_never_come_are_an_error_in_time_for_each_who_waits";
    if !can_mount(test) {
        return;
    }
    let content = noise(24 * MIB, 5);
    let source = Source::new(|dir| {
        for name in ["silent", "silent in the middle", "honest"] {
            fs::write(dir.join(name), &content).expect("writes");
        }
    });
    std::thread::sleep(SETTLED);
    let lie = Arc::new(Silent::default());
    let lied = LiedTo::mount(source, lie.clone(), &[]);
    lie.speaks.store(true, Ordering::Relaxed);
    let middle = fs::File::open(lied.path("silent in the middle")).expect("opens");
    middle.read_exact_at(&mut [0; 4096], 0).expect("reads");
    lie.speaks.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for reader in 0..6 {
            let (at, middle) = (lied.path("silent"), &middle);
            scope.spawn(move || assert_eq!(fails("silent", || fs::read(&at)), EIO));
            let offset = (18 * MIB + reader * 4096) as u64;
            scope.spawn(move || {
                let read = || middle.read_exact_at(&mut [0; 4096], offset);
                assert_eq!(fails("silent in the middle", read), EIO);
            });
        }
        lied.reads("honest");
    });
    lie.speaks.store(true, Ordering::Relaxed);
    lied.reads("silent");
    lied.reads("silent in the middle");
    lied.grew_less_than(GROWN_KIB_MAX);
    lied.end();
}
