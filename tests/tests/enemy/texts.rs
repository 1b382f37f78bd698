//! What a lying peer says is shown by every command, by logs and by the status page.
//! Nothing of it may reach a terminal as it is: no escape sequence, no delete, no
//! mark that turns the direction of what is written.

use std::sync::Arc;
use verbatim_proto::message::{ClientMessage, Entry, EntryKind, ServerMessage};
use verbatim_proto::text::is_harmful;
use verbatim_proto::{Code, Fault, MirrorReply, MirrorRequest, WirePath};
use verbatim_tests::http::get;
use verbatim_tests::liar::{Liar, Script, folder_of};
use verbatim_tests::process::{Home, Running, Serve};

/// Begins a title, clears the screen, in one byte too, deletes, and turns what follows round.
const NASTY: &str = "a\u{1b}]0;x\u{7}\u{1b}[2J\u{9b}2J\u{7f}\u{202e}b";

fn fault() -> Fault {
    Fault { code: Code::Denied, text: NASTY.into() }
}

fn entry(kind: EntryKind) -> Entry {
    let path = WirePath::parse(NASTY.as_bytes()).expect("no slash");
    Entry { path, kind, size: 0, mode: 0o644, mtime_ns: 0, meta: None }
}

/// Refuses all it can, and says nasty things about it.
fn refuses(message: ClientMessage) -> Vec<ServerMessage> {
    match message {
        ClientMessage::Stat { request, look } => {
            let answers = look.paths.iter().map(|_| Err(fault())).collect();
            vec![ServerMessage::Stated { request, answers }]
        }
        ClientMessage::Mirror(MirrorRequest::Begin { request, .. }) => {
            vec![ServerMessage::Mirror(MirrorReply::Begun { request, answer: Err(fault()) })]
        }
        ClientMessage::Attach { link, .. } => {
            vec![ServerMessage::Attached { link, answer: Err(fault()) }]
        }
        ClientMessage::Bye => vec![],
        _ => vec![ServerMessage::Refused(fault())],
    }
}

/// Has a folder in which names and faults are nasty.
fn lists(message: ClientMessage) -> Vec<ServerMessage> {
    match message {
        ClientMessage::Scan { request, .. } => {
            let link = EntryKind::Symlink { target: NASTY.into() };
            let entries = vec![entry(EntryKind::File), entry(EntryKind::Folder), entry(link)];
            let faults = vec![(entry(EntryKind::File).path, fault())];
            vec![ServerMessage::Page { request, entries, faults, done: true }]
        }
        message => folder_of(message, vec![]),
    }
}

#[track_caller]
fn assert_harmless(of: &str, text: &str) {
    let found: Vec<_> =
        text.chars().filter(|it| is_harmful(*it) && !"\n\t".contains(*it)).collect();
    assert!(found.is_empty(), "{of} shows {found:?}: {text:?}");
}

#[test]
fn what_a_server_says_is_harmless_in_every_command() {
    let home = Home::new();
    let out = home.path().join("out");
    for (name, says) in [("refuses", refuses as Script), ("lists", lists)] {
        let liar = Liar::start(says);
        let (at, fingerprint) = (format!("127.0.0.1:{}", liar.port), liar.fingerprint.to_string());
        let from = format!("rdma://{at}/ro/all");
        let out = out.join(name).display().to_string();
        let said = |program: &str, words: &[&str]| {
            let trust = ["--fingerprint", &fingerprint, "--timeout", "2"];
            let words: Vec<&str> = trust.into_iter().chain(words.iter().copied()).collect();
            let ended = Running::start(home.command(program, &words)).end();
            let of = format!("{program} {words:?} of a server that {name}");
            assert_harmless(&of, &ended.stdout);
            assert_harmless(&of, &ended.stderr);
            format!("{}{}", ended.stdout, ended.stderr)
        };
        let shown = [
            said("rdma-cp", &["--list", &from]),
            said("rdma-cp", &["-r", &from, &out]),
            said("rdma-cp", &["-r", "--json", &from, &out]),
            said("rdma-cp", &["-r", "--dry-run", &from, &out]),
            said("rdma-cp", &["/etc/hostname", &from]),
            said("rdma-sync", &[&from, &out]),
            said("rdma-sync", &["--json", &from, &out]),
            said("rdma-doctor", &[&at]),
            said("rdma-doctor", &["--json", &at]),
            said("rdma-doctor", &["--fix-script", &at]),
        ];
        // It was shown, and not just left out.
        assert!(shown.iter().any(|text| text.contains("]0;x")), "{name}: {shown:#?}");
    }
}

#[test]
fn what_a_client_says_is_harmless_in_the_log_and_on_the_page() {
    let home = Arc::new(Home::new());
    let exported = home.path().join("ro");
    std::fs::create_dir(&exported).expect("a folder");
    let serve = Serve::of(&home, "127.0.0.1:0", &[exported.display().to_string()]);
    let local = home.path().join(NASTY);
    std::fs::write(&local, b"x").expect("a file");
    let words = [local.display().to_string(), serve.at("ro/"), serve.at(&format!("ro/{NASTY}"))];
    let ended = serve.cp(&words[..2]);
    assert_ne!(ended.code, Some(0), "the export is for reading");
    assert_harmless("rdma-cp", &ended.stderr);
    let ended = serve.cp(&[&words[2], &home.path().join("out").display().to_string()]);
    assert_ne!(ended.code, Some(0), "there is no such file");
    assert_harmless("rdma-cp", &ended.stderr);
    let status = get(serve.metrics.expect("it shows metrics"), "/api/v1/status").body;
    assert!(status.contains("]0;x"), "the page has its troubles: {status}");
    // What is escaped for JSON is clean when it is read.
    let read: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let mut texts = vec![&read];
    while let Some(value) = texts.pop() {
        match value {
            serde_json::Value::String(text) => assert_harmless("the status", text),
            serde_json::Value::Array(all) => texts.extend(all),
            serde_json::Value::Object(all) => texts.extend(all.values()),
            _ => {}
        }
    }
    assert_harmless("the log", &serve.log());
}
