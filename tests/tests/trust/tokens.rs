//! Named tokens: what one is good for, where a client takes it from, and that
//! its end is the end of what runs under it.

use crate::process::{Home, Running, Text, seen, wait_for, when};
use crate::{FOLLOW_MAX, World, folders, names, text};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use verbatim_tests::holding::Holding;
use verbatim_tests::output::Report;

#[test]
fn a_token_is_good_for_its_exports_and_modes() {
    let world = World::new(&[]);
    let reader = world.add("reader", &["--export", "data:ro"]);
    let listed = world.cp(&reader, &["--list", &world.serve.at("")]).done().stdout;
    assert!(listed.contains("data/") && !listed.contains("in/"), "{listed}");
    world.cp(&reader, &[&world.serve.at("data/small"), &world.text("out")]).done();
    let from = world.text("data/small");
    let refused = world.cp(&reader, &[&from, &world.serve.at("in/new")]);
    refused.refused(1, &["no export is called in"]);

    let looker = world.add("looker", &["--export", "in:ro"]);
    world.cp(&looker, &[&from, &world.serve.at("in/new")]).refused(1, &["read-only"]);
    let writer = world.add("writer", &["--export", "in:rw", "--export", "data:rw"]);
    world.cp(&writer, &[&from, &world.serve.at("in/new")]).done();
    // Not more than the export allows.
    world.cp(&writer, &[&from, &world.serve.at("data/new")]).refused(1, &["read-only"]);
    assert_eq!(names(&world.path("in")), ["new"]);
    assert_eq!(names(&world.path("data")), ["large", "small"]);
}

/// Changes how many files the server may have open.
fn limit_files(world: &World, current: Option<u64>) {
    let server = Pid::from_raw(world.serve.id() as i32);
    let new = Rlimit { current, maximum: getrlimit(Resource::Nofile).maximum };
    prlimit(server, Resource::Nofile, new).expect("ours");
}

#[test]
fn a_token_that_is_revoked_while_its_file_cannot_be_read_is_so_when_it_can() {
    let world = World::new(&[]);
    let token = world.add("alice", &["--export", "data:ro"]);
    // It can look at files, and open none.
    limit_files(&world, Some(0));
    world.token(&["revoke", "alice"]).done();
    wait_for("the server logs that it cannot read its keys", FOLLOW_MAX, || {
        when(world.serve.log(), |log| log.contains("keys not read")).map_err(Text)
    });
    limit_files(&world, getrlimit(Resource::Nofile).maximum);
    wait_for("the server refuses the token that was revoked", FOLLOW_MAX, || {
        let ended = world.cp(&token, &["--list", &world.serve.at("")]);
        seen(ended.code == Some(3), (ended, Text(world.serve.log())))
    });
    assert_eq!(world.serve.log().matches("keys not read").count(), 1, "once is enough");
}

#[test]
fn a_token_is_revoked_also_where_the_server_has_no_descriptor_left() {
    let world = World::new(&[]);
    let token = world.add("alice", &["--export", "data:ro"]);
    let (_home, running) = world.start_slowly(&token);
    let taken = names(Path::new(&format!("/proc/{}/fd", world.serve.id())));
    // From here on the next number is one too many.
    limit_files(&world, (0..).find(|number: &u64| !taken.contains(&number.to_string())));
    world.token(&["revoke", "alice"]).done();
    running.end().refused(3, &["the token alice was revoked"]);
}

#[test]
fn a_token_that_is_revoked_ends_what_runs_under_it() {
    let world = World::new(&[]);
    let before = Holding::of(world.serve.id());
    let token = world.add("alice", &["--export", "data:ro"]);
    let (from, out) = (world.serve.at("data/large"), world.text("out"));
    let (_home, running) = world.start_slowly(&token);
    world.token(&["revoke", "alice"]).done();
    running.end().refused(3, &["the token alice was revoked"]);
    assert!(!world.path("out/large").exists(), "half a file has no final name");
    let said = ["is not authorized here", "hint: use a key"];
    world.cp(&token, &[&from, &out]).refused(3, &said);
    world.token(&["revoke", "alice"]).refused(1, &["no token of this name", "hint: "]);
    before.comes_back(&world.serve);
}

#[test]
fn a_token_that_expires_ends_what_runs_under_it() {
    let world = World::new(&[]);
    let before = Holding::of(world.serve.id());
    // Long enough to be let in, and to begin.
    let token = world.add("brief", &["--export", "data:ro", "--expires", "10s"]);
    let (from, out) = (world.serve.at("data/large"), world.text("out"));
    let ended = world.cp(&token, &["--bwlimit", "256K", "--timeout", "30", &from, &out]);
    ended.refused(3, &["the token brief has expired"]);
    let listed = world.token(&["list"]).done().stdout;
    assert!(listed.contains("brief  data:ro  expired  ed25519:"), "{listed}");
    assert!(!listed.contains(&token), "the server has the public half alone");
    before.comes_back(&world.serve);
}

