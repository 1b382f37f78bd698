//! A mount as the system makes it: by mount(8) with the options of fstab, and by an
//! ordinary user through fusermount3. In a mount namespace of its own where root could
//! leave something behind for others to see.

use super::*;
use std::os::unix::fs::PermissionsExt;
use verbatim_tests::process::{Ended, binary};

fn fill(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("sets");
    fs::write(dir.join("file"), b"hello").expect("writes");
    fs::write(dir.join("big"), noise(3 << 20, 1)).expect("writes");
}

/// Runs a script in a mount namespace of its own, with our commands on the path.
fn in_namespace(source: &Source, script: &str, words: &[&OsStr]) -> Ended {
    let folder = binary("rdma-mount").parent().expect("it is in a folder").to_owned();
    let mut command = source.home.command_of("unshare");
    command.args(["-m", "--propagation", "private"]).env("BUILD", folder);
    // Where whoever mounts for others looks for commands.
    let script = format!("mount --bind \"$BUILD\" /usr/local/bin\n{script}");
    command.args(["sh", "-euc", &script, "sh"]).args(words);
    Running::start(command).end()
}

fn can_be_mounted_by_mount(test: &str) -> bool {
    if !can_mount(test) {
        return false;
    }
    let helper = ["/sbin/mount.fuse", "/sbin/mount.fuse3"].iter().any(|it| Path::new(it).exists());
    if !helper || !rustix::process::geteuid().is_root() {
        skip(test, "needs root, and mount.fuse of the package fuse3");
        return false;
    }
    true
}

#[test]
fn mount_makes_it_with_the_options_of_fstab_and_returns_when_it_stands() {
    if !can_be_mounted_by_mount("mount_makes_it_with_the_options_of_fstab") {
        return;
    }
    let source = Source::new(fill);
    let (at, cache) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let from = source.serve().at("data");
    let options = format!(
        "ro,_netdev,nofail,x-systemd.automount,allow_other,noexec,cache_size=64M,cache={},state={}",
        cache.path().join("c").display(),
        source.home.state().display()
    );
    // What stands when mount returns is looked at, and the daemon waited for at the end.
    let script = r#"
        mount -t fuse.rdma-mount "$1" "$2" -o "$3"
        cat "$2/file"
        grep " $2 " /proc/self/mountinfo
        umount "$2"
        flock --timeout 20 "$4" true
    "#;
    let lock = cache.path().join("c/lock");
    let words = [from.as_ref(), at.path().as_os_str(), options.as_ref(), lock.as_ref()];
    let said = in_namespace(&source, script, &words).done().stdout;
    assert!(said.starts_with("hello"), "{said}");
    let shown = said.lines().last().expect("mountinfo has it");
    for part in ["noexec", "nosuid", "allow_other", " fuse.rdma-mount ", &from] {
        assert!(shown.contains(part), "no {part}: {shown}");
    }
    // The fstab of a machine says the same.
    let table = format!("{from} {} fuse.rdma-mount {options},user 0 0\n", at.path().display());
    let fstab = cache.path().join("fstab");
    fs::write(&fstab, table).expect("writes");
    let script = r#"
        mount -T "$4" "$2"
        cat "$2/file"
        umount "$2"
        flock --timeout 20 "$3" true
    "#;
    let words = [from.as_ref(), at.path().as_os_str(), lock.as_ref(), fstab.as_os_str()];
    assert_eq!(in_namespace(&source, script, &words).done().stdout, "hello");
}

