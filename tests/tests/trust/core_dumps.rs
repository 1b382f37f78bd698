//! What is in a core dump that an administrator makes after all: of a process whose limit was
//! raised while it ran, by the kernel, or of one that runs, by gdb.

use crate::process::{Home, Running, Serve, Signal, Text, seen, skip, wait_for};
use crate::{FOLLOW_MAX, World, folders, names, text};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rustix::process::{Pid, Resource, Rlimit, kill_process, prlimit};
use std::fs::{self, File};
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// What the file is full of that is copied meanwhile.
const CONTENTS: &[u8] = b"a line of a file that only its readers may see\n";

/// Whether these bytes are in the memory of a process.
fn is_in_memory(process: u32, bytes: &[u8]) -> bool {
    let memory = File::open(format!("/proc/{process}/mem")).expect("it runs, and root may");
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("it runs");
    maps.lines().filter(|line| line.contains(" rw")).any(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let (begin, end) = range.expect("each line begins with a range");
        let [begin, end] = [begin, end].map(|n| u64::from_str_radix(n, 16).expect("a number"));
        let mut copy = vec![0; (end - begin) as usize];
        // An area that was unmapped meanwhile has nothing.
        memory.read_exact_at(&mut copy, begin).is_ok() && contains(&copy, bytes)
    })
}

/// Whether bytes have others in them. One of these is looked for by the library, which is optimised
/// where tests are not.
fn contains(all: &[u8], bytes: &[u8]) -> bool {
    let rare = bytes.iter().position(|&byte| byte != 0).expect("not only zeros");
    let mut rest = all.get(rare..).unwrap_or_default();
    while rest.skip_until(bytes[rare]).expect("it is in memory") > 0 {
        let behind = all.len() - rest.len();
        if all[behind - 1 - rare..].starts_with(bytes) {
            return true;
        }
    }
    false
}

/// Makes a core dump of a process that runs: the kernel does, once its limit is raised, and where
/// this user may not raise it, gdb. None where neither can.
fn core_dump(process: u32, place: &Path) -> Option<Vec<u8>> {
    let pid = Pid::from_raw(process as i32);
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").expect("it is there");
    let unlimited = Rlimit { current: None, maximum: None };
    if pattern.starts_with("core") && prlimit(pid, Resource::Core, unlimited).is_ok() {
        kill_process(pid.expect("a number"), Signal::ABORT).expect("ours");
        wait_for("the process is dead", FOLLOW_MAX, || {
            let status = fs::read_to_string(format!("/proc/{process}/status"));
            let status = status.unwrap_or_else(|_| "State:\tZ".into());
            seen(status.contains("State:\tZ"), Text(status))
        });
    } else {
        let (to, id) = (place.join("core"), process.to_string());
        let gcore = Command::new("gcore").arg("-o").arg(to).arg(id).output().ok()?;
        assert!(gcore.status.success(), "{gcore:?}");
    }
    let found = names(place);
    assert!(found.len() == 1 && found[0].starts_with("core"), "one core file: {found:?}");
    let path = place.join(&found[0]);
    let core = fs::read(&path).expect("a file");
    fs::remove_file(path).expect("ours");
    assert!(core.starts_with(b"\x7fELF"), "a core dump of {} bytes", core.len());
    Some(core)
}

#[test]
fn a_core_dump_that_is_forced_has_no_contents_and_no_keys() {
    let place = tempfile::tempdir().expect("a folder");
    let wrapper = ["sh", "-c", "cd \"$0\" && exec \"$@\"", &text(place.path())];
    let (dir, home) = (folders(), Arc::new(Home::new().wrapped(&wrapper)));
    // Or the kernel would write no core file of the server there.
    let config = dir.path().join("serve.toml");
    let toml = "landlock = false\n[[export]]\npath = \"DIR/in\"\nmode = \"rw\"\n";
    fs::write(&config, toml.replace("DIR", &text(dir.path()))).expect("a file");
    let serve = Serve::of(&home, "127.0.0.1:0", &["--config", &text(&config)]);
    let world = World { serve, dir, home };
    let token = world.add("alice", &["--export", "in:rw"]);
    let seed = URL_SAFE_NO_PAD.decode(&token["vbt1-".len()..]).expect("a token");
    // The seed lies behind 16 bytes that all such keys begin with.
    let identity = fs::read(world.home.state().join("identity.key")).expect("a key");
    let server_seed = &identity[16..48];

    let mut copy = start_upload(&world, &token, &wrapper);
    let (client, server) = (copy.id(), world.serve.id());
    for process in [client, server] {
        wait_for("both have contents in memory", FOLLOW_MAX, || {
            let there = is_in_memory(process, CONTENTS);
            seen(there, (copy.report(), Text(world.serve.log())))
        });
    }
    let secrets = [CONTENTS, &seed, token.as_bytes(), server_seed];
    // Whether a page still has the seed of the server's key, which is wiped once it is read, is
    // left to chance.
    let there = [client, server].map(|process| {
        let [contents, seed, token, _] = secrets.map(|it| is_in_memory(process, it));
        [contents, seed, token]
    });
    let expected = [[true, true, true], [true, false, false]];
    assert_eq!(there, expected, "the secrets are where this test looks for them");

    let mut found = Vec::new();
    for process in [client, server] {
        let Some(core) = core_dump(process, place.path()) else {
            let name = "a_core_dump_that_is_forced_has_no_contents_and_no_keys";
            return skip(name, "no core_pattern and limit that root may raise, and no gcore");
        };
        found.push(secrets.map(|secret| contains(&core, secret)));
    }
    let what = "contents, seed, token, server's key: in the client's dump and the server's";
    assert_eq!(found, [[false; 4]; 2], "{what}");
}

/// Begins to upload a file of `CONTENTS` so slowly that this never ends by itself.
fn start_upload(world: &World, token: &str, wrapper: &[&str]) -> Running {
    let (large, to) = (world.text("out/large"), world.serve.at("in/large"));
    fs::write(&large, CONTENTS.repeat((8 << 20) / CONTENTS.len())).expect("a file");
    let trusted = ["--fingerprint", &world.serve.fingerprint, "--bwlimit", "256K"];
    let arguments = [&trusted[..], &[&large, &to]].concat();
    let mut command = Home::new().wrapped(wrapper).command("rdma-cp", &arguments);
    command.env("RDMA_TOKEN", token);
    Running::start(command)
}
