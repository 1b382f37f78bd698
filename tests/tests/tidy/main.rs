//! Tidy: the shape of the repository, kept by failing tests. Each rule is one test
//! whose name is the rule; each scanner has a test that shows it catch a violation,
//! so that no rule passes by looking at nothing.
//!
//! The scanners read text, not syntax: comments and literals are blanked first, then
//! words and braces are counted. That is enough for code that rustfmt has formatted.
//! A file or function already too long stands in a ratchet list and may only shrink.

#![forbid(unsafe_code)]

mod circles;
mod methods;
mod modules;
mod order;
mod pages;
mod sources;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use sources::{
    FILES_MIN, OURS, Source, assert_none, dependencies, find_in, find_lines, lines_where, metadata,
    root, rust_sources, sources,
};
use text::{functions, is_word, without_text, words};

/// Our packages and which of ours each may depend on, without the `verbatim-` that all names begin
/// with. Dependencies point one way; those of tests count too. `None` may depend on all.
const EDGES: &[(&str, Option<&str>)] = &[
    ("proto", Some("")),
    ("fabric", Some("")),
    ("telemetry", Some("")),
    ("files", Some("proto")),
    ("control", Some("proto")),
    ("doctor", Some("fabric telemetry")),
    ("usage", Some("fabric")),
    ("serve", Some("proto fabric files control telemetry")),
    // Both ends are made of the same. They never see each other.
    ("server", Some("proto fabric files control doctor telemetry serve")),
    ("engine", Some("proto fabric files control")),
    ("client", Some("engine proto fabric files control doctor telemetry")),
    ("mount", Some("client engine proto files control telemetry")),
    ("server-commands", Some("server fabric control telemetry usage")),
    ("client-commands", Some("client mount proto fabric files control doctor telemetry usage")),
    ("quickstart", Some("client server proto control")),
    ("tests", None),
    ("runner", Some("")),
    ("benches", None),
    ("gate", Some("proto")),
];

/// Packages of others that belong to one place, and which of ours may depend on each.
const RESERVED: &[(&str, &str)] = &[
    ("clap", "usage server-commands client-commands benches"),
    ("clap_complete", "usage"),
    ("clap_mangen", "usage"),
    ("indicatif", "client-commands quickstart"),
    ("fuser", "mount"),
];

/// The longest file, tests and all.
const FILE_LINES_MAX: usize = 1000;

/// The most lines of a file before its tests.
const CODE_LINES_MAX: usize = 700;

/// The longest function, from `fn` to its closing brace: a screen.
const FUNCTION_LINES_MAX: usize = 70;

/// A ratchet entry this much longer than its file is lowered.
const SLACK_LINES: usize = 20;

/// Files over `FILE_LINES_MAX`, with their lines.
const FILE_RATCHET: &[(&str, usize)] = &[];

/// Files over `CODE_LINES_MAX`, with their lines before the tests.
const CODE_RATCHET: &[(&str, usize)] = &[];

/// Functions over `FUNCTION_LINES_MAX`, as `file::name`, with their lines.
const FUNCTION_RATCHET: &[(&str, usize)] = &[];

/// Where unsafe code may be.
const UNSAFE_PATHS: &[&str] =
    &["common/fabric/src/memory.rs", "common/fabric/src/memory/", "common/fabric/src/verbs/"];

/// Folders of a developer's machine. Written in halves, so that this file keeps its own rule.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/fa", "rm")];

// ---- The rules.

#[test]
fn dependencies_point_one_way() {
    let packages = dependencies();
    assert!(packages.len() >= EDGES.len(), "only {} packages", packages.len());
    assert_none("a dependency points the wrong way", &wrong_edges(&packages));
}

#[test]
fn clap_indicatif_and_fuser_stay_in_their_packages() {
    assert_none(
        "a library depends on a package of the terminal or of FUSE",
        &misplaced(&dependencies()),
    );
}

