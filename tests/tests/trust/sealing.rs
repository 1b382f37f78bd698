//! Exports whose data moves encrypted only: nothing of it is seen on the way, and a
//! client that would rather have it plain gets nothing.

use crate::process::{Text, wait_for, when};
use crate::{FOLLOW_MAX, World};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use verbatim_fabric::tcp::{JOIN_MAGIC, SEALED_MAGIC};
use verbatim_proto::message::{LinkAnswer, LinkOffer, OpenFile, ReadReply, ReadRequest};
use verbatim_proto::{ClientMessage, Code, FileId, LinkId, ServerMessage, WirePath};
use verbatim_tests::frames;
use verbatim_tests::http::{get, series};
use verbatim_tests::proxy::{Direction, Harm, Kind, Proxy, Rule};
use verbatim_tests::raw::Raw;

const TOML: &str = r#"
[[export]]
name = "secret"
path = "DIR/in"
mode = "rw"
encryption = "required"

[[export]]
path = "DIR/data"
mode = "rw"
"#;

/// What is in every file here, over and over, and in nothing else.
const MARK: &[u8] = b"this sentence must not be seen on the way. ";

/// Where a server counts links over TCP.
const LINKS: &str = "rdma_serve_links{transport=\"tcp\"}";

/// Makes a large and a small file full of the mark.
fn marked(world: &World, folder: &str) {
    let large: Vec<u8> = MARK.iter().copied().cycle().take((3 << 20) + 17).collect();
    std::fs::write(world.path(&format!("{folder}/large")), &large).expect("a file");
    std::fs::write(world.path(&format!("{folder}/small")), &large[..999]).expect("a file");
}

/// Copies through a proxy that keeps what it passes on; returns the summary, and whether the
/// mark was seen.
fn copied(world: &World, token: &str, rules: &[Rule], from: &str, to: &str) -> (String, bool) {
    let proxy = Proxy::taped(world.serve.address.port(), rules);
    let place = |path: &str| match path.strip_prefix(':') {
        Some(path) => format!("rdma://127.0.0.1:{}/{path}", proxy.port()),
        None => world.text(path),
    };
    let ended = world.cp(token, &["--json", "-r", &place(from), &place(to)]).done();
    let tapes = proxy.tapes();
    assert!(tapes.iter().map(Vec::len).sum::<usize>() > 3 << 20, "it saw the copy");
    let seen = tapes.iter().any(|tape| tape.windows(MARK.len()).any(|bytes| bytes == MARK));
    (ended.stdout, seen)
}

#[test]
fn nothing_of_an_encrypted_export_is_seen_on_the_way() {
    let world = World::configured(TOML);
    let token = world.add("alice", &["--export", "*:rw"]);
    marked(&world, "in");
    marked(&world, "data");
    std::fs::create_dir(world.path("put")).unwrap();
    marked(&world, "put");
    let same = |one: &str, two: &str| {
        let read = |path: &str| std::fs::read(world.path(path)).unwrap();
        assert!(read(one) == read(two), "{one} and {two} differ");
    };
    // What is not encrypted is seen: the proxy looks at the right bytes.
    let (summary, seen) = copied(&world, &token, &[], ":data", "out/plain");
    assert!(seen && summary.contains("\"transport\":\"tcp\""), "{summary}");

    let (summary, seen) = copied(&world, &token, &[], ":secret", "out/down");
    assert!(!seen && summary.contains("\"transport\":\"tcp+tls\""), "{summary}");
    assert!(summary.contains("data of secret moves encrypted only"), "{summary}");
    same("in/large", "out/down/large");
    same("in/small", "out/down/small");

    let (summary, seen) = copied(&world, &token, &[], "put", ":secret/up");
    assert!(!seen && summary.contains("\"transport\":\"tcp+tls\""), "{summary}");
    same("put/large", "in/up/large");

    // A bit that somebody flips ends its link, and the copy is whole all the same.
    let flip = Rule::first(Kind::Data, Direction::Down, Harm::FlipEvery(300_000));
    let (summary, seen) = copied(&world, &token, &[flip], ":secret", "out/flipped");
    assert!(!seen && summary.contains("\"transport\":\"tcp+tls\""), "{summary}");
    same("in/large", "out/flipped/large");
}

