//! What `rdma-cp` tells: lists, digests, JSON for scripts, the summary, and
//! nothing at all where that was asked for. Also help and version of both.

use crate::process::{Home, binary};
use crate::{World, bytes};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

fn json_lines(text: &str) -> Vec<Value> {
    let parse = |line: &str| {
        serde_json::from_str(line).unwrap_or_else(|e| panic!("{line:?} is not JSON: {e}"))
    };
    text.lines().map(parse).collect()
}

fn b3(content: &[u8]) -> String {
    blake3::hash(content).to_string()
}

#[test]
fn exports_and_folders_are_listed() {
    let world = World::new();
    let exports = world.serve.cp(&["--list", &world.serve.at("")]).done().stdout;
    let last = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(exports.lines().map(last).collect::<Vec<_>>(), [["-", "data/"], ["-", "in/"]]);

    let folder = world.serve.cp(&["--list", &world.serve.at("data")]).done().stdout;
    let mut lines: Vec<_> = folder.lines().map(last).collect();
    lines.sort();
    assert_eq!(lines, [["-", "sub/"], ["1", "b.bin"], ["3145745", "a.bin"]]);

    let tree = world.serve.cp(&["--list", "-r", &world.serve.at("data")]).done().stdout;
    assert!(tree.contains(" sub/deep/c.bin\n") && tree.contains(" sub/empty\n"), "{tree}");
    let file = world.serve.cp(&["--list", &world.serve.at("data/b.bin")]).done().stdout;
    assert!(file.trim_end().ends_with("b.bin") && file.lines().count() == 1, "{file}");
}

#[test]
fn lists_are_json_for_scripts() {
    let world = World::new();
    let exports = world.serve.cp(&["--list", "--json", &world.serve.at("")]).done().stdout;
    let names: Vec<_> = json_lines(&exports).iter().map(|line| line["path"].clone()).collect();
    assert_eq!(names, ["data", "in"]);
    let folder = world.serve.cp(&["--list", "--json", &world.serve.at("data")]).done().stdout;
    let lines = json_lines(&folder);
    let a = lines.iter().find(|line| line["path"] == "a.bin").expect("a.bin is listed");
    assert_eq!((&a["kind"], &a["size"]), (&Value::from("file"), &Value::from(3_145_745)));
    let sub = lines.iter().find(|line| line["path"] == "sub").expect("sub is listed");
    assert_eq!(sub["kind"], "folder");
    assert!(a["mtime_ns"].as_i64().is_some_and(|time| time > 0), "{a}");
}

/// A folder `data/many` with so many small files.
fn make_many(world: &World, count: usize) {
    let many = world.path("data/many");
    fs::create_dir(&many).expect("makes");
    let write = |number| fs::write(many.join(format!("{number:06}")), b"x").expect("writes");
    (0..count).for_each(write);
}

#[test]
fn a_list_whose_reader_takes_his_time_is_told_to_the_end() {
    let world = World::new();
    make_many(&world, 20_000);
    let arguments = ["--list", "--timeout", "2", &world.serve.at("data/many")];
    let mut command = world.serve.home().command("rdma-cp", &arguments);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let mut output = child.stdout.take().expect("piped");
    let (mut read, mut part) = (Vec::new(), vec![0; 100_000]);
    for _ in 0..3 {
        // Longer than a server may be silent: it is not the server that is.
        std::thread::sleep(Duration::from_millis(3500));
        output.read_exact(&mut part).expect("there is as much");
        read.extend_from_slice(&part);
    }
    output.read_to_end(&mut read).expect("reads");
    assert!(child.wait().expect("our own child").success());
    assert_eq!(read.iter().filter(|&&byte| byte == b'\n').count(), 20_000);
}

