//! Sources that change while they are copied, both ways: each kind of change is
//! made when a part of the file has moved. What arrives must be a version that
//! the source had; else the fault says what happened, and no file has the name.
//! Over the simulated link at a slow pace, and over verbs, where a registered
//! window goes on showing old bytes after some of these changes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verbatim_fabric::sim::{Faults, SimClock, SimNet};
use verbatim_proto::Code;
use verbatim_tests::pair::{Backend, Pair, read};
use verbatim_tests::tree;

/// What a file has before and after, and how it comes to that.
struct Change {
    versions: Vec<Vec<u8>>,
    codes: &'static [Code],
    make: Box<dyn Fn(&Path) + Sync>,
}

/// A link on which a copy takes long enough to be changed in the middle, and how long a file is
/// for that.
fn slow_sim() -> (Backend, usize) {
    let faults = Faults { bandwidth_bytes_per_s: Some(6 << 20), ..Faults::default() };
    (Backend::Sim(SimNet::new(1, faults, SimClock::Real)), 8 << 20)
}

fn verbs() -> (Backend, usize) {
    (Backend::Verbs, 16 << 20)
}

/// What no link in these tests exceeds.
const BYTES_PER_SECOND: u64 = 8 << 20;

fn changing((backend, size): (Backend, usize), change: impl Fn(usize) -> Change) {
    let pair = Pair::in_memory(backend);
    let Change { versions, codes, make } = change(size);
    let jobs = [
        (pair.served("ro/a"), pair.local("down"), pair.down(&["ro/a"], "down")),
        (pair.local("a"), pair.served("rw/up"), pair.up(&["a"], "rw/up")),
    ];
    for (source, target, job) in jobs {
        tree::write(&source, &versions[0]);
        let (changed, copied) = std::thread::scope(|scope| {
            let (job, moved) = job.paced(BYTES_PER_SECOND).tell_when(size as u64 / 8);
            let (make, source) = (&make, &source);
            let changer = scope.spawn(move || {
                let begun = moved.recv_timeout(Duration::from_secs(50)).is_ok();
                if begun {
                    make(source);
                }
                begun
            });
            let copied = job.run();
            (changer.join().expect("the change can be made"), copied)
        });
        assert!(changed, "the copy was over before it could be disturbed: {copied:?}");
        assert!(copied.summary.broken.is_none(), "{copied:?}");
        if copied.failed.is_empty() {
            let arrived = read(&target);
            let at = versions.iter().position(|version| *version == arrived);
            assert!(at.is_some(), "{} bytes that the source never had", arrived.len());
        } else {
            let code = copied.only_failure().fault.code;
            assert!(codes.contains(&code), "{copied:?}");
            assert!(!target.exists(), "a failed file has no final name");
        }
    }
}

fn open(path: &Path) -> File {
    File::options().write(true).open(path).expect("opens")
}

fn truncated(size: usize) -> Change {
    let old = tree::content(1, size);
    let short = size / 3;
    Change {
        versions: vec![old.clone(), old[..short].to_vec()],
        codes: &[Code::Changed],
        make: Box::new(move |path| open(path).set_len(short as u64).expect("truncates")),
    }
}

fn grown(size: usize) -> Change {
    let old = tree::content(1, size);
    let more = tree::content(7, 1 << 20);
    Change {
        versions: vec![old.clone(), [old, more.clone()].concat()],
        codes: &[Code::Changed],
        make: Box::new(move |path| open(path).write_all_at(&more, size as u64).expect("grows")),
    }
}

fn rewritten_in_place(size: usize) -> Change {
    let new = tree::content(2, size);
    Change {
        versions: vec![tree::content(1, size), new.clone()],
        codes: &[Code::Changed],
        make: Box::new(move |path| open(path).write_all_at(&new, 0).expect("writes")),
    }
}

/// Past the page cache, where the file system can; what is registered keeps the old pages.
fn rewritten_directly(size: usize) -> Change {
    let new = tree::content(3, size);
    Change {
        versions: vec![tree::content(1, size), new.clone()],
        codes: &[Code::Changed],
        make: Box::new(move |path| {
            let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
            let direct = File::options().write(true).custom_flags(flags).open(path);
            // A file system without it (tmpfs before 6.6) is written to as usual.
            let file = direct.unwrap_or_else(|_| open(path));
            let mut aligned = verbatim_fabric::Buffer::new(new.len()).expect("memory");
            aligned.copy_from_slice(&new);
            file.write_all_at(&aligned, 0).expect("writes");
        }),
    }
}

fn punched_and_rewritten(size: usize) -> Change {
    let new = tree::content(4, size);
    let zeros = vec![0; size];
    Change {
        versions: vec![tree::content(1, size), new.clone(), zeros],
        codes: &[Code::Changed],
        make: Box::new(move |path| {
            let file = open(path);
            let hole =
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, hole, 0, size as u64).expect("punches");
            file.write_all_at(&new, 0).expect("writes");
        }),
    }
}

fn replaced(size: usize) -> Change {
    let new = tree::content(2, size / 2 + 5);
    Change {
        versions: vec![tree::content(1, size), new.clone()],
        codes: &[Code::Changed],
        make: Box::new(move |path| {
            let fresh = path.with_extension("fresh");
            tree::write(&fresh, &new);
            fs::rename(&fresh, path).expect("replaces");
        }),
    }
}

fn removed(size: usize) -> Change {
    Change {
        versions: vec![tree::content(1, size)],
        codes: &[Code::Changed, Code::NotFound],
        make: Box::new(|path| fs::remove_file(path).expect("removes")),
    }
}

fn made_unreadable(size: usize) -> Change {
    use std::os::unix::fs::PermissionsExt;
    Change {
        versions: vec![tree::content(1, size)],
        codes: &[Code::Changed, Code::Denied],
        make: Box::new(|path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o000)).expect("takes it away");
        }),
    }
}

/// Makes a test of each kind of change, on each kind of link.
macro_rules! on_each_link {
    ($($change:ident)*) => {
        mod sim {
            $(#[test]
            fn $change() {
                super::changing(super::slow_sim(), super::$change);
            })*
        }

        mod verbs {
            $(#[test]
            #[ignore = "needs an RDMA device; run tests/softroce/run"]
            fn $change() {
                super::changing(super::verbs(), super::$change);
            })*
        }
    };
}

on_each_link! {
    truncated
    grown
    rewritten_in_place
    rewritten_directly
    punched_and_rewritten
    replaced
    removed
    made_unreadable
}

#[test]
fn a_source_that_never_rests_fails_as_changed() {
    let faults = Faults { bandwidth_bytes_per_s: Some(20 << 20), ..Faults::default() };
    let pair = Pair::in_memory(Backend::Sim(SimNet::new(1, faults, SimClock::Real)));
    let jobs = [
        (pair.served("ro/a"), pair.local("down"), pair.down(&["ro/a"], "down")),
        (pair.local("a"), pair.served("rw/up"), pair.up(&["a"], "rw/up")),
    ];
    for (source, target, job) in jobs {
        tree::write(&source, &tree::content(1, 8 << 20));
        let over = AtomicBool::new(false);
        let copied = std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = open(&source);
                let mut round = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    round += 1;
                    file.write_all_at(&round.to_le_bytes(), (round % 8) << 20).expect("writes");
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let copied = job.run();
            over.store(true, Ordering::Relaxed);
            copied
        });
        assert_eq!(copied.only_failure().fault.code, Code::Changed, "{copied:?}");
        assert!(!target.exists(), "a failed file has no final name");
    }
}
