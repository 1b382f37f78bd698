//! What the doctor says of folders that are exported, on real file systems: room,
//! kind, and a server that was told to export one without room. Which read path the
//! kernel allows needs a device: `tests/tests/verbs/doctor.rs`.

use crate::served::Served;
use crate::{checks, doctor, json};
use std::path::Path;
use std::process::Command;
use verbatim_tests::process::{Home, Running, skip};

/// What `df` says of a folder: its kind, its bytes, and those that are free.
fn df(path: &Path) -> (String, u64, u64) {
    let output = Command::new("df").args(["-B1", "--output=fstype,size,avail"]).arg(path).output();
    let text = String::from_utf8(output.expect("df runs").stdout).expect("text");
    let words: Vec<_> = text.lines().last().expect("a line").split_whitespace().collect();
    let number = |at: usize| words[at].parse().expect("a number");
    (words[0].to_owned(), number(1), number(2))
}

#[test]
fn an_export_is_told_of_as_df_does_wherever_it_is() {
    let home = Home::new();
    let disk = tempfile::tempdir().expect("a folder");
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return skip("an_export_is_told_of_as_df_does_wherever_it_is", "there is no /dev/shm");
    };
    // A link leads elsewhere, and a name may be short.
    let link = disk.path().join("link");
    std::os::unix::fs::symlink(memory.path(), &link).expect("a link");
    let mut command = home.command("rdma-doctor", &["--json", "--sample", "0"]);
    command.current_dir(disk.path());
    for path in [disk.path(), memory.path(), Path::new("link"), Path::new("gone")] {
        command.arg("--export").arg(path);
    }
    let said = json(&Running::start(command).end());
    let exports = said["exports"].as_array().expect("exports");
    for (told, path) in exports.iter().zip([disk.path(), memory.path(), &link]) {
        let (kind, size, free) = df(path);
        assert_eq!((&told["file_system"], &told["size_bytes"]), (&kind.into(), &size.into()));
        assert_eq!(told["path"], path.to_str().expect("plain names"));
        // Others write too: half of it is not gone within a moment.
        let told_free = told["free_bytes"].as_u64().expect("a number");
        assert!(
            told_free > free / 2 && told_free < free.saturating_mul(2),
            "{told_free} of {free}"
        );
    }
    assert_eq!(exports.len(), 4, "{said}");
    assert!(exports[3]["error"].as_str().is_some_and(|it| it.contains("No such file")), "{said}");
    let memory = memory.path().to_str().expect("plain names");
    let text = doctor(&home, &["--sample", "0", "--export", memory]).stdout;
    let line = format!("export {memory}: tmpfs, ");
    assert!(text.lines().any(|it| it.starts_with(&line) && it.contains(" free")), "{text}");
}

/// Makes a file system of 16 MiB in a world of its own, fills it, then runs what follows.
const FULL: &str = "mount -t tmpfs -o size=16m none \"$0\" && head -c 16252928 /dev/zero >\"$0\"/x \
                    && exec \"$@\"";

#[test]
fn an_export_without_room_is_a_finding() {
    let name = "an_export_without_room_is_a_finding";
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().to_str().expect("plain names");
    let world = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FULL, path];
    let able = Command::new(world[0]).args(&world[1..]).arg("true").output();
    if !able.is_ok_and(|output| output.status.success()) {
        return skip(name, "no file system can be mounted in a namespace here");
    }
    let home = Home::new().wrapped(&world);
    let said = json(&doctor(&home, &["--json", "--sample", "0", "--export", path]));
    let findings = said["findings"].as_array().expect("findings").iter();
    let space: Vec<_> = findings.filter(|it| it["check"] == "space").collect();
    assert_eq!(space.len(), 1, "{said}");
    assert_eq!(space[0]["is"], "512 KiB of 16 MiB are free", "{said}");
    assert_eq!(said["exports"][0]["file_system"], "tmpfs");
    // Outside of that world there is room.
    let said = json(&doctor(&Home::new(), &["--json", "--sample", "0", "--export", path]));
    assert!(!checks(&said).contains(&"space"), "{said}");
}

#[test]
fn a_server_says_what_is_wrong_with_the_exports_of_its_config() {
    let mounts = "proc/self/mountinfo = 22 1 8:1 / / rw - nfs4 far:/data rw\n";
    let served = Served::on("healthy", mounts);
    let finding = served.finding("filesystem");
    assert_eq!(finding["about"], served.export().to_str().expect("plain names"));
    assert_eq!(finding["is"], "it is on a network or user-space file system (nfs4)");
}
