//! A client watches folders of a real server over TCP, and local ones: what is
//! told, to whom, how much of it, and what is left when it is over.

#![forbid(unsafe_code)]

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use verbatim_client::{SourceWatch, WatchEvent};
use verbatim_control::{ConnectOptions, Outbox, connect};
use verbatim_proto::{
    Changes, ClientMessage, Code, Excludes, Fault, ServerMessage, Watch, WatchReply, WatchRequest,
    WirePath,
};
use verbatim_tests::pair::{Backend, DEADLINE, Pair};
use verbatim_tests::port::Port;
use verbatim_tests::process::{Home, Serve, seen, wait_for};

const TIMEOUT: Duration = Duration::from_secs(20);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("runs")
}

fn options(pair: &Pair) -> ConnectOptions {
    pair.down(&["rw"], "x").session.connect
}

fn watch(path: &str, exclude: &[&str]) -> Watch {
    let exclude = exclude.iter().map(|text| text.as_bytes().to_vec()).collect();
    Watch { path: WirePath::parse(path.as_bytes()).expect("plain"), exclude }
}

async fn next(watching: &mut SourceWatch) -> WatchEvent {
    next_of(watching, || "nothing".into()).await
}

/// The next of several; `so_far` says what was heard before, for a message.
async fn next_of(watching: &mut SourceWatch, so_far: impl Fn() -> String) -> WatchEvent {
    let heard = tokio::time::timeout(DEADLINE, watching.next()).await;
    let heard = heard
        .unwrap_or_else(|_| panic!("the watch tells nothing for {DEADLINE:?}, after {}", so_far()));
    heard.unwrap_or_else(|error| panic!("the watch ended: {error}"))
}

/// Listens until all of these paths were told, and returns all that were.
async fn hear(watching: &mut SourceWatch, wanted: &[&str]) -> BTreeSet<String> {
    let mut heard = BTreeSet::new();
    while !wanted.iter().all(|path| heard.contains(*path)) {
        let told = next_of(watching, || format!("{heard:?}, wanted: {wanted:?}")).await;
        match told {
            WatchEvent::Changed(changes) if !changes.rescan => {
                heard.extend(changes.changes.iter().map(|change| change.path.to_string()));
            }
            other => panic!("{other:?}, not {wanted:?}"),
        }
    }
    heard
}

fn rescan() -> WatchEvent {
    WatchEvent::Changed(Changes::rescan())
}

/// The watches of this process, as the kernel writes them.
fn watches() -> Vec<String> {
    let infos = fs::read_dir("/proc/self/fdinfo").expect("the kernel tells");
    // Descriptors come and go while this looks.
    let texts = infos.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.filter(|line| line.starts_with("inotify ")).collect()
}

/// What the kernel writes in the line of a watch of this folder.
fn inode_of(folder: &Path) -> String {
    format!(" ino:{:x} ", fs::metadata(folder).expect("there").ino())
}

/// Whether this process watches a folder.
fn is_watched(folder: &Path) -> bool {
    let inode = inode_of(folder);
    watches().iter().any(|line| line.contains(&inode))
}

/// Ok where this process does not watch a folder; else the watches that it has.
fn is_not_watched(folder: &Path) -> Result<(), String> {
    let (inode, watches) = (inode_of(folder), watches());
    let done = !watches.iter().any(|line| line.contains(&inode));
    seen(done, format!("{} is{inode}; {watches:?}", folder.display()))
}

#[test]
fn what_changes_on_the_server_is_told_until_the_client_leaves() {
    let pair = Pair::start(Backend::Tcp);
    let folder = pair.served("ro/data");
    fs::create_dir_all(folder.join("deep")).expect("folders");
    fs::create_dir_all(folder.join("cache")).expect("folders");
    runtime().block_on(async {
        let mut watching =
            SourceWatch::remote(options(&pair), TIMEOUT, watch("ro/data", &["cache"]));
        assert_eq!(next(&mut watching).await, rescan(), "it begins with all");
        assert!(is_watched(&folder) && !is_watched(&folder.join("cache")));
        fs::write(folder.join("cache/x"), b"").expect("writes");
        fs::write(folder.join("deep/a"), b"a").expect("writes");
        let heard = hear(&mut watching, &["deep/a"]).await;
        assert!(heard.iter().all(|path| path.starts_with("deep")), "{heard:?}");
        fs::rename(folder.join("deep"), folder.join("other")).expect("renames");
        hear(&mut watching, &["deep", "other"]).await;
        drop(watching);
        wait_for("the server watches nothing", DEADLINE, || is_not_watched(&folder));
    });
}