#[test]
fn every_rust_file_says_what_it_owns() {
    let bad: Vec<_> = rust_sources()
        .iter()
        .filter(|source| header_lines(&source.text) < 2)
        .map(|source| source.path.clone())
        .collect();
    assert_none("these do not begin with a `//!` header of two lines or more", &bad);
}

#[test]
fn a_file_is_at_most_1000_lines() {
    let lengths = rust_sources().into_iter().map(|s| (s.path, s.text.lines().count())).collect();
    let verdict = ratchet(&lengths, FILE_LINES_MAX, FILE_RATCHET);
    assert_none("files too long; split them by idea", &verdict);
}

#[test]
fn a_file_has_at_most_700_lines_before_its_tests() {
    let code = rust_sources().into_iter().filter(|source| !source.is_test());
    let lengths: BTreeMap<_, _> = code.map(|s| (s.path, code_lines(&s.text))).collect();
    assert!(lengths.len() > FILES_MIN, "only {} files of code", lengths.len());
    let verdict = ratchet(&lengths, CODE_LINES_MAX, CODE_RATCHET);
    assert_none("files too long; split them by idea", &verdict);
}

#[test]
fn a_function_fits_a_screen() {
    let mut lengths = BTreeMap::new();
    let mut places = BTreeMap::new();
    for source in rust_sources() {
        for function in functions(&without_text(&source.text)) {
            let key = format!("{}::{}", source.path, function.name);
            let longest = lengths.entry(key.clone()).or_insert(0);
            if function.lines > *longest {
                *longest = function.lines;
                places.insert(key, function.first_line);
            }
        }
    }
    assert!(lengths.len() > 10 * FILES_MIN, "only {} functions", lengths.len());
    let verdict = ratchet(&lengths, FUNCTION_LINES_MAX, FUNCTION_RATCHET);
    let place = |line: &String| places.iter().find(|(key, _)| line.starts_with(&format!("{key}:")));
    let with_line = |line: String| match place(&line) {
        Some((_, first)) => format!("{line} (begins at line {first})"),
        None => line,
    };
    let verdict: Vec<_> = verdict.into_iter().map(with_line).collect();
    assert_none("functions too long; name their parts", &verdict);
}

#[test]
fn nothing_unwraps_outside_tests() {
    let found = find_in(&rust_sources(), |source| find_lines(&source.shipped(), ".unwrap()"));
    assert_none("use `?`, or expect(\"why it holds\")", &found);
}

#[test]
fn unsafe_code_stays_in_memory_and_verbs() {
    let found = find_in(&rust_sources(), |source| {
        let allowed = UNSAFE_PATHS.iter().any(|path| source.path.starts_with(path));
        if allowed { Vec::new() } else { unsafe_lines(&source.text) }
    });
    assert_none("unsafe code outside its two homes", &found);
}

#[test]
fn every_crate_root_but_fabric_forbids_unsafe_code() {
    let mut roots = 0;
    let mut bad = Vec::new();
    for package in metadata().packages.iter().filter(|p| p.name.as_str() != "verbatim-fabric") {
        for target in package.targets.iter().filter(|t| t.is_lib() || t.is_bin()) {
            roots += 1;
            let text = fs::read_to_string(&target.src_path).expect("cargo found it");
            if find_lines(&without_text(&text), "#![forbid(unsafe_code)]").is_empty() {
                bad.push(target.src_path.to_string());
            }
        }
    }
    assert!(roots >= FILES_MIN, "only {roots} crate roots");
    assert_none("these lack #![forbid(unsafe_code)]", &bad);
}

#[test]
fn only_programs_print() {
    let found = find_in(&rust_sources(), |source| {
        let name = source.path.rsplit('/').next().unwrap_or_default();
        let may = source.path.contains("src/bin/") || ["main.rs", "build.rs"].contains(&name);
        if may { Vec::new() } else { print_lines(&source.shipped()) }
    });
    assert_none("libraries log with tracing or return text; they do not print", &found);
}

#[test]
fn no_file_names_a_developers_machine() {
    let found = find_in(&sources(), |source| machine_path_lines(&source.text));
    assert_none("paths of somebody's machine", &found);
}

