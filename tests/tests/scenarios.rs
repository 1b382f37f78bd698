//! What users do, end to end, over every link there is: files of awkward sizes,
//! trees, overwriting, refusals. Each scenario is one function over a pair; the
//! macro at the end runs it on loopback sockets and on a simulated network. A
//! pair checks for itself that nothing temporary is left behind.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;
use verbatim_client::{Location, Replace, SkipReason};
use verbatim_proto::Code;
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, GRAIN_BYTES};
use verbatim_tests::pair::{Backend, Job, Pair, digest_of, read};
use verbatim_tests::tree;

const GRAIN: usize = GRAIN_BYTES as usize;
const CHUNK: usize = CHUNK_BYTES_DEFAULT as usize;

/// Lengths at which something begins or ends.
const SIZES: [usize; 11] = [
    0,
    1,
    GRAIN - 1,
    GRAIN,
    GRAIN + 1,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    3 * CHUNK + 5,
    16 * CHUNK,
    // More than a window.
    20 * CHUNK + 1,
];

fn files_of_every_size_arrive_with_their_digest(pair: &Pair) {
    let name = |size: usize| format!("size-{size}");
    for size in SIZES {
        tree::write(&pair.served("ro").join(name(size)), &tree::content(size as u64, size));
    }
    let remote: Vec<String> = SIZES.iter().map(|size| format!("ro/{}", name(*size))).collect();
    let remote: Vec<&str> = remote.iter().map(String::as_str).collect();
    let down = pair.down(&remote, "").run().whole();
    tree::assert_same(&pair.served("ro"), &pair.local(""));

    let local: Vec<String> = SIZES.iter().map(|size| name(*size)).collect();
    let local: Vec<&str> = local.iter().map(String::as_str).collect();
    let up = pair.up(&local, "rw").run().whole();
    tree::assert_same(&pair.served("ro"), &pair.served("rw"));

    for size in SIZES {
        let digest = digest_of(&tree::content(size as u64, size));
        assert_eq!(down.digest(&name(size)), digest, "{size} bytes, down");
        assert_eq!(up.digest(&name(size)), digest, "{size} bytes, up");
    }
    let bytes = SIZES.iter().sum::<usize>() as u64;
    assert_eq!((down.summary.bytes, up.summary.bytes), (bytes, bytes));
    // What is sent from the wrong place arrives all the same, the second time.
    assert_eq!((down.summary.mismatches, up.summary.mismatches), (0, 0));
}

fn a_tree_goes_into_a_folder_to_a_new_name_or_in_parts(pair: &Pair) {
    tree::sample(&pair.served("ro/tree"), 1);
    let source = pair.served("ro/tree");
    fs::create_dir(pair.local("into")).expect("folder");
    pair.down(&["ro/tree"], "into").run().whole();
    tree::assert_same(&source, &pair.local("into/tree"));
    pair.down(&["ro/tree"], "new name").run().whole();
    tree::assert_same(&source, &pair.local("new name"));
    fs::create_dir(pair.local("contents")).expect("folder");
    pair.down(&["ro/tree/."], "contents").run().whole();
    tree::assert_same(&source, &pair.local("contents"));

    fs::create_dir(pair.served("rw/into")).expect("folder");
    pair.up(&["into/tree"], "rw/into").run().whole();
    tree::assert_same(&source, &pair.served("rw/into/tree"));
    pair.up(&["into/tree"], "rw/new name").run().whole();
    tree::assert_same(&source, &pair.served("rw/new name"));
    fs::create_dir(pair.served("rw/contents")).expect("folder");
    pair.up(&["into/tree/."], "rw/contents").run().whole();
    tree::assert_same(&source, &pair.served("rw/contents"));
    // So is what has no name of its own, as cp has it.
    fs::create_dir(pair.served("rw/above")).expect("folder");
    pair.up(&["into/tree/deep/.."], "rw/above").run().whole();
    tree::assert_same(&source, &pair.served("rw/above"));

    // Over what is there already, a second time.
    pair.down(&["ro/tree"], "into").run().whole();
    tree::assert_same(&source, &pair.local("into/tree"));
    pair.up(&["into/tree"], "rw/into").run().whole();
    tree::assert_same(&source, &pair.served("rw/into/tree"));
}

