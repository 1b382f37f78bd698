//! Servers that lie to a real client. One says what its script says (`Liar::start`); the
//! other stands in front of an honest server and passes on what both say, links for data
//! included, but for what it lies about (`Liar::before`). Owns its thread, its port and an
//! identity of its own; what a client does with a lie is the business of the tests.

use std::sync::Arc;
use std::thread::JoinHandle;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use verbatim_control::{
    Accepted, Acceptor, ConnectOptions, Connection, Fingerprint, Policy, ServerIdentity, connect,
};
use verbatim_fabric::tcp::JOIN_MAGIC;
use verbatim_proto::message::{
    ClientMessage, Entry, EntryKind, FileInfo, JoinSecret, LinkAnswer, ReadReply, ReadRequest,
    ServerMessage, Welcome,
};
use verbatim_proto::{Code, Fault, MirrorReply, MirrorRequest, WirePath, wire};

/// Connections one liar takes at most; a client that comes back for more is not what is tested.
const CONNECTIONS_MAX: usize = 512;

/// A server that lies.
pub struct Liar {
    /// Where it listens.
    pub port: u16,
    /// Who it is.
    pub fingerprint: Fingerprint,
    _state: TempDir,
    _thread: JoinHandle<()>,
}

/// What a liar answers to a message.
pub type Script = fn(ClientMessage) -> Vec<ServerMessage>;

/// What a liar in front of an honest server lies about, to all of its clients.
pub trait Lie: Send + Sync + 'static {
    /// What of a message of the client the honest server hears, and what is answered for it.
    fn asked(&self, message: ClientMessage) -> (Option<ClientMessage>, Vec<ServerMessage>) {
        (Some(message), Vec::new())
    }

    /// Says this instead of what the honest server said.
    fn answered(&self, message: ServerMessage) -> Vec<ServerMessage> {
        vec![message]
    }

    /// Changes the bytes of a frame for the client.
    fn encoded(&self, _: &mut Vec<u8>) {}
}

impl Liar {
    /// Says what this script says.
    pub fn start(script: Script) -> Self {
        Self::serve(move |acceptor, stream| recite(acceptor, stream, script))
    }

    /// Lies in front of an honest server on this machine.
    pub fn before(honest: ConnectOptions, lie: Arc<dyn Lie>) -> Self {
        let honest = Arc::new(honest);
        Self::serve(move |acceptor, stream| pass(acceptor, stream, honest.clone(), lie.clone()))
    }

    fn serve<T>(serve: impl Fn(Arc<Acceptor>, TcpStream) -> T + Send + 'static) -> Self
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let state = tempfile::tempdir().expect("a folder");
        let identity = ServerIdentity::load_or_create(state.path()).expect("an identity");
        let fingerprint = identity.fingerprint();
        let policy = Policy { allow_anonymous: true, ..Policy::default() };
        let acceptor = Arc::new(Acceptor::new(&identity, policy).expect("an acceptor"));
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("binds");
        listener.set_nonblocking(true).expect("as tokio wants it");
        let port = listener.local_addr().expect("bound").port();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                for _ in 0..CONNECTIONS_MAX {
                    let Ok((stream, _)) = listener.accept().await else { return };
                    tokio::spawn(serve(acceptor.clone(), stream));
                }
            });
        });
        Self { port, fingerprint, _state: state, _thread: thread }
    }
}

/// Whether a connection is one for data.
async fn is_for_data(stream: &TcpStream) -> bool {
    let mut first = [0];
    stream.peek(&mut first).await.is_err() || first[0] == JOIN_MAGIC[0]
}