fn attach(raw: &mut Raw, index: u16) -> LinkAnswer {
    let link = LinkId { index, epoch: 0 };
    raw.say(ClientMessage::Attach { link, offer: LinkOffer::Tcp });
    raw.hear("link", |message| match message {
        ServerMessage::Attached { answer, .. } => Some(answer.clone().expect("a link")),
        _ => None,
    })
}

fn open(raw: &mut Raw, file: u32, path: &str) -> Result<(), verbatim_proto::Fault> {
    let path = WirePath::parse(path.as_bytes()).expect("a path");
    let files = vec![OpenFile { file: FileId(file), path, have: Vec::new() }];
    raw.say(ClientMessage::Read(ReadRequest::Open { files }));
    raw.hear("file", |message| match message {
        ServerMessage::Read(ReadReply::Opened { files }) => Some(files[0].1.clone().map(|_| ())),
        _ => None,
    })
}

#[test]
fn a_client_that_wants_it_plain_gets_nothing() {
    let world = World::configured(TOML);
    marked(&world, "in");
    let options = world.options();
    // The secret of an encrypted link, brought in the clear, is worth nothing.
    let mut raw = Raw::connect(&options);
    let LinkAnswer::Sealed(answer) = attach(&mut raw, 0) else { panic!("it is plain") };
    let mut plain = TcpStream::connect(world.serve.address).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    plain.write_all(&[&JOIN_MAGIC[..], &answer.secret.0].concat()).unwrap();
    assert_eq!(plain.read(&mut [0; 1]).unwrap(), 0, "it was let in");
    // An export that may be plain first, a plain link, and then the other.
    let mut raw = Raw::connect(&options);
    open(&mut raw, 1, "data/small").unwrap();
    assert!(matches!(attach(&mut raw, 0), LinkAnswer::Tcp { .. }));
    let fault = open(&mut raw, 2, "secret/small").unwrap_err();
    assert_eq!(fault.code, Code::Denied);
    assert!(fault.text.contains("encrypted only"), "{fault}");
    // Once named, no other link is to be had.
    let mut raw = Raw::connect(&options);
    open(&mut raw, 1, "secret/small").unwrap();
    assert!(matches!(attach(&mut raw, 0), LinkAnswer::Sealed(_)));
}

#[test]
fn the_secret_of_a_link_lets_one_connection_in() {
    let world = World::configured(TOML);
    let mut raw = Raw::connect(&world.options());
    open(&mut raw, 1, "data/small").unwrap();
    let LinkAnswer::Tcp { secret } = attach(&mut raw, 0) else { panic!("it may be plain") };
    let bring = |secret: &[u8]| {
        let mut stream = TcpStream::connect(world.serve.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&[&JOIN_MAGIC[..], secret].concat()).unwrap();
        stream
    };
    let is_closed = |mut stream: TcpStream| {
        let read = stream.read(&mut [0; 1]);
        let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        read.as_ref().is_ok_and(|bytes| *bytes == 0) || read.as_ref().is_err_and(reset)
    };
    // Altered; and cut off.
    let mut altered = secret.0;
    altered[31] ^= 1;
    assert!(is_closed(bring(&altered)), "an altered secret was let in");
    let cut = bring(&secret.0[..31]);
    cut.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(is_closed(cut), "a part of a secret was let in");
    // As it is: once, and while that connection is there not again.
    let mut first = bring(&secret.0);
    wait_for("the server counts the connection as a link", FOLLOW_MAX, || {
        let metrics = world.serve.metrics.expect("it shows metrics");
        when(get(metrics, "/metrics").body, |text| series(text, LINKS) >= Some(1.0)).map_err(Text)
    });
    assert!(is_closed(bring(&secret.0)), "a secret was good twice");
    first.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let kind = first.read(&mut [0; 1]).expect_err("it stays").kind();
    assert_eq!(kind, std::io::ErrorKind::WouldBlock);
}

/// How long a server may take to hang up: what was not let in waits for nothing.
const HANG_UP_MAX: Duration = Duration::from_secs(20);

/// The protocol of data connections inside TLS.
const DATA_PROTOCOL: &[u8] = b"verbatim-data/1";

/// A data connection inside TLS, by hand.
struct Sealed {
    runtime: tokio::runtime::Runtime,
    stream: tokio_rustls::client::TlsStream<tokio::net::TcpStream>,
}