fn three_thousand_small_files_arrive(pair: &Pair) {
    tree::small_files(&pair.served("ro/many"), 3000, 5000, 3);
    let down = pair.down(&["ro/many"], "many").run().whole();
    assert_eq!(down.summary.files, 3000);
    tree::assert_same(&pair.served("ro/many"), &pair.local("many"));
    let up = pair.up(&["many"], "rw/many").run().whole();
    assert_eq!(up.summary.files, 3000);
    tree::assert_same(&pair.served("ro/many"), &pair.served("rw/many"));
}

fn an_overwritten_target_is_the_old_file_until_it_is_the_new_one(pair: &Pair) {
    let (old, new) = (tree::content(1, 4 << 20), tree::content(2, 24 << 20));
    tree::write(&pair.served("ro/a"), &new);
    tree::write(&pair.local("a"), &old);
    let seen =
        watch(&pair.local("a"), &old, &new, || drop(pair.down(&["ro/a"], "a").run().whole()));
    assert!(seen > 0, "the copy was over before it was looked at");
    assert!(read(&pair.local("a")) == new, "the new file is there");

    tree::write(&pair.served("rw/a"), &old);
    let seen =
        watch(&pair.served("rw/a"), &old, &new, || drop(pair.up(&["a"], "rw/a").run().whole()));
    assert!(seen > 0, "the copy was over before it was looked at");
    assert!(read(&pair.served("rw/a")) == new, "the new file is there");
}

/// Looks at a target while something is done; says how often it was still the old one.
fn watch(target: &Path, old: &[u8], new: &[u8], work: impl FnOnce()) -> usize {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (look, looked) = mpsc::channel();
        let over = &over;
        let watcher = scope.spawn(move || {
            let mut seen = 0;
            while !over.load(Ordering::Relaxed) {
                let now = fs::read(target).expect("there is always a file");
                assert!(now == old || now == new, "a mixture of {} bytes", now.len());
                seen += usize::from(now == old);
                // The work waits for the first look alone.
                let _ = look.send(());
                std::thread::sleep(Duration::from_millis(5));
            }
            seen
        });
        looked.recv().expect("the watcher looks");
        work();
        over.store(true, Ordering::Relaxed);
        watcher.join().expect("the watcher saw whole files only")
    })
}

fn one_file_that_cannot_be_copied_does_not_stop_the_others(pair: &Pair) {
    for name in ["a", "b", "c"] {
        tree::write(&pair.served("ro").join(name), name.as_bytes());
        tree::write(&pair.local("up").join(name), name.as_bytes());
    }
    let sources = ["ro/a", "ro/b", "ro/missing", "ro/c"];
    let down = pair.down(&sources, "").run();
    let failure = down.only_failure();
    assert!(failure.path.ends_with("ro/missing"), "{failure:?}");
    assert_eq!(failure.fault.code, Code::NotFound);
    assert_eq!(down.summary.files, 3);
    assert_eq!(read(&pair.local("c")), b"c");

    let up = pair.up(&["up/a", "up/missing", "up/b", "up/c"], "rw").run();
    let failure = up.only_failure();
    assert!(failure.path.ends_with("up/missing"), "{failure:?}");
    assert_eq!(failure.fault.code, Code::NotFound);
    assert_eq!(up.summary.files, 3);
    assert_eq!(read(&pair.served("rw/c")), b"c");
}

