//! The commands of the README and of the guides, as they stand there: run one after
//! the other in a machine of their own, with its own files (an overlay over this one's) and its own
//! network. What a command prints once (a token, a fingerprint, a key) takes the
//! place of the dots in those behind it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use verbatim_tests::process::{binary, skip};

/// Blocks that are run by other means: these two are how everything is tested.
const ELSEWHERE: [&str; 2] = ["cargo run --release --example quickstart", "tests/run"];

/// The pages whose commands are run here.
const RUN: [&str; 5] = [
    "README.md",
    "docs/datasets.md",
    "docs/checkpoints.md",
    "docs/mount.md",
    "docs/moving-over.md",
];

/// What any other page with commands has to say of them.
const NOT_RUN: &str = "no test runs th";

/// What runs in that machine before the commands, with its root as the first argument.
const SETUP: &str = r#"
set -eu
mount -t tmpfs none "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" none "$1/root"
cd "$1/root"
mkdir -p opt/verbatim opt/run proc sys dev tmp
mount --bind "$2" opt/verbatim
mount --bind "$3" opt/run
mount --rbind /proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs none tmp
ip link set lo up
ip address add 10.0.0.7/32 dev lo
echo '127.0.0.1 server client' >>etc/hosts
exec chroot . /bin/bash /opt/run/script
"#;

/// What the commands find there, and how each is run.
const SCRIPT: &str = r#"
set -euo pipefail
export PATH=/opt/verbatim:/usr/sbin:/usr/bin:/sbin:/bin HOME=/home/alice
unset XDG_STATE_HOME XDG_CONFIG_HOME RDMA_TOKEN RDMA_TOKEN_FILE
mkdir -p /home/alice/work /data/imagenet/a /data/set1 /scratch/ckpt
cd /home/alice/work
head -c 3000000 /dev/urandom >/data/model.safetensors
echo 1 >/data/imagenet/a/1.jpg
echo 2 >/data/set1/part
echo 3 >step-1000.pt
tar cf /data/set.tar -C /data set1
heard=/tmp/heard server=0 follower=0
: >$heard
fill() {
    local token key print
    token=$(grep -o 'vbt1-[A-Za-z0-9_-]*' $heard | tail -n 1) || token=none
    print=$(grep -o 'SHA256:[A-Za-z0-9+/=]*' $heard | tail -n 1) || print=none
    key=$(grep -o 'ed25519:[^ ]* .*' $heard | tail -n 1) || key=none
    line=${1//vbt1-.../$token} line=${line//SHA256:.../$print}
    line=${line//ed25519:... you@client/$key}
}
# Runs a command, which may end with up to this code.
say() {
    local code=0
    fill "$2"
    echo "+ $line" >>/tmp/told
    timeout 60 bash -euo pipefail -c "$line" >/tmp/said 2>&1 || code=$?
    cat /tmp/said | tee -a $heard >>/tmp/told
    ((code <= $1)) || { echo "FAILED ($code): $line"; cat /tmp/told; exit 1; }
}
serve() {
    over
    fill "$1"
    echo "+ $line &" >>/tmp/told
    : >/tmp/log
    bash -c "exec $line" >/tmp/log 2>&1 &
    server=$!
    for _ in $(seq 400); do
        ! grep -q listening /tmp/log || break
        sleep 0.05
    done
    grep -q listening /tmp/log || { echo "FAILED: $line"; cat /tmp/log; exit 1; }
    cat /tmp/log >>$heard
}
follow() {
    unfollow
    bash -c "$1" >/tmp/followed 2>&1 &
    follower=$!
    sleep 2
    kill -0 $follower || { echo "FAILED: it ended: $1"; cat /tmp/followed; exit 1; }
}
unfollow() {
    ((follower == 0)) || { kill -TERM $follower && wait $follower || true; }
    follower=0
}
over() {
    unfollow
    ((server == 0)) || { kill -TERM $server && wait $server || true; }
    server=0
}
"#;

/// The commands of a text: lines of its blocks, but for blocks of files and those that are run
/// elsewhere. What is in a here-document belongs to its command.
fn commands(text: &str) -> Vec<String> {
    let (mut commands, mut inside, mut until) = (Vec::<String>::new(), None, None);
    for line in text.lines() {
        match (line.strip_prefix("```"), inside, until) {
            (Some(kind), None, _) => inside = Some(kind == "sh" || kind.is_empty()),
            (Some(_), Some(_), _) => inside = None,
            (None, Some(true), Some(end)) => {
                let last = commands.last_mut().expect("the command that it belongs to");
                write!(last, "\n{line}").expect("a string");
                until = (line != end).then_some(end);
            }
            (None, Some(true), None) if line.starts_with('[') || ELSEWHERE.contains(&line) => {
                inside = Some(false);
            }
            (None, Some(true), None) => {
                let prompts = ["server$ ", "client$ "];
                let line = prompts.iter().find_map(|it| line.strip_prefix(it)).unwrap_or(line);
                commands.push(line.split("  #").next().unwrap_or(line).trim_end().to_owned());
                until = line.split_once("<<'").map(|(_, end)| end.trim_end_matches('\''));
            }
            _ => {}
        }
    }
    commands
}

/// Runs the commands of a text, then looks at what they left.
fn run(name: &str, file: &str, count_min: usize, check: &str) {
    assert!(RUN.contains(&file), "{file} is not in the list");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join(file)).expect("a text of the project");
    let commands = commands(&text);
    assert!(commands.len() >= count_min, "{file}: {commands:?}");
    let mut script = SCRIPT.to_owned();
    for command in commands {
        let how = match command.as_str() {
            it if it.starts_with("export ") => {
                writeln!(script, "{it}").expect("a string");
                continue;
            }
            it if it.starts_with("rdma-serve") && !it.contains("--check-config") => "serve",
            it if it.contains("--watch") => "follow",
            it if it.contains("--wait") => "say 0",
            // It says by its code that there is no RDMA here.
            it if it.contains("rdma-doctor") => "unfollow; say 2",
            _ => "unfollow; say 0",
        };
        let command = command.replace("HOST", "127.0.0.1").replace('\'', r"'\''");
        writeln!(script, "{how} '{command}'").expect("a string");
    }
    write!(script, "over\n{check}\necho ALL DONE\n").expect("a string");
    let dir = tempfile::tempdir().expect("folder");
    for folder in ["machine", "run"] {
        fs::create_dir(dir.path().join(folder)).expect("makes");
    }
    fs::write(dir.path().join("run/script"), &script).expect("writes");
    let apart = ["--mount", "--net", "--pid", "--fork", "--propagation", "private"];
    let can = Command::new("unshare").args(apart).args(["ip", "link", "set", "lo", "up"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return skip(name, "no namespaces of its own (needs root, unshare, iproute2)");
    }
    let mut command = Command::new("unshare");
    command.args(apart).args(["bash", "-c", SETUP, "bash"]);
    command.arg(dir.path().join("machine"));
    command.arg(binary("rdma-serve").parent().expect("a folder")).arg(dir.path().join("run"));
    let output = command.output().expect("starts");
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("ALL DONE"), "{told}\n{errors}\n{script}");
}

/// Whether a page keeps its word: its commands are run, or it has none, or it says that they are
/// not run and marks them as text.
fn honest(file: &str, text: &str) -> bool {
    let shown = text.lines().any(|line| line == "```text");
    RUN.contains(&file) || (commands(text).is_empty() && (!shown || text.contains(NOT_RUN)))
}

#[test]
fn every_page_has_its_commands_run_or_says_that_they_are_not() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let mut pages = 0;
    for entry in fs::read_dir(docs).expect("the guides").map(|entry| entry.expect("entry")) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            let text = fs::read_to_string(entry.path()).expect("text");
            let file = format!("docs/{name}");
            assert!(
                honest(&file, &text),
                "{file}: a test has to run its commands (RUN above), \
                or they are ```text and the page says {NOT_RUN:?}..."
            );
            pages += 1;
        }
    }
    assert!(pages >= 12, "{pages} pages");
    // It does look.
    assert!(!honest("docs/new.md", "```sh\nrdma-cp a b\n```\n"));
    assert!(!honest("docs/new.md", "```text\nrdma-cp a b\n```\n"));
    assert!(honest("docs/new.md", "no test runs this:\n```text\nrdma-cp a b\n```\n"));
}

