//! A port for people and machines that watch a daemon. Plain HTTP/1.1, only for
//! reading, one request a connection, a bounded number of connections, each with a
//! deadline. When an address that has all the connections it may have opens another,
//! its oldest is closed, so that slow ones do not keep a scrape out, and nobody takes
//! the places of others, or of this machine. What is at a path, whoever has the port
//! says; nothing is changed by asking.
//! One that listens on loopback answers only to names of this machine, so that a web
//! page of elsewhere cannot read it through the browser of whoever runs the daemon.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Connections at a time from one address (a /64 of IPv6), all those of this machine being one.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 8;

/// Connections at a time from all other machines.
const CONNECTIONS_OF_OTHERS_MAX: usize = 24;

/// How long a connection may take, from its first byte to its last.
const CONNECTION_MAX: Duration = Duration::from_secs(10);

/// How long a request may take to arrive.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// Bytes that the head of a request may have.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Why nobody can watch.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for metrics on {address}: {cause}")]
pub struct PortError {
    address: SocketAddr,
    cause: String,
}

impl PortError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        "give another address with --metrics".into()
    }
}

/// What is at a path.
pub struct Answer {
    status: StatusCode,
    kind: &'static str,
    body: Bytes,
    may: Option<&'static str>,
}

impl Answer {
    /// Something of this media type.
    pub fn new(kind: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status: StatusCode::OK, kind, body: body.into(), may: None }
    }

    /// A page, and what it may do in a browser.
    pub fn page(body: &'static str, may: &'static str) -> Self {
        Self { may: Some(may), ..Self::new("text/html; charset=utf-8", body) }
    }

    /// All is well; or why not, with a status that says so.
    pub fn well(why_not: Option<String>) -> Self {
        match why_not {
            None => Self::text(StatusCode::OK, "ok"),
            Some(why) => Self::text(StatusCode::SERVICE_UNAVAILABLE, &why),
        }
    }

    fn text(status: StatusCode, text: &str) -> Self {
        let kind = "text/plain; charset=utf-8";
        Self { status, kind, body: format!("{text}\n").into(), may: None }
    }

    fn response(self) -> Response<Full<Bytes>> {
        let Self { status, kind, body, may } = self;
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        if let Some(may) = may {
            headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(may));
        }
        response
    }
}

/// The port, before it answers.
pub struct Port {
    listener: TcpListener,
    address: SocketAddr,
}

