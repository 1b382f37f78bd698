//! A mount without its server: what the cache has is shown, names and attributes with
//! it, and what it has not is an error at once. Nothing that was damaged is shown.

use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Instant;

const MIB: usize = 1 << 20;

/// How soon what is not here must be an error.
const AT_ONCE: Duration = Duration::from_secs(5);

fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("a/deep/er")).expect("makes");
    fs::create_dir(dir.join("unseen")).expect("makes");
    fs::write(dir.join("a/whole"), noise(3 * MIB + 5, 1)).expect("writes");
    fs::write(dir.join("a/part"), noise(40 * MIB, 2)).expect("writes");
    fs::write(dir.join("a/listed"), b"only its name is known").expect("writes");
    fs::write(dir.join("a/deep/er/opened"), b"never listed").expect("writes");
    symlink("whole", dir.join("a/link")).expect("links");
}

#[test]
fn without_its_server_a_mount_shows_what_is_here_and_the_rest_is_an_error_at_once() {
    if !can_mount("without_its_server_a_mount_shows_what_is_here") {
        return;
    }
    let mut source = Source::new(fill);
    std::thread::sleep(SETTLED);
    let cache = Arc::new(tempfile::tempdir().expect("folder"));
    let from = source.serve().at("data");
    let mounted = source.mount_with(&cache, &[]);
    let names = |at: PathBuf| {
        let entries = fs::read_dir(at).expect("lists").map(|it| it.expect("is there").file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    let (root, inside) = (names(mounted.path("")), names(mounted.path("a")));
    assert!(fs::read(mounted.path("a/whole")).expect("reads") == noise(3 * MIB + 5, 1));
    let mut first = [0; 4096];
    let part = fs::File::open(mounted.path("a/part")).expect("opens");
    std::os::unix::fs::FileExt::read_exact_at(&part, &mut first, 0).expect("reads");
    drop(part);
    assert_eq!(fs::read(mounted.path("a/deep/er/opened")).expect("reads"), b"never listed");
    let there = fs::metadata(mounted.path("a/whole")).expect("is there");
    // Names are kept by a thread of their own, which is through with them when it ends.
    mounted.end();
    source.kill();

    let mut words = vec![from.as_str(), "/nowhere"];
    let (at, text) =
        (tempfile::tempdir().expect("folder"), |path: &Path| path.display().to_string());
    let (place, kept) = (text(at.path()), text(cache.path()));
    words[1] = &place;
    words.extend(["--cache", &kept]);
    let away = Running::start(source.home.command("rdma-mount", &words)).end();
    away.refused(3, &["cannot connect", "--offline"]);

    let mounted = Mounted::start(&source.home, &from, &cache, &["--offline"]);
    assert_eq!((names(mounted.path("")), names(mounted.path("a"))), (root, inside));
    assert!(fs::read(mounted.path("a/whole")).expect("is here") == noise(3 * MIB + 5, 1));
    assert!(fs::read(mounted.path("a/link")).expect("is here") == noise(3 * MIB + 5, 1));
    assert_eq!(fs::read(mounted.path("a/deep/er/opened")).expect("is here"), b"never listed");
    let here = fs::metadata(mounted.path("a/whole")).expect("is known");
    let all = |it: &fs::Metadata| (it.mode(), it.len(), it.mtime(), it.mtime_nsec(), it.ino());
    assert_eq!(all(&here), all(&there));
    assert_eq!(fs::metadata(mounted.path("a/listed")).expect("is known").len(), 22);
    let begin = Instant::now();
    let part = fs::File::open(mounted.path("a/part")).expect("opens");
    std::os::unix::fs::FileExt::read_exact_at(&part, &mut first, 0).expect("is here");
    assert!(first == noise(40 * MIB, 2)[..4096]);
    let read = |at| std::os::unix::fs::FileExt::read_exact_at(&part, &mut [0; 9], at);
    let gone = [
        fs::read(mounted.path("a/listed")).expect_err("is not here"),
        read(35 * MIB as u64).expect_err("is not here"),
        fs::read_dir(mounted.path("unseen"))
            .and_then(|mut it| it.next().expect("fails"))
            .expect_err("is not known"),
        fs::metadata(mounted.path("a/deep/unknown")).expect_err("is not known"),
    ];
    for error in gone {
        assert_eq!(errno(&error), EIO, "{error}");
    }
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    let status = mounted.status();
    assert_eq!(status["server"]["up"], false, "{status}");
    mounted.end();
}

#[test]
fn a_cache_that_knows_nothing_of_the_source_is_refused_and_damaged_names_are_not_shown() {
    if !can_mount("a_cache_that_knows_nothing_of_the_source_is_refused") {
        return;
    }
    let source = Source::new(fill);
    let cache = Arc::new(tempfile::tempdir().expect("folder"));
    let from = source.serve().at("data");
    let at = tempfile::tempdir().expect("folder");
    let words = [&from, at.path().to_str().expect("text"), "--offline", "--cache"];
    let mut command = source.home.command("rdma-mount", &words);
    command.arg(cache.path());
    let refused = Running::start(command).end();
    refused.refused(1, &["nothing of rdma://", "is in the cache", "hint: mount it once"]);
    let mounted = source.mount_with(&cache, &[]);
    assert_eq!(fs::read_dir(mounted.path("")).expect("lists").count(), 2);
    mounted.end();
    assert!(!reading::files_of(cache.path(), "names").is_empty(), "names are kept");
    for part in fs::read_dir(cache.path()).expect("lists").flatten() {
        let Ok(files) = fs::read_dir(part.path()) else { continue };
        for file in files.flatten() {
            let mut bytes = fs::read(file.path()).expect("reads");
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            fs::write(file.path(), bytes).expect("writes");
        }
    }
    let mounted = source.mount_with(&cache, &["--offline"]);
    let shown = fs::read_dir(mounted.path("")).and_then(|mut it| it.next().expect("fails"));
    assert_eq!(errno(&shown.expect_err("it is damaged")), EIO);
    mounted.end();
}

/// What somebody without rights reads; none where they may not.
fn by_nobody(path: &Path) -> Option<Vec<u8>> {
    let mut cat = Command::new("setpriv");
    cat.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]).arg(path);
    let said = cat.output().expect("setpriv runs");
    said.status.success().then_some(said.stdout)
}