#[test]
fn every_threat_and_limit_names_tests_that_exist() {
    let sources = sources();
    let rust = sources.iter().filter(|source| source.path.ends_with(".rs"));
    let tests: Vec<&str> = rust.flat_map(|source| source.text.lines().filter_map(named)).collect();
    let page = sources.iter().find(|source| source.path == "SECURITY.md").expect("it is there");
    let faults = claims_without_tests(&page.text, &tests);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The function that a line begins, if it does and takes nothing.
fn named(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?.split_once("()").map(|it| it.0)
}

/// Rows of a table with a column for tests that name none, and names that no test has.
fn claims_without_tests(page: &str, tests: &[&str]) -> Vec<String> {
    let (mut faults, mut is_claim) = (Vec::new(), false);
    for line in page.lines() {
        is_claim = line.ends_with("| shown by |") || is_claim && line.starts_with('|');
        let named: Vec<&str> = line.split('`').skip(1).step_by(2).filter_map(test_name).collect();
        let is_row = is_claim && !line.ends_with("| shown by |") && !line.starts_with("| ---");
        if is_row && named.is_empty() {
            faults.push(format!("no test is named: {line}"));
        }
        let exists = |name: &str| match name.strip_suffix("...") {
            Some(begin) => tests.iter().any(|test| test.starts_with(begin)),
            None => tests.contains(&name),
        };
        let gone = named.into_iter().filter(|name| !exists(name));
        faults.extend(gone.map(|name| format!("no test is called {name}")));
    }
    faults
}

/// The test that a piece of code in a text names, if it does: four words at least, the last ones
/// perhaps left out.
fn test_name(code: &str) -> Option<&str> {
    let name = code.rsplit(": ").next().unwrap_or(code);
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let words = name.strip_suffix("...").unwrap_or(name);
    (words.matches('_').count() >= 3 && words.bytes().all(plain)).then_some(name)
}

#[test]
fn shell_scripts_stop_at_errors_and_can_be_run() {
    let scripts: Vec<_> = sources().into_iter().filter(is_shell).collect();
    let names: Vec<_> = scripts.iter().map(|script| script.path.as_str()).collect();
    for known in ["tests/run", ".ci/run"] {
        assert!(names.contains(&known), "{known} was not found among {names:?}");
    }
    let mut bad = Vec::new();
    for script in &scripts {
        bad.extend(shell_faults(&script.text).into_iter().map(|f| format!("{}: {f}", script.path)));
        if !is_executable(&root().join(&script.path)) {
            bad.push(format!("{}: not executable, run chmod +x", script.path));
        }
    }
    assert_none("shell scripts", &bad);
}

#[test]
fn parts_of_the_test_run_name_programs_that_exist() {
    let script = fs::read_to_string(root().join("tests/run")).expect("it is there");
    let list = script.split("groups=(").nth(1).and_then(|rest| rest.split(')').next());
    let words = list.expect("a list").split(|c: char| c.is_whitespace() || c == '"');
    // Each list begins with its key.
    let words = words.map(|word| word.rsplit('=').next().unwrap_or_default());
    let named: BTreeSet<&str> = words.filter(|word| !word.is_empty()).collect();
    let metadata = metadata();
    let targets = metadata.packages.iter().flat_map(|package| &package.targets);
    let there: BTreeSet<&str> =
        targets.filter(|it| it.is_test() && it.test).map(|it| it.name.as_str()).collect();
    assert!(named.len() > FILES_MIN, "only {named:?}");
    assert_none(
        "no such test program",
        &named.difference(&there).map(|it| (*it).into()).collect::<Vec<_>>(),
    );
}

// ---- The scanners.

/// The edges among our packages that `EDGES` does not allow, and packages it does not know.
fn wrong_edges(packages: &[(String, Vec<String>)]) -> Vec<String> {
    let known = |name: &str| {
        let name = name.strip_prefix(OURS)?;
        EDGES.iter().find(|(package, _)| *package == name)
    };
    let mut wrong = Vec::new();
    for (package, needs) in packages {
        let Some((_, allowed)) = known(package) else {
            wrong.push(format!("{package} is new: add it to EDGES in tests/tests/tidy/main.rs"));
            continue;
        };
        let Some(allowed) = allowed else { continue };
        let ours = needs.iter().filter_map(|needed| needed.strip_prefix(OURS));
        let refused = ours.filter(|needed| !allowed.split(' ').any(|it| it == *needed));
        wrong.extend(refused.map(|needed| format!("{package} -> {OURS}{needed}")));
    }
    wrong
}

/// Our packages that depend on a reserved package and may not, and reserved packages that nobody
/// uses.
fn misplaced(packages: &[(String, Vec<String>)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (reserved, allowed) in RESERVED {
        let users = packages.iter().filter(|(_, needs)| needs.iter().any(|it| it == reserved));
        let users: Vec<&str> = users.map(|(user, _)| user.as_str()).collect();
        if users.is_empty() {
            wrong.push(format!("nobody depends on {reserved}: remove it from RESERVED"));
        }
        let may = |user: &str| allowed.split(' ').any(|it| user.strip_prefix(OURS) == Some(it));
        wrong.extend(users.iter().filter(|it| !may(it)).map(|it| format!("{it} -> {reserved}")));
    }
    wrong
}

/// How many lines of `//!` a file begins with.
fn header_lines(text: &str) -> usize {
    text.lines().take_while(|line| line.starts_with("//!")).count()
}

/// The lines before the first `#[cfg(test)]` at the left margin.
fn code_lines(text: &str) -> usize {
    text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count()
}

/// Compares lengths with their maximum and with the list of those that are over it already.
/// The list may only shrink, and has nothing in it that is not over.
fn ratchet(lengths: &BTreeMap<String, usize>, max: usize, list: &[(&str, usize)]) -> Vec<String> {
    let mut verdict = Vec::new();
    for (name, &lines) in lengths {
        let entry = list.iter().find(|(listed, _)| listed == name).map(|&(_, lines)| lines);
        match entry {
            None if lines > max => verdict.push(format!("{name}: {lines} lines, at most {max}")),
            Some(allowed) if lines > allowed => {
                verdict.push(format!("{name}: grew from {allowed} to {lines} lines"));
            }
            Some(_) if lines <= max => {
                verdict.push(format!("{name}: {lines} lines fit now, remove its ratchet entry"));
            }
            Some(allowed) if lines + SLACK_LINES < allowed => {
                verdict.push(format!("{name}: {lines} lines, lower its ratchet from {allowed}"));
            }
            _ => {}
        }
    }
    let gone = list.iter().filter(|(listed, _)| !lengths.contains_key(*listed));
    verdict.extend(gone.map(|(listed, _)| format!("{listed}: gone, remove its ratchet entry")));
    verdict
}

/// Lines with the word, or with leave to use it.
fn unsafe_lines(text: &str) -> Vec<usize> {
    lines_where(&without_text(text), |line| {
        let chars: Vec<char> = line.chars().collect();
        let leave = line.contains("(unsafe_code") && !line.contains("forbid(");
        leave || !words(&chars, "unsafe").is_empty()
    })
}

fn print_lines(code: &str) -> Vec<usize> {
    lines_where(code, |line| {
        let chars: Vec<char> = line.chars().collect();
        let calls =
            |name| words(&chars, name).iter().any(|at| chars.get(at + name.len()) == Some(&'!'));
        ["print", "println", "eprint", "eprintln", "dbg"].into_iter().any(calls)
    })
}

/// Lines that name a folder of a developer's machine. `docs/work/x` and `$HOME/work/x` do
/// not: the name before the slash makes it another folder.
fn machine_path_lines(text: &str) -> Vec<usize> {
    lines_where(text, |line| {
        let starts_there = |at: usize| {
            let before = line[..at].chars().next_back();
            !before.is_some_and(|c| is_word(c) || "-.}*~)".contains(c))
        };
        let stops_there = |pattern: &str, at: usize| {
            let after = line[at + pattern.len()..].chars().next();
            pattern.ends_with('/') || !after.is_some_and(char::is_alphabetic)
        };
        let hit = |pattern: &&str| {
            line.match_indices(*pattern).any(|(at, _)| starts_there(at) && stops_there(pattern, at))
        };
        MACHINE_PATHS.iter().any(hit)
    })
}

fn is_shell(source: &Source) -> bool {
    let first = source.text.lines().next().unwrap_or_default();
    source.path.ends_with(".sh") || (first.starts_with("#!") && first.ends_with("sh"))
}

/// What a shell script lacks.
fn shell_faults(text: &str) -> Vec<&'static str> {
    let mut lines = text.lines();
    let mut faults = Vec::new();
    if !lines.next().is_some_and(|line| line.starts_with("#!")) {
        faults.push("does not begin with #!");
    }
    if !lines.next().is_some_and(|line| line.starts_with("# ")) {
        faults.push("has no header comment under its first line");
    }
    let stops = |line: &str| {
        let flags = line.strip_prefix("set -").and_then(|rest| rest.split_whitespace().next());
        flags.is_some_and(|flags| flags.contains('e') && flags.contains('u'))
    };
    if !text.lines().any(stops) {
        faults.push("has no `set -eu`");
    }
    faults
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o111 == 0o111)
}

