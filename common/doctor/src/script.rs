//! The fixes as a shell script, to be read and then run. What only a person can do
//! is a comment; what needs a value that only a person knows is one too. Nothing is
//! run by us.

use crate::finding::{Finding, Fix};
use std::fmt::Write;

/// Words that stand for what a person must fill in.
const BLANKS: &[&str] = &["ADDRESS", "COMMAND", "CLASS", "DEV", "..."];

/// Writes the script.
pub fn fix_script(findings: &[Finding]) -> String {
    let mut text = String::from(
        "#!/bin/sh\n# What rdma-doctor would change on this machine. Read it, then run it as root.\n\
         set -eu\n",
    );
    for finding in findings {
        let Finding { check, about, is, fix, .. } = finding;
        let _ = write!(text, "\n# {check}: {}\n", one_line(&format!("{about}: {is}")));
        match fix {
            Fix::Run(command) if has_blank(command) => {
                let _ = writeln!(text, "# fill in and run: {}", one_line(command));
            }
            Fix::Run(command) => {
                let _ = writeln!(text, "{}", one_line(command));
            }
            Fix::Line { file, line, then } if has_blank(line) => {
                let _ = writeln!(text, "# in {file}: {}; then {then}", one_line(line));
            }
            Fix::Line { file, line, then } => {
                let folder = file.rsplit_once('/').map_or("/", |(folder, _)| folder);
                let _ = writeln!(text, "mkdir -p {}", quoted(folder));
                let _ = writeln!(text, "printf '%s\\n' {} >>{}", quoted(line), quoted(file));
                let _ = writeln!(text, "# then: {}", one_line(then));
            }
            Fix::Person(what) => {
                let _ = writeln!(text, "# by hand: {}", one_line(what));
            }
        }
    }
    text
}

fn has_blank(text: &str) -> bool {
    let words = text.split(|letter: char| !letter.is_ascii_uppercase() && letter != '.');
    words.into_iter().any(|word| BLANKS.contains(&word))
}

/// A comment must not end early: names come from the kernel, but a script is run.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    fn finding(fix: Fix) -> Finding {
        Finding {
            check: "test",
            severity: Severity::Note,
            about: "it\nrm -rf /".into(),
            is: "is".into(),
            should: "should".into(),
            why: "why".into(),
            fix,
        }
    }

    #[test]
    fn a_name_with_a_line_end_stays_a_comment() {
        let text = fix_script(&[finding(Fix::Person("see\nthere".into()))]);
        assert!(!text.lines().any(|line| line.starts_with("rm") || line == "there"), "{text}");
    }

    #[test]
    fn what_a_person_must_fill_in_is_not_run() {
        let run = Fix::Run("ip addr add ADDRESS/LENGTH dev eth0".into());
        let text = fix_script(&[finding(run)]);
        assert!(text.contains("# fill in and run: ip addr add"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("ip ")), "{text}");
    }

    #[test]
    fn a_line_is_quoted_for_the_shell() {
        let (file, line) = ("/etc/a b".to_owned(), "it's $HOME".to_owned());
        let text = fix_script(&[finding(Fix::Line { file, line, then: "wait".into() })]);
        assert!(text.contains(r"printf '%s\n' 'it'\''s $HOME' >>'/etc/a b'"), "{text}");
    }
}