#[test]
fn every_command_of_the_readme_works() {
    let check = "diff -r /data/imagenet /scratch/imagenet\n\
                 cmp step-1000.pt /scratch/ckpt/step-1000.pt\n\
                 cmp model.safetensors /data/model.safetensors\n\
                 tar tf /scratch/ckpt/code.tar >/dev/null";
    run("every_command_of_the_readme_works", "README.md", 20, check);
}

#[test]
fn a_dataset_gets_to_every_node_as_the_guide_says() {
    let check = "diff -r /data/imagenet /scratch/imagenet";
    run("a_dataset_gets_to_every_node", "docs/datasets.md", 9, check);
}

#[test]
fn a_checkpoint_gets_to_many_nodes_as_the_guide_says() {
    let check = "for at in /tmp/step-1000 /data/keep/step-1000 /data/keep/latest; do\n\
                 diff -r /scratch/ckpt/step-1000 $at; done";
    run("a_checkpoint_gets_to_many_nodes", "docs/checkpoints.md", 11, check);
}

#[test]
fn a_dataset_is_mounted_as_the_guide_says() {
    let name = "a_dataset_is_mounted_as_the_guide_says";
    if fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        return skip(name, "/dev/fuse cannot be used");
    }
    run(name, "docs/mount.md", 5, "test -z \"$(ls /mnt/imagenet)\"");
}

#[test]
fn what_took_the_place_of_rsync_leaves_nothing_to_rsync() {
    let name = "what_took_the_place_of_rsync_leaves_nothing_to_rsync";
    if Command::new("rsync").arg("--version").output().is_err() {
        return skip(name, "no rsync");
    }
    let check = "test -z \"$(rsync -aHAXSin --checksum --delete /data/imagenet/ /scratch/moved/)\"\n\
                 cmp model.safetensors /data/model.safetensors\ndiff -r /data/set1 /scratch/set-copy";
    run(name, "docs/moving-over.md", 6, check);
}