// ---- The scanners see what they look for.

fn owned(edges: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
    let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    edges.iter().map(|(package, needs)| ((*package).to_owned(), own(needs))).collect()
}

#[test]
fn a_wrong_edge_and_a_new_package_are_seen() {
    let good = owned(&[("verbatim-files", &["verbatim-proto", "serde"]), ("verbatim-tests", &[])]);
    assert_eq!(wrong_edges(&good), [""; 0]);
    let bad = owned(&[
        ("verbatim-proto", &["serde", "verbatim-fabric"]),
        ("verbatim-client", &["verbatim-server"]),
        ("verbatim-tests", &["verbatim-server"]),
        ("verbatim-rails", &[]),
    ]);
    let wrong = wrong_edges(&bad);
    assert_eq!(
        wrong[..2],
        ["verbatim-proto -> verbatim-fabric", "verbatim-client -> verbatim-server"]
    );
    assert!(wrong[2].starts_with("verbatim-rails is new"), "{wrong:?}");
    assert_eq!(wrong.len(), 3);
}

#[test]
fn a_library_that_depends_on_clap_is_seen() {
    let needs: &[&str] = &["clap", "clap_complete", "clap_mangen"];
    let rest: [(&str, &[&str]); 2] =
        [("verbatim-client-commands", &["clap", "indicatif"]), ("verbatim-mount", &["fuser"])];
    let packages = |of: &[(&str, &[&str])]| owned(&[of, &rest].concat());
    assert_eq!(misplaced(&packages(&[("verbatim-usage", needs)])), [""; 0]);
    let wrong = packages(&[("verbatim-usage", needs), ("verbatim-client", &["clap", "fuser"])]);
    assert_eq!(misplaced(&wrong), ["verbatim-client -> clap", "verbatim-client -> fuser"]);
    let unused = packages(&[("verbatim-usage", &["clap", "clap_mangen"])]);
    assert_eq!(misplaced(&unused), ["nobody depends on clap_complete: remove it from RESERVED"]);
}