#[test]
fn a_copy_goes_on_when_nobody_reads_what_it_says_and_a_list_ends() {
    let world = World::new();
    make_many(&world, 3000);
    let run = |arguments: &[&str]| {
        let mut command = world.serve.home().command("rdma-cp", arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        child.wait().expect("our own child").code()
    };
    let (from, to) = (world.serve.at("data/many"), world.text("out"));
    assert_eq!(run(&["--json", "-v", "-r", &from, &to]), Some(1), "not all was said");
    assert_eq!(fs::read_dir(world.path("out/many")).unwrap().count(), 3000);
    assert_eq!(run(&["--list", &from]), Some(1));
}

#[test]
fn a_list_of_what_is_not_there_is_refused() {
    let world = World::new();
    let ended = world.serve.cp(&["--list", &world.serve.at("data/none")]);
    ended.refused(1, &["data/none", "no such file"]);
    let two = world.serve.cp(&["--list", &world.serve.at("data"), &world.serve.at("in")]);
    two.refused(2, &["--list takes one remote folder", "hint: "]);
    world.serve.cp(&["--list", "here"]).refused(2, &["--list takes one remote folder"]);
}

#[test]
fn digests_are_those_of_b3sum() {
    let world = World::new();
    let content = bytes(1, (3 << 20) + 17);
    let local = world.text("out/a.bin");
    let down = world.serve.cp(&["--digest", &world.serve.at("data/a.bin"), &world.text("out")]);
    assert_eq!(down.done().stdout, format!("{}  {local}\n", b3(&content)));
    let up = world.serve.cp(&["--digest", &local, &world.serve.at("in")]);
    assert_eq!(up.done().stdout, format!("{}  {local}\n", b3(&content)));
    let tree = ["-r", "--digest", &world.serve.at("data/sub"), &world.text("out")];
    let mut lines: Vec<_> =
        world.serve.cp(&tree).done().stdout.lines().map(str::to_owned).collect();
    lines.sort_by_key(|line| line.len());
    assert_eq!(lines[0], format!("{}  {}", b3(b""), world.text("out/sub/empty")));
    assert_eq!(
        lines[1],
        format!("{}  {}", b3(&bytes(3, 70_000)), world.text("out/sub/deep/c.bin"))
    );
}

#[test]
fn json_tells_files_and_a_summary() {
    let world = World::new();
    let arguments = ["--json", "-r", &world.serve.at("data"), &world.text("out")];
    let ended = world.serve.cp(&arguments).done();
    assert!(ended.stderr.is_empty(), "{ended:?}");
    let lines = json_lines(&ended.stdout);
    let files: Vec<_> = lines.iter().filter(|line| line["event"] == "file").collect();
    assert_eq!(files.len(), 4);
    let a = files.iter().find(|line| line["path"].as_str().is_some_and(|p| p.ends_with("a.bin")));
    let a = a.expect("a.bin is told");
    assert_eq!(a["digest"], b3(&bytes(1, (3 << 20) + 17)));
    assert_eq!(a["bytes"], (3 << 20) + 17);
    let summary = lines.last().expect("there are lines");
    assert_eq!((&summary["event"], &summary["exit"]), (&"summary".into(), &0.into()));
    assert_eq!((&summary["files"], &summary["failed"]), (&4.into(), &0.into()));
    assert_eq!(summary["transport"], "tcp");
    assert!(summary["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{summary}");
    assert!(summary["limited_by"].as_str().is_some_and(|by| !by.is_empty()), "{summary}");
    assert!(summary["bytes_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{summary}");
}

#[test]
fn json_tells_errors_and_the_exit_code() {
    let world = World::new();
    let (good, bad) = (world.serve.at("data/b.bin"), world.serve.at("data/none"));
    let ended = world.serve.cp(&["--json", &good, &bad, &world.text("out")]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let lines = json_lines(&ended.stdout);
    let error = lines.iter().find(|line| line["event"] == "error").expect("the error is told");
    assert!(error["path"].as_str().is_some_and(|path| path.ends_with("data/none")), "{error}");
    assert_eq!(error["peer"], world.serve.address.to_string());
    assert_eq!(error["code"], "NotFound");
    assert!(error["cause"].as_str().is_some_and(|cause| cause.contains("no such file")));
    let summary = lines.last().expect("there are lines");
    assert_eq!((&summary["exit"], &summary["failed"]), (&1.into(), &1.into()), "{summary}");
}

#[test]
fn json_tells_also_what_was_never_begun() {
    let world = World::new();
    let nobody = verbatim_tests::port::Port::take();
    let cases: [(i32, Vec<String>); 3] = [
        (3, vec![format!("rdma://{}/data/a", nobody.address), world.text("out")]),
        (2, vec!["here".into(), "there".into()]),
        (1, vec!["--list".into(), world.serve.at("data/none")]),
    ];
    for (code, mut arguments) in cases {
        arguments.push("--json".into());
        let ended = world.serve.cp(&arguments);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let lines = json_lines(&ended.stdout);
        let error = lines.first().unwrap_or_else(|| panic!("nothing is told: {ended:?}"));
        assert_eq!(error["event"], "error", "{ended:?}");
        assert!(error["cause"].as_str().is_some_and(|cause| !cause.is_empty()), "{error}");
        // What is wrong with one path of a list is an error, not the end.
        assert!(error["exit"] == code || error["path"].is_string(), "{ended:?}");
        assert!(ended.stderr.is_empty(), "{ended:?}");
    }
}

#[test]
fn quiet_says_nothing_but_errors() {
    let world = World::new();
    let ended = world.serve.cp(&["-q", &world.serve.at("data/a.bin"), &world.text("out")]).done();
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
    let ended = world.serve.cp(&["-q", &world.serve.at("data/none"), &world.text("out")]);
    let ended = ended.refused(1, &["data/none"]);
    assert!(ended.stdout.is_empty() && !ended.stderr.contains("over tcp"), "{ended:?}");
}

#[test]
fn the_summary_names_transport_rate_digest_and_limit() {
    let world = World::new();
    let ended = world.serve.cp(&[world.serve.at("data/a.bin"), world.text("out")]).done();
    assert!(ended.stdout.is_empty(), "{ended:?}");
    let digest = format!("blake3 {}", b3(&bytes(1, (3 << 20) + 17)));
    for words in ["1 file, 3.00 MiB in ", "iB/s over tcp", ", limited by the ", &digest] {
        assert!(ended.stderr.contains(words), "no {words:?} in {}", ended.stderr);
    }
    let ended = world.serve.cp(&["-v", &world.serve.at("data/b.bin"), &world.text("out")]).done();
    assert!(ended.stderr.contains("data/b.bin 1 B"), "{}", ended.stderr);
    assert!(ended.stderr.contains("\ntcp: "), "why it is not RDMA: {}", ended.stderr);
}

#[test]
fn names_of_the_other_side_cannot_move_the_cursor() {
    let world = World::new();
    std::fs::write(world.path("data/\u{1b}[2Jx\ny"), b"x").unwrap();
    let tree = ["-r", "--digest", &world.serve.at("data"), &world.text("out")];
    let ended = world.serve.cp(&tree).done();
    assert!(!ended.stdout.contains('\u{1b}') && ended.stdout.lines().count() == 5, "{ended:?}");
    let ended = world.serve.cp(&["--list", &world.serve.at("data")]).done();
    assert!(!ended.stdout.contains('\u{1b}') && ended.stdout.lines().count() == 4, "{ended:?}");
}

#[test]
fn help_has_the_flags_and_the_exit_codes() {
    let help = |name: &str, flag: &str| {
        let output = Command::new(binary(name)).arg(flag).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).expect("help is text")
    };
    let cp = help("rdma-cp", "--help");
    let serve = help("rdma-serve", "--help");
    let cp_flags = "--recursive --archive --preserve --dereference --no-clobber --update --force \
        --exclude --dry-run --verify --chunk-size --bwlimit --list --streams --digest --json \
        --quiet --verbose --timeout --fingerprint --trust-on-first-use --token-file --new-token \
        --state --help --version";
    for flag in cp_flags.split_whitespace() {
        assert!(cp.contains(flag), "no {flag} in {cp}");
        assert!(help("rdma-cp", "-h").contains(flag), "no {flag} in the short help");
    }
    for flag in ["--rw", "--listen", "--config", "--state", "--insecure-no-auth", "[EXPORT]"] {
        assert!(serve.contains(flag), "no {flag} in {serve}");
    }
    for code in ["0 done", "1 some", "2 bad usage", "3 cannot connect", "4 a digest", "130"] {
        let plain = cp.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(plain.contains(code), "no {code:?} in {cp}");
    }
    for code in ["Exit codes: 0 ", ", 1 ", ", 2 "] {
        assert!(serve.contains(code), "no {code:?} in {serve}");
    }
}

#[test]
fn an_unknown_flag_is_bad_usage() {
    let home = Home::new();
    home.cp(&["--recursiv", "a", "h:/b"]).refused(2, &["--recursiv", "--recursive"]);
    home.serve(&["--lissten", "127.0.0.1:0"]).refused(2, &["--lissten", "--listen"]);
    home.cp(&["-j", "0", "a", "h:/b"]).refused(2, &["0 is not in"]);
    // Help among other letters would be a copy that did nothing, and ended well.
    home.cp(&["-avh", "help", "h:/b"]).refused(2, &["h among other letters", "--help is help"]);
}