async fn recite(acceptor: Arc<Acceptor>, stream: TcpStream, script: Script) {
    if is_for_data(&stream).await {
        // It is taken, and never answers.
        return std::future::pending().await;
    }
    let Ok(mut accepted) = acceptor.accept(stream).await else { return };
    let welcome = Welcome { agent: "liar".into(), session: 1, links_max: 2 };
    let mut answers = vec![ServerMessage::Welcome(welcome)];
    loop {
        for answer in answers {
            if accepted.sender.send(&answer).await.is_err() {
                return;
            }
        }
        if accepted.sender.flush().await.is_err() {
            return;
        }
        match accepted.receiver.recv().await {
            Ok(Some(message)) => answers = script(message),
            _ => return,
        }
    }
}

/// Passes on what a client and an honest server say, but for the lie.
async fn pass(
    acceptor: Arc<Acceptor>,
    mut stream: TcpStream,
    honest: Arc<ConnectOptions>,
    lie: Arc<dyn Lie>,
) {
    if is_for_data(&stream).await {
        let Ok(mut data) = TcpStream::connect((&*honest.host, honest.port)).await else { return };
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut data).await;
        return;
    }
    let Ok(Accepted { mut sender, mut receiver, .. }) = acceptor.accept(stream).await else {
        return;
    };
    let Ok(behind) = connect(&honest).await else { return };
    let Connection { sender: mut ask, receiver: mut hear, welcome, .. } = behind;
    let mut answers = vec![ServerMessage::Welcome(welcome)];
    loop {
        for answer in answers {
            let mut frame = wire::encode(&answer).expect("a lie fits in a frame");
            lie.encoded(&mut frame);
            if sender.send_frame(&frame).await.is_err() {
                return;
            }
        }
        if sender.flush().await.is_err() {
            return;
        }
        answers = tokio::select! {
            message = receiver.recv() => {
                let Ok(Some(message)) = message else { return };
                let (on, back) = lie.asked(message);
                if let Some(message) = on
                    && (ask.send(&message).await.is_err() || ask.flush().await.is_err())
                {
                    return;
                }
                back
            }
            message = hear.recv() => {
                let Ok(Some(message)) = message else { return };
                lie.answered(message)
            }
        };
    }
}

/// A path that is one.
pub fn path(text: &str) -> WirePath {
    WirePath::parse(text.as_bytes()).expect("plain")
}

/// An entry of a listing.
pub fn entry(at: &str, kind: EntryKind, size: u64) -> Entry {
    Entry { path: path(at), kind, size, mode: 0o755, mtime_ns: 0, meta: None }
}

/// The answers of an honest server that has a folder, up to the listing.
pub fn folder_of(message: ClientMessage, entries: Vec<Entry>) -> Vec<ServerMessage> {
    match message {
        ClientMessage::Stat { request, look } => {
            let folder = || entry("x", EntryKind::Folder, 0);
            let folder = || Ok(Entry { path: WirePath::root(), ..folder() });
            let answers = look.paths.iter().map(|_| folder()).collect();
            vec![ServerMessage::Stated { request, answers }]
        }
        ClientMessage::Scan { request, .. } => {
            vec![ServerMessage::Page { request, entries, faults: vec![], done: true }]
        }
        ClientMessage::Mirror(MirrorRequest::Begin { request, .. }) => {
            let answer = Err(Fault::new(Code::NotFound, "no such folder"));
            vec![ServerMessage::Mirror(MirrorReply::Begun { request, answer })]
        }
        ClientMessage::Attach { link, .. } => {
            let answer = Ok(LinkAnswer::Tcp { secret: JoinSecret([7; 32]) });
            vec![ServerMessage::Attached { link, answer }]
        }
        ClientMessage::Read(ReadRequest::Open { files }) => {
            let info =
                FileInfo { size: 0, mode: 0o644, mtime_ns: 0, allocated: 0, version: Some(1) };
            let files = files.iter().map(|file| (file.file, Ok(info))).collect();
            vec![ServerMessage::Read(ReadReply::Opened { files })]
        }
        ClientMessage::Read(ReadRequest::Close { files, .. }) => {
            let files = files.iter().map(|file| (*file, Ok(None))).collect();
            vec![ServerMessage::Read(ReadReply::Closed { files })]
        }
        _ => vec![],
    }
}
