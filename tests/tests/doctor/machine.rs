//! What the command says of recorded machines: the same report as the library's,
//! in every form there is, with the exit code that scripts look at.

use crate::{checks, doctor, json, recorded, repository};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use verbatim_tests::process::{Ended, Home, Running, skip};

/// A line that makes a healthy machine a limited one.
const SMALL_MTU: &str = "sys/class/net/ens1np0/mtu = 1500\n";

/// A line that takes RDMA from it.
const PORT_DOWN: &str = "sys/class/infiniband/mlx5_0/ports/1/state = 1: DOWN\n";

fn at(root: &Path) -> [String; 4] {
    let root = root.to_str().expect("plain names").to_owned();
    ["--root".into(), root, "--sample".into(), "0".into()]
}

fn look(home: &Home, root: &Path, more: &[&str]) -> Ended {
    let at = at(root);
    let arguments: Vec<&str> = at.iter().map(String::as_str).chain(more.iter().copied()).collect();
    doctor(home, &arguments)
}

#[test]
fn a_machine_is_told_of_in_every_form() {
    let home = Home::new();
    let well = recorded("healthy", "");
    let ended = look(&home, well.path(), &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let golden = repository().join("common/doctor/tests/reports/healthy.txt");
    let golden = fs::read_to_string(golden).expect("a report");
    assert_eq!(format!("{}exit 0\n", ended.stdout), golden);

    let slow = recorded("healthy", SMALL_MTU);
    let ended = look(&home, slow.path(), &["--json"]);
    let said = json(&ended);
    assert_eq!((ended.code, checks(&said)), (Some(1), vec!["mtu"]), "{said}");
    assert_eq!(said["findings"][0]["fix"]["run"], "ip link set ens1np0 mtu 9000");
    assert_eq!(said["chosen"][0]["gid_index"], 3);
    let script = look(&home, slow.path(), &["--fix-script"]).stdout;
    assert!(script.lines().any(|line| line == "ip link set ens1np0 mtu 9000"), "{script}");

    let down = recorded("healthy", PORT_DOWN);
    let ended = look(&home, down.path(), &["--json"]);
    assert_eq!((ended.code, checks(&json(&ended))), (Some(2), vec!["port"]));
}

#[test]
fn a_report_that_cannot_be_written_is_no_sign_of_health() {
    let home = Home::new();
    let well = recorded("healthy", "");
    for more in [&[][..], &["--json"], &["--env"], &["--fix-script"]] {
        let at = at(well.path());
        let arguments: Vec<&str> = at.iter().map(String::as_str).chain(more.to_vec()).collect();
        let full = fs::File::create("/dev/full").expect("every Linux has it");
        let ended = home.command("rdma-doctor", &arguments).stdout(full).output().expect("starts");
        assert_eq!(ended.status.code(), Some(3), "{more:?}: {ended:?}");
    }
}

#[test]
fn what_a_shell_evaluates_is_what_would_be_chosen() {
    let home = Home::new();
    let well = recorded("healthy", "");
    let ended = look(&home, well.path(), &["--env"]);
    let lines = "export NCCL_IB_HCA='=mlx5_0:1'\nexport NCCL_IB_GID_INDEX=3\n";
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), lines));
    let down = recorded("healthy", PORT_DOWN);
    let ended = look(&home, down.path(), &["--env"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "nothing to evaluate");
    assert!(ended.stderr.contains("mlx5_0/1 is DOWN"), "{ended:?}");
}

#[test]
fn a_file_for_node_exporter_is_replaced_as_a_whole() {
    let home = Home::new();
    let slow = recorded("healthy", SMALL_MTU);
    let file = home.path().join("doctor.prom");
    let path = file.to_str().expect("plain names");
    fs::write(&file, "old").expect("a file");
    let ended = look(&home, slow.path(), &["--prom", path]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    let text = fs::read_to_string(&file).expect("the file");
    for line in [
        "rdma_doctor_exit_code 1",
        "rdma_doctor_finding{check=\"mtu\",severity=\"limits\",about=\"mlx5_0/1\"} 1",
        "rdma_doctor_port_active{device=\"mlx5_0\",port=\"1\"} 1",
        "rdma_doctor_port_errors_total{device=\"mlx5_0\",port=\"1\",error=\"link_downed\"} 1",
    ] {
        assert!(text.lines().any(|have| have == line), "no {line} in\n{text}");
    }
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o644);
    let promtool = std::process::Command::new("promtool").arg("--version").output();
    if promtool.is_ok() {
        let input = fs::File::open(&file).expect("the file");
        let checked =
            std::process::Command::new("promtool").args(["check", "metrics"]).stdin(input).output();
        let checked = checked.expect("promtool runs");
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
    let nowhere = look(&home, slow.path(), &["--prom", "/nowhere/at/all.prom"]);
    nowhere.refused(3, &["cannot write /nowhere/at/all.prom"]);
}

/// Everybody may look at a record, with this laid over it, but for these, which nobody may.
fn locked(more: &str, paths: &[&str]) -> tempfile::TempDir {
    let root = recorded("healthy", more);
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let device = root.path().join("dev/infiniband/uverbs0");
    fs::set_permissions(device, fs::Permissions::from_mode(0o666)).expect("a mode");
    for path in paths {
        let path = root.path().join(path);
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).expect("a mode");
    }
    root
}

/// What may not be read, as it is told.
fn denied(ended: &Ended) -> Vec<String> {
    let said = json(ended);
    let found = said["findings"].as_array().expect("findings").iter();
    let found = found.filter(|it| it["check"] == "permission");
    found.map(|it| it["about"].as_str().expect("text").to_owned()).collect()
}

