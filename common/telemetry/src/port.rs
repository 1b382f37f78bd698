//! A port for people and machines that watch a daemon. Plain HTTP/1.1, only for
//! reading, one request a connection, a bounded number of connections, each with a
//! deadline. Who comes when its address has all the places it may have is sent away,
//! so that nobody takes those of others, or of this machine. What is at a path,
//! whoever has the port says; nothing is changed by asking.
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
            let Some(place) = places.take(Caller::of(&stream, peer)) else {
                tracing::debug!(%peer, "watcher sent away: its address has enough connections");
                continue;
            };
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
                match tokio::time::timeout(CONNECTION_MAX, connection).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "watcher lost"),
                    Err(_) => tracing::debug!(%peer, "watcher took too long"),
                }
                drop(place);
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

/// How many connections who has. Holds an entry only for who has one, so these are few.
#[derive(Default)]
struct Places(Mutex<BTreeMap<Caller, usize>>);

impl Places {
    /// Takes a place, if one is free for this caller.
    fn take(self: &Arc<Self>, caller: Caller) -> Option<Place> {
        let mut taken = self.taken();
        let own = taken.get(&caller).copied().unwrap_or_default();
        let others = taken.iter().filter(|(who, _)| **who != Caller::ThisMachine);
        let is_full = caller != Caller::ThisMachine
            && others.map(|(_, count)| count).sum::<usize>() >= CONNECTIONS_OF_OTHERS_MAX;
        if is_full || own >= CONNECTIONS_PER_ADDRESS_MAX {
            return None;
        }
        taken.insert(caller, own + 1);
        Some(Place { places: self.clone(), caller })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<Caller, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection, free again when it is dropped.
struct Place {
    places: Arc<Places>,
    caller: Caller,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        match taken.get_mut(&self.caller) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.caller)),
        }
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
        let greedy = |caller| -> Vec<Place> {
            std::iter::from_fn(|| places.take(caller)).take(1000).collect()
        };
        let first = greedy(other(1));
        assert_eq!(first.len(), CONNECTIONS_PER_ADDRESS_MAX);
        assert!(places.take(other(2)).is_some());
        let rest: Vec<_> = (2..100).flat_map(|number| greedy(other(number))).collect();
        assert_eq!(first.len() + rest.len(), CONNECTIONS_OF_OTHERS_MAX);
        let here = greedy(Caller::ThisMachine);
        assert_eq!(here.len(), CONNECTIONS_PER_ADDRESS_MAX);
        drop(first);
        assert!(places.take(other(200)).is_some() && places.take(Caller::ThisMachine).is_none());
        drop((here, rest));
        assert!(places.taken().is_empty(), "who is gone is forgotten");
    }

    async fn asked(at: SocketAddr) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn a_connection_too_many_of_an_address_is_closed_at_once() {
        let port = Port::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a free port");
        let at = port.address();
        let serving = tokio::spawn(port.serve("/", |_| Some(Answer::well(None))));
        // Who says nothing holds a place for seconds.
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_PER_ADDRESS_MAX {
            silent.push(TcpStream::connect(at).await.expect("it listens"));
        }
        let refused = tokio::time::timeout(REQUEST_MAX / 2, asked(at)).await.expect("at once");
        assert!(refused.is_err() || refused.is_ok_and(|answer| answer.is_empty()));
        drop(silent);
        let answered = async {
            while !asked(at).await.is_ok_and(|answer| answer.starts_with("HTTP/1.0 200")) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(REQUEST_MAX / 2, answered).await.expect("their places are free again");
        serving.abort();
    }
}
