//! What the scripts count, skip and leave alone: their functions are loaded and called,
//! with something else in place of what takes minutes. Whole scripts are run by people
//! and by `tests/run`.

#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Loads a script without its last line, which starts it, and runs these lines after it. In them
/// `$work` is an empty folder. Says how that ended, and what was printed.
fn loaded(script: &str, lines: &str) -> (Option<i32>, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(script);
    let path = path.canonicalize().expect("the script");
    let text = fs::read_to_string(&path).expect("text");
    let functions = text.trim_end().strip_suffix("main \"$@\"").expect("its last line starts it");
    let functions = functions.replace("${BASH_SOURCE[0]}", path.to_str().expect("plain"));
    let work = tempfile::tempdir().expect("folder");
    let mut bash = Command::new("bash");
    bash.arg("-c").arg(format!("{functions}\n{lines}\n")).env("work", work.path());
    for name in ["VERBATIM_SKIPS", "VERBATIM_TRIALS", "CARGO_TARGET_DIR"] {
        bash.env_remove(name);
    }
    let said = bash.output().expect("bash is there");
    let text = [said.stdout, said.stderr].concat();
    (said.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn power_cuts_are_skipped_before_the_first_verdict_alone() {
    let slow = |results: &str| {
        let lines = format!("out=$work budget_s=10; {results} >$out/results; skip_if_slow 100");
        loaded("tests/powercut/run", &lines)
    };
    let (code, said) = slow("true");
    assert!(code == Some(77) && said.starts_with("skipped: a boot takes 100 s"), "{said}");
    let (code, said) = slow("echo FAILED ext4");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn only_a_whole_comparison_is_written_to_the_repository() {
    // What would be run, with the guest as it is said to be.
    let run = |guest: &str, flags: &str| {
        let lines = format!(
            "need() {{ :; }}; cargo() {{ :; }}; scratch() {{ :; }}; target=$work release=$work
             run_guest() {{ printf '{guest}'; }}
             within() {{ echo \"ran: ${{*:7}}\"; }}
             main {flags}"
        );
        let (code, said) = loaded("benches/compare", &lines);
        assert_eq!(code, Some(0), "{said}");
        said.lines().find(|line| line.starts_with("ran: ")).expect("it is run").to_owned()
    };
    let rows = ["perftest read-4", "perftest write-4", "nfs-rdma", "rdma-cp READ", "rdma-cp WRITE"];
    let measured = &rows.map(|row| format!("{row}: 0.300 GB/s\\n")).concat();
    let is_whole = |said: &str| (said.contains("/benches/results"), said.contains("--docs"));
    assert_eq!(is_whole(&run(measured, "")), (true, true));
    assert_eq!(is_whole(&run("# the guest failed", "")), (false, false));
    for row in rows {
        // A peer that failed is said to be at nothing.
        let failed = measured.replace(&format!("{row}: 0.300"), &format!("{row}: 0"));
        assert_eq!(is_whole(&run(&failed, "")), (false, false), "{row}");
    }
    for flags in ["--no-guest", "--quick", "--quick --qemu", "--only one", "--results /tmp"] {
        assert_eq!(is_whole(&run(measured, flags)), (false, false), "{flags}");
    }
    assert_eq!(is_whole(&run(measured, "--growth")), (true, false));
    assert!(run(measured, "--only one").contains("/compare --only one"), "a folder of its own");
}

/// Runs `tests/run` with these words, and with commands of ours in place of cargo, the guest and
/// the test runner. `record` is a line of the runner's record: verdict, seconds, name.
fn run(commands: &str, words: &str) -> (Option<i32>, String) {
    let stubs = "result() { echo \"test result: ok. $1 passed; 0 failed; 0 ignored\"; }
         record() { printf '%s\\t%s\\t%s\\n' \"$@\" >>\"$kept/record.tsv\"; }
         bounded() { if [[ $1 == tests/softroce/run ]]; then softroce \"$@\"; else \"$@\"; fi; }
         install() { :; }; softroce() { :; }; stage_build() { :; }; stage_tests() { :; }
         stage_clippy() { :; }; stage_format() { :; }; stage_speed() { :; }; stage_doc() { :; }
         stage_powercut() { :; }";
    loaded("tests/run", &format!("{stubs}\n{commands}\nCARGO_TARGET_DIR=$work main {words}"))
}

fn last_line(said: &str) -> &str {
    said.lines().last().expect("it prints something")
}

#[test]
fn tests_that_cargo_ignores_are_skipped_until_a_stage_has_run_them() {
    let commands = "stage_tests() { record ok 1 'cli a' && record ok 1 'cli b' &&
             record ignored 3 scenarios && record ignored 1 operate; }
         softroce() { record ok 2 'guest/scenarios c' && record ok 2 'guest/scenarios d'; }";
    let (code, said) = run(commands, "tests");
    assert_eq!((code, last_line(&said)), (Some(0), "2 passed, 0 failed, 4 skipped"), "{said}");
    let (code, said) = run(commands, "tests verbs");
    assert_eq!((code, last_line(&said)), (Some(0), "4 passed, 0 failed, 1 skipped"), "{said}");
}

#[test]
fn what_is_left_out_whole_was_never_passed() {
    let commands = "softroce() { echo skipped: no guest && return 77; }
         stage_tests() { echo 'some test: why' >>$VERBATIM_SKIPS && record ok 1 'p some test' &&
             record ok 1 'p other' && record ignored 3 verbs; }";
    let (code, said) = run(commands, "verbs");
    assert_eq!((code, last_line(&said)), (Some(0), "0 passed, 0 failed, 1 skipped"), "{said}");
    assert!(said.contains("SKIPPED: verbs tests: no guest"), "{said}");
    let (code, said) = run(commands, "tests verbs");
    assert_eq!((code, last_line(&said)), (Some(0), "1 passed, 0 failed, 5 skipped"), "{said}");
    assert!(said.contains("SKIPPED: some test: why"), "{said}");
}

#[test]
fn a_stage_that_fails_does_not_stop_the_others_and_the_end_says_how_to_run_it_again() {
    let commands = "stage_clippy() { return 1; }
         stage_tests() { record ok 1 'cli a' && record FAILED 2 'sync b::c d' && return 1; }
         stage_speed() { counted result 4; }; softroce() { record FAILED 9 'guest/verbs e'; false; }";
    let (code, said) = run(commands, "");
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("\nFAILED: stage clippy\nFAILED: stage verbs\nFAILED: sync b::c d\n"),
        "{said}"
    );
    assert!(said.contains("\nFAILED: guest/verbs e\n"), "{said}");
    assert!(said.contains("\nagain: tests/run clippy verbs --only 'sync b::c d'\n"), "{said}");
    assert!(said.ends_with("\nflaky: 0\n5 passed, 2 failed, 0 skipped\n"), "{said}");
    for stage in ["format", "clippy", "build", "tests", "speed", "verbs"] {
        assert!(said.contains(&format!("\n==> {stage}\n")) || said.starts_with("==> "), "{said}");
    }
    assert!(!said.contains("==> doc"), "{said}");
    let (_, said) = run("", "--ci");
    assert!(said.contains("==> doc") && !said.contains("==> full"), "{said}");
}

#[test]
fn three_flaky_tests_fail_a_run_and_all_are_kept_in_a_file() {
    let with = |count: usize| {
        let flaky = (0..count).map(|number| format!("record FLAKY 1 'cli t{number}'; "));
        let commands = format!("stage_tests() {{ {} }}", flaky.collect::<String>());
        let ran = format!("{commands}; outcome() {{ cat $work/tests/flaky; }}; trap outcome EXIT");
        run(&ran, "tests")
    };
    let (code, said) = with(2);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("FLAKY: cli t0\nFLAKY: cli t1\n"), "{said}");
    assert!(said.contains("\nflaky: 2\n2 passed, 0 failed, 0 skipped\n"), "{said}");
    let (code, said) = with(3);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("\nFAILED: 3 flaky tests\n"), "{said}");
}

#[test]
fn the_slowest_tests_are_named() {
    let commands = "stage_tests() { for n in {1..30}; do record ok $n.5 \"cli t$n\"; done; }";
    let (_, said) = run(commands, "tests");
    let slowest = said.split("slowest tests, in seconds\n").nth(1).expect("a list");
    let names: Vec<&str> =
        slowest.lines().map_while(|line| line.split_once("  cli ")).map(|it| it.1).collect();
    assert_eq!(names, (21..=30).rev().map(|n| format!("t{n}")).collect::<Vec<_>>(), "{said}");
}

#[test]
fn a_stage_that_takes_longer_than_it_may_fails() {
    // As if it took this long.
    let after =
        |seconds: u32| run(&format!("stage_doc() {{ SECONDS=$((SECONDS + {seconds})); }}"), "doc");
    let (code, said) = after(230);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = after(241);
    assert!(code == Some(1) && said.contains("FAILED, over its 4 minutes"), "{said}");
    assert!(said.contains("\nagain: tests/run doc\n"), "{said}");
}

#[test]
fn a_command_ends_where_the_time_of_its_stage_ends() {
    // The second command of a stage has what the first one left.
    let lines = "install() { :; }; timeout() { echo \"$2\" >>$work/limits; shift 2; \"$@\"; }
         stage_doc() { bounded true && SECONDS=$((SECONDS + 100)) && bounded true; }
         CARGO_TARGET_DIR=$work main doc; cat $work/limits";
    let (_, said) = loaded("tests/run", lines);
    let limits = said.lines().rev().take(2).map(|line| line.parse::<u32>().expect("a limit"));
    let limits: Vec<u32> = limits.collect();
    assert!(limits[1] > 235 && limits[0] <= 140 && limits[0] > 120, "{said}");
}

#[test]
fn a_guest_test_that_fails_is_run_once_more_in_a_guest_of_its_own() {
    let after = |second: &str| {
        let lines = format!(
            "out=$work; mkdir $out/log; export VERBATIM_RECORD=$work/record
             printf '%s 120\\n' '/x/verbs-1 a' '/x/verbs-1 b' '/x/verbs-1 ab' >$out/jobs
             printf 'ok a 5\\nFAILED b 2500\\nok ab 7\\n' >$out/results; touch $out/rc
             echo first >$out/log/b
             boot() {{ cat $out/jobs; echo {second} >$out/results; touch $out/rc; echo second >$out/log/b; }}
             way=boot status=0; {{ run_again && report; }} || status=$?; cat $VERBATIM_RECORD $out/first/log/b; exit $status"
        );
        loaded("tests/softroce/run", &lines)
    };
    let (code, said) = after("ok b 4");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("/x/verbs-1 b 120\nFLAKY b: "), "only what failed: {said}");
    assert!(said.contains("3 passed; 0 failed"), "{said}");
    let record =
        "ok\t0.005\tguest/verbs a\nFLAKY\t2.500\tguest/verbs b\nok\t0.007\tguest/verbs ab\nfirst\n";
    assert!(said.contains(record), "{said}");
    let (code, said) = after("FAILED b 4");
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("2 passed; 1 failed") && said.contains("FAILED\t2.500\tguest/verbs b\n"),
        "{said}"
    );
}

#[test]
fn what_a_guest_could_not_run_is_told_to_who_counts() {
    let lines = "out=$work; export VERBATIM_SKIPS=$work/counted
         touch $out/rc && echo 'program a 120' >$out/jobs && echo 'ok a 5' >$out/results
         echo 'a: no such device' >$out/skips && echo 'before: why' >$VERBATIM_SKIPS
         report && cat $VERBATIM_SKIPS";
    let (code, said) = loaded("tests/softroce/run", lines);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("1 passed; 0 failed"), "{said}");
    assert!(said.ends_with("\nbefore: why\na: no such device\n"), "{said}");
}
