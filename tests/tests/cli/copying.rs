//! What is copied where: files and folders, down and up, in every spelling of a
//! place, and what is refused before or while it is copied.

use crate::process::{Home, Serve, skip};
use crate::{World, assert_same, exports, make_samples, names, text};
use std::fs;
use std::sync::Arc;

#[test]
fn one_file_is_copied_down_and_up() {
    let world = World::new();
    world.serve.cp(&[world.serve.at("data/a.bin"), world.text("out/copy")]).done();
    assert_same(&world.path("data/a.bin"), &world.path("out/copy"));
    world.serve.cp(&[world.serve.at("data/a.bin"), world.text("out")]).done();
    assert_same(&world.path("data/a.bin"), &world.path("out/a.bin"));
    world.serve.cp(&[world.text("out/copy"), world.serve.at("in/up.bin")]).done();
    assert_same(&world.path("data/a.bin"), &world.path("in/up.bin"));
    world.serve.cp(&[world.text("out/copy"), world.serve.at("in")]).done();
    assert_same(&world.path("data/a.bin"), &world.path("in/copy"));
    assert_eq!(names(&world.path("out")), ["a.bin", "copy"]);
    assert_eq!(names(&world.path("in")), ["copy", "up.bin"]);
}

#[test]
fn a_copy_replaces_what_is_there() {
    let world = World::new();
    fs::write(world.path("out/b.bin"), b"something longer that was there").unwrap();
    world.serve.cp(&[world.serve.at("data/b.bin"), world.text("out")]).done();
    assert_eq!(fs::read(world.path("out/b.bin")).unwrap(), b"b");
}

#[test]
fn a_host_without_a_port_means_port_20490() {
    let dir = tempfile::tempdir().unwrap();
    make_samples(dir.path());
    // Every 127.x.y.z is this machine: one of our own, so that the port is free on it.
    let [_, x, y, z] = std::process::id().to_be_bytes();
    let host = format!("127.{}.{y}.{}", x.max(1), z.max(1));
    let home = Arc::new(Home::new());
    let serve = Serve::of(&home, &format!("{host}:20490"), &exports(dir.path()));
    let to = text(&dir.path().join("out"));
    serve.cp(&[&format!("{host}:/data/b.bin"), &to]).done();
    assert_same(&dir.path().join("data/b.bin"), &dir.path().join("out/b.bin"));
    serve.cp(&[&format!("rdma://{host}/data/a.bin"), &to]).done();
    assert_same(&dir.path().join("data/a.bin"), &dir.path().join("out/a.bin"));
}

#[test]
fn ipv6_addresses_are_written_in_brackets_both_ways() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip("ipv6_addresses_are_written_in_brackets_both_ways", "no ::1 here");
    }
    let dir = tempfile::tempdir().unwrap();
    make_samples(dir.path());
    let serve = Serve::of(&Arc::new(Home::new()), "[::1]:0", &exports(dir.path()));
    let (out, address) = (text(&dir.path().join("out")), serve.address.to_string());
    let done = serve.cp(&["--digest", &serve.at("data/b.bin"), &out]).done();
    assert_same(&dir.path().join("data/b.bin"), &dir.path().join("out/b.bin"));
    assert!(done.stdout.ends_with("/out/b.bin\n"), "{done:?}");
    let missing = serve.cp(&[&serve.at("data/none"), &out]);
    missing.refused(1, &["[::1]:/data/none"]);
    let here = text(&dir.path().join("data/b.bin"));
    serve.cp(&[&here, &serve.at("in/up")]).done();
    assert_same(&dir.path().join("data/b.bin"), &dir.path().join("in/up"));
    // Found wrong before, and found wrong while copying: the server has one name.
    let peer = format!("(server {address})");
    serve.cp(&[&serve.at("data/none"), &out]).refused(1, &[&peer]);
    serve.cp(&[&here, &serve.at("data/up")]).refused(1, &[&peer]);
}

#[test]
fn a_tree_is_copied_down_and_up() {
    let world = World::new();
    let files = ["a.bin", "b.bin", "sub/empty", "sub/deep/c.bin"];
    world.serve.cp(&["-r", &world.serve.at("data"), &world.text("out/new")]).done();
    world.serve.cp(&["-r", &world.text("out/new"), &world.serve.at("in/up")]).done();
    world.serve.cp(&["-r", &world.serve.at("data"), &world.text("out")]).done();
    for file in files {
        let original = world.path("data").join(file);
        assert_same(&original, &world.path("out/new").join(file));
        assert_same(&original, &world.path("in/up").join(file));
        assert_same(&original, &world.path("out/data").join(file));
    }
    assert_eq!(names(&world.path("in/up/sub")), ["deep", "empty"]);
}

#[test]
fn several_sources_go_into_a_folder() {
    let world = World::new();
    let (a, b) = (world.serve.at("data/a.bin"), world.serve.at("data/b.bin"));
    world.serve.cp(&[&a, &b, &world.text("out")]).done();
    assert_eq!(names(&world.path("out")), ["a.bin", "b.bin"]);
    let (a, b) = (world.text("out/a.bin"), world.text("out/b.bin"));
    world.serve.cp(&[&a, &b, &world.serve.at("in")]).done();
    assert_eq!(names(&world.path("in")), ["a.bin", "b.bin"]);
    assert_same(&world.path("data/a.bin"), &world.path("in/a.bin"));
}