fn what_is_no_file_in_a_tree_is_named_and_the_rest_arrives(pair: &Pair) {
    for root in [pair.served("ro/tree"), pair.local("up")] {
        tree::small_files(&root, 20, 100, 4);
        make_fifo(&root.join("00/fifo"));
    }
    for copied in [pair.down(&["ro/tree"], "tree").run(), pair.up(&["up"], "rw/tree").run()] {
        let copied = copied.whole();
        let [skipped] = &copied.skipped[..] else { panic!("{:?}", copied.skipped) };
        assert!(skipped.path.ends_with("/00/fifo"), "{skipped:?}");
        assert_eq!(skipped.reason, SkipReason::Special);
        assert_eq!(copied.summary.skipped, 1);
    }
    fs::remove_file(pair.served("ro/tree/00/fifo")).expect("removes");
    tree::assert_same(&pair.served("ro/tree"), &pair.local("tree"));
    tree::assert_same(&pair.served("ro/tree"), &pair.served("rw/tree"));
}

fn make_fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("makes a fifo");
}

fn a_folder_in_the_way_fails_one_file_and_the_rest_arrives(pair: &Pair) {
    tree::small_files(&pair.served("ro/tree"), 20, 100, 5);
    tree::small_files(&pair.local("up"), 20, 100, 5);
    for root in [pair.local("tree"), pair.served("rw/tree")] {
        tree::write(&root.join("00/0007/in the way"), b"");
    }
    let down = pair.down(&["ro/tree/."], "tree").run();
    assert!(down.only_failure().path.ends_with("00/0007"), "{:?}", down.failed);
    assert_eq!(down.only_failure().fault.code, Code::IsFolder);
    assert_eq!(down.summary.files, 19);
    let up = pair.up(&["up/."], "rw/tree").run();
    assert!(up.only_failure().path.ends_with("00/0007"), "{:?}", up.failed);
    assert_eq!(up.only_failure().fault.code, Code::IsFolder);
    assert_eq!(up.summary.files, 19);
    for root in [pair.local("tree"), pair.served("rw/tree")] {
        let differences = tree::differences(&pair.served("ro/tree"), &root);
        assert_eq!(differences.len(), 2, "{differences:?}");
    }
}

fn an_unknown_export_and_a_read_only_one_refuse(pair: &Pair) {
    tree::write(&pair.local("a"), b"a");
    tree::sample(&pair.local("tree"), 6);
    let down = pair.down(&["nothing/a"], "b").run();
    assert_eq!(down.only_failure().fault.code, Code::NotFound);
    assert!(down.only_failure().fault.text.contains("nothing"), "{:?}", down.failed);
    let error = pair.up(&["a"], "nothing").try_run().expect_err("refused");
    assert!(error.to_string().contains("no export is called nothing"), "{error}");
    let up = pair.up(&["a"], "nothing/a").try_run();
    assert!(up.is_err() || up.is_ok_and(|up| up.summary.failed == 1));

    let up = pair.up(&["a"], "ro/a").run();
    assert_eq!(up.only_failure().fault.code, Code::ReadOnly);
    let up = pair.up(&["a"], "ro").run();
    assert_eq!(up.only_failure().fault.code, Code::ReadOnly);
    let up = pair.up(&["tree"], "ro/tree").run();
    assert!(up.failed.iter().any(|failure| failure.fault.code == Code::ReadOnly), "{up:?}");
    assert_eq!(up.summary.files, 0);
    assert_eq!(tree::walk(&pair.served("ro")), Vec::<std::path::PathBuf>::new());
}

fn paths_and_links_that_leave_an_export_are_refused(pair: &Pair) {
    for text in ["rdma://h/ro/../secret", "h:/ro/a/../../b", "h:.."] {
        let error = Location::parse(text.as_ref()).expect_err("refused").to_string();
        assert!(error.contains(".."), "{error}");
    }
    let outside = tempfile::tempdir().expect("folder");
    tree::write(&outside.path().join("secret"), b"secret");
    tree::write(&pair.local("a"), b"a");
    for export in ["ro", "rw"] {
        symlink(outside.path().join("secret"), pair.served(export).join("secret")).expect("links");
        symlink(outside.path(), pair.served(export).join("out")).expect("links");
        symlink("../state", pair.served(export).join("state")).expect("links");
    }
    for path in ["ro/secret", "ro/out/secret", "ro/state/authorized_keys", "rw/out/secret"] {
        let down = pair.down(&[path], "b").run();
        assert_eq!(down.only_failure().fault.code, Code::BadPath, "{path}: {down:?}");
        assert!(!pair.local("b").exists());
    }
    let down = pair.down(&["ro/out"], "b").run();
    assert_eq!(down.only_failure().fault.code, Code::BadPath, "{down:?}");
    for path in ["rw/out/new", "rw/out", "rw/state/new"] {
        let refused = match pair.up(&["a"], path).try_run() {
            Err(error) => error.to_string().contains("leads out of its export"),
            Ok(up) => up.only_failure().fault.code == Code::BadPath,
        };
        assert!(refused, "{path}");
    }
    assert_eq!(tree::walk(outside.path()).len(), 1, "nothing was written outside");
    assert!(!pair.state().join("new").exists(), "nothing was written outside");
}