#[test]
fn what_may_not_be_read_is_a_finding_and_no_failure() {
    let name = "what_may_not_be_read_is_a_finding_and_no_failure";
    let Some(home) = Home::powerless() else {
        return skip(name, "root cannot become somebody without rights here");
    };
    let root = locked("", &["sys/class/net/ens1np0/mtu"]);
    let ended = look(&home, root.path(), &["--json"]);
    assert_eq!((ended.code, denied(&ended)), (Some(0), vec!["/sys/class/net/ens1np0/mtu".into()]));

    let root = locked("", &["dev/infiniband/uverbs0"]);
    let ended = look(&home, root.path(), &["--json"]);
    let said = json(&ended);
    assert_eq!((ended.code, checks(&said)), (Some(2), vec!["access"]), "{said}");
    let is = "/dev/infiniband/uverbs0 may not be opened by this user";
    assert_eq!(said["findings"][0]["is"], is, "{said}");
    assert_eq!(said["findings"][0]["fix"]["line"]["file"], "/etc/udev/rules.d/90-rdma.rules");

    // Whole parts of the machine.
    let root = locked("", &["sys/class/infiniband", "proc", "etc"]);
    let ended = look(&home, root.path(), &["--json"]);
    let denied = denied(&ended);
    for path in ["/sys/class/infiniband", "/proc/modules", "/proc/self/limits"] {
        assert!(denied.iter().any(|it| it == path), "no {path} in {denied:?}");
    }
    assert_eq!(ended.code, Some(2), "no device is seen: {ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    // So that it can be removed by whoever runs this.
    for path in ["sys/class/infiniband", "proc", "etc"] {
        let path = root.path().join(path);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
}

#[test]
fn rules_of_a_firewall_that_may_not_be_read_are_not_judged() {
    let name = "rules_of_a_firewall_that_may_not_be_read_are_not_judged";
    let Some(home) = Home::powerless() else {
        return skip(name, "root cannot become somebody without rights here");
    };
    let ufw = "etc/ufw/ufw.conf = ENABLED=yes\netc/ufw/user.rules = 22\n";
    let firewalld = "run/firewalld.pid = 812\netc/firewalld/zones/public.xml = 22\n";
    for (rules, file, folder) in
        [(ufw, "etc/ufw/user.rules", ""), (firewalld, "etc/firewalld/zones", "etc/firewalld/zones")]
    {
        let said = json(&look(&home, locked(rules, &[]).path(), &["--json"]));
        assert!(checks(&said).contains(&"firewall"), "{file}: {said}");
        let root = locked(rules, &[file]);
        let ended = look(&home, root.path(), &["--json"]);
        assert_eq!((ended.code, checks(&json(&ended))), (Some(0), vec!["permission"]), "{file}");
        assert_eq!(denied(&ended), [format!("/{file}")]);
        // So that it can be removed by whoever runs this.
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(root.path().join(folder), mode).expect("a mode");
    }
}

/// In place of a file, something that opens only when somebody writes to it: never.
fn hang(root: &Path, path: &str) {
    let path = root.join(path);
    fs::remove_file(&path).expect("it was there");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .expect("a pipe with a name");
}

#[test]
fn files_that_never_answer_are_given_up() {
    let home = Home::new();
    let root = recorded("healthy", "");
    hang(root.path(), "sys/class/net/ens1np0/mtu");
    hang(root.path(), "proc/self/limits");
    let begin = Instant::now();
    let ended = look(&home, root.path(), &["--json"]);
    // Two parts hang, for eight seconds at the same time.
    assert!(begin.elapsed() < Duration::from_secs(20), "it took {:?}", begin.elapsed());
    let said = json(&ended);
    let silent = said["findings"].as_array().expect("findings").iter();
    let silent: Vec<_> =
        silent.filter(|it| it["check"] == "silent").map(|it| &it["about"]).collect();
    assert_eq!(silent, ["the RDMA devices in /sys", "/proc and /sys"], "{said}");
    assert_eq!(ended.code, Some(2), "no device answers: {said}");

    // Counters alone: all else is told.
    let root = recorded("healthy", "");
    hang(root.path(), "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error");
    let ended = look(&home, root.path(), &["--json"]);
    let said = json(&ended);
    assert_eq!((ended.code, checks(&said)), (Some(1), vec!["silent"]), "{said}");
    assert_eq!(said["chosen"][0]["gid_index"], 3, "{said}");
}

#[test]
fn bad_usage_says_what_is_wrong() {
    let home = Home::new();
    doctor(&home, &["./file"]).refused(2, &["./file is no server", "HOST:PORT"]);
    doctor(&home, &["--sample", "99"]).refused(2, &["from 0 to 60"]);
    doctor(&home, &["--fix-script", "--env"]).refused(2, &["cannot be used with"]);
}

#[test]
fn this_machine_is_looked_at_whatever_it_is() {
    let home = Home::new();
    let ended =
        doctor(&home, &["--json", "--sample", "0", "--export", "/", "--export", "/nowhere"]);
    let said = json(&ended);
    let exit = ended.code.expect("it ended by itself");
    assert!((0..=2).contains(&exit) && said["exit"] == exit, "{said}");
    assert!(checks(&said).contains(&"export"), "/nowhere is no folder: {said}");
    drop(Running::start(home.command("rdma-doctor", &["--help"])).end().done());
}
