//! Where the text of a token can be read while commands run: not in arguments, names, maps or
//! descriptors of any process, and in the environment of nobody but the command that it was
//! given to.

use crate::process::{Home, Running, Serve, Text, seen, skip, wait_for};
use crate::{FOLLOW_MAX, World, text};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// Threads of a process, as `/proc` has them.
fn threads(id: u32) -> Vec<u32> {
    let list = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    list.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A process and all that it started, and that these started.
fn family(id: u32) -> BTreeSet<u32> {
    let (mut found, mut new) = (BTreeSet::new(), vec![id]);
    while let Some(id) = new.pop() {
        if !found.insert(id) {
            continue;
        }
        for thread in threads(id) {
            let list = fs::read_to_string(format!("/proc/{id}/task/{thread}/children"));
            new.extend(list.unwrap_or_default().split_whitespace().flat_map(str::parse::<u32>));
        }
    }
    found
}

/// What of a process shows a text.
fn shows(id: u32, text: &str) -> Vec<String> {
    let mut all = Vec::new();
    for name in ["cmdline", "environ", "comm", "status", "maps", "mountinfo"] {
        all.push((name.to_owned(), fs::read(format!("/proc/{id}/{name}")).unwrap_or_default()));
    }
    for entry in fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        all.push((format!("fd {target:?}"), target.into_os_string().into_encoded_bytes()));
    }
    let has = |bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    all.into_iter().filter(|(_, bytes)| has(bytes)).map(|(name, _)| name).collect()
}

/// Fails if a process or one of its family shows a token, but for the environment of `owner`.
#[track_caller]
fn assert_hidden(id: u32, token: &str, owner: Option<u32>) {
    for process in family(id) {
        let shown = shows(process, token);
        let command = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        match owner == Some(process) {
            true => assert_eq!(shown, ["environ"], "of {command:?}, to which it was given"),
            false => assert_eq!(shown, [""; 0], "of {command:?}"),
        }
    }
}

/// Writes a file that its user alone may read.
fn private(at: &Path, content: &str) -> String {
    fs::write(at, content).expect("a file");
    fs::set_permissions(at, PermissionsExt::from_mode(0o600)).expect("ours");
    text(at)
}

#[test]
fn a_token_is_seen_in_no_process_but_the_environment_it_was_given_in() {
    let world = World::new(&[]);
    let token = world.add("alice", &["--export", "*:rw"]);
    let in_file = private(&world.path("token"), &token);
    let settings = format!("[server.\"127.0.0.1\"]\ntoken = {token:?}\n");
    let trusted = ["--fingerprint", &world.serve.fingerprint, "--timeout", "30"];
    let from = world.serve.at("data/large");
    let folder = world.serve.at("data/");
    for (command, place) in [("rdma-cp", &from), ("rdma-sync", &folder)] {
        for way in ["flag", "variable of a file", "settings", "variable"] {
            let out = tempfile::tempdir().expect("a folder");
            let to = text(out.path());
            let flag = ["--token-file", &in_file];
            let flag: &[&str] = if way == "flag" { &flag } else { &[] };
            let slow = ["--bwlimit", "256K", place, &to];
            let home = Home::new();
            let mut command = home.command(command, &[&trusted, flag, &slow[..]].concat());
            match way {
                "variable of a file" => drop(command.env("RDMA_TOKEN_FILE", &in_file)),
                "variable" => drop(command.env("RDMA_TOKEN", &token)),
                "settings" => {
                    let config = home.path().join("config/verbatim");
                    fs::create_dir_all(&config).expect("a folder");
                    private(&config.join("client.toml"), &settings);
                }
                _ => {}
            }
            let mut running = Running::start(command);
            wait_for("the copy has begun: a file is at its target", FOLLOW_MAX, || {
                seen(!crate::names(out.path()).is_empty(), running.report())
            });
            assert_hidden(running.id(), &token, (way == "variable").then_some(running.id()));
        }
    }
    assert_hidden(world.serve.id(), &token, None);
}

/// Stands for a command of the system: notes its arguments and its environment.
const NOTING: &str = "#!/bin/sh\n{ echo \"$0 $*\"; /usr/bin/env | /usr/bin/grep -a '^PATH=\\|^RDMA'; } >> \"${0%/*}/noted\"\n";

#[test]
fn commands_of_the_system_are_started_without_the_token() {
    let world = World::new(&[]);
    let token = world.add("alice", &["--export", "*:ro"]);
    let tools = tempfile::tempdir().expect("a folder");
    for tool in ["dcb", "ethtool", "nft", "iptables", "fusermount3"] {
        fs::write(tools.path().join(tool), NOTING).expect("a file");
        let mode = PermissionsExt::from_mode(0o755);
        fs::set_permissions(tools.path().join(tool), mode).expect("ours");
    }
    let trusted = ["--fingerprint", &world.serve.fingerprint];
    let home = Home::new();
    let at = world.serve.at("data");
    let mut doctor = home.command("rdma-doctor", &[&trusted[..], &[&at]].concat());
    doctor.env("RDMA_TOKEN", &token).env("PATH", tools.path());
    let ended = Running::start(doctor).end();
    let noted = fs::read_to_string(tools.path().join("noted")).unwrap_or_default();
    assert!(noted.contains(&format!("PATH={}", text(tools.path()))), "none was run: {ended:?}");
    assert!(!noted.contains(&token), "{noted}");
}

#[test]
fn the_child_of_a_parent_that_has_a_token_does_not_get_it() {
    let token = "rdma-token-of-somebody";
    let dir = crate::folders();
    let home = Arc::new(Home::new().wrapped(&["env", &format!("RDMA_TOKEN={token}")]));
    let data = format!("data={}", text(&dir.path().join("data")));
    let serve = Serve::of(&home, "127.0.0.1:0", &["--reloadable", &data]);
    assert!(family(serve.id()).len() > 1, "{}", serve.log());
    assert_hidden(serve.id(), token, Some(serve.id()));
}

#[test]
fn a_mount_in_the_background_shows_no_token_of_a_file() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        let name = "a_mount_in_the_background_shows_no_token_of_a_file";
        return skip(name, "needs /dev/fuse and root");
    }
    let world = World::new(&[]);
    let token = world.add("alice", &["--export", "*:ro"]);
    let in_file = private(&world.path("token"), &token);
    let (home, at, to) = (Home::new(), world.serve.at("data"), world.text("out"));
    let trusted = ["--fingerprint", &world.serve.fingerprint, "--token-file", &in_file];
    let mount = home.command("rdma-mount", &[&trusted[..], &[&at, &to]].concat());
    Running::start(mount).end().done();
    // No child of ours: found by what it was started with.
    let is_it = |id: &u32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&to)
    };
    let all = fs::read_dir("/proc").expect("processes").flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mounts: Vec<u32> = ids.filter(is_it).collect();
    mounts.iter().for_each(|&id| assert_hidden(id, &token, None));
    let stop = home.command_of("umount").arg(&to).output();
    assert_eq!(mounts.len(), 1, "{:?} {}", stop, Text(world.serve.log()).0);
}
