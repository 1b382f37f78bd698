//! Copies from and to pipes: what arrives is what went in, in order and verified;
//! what is cut short is told, stores nothing and leaves nothing behind. Nothing
//! but the file goes to standard output.

use crate::process::{Ended, Serve, Signal, contents, seen, wait_for, when};
use crate::{World, bytes, names};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use verbatim_tests::holding::Holding;
use verbatim_tests::output::{Output, Report};
use verbatim_tests::place::Place;
use verbatim_tests::proxy::{Direction, Harm, Kind, Proxy, Rule};

const GRAIN: usize = 256 << 10;
const CHUNK: usize = 1 << 20;

/// What a pipe holds.
const PIPE_BYTES: u64 = 64 << 10;

/// How long a command may take.
const COMMAND_MAX: Duration = Duration::from_secs(60);

/// `rdma-cp` with pipes at both its ends.
struct Piped(Child);

impl Piped {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("it starts"))
    }

    fn cp(serve: &Serve, arguments: &[&str]) -> Self {
        Self::start(serve.home().command("rdma-cp", arguments))
    }

    /// Gives it input to its end, on a thread, and takes all of its output.
    fn run(mut self, input: Vec<u8>) -> (Vec<u8>, Ended) {
        let mut stdin = self.0.stdin.take().expect("piped");
        // One that has ended takes no more.
        let giver = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let mut stdout = self.0.stdout.take().expect("piped");
        let taker = std::thread::spawn(move || {
            let mut output = Vec::new();
            stdout.read_to_end(&mut output).expect("reads");
            output
        });
        let ended = self.end();
        giver.join().expect("does not panic");
        (taker.join().expect("does not panic"), ended)
    }

    /// Takes so many bytes of its output, or all of them; none may be long in coming.
    fn take(&mut self, most: usize) -> Vec<u8> {
        let (taken, more) = self.take_until_quiet(most, COMMAND_MAX);
        assert!(!more || taken.len() == most, "nothing comes behind {} bytes", taken.len());
        taken
    }

    /// The same, until nothing came for this long; and whether there may be more.
    fn take_until_quiet(&mut self, most: usize, quiet: Duration) -> (Vec<u8>, bool) {
        let mut taken = Vec::new();
        let stdout = self.0.stdout.as_mut().expect("piped");
        let (tv_sec, tv_nsec) = (quiet.as_secs() as i64, quiet.subsec_nanos().into());
        let wait = Timespec { tv_sec, tv_nsec };
        let mut piece = vec![0; CHUNK];
        while taken.len() < most {
            if poll(&mut [PollFd::new(stdout, PollFlags::IN)], Some(&wait)) != Ok(1) {
                break;
            }
            let len = (most - taken.len()).min(CHUNK);
            match stdout.read(&mut piece[..len]).expect("reads") {
                0 => return (taken, false),
                got => taken.extend(&piece[..got]),
            }
        }
        (taken, true)
    }

    /// Waits for its end, with what it said.
    #[track_caller]
    fn end(&mut self) -> Ended {
        drop(self.0.stdin.take());
        let mut stderr = Output::of(self.0.stderr.take().expect("piped"));
        let status = wait_for("rdma-cp ends", COMMAND_MAX, || {
            let ended = self.0.try_wait().expect("ours");
            ended.ok_or_else(|| Report::of(&mut self.0, &[("stderr", &stderr)]))
        });
        Ended { code: status.code(), stdout: String::new(), stderr: stderr.all() }
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_tree_goes_through_tar_and_pipes_and_back() {
    let World { serve, dir } = World::new();
    let (from, to) = (dir.path().join("data"), dir.path().join("out"));
    let tar = Command::new("tar").arg("c").arg("-C").arg(&from).arg(".").output();
    let tar = tar.expect("tar runs").stdout;
    let up = Piped::cp(&serve, &["-", &serve.at("in/x.tar")]).run(tar.clone()).1.done();
    assert!(up.stderr.contains("1 file"), "{up:?}");
    assert!(fs::read(dir.path().join("in/x.tar")).unwrap() == tar);
    let mut down = Piped::cp(&serve, &[&serve.at("in/x.tar"), "-"]);
    let mut untar = Command::new("tar");
    untar.arg("x").arg("-C").arg(&to).stdin(down.0.stdout.take().expect("piped"));
    assert!(untar.status().expect("tar runs").success());
    let said = down.end().done();
    assert!(said.stderr.contains(&blake3::hash(&tar).to_string()), "{said:?}");
    let same = Command::new("diff").arg("-r").arg(&from).arg(&to).status();
    assert!(same.expect("diff runs").success(), "the trees differ");
}

#[test]
fn every_size_arrives_through_pipes_with_its_digest() {
    let World { serve, dir } = World::new();
    let around = [0, 1, GRAIN, CHUNK, 2 * CHUNK, 16 * CHUNK, 40 * CHUNK];
    let sizes = around.iter().flat_map(|&size| [size.wrapping_sub(1), size, size + 1]);
    for size in sizes.filter(|&size| size < 100 * CHUNK) {
        let content = bytes(size as u64, size);
        let arguments = ["--digest", "--stdin", &serve.at("in/x")];
        let (told, ended) = Piped::cp(&serve, &arguments).run(content.clone());
        ended.done();
        let digest = format!("{}  -\n", blake3::hash(&content));
        assert_eq!(String::from_utf8_lossy(&told), digest, "{size} bytes, up");
        assert!(fs::read(dir.path().join("in/x")).unwrap() == content, "{size} bytes, up");
        let (output, ended) = Piped::cp(&serve, &[&serve.at("in/x"), "-"]).run(Vec::new());
        ended.done();
        assert!(output == content, "{size} bytes, down: {} came", output.len());
    }
    assert_eq!(names(&dir.path().join("in")), ["x"], "something is left behind");
}

#[test]
fn zeros_are_neither_lost_at_the_end_of_a_stream_nor_moved_out_of_a_hole() {
    let World { serve, dir } = World::new();
    let mut content = bytes(1, 3 * GRAIN);
    content.resize(5 * CHUNK + 7, 0);
    Piped::cp(&serve, &["-", &serve.at("in/x")]).run(content.clone()).1.done();
    let stored = dir.path().join("in/x");
    assert!(fs::read(&stored).unwrap() == content);
    assert!(fs::metadata(&stored).unwrap().blocks() * 512 < 2 * CHUNK as u64, "zeros are stored");
    let hole = fs::File::create(dir.path().join("data/hole")).unwrap();
    hole.set_len(100 << 20).unwrap();
    let (output, ended) = Piped::cp(&serve, &[&serve.at("data/hole"), "-"]).run(Vec::new());
    let said = ended.done().stderr;
    assert!(output == vec![0; 100 << 20], "{} bytes came", output.len());
    assert!(said.contains("were holes"), "{said}");
}

#[test]
fn an_input_that_takes_its_time_is_waited_for() {
    let World { serve, dir } = World::new();
    let mut copy = Piped::cp(&serve, &["--timeout", "2", "-", &serve.at("in/x")]);
    let mut stdin = copy.0.stdin.take().unwrap();
    let part = bytes(2, CHUNK + 5);
    // Longer than the peer may be silent, before the first byte and between others.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(2500));
        stdin.write_all(&part).unwrap();
    }
    drop(stdin);
    copy.end().done();
    assert!(fs::read(dir.path().join("in/x")).unwrap() == part.repeat(3));
}