#[test]
fn the_client_takes_its_token_from_the_first_place_that_has_one() {
    let world = World::new(&[]);
    let file = world.path("token");
    let arguments = ["add", "alice", "--export", "data:ro", "--file", &text(&file)];
    assert!(world.token(&arguments).done().stdout.is_empty(), "the file has it, nobody else");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let token = fs::read_to_string(&file).unwrap();
    let (home, list) = (Home::new(), world.serve.at(""));
    let run = |variables: &[(&str, &str)]| {
        let trusted = ["--fingerprint", &world.serve.fingerprint, "--list", &list];
        let mut command = home.command("rdma-cp", &trusted);
        command.envs(variables.iter().copied());
        Running::start(command).end()
    };
    let let_in = |variables: &[(&str, &str)]| {
        wait_for("the server accepts the token", FOLLOW_MAX, || {
            when(run(variables), |ended| ended.code == Some(0))
        });
    };
    let_in(&[("RDMA_TOKEN", token.trim())]);
    let_in(&[("RDMA_TOKEN_FILE", &text(&file)), ("RDMA_TOKEN", "not asked")]);
    run(&[]).refused(3, &["no key was offered"]);

    let settings = home.path().join("config/verbatim/client.toml");
    fs::create_dir_all(settings.parent().unwrap()).unwrap();
    let address = world.serve.address;
    fs::write(&settings, format!("[server.\"{address}\"]\ntoken = {:?}\n", token.trim())).unwrap();
    fs::set_permissions(&settings, PermissionsExt::from_mode(0o644)).unwrap();
    run(&[]).refused(3, &["client.toml", "0644", "hint: chmod 600"]);
    fs::set_permissions(&settings, PermissionsExt::from_mode(0o600)).unwrap();
    let_in(&[]);
    fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    run(&[("RDMA_TOKEN_FILE", &text(&file))]).refused(3, &["0640", "hint: chmod 600"]);
}

#[test]
fn a_mirror_takes_its_token_from_the_environment_too() {
    let world = World::new(&[]);
    let token = world.add("alice", &["--export", "data:ro"]);
    let (home, out) = (Home::new(), world.text("out/mirror"));
    let source = world.serve.at("data");
    let arguments = ["--fingerprint", &world.serve.fingerprint, &source, &out];
    let mut command = home.command("rdma-sync", &arguments);
    command.env("RDMA_TOKEN", &token);
    Running::start(command).end().done();
    assert_eq!(fs::read(world.path("out/mirror/small")).unwrap(), b"small");
}

#[test]
fn bad_names_grants_and_times_are_refused() {
    let world = World::new(&[]);
    let add = |arguments: &[&str]| world.token(&[&["add"][..], arguments].concat());
    add(&["alice"]).refused(2, &["--export"]);
    add(&["a b", "--export", "data"]).refused(1, &["not a name of a token"]);
    add(&["a", "--export", "a/b:ro"]).refused(2, &["not a grant"]);
    add(&["a", "--export", "data", "--expires", "soon"]).refused(2, &["is not a duration"]);
    add(&["a", "--export", "data", "--expires", "never"]).done();
    add(&["a", "--export", "data"]).refused(1, &["there is a token of this name", "hint: "]);
    let listed = world.token(&["list", "--json"]).done().stdout;
    assert!(listed.contains("\"expires\":null") && listed.contains("data:ro"), "{listed}");
}

#[test]
fn the_line_of_a_share_is_all_the_other_side_needs() {
    let dir = folders();
    let home = Home::new();
    let share = format!("set={}", text(&dir.path().join("data")));
    let arguments = ["--listen", "127.0.0.1:0", "--share", &share, "--share-for", "1m"];
    let mut command = home.command("rdma-serve", &arguments);
    let output = dir.path().join("line");
    command.stdout(fs::File::create(&output).unwrap()).stderr(std::process::Stdio::null());
    let mut serving = command.spawn().unwrap();
    let line = wait_for("rdma-serve has printed the line of a share", FOLLOW_MAX, || {
        let printed = fs::read_to_string(&output).unwrap_or_default();
        let done = |printed: &String| printed.ends_with('\n');
        when(printed, done).map_err(|printed| (printed, Report::of(&mut serving, &[])))
    });
    // As a person would: the line, in a shell, with the commands on the path.
    let other = Home::new();
    let mut shell = other.command_of("/bin/sh");
    let path = crate::process::binary("rdma-cp").parent().unwrap().to_owned();
    let pasted = shell.args(["-c", &line]).current_dir(dir.path().join("out")).env("PATH", path);
    let ended = pasted.output().unwrap();
    serving.kill().unwrap();
    serving.wait().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{line}\n{said}");
    assert_eq!(names(&dir.path().join("out/set")), ["large", "small"]);
}
