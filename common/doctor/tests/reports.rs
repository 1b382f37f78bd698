//! What the doctor says of recorded machines, word for word: `machines/NAME.txt` is
//! a record, `reports/NAME.txt` what is said of it, which a person has read. A record
//! that begins with `@OTHER` is that one with changes; `- path` removes something,
//! `# environment:`, `# exports:` and `# device:` say what else the doctor was told. The records
//! of the choice of ports, in `common/fabric`, are looked at as well.
//!
//! `BLESS=1 cargo test -p verbatim-doctor --test reports` writes what is said now:
//! read the difference before committing it.

#[path = "../../fabric/src/ports/tests/record.rs"]
mod record;

use record::unfold;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;
use verbatim_doctor::{Facts, Fix, Report, Severity, fix_script, nccl_exports};
use verbatim_fabric::ports::{Hints, Wish, choose};

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Our records, and those of the choice of ports.
fn records() -> Vec<(String, PathBuf)> {
    let folders = [tests().join("machines"), tests().join("../../fabric/src/ports/machines")];
    let mut records = Vec::new();
    for folder in folders {
        for entry in fs::read_dir(folder).expect("a folder of records").flatten() {
            let path = entry.path();
            let name = path.file_stem().expect("a name").to_str().expect("text").to_owned();
            records.push((name, path));
        }
    }
    records.sort();
    records
}

/// Writes a record below a folder; one that is made of another after that one.
fn lay_out(record: &Path, root: &Path) {
    let text = fs::read_to_string(record).expect("a record");
    if let Some(base) = text.strip_prefix('@') {
        let base = base.lines().next().expect("a name");
        lay_out(&record.with_file_name(format!("{base}.txt")), root);
    }
    let (gone, there): (Vec<_>, Vec<_>) =
        text.lines().filter(|line| !line.starts_with('@')).partition(|line| line.starts_with("- "));
    for path in gone {
        let path = root.join(&path[2..]);
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    unfold(&there.join("\n"), root);
}

fn told(record: &Path, key: &str) -> Vec<String> {
    let text = fs::read_to_string(record).expect("a record");
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().to_owned();
    line.split_whitespace().map(str::to_owned).collect()
}

/// In memory where that can be: thousands of small files wait for a disk that others use.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    folder.expect("a folder")
}

fn examine(record: &Path) -> Report {
    let root = folder();
    lay_out(record, root.path());
    let variables = told(record, "# environment:");
    let variables = variables.iter().filter_map(|it| it.split_once('='));
    let hints = Hints::of(variables.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let device = told(record, "# device:").pop();
    let wish = Wish { hints, device, ..Wish::default() };
    let exports = told(record, "# exports:").into_iter().map(PathBuf::from).collect();
    let mut facts = Facts::read(root.path(), wish, exports, Duration::from_millis(10));
    for export in facts.exports.iter_mut().filter(|export| export.error.is_none()) {
        // Whatever the disk below the tests has. What is below /mnt is nearly full.
        let free_mb = if export.path.starts_with("/mnt") { 3 } else { 50 };
        (export.free_bytes, export.size_bytes) = (free_mb << 20, 100 << 20);
    }
    Report::new(facts)
}

/// All files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        match entry.path() {
            path if path.is_dir() => files.extend(files_below(&path)),
            path => files.push(path),
        }
    }
    files
}

/// What is said of every record.
static EXAMINED: LazyLock<Vec<(String, Report)>> = LazyLock::new(|| {
    records().into_iter().map(|(name, record)| (name, examine(&record))).collect()
});

fn report(name: &str) -> &'static Report {
    let named = |(it, _): &&(String, Report)| it == name;
    &EXAMINED.iter().find(named).unwrap_or_else(|| panic!("there is no record {name}")).1
}

