//! A server that lies to a mirror: it answers what nobody asked, answers too
//! little, and tells pages that were not awaited. Each ends the session with the
//! server's misbehaviour as its cause, and never as if all were done.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use verbatim_client::sync::{SyncOptions, sync};
use verbatim_client::{Location, Summary};
use verbatim_proto::message::{ClientMessage, EntryKind, ServerMessage};
use verbatim_proto::mirror::{About, Edit};
use verbatim_proto::units::PAGE_ENTRIES_MAX;
use verbatim_proto::{
    Code, Filter, Habits, Keeps, Meta, MirrorReply, MirrorRequest, Node, Resolution, Twin,
    WirePath, plan,
};
use verbatim_tests::liar::{Liar, Script, folder_of};
use verbatim_tests::pair::{Backend, Pair};

/// How long a mirror may take here; a lie must not make it wait.
const MIRROR_MAX: Duration = Duration::from_secs(20);

/// What becomes of a mirror with a liar, up or down.
fn mirror(script: Script, up: bool) -> Summary {
    mirror_of(0, script, up)
}

/// The same, where the local tree has so many files.
fn mirror_of(files: usize, script: Script, up: bool) -> Summary {
    let liar = Liar::start(script);
    let pair = Pair::in_memory(Backend::Tcp);
    fs::create_dir_all(pair.local("tree/sub")).expect("folders");
    for number in 0..files {
        fs::write(pair.local(&format!("tree/sub/{number:05}")), b"").expect("writes");
    }
    let mut session = pair.down(&["ro/all"], "tree").timeout(Duration::from_secs(5)).session;
    session.connect.port = liar.port;
    session.connect.fingerprint = Some(liar.fingerprint);
    let remote = format!("rdma://127.0.0.1:{}/ro/all", liar.port);
    let remote = Location::parse(remote.as_ref()).expect("a location");
    let local = Location::Local(pair.local("tree"));
    let (source, target) = if up { (local, remote) } else { (remote, local) };
    let options = SyncOptions {
        source,
        target,
        plan: plan::Options::default(),
        filter: Filter::default(),
        chosen: None,
        limit: Default::default(),
        dry_run: false,
        atomic: false,
        numeric_ids: false,
        exact: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut observer = ();
        let work = sync(&options, session, &mut observer, std::future::pending());
        let done = tokio::time::timeout(MIRROR_MAX, work).await.expect("it ends in time");
        done.unwrap_or_else(|error| panic!("it did not begin: {error}"))
    })
}

fn is_protocol(summary: &Summary) -> bool {
    summary.broken.as_ref().is_some_and(|fault| fault.code == Code::Protocol)
}

fn begun(request: u32) -> ServerMessage {
    let keeps = Keeps {
        user: (0, 0),
        give_away: false,
        squash: None,
        special_bits: false,
        privileged_xattrs: false,
    };
    let root = Some(Twin { device: 1, inode: 2 });
    let about = About { boot: vec![0], root, above: Vec::new(), keeps, folds_case: false };
    ServerMessage::Mirror(MirrorReply::Begun { request, answer: Ok(about) })
}

/// What it can keep.
fn keeps(request: u32) -> ServerMessage {
    let habits = Habits { resolution: Resolution::TwoSeconds, ..Habits::default() };
    ServerMessage::Mirror(MirrorReply::Habits { request, habits })
}

/// A page with nothing but the root.
fn page(request: u32, done: bool) -> ServerMessage {
    let meta = Meta { mode: 0o700, ..Meta::default() };
    let (path, kind) = (WirePath::root(), EntryKind::Folder);
    let root = Node { path, kind, size: 0, meta, twin: None, digest: None };
    let found = vec![Ok(Box::new(root))];
    ServerMessage::Mirror(MirrorReply::Walked { request, found, leftovers: Vec::new(), done })
}

/// What an honest server with an empty folder answers.
fn honest(message: ClientMessage) -> Vec<ServerMessage> {
    match message {
        ClientMessage::Mirror(MirrorRequest::Begin { request, .. }) => vec![begun(request)],
        ClientMessage::Mirror(MirrorRequest::HabitsOf { request, .. }) => vec![keeps(request)],
        ClientMessage::Mirror(MirrorRequest::Walk { request, .. }) => vec![page(request, true)],
        ClientMessage::Mirror(MirrorRequest::Edit { request, edits }) => {
            let answers = edits.iter().map(|_: &Edit| Ok(())).collect();
            vec![ServerMessage::Mirror(MirrorReply::Changed { request, answers })]
        }
        ClientMessage::Make { request, entries } => {
            let answers = entries.iter().map(|_| Ok(())).collect();
            vec![ServerMessage::Made { request, answers }]
        }
        message => folder_of(message, vec![]),
    }
}

