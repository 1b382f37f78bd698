//! A copy to standard output over a real device: its server is killed and comes back,
//! and what went through is neither lost nor there twice.

use super::{BEGIN_MAX, BIG_BYTES, SLOWLY};
use std::fs::{self, File};
use std::process::{Child, Stdio};
use std::time::Duration;
use verbatim_tests::output::Report;
use verbatim_tests::place::Place;
use verbatim_tests::process::{Text, wait_for, when};
use verbatim_tests::tree;

/// How long the rest of the copy may take, and a server to come back.
const END_MAX: Duration = Duration::from_secs(60);

/// A process that does not outlive its test.
struct Ours(Child);

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_copy_to_a_pipe_goes_on_over_verbs_when_its_server_restarts() {
    let (place, serve) = Place::in_memory();
    let content = tree::content(1, BIG_BYTES);
    tree::write(&place.path("data/big"), &content);
    // Until its version can be told from the next.
    std::thread::sleep(Duration::from_millis(2100));
    let [out, said] = ["out/big", "out/said"].map(|name| place.path(name));
    let mut command = place.home.command("rdma-cp", &[SLOWLY, &serve.at("data/big"), "-"]);
    command.stdout(File::create(&out).expect("a file"));
    command.stderr(File::create(&said).expect("a file")).stdin(Stdio::null());
    let mut copy = Ours(command.spawn().expect("it starts"));
    let came = || fs::metadata(&out).map_or(0, |out| out.len());
    wait_for("more than 4 MiB came out of the pipe", BEGIN_MAX, || {
        let said = fs::read_to_string(&said).unwrap_or_default();
        when(came(), |bytes| *bytes > 4 << 20).map_err(|bytes| (bytes, Text(said)))
    });
    place.kill(serve);
    let before = came();
    let _serve = place.serve();
    let status = wait_for("rdma-cp ends", END_MAX, || {
        let said = fs::read_to_string(&said).unwrap_or_default();
        let ended = copy.0.try_wait().expect("ours");
        ended.ok_or_else(|| (came(), Text(said), Report::of(&mut copy.0, &[])))
    });
    let said = fs::read_to_string(&said).expect("reads");
    assert!(status.success() && before < content.len() as u64, "{before} bytes came; {said}");
    assert!(fs::read(&out).expect("reads") == content, "{} bytes came", came());
    assert!(said.contains("trying again") && said.contains("verbs "), "{said}");
    assert!(!said.contains("tcp"), "{said}");
}