#[test]
fn every_recorded_machine_is_told_of_as_a_person_has_read_it() {
    let bless = std::env::var_os("BLESS").is_some();
    let mut wrong = Vec::new();
    for (name, report) in EXAMINED.iter() {
        let said = format!("{}exit {}\n", report.text(""), report.exit());
        let place = tests().join("reports").join(format!("{name}.txt"));
        if bless {
            fs::write(&place, &said).expect("writes");
        } else if fs::read_to_string(&place).unwrap_or_default() != said {
            wrong.push(format!("---- {name} is told of otherwise:\n{said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_report_without_a_record_is_not_kept() {
    let records: BTreeSet<_> = records().into_iter().map(|(name, _)| name).collect();
    for entry in fs::read_dir(tests().join("reports")).expect("a folder").flatten() {
        let path = entry.path();
        let name = path.file_stem().expect("a name").to_str().expect("text");
        assert!(records.contains(name), "{name} is of no record");
    }
}

#[test]
fn every_check_has_a_machine_that_fails_it_and_one_that_does_not() {
    let checks = [
        "access",
        "bus",
        "cgroup",
        "choice",
        "congestion",
        "counters",
        "device",
        "export",
        "filesystem",
        "firewall",
        "gid",
        "governor",
        "hugepages",
        "iommu",
        "kind",
        "library",
        "memlock",
        "modules",
        "mtu",
        "numa",
        "open",
        "packet",
        "port",
        "provider",
        "rate",
        "readpath",
        "space",
        "sriov",
        "width",
    ];
    let mut seen = BTreeSet::new();
    for (_, report) in EXAMINED.iter() {
        seen.extend(report.findings.iter().map(|finding| finding.check));
    }
    for check in checks {
        assert!(seen.contains(check), "no machine fails the check {check}");
    }
    let healthy = report("healthy");
    assert_eq!(healthy.findings, [], "a healthy machine has nothing to mend");
    assert_eq!(healthy.exit(), 0);
}

#[test]
fn a_device_that_is_open_works_whether_or_not_it_opens_again() {
    let root = folder();
    lay_out(&tests().join("machines/open-no-driver.txt"), root.path());
    let wish = Wish { open: vec!["mlx5_0".into()], ..Wish::default() };
    let report = Report::new(Facts::read(root.path(), wish, Vec::new(), Duration::ZERO));
    assert_eq!((report.findings.as_slice(), report.exit()), ([].as_slice(), 0));
}

#[test]
fn the_lines_for_nccl_make_it_choose_what_we_chose() {
    let mut agreed = 0;
    for (name, report) in EXAMINED.iter() {
        let Ok(places) = &report.chosen else { continue };
        let lines = nccl_exports(places);
        let variable = |line: &str| {
            let (key, value) = line.strip_prefix("export ")?.split_once('=')?;
            Some((key.to_owned(), value.trim_matches('\'').to_owned()))
        };
        let hints = Hints::of(lines.lines().filter_map(variable));
        let wish = Wish { hints, ..Wish::default() };
        let again = choose(&report.facts.machine, &wish).expect("still there");
        let first = (&places[0].device, places[0].port, places[0].gid.index);
        assert_eq!((&again[0].device, again[0].port, again[0].gid.index), first, "{name}: {lines}");
        agreed += 1;
    }
    assert!(agreed > 10, "only {agreed} machines have a choice");
}

#[test]
fn a_script_of_fixes_is_one_that_a_shell_can_read() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, report) in EXAMINED.iter() {
        let script = folder.path().join("fix.sh");
        fs::write(&script, fix_script(&report.findings)).expect("writes");
        let checked = std::process::Command::new("sh").arg("-n").arg(&script).output();
        let checked = checked.expect("there is a shell");
        assert!(checked.status.success(), "{name}: {}", String::from_utf8_lossy(&checked.stderr));
    }
    let script = fix_script(&report("small-mtu").findings);
    assert!(script.lines().any(|line| line == "ip link set ens1np0 mtu 9000"), "{script}");
}

#[test]
fn every_finding_says_all_that_it_should() {
    for (name, report) in EXAMINED.iter() {
        for finding in &report.findings {
            let texts = [&finding.about, &finding.is, &finding.should, &finding.why];
            assert!(texts.iter().all(|text| !text.is_empty()), "{name}: {finding:?}");
            assert!(texts.iter().all(|text| !text.ends_with('.')), "{name}: {finding:?}");
            assert!(!matches!(&finding.fix, Fix::Run(it) | Fix::Person(it) if it.is_empty()));
            assert!(Severity::ALL.contains(&finding.severity));
        }
    }
}

/// What a file of the kernel might hold that nobody thought of.
const ODD: &[&[u8]] = &[
    b"",
    b"\n\n",
    b"\xff\xfe\x00\x80",
    b"-1",
    b"99999999999999999999999",
    b": ( X) [",
    b"0-,-5,4294967295-0",
];

#[test]
fn whatever_a_file_holds_something_is_said() {
    let root = folder();
    lay_out(&tests().join("machines/healthy.txt"), root.path());
    let looked = |what: &str| {
        let exports = vec![PathBuf::from("/etc")];
        let facts = Facts::read(root.path(), Wish::default(), exports, Duration::ZERO);
        let report = Report::new(facts);
        let said = report.text("") + &fix_script(&report.findings);
        assert!(said.lines().count() > 3 && report.exit() <= 2, "{what}: {said}");
        // A part that panics does not answer.
        let silent = report.findings.iter().find(|finding| finding.check == "silent");
        assert_eq!(silent, None, "{what}");
    };
    for file in files_below(root.path()) {
        let told = fs::read(&file).expect("reads");
        for &odd in ODD {
            fs::write(&file, odd).expect("writes");
            looked(&format!("{} is {odd:?}", file.display()));
        }
        // Something else under its name, then nothing.
        fs::remove_file(&file).expect("removes");
        fs::create_dir(&file).expect("a folder");
        looked(&format!("{} is a folder", file.display()));
        fs::remove_dir(&file).expect("removes");
        looked(&format!("{} is gone", file.display()));
        fs::write(&file, told).expect("writes");
    }
}