#[test]
fn a_reader_that_takes_its_time_is_waited_for() {
    let World { serve, dir } = World::new();
    let content = bytes(3, 64 * CHUNK);
    fs::write(dir.path().join("data/x"), &content).unwrap();
    let mut copy = Piped::cp(&serve, &["--timeout", "2", &serve.at("data/x"), "-"]);
    let mut output = Vec::new();
    let mut stdout = copy.0.stdout.take().unwrap();
    std::thread::sleep(Duration::from_secs(4));
    // What waits to be taken is bounded, and most of the file has not come.
    let kib = Holding::of(copy.0.id()).anonymous_kib;
    assert!(kib < 64 << 10, "it holds {kib} KiB");
    stdout.read_to_end(&mut output).unwrap();
    copy.end().done();
    assert!(output == content);
}

/// Does something with copies that end badly, and waits until the server has given back what
/// they had.
fn leaving_nothing(serve: &Serve, copies: impl FnOnce()) {
    let before = Holding::of(serve.id());
    copies();
    before.comes_back(serve);
}

/// Waits until the server has removed what there was of an upload.
#[track_caller]
fn wait_for_nothing_in(folder: &Path) {
    let what = format!("nothing is left in {}", folder.display());
    wait_for(&what, COMMAND_MAX, || seen(names(folder).is_empty(), contents(folder)));
}

