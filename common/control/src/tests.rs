//! Both ends together: who comes in, who is refused, and in which words. The
//! greeting runs over an in-memory pipe where it can, over loopback where the
//! address matters.

use crate::{
    Accepted, Acceptor, AuthorizedKeys, ClientKey, ConnectOptions, Connection, ControlError,
    Distrust, Fingerprint, KnownServers, LocalDoor, Policy, Receiver, Sender, ServerIdentity,
    Trust, Voucher, Who, check_listen, connect,
    connect::{Greeted, greet},
    tls,
    trust::Witness,
};
use crate::{CertificateFiles, connect::Own};
use rustls::pki_types::ServerName;
use std::{path::Path, sync::Arc, time::Duration};
use tempfile::TempDir;
use tokio::{
    io::{AsyncWriteExt, DuplexStream, duplex},
    net::TcpListener,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use verbatim_proto::{
    ClientMessage, Code, Look, ServerMessage, WirePath,
    message::{Hello, Proof, VERSIONS, Welcome},
    units::{CHUNK_BYTES_DEFAULT, GREETING_BYTES_MAX},
};

const PEER: &str = "host7:20490";

/// A server's identity with the folder it lives in.
struct World {
    dir: TempDir,
    identity: ServerIdentity,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let identity = ServerIdentity::load_or_create(dir.path()).unwrap();
        Self { dir, identity }
    }

    fn acceptor(&self, policy: Policy) -> Acceptor {
        Acceptor::new(&self.identity, policy).unwrap()
    }

    /// Trusts this server, as if the user had given its fingerprint.
    fn pinned(&self) -> Trust {
        let pin = Some((self.identity.fingerprint(), Voucher::Given));
        Trust { pin, ..strangers(self.dir.path(), false) }
    }

    /// Options that vouch for nothing.
    fn options(&self, port: u16) -> ConnectOptions {
        ConnectOptions {
            host: "127.0.0.1".into(),
            port,
            state_dir: self.dir.path().into(),
            config_dir: self.dir.path().join("config"),
            key: None,
            fingerprint: None,
            trust_on_first_use: false,
            certificates: CertificateFiles::default(),
            agent: "test 1".into(),
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            timeout: Duration::from_secs(20),
        }
    }
}

fn strangers(config: &Path, trust_on_first_use: bool) -> Trust {
    Trust { pin: None, trust_on_first_use, known: KnownServers::in_dir(config), authority: None }
}

fn knows(name: &str, key: &ClientKey) -> Policy {
    let mut authorized = AuthorizedKeys::default();
    authorized.insert(name, key.public());
    Policy { authorized, ..Policy::default() }
}

fn anyone() -> Policy {
    Policy { allow_anonymous: true, ..Policy::default() }
}

fn welcome() -> Welcome {
    Welcome { agent: "server 1".into(), session: 7, links_max: 4 }
}

/// Accepts one client and welcomes it.
async fn serve<S>(acceptor: &Acceptor, stream: S) -> Result<Accepted, ControlError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let mut accepted = acceptor.accept(stream).await?;
    accepted.sender.send(&ServerMessage::Welcome(welcome())).await?;
    accepted.sender.flush().await?;
    Ok(accepted)
}

/// Lets one client meet one server over a pipe; returns what each got.
async fn meet(
    acceptor: &Acceptor,
    trust: &Trust,
    key: Option<&ClientKey>,
) -> (Result<Greeted, ControlError>, Result<Accepted, ControlError>) {
    let (near, far) = duplex(1 << 16);
    let hello = ("test 1".to_owned(), CHUNK_BYTES_DEFAULT);
    tokio::join!(greet(near, PEER, trust, Own { key, shown: None }, hello), serve(acceptor, far))
}

/// Lets `connect` meet one server over loopback.
async fn meet_tcp(
    acceptor: &Acceptor,
    listener: &TcpListener,
    options: &ConnectOptions,
) -> (Result<Connection, ControlError>, Result<Accepted, ControlError>) {
    let accept = async { serve(acceptor, listener.accept().await.unwrap().0).await };
    tokio::join!(connect(options), accept)
}

/// A client's TLS over a pipe, made by hand, for clients that misbehave after it.
async fn tls_by_hand(
    near: DuplexStream,
    server: Fingerprint,
) -> tokio_rustls::client::TlsStream<DuplexStream> {
    let config = tls::client_config(Witness::new(Some(server), None), None).unwrap();
    let name = ServerName::try_from("verbatim").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, near).await.unwrap()
}

