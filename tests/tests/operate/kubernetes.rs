//! The examples for Kubernetes: valid for its schemas, and what they run is what
//! the commands take.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use verbatim_tests::process::{Home, Running, skip};

/// The version whose schemas are asked, as the package that has them is numbered.
const VALIDATOR: &str = "kubernetes-validate==1.34.1";

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/kubernetes")
}

#[test]
fn the_examples_are_what_kubernetes_takes() {
    let name = "the_examples_are_what_kubernetes_takes";
    let dir = tempfile::tempdir().expect("folder");
    let tools = dir.path().join("tools");
    let done = |command: &mut Command| command.output().is_ok_and(|it| it.status.success());
    let made = done(Command::new("python3").args(["-m", "venv"]).arg(&tools))
        && done(Command::new(tools.join("bin/pip")).args(["install", "--quiet", VALIDATOR]));
    if !made {
        return skip(name, "no python3 with venv, or kubernetes-validate cannot be installed");
    }
    let validate = |file: &Path| {
        let mut command = Command::new(tools.join("bin/kubernetes-validate"));
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

#[test]
fn what_the_examples_run_the_commands_take() {
    let home = Home::new();
    let text = |file: &str| fs::read_to_string(configs().join(file)).expect("text");
    let serve = text("serve.yaml");
    let config = serve.split("rdma-serve.toml: |\n").nth(1).expect("the configuration");
    let lines = config.lines().take_while(|line| line.starts_with("    "));
    let folder = home.path().join("data");
    fs::create_dir(&folder).expect("makes");
    let config: String = lines.map(|line| format!("{}\n", &line[4..])).collect();
    let config = config.replace("\"/data\"", &format!("{folder:?}"));
    let path = home.path().join("rdma-serve.toml");
    fs::write(&path, &config).expect("writes");
    // Nobody has the token yet, and that is said: everything else is right.
    let check = ["--check-config", "--config", path.to_str().expect("plain")];
    let ended = Running::start(home.command("rdma-serve", &check)).end();
    ended.refused(2, &["rdma-token add"]);
    let help = Running::start(home.command("rdma-sync", &["--help"])).end().done().stdout;
    for line in text("train.yaml").lines().filter(|line| line.contains("rdma-sync")) {
        let words = line.split(['[', ',', ']', ' ']).filter(|word| word.starts_with("--"));
        words.for_each(|flag| assert!(help.contains(flag), "{flag}: {line}"));
    }
}