/// A file so long that its copy is cut in the middle.
fn long(dir: &Path) -> Vec<u8> {
    let content = bytes(4, 64 * CHUNK);
    fs::write(dir.join("data/long"), &content).expect("a file");
    content
}

#[test]
fn a_reader_that_closes_early_ends_the_copy_with_an_error() {
    let World { serve, dir } = World::new();
    let content = long(dir.path());
    leaving_nothing(&serve, || {
        let mut copy = Piped::cp(&serve, &[&serve.at("data/long"), "-"]);
        let mut head = Command::new("head");
        head.args(["-c", "1000"]).stdin(copy.0.stdout.take().unwrap());
        let read = head.output().expect("head runs").stdout;
        // It still has the pipe, after its process is gone.
        drop(head);
        assert!(read == content[..1000]);
        let ended = copy.end().refused(1, &["data/long", "its reader closed it"]);
        assert!(!ended.stderr.contains("anew"), "nobody wants it anew: {ended:?}");
        // The server is none the worse for it.
        let (output, ended) = Piped::cp(&serve, &[&serve.at("data/long"), "-"]).run(Vec::new());
        ended.done();
        assert!(output == content);
    });
}

/// One with a hole, and so old that its version can be told from the next.
fn long_and_settled(path: &Path) -> Vec<u8> {
    let (head, tail) = (bytes(6, 40 * CHUNK), bytes(7, 40 * CHUNK + 5));
    let file = fs::File::create(path).expect("a file");
    file.write_all_at(&head, 0).expect("writes");
    file.write_all_at(&tail, 48 * CHUNK as u64).expect("writes");
    std::thread::sleep(Duration::from_millis(2100));
    [head, vec![0; 8 * CHUNK], tail].concat()
}

/// Begins to copy such a file through a pipe, takes some of it, and kills its server.
fn orphaned(timeout: &str) -> (Place, Piped, Vec<u8>, Vec<u8>) {
    let (place, serve) = Place::new();
    let content = long_and_settled(&place.path("data/long"));
    let source = serve.at("data/long");
    let mut command = serve.home().command("rdma-cp", &["--timeout", timeout, &source, "-"]);
    command.env("RUST_LOG", "info");
    let mut copy = Piped::start(command);
    let taken = copy.take(3 * CHUNK);
    // It is in the middle of the next chunk then.
    let stdout = copy.0.stdout.as_ref().expect("piped");
    wait_for(&format!("{PIPE_BYTES} bytes wait in the pipe"), COMMAND_MAX, || {
        when(ioctl_fionread(stdout).expect("a pipe"), |bytes| *bytes >= PIPE_BYTES)
    });
    place.kill(serve);
    (place, copy, content, taken)
}

#[test]
fn a_server_that_is_killed_and_restarted_does_not_end_a_copy_to_a_pipe() {
    let (place, mut copy, content, mut taken) = orphaned("30");
    std::thread::sleep(Duration::from_millis(300));
    let serve = place.serve();
    // From before the hole to behind its beginning.
    taken.extend(copy.take(40 * CHUNK));
    place.kill(serve);
    let _serve = place.serve();
    taken.extend(copy.take(usize::MAX));
    let said = copy.end().done().stderr;
    assert!(taken == content, "{} of {} bytes came", taken.len(), content.len());
    assert!(said.contains(&blake3::hash(&content).to_string()), "{said}");
    for often in ["trying again", "copy resumed"] {
        assert!(said.matches(often).count() >= 2, "{said}");
    }
}

