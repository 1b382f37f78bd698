//! What packages take from the commands: manual pages and completions that name
//! every flag of their help, and a version that says what a bug report needs.

use std::process::Command;
use verbatim_tests::process::binary;

const COMMANDS: [&str; 6] =
    ["rdma-serve", "rdma-token", "rdma-cp", "rdma-sync", "rdma-mount", "rdma-doctor"];

fn said(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(binary(command)).args(arguments).output().expect("it starts");
    assert!(output.status.success(), "{command} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The long flag that a line of help is about.
fn flag_of(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().take(2);
    words
        .find_map(|word| word.strip_prefix("--"))
        .map(|it| it.trim_end_matches([',', '.']).to_owned())
}

#[test]
fn pages_and_completions_have_every_flag_of_the_help() {
    for command in COMMANDS {
        let help = said(command, &["--help"]);
        let mut flags: Vec<String> = help.lines().filter_map(flag_of).collect();
        flags.retain(|name| name.chars().all(|c| c.is_ascii_alphabetic() || c == '-'));
        assert!(flags.len() >= 2, "{command}: {flags:?} in {help}");
        for kind in ["man", "bash", "zsh", "fish"] {
            let made = said(command, &["--generate", kind]).replace("\\-", "-");
            let lost: Vec<_> = flags.iter().filter(|it| !made.contains(it.as_str())).collect();
            assert!(lost.is_empty(), "{command} {kind}: {lost:?}");
        }
        let script = said(command, &["--generate", "bash"]);
        let checked = Command::new("bash").args(["-n", "-c", &script]).status().expect("bash");
        assert!(checked.success(), "{command}: bash cannot read its completions");
        let page = said(command, &["--generate", "man"]);
        assert!(page.contains(&format!(".TH {command} 1")), "{command}: {page:.200}");
    }
}

#[test]
fn help_shows_each_way_of_calling_and_sorts_what_all_commands_share() {
    for (command, ways) in [
        ("rdma-cp", vec!["SOURCE... TARGET", "--list HOST:/[PATH]", "--new-token FILE"]),
        ("rdma-sync", vec!["SOURCE TARGET", "--wait STATUS"]),
        ("rdma-mount", vec!["HOST:/EXPORT[/PATH] MOUNTPOINT", "--status MOUNTPOINT"]),
        ("rdma-doctor", vec!["[HOST]"]),
    ] {
        for flag in ["-h", "--help"] {
            let help = said(command, &[flag]);
            let (usage, rest) = help.split_once("Usage:").expect("how it is called");
            assert!(usage.trim().len() > 20, "{command} says what it does: {help}");
            let (usage, _) = rest.split_once("\n\n").expect("a part of its own");
            assert!(ways.iter().all(|way| usage.contains(way)), "{command}: {usage}");
            for heading in ["\nOptions:\n", "\nOutput:\n", "\nConnection:\n", "\nRDMA:\n"] {
                assert_eq!(help.matches(heading).count(), 1, "{command} {flag}: {heading}");
            }
        }
    }
}

#[test]
fn a_version_says_what_a_bug_report_needs() {
    for command in COMMANDS {
        let told = said(command, &["--version"]);
        let mut lines = told.lines();
        let first = lines.next().unwrap_or_default();
        let number = format!("{command} {}", env!("CARGO_PKG_VERSION"));
        assert!(first.starts_with(&number), "{told}");
        let names: Vec<_> = lines.filter_map(|line| line.split_once(": ")).collect();
        let keys: Vec<_> = names.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["kernel", "libibverbs", "read path"], "{told}");
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
        assert_eq!(names[0].1, kernel.trim());
        assert_eq!(said(command, &["-V"]), format!("{number}\n"));
    }
}