fn fault_text(error: &ControlError, code: Code) -> String {
    match error {
        ControlError::Refused(fault) if fault.code == code => fault.text.clone(),
        other => panic!("not refused as {code:?}: {other}"),
    }
}

#[tokio::test]
async fn an_authorized_key_comes_in_and_both_ends_talk() {
    let (world, key) = (World::new(), ClientKey::generate().unwrap());
    let acceptor = world.acceptor(knows("alice", &key));
    let (client, server) = meet(&acceptor, &world.pinned(), Some(&key)).await;
    let (mut sender, mut receiver, welcomed, (print, request, version)) = client.unwrap();
    let mut accepted = server.unwrap();
    assert!(matches!(&accepted.who, Who::Key(name, _) if name == "alice"), "{:?}", accepted.who);
    assert_eq!(accepted.hello.agent, "test 1");
    assert_eq!((welcomed, print), (welcome(), world.identity.fingerprint()));
    assert_eq!(request, accepted.request, "both ends name the session alike");
    assert_eq!(version, VERSIONS.len(), "both speak the newest");
    assert_eq!(tls::check_version(PEER, Some(b"verbatim/1")), Ok(1));

    let (sent, got) = tokio::join!(
        async {
            sender.send(&ClientMessage::Bye).await?;
            sender.close().await
        },
        async { (accepted.receiver.recv().await, accepted.receiver.recv().await) }
    );
    sent.unwrap();
    assert_eq!(got, (Ok(Some(ClientMessage::Bye)), Ok(None)));
    accepted.sender.close().await.unwrap();
    assert_eq!(receiver.recv().await, Ok(None));
}

#[tokio::test]
async fn a_peer_that_vanishes_is_not_a_goodbye() {
    let world = World::new();
    let (client, server) = meet(&world.acceptor(anyone()), &world.pinned(), None).await;
    drop(client);
    let error = server.unwrap().receiver.recv().await.unwrap_err();
    assert!(error.to_string().contains("without a goodbye"), "{error}");
}

#[tokio::test]
async fn an_unknown_key_is_refused_in_the_same_words_at_both_ends() {
    let world = World::new();
    let (known, unknown) = (ClientKey::generate().unwrap(), ClientKey::generate().unwrap());
    let acceptor = world.acceptor(knows("alice", &known));
    let (client, server) = meet(&acceptor, &world.pinned(), Some(&unknown)).await;
    let (client, server) = (client.unwrap_err(), server.unwrap_err());
    let said = fault_text(&server, Code::NotAuthenticated);
    assert_eq!(said, format!("the key {} is not authorized here", unknown.public()));
    let heard = fault_text(&client, Code::NotAuthenticated);
    assert_eq!(heard, format!("{PEER} refused the session: {said}"));
    assert!(client.hint().unwrap().contains("authorized keys"));
}

#[tokio::test]
async fn anonymous_clients_come_in_only_where_allowed() {
    let (world, unknown) = (World::new(), ClientKey::generate().unwrap());
    let open = world.acceptor(anyone());
    assert_eq!(meet(&open, &world.pinned(), None).await.1.unwrap().who, Who::Anonymous);
    let (_, server) = meet(&open, &world.pinned(), Some(&unknown)).await;
    assert_eq!(server.unwrap().who, Who::Anonymous);

    let shut = world.acceptor(Policy::default());
    let (client, server) = meet(&shut, &world.pinned(), None).await;
    assert!(fault_text(&client.unwrap_err(), Code::NotAuthenticated).contains("no key"));
    fault_text(&server.unwrap_err(), Code::NotAuthenticated);
}

#[tokio::test]
async fn a_proof_replayed_on_another_session_is_refused() {
    let (world, key) = (World::new(), ClientKey::generate().unwrap());
    let open = Policy { allow_anonymous: true, ..knows("alice", &key) };
    let acceptor = world.acceptor(open);
    // A server in the middle gets a proof that is good for its own session ...
    let (client, server) = meet(&acceptor, &world.pinned(), Some(&key)).await;
    let (hello, _client) = (server.unwrap().hello, client.unwrap());
    assert!(hello.proof.is_some());
    // ... and shows it on another, where not even an open door helps.
    let (near, far) = duplex(1 << 16);
    let replay = async {
        let stream = tls_by_hand(near, world.identity.fingerprint()).await;
        let (read, write) = tokio::io::split(stream);
        let mut sender = Sender::new(write);
        sender.send(&ClientMessage::Hello(hello)).await.unwrap();
        sender.flush().await.unwrap();
        Receiver::<ServerMessage>::new(read).recv().await
    };
    let (answer, accepted) = tokio::join!(replay, acceptor.accept(far));
    let said = fault_text(&accepted.unwrap_err(), Code::NotAuthenticated);
    assert!(said.contains("not of this connection"), "{said}");
    let Ok(Some(ServerMessage::Refused(fault))) = answer else { panic!("{answer:?}") };
    assert_eq!(fault.text, said);
}

