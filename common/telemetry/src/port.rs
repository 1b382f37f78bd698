//! A port for people and machines that watch a daemon. Plain HTTP/1.1, only for
//! reading, one request a connection, a bounded number of connections, each with a
//! deadline. What is at a path, whoever has the port says; nothing is changed by asking.
//! One that listens on loopback answers only to names of this machine, so that a web
//! page of elsewhere cannot read it through the browser of whoever runs the daemon.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at a time; more wait.
const CONNECTIONS_MAX: usize = 32;

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
        let (places, at) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), Arc::new(at));
        let local = self.address.ip().to_canonical().is_loopback();
        loop {
            let place_free = places.clone().acquire_owned().await;
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "watcher not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
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
                drop(place_free);
            });
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
}