#[test]
fn a_reader_that_takes_its_time_does_not_use_up_what_a_lost_server_has() {
    let (place, serve) = Place::in_memory();
    let content = long_and_settled(&place.path("data/long"));
    // In which a server is back also on a machine that is busy.
    let mut copy = Piped::cp(&serve, &["--timeout", "15", &serve.at("data/long"), "-"]);
    let mut taken = copy.take(CHUNK);
    std::thread::sleep(Duration::from_secs(17));
    place.kill(serve);
    let _serve = place.serve();
    taken.extend(copy.take(usize::MAX));
    copy.end().done();
    assert!(taken == content, "{} of {} bytes came", taken.len(), content.len());
}

#[test]
fn a_reader_that_closes_while_the_server_is_away_ends_the_copy() {
    for takes_all in [false, true] {
        let (_place, mut copy, ..) = orphaned("300");
        if takes_all {
            // Then nothing waits to be written that would tell.
            let (_, more) = copy.take_until_quiet(usize::MAX, Duration::from_secs(1));
            assert!(more, "it has ended");
        }
        drop(copy.0.stdout.take());
        copy.end().refused(1, &["data/long", "its reader closed it"]);
    }
}

#[test]
fn an_interrupt_ends_a_copy_whose_server_stopped_and_whose_reader_does_not_read() {
    let (place, serve) = Place::new();
    // All of it is fetched, whether or not somebody takes it.
    fs::write(place.path("data/short"), bytes(8, 8 * CHUNK)).unwrap();
    let source = serve.at("data/short");
    let mut copy = Piped::cp(&serve, &["--bwlimit=4M", &source, "-"]);
    copy.take(CHUNK);
    // It waits for the copy, and both have the end of it at once.
    serve.signal(Signal::TERM);
    assert_eq!(serve.end(), Some(0), "it stops when the file is closed");
    let id = rustix::process::Pid::from_raw(copy.0.id() as i32).unwrap();
    rustix::process::kill_process(id, Signal::INT).unwrap();
    copy.end().refused(130, &["interrupted"]);
}

#[test]
fn a_copy_to_a_pipe_does_not_go_on_with_another_version_or_without_a_server() {
    for comes_back in [true, false] {
        let (place, mut copy, content, mut taken) = orphaned("3");
        let serve = comes_back.then(|| {
            fs::write(place.path("data/long"), &content[1..]).unwrap();
            place.serve()
        });
        taken.extend(copy.take(usize::MAX));
        let cause = if comes_back { "changed since" } else { "tried again for 3 s" };
        let code = if comes_back { 1 } else { 3 };
        copy.end().refused(code, &["data/long", cause, "what went through the pipe is not all"]);
        assert!(taken.len() < content.len() && content.starts_with(&taken));
        drop(serve);
    }
}

#[test]
fn a_server_that_dies_stores_nothing_of_a_pipe_and_ends_what_has_no_version_yet() {
    let World { serve, dir } = World::new();
    let content = long(dir.path());
    let landing = dir.path().join("in");
    let mut up = Piped::cp(&serve, &["--timeout", "2", "-", &serve.at("in/x")]);
    let mut stdin = up.0.stdin.take().unwrap();
    stdin.write_all(&content[..20 * CHUNK]).unwrap();
    let mut down = Piped::cp(&serve, &["--timeout", "2", &serve.at("data/long"), "-"]);
    let mut first = vec![0; 1000];
    down.0.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    wait_for("the server has a partial file of the upload", COMMAND_MAX, || {
        seen(!names(&landing).is_empty(), contents(&landing))
    });
    serve.signal(Signal::KILL);
    drop(serve);
    down.end().refused(3, &["data/long", "what went through the pipe is not all of it"]);
    up.end().refused(3, &["standard input", "a pipe cannot be read again"]);
    drop(stdin);
    assert!(!landing.join("x").exists(), "a partial file has the final name");
}

#[test]
fn a_client_that_dies_or_is_interrupted_stores_nothing() {
    let World { serve, dir } = World::new();
    let landing = dir.path().join("in");
    leaving_nothing(&serve, || {
        for signal in [Signal::KILL, Signal::INT] {
            let mut copy = Piped::cp(&serve, &["-", &serve.at("in/x")]);
            let mut stdin = copy.0.stdin.take().unwrap();
            stdin.write_all(&bytes(5, 3 * CHUNK)).unwrap();
            wait_for("the server has a partial file of the upload", COMMAND_MAX, || {
                let begun = !names(&landing).is_empty();
                seen(begun, (contents(&landing), Report::of(&mut copy.0, &[])))
            });
            let id = rustix::process::Pid::from_raw(copy.0.id() as i32).unwrap();
            rustix::process::kill_process(id, signal).unwrap();
            let ended = copy.end();
            assert_eq!(ended.code, (signal == Signal::INT).then_some(130), "{ended:?}");
            // It waited for input, and the rest of that goes nowhere.
            drop(stdin);
            wait_for_nothing_in(&landing);
        }
    });
}