#[tokio::test]
async fn a_client_that_does_not_greet_first_is_refused() {
    let world = World::new();
    let proof = Some(Proof { key: [0; 32], signature: vec![] });
    let rude = Hello { agent: "a\nb".into(), proof: None, chunk_bytes: 1 };
    let forged = Hello { agent: "a".into(), proof, chunk_bytes: 1 };
    for (message, code) in [
        (ClientMessage::Bye, Code::Protocol),
        (ClientMessage::Hello(rude), Code::Protocol),
        (ClientMessage::Hello(forged), Code::NotAuthenticated),
    ] {
        let acceptor = world.acceptor(anyone());
        let (near, far) = duplex(1 << 16);
        let client = async {
            let mut sender = Sender::new(tls_by_hand(near, world.identity.fingerprint()).await);
            sender.send(&message).await.unwrap();
            sender.flush().await.unwrap();
            sender
        };
        let (_sender, accepted) = tokio::join!(client, acceptor.accept(far));
        fault_text(&accepted.unwrap_err(), code);
    }
}

#[tokio::test]
async fn a_stranger_may_send_a_greeting_and_no_larger_frame() {
    let world = World::new();
    let acceptor = world.acceptor(anyone());
    let (near, far) = duplex(1 << 16);
    let client = async {
        let mut stream = tls_by_hand(near, world.identity.fingerprint()).await;
        stream.write_all(&(GREETING_BYTES_MAX as u32 + 1).to_le_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        stream
    };
    // One that is taken would wait for its body.
    let (_client, accepted) = tokio::join!(client, acceptor.accept(far));
    let told = accepted.unwrap_err().to_string();
    assert_eq!(told, "frame of 4097 bytes is larger than 4096");

    // Who is known may send what a session takes.
    let (client, server) = meet(&acceptor, &world.pinned(), None).await;
    let ((mut sender, ..), mut accepted) = (client.unwrap(), server.unwrap());
    let paths = vec![WirePath::parse(&[b'x'; 200]).unwrap(); 100];
    let large = ClientMessage::Stat { request: 1, look: Look { follow: true, paths } };
    sender.send(&large).await.unwrap();
    sender.flush().await.unwrap();
    assert_eq!(accepted.receiver.recv().await, Ok(Some(large)));
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_dropped_at_the_deadline() {
    let world = World::new();
    let deadline = Duration::from_millis(50);
    let acceptor = world.acceptor(Policy { deadline, ..anyone() });
    let (_silent, far) = duplex(1 << 16);
    let error = acceptor.accept(far).await.unwrap_err();
    assert_eq!(error.to_string(), "the client's greeting took longer than 0.05 s");

    // The same holds for one that stops after the handshake, which a busy machine must get to.
    let deadline = Duration::from_secs(3);
    let acceptor = world.acceptor(Policy { deadline, ..anyone() });
    let (near, far) = duplex(1 << 16);
    let client = tls_by_hand(near, world.identity.fingerprint());
    let (_idle, accepted) = tokio::join!(client, acceptor.accept(far));
    assert!(matches!(accepted, Err(ControlError::TimedOut { .. })), "{accepted:?}");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_left_at_the_timeout() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let options = ConnectOptions { timeout: Duration::from_millis(100), ..world.options(port) };
    let error = connect(&options).await.unwrap_err().to_string();
    assert_eq!(error, format!("connecting to 127.0.0.1:{port} took longer than 0.1 s"));
}

#[tokio::test]
async fn the_local_door_lets_its_user_in_without_set_up() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let print = world.identity.fingerprint();
    let (door, public) = LocalDoor::publish(world.dir.path(), port, print).unwrap();
    let acceptor = world.acceptor(Policy { local: Some(public), ..Policy::default() });
    let (client, server) = meet_tcp(&acceptor, &listener, &world.options(port)).await;
    assert_eq!(server.unwrap().who, Who::Local);
    let client = client.unwrap();
    assert_eq!((client.server, client.peer.port()), (print, port));

    drop(door);
    let (client, _) = meet_tcp(&acceptor, &listener, &world.options(port)).await;
    assert!(matches!(client, Err(ControlError::NotTrusted { .. })), "{client:?}");
}

#[tokio::test]
async fn a_stranger_behind_the_local_door_is_refused() {
    let (world, stranger) = (World::new(), World::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let print = world.identity.fingerprint();
    let (_door, _) = LocalDoor::publish(world.dir.path(), port, print).unwrap();
    let acceptor = stranger.acceptor(anyone());
    let options = ConnectOptions { trust_on_first_use: true, ..world.options(port) };
    let error = meet_tcp(&acceptor, &listener, &options).await.0.unwrap_err();
    assert!(error.to_string().contains(&format!("{port}.toml")), "{error}");
    assert!(error.hint().unwrap().contains("remove"));
}

#[tokio::test]
async fn an_unknown_server_is_refused_with_its_fingerprint_and_what_to_do() {
    let world = World::new();
    let trust = strangers(world.dir.path(), false);
    let (client, server) = meet(&world.acceptor(anyone()), &trust, None).await;
    let error = client.unwrap_err();
    let presented = world.identity.fingerprint();
    let because = Distrust::Unknown { presented };
    assert_eq!(error, ControlError::NotTrusted { peer: PEER.into(), because });
    assert!(error.to_string().contains(&presented.to_string()), "{error}");
    let hint = error.hint().unwrap();
    assert!(hint.contains(&format!("--fingerprint {presented}")), "{hint}");
    assert!(hint.contains("--trust-on-first-use"), "{hint}");
    assert!(server.is_err(), "the client must not greet a server it does not trust");
}

#[tokio::test]
async fn a_server_other_than_the_given_one_is_refused() {
    let (meant, other) = (World::new(), World::new());
    let (client, server) = meet(&other.acceptor(anyone()), &meant.pinned(), None).await;
    let error = client.unwrap_err().to_string();
    assert!(error.contains(&meant.identity.fingerprint().to_string()), "{error}");
    assert!(error.contains(&other.identity.fingerprint().to_string()), "{error}");
    assert!(server.is_err());
}

#[tokio::test]
async fn a_server_trusted_at_first_sight_must_stay_the_same() {
    let (before, after) = (World::new(), World::new());
    let first = strangers(before.dir.path(), true);
    meet(&before.acceptor(anyone()), &first, None).await.0.unwrap();
    // From now on it is known, also to those who trust no stranger.
    let later = strangers(before.dir.path(), false);
    meet(&before.acceptor(anyone()), &later, None).await.0.unwrap();

    let (client, _) = meet(&after.acceptor(anyone()), &first, None).await;
    let error = client.unwrap_err();
    let (text, hint) = (error.to_string(), error.hint().unwrap());
    assert!(text.contains("HAS CHANGED"), "{text}");
    for world in [&before, &after] {
        assert!(text.contains(&world.identity.fingerprint().to_string()), "{text}");
    }
    let file = before.dir.path().join("known_servers");
    assert!(hint.contains(&format!("remove line 1 of {}", file.display())), "{hint}");
}

#[tokio::test]
async fn an_end_of_another_version_is_told_so() {
    let world = World::new();
    for theirs in [vec![b"verbatim/99".to_vec()], vec![]] {
        let (near, far) = duplex(1 << 16);
        let mut config = tls::server_config(&world.identity, None).unwrap();
        config.alpn_protocols = theirs.clone();
        let server = TlsAcceptor::from(Arc::new(config));
        let trust = world.pinned();
        let client = greet(near, PEER, &trust, Own::default(), ("test".into(), 1));
        let (client, _server) = tokio::join!(client, server.accept(far));
        let text = fault_text(&client.unwrap_err(), Code::Version);
        let spoken = "verbatim/5 or verbatim/4 or verbatim/3 or verbatim/2 or verbatim/1";
        assert_eq!(
            text,
            format!("no common protocol version: host7:20490 does not speak {spoken}")
        );

        let (near, far) = duplex(1 << 16);
        let mut config = tls::client_config(Witness::new(None, None), None).unwrap();
        config.alpn_protocols = theirs;
        let name = ServerName::try_from("verbatim").unwrap();
        let client = TlsConnector::from(Arc::new(config)).connect(name, near);
        let acceptor = world.acceptor(anyone());
        let (_client, accepted) = tokio::join!(client, acceptor.accept(far));
        fault_text(&accepted.unwrap_err(), Code::Version);
    }
}

#[tokio::test]
async fn an_end_that_also_speaks_a_newer_version_agrees_on_ours() {
    let world = World::new();
    let theirs = || vec![b"verbatim/99".to_vec(), VERSIONS[0].to_vec()];
    let (near, far) = duplex(1 << 16);
    let mut config = tls::server_config(&world.identity, None).unwrap();
    config.alpn_protocols = theirs();
    let server = TlsAcceptor::from(Arc::new(config));
    let mut config = tls::client_config(Witness::new(None, None), None).unwrap();
    let name = || ServerName::try_from("verbatim").unwrap();
    let client = TlsConnector::from(Arc::new(config.clone())).connect(name(), near);
    let (client, _server) = tokio::join!(client, server.accept(far));
    assert_eq!(client.unwrap().get_ref().1.alpn_protocol(), Some(VERSIONS[0]), "a newer server");

    let (near, far) = duplex(1 << 16);
    config.alpn_protocols = theirs();
    let newer = TlsConnector::from(Arc::new(config)).connect(name(), near);
    let own = tls::server_config(&world.identity, None).unwrap();
    let own = TlsAcceptor::from(Arc::new(own));
    let (newer, _server) = tokio::join!(newer, own.accept(far));
    assert_eq!(newer.unwrap().get_ref().1.alpn_protocol(), Some(VERSIONS[0]), "a newer client");
}

#[tokio::test]
async fn a_certificate_without_its_key_convinces_nobody() {
    let (honest, thief) = (World::new(), World::new());
    let copied = |name: &str| std::fs::read(honest.dir.path().join(name)).unwrap();
    std::fs::write(thief.dir.path().join("identity.crt"), copied("identity.crt")).unwrap();
    let stolen = ServerIdentity::load_or_create(thief.dir.path()).unwrap();
    assert_eq!(stolen.fingerprint(), honest.identity.fingerprint());
    let error = Acceptor::new(&stolen, anyone()).unwrap_err();
    assert!(error.to_string().contains("identity.key"), "{error}");

    // A server that does not check itself is found out by the handshake's signature.
    let signer = rustls::crypto::ring::sign::any_supported_type(&thief.identity.shown().key);
    let pair = rustls::sign::CertifiedKey::new(honest.identity.shown().chain, signer.unwrap());
    let mut config = tls::server_config(&honest.identity, None).unwrap();
    config.cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(pair));
    let (near, far) = duplex(1 << 16);
    let trust = honest.pinned();
    let client = greet(near, PEER, &trust, Own::default(), ("test".into(), 1));
    let server = TlsAcceptor::from(Arc::new(config));
    let (client, _server) = tokio::join!(client, server.accept(far));
    let error = client.unwrap_err();
    assert!(matches!(error, ControlError::Tls { .. }), "{error}");
    assert!(error.to_string().to_lowercase().contains("signature"), "{error}");
}

#[tokio::test]
async fn a_port_that_does_not_speak_tls_is_named() {
    let world = World::new();
    let (near, mut far) = duplex(1 << 16);
    let trust = world.pinned();
    let client = greet(near, PEER, &trust, Own::default(), ("test".into(), 1));
    let (client, _) = tokio::join!(client, far.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    let error = client.unwrap_err();
    assert!(error.to_string().starts_with("cannot speak TLS with host7:20490: "), "{error}");
    assert!(error.hint().is_some());
}

#[tokio::test]
async fn a_closed_port_is_named_with_its_cause() {
    let world = World::new();
    // Bound and not listening: nobody else is given it.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let error = connect(&world.options(port)).await.unwrap_err();
    let expected = format!("cannot connect to 127.0.0.1:{port}: connection refused");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_server_open_to_other_machines_needs_keys() {
    let (near, far) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
    assert_eq!(check_listen(&near, false, false), Ok(()));
    assert_eq!(check_listen(&"[::1]:1".parse().unwrap(), false, false), Ok(()));
    assert_eq!(check_listen(&far, true, false), Ok(()));
    assert_eq!(check_listen(&far, false, true), Ok(()));
    let error = check_listen(&far, false, false).unwrap_err();
    assert!(error.to_string().starts_with("cannot listen on 0.0.0.0:1: "), "{error}");
    assert!(error.hint().unwrap().contains("--insecure-no-auth"));
}