#[test]
fn an_honest_server_is_believed() {
    // Or else the refusals below would show nothing.
    for up in [false, true] {
        let summary = mirror(honest, up);
        assert!(summary.broken.is_none() && summary.failed == 0, "{up}: {summary:?}");
    }
}

#[test]
fn fewer_answers_than_questions_are_no_success() {
    let changes = |message| match message {
        ClientMessage::Mirror(MirrorRequest::Edit { request, .. }) => {
            vec![ServerMessage::Mirror(MirrorReply::Changed { request, answers: Vec::new() })]
        }
        message => honest(message),
    };
    let makes = |message| match message {
        ClientMessage::Make { request, .. } => {
            vec![ServerMessage::Made { request, answers: Vec::new() }]
        }
        message => honest(message),
    };
    for script in [changes as Script, makes] {
        let summary = mirror(script, true);
        assert!(is_protocol(&summary), "{summary:?}");
    }
}

#[test]
fn an_answer_to_another_request_is_no_answer() {
    let summary = mirror(
        |message| match message {
            ClientMessage::Mirror(MirrorRequest::Edit { request, edits }) => {
                let (request, answers) = (request + 1, edits.iter().map(|_| Ok(())).collect());
                vec![ServerMessage::Mirror(MirrorReply::Changed { request, answers })]
            }
            message => honest(message),
        },
        true,
    );
    assert!(is_protocol(&summary), "{summary:?}");
}

#[test]
fn a_page_that_was_not_asked_for_is_not_taken() {
    // With the last answer before the trees are walked.
    let down = |message| match message {
        ClientMessage::Mirror(MirrorRequest::Begin { request, .. }) => {
            vec![begun(request), page(request + 99, false)]
        }
        message => honest(message),
    };
    let up = |message| match message {
        ClientMessage::Mirror(MirrorRequest::HabitsOf { request, .. }) => {
            vec![keeps(request), page(request + 99, false)]
        }
        message => honest(message),
    };
    for (script, up) in [(down as Script, false), (up, true)] {
        let summary = mirror(script, up);
        assert!(is_protocol(&summary), "{up}: {summary:?}");
    }
}

#[test]
fn a_server_says_what_it_can_keep_when_it_is_asked_and_not_again() {
    let summary = mirror(
        |message| match message {
            ClientMessage::Mirror(MirrorRequest::Walk { request, .. }) => {
                vec![keeps(request), page(request, true)]
            }
            message => honest(message),
        },
        true,
    );
    assert!(is_protocol(&summary), "{summary:?}");
}

#[test]
fn a_target_that_is_held_twice_begins_nothing_anew() {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let summary = mirror(
        |message| match message {
            ClientMessage::Mirror(MirrorRequest::Edit { request, edits }) => {
                SAID.fetch_add(1, Ordering::Relaxed);
                let answers = edits.iter().map(|_| Ok(())).collect();
                let changed = ServerMessage::Mirror(MirrorReply::Changed { request, answers });
                vec![begun(1), changed]
            }
            message => honest(message),
        },
        true,
    );
    assert!(is_protocol(&summary) && SAID.load(Ordering::Relaxed) > 0, "{summary:?}");
}

#[test]
fn a_page_that_is_the_same_as_none_is_no_page() {
    let at_once = |message| match message {
        ClientMessage::Mirror(MirrorRequest::Walk { request, .. }) => {
            vec![ServerMessage::Mirror(MirrorReply::Alike { request, done: true })]
        }
        message => honest(message),
    };
    let later = |message| match message {
        ClientMessage::Mirror(MirrorRequest::Walk { request, .. }) => vec![page(request, false)],
        // Nobody has another page to compare it with.
        ClientMessage::Mirror(MirrorRequest::WalkMore { request }) => {
            vec![ServerMessage::Mirror(MirrorReply::Alike { request, done: true })]
        }
        message => honest(message),
    };
    for (script, up) in [(at_once as Script, false), (at_once, true), (later, false), (later, true)]
    {
        // With one page, and with pages that wait and begin elsewhere.
        for files in [0, 4 * PAGE_ENTRIES_MAX] {
            let summary = mirror_of(files, script, up);
            assert!(is_protocol(&summary), "{up}: {summary:?}");
        }
    }
}