#[test]
fn mount_fails_where_there_is_no_mount_and_an_unknown_option_is_named() {
    if !can_be_mounted_by_mount("mount_fails_where_there_is_no_mount") {
        return;
    }
    let mut source = Source::new(fill);
    let at = tempfile::tempdir().expect("folder");
    let from = source.serve().at("data");
    let script = r#"if mount -t fuse.rdma-mount "$1" "$2" -o "$3"; then exit 9; else exit 7; fi"#;
    let words = |options: &'static str| [from.as_ref(), at.path().as_os_str(), options.as_ref()];
    let said = ["colour is not an option", "hint: "];
    in_namespace(&source, script, &words("ro,colour=red")).refused(7, &said);
    source.kill();
    let cache = format!("cache={}", at.path().join("c").display());
    let options = [from.as_ref(), at.path().as_os_str(), cache.as_ref()];
    in_namespace(&source, script, &options).refused(7, &["cannot connect"]);
}

/// A source of somebody without rights, with folders for a mount; says so where there is nobody.
fn somebody(test: &str) -> Option<(Source, TempDir, TempDir)> {
    if !can_mount(test) {
        return None;
    }
    let helper = fs::metadata("/usr/bin/fusermount3");
    let helper = helper.is_ok_and(|it| it.permissions().mode() & 0o4000 != 0);
    let Some(home) = helper.then(Home::powerless).flatten() else {
        skip(test, "needs fusermount3 with its rights, and somebody who may run this build");
        return None;
    };
    let device = fs::metadata("/dev/fuse").expect("it was just opened");
    if device.permissions().mode() & 0o006 != 0o006 {
        skip(test, "/dev/fuse is not open to every user, as udev has it: chmod a+rw /dev/fuse");
        return None;
    }
    let folder = || {
        let folder = tempfile::tempdir().expect("folder");
        let nobody = Some(verbatim_tests::process::NOBODY);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(folder.path(), nobody, nobody).expect("root may");
        }
        folder
    };
    Some((Source::of(home, fill), folder(), folder()))
}

#[test]
fn an_ordinary_user_mounts_through_fusermount3_and_the_status_says_why_not_past_it() {
    let Some((source, at, cache)) = somebody("an_ordinary_user_mounts") else { return };
    std::thread::sleep(SETTLED);
    let from = source.serve().at("data");
    let cache = Arc::new(cache);
    let mounted = Mounted::start_on(&source.home, &from, &cache, at, &[]);
    // Nobody but its user may look into it, not even root.
    if rustix::process::geteuid().is_root() {
        let denied = fs::read(mounted.path("file")).expect_err("it is not ours");
        assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);
    }
    let theirs = |name: &str| {
        let mut cat = match rustix::process::geteuid().is_root() {
            true => Command::new("setpriv"),
            false => Command::new("env"),
        };
        if rustix::process::geteuid().is_root() {
            cat.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        cat.arg("cat").arg(mounted.path(name)).output().expect("cat runs").stdout
    };
    for _ in 0..2 {
        assert_eq!(theirs("file"), b"hello");
        assert!(theirs("big") == noise(3 << 20, 1));
    }
    let at = mounted.path("");
    let words = ["--status", at.to_str().expect("text"), "--json"];
    let told = Running::start(source.home.command("rdma-mount", &words)).end().done().stdout;
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["passthrough"]["used"], false, "{told}");
    let why = told["passthrough"]["why_not"].as_str().expect("it says why");
    assert!(why.contains("CAP_SYS_ADMIN") || why.contains("kernel does not have it"), "{why}");
    mounted.end();
}

#[test]
fn an_ordinary_user_lets_others_in_only_where_root_allowed_it() {
    let Some((source, at, cache)) = somebody("an_ordinary_user_lets_others_in") else { return };
    let allowed = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if allowed.lines().any(|line| line.trim() == "user_allow_other") {
        return skip("an_ordinary_user_lets_others_in", "user_allow_other is set here");
    }
    let from = source.serve().at("data");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let words = [&from, &text(at.path()), "--cache", &text(cache.path()), "--allow-other"];
    let refused = Running::start(source.home.command("rdma-mount", &words)).end();
    refused.refused(1, &["--allow-other is not for ordinary users", "hint: ", "/etc/fuse.conf"]);
    assert!(!is_mounted(at.path()));
}
