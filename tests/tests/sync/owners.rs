//! Owners by name: what belongs to somebody at the source belongs to whoever has
//! that name at the target, whatever the numbers are. The client runs where
//! accounts have other numbers: `/etc/passwd` and `/etc/group` are other files in a
//! mount namespace of its own. Needs root.

use crate::process::{Running, skip};
use crate::{BOTH, Way, World, changes, text, tree, write};
use std::fs;
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

/// An account that the server has, and the client with other numbers.
const THERE: (u32, u32) = (1, 1);
const HERE: (u32, u32) = (4242, 4343);

/// An account that only the client has, and one that nobody has.
const GHOST: (u32, u32) = (5555, 5555);
const NOBODY: (u32, u32) = (7777, 7778);

/// What belongs to the first of them, in three pages.
const OWNED: [&str; 6] = ["before/12/1200", "before/25/2500", "named", "large", "folder", "link"];

/// Runs what follows its first two arguments where those are the lists of accounts.
const ELSEWHERE: &str = "mount --bind \"$1\" /etc/passwd && mount --bind \"$2\" /etc/group \
    && shift 2 && exec \"$@\"";

fn elsewhere(world: &World, command: &Command) -> Command {
    let lists = ["passwd", "group"].map(|name| text(&world.path(name)));
    let mut wrapped = world.home.command_of("unshare");
    wrapped.args(["--mount", "sh", "-c", ELSEWHERE, "sh"]).args(lists);
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped
}

/// Files, a folder and a link, of four owners, behind some pages of root's.
fn fill(root: &Path, owner: (u32, u32)) {
    tree::small_files(&root.join("before"), 3_000, 0, 1);
    write(root.join("named"), b"1");
    write(root.join("large"), &vec![7; 3 << 20]);
    write(root.join("folder/root"), b"2");
    write(root.join("ghost"), b"3");
    write(root.join("nobody"), b"4");
    symlink("named", root.join("link")).expect("links");
    for name in OWNED {
        give(&root.join(name), owner);
    }
    give(&root.join("ghost"), GHOST);
    give(&root.join("nobody"), NOBODY);
}

fn give(path: &Path, (user, group): (u32, u32)) {
    lchown(path, Some(user), Some(group)).expect("root may give away");
}

fn owned(root: &Path, owner: (u32, u32)) {
    let of = |name: &str| {
        let meta = fs::symlink_metadata(root.join(name)).expect("there");
        (meta.uid(), meta.gid())
    };
    for name in OWNED {
        assert_eq!(of(name), owner, "{name}");
    }
    assert_eq!(of("ghost"), GHOST, "who is unknown keeps the number");
    assert_eq!((of("nobody"), of("folder/root")), (NOBODY, (0, 0)));
}

#[test]
fn owners_are_those_of_the_same_name_unless_numbers_are_asked_for() {
    let name = "sync owners::owners_are_those_of_the_same_name";
    let world = World::with_owners();
    fs::write(world.path("passwd"), "root:x:0:0\ndaemon:x:4242:4343\nghost:x:5555:1\n")
        .expect("writes");
    fs::write(world.path("group"), "root:x:0:\ndaemon:x:4343:\nghost:x:5555:\n").expect("writes");
    let mut probe = elsewhere(&world, &Command::new("true"));
    let can = probe.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    let list = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let known = list("/etc/passwd").contains("\ndaemon:x:1:1:")
        && list("/etc/group").contains("\ndaemon:x:1:");
    if !can || !known {
        return skip(name, "not root, no mount namespaces, or daemon has another number");
    }
    for way in BOTH {
        let (source, target, ends) = match way {
            Way::Down => {
                let (from, to) = (world.path("in/from"), world.path("out/copy"));
                (from, to.clone(), [world.serve.at("in/from"), text(&to)])
            }
            Way::Up => (world.source(), world.target(way), world.ends(way)),
        };
        let (from, to) = if way == Way::Down { (THERE, HERE) } else { (HERE, THERE) };
        fill(&source, from);
        let sync = |flags: &[&str]| {
            let ends = [ends[0].as_str(), ends[1].as_str()];
            let command = world.home.command("rdma-sync", &[&ends, flags].concat());
            Running::start(elsewhere(&world, &command)).end().done()
        };
        sync(&[]);
        owned(&target, to);
        assert_eq!(changes(&sync(&["--json"])), [""; 0], "{way:?}");
        assert_eq!(
            changes(&sync(&["--json", "-n", "--numeric-ids"])).len(),
            OWNED.len(),
            "{way:?}"
        );
        sync(&["--numeric-ids"]);
        owned(&target, from);
        assert_eq!(changes(&sync(&["--json", "--numeric-ids"])), [""; 0], "{way:?}");
        // Both have the same numbers, which are other names.
        assert_eq!(changes(&sync(&["--json", "-n"])).len(), OWNED.len(), "{way:?}");
        // Back by name, all of it at once: what is shared is made its own.
        sync(&["--atomic"]);
        owned(&target, to);
    }
}