#[test]
fn without_its_server_a_mount_lets_others_read_no_more_than_with_it() {
    let test = "without_its_server_a_mount_lets_others_read_no_more_than_with_it";
    if !can_mount(test) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(test, "needs root, to read as somebody else");
    }
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("sets");
    };
    let mut source = Source::new(|dir| {
        set(dir, 0o751);
        fs::create_dir(dir.join("d")).expect("makes");
        for (name, mode) in [("secret", 0o600), ("d/secret", 0o600), ("d/open", 0o644)] {
            fs::write(dir.join(name), b"said").expect("writes");
            set(&dir.join(name), mode);
        }
    });
    std::thread::sleep(SETTLED);
    let from = source.serve().at("data");
    let mode = |path: PathBuf| fs::metadata(path).expect("is known").mode() & 0o777;
    // Once by who opened a file and listed nothing, and once by who filled all of it.
    let opened = Arc::new(tempfile::tempdir().expect("folder"));
    let mounted = source.mount_with(&opened, &["--allow-other"]);
    assert_eq!(fs::read(mounted.path("secret")).expect("reads"), b"said");
    assert_eq!((by_nobody(&mounted.path("secret")), mode(mounted.path(""))), (None, 0o751));
    mounted.end();
    let filled = Arc::new(tempfile::tempdir().expect("folder"));
    let mounted = source.mount_with(&filled, &["--allow-other", "--fill"]);
    mounted.wait_for_fill();
    mounted.end();
    source.kill();

    let offline = ["--offline", "--allow-other"];
    let mounted = Mounted::start(&source.home, &from, &opened, &offline);
    assert_eq!((mode(mounted.path("")), mode(mounted.path("secret"))), (0o751, 0o400));
    assert_eq!(by_nobody(&mounted.path("secret")), None, "nobody could before");
    assert_eq!(fs::read(mounted.path("secret")).expect("is here"), b"said");
    mounted.end();
    let mounted = Mounted::start(&source.home, &from, &filled, &offline);
    assert_eq!((mode(mounted.path("")), mode(mounted.path("d/secret"))), (0o751, 0o600));
    assert_eq!(by_nobody(&mounted.path("d/secret")), None, "nobody could before");
    assert_eq!(by_nobody(&mounted.path("d/open")), Some(b"said".to_vec()));
    mounted.end();
    // A root of which nothing is known lets nobody in.
    for entry in fs::read_dir(opened.path()).expect("lists").flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b"root-") {
            fs::write(entry.path(), b"damaged").expect("writes");
        }
    }
    let mounted = Mounted::start(&source.home, &from, &opened, &offline);
    assert_eq!(mode(mounted.path("")), 0o700);
    mounted.end();
}

#[test]
fn a_mount_without_its_server_may_open_as_many_files_as_one_with_it() {
    let test = "a_mount_without_its_server_may_open_as_many_files_as_one_with_it";
    if !can_mount(test) {
        return;
    }
    let mut source = Source::new(fill);
    let cache = Arc::new(tempfile::tempdir().expect("folder"));
    let from = source.serve().at("data");
    source.mount_with(&cache, &[]).end();
    source.kill();
    let few = source.home.again().wrapped(&["prlimit", "--nofile=512:4096"]);
    let mounted = Mounted::start(&few, &from, &cache, &["--offline"]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", mounted.running().id()));
    let limits = limits.expect("the kernel tells");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("is told");
    assert_eq!(files.split_whitespace().nth(3), Some("4096"), "{files}");
    mounted.end();
}
