//! The page for people, as a browser shows it: it loads, moves while a copy runs,
//! shows a device that fails, asks nobody else for anything, and has nothing to
//! complain of. `VERBATIM_PICTURES=DIR` keeps pictures of it there.

use crate::browser::Browser;
use crate::{Watched, has};
use std::os::unix::fs::FileExt;
use verbatim_tests::process::Running;

/// A name that would be markup, if the page were careless.
const NASTY: &str = "<img src=x onerror=alert(1)>.bin";

#[test]
fn the_page_shows_a_copy_and_a_device_that_fails() {
    if !has("the_page_shows_a_copy_and_a_device_that_fails", "chromium") {
        return;
    }
    let mut watched = Watched::start();
    watched.make("data/checkpoint-1200.safetensors", 96 << 20);
    watched.make(&format!("data/{NASTY}"), 24 << 20);
    let mut browser = Browser::start();
    browser.size(1000, 1400);
    browser.open(&format!("http://{}/", watched.metrics));
    browser.wait_for_text("nobody is connected");
    browser.wait_for_text("port 1 of mlx5_1 is DOWN");
    browser.wait_for_text("check the cable");
    // What the doctor found when the server began, and what mends it.
    browser.wait_for_text("mlx5_0: /dev/infiniband/uverbs* is not there");
    browser.wait_for_text("fix: run: modprobe ib_uverbs");
    assert_eq!(browser.value("document.querySelectorAll('.device').length"), 2);

    let start = |arguments: [&str; 4]| {
        let mut command = watched.home.command("rdma-cp", &arguments);
        command.arg("-q");
        Running::start(command)
    };
    let (out, there) = (watched.text("out"), watched.at("in/upload.bin"));
    let from = watched.at("data/checkpoint-1200.safetensors");
    let down = start(["--bwlimit", "2M", &from, &out]);
    let nasty_here = watched.text(&format!("data/{NASTY}"));
    let up = start(["--bwlimit", "1M", &nasty_here, &there]);
    let percent = "parseInt([...document.querySelectorAll('.file')].find(of => \
                   of.innerText.includes('checkpoint-1200')).querySelector('.percent').innerText)";
    let moving = format!("(() => {{ try {{ return {percent} > 0 }} catch {{ return false }} }})()");
    browser.wait_until("the page shows more than 0 % of the download", &moving);
    let before = browser.value(percent).as_i64().expect("a number");
    let what = format!("the page shows more than {before} % of the download");
    browser.wait_until(&what, &format!("{percent} > {before}"));
    browser.wait_until(
        "the page plots a rate of TCP",
        "document.querySelector('[data-of=tcp]').getAttribute('points').split(' ')\
         .some(point => parseFloat(point.split(',')[1]) < 100)",
    );
    let mirror = mirror_changed(&watched);
    browser.wait_for_text("MiB were there");
    let refused = watched.home.cp(&[&nasty_here, &watched.at("data/new")]);
    refused.refused(1, &["read-only"]);
    browser.wait_for_text("hint: export it with :rw");
    keep("page", &mut browser);
    let nasty = start(["--bwlimit", "1M", &nasty_here, &watched.at("in")]);
    browser.wait_for_text(NASTY);
    assert_eq!(browser.value("document.querySelectorAll('main img').length"), 0, "it is markup");

    watched.set_port("mlx5_0", "1: DOWN", "400 Gb/sec (4X NDR)");
    browser.wait_for_text("port 1 of mlx5_0 is DOWN");

    let back = "getComputedStyle(document.body).backgroundColor";
    let light = browser.value(back);
    browser.prefer("dark");
    assert_ne!(browser.value(back), light, "dark is as light");
    browser.size(390, 844);
    assert_eq!(browser.value("document.documentElement.scrollWidth <= 390"), true, "too wide");
    keep("phone", &mut browser);

    let ours = format!("http://{}/", watched.metrics);
    let is_foreign = |url: &&String| !url.starts_with(&ours) && !url.starts_with("data:");
    let foreign: Vec<_> = browser.requests.iter().filter(is_foreign).collect();
    assert!(foreign.is_empty() && browser.requests.len() > 3, "{foreign:?}");
    assert_eq!(browser.complaints, [""; 0]);
    drop((down, up, nasty, mirror));
    watched.stop();
    browser.wait_for_text("no answer from the server");
}

/// Mirrors a file of which the server has most, slowly.
fn mirror_changed(watched: &Watched) -> Running {
    watched.make("in/shards/model.bin", 64 << 20);
    watched.make("out/shards/model.bin", 64 << 20);
    let file = watched.path("out/shards/model.bin");
    let file = std::fs::File::options().write(true).open(file).expect("opens");
    // At its end: what is there before it is found first.
    file.write_all_at(&vec![7; 40 << 20], 24 << 20).expect("writes");
    let ends = [watched.text("out/shards/"), watched.at("in/shards/")];
    let mut command = watched.home.command("rdma-sync", &["-q", "--bwlimit", "512K"]);
    command.args(ends);
    Running::start(command)
}

/// Keeps a picture, where pictures are wanted.
fn keep(name: &str, browser: &mut Browser) {
    let Some(folder) = std::env::var_os("VERBATIM_PICTURES") else { return };
    let base64 = std::path::Path::new(&folder).join(format!("{name}.png.base64"));
    std::fs::write(base64, browser.picture()).expect("the picture is written");
}
