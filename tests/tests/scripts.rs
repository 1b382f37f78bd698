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

/// The last line of `tests/run` for these stages, whose commands are in place of the real ones.
fn summary(commands: &str, stages: &str) -> String {
    let stubs = "result() { echo \"test result: ok. $1 passed; 0 failed; $2 ignored\"; }
         bounded() { if [[ $1 == tests/softroce/run ]]; then softroce \"${2:-}\"; else \"$@\"; fi; }
         stage_test() { counted result 10 3; }; stage_sync() { counted result 5 0; }";
    let (code, said) = loaded("tests/run", &format!("{stubs}\n{commands}\nmain {stages}"));
    assert_eq!(code, Some(0), "{said}");
    said.lines().last().expect("it says something").to_owned()
}

#[test]
fn what_cargo_ignored_is_skipped_until_a_stage_has_run_it() {
    let commands = "softroce() { if [[ $1 == abi ]]; then result 2 0; else result 3 0; fi; }
         stage_operate() { counted result 2 1; }";
    assert_eq!(summary(commands, "test sync"), "15 passed, 0 failed, 3 skipped");
    assert_eq!(summary(commands, "test operate sync"), "17 passed, 0 failed, 4 skipped");
    assert_eq!(summary(commands, "test operate verbs"), "17 passed, 0 failed, 1 skipped");
}

#[test]
fn what_is_left_out_whole_was_never_passed() {
    let commands = "softroce() { echo skipped: no guest && return 77; }
         stage_doctor() { echo 'some test: why' >>$VERBATIM_SKIPS && counted result 4 0; }";
    assert_eq!(summary(commands, "sync verbs"), "5 passed, 0 failed, 2 skipped");
    assert_eq!(summary(commands, "test verbs"), "10 passed, 0 failed, 5 skipped");
    assert_eq!(summary(commands, "doctor"), "3 passed, 0 failed, 1 skipped");
}

#[test]
fn stages_that_take_more_than_the_budget_of_their_group_fail() {
    // As if each stage took this long.
    let run = |stages: &str, seconds: u32| {
        let stage = format!("SECONDS=$((SECONDS + {seconds}))");
        let stubs = format!("stage_format() {{ {stage}; }}; stage_doc() {{ {stage}; }}");
        loaded("tests/run", &format!("{stubs}; main {stages}"))
    };
    let (code, said) = run("format doc", 350);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run("format", 721);
    assert!(code == Some(1) && said.contains("FAILED, over the budget of house"), "{said}");
    let (code, said) = run("format doc", 361);
    assert!(code == Some(1) && said.contains("FAILED, over the budget of house"), "{said}");
}

#[test]
fn a_command_ends_where_the_budget_of_its_stage_ends() {
    // The second command of a stage has what the first one left.
    let lines = "timeout() { echo \"$2\" >>$work/limits; shift 2; \"$@\"; }
         stage_format() { bounded true && SECONDS=$((SECONDS + 100)) && bounded true; }
         main format; cat $work/limits";
    let (_, said) = loaded("tests/run", lines);
    let limits = said.lines().rev().take(2).map(|line| line.parse::<u32>().expect("a limit"));
    let limits: Vec<u32> = limits.collect();
    assert!(limits[1] > 715 && limits[0] <= 621 && limits[0] > 600, "{said}");
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