impl Sealed {
    /// Shakes hands, and says this secret, or a part of it.
    fn bring(world: &World, protocol: &[u8], secret: &[u8]) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stream = runtime.block_on(async {
            let mut stream = tokio::net::TcpStream::connect(world.serve.address).await?;
            stream.write_all(&SEALED_MAGIC).await?;
            let mut stream = frames::tls(stream, &[protocol]).await?;
            stream.write_all(secret).await?;
            stream.flush().await?;
            Ok::<_, std::io::Error>(stream)
        })?;
        Ok(Self { runtime, stream })
    }

    /// Says that nothing more comes.
    fn shut(&mut self) {
        self.runtime.block_on(self.stream.shutdown()).expect("it is open");
    }

    /// Whether the server hangs up within some time. It says nothing of its own on a link.
    fn is_closed_within(&mut self, limit: Duration) -> bool {
        self.runtime.block_on(async {
            let mut heard = [0; 1];
            match tokio::time::timeout(limit, self.stream.read(&mut heard)).await {
                Ok(Ok(bytes)) => {
                    assert_eq!(bytes, 0, "the server says something");
                    true
                }
                Ok(Err(_)) => true,
                Err(_) => false,
            }
        })
    }
}

/// Whether the server lets nobody in who brings this.
fn is_refused(world: &World, secret: &[u8]) -> bool {
    let brought = Sealed::bring(world, DATA_PROTOCOL, secret);
    brought.expect("a handshake").is_closed_within(HANG_UP_MAX)
}

#[test]
fn the_secret_of_a_sealed_link_lets_one_connection_in() {
    let world = World::configured(TOML);
    marked(&world, "in");
    let options = world.options();
    let mut raw = Raw::connect(&options);
    open(&mut raw, 1, "secret/small").unwrap();
    let sealed = |raw: &mut Raw, index| match attach(raw, index) {
        LinkAnswer::Sealed(answer) => answer.secret.0,
        other => panic!("it is not sealed: {other:?}"),
    };
    // Altered; and cut off.
    let secret = sealed(&mut raw, 0);
    let mut altered = secret;
    altered[31] ^= 1;
    assert!(is_refused(&world, &altered), "an altered secret was let in");
    let mut cut = Sealed::bring(&world, DATA_PROTOCOL, &secret[..31]).unwrap();
    cut.shut();
    assert!(cut.is_closed_within(HANG_UP_MAX), "a part of a secret was let in");
    // In a session of another protocol: neither end takes one for the other.
    let control = Sealed::bring(&world, b"verbatim/5", &secret);
    assert!(control.is_err(), "a data connection may speak as control");
    // That of a plain link of another session, inside TLS.
    let mut other = Raw::connect(&options);
    open(&mut other, 1, "data/small").unwrap();
    let LinkAnswer::Tcp { secret: plain } = attach(&mut other, 0) else { panic!("it is sealed") };
    assert!(is_refused(&world, &plain.0), "the secret of a plain link was let in");
    // That of a link which was asked for anew since.
    let older = sealed(&mut raw, 1);
    let link = LinkId { index: 1, epoch: 1 };
    raw.say(ClientMessage::Attach { link, offer: LinkOffer::Tcp });
    raw.hear("link", |message| matches!(message, ServerMessage::Attached { .. }).then_some(()));
    assert!(is_refused(&world, &older), "the secret of an older link was let in");
    // As it is: once, and while that connection is there not again.
    let mut first = Sealed::bring(&world, DATA_PROTOCOL, &secret).unwrap();
    let links = || get(world.serve.metrics.expect("it shows metrics"), "/metrics").body;
    wait_for("the server counts the connection as a link", FOLLOW_MAX, || {
        when(links(), |text| series(text, LINKS) >= Some(1.0)).map_err(Text)
    });
    assert!(is_refused(&world, &secret), "a secret was good twice");
    assert!(!first.is_closed_within(Duration::from_millis(100)), "it does not stay");
    // Of a session that has ended, whose link ends with it.
    let left = sealed(&mut raw, 2);
    raw.say(ClientMessage::Bye);
    assert!(first.is_closed_within(HANG_UP_MAX), "a link outlives its session");
    assert!(is_refused(&world, &left), "the secret of a session that ended was let in");
}
