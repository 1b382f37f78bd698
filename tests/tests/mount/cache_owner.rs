//! Whose folder a cache is: one that another user owns, or may write to, is refused with
//! the owner, the mode and the next step, and nothing is made in it. As root, which then
//! is the user who mounts, with nobody as the other user.

use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use verbatim_tests::process::NOBODY;

/// Says that a test needs two users, where there is only one.
fn has_two_users(test: &str) -> bool {
    if !can_mount(test) {
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        skip(test, "needs root, to be two users");
        return false;
    }
    true
}

fn set(folder: &Path, owner: u32, mode: u32) {
    chown(folder, Some(owner), Some(owner)).expect("root may");
    fs::set_permissions(folder, fs::Permissions::from_mode(mode)).expect("sets");
}

/// What is in a folder, and in those in it.
fn everything(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(folder).expect("lists").flatten().map(|it| it.path()).collect();
    let folders: Vec<PathBuf> = all.iter().filter(|it| it.is_dir()).cloned().collect();
    folders.iter().for_each(|inner| all.extend(everything(inner)));
    all.sort();
    all
}

/// A command of the other user; whether it did well.
fn by_nobody(words: &[&OsStr]) -> bool {
    let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
    let mut command = Command::new("setpriv");
    command.args(ids).arg("--clear-groups").args(words);
    command.output().expect("setpriv runs").status.success()
}

#[test]
fn a_cache_folder_of_another_user_or_open_to_one_is_refused_with_the_next_step() {
    let test = "a_cache_folder_of_another_user_or_open_to_one_is_refused_with_the_next_step";
    if !has_two_users(test) {
        return;
    }
    let source = Source::new(|dir| fs::write(dir.join("file"), b"hello").expect("writes"));
    let (dir, at) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let link = tempfile::tempdir().expect("folder");
    symlink(dir.path(), link.path().join("link")).expect("links");
    let shown = dir.path().canonicalize().expect("is there").display().to_string();
    let another = "or give another folder with --cache DIR";
    let chown = format!("chown 0 {shown}, {another}");
    let chmod = format!("chmod go-w {shown}, {another}");
    let inside = format!("give a folder in it: --cache {shown}/NAME");
    let theirs = format!("belongs to user {NOBODY} and its mode is");
    let ours = "belongs to user 0 and its mode is";
    let cases = [
        (NOBODY, 0o700, &*theirs, "0700, and this is user 0", &chown),
        (NOBODY, 0o755, &theirs, "0755, and this is user 0", &chown),
        (0, 0o770, ours, "0770, so other users may write to it", &chmod),
        (0, 0o707, ours, "0707, so other users may write to it", &chmod),
        (0, 0o1777, ours, "1777, so other users may write to it", &inside),
    ];
    for (owner, mode, whose, why, hint) in cases {
        set(dir.path(), owner, mode);
        // By its name, and by a link that leads there.
        for cache in [dir.path().to_owned(), link.path().join("link")] {
            let text = |path: &Path| path.to_str().expect("text").to_owned();
            let words =
                [source.serve().at("data"), text(at.path()), "--cache".into(), text(&cache)];
            let refused = Running::start(source.home.command("rdma-mount", &words)).end();
            let detach = || drop(Command::new("umount").arg("-l").arg(at.path()).status());
            let stood = is_mounted(at.path());
            stood.then(detach);
            assert!(!stood, "{owner} {mode:04o} {}: it is used", cache.display());
            let first = format!("cannot use {shown} as a cache: {shown} {whose} {why}");
            refused.refused(1, &[&first, "hint: ", hint]);
            assert_eq!(everything(dir.path()), [] as [PathBuf; 0], "{owner} {mode:04o}");
        }
    }
    set(dir.path(), 0, 0o755);
    let mounted = source.mount_with(&Arc::new(dir), &[]);
    assert_eq!(fs::read(mounted.path("file")).expect("reads"), b"hello");
    mounted.end();
}

#[test]
fn what_another_user_left_in_a_cache_folder_leads_nothing_out_of_it() {
    let test = "what_another_user_left_in_a_cache_folder_leads_nothing_out_of_it";
    if !has_two_users(test) {
        return;
    }
    let content = noise(1 << 20, 7);
    let source = Source::new(|dir| fs::write(dir.join("file"), &content).expect("writes"));
    let (cache, outside) =
        (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    // While the folder was open to all, links were put where the mount makes folders.
    set(cache.path(), 0, 0o777);
    set(outside.path(), NOBODY, 0o777);
    let parts: Vec<PathBuf> =
        (0..=255).map(|part| cache.path().join(format!("{part:02x}"))).collect();
    let quote = |path: &Path| path.to_str().expect("text").to_owned();
    let script = r#"for part in "$@"; do ln -s "$0" "$part"; done"#;
    let mut words = vec!["sh".to_owned(), "-c".into(), script.into(), quote(outside.path())];
    words.extend(parts.iter().map(|part| quote(part)));
    let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
    assert!(by_nobody(&words), "nobody may write there");
    // As the hint says.
    set(cache.path(), 0, 0o755);
    let cache = Arc::new(cache);
    std::thread::sleep(SETTLED);
    let mounted = source.mount_with(&cache, &[]);
    assert!(fs::read(mounted.path("file")).expect("reads") == content);
    assert_eq!(everything(outside.path()), [] as [PathBuf; 0], "the links are followed");
    // What the mount keeps is for nobody else to read, replace or remove.
    let kept: Vec<PathBuf> =
        everything(cache.path()).into_iter().filter(|path| path.is_file()).collect();
    assert!(kept.iter().any(|path| path.extension().is_some_and(|it| it == "data")), "{kept:?}");
    for path in &kept {
        assert!(!by_nobody(&["cat".as_ref(), path.as_ref()]), "{} is read", path.display());
        let moved = path.with_extension("moved");
        assert!(!by_nobody(&["mv".as_ref(), "-T".as_ref(), path.as_ref(), moved.as_ref()]));
        let found = fs::symlink_metadata(path).expect("is there");
        assert_eq!((found.uid(), found.mode() & 0o077), (0, 0), "{}", path.display());
    }
    mounted.end();
    // A folder of theirs in the cache is named.
    let theirs = parts.iter().find(|part| !part.exists()).expect("most were not needed");
    fs::create_dir(theirs).expect("makes");
    set(theirs, NOBODY, 0o700);
    let at = tempfile::tempdir().expect("folder");
    let words =
        [source.serve().at("data"), quote(at.path()), "--cache".into(), quote(cache.path())];
    let refused = Running::start(source.home.command("rdma-mount", &words)).end();
    refused
        .refused(1, &[&format!("{} belongs to user {NOBODY}", theirs.display()), "hint: chown 0"]);
    assert!(!is_mounted(at.path()));
}