#[test]
fn a_slow_client_is_told_to_look_at_everything() {
    let pair = Pair::start(Backend::Tcp);
    runtime().block_on(async {
        let mut watching = SourceWatch::remote(options(&pair), TIMEOUT, watch("rw", &[]));
        assert_eq!(next(&mut watching).await, rescan());
        // More than what may wait here, on the way and there.
        for number in 0..8000 {
            fs::write(pair.served(&format!("rw/{number}")), b"").expect("writes");
        }
        fs::write(pair.served("rw/last"), b"").expect("writes");
        let (mut told, mut rescans, mut last) = (0, 0, false);
        while !last {
            let WatchEvent::Changed(changes) = next(&mut watching).await else { panic!("lost") };
            told += changes.changes.len();
            rescans += usize::from(changes.rescan);
            last = changes.rescan || changes.changes.iter().any(|c| c.path.as_bytes() == b"last");
        }
        assert!(rescans == 1 && told < 4096, "{told} paths, {rescans} rescans");
        fs::write(pair.served("rw/after"), b"").expect("writes");
        hear(&mut watching, &["after"]).await;
    });
}

#[test]
fn what_cannot_be_watched_is_refused_and_a_session_has_few_watches() {
    let pair = Pair::start(Backend::Tcp);
    fs::write(pair.served("ro/file"), b"").expect("writes");
    runtime().block_on(async {
        for (path, code) in [
            ("nothing", Code::NotFound),
            ("ro/nothing", Code::NotFound),
            ("ro/file", Code::NotFolder),
            ("", Code::BadPath),
        ] {
            let mut watching = SourceWatch::remote(options(&pair), TIMEOUT, watch(path, &[]));
            let error = tokio::time::timeout(DEADLINE, watching.next()).await.expect("in time");
            let error = error.expect_err("it is refused");
            let verbatim_client::ClientError::Fault(fault) = error else { panic!("{error}") };
            assert_eq!(fault.code, code, "{fault}");
            assert!(
                fault.text.starts_with(&format!("cannot watch {path} on 127.0.0.1")),
                "{fault}"
            );
        }
        let connection = connect(&options(&pair)).await.expect("connects");
        let (mut receiver, outbox) = (connection.receiver, Outbox::new(connection.sender, TIMEOUT));
        let begin = |request| {
            let begin = WatchRequest::Begin { request, watch: watch("ro", &[]) };
            outbox.push(&ClientMessage::Watch(begin)).expect("sends");
        };
        let mut answers = BTreeSet::new();
        (1..=5).for_each(begin);
        let mut answer = async || match receiver.recv().await.expect("hears").expect("more") {
            ServerMessage::Watch(WatchReply::Changed { request, changes }) => {
                assert!(changes.rescan);
                (request, None)
            }
            ServerMessage::Watch(WatchReply::Ended { request, fault }) => (request, Some(fault)),
            other => panic!("{other:?}"),
        };
        for _ in 1..=5 {
            let (request, fault) = answer().await;
            assert_eq!(fault.is_some(), request == 5, "{request}: {fault:?}");
            let few =
                fault.is_none_or(|fault: Fault| fault.text == "a session may watch 4 folders");
            assert!(few);
            answers.insert(request);
        }
        assert_eq!(answers.len(), 5);
        outbox.push(&ClientMessage::Watch(WatchRequest::End { request: 2 })).expect("sends");
        begin(6);
        assert_eq!(answer().await, (6, None), "there is room again");
        drop((outbox, receiver));
        let folder = pair.served("ro");
        wait_for("the server watches nothing", DEADLINE, || is_not_watched(&folder));
    });
}

