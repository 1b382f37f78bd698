//! The commands of the README, as they stand there: run one after the other in a
//! machine of their own, with its own files (an overlay over this one's) and its own
//! network. What a command prints once (a token, a fingerprint, a key) takes the
//! place of the dots in those behind it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use verbatim_tests::process::{binary, skip};

/// Blocks that are run by other means: these two are how everything is tested.
const ELSEWHERE: [&str; 2] = ["cargo run --release --example quickstart", "tests/run"];

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
heard=/tmp/heard server=0
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
    for _ in $(seq 200); do
        ! grep -q listening /tmp/log || break
        sleep 0.05
    done
    grep -q listening /tmp/log || { echo "FAILED: $line"; cat /tmp/log; exit 1; }
    cat /tmp/log >>$heard
}
follow() {
    bash -c "exec $1" >/tmp/followed 2>&1 &
    local pid=$!
    sleep 2
    kill -TERM $pid || { echo "FAILED: it ended: $1"; cat /tmp/followed; exit 1; }
    wait $pid || true
}
over() {
    ((server == 0)) || { kill -TERM $server && wait $server || true; }
    server=0
}
"#;

/// The blocks of commands of a text: not those of files.
fn blocks(text: &str) -> Vec<Vec<&str>> {
    let parts = text.split("```\n").skip(1).step_by(2);
    let lines = parts.map(|part| part.lines().collect::<Vec<_>>());
    lines.filter(|lines| !lines[0].starts_with('[')).collect()
}

fn script(blocks: &[Vec<&str>]) -> (String, usize) {
    let (mut script, mut count) = (SCRIPT.to_owned(), 0);
    for block in blocks.iter().filter(|block| !ELSEWHERE.contains(&block[0])) {
        for line in block {
            let line = ["server$ ", "client$ "]
                .iter()
                .find_map(|it| line.strip_prefix(it))
                .unwrap_or(line);
            let line = line.split("  #").next().unwrap_or(line).trim_end();
            let how = match line {
                line if line.starts_with("rdma-serve") => "serve",
                line if line.contains("--watch") => "follow",
                // It says by its code that there is no RDMA here.
                line if line.contains("rdma-doctor") => "say 2",
                _ => "say 0",
            };
            let line = line.replace("HOST", "127.0.0.1");
            writeln!(script, "{how} '{}'", line.replace('\'', r"'\''")).expect("a string");
            count += 1;
        }
    }
    script.push_str(
        "over\ndiff -r /data/imagenet /scratch/imagenet\ncmp step-1000.pt /scratch/ckpt/step-1000.pt\n\
         cmp model.safetensors /data/model.safetensors\ntar tf /scratch/ckpt/code.tar >/dev/null\n\
         echo ALL DONE\n",
    );
    (script, count)
}

#[test]
fn every_command_of_the_readme_works() {
    let name = "every_command_of_the_readme_works";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = fs::read_to_string(root.join("README.md")).expect("the README");
    let blocks = blocks(&readme);
    assert!(ELSEWHERE.iter().all(|it| blocks.iter().any(|block| block[0] == *it)), "{blocks:?}");
    let (script, count) = script(&blocks);
    assert!(count >= 15, "{count} commands in {blocks:?}");
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