fn cp_rules_say_where_an_upload_goes(pair: &Pair) {
    tree::write(&pair.local("a"), b"a");
    tree::write(&pair.local("b"), b"b");
    fs::create_dir(pair.served("rw/folder")).expect("folder");
    pair.up(&["a"], "rw/folder").run().whole();
    assert_eq!(read(&pair.served("rw/folder/a")), b"a");
    pair.up(&["b"], "rw/folder/a").run().whole();
    assert_eq!(read(&pair.served("rw/folder/a")), b"b", "it was replaced under its name");
    pair.up(&["a", "b"], "rw/folder/").run().whole();
    assert_eq!(read(&pair.served("rw/folder/a")), b"a");
    assert!(pair.up(&["a", "b"], "rw/folder/a").try_run().is_err(), "two into a file");
    assert!(pair.up(&["a"], "rw/none/").try_run().is_err(), "into a folder that is not there");
    let flat = pair.up(&["."], "rw/folder").flat().run();
    assert_eq!(flat.only_failure().fault.code, Code::IsFolder);
    let deep = pair.up(&["a"], "rw/none/a").run();
    assert_eq!(deep.only_failure().fault.code, Code::NotFound, "folders are not made up");
}

fn nothing_is_copied_onto_itself(pair: &Pair) {
    let folder = pair.served("rw");
    tree::small_files(&folder.join("tree"), 5, 100, 5);
    tree::write(&folder.join("file"), b"as it was");
    symlink("tree", folder.join("link")).expect("links");
    let inode = || fs::metadata(folder.join("file")).expect("is there").ino();
    let before = inode();
    let down = |name: &str, target: &Path| {
        let mut down = pair.down(&[&format!("rw/{name}")], "");
        down.options.target = Location::Local(target.to_owned());
        down
    };
    let up = |name: &str, target: &str| {
        let mut up = pair.up(&[], target);
        up.options.sources = vec![Location::Local(folder.join(name))];
        up
    };
    let refused = |job: Job, same: &str| {
        let fault = job.run().only_failure().fault.clone();
        assert_eq!(fault.code, Code::Exists, "{fault}");
        assert_eq!(fault.text, format!("source and target are the same {same}"));
    };
    for (name, same) in [("tree", "folder"), ("link", "folder"), ("file", "file")] {
        refused(down(name, &folder), same);
        refused(up(name, "rw"), same);
    }
    refused(down("file", &folder.join("file")).flat(), "file");
    refused(up("file", "rw/file").flat(), "file");
    // One that replaces nothing has nothing to lose, and one of the same name is another.
    let mut kept = up("file", "rw");
    kept.options.policy.replace = Replace::Never;
    assert_eq!(kept.run().whole().summary.skipped, 1);
    assert_eq!(inode(), before);
    down("file", &pair.local("")).run().whole();
    up("file", "rw/tree").run().whole();
    down("tree/file", &folder).run().whole();
    assert_ne!(inode(), before);
}

