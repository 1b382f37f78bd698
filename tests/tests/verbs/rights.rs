//! A server that gave up its rights uses the devices that it opened before. Changes
//! who may open devices, so it runs in a guest of our own only.

use super::{assert_verbs, exports, folders};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::sync::Arc;
use verbatim_tests::process::{self, Home, NOBODY, Serve};
use verbatim_tests::tree;

/// The files of devices, which only root may open as long as this is there.
struct OnlyRoot(Vec<(PathBuf, u32)>);

impl OnlyRoot {
    fn new() -> Self {
        let files = fs::read_dir("/dev/infiniband").expect("devices").flatten();
        let files: Vec<_> = files.map(|file| file.path()).filter(|it| !it.is_dir()).collect();
        let modes = files.iter().map(|it| it.metadata().expect("it is there").mode()).collect();
        for file in &files {
            chown(file, Some(0), Some(0)).expect("root may");
            fs::set_permissions(file, Permissions::from_mode(0o600)).expect("root may");
        }
        let modes: Vec<u32> = modes;
        Self(files.into_iter().zip(modes).collect())
    }
}

impl Drop for OnlyRoot {
    fn drop(&mut self) {
        for (file, mode) in &self.0 {
            let _ = fs::set_permissions(file, Permissions::from_mode(mode & 0o777));
        }
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_user_who_may_not_open_devices_is_served_from_those_root_opened() {
    if std::env::var_os("VERBATIM_GUEST").is_none() {
        return process::skip(
            "a_user_who_may_not_open_devices_is_served_from_those_root_opened",
            "it would change who may open devices of this machine",
        );
    }
    let _only_root = OnlyRoot::new();
    let (dir, home) = (folders(), Arc::new(Home::new()));
    tree::write(&dir.path().join("data/a"), &tree::content(1, 3 << 20));
    fs::create_dir_all(home.state()).expect("a folder");
    for folder in [dir.path(), home.path()] {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("ours");
    }
    for given in [home.state(), dir.path().join("in")] {
        chown(given, Some(NOBODY), Some(NOBODY)).expect("root may");
    }
    let [data, into] = exports(dir.path());
    let serve =
        Serve::of(&home, "127.0.0.1:0", &["--user", "nobody", "--insecure-no-auth", &data, &into]);
    let status = fs::read_to_string(format!("/proc/{}/status", serve.id())).expect("it runs");
    assert!(status.contains("Uid:\t65534\t65534"), "{status}");
    // More than one client, each with a domain of its own on what is open.
    let anybody = Home::new();
    let known = ["--fingerprint", &serve.fingerprint, "--json"];
    let out = dir.path().join("out").display().to_string();
    for _ in 0..2 {
        let cp = |from: &str, to: &str| anybody.cp(&[&known[..], &[from, to]].concat()).done();
        assert_verbs(&cp(&serve.at("data/a"), &out), true);
        assert_verbs(&cp(&format!("{out}/a"), &serve.at("in/")), false);
        tree::assert_same(&dir.path().join("data"), &dir.path().join("in"));
        fs::remove_file(format!("{out}/a")).expect("ours");
    }
    assert!(serve.log().contains("RDMA is offered"), "{}", serve.log());
    assert!(!serve.log().contains("may not be opened"), "{}", serve.log());
}
