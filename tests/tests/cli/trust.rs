//! Whom `rdma-cp` trusts: a server it can reach, with the fingerprint that was
//! given, left in a local door, or met before. Everything else ends with exit
//! code 3 and says what to do.

use crate::process::{Home, Running, Serve, Text, seen, skip, wait_for};
use crate::{World, exports, make_samples, names, text, works};
use std::io::Write;
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use verbatim_tests::port::Port;

/// A fingerprint that is well formed, and nobody's.
const OF_NOBODY: &str = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

#[test]
fn a_port_without_a_server_cannot_be_connected_to() {
    let home = Home::new();
    let nobody = Port::take();
    let ended = home.cp(&[&format!("rdma://{}/data/a", nobody.address), "here"]);
    let said = format!("cannot connect to {}: connection refused", nobody.address);
    ended.refused(3, &[&said, "hint: check the name, that rdma-serve runs"]);
}

#[test]
fn a_port_of_something_else_is_said_to_be_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let chatter = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        std::io::Write::write_all(&mut stream, b"SSH-2.0-OpenSSH_9.6\r\n").expect("it is told");
        // Stays open until the client has read it and hung up.
        let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
    });
    let ended = Home::new().cp(&[&format!("rdma://127.0.0.1:{port}/data/a"), "here"]);
    ended.refused(3, &["cannot speak TLS", "hint: check that the port belongs to an rdma-serve"]);
    chatter.join().unwrap();
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let from = format!("rdma://127.0.0.1:{port}/data/a");
    let ended = Home::new().cp(&["--timeout", "2", &from, "here"]);
    ended.refused(3, &["took longer than 2 s", "hint: "]);
}

#[test]
fn a_wrong_fingerprint_is_refused() {
    let world = World::new();
    let from = world.serve.at("data/b.bin");
    let ended = world.serve.cp(&["--fingerprint", OF_NOBODY, &from, &world.text("out")]);
    let said = ["cannot trust", &world.serve.fingerprint, OF_NOBODY, "as given", "hint: "];
    ended.refused(3, &said);
    assert!(names(&world.path("out")).is_empty());
    let ended = world.serve.cp(&["--fingerprint", "SHA256:short", &from, &world.text("out")]);
    ended.refused(2, &["--fingerprint"]);
}

#[test]
fn an_unknown_server_is_refused_and_shows_its_fingerprint() {
    let world = World::new();
    let ended = Home::new().cp(&[world.serve.at("data/b.bin"), world.text("out")]);
    let hint = format!(
        "hint: compare it with what the server printed at its start, then add \
                        --fingerprint {}, or --trust-on-first-use",
        world.serve.fingerprint
    );
    ended.refused(3, &["it is not known here", &world.serve.fingerprint, &hint]);
    assert!(names(&world.path("out")).is_empty());
}

#[test]
fn a_server_met_once_is_remembered_and_a_changed_one_refused() {
    let dir = tempfile::tempdir().unwrap();
    make_samples(dir.path());
    let open = [exports(dir.path()).to_vec(), vec!["--insecure-no-auth".into()]].concat();
    let port = Port::take();
    let first = Serve::of(&Arc::new(Home::new()), &port.text(), &open);
    let (from, out) = (first.at("data/b.bin"), text(&dir.path().join("out")));
    let stranger = Home::new();
    stranger.cp(&["--trust-on-first-use", &from, &out]).done();
    stranger.cp(&[&from, &out]).done();
    let known = std::fs::read_to_string(stranger.path().join("config/verbatim/known_servers"));
    assert!(known.unwrap().contains(&first.fingerprint));

    drop(first);
    let second = Serve::of(&Arc::new(Home::new()), &port.text(), &open);
    let said = ["ITS IDENTITY HAS CHANGED", &second.fingerprint, "known_servers", "hint: only if"];
    stranger.cp(&[&from, &out]).refused(3, &said);
    // Trust on first use is no second one.
    stranger.cp(&["--trust-on-first-use", &from, &out]).refused(3, &said);
}

#[test]
fn a_door_that_a_dead_server_left_does_not_vouch_for_another() {
    let dir = tempfile::tempdir().unwrap();
    make_samples(dir.path());
    let old_home = Arc::new(Home::new());
    let port = Port::take();
    let old = Serve::of(&old_home, &port.text(), &exports(dir.path()));
    let from = old.at("data/b.bin");
    // Dropping kills it, so it cannot take its door away.
    drop(old);
    let _new = Serve::of(&Arc::new(Home::new()), &port.text(), &exports(dir.path()));
    let ended = old_home.cp(&[&from, &text(&dir.path().join("out"))]);
    // Nobody holds that door any more, so it vouches for nobody.
    ended.refused(3, &["cannot trust", "it is not known here"]);
}

/// Runs `rdma-cp` of this user at a terminal of its own, with somebody who types this when asked.
fn at_a_terminal(home: &Home, arguments: &[&str], typed: &str) -> crate::process::Ended {
    let line = home.command("rdma-cp", arguments);
    let words = [line.get_program()].into_iter().chain(line.get_args());
    let quoted: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let (mut command, screen) = (home.command_of("script"), home.path().join("screen"));
    // -e: the exit code of the command, which is in place of the shell: that one would end of an
    // interrupt too. Its terminal is not ours, so nobody else is asked.
    let line = format!("exec {}", quoted.join(" "));
    command.args(["-qefc", &line]).arg(&screen).stdin(Stdio::piped());
    // What was asked before is not asked now.
    let _ = std::fs::remove_file(&screen);
    let mut running = Running::start(command);
    // Stays open: an end of input would be an answer.
    let mut keyboard = running.stdin();
    wait_for("rdma-cp asks whether to trust the server", Duration::from_secs(20), || {
        let shown = std::fs::read_to_string(&screen).unwrap_or_default();
        seen(shown.contains("Trust it from now on"), (Text(shown), running.report()))
    });
    keyboard.write_all(typed.as_bytes()).expect("it is typed");
    running.end()
}

#[test]
fn somebody_at_a_terminal_is_asked_about_a_stranger_once() {
    if !works("script", &["--version"]) {
        return skip("somebody_at_a_terminal_is_asked_about_a_stranger_once", "no script command");
    }
    let dir = tempfile::tempdir().unwrap();
    make_samples(dir.path());
    let open = [exports(dir.path()).to_vec(), vec!["--insecure-no-auth".into()]].concat();
    let serve = Serve::start(&open);
    let (from, out) = (serve.at("data/b.bin"), dir.path().join("out"));
    let stranger = Home::new();
    let known = stranger.path().join("config/verbatim/known_servers");

    let ended = at_a_terminal(&stranger, &[&from, &text(&out)], "no\n");
    assert_eq!(ended.code, Some(3), "{ended:#?}");
    assert!(ended.stdout.contains(&serve.fingerprint), "{ended:#?}");
    assert!(names(&out).is_empty() && !known.exists());

    // Ctrl-C is no answer.
    let ended = at_a_terminal(&stranger, &[&from, &text(&out)], "\x03");
    assert_eq!(ended.code, Some(130), "{ended:#?}");
    assert!(ended.stdout.contains("interrupted"), "{ended:#?}");
    assert!(names(&out).is_empty() && !known.exists());

    at_a_terminal(&stranger, &[&from, &text(&out)], "yes\n").done();
    assert_eq!(names(&out), ["b.bin"]);
    assert!(std::fs::read_to_string(&known).unwrap().contains(&serve.fingerprint));
    // Known from now on, to scripts as well.
    stranger.cp(&[&from, &text(&out)]).done();
}