fn a_source_that_changed_arrives_changed_also_from_the_digest_cache(pair: &Pair) {
    // Registered as it is, and sent among others.
    let sizes = [("a", 20 << 20), ("b", 100 << 10)];
    let age = |name: &str| {
        let file = fs::File::options().write(true).open(pair.served(&format!("ro/{name}")));
        let old = SystemTime::now() - Duration::from_secs(10);
        file.expect("opens").set_modified(old).expect("sets the time");
    };
    let arrives = |name: &str, content: &[u8]| {
        let down = pair.down(&[&format!("ro/{name}")], name).run().whole();
        assert_eq!(down.digest(name), digest_of(content));
        assert_eq!(down.summary.mismatches, 0, "{name} was sent from the wrong place");
        assert!(read(&pair.local(name)) == content, "{name} differs");
    };
    for (name, size) in sizes {
        tree::write(&pair.served(&format!("ro/{name}")), &tree::content(1, size));
        age(name);
    }
    // Until it is older than this, its identity is not trusted and nothing is cached.
    std::thread::sleep(Duration::from_millis(2100));
    for (name, size) in sizes {
        let (old, new) = (tree::content(1, size), tree::content(2, size));
        arrives(name, &old);
        arrives(name, &old);
        assert!(pair.state().join("digests.redb").exists(), "digests are kept");
        let path = pair.served(&format!("ro/{name}"));
        fs::write(&path, &new).expect("writes");
        age(name);
        arrives(name, &new);
        let fresh = pair.served("ro/fresh");
        tree::write(&fresh, &old);
        fs::rename(&fresh, &path).expect("replaces");
        arrives(name, &old);
    }
}

fn an_interrupted_copy_leaves_only_whole_files_and_goes_on(pair: &Pair) {
    let (old, new) = (tree::content(1, 1000), tree::content(2, 40 << 20));
    for path in [pair.served("ro/a"), pair.local("b")] {
        tree::write(&path, &new);
    }
    for path in [pair.served("rw/b"), pair.local("a")] {
        tree::write(&path, &old);
    }
    let jobs = [pair.down(&["ro/a"], "a"), pair.up(&["b"], "rw/b")];
    for job in jobs {
        let (stop, stopped) = oneshot::channel();
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            // The copy may be over already.
            let _ = stop.send(());
        });
        let copied = job.stop_when(stopped).run();
        stopper.join().expect("does not panic");
        if copied.summary.files == 0 {
            let broken = copied.summary.broken.as_ref().expect("it was interrupted");
            assert_eq!(broken.code, Code::Interrupted);
            assert_eq!(copied.only_failure().fault.code, Code::Interrupted);
        }
    }
    for path in [pair.local("a"), pair.served("rw/b")] {
        let now = read(&path);
        assert!(now == old || now == new, "a mixture of {} bytes", now.len());
    }
    // What is left of them is what the same copies go on with.
    for job in [pair.down(&["ro/a"], "a"), pair.up(&["b"], "rw/b")] {
        assert_eq!(job.run().summary.files, 1);
    }
    pair.assert_tidy();
    assert!(read(&pair.local("a")) == new && read(&pair.served("rw/b")) == new, "not the new one");
}

/// Two sources for one name, of different content; `alike` in size and time too, so that the
/// server cannot tell what is left of one from what is left of the other.
fn rivals(pair: &Pair, len: usize, alike: bool) -> [Vec<u8>; 2] {
    let second = if alike { len } else { len + 7 };
    let contents = [tree::content(1, len), tree::content(2, second)];
    for (folder, content) in ["one", "two"].iter().zip(&contents) {
        let path = pair.local(folder).join("x");
        tree::write(&path, content);
        if alike {
            let file = fs::File::options().write(true).open(&path).expect("opens");
            file.set_modified(SystemTime::UNIX_EPOCH).expect("sets the time");
        }
    }
    contents
}