#[test]
fn a_short_header_is_seen() {
    assert_eq!(header_lines("//! One line.\n\n//! Another.\n"), 1);
    assert_eq!(header_lines("//! One.\n//! Two.\nuse x;\n"), 2);
    assert_eq!(header_lines("use x;\n//! One.\n"), 0);
}

#[test]
fn code_ends_where_its_tests_begin() {
    assert_eq!(code_lines("a\nb\n#[cfg(test)]\nmod tests {}\n"), 2);
    assert_eq!(code_lines("a\n    #[cfg(test)]\nb\n"), 3);
}

#[test]
fn the_ratchet_only_turns_one_way() {
    let one = |lines| ratchet(&BTreeMap::from([("a.rs".to_owned(), lines)]), 400, &[("a.rs", 500)]);
    assert_eq!(one(500), [""; 0]);
    assert_eq!(one(480), [""; 0]);
    assert_eq!(one(501), ["a.rs: grew from 500 to 501 lines"]);
    assert_eq!(one(479), ["a.rs: 479 lines, lower its ratchet from 500"]);
    assert_eq!(one(400), ["a.rs: 400 lines fit now, remove its ratchet entry"]);
    let unlisted = BTreeMap::from([("b.rs".to_owned(), 401)]);
    assert_eq!(ratchet(&unlisted, 400, &[]), ["b.rs: 401 lines, at most 400"]);
    assert_eq!(ratchet(&unlisted, 500, &[("a.rs", 501)]), ["a.rs: gone, remove its ratchet entry"]);
}