impl Port {
    /// Takes an address. Needs a tokio runtime.
    pub async fn bind(address: SocketAddr) -> Result<Self, PortError> {
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok::<_, std::io::Error>(Self { listener, address })
        };
        bound.await.map_err(|error| {
            let text = error.to_string();
            let cause = text.split(" (os error").next().unwrap_or(&text).to_lowercase();
            PortError { address, cause }
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers for ever with what `at` says is at a path; `paths` tells whoever asks for another.
    pub async fn serve(
        self,
        paths: &'static str,
        at: impl Fn(&str) -> Option<Answer> + Send + Sync + 'static,
    ) {
        let (places, at) = (Arc::new(Places::default()), Arc::new(at));
        let local = self.address.ip().to_canonical().is_loopback();
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "watcher not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let mut place = places.take(Caller::of(&stream, peer));
            let at = at.clone();
            tokio::spawn(async move {
                let answer = service_fn(|request: Request<Incoming>| {
                    let response = answer(&request, local, paths, &*at);
                    std::future::ready(Ok::<_, Infallible>(response))
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .keep_alive(false)
                    .timer(TokioTimer::new())
                    .header_read_timeout(REQUEST_MAX)
                    .max_buf_size(HEAD_BYTES_MAX)
                    .serve_connection(TokioIo::new(stream), answer);
                let ended = tokio::select! {
                    ended = tokio::time::timeout(CONNECTION_MAX, connection) => ended,
                    _ = &mut place.closed => {
                        return tracing::debug!(%peer, "watcher closed: others came");
                    }
                };
                match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "watcher lost"),
                    Err(_) => tracing::debug!(%peer, "watcher took too long"),
                }
            });
        }
    }
}

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Caller {
    ThisMachine,
    Other(IpAddr),
}

impl Caller {
    /// Who connects from the address that it came to is here, too: a kubelet does, for a pod that
    /// is on the network of its node.
    fn of(stream: &TcpStream, peer: SocketAddr) -> Self {
        let here = stream.local_addr().is_ok_and(|here| here.ip() == peer.ip());
        match peer.ip().to_canonical() {
            ip if here || ip.is_loopback() => Self::ThisMachine,
            IpAddr::V6(ip) => {
                Self::Other(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into())
            }
            ip => Self::Other(ip),
        }
    }
}

/// The connections there are, the oldest first: never more than the limits above together.
#[derive(Default)]
struct Places(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    /// How many have come so far: the number of the next.
    came: u64,
    /// Whose each connection is. Dropping its sender closes it.
    connections: BTreeMap<u64, (Caller, oneshot::Sender<()>)>,
}

impl Places {
    /// Takes a place. Where this caller has all it may have, its oldest connection is closed for
    /// the new one; where other machines have all they may have, the oldest of the one with the
    /// most.
    fn take(self: &Arc<Self>, caller: Caller) -> Place {
        let mut taken = self.taken();
        let counts = taken.counts();
        let of_others = counts.iter().filter(|(who, _)| **who != Caller::ThisMachine);
        let is_full = caller != Caller::ThisMachine
            && of_others.clone().map(|(_, count)| count).sum::<usize>()
                >= CONNECTIONS_OF_OTHERS_MAX;
        if counts.get(&caller).is_some_and(|own| *own >= CONNECTIONS_PER_ADDRESS_MAX) {
            taken.close_oldest(caller);
        } else if is_full && let Some((&most, _)) = of_others.max_by_key(|(_, count)| **count) {
            taken.close_oldest(most);
        }
        let number = taken.came;
        taken.came += 1;
        let (close, closed) = oneshot::channel();
        taken.connections.insert(number, (caller, close));
        Place { places: self.clone(), number, closed }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn counts(&self) -> BTreeMap<Caller, usize> {
        let mut counts = BTreeMap::new();
        for (caller, _) in self.connections.values() {
            *counts.entry(*caller).or_default() += 1;
        }
        counts
    }

    fn close_oldest(&mut self, of: Caller) {
        let oldest = self.connections.iter().find(|(_, (caller, _))| *caller == of);
        if let Some((&number, _)) = oldest {
            self.connections.remove(&number);
        }
    }
}

/// The place of one connection, free again when it is dropped.
struct Place {
    places: Arc<Places>,
    number: u64,
    closed: oneshot::Receiver<()>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().connections.remove(&self.number);
    }
}

fn answer<B>(
    request: &Request<B>,
    local: bool,
    paths: &str,
    at: &dyn Fn(&str) -> Option<Answer>,
) -> Response<Full<Bytes>> {
    if local && !is_local_name(request.headers().get(header::HOST)) {
        let text = "this server answers to names of its own machine only";
        return Answer::text(StatusCode::FORBIDDEN, text).response();
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let refusal = Answer::text(StatusCode::METHOD_NOT_ALLOWED, "this is for reading");
        let mut refusal = refusal.response();
        refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    let found = at(request.uri().path());
    found.unwrap_or_else(|| Answer::text(StatusCode::NOT_FOUND, paths)).response()
}

/// Whether a request names an address or this machine. Names that others give could be made to
/// lead here by whoever owns them.
fn is_local_name(host: Option<&HeaderValue>) -> bool {
    let Some(host) = host else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot::error::TryRecvError;

    #[test]
    fn only_names_of_this_machine_are_answered_on_loopback() {
        let is = |host: &'static str| is_local_name(Some(&HeaderValue::from_static(host)));
        for host in ["127.0.0.1:9469", "localhost:9469", "localhost", "[::1]:9469", "10.0.0.7"] {
            assert!(is(host), "{host}");
        }
        for host in ["evil.example:9469", "localhost.evil.example", "127.0.0.1.evil.example", ""] {
            assert!(!is(host), "{host}");
        }
        assert!(is_local_name(None), "HTTP/1.0 has none");
    }

    #[test]
    fn nobody_takes_the_places_of_others_or_of_this_machine() {
        let places = Arc::new(Places::default());
        let other = |number: u8| Caller::Other(IpAddr::from([10, 0, 0, number]));
        let take = |caller, count: usize| -> Vec<Place> {
            (0..count).map(|_| places.take(caller)).collect()
        };
        let open = |places: &mut [Place]| -> usize {
            places
                .iter_mut()
                .filter_map(|one| one.closed.try_recv().err())
                .filter(|e| *e == TryRecvError::Empty)
                .count()
        };
        let mut here = take(Caller::ThisMachine, CONNECTIONS_PER_ADDRESS_MAX);
        let mut scrape = take(other(9), 1);
        let mut greedy = take(other(1), 100);
        assert_eq!(open(&mut greedy), CONNECTIONS_PER_ADDRESS_MAX);
        assert_eq!(open(&mut greedy[92..]), CONNECTIONS_PER_ADDRESS_MAX, "the newest");
        let mut rest: Vec<_> = (2..9).flat_map(|number| take(other(number), 8)).collect();
        let others = open(&mut greedy) + open(&mut rest) + open(&mut scrape);
        assert_eq!(others, CONNECTIONS_OF_OTHERS_MAX);
        assert_eq!(open(&mut scrape), 1, "it has fewer than those who take all they can");
        assert_eq!(open(&mut here), CONNECTIONS_PER_ADDRESS_MAX);
        drop((here, rest, greedy, scrape));
        assert!(places.taken().connections.is_empty(), "who is gone is forgotten");
    }

    async fn asked(at: SocketAddr) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn slow_requests_keep_no_scrape_out() {
        let port = Port::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a free port");
        let at = port.address();
        let serving = tokio::spawn(port.serve("/", |_| Some(Answer::well(None))));
        // Who says nothing holds a place for seconds.
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_PER_ADDRESS_MAX {
            silent.push(TcpStream::connect(at).await.expect("it listens"));
        }
        let answer = tokio::time::timeout(REQUEST_MAX / 2, asked(at)).await.expect("at once");
        assert!(answer.as_ref().is_ok_and(|text| text.starts_with("HTTP/1.0 200")), "{answer:?}");
        let end = silent[0].read(&mut [0]).await;
        assert!(matches!(end, Ok(0) | Err(_)), "the oldest is closed: {end:?}");
        serving.abort();
    }
}