#[test]
fn an_interrupt_ends_a_copy_whose_reader_does_not_read() {
    let World { serve, dir } = World::new();
    long(dir.path());
    leaving_nothing(&serve, || {
        let mut copy = Piped::cp(&serve, &[&serve.at("data/long"), "-"]);
        let mut first = vec![0; 1000];
        copy.0.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        let id = rustix::process::Pid::from_raw(copy.0.id() as i32).unwrap();
        rustix::process::kill_process(id, Signal::INT).unwrap();
        copy.end().refused(130, &["interrupted"]);
    });
}

#[test]
fn an_input_that_cannot_be_read_stores_nothing() {
    let World { serve, dir } = World::new();
    leaving_nothing(&serve, || {
        let mut command = serve.home().command("rdma-cp", &["-", &serve.at("in/x")]);
        // A folder opens, and does not read.
        command
            .stdin(fs::File::open(dir.path()).unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut copy = Piped(command.spawn().unwrap());
        copy.end().refused(1, &["cannot read standard input", "nothing is stored"]);
        wait_for_nothing_in(&dir.path().join("in"));
    });
}

/// Copies a file to a pipe through a proxy; returns what came out and how it ended.
fn through(serve: &Serve, rule: Rule) -> (Vec<u8>, Ended, u64) {
    let proxy = Proxy::start(serve.address.port(), &[rule]);
    let source = format!("rdma://127.0.0.1:{}/data/long", proxy.port());
    let known = proxy.known(serve.home());
    let known = known.iter().map(String::as_str).collect::<Vec<_>>();
    let copy = Piped::cp(serve, &[&known[..], &["--timeout", "20", &source, "-"]].concat());
    let (output, ended) = copy.run(Vec::new());
    (output, ended, proxy.counts().flips)
}

#[test]
fn a_flipped_bit_never_reaches_the_output() {
    let World { serve, dir } = World::new();
    let content = long(dir.path());
    leaving_nothing(&serve, || {
        let seldom = Rule::all(Kind::Data, Direction::Down, Harm::FlipEvery((12 << 20) + 1));
        let (output, ended, flips) = through(&serve, seldom);
        ended.done();
        assert!(flips > 0, "no bit was flipped");
        assert!(output == content, "{} bytes came", output.len());
        // Where every chunk is harmed nothing is right, and nothing is written.
        let always = Rule::all(Kind::Data, Direction::Down, Harm::FlipEvery(200_000));
        let (output, ended, _) = through(&serve, always);
        ended.refused(4, &["data/long", "does not match", "not all of it"]);
        assert!(output.is_empty(), "{} bytes came", output.len());
    });
}

#[test]
fn what_makes_no_sense_with_a_pipe_is_bad_usage_and_prints_no_data() {
    let World { serve, dir } = World::new();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["--json", &serve.at("data/a.bin"), "-"], 2, "--json and --digest print"),
        (&["--digest", &serve.at("data/a.bin"), "-"], 2, "--json and --digest print"),
        (&["-", &serve.at("in")], 2, "it is a folder"),
        (&["-", &serve.at("in/new/")], 2, "it is a folder"),
        (&["-", "also", &serve.at("in/x")], 2, "copied alone"),
        (&[&serve.at("data/a.bin"), &serve.at("data/b.bin"), "-"], 2, "takes one file"),
        (&[&serve.at("data/sub"), "-"], 1, "it is a folder"),
    ];
    for (arguments, code, said) in cases {
        let (output, ended) = Piped::cp(&serve, arguments).run(Vec::new());
        assert_eq!(output, b"", "{arguments:?}");
        ended.refused(code, &[said]);
    }
    assert_eq!(names(&dir.path().join("in")), [""; 0]);
}