#[test]
fn tests_are_not_shipped() {
    let text = "fn a() { x.unwrap() }\n#[cfg(test)]\nuse y;\n// .unwrap()\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn b() { x.unwrap() }\n}\nfn c() { x.unwrap() }\n";
    let lines = |path: &str| {
        let source = Source { path: path.into(), text: text.into() };
        find_in(&[source], |source| find_lines(&source.shipped(), ".unwrap()"))
    };
    assert_eq!(lines("client/src/copy.rs"), ["client/src/copy.rs:1", "client/src/copy.rs:10"]);
    for path in ["client/tests/copy.rs", "benches/src/lib.rs", "client/src/copy/tests.rs"] {
        assert_eq!(lines(path), [""; 0]);
    }
}

#[test]
fn unsafe_code_and_leave_for_it_are_seen() {
    let text = "#![forbid(unsafe_code)]\n#[allow(unsafe_code)]\nlet x = unsafe { y };\n// unsafe\n";
    assert_eq!(unsafe_lines(text), [2, 3]);
}

#[test]
fn prints_are_seen() {
    let code =
        "println!(x);\nx.print();\nstd::eprintln!(x);\nwriteln!(out);\nmy_print!(x);\ndbg!(x)\n";
    assert_eq!(print_lines(code), [1, 3, 6]);
}

#[test]
fn machine_paths_are_seen() {
    for pattern in MACHINE_PATHS {
        let bad = format!("x\nsee {pattern}/x\n\"{pattern}\"\nfile://{pattern}");
        assert_eq!(machine_path_lines(&bad), [2, 3, 4], "{pattern}");

        let good = format!("docs{pattern}x\n${{HOME}}{pattern}x\n");
        assert_eq!(machine_path_lines(&good), [0; 0], "{pattern}");
    }
    assert_eq!(machine_path_lines("/farmer /workspace /rooted"), [0; 0]);
}

#[test]
fn a_careless_shell_script_is_seen() {
    assert_eq!(shell_faults("#!/bin/sh\n# Runs x.\nset -eu\nx\n"), [""; 0]);
    assert_eq!(shell_faults("#!/usr/bin/env bash\n# Runs x.\nset -euo pipefail\nx\n"), [""; 0]);
    assert_eq!(shell_faults("x\ny\nset -e\n").len(), 3);
    let shell = |path: &str, text: &str| is_shell(&Source { path: path.into(), text: text.into() });
    assert!(shell("run", "#!/usr/bin/env bash\n") && shell("a.sh", "x"));
    assert!(!shell("plot", "#!/usr/bin/env python3\n"));
}

#[test]
fn a_claim_without_a_test_is_seen() {
    let tests = ["one_two_three_four"];
    let page = |row: &str| {
        let page = format!("| who | shown by |\n| --- | --- |\n{row}\n\n| no | claim |\n");
        claims_without_tests(&page, &tests)
    };
    assert_eq!(page("| x | `trust: one_two_three_four`, `one_two_three_...` |"), [""; 0]);
    assert_eq!(page("| x | `one_two` |"), ["no test is named: | x | `one_two` |"]);
    assert_eq!(page("| x | `trust: one_two_three_five_...` |").len(), 1);
}