fn two_clients_that_upload_to_one_name_leave_one_whole_file(pair: &Pair) {
    for (len, alike) in [(24 << 20, false), (24 << 20, true), (3000, false), (3000, true)] {
        let contents = rivals(pair, len, alike);
        let copied = std::thread::scope(|scope| {
            let jobs = [pair.up(&["one/x"], "rw/x"), pair.up(&["two/x"], "rw/x")];
            let runs = jobs.map(|job| scope.spawn(|| job.run()));
            runs.map(|run| run.join().expect("does not panic"))
        });
        for copied in copied {
            copied.whole();
        }
        let now = read(&pair.served("rw/x"));
        assert!(contents.contains(&now), "a mixture of {} bytes, {alike}", now.len());
        pair.assert_tidy();
        fs::remove_file(pair.served("rw/x")).expect("removes");
    }
}

fn what_one_client_left_is_not_mixed_into_what_another_sends(pair: &Pair) {
    let contents = rivals(pair, 40 << 20, true);
    let (stop, stopped) = oneshot::channel();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(40));
        // The copy may be over already.
        let _ = stop.send(());
    });
    pair.up(&["one/x"], "rw/x").stop_when(stopped).run();
    stopper.join().expect("does not panic");
    pair.up(&["two/x"], "rw/x").run().whole();
    assert!(read(&pair.served("rw/x")) == contents[1], "not what was sent last");
}

fn trees_are_made_equal_both_ways_and_at_once(pair: &Pair) {
    for (source, target, down) in [("ro", "copy", true), ("src", "rw/copy", false)] {
        let (from, to) = match down {
            true => (pair.served(source), pair.local(target)),
            false => (pair.local(source), pair.served(target)),
        };
        tree::sample(&from, 1);
        tree::write(&from.join("large"), &tree::content(2, 3 * CHUNK + 5));
        let mirror = |atomic| {
            let job = match down {
                true => pair.down(&[source], target),
                false => pair.up(&[source], target),
            };
            job.mirrored(atomic).run()
        };
        for (round, atomic) in [(0, false), (1, true), (2, false)] {
            let done = mirror(atomic).whole();
            assert!(done.summary.moved_bytes > 0, "{done:?}");
            tree::assert_same(&from, &to);
            assert_eq!(mirror(atomic).whole().summary.changes, 0, "round {round}");
            fs::remove_file(from.join("large")).expect("removes");
            tree::write(&from.join(format!("large {round}")), &tree::content(round, 2 * CHUNK));
            tree::write(&from.join("large"), &tree::content(round + 7, 3 * CHUNK));
        }
    }
}

/// Makes a test of each scenario, on each kind of link; over a device always in memory.
macro_rules! on_every_link {
    ($($place:ident { $($scenario:ident)* })*) => {
        mod tcp {
            $($(#[test]
            fn $scenario() {
                super::$scenario(&super::Pair::$place(super::Backend::Tcp));
            })*)*
        }

        mod verbs {
            $($(#[test]
            #[ignore = "needs an RDMA device; run tests/softroce/run"]
            fn $scenario() {
                super::$scenario(&super::Pair::in_memory(super::Backend::Verbs));
            })*)*
        }

        mod sim {
            $($(#[test]
            fn $scenario() {
                super::$scenario(&super::Pair::$place(super::Backend::sim()));
            })*)*
        }
    };
}

on_every_link! {
    start {
        files_of_every_size_arrive_with_their_digest
        a_tree_goes_into_a_folder_to_a_new_name_or_in_parts
        three_thousand_small_files_arrive
        an_overwritten_target_is_the_old_file_until_it_is_the_new_one
        one_file_that_cannot_be_copied_does_not_stop_the_others
        what_is_no_file_in_a_tree_is_named_and_the_rest_arrives
        a_folder_in_the_way_fails_one_file_and_the_rest_arrives
        an_unknown_export_and_a_read_only_one_refuse
        paths_and_links_that_leave_an_export_are_refused
        cp_rules_say_where_an_upload_goes
        nothing_is_copied_onto_itself
        a_source_that_changed_arrives_changed_also_from_the_digest_cache
        two_clients_that_upload_to_one_name_leave_one_whole_file
        trees_are_made_equal_both_ways_and_at_once
    }
    in_memory {
        an_interrupted_copy_leaves_only_whole_files_and_goes_on
        what_one_client_left_is_not_mixed_into_what_another_sends
    }
}