#[test]
fn several_sources_into_a_missing_folder_are_refused() {
    let world = World::new();
    let (a, b) = (world.serve.at("data/a.bin"), world.serve.at("data/b.bin"));
    let said = ["the target folder does not exist", "hint: make the folder first"];
    world.serve.cp(&[&a, &b, &world.text("none")]).refused(2, &said);
    world.serve.cp(&[&a, &world.text("none/")]).refused(2, &said);
    let (a, b) = (world.text("data/a.bin"), world.text("data/b.bin"));
    world.serve.cp(&[&a, &b, &world.serve.at("in/none")]).refused(2, &said);
    world.serve.cp(&[&a, &world.serve.at("in/none/")]).refused(2, &said);
    assert!(!world.path("none").exists() && names(&world.path("in")).is_empty());
}

#[test]
fn a_folder_needs_the_flag() {
    let world = World::new();
    let said = ["it is a folder", "hint: copy folders with -r"];
    world.serve.cp(&[world.serve.at("data/sub"), world.text("out")]).refused(1, &said);
    world.serve.cp(&[world.text("data/sub"), world.serve.at("in")]).refused(1, &said);
    assert!(names(&world.path("out")).is_empty() && names(&world.path("in")).is_empty());
}

#[test]
fn one_side_and_only_one_is_remote() {
    let home = Home::new();
    let both = home.cp(&["h1:/data/a", "h2:/data/b"]);
    both.refused(2, &["source and target are both remote", "hint: run rdma-cp on one of the two"]);
    let none = home.cp(&["a.bin", "b.bin"]);
    none.refused(
        2,
        &["neither source nor target is remote", "hint: write the remote side as HOST"],
    );
    home.cp(&["h1:/data/a", "h2:/data/a", "here"]).refused(2, &["different machines", "hint: "]);
    home.cp(&["h1:/data/a"]).refused(2, &["a target is missing", "SOURCE... TARGET"]);
    home.cp(&["rdma://host:port/a", "b"]).refused(2, &["\"port\" is no port"]);
}

#[test]
fn dots_that_climb_are_refused() {
    let world = World::new();
    for path in ["data/../in", "data/sub/../../secret", "../etc/passwd"] {
        let from = world.serve.at(path);
        world.serve.cp(&[&from, &world.text("out")]).refused(2, &["not a location", ".."]);
        let up = world.serve.cp(&[&world.text("data/b.bin"), &from]);
        up.refused(2, &["not a location", ".."]);
    }
    assert!(names(&world.path("out")).is_empty());
}

#[test]
fn links_that_lead_out_of_an_export_are_refused() {
    let world = World::new();
    fs::write(world.path("secret"), b"secret").unwrap();
    std::os::unix::fs::symlink("../secret", world.path("data/escape")).unwrap();
    let ended = world.serve.cp(&[world.serve.at("data/escape"), world.text("out")]);
    ended.refused(1, &["leads out of its export", "hint: "]);
    assert!(names(&world.path("out")).is_empty());
}

#[test]
fn an_unknown_export_is_named() {
    let world = World::new();
    let down = world.serve.cp(&[world.serve.at("dta/a.bin"), world.text("out")]);
    down.refused(1, &["dta"]);
    let up = world.serve.cp(&[world.text("data/b.bin"), world.serve.at("dta/b.bin")]);
    up.refused(1, &["dta"]);
    world.serve.cp(&["--list", &world.serve.at("dta")]).refused(1, &["dta"]);
}

#[test]
fn a_missing_file_is_named_with_its_server() {
    let world = World::new();
    let server = world.serve.address.to_string();
    let down = world.serve.cp(&[world.serve.at("data/none.bin"), world.text("out")]);
    down.refused(1, &["data/none.bin", &server, "no such file"]);
    let up = world.serve.cp(&[world.text("none.bin"), world.serve.at("in")]);
    up.refused(1, &[&world.text("none.bin"), &server, "no such file"]);
    assert!(names(&world.path("out")).is_empty() && names(&world.path("in")).is_empty());
}

#[test]
fn what_can_be_copied_is_copied_although_something_is_missing() {
    let world = World::new();
    let (good, bad) = (world.serve.at("data/b.bin"), world.serve.at("data/none.bin"));
    let ended = world.serve.cp(&[&bad, &good, &world.text("out")]);
    ended.refused(1, &["data/none.bin", "1 file,", "1 not copied"]);
    assert_same(&world.path("data/b.bin"), &world.path("out/b.bin"));
}

#[test]
fn a_read_only_export_takes_no_upload() {
    let world = World::new();
    let ended = world.serve.cp(&[world.text("data/b.bin"), world.serve.at("data/new.bin")]);
    ended.refused(
        1,
        &["read-only", "hint: mount it rw, or export it with :rw", &world.text("data/b.bin")],
    );
    let ended = world.serve.cp(&["-r", &world.text("data/sub"), &world.serve.at("data/new")]);
    ended.refused(1, &["read-only", "hint: mount it rw, or export it with :rw"]);
    assert_eq!(names(&world.path("data")), ["a.bin", "b.bin", "sub"]);
}