#[test]
fn a_server_that_is_killed_and_restarted_is_watched_again_from_the_beginning() {
    let dir = tempfile::tempdir().expect("folder");
    fs::create_dir(dir.path().join("data")).expect("makes");
    let export = format!("data={}", dir.path().join("data").display());
    let home = Arc::new(Home::new());
    let arguments = [export.as_str()];
    let port = Port::take();
    let start = || Serve::of(&home, &port.text(), &arguments);
    let serve = start();
    let connect = ConnectOptions {
        host: "127.0.0.1".into(),
        port: port.address.port(),
        state_dir: home.state(),
        config_dir: dir.path().join("config"),
        key: None,
        fingerprint: None,
        trust_on_first_use: false,
        certificates: Default::default(),
        agent: "verbatim-tests".into(),
        chunk_bytes: verbatim_proto::units::CHUNK_BYTES_DEFAULT,
        timeout: TIMEOUT,
    };
    runtime().block_on(async {
        let mut watching = SourceWatch::remote(connect, TIMEOUT, watch("data", &[]));
        assert_eq!(next(&mut watching).await, rescan());
        serve.signal(Signal::KILL);
        assert_eq!(serve.end(), None, "it was killed");
        let lost = next(&mut watching).await;
        assert!(
            matches!(&lost, WatchEvent::Lost(fault) if fault.code == Code::LinkLost),
            "{lost:?}"
        );
        fs::write(dir.path().join("data/meanwhile"), b"").expect("writes");
        let serve = start();
        assert_eq!(next(&mut watching).await, rescan(), "whatever happened meanwhile");
        fs::write(dir.path().join("data/after"), b"").expect("writes");
        hear(&mut watching, &["after"]).await;
        // One that stops says so, and is waited for all the same.
        serve.signal(Signal::TERM);
        assert_eq!(serve.end(), Some(0));
        assert!(matches!(next(&mut watching).await, WatchEvent::Lost(_)));
        let _serve = start();
        assert_eq!(next(&mut watching).await, rescan());
    });
}

#[test]
fn a_local_folder_is_watched_by_name_and_waited_for_when_it_is_replaced() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("v1/deep")).expect("folders");
    std::os::unix::fs::symlink("v1", at("data")).expect("links");
    runtime().block_on(async {
        let mut watching = SourceWatch::local(at("data"), Excludes::default());
        assert_eq!(next(&mut watching).await, rescan());
        fs::write(at("v1/deep/a"), b"").expect("writes");
        hear(&mut watching, &["deep/a"]).await;
        fs::create_dir_all(at("v2")).expect("folders");
        std::os::unix::fs::symlink("v2", at("new")).expect("links");
        fs::rename(at("new"), at("data")).expect("renames");
        let lost = next(&mut watching).await;
        assert!(
            matches!(&lost, WatchEvent::Lost(fault) if fault.code == Code::NotFound),
            "{lost:?}"
        );
        assert_eq!(next(&mut watching).await, rescan());
        fs::write(at("v2/b"), b"").expect("writes");
        hear(&mut watching, &["b"]).await;
        let mut missing = SourceWatch::local(at("missing"), Excludes::default());
        let error = tokio::time::timeout(DEADLINE, missing.next()).await.expect("in time");
        let text = error.expect_err("it is not there").to_string();
        assert!(text.starts_with("cannot watch") && text.contains("missing"), "{text}");
    });
}

#[test]
fn a_local_folder_is_waited_for_when_one_that_it_is_in_is_exchanged() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    for name in ["r1/set", "r2/set"] {
        fs::create_dir_all(at(name)).expect("folders");
    }
    std::os::unix::fs::symlink("r1", at("current")).expect("links");
    let lost = async |watching: &mut SourceWatch| {
        let lost = next(watching).await;
        assert!(
            matches!(&lost, WatchEvent::Lost(fault) if fault.code == Code::NotFound),
            "{lost:?}"
        );
        assert_eq!(next(watching).await, rescan());
    };
    runtime().block_on(async {
        let mut watching = SourceWatch::local(at("current/set"), Excludes::default());
        assert_eq!(next(&mut watching).await, rescan());
        std::os::unix::fs::symlink("r2", at("new")).expect("links");
        fs::rename(at("new"), at("current")).expect("renames");
        lost(&mut watching).await;
        fs::write(at("r2/set/a"), b"").expect("writes");
        hear(&mut watching, &["a"]).await;
        // The same of a folder that is renamed, with another one made in its place at once.
        let mut watching = SourceWatch::local(at("r1/set"), Excludes::default());
        assert_eq!(next(&mut watching).await, rescan());
        fs::create_dir_all(at("r3/set")).expect("folders");
        let (r1, r3) = (at("r1"), at("r3"));
        renameat_with(CWD, r1, CWD, r3, RenameFlags::EXCHANGE).expect("exchanges");
        lost(&mut watching).await;
        fs::write(at("r1/set/b"), b"").expect("writes");
        hear(&mut watching, &["b"]).await;
    });
}
