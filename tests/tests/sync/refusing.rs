//! What a mirror refuses, and what it says: places that make no sense, a target
//! that somebody else is at, and what cannot be reached.

use crate::process::{Running, seen, wait_for};
use crate::{BOTH, Way, World, text, tree, write};
use std::fs;

fn run(world: &World, arguments: &[&str]) -> crate::process::Ended {
    Running::start(world.home.command("rdma-sync", arguments)).end()
}

#[test]
fn places_that_make_no_sense_are_refused() {
    let world = World::new();
    let (src, out) = (world.serve.at("src"), text(&world.path("out")));
    run(&world, &[&src, &world.serve.at("in")]).refused(2, &["both remote"]);
    run(&world, &[&out, &out]).refused(2, &["neither"]);
    run(&world, &[&world.serve.at(""), &out]).refused(2, &["names no export"]);
    run(&world, &[&world.serve.at("src/none"), &out]).refused(1, &["there is no"]);
    run(&world, &["-", &src]).refused(2, &["pipe"]);
    write(world.path("src/file"), b"");
    run(&world, &[&world.serve.at("src/file"), &out]).refused(1, &["rdma-cp copies a file"]);
    write(world.path("out/file"), b"");
    run(&world, &[&src, &text(&world.path("out/file"))]).refused(1, &["rdma-cp copies a file"]);
    run(&world, &[&out, &world.serve.at("src/x")]).refused(1, &["read-only"]);
    run(&world, &[&src, &out, "--max-delete", "5"]).refused(2, &["--delete"]);
    run(&world, &[&src, &out, "--delete", "--max-delete", "x"]).refused(2, &["neither a number"]);
    assert_eq!(fs::read_dir(world.path("src")).expect("lists").count(), 1, "nothing was made");
}

#[test]
fn a_target_in_its_source_is_left_out_and_a_source_in_its_target_is_refused() {
    let world = World::new();
    write(world.path("src/a/b"), b"1");
    write(world.path("in/a/b"), b"1");
    let (src, inside) = (world.serve.at("src"), text(&world.path("src/a/copy")));
    run(&world, &[&src, &inside]).refused(1, &["it is the target, which lies in the source"]);
    assert!(world.path("src/a/copy/a/b").exists(), "the rest is done");
    assert!(!world.path("src/a/copy/a/copy").exists());
    let up = [text(&world.path("in")), world.serve.at("in/a/copy")];
    run(&world, &[&up[0], &up[1]]).refused(1, &["it is the target, which lies in the source"]);
    assert!(world.path("in/a/copy/a/b").exists() && !world.path("in/a/copy/a/copy").exists());
    run(&world, &[&world.serve.at("src/a"), &text(&world.path("src")), "--delete"])
        .refused(2, &["the source lies in the target"]);
    run(&world, &[&text(&world.path("in/a")), &world.serve.at("in"), "--delete"])
        .refused(2, &["the source lies in the target"]);
    run(&world, &[&src, &text(&world.path("src"))]).refused(2, &["the same folder"]);
}

#[test]
fn a_second_run_says_who_has_the_target() {
    for way in BOTH {
        let world = World::new();
        write(world.source().join("large"), &tree::content(1, 8 << 20));
        let mut first = world.start(way, &["--bwlimit", "1M"]);
        let what = "the first rdma-sync has a partial file";
        wait_for(what, std::time::Duration::from_secs(20), || {
            first.assert_runs(&format!("{way:?}: it ended early"));
            let parts = tree::parts(&world.path("."));
            seen(!parts.is_empty(), (tree::walk(&world.path(".")), first.report()))
        });
        let ended = world.sync(way, &[]).refused(1, &["is being synchronised by"]);
        let who = match way {
            Way::Down => format!("process {} (rdma-sync)", first.id()),
            Way::Up => "client ".to_owned(),
        };
        assert!(ended.stderr.contains(&who), "{ended:?}");
        drop(first);
        world.sync(way, &[]).done();
        tree::assert_same_content(&world.source(), &world.target(way));
    }
}

#[test]
fn special_files_are_named_and_no_failure() {
    for way in BOTH {
        let world = World::new();
        let fifo = world.source().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .expect("a fifo");
        write(world.source().join("file"), b"1");
        let ended = world.sync(way, &[]).done();
        assert!(ended.stderr.contains("fifo: it is not a regular file"), "{ended:?}");
        assert!(world.target(way).join("file").exists());
    }
}
