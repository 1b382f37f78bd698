//! The port for people and machines that watch: five paths, all of them read.
//! Plain HTTP/1.1, one request a connection, a bounded number of connections,
//! each with a deadline. Knows no session and changes nothing. A server that
//! listens on loopback answers only to names of this machine, so that a web page
//! of elsewhere cannot read it through the browser of whoever runs the server.

use super::Observatory;
use crate::config::Metrics;
use crate::session::Shared;
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
use verbatim_telemetry::serve::CONTENT_TYPE;

/// Connections at a time; more wait.
const CONNECTIONS_MAX: usize = 32;

/// How long a connection may take, from its first byte to its last.
const CONNECTION_MAX: Duration = Duration::from_secs(10);

/// How long a request may take to arrive.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// Bytes that the head of a request may have.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The page for people.
const PAGE: &str = include_str!("page.html");

/// What the page may do: run itself, and ask this server.
const PAGE_MAY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                        connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                        frame-ancestors 'none'";

/// Why nobody can watch.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for metrics on {address}: {cause}")]
pub struct MetricsError {
    address: SocketAddr,
    cause: String,
}

impl MetricsError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        "give another address with --metrics, or --metrics off".into()
    }
}

/// The port, before it answers.
pub(crate) struct Page {
    listener: TcpListener,
    address: SocketAddr,
}

impl Page {
    /// Takes the address that the configuration says. A default that is taken is a warning,
    /// because two servers on one machine work; one that was asked for is an error.
    pub async fn bind(metrics: &Metrics) -> Result<Option<Self>, MetricsError> {
        let Some(address) = metrics.address() else { return Ok(None) };
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok::<_, std::io::Error>(Self { listener, address })
        };
        match bound.await {
            Ok(page) => Ok(Some(page)),
            Err(error) => {
                let text = error.to_string();
                let cause = text.split(" (os error").next().unwrap_or(&text).to_lowercase();
                let error = MetricsError { address, cause };
                if metrics.is_asked_for() {
                    return Err(error);
                }
                let hint = error.hint();
                tracing::warn!(%error, hint, "no metrics and no page");
                Ok(None)
            }
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers for ever.
    pub async fn serve(self, place: Arc<Observatory>, shared: Arc<Shared>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
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
            let (place, shared) = (place.clone(), shared.clone());
            tokio::spawn(async move {
                let answer = service_fn(|request: Request<Incoming>| {
                    let response = answer(&request, local, &place, &shared);
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
    place: &Observatory,
    shared: &Shared,
) -> Response<Full<Bytes>> {
    if local && !is_local_name(request.headers().get(header::HOST)) {
        let text = "this server answers to names of its own machine only\n";
        return reply(StatusCode::FORBIDDEN, TEXT, text);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "this is for reading\n");
        refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match request.uri().path() {
        "/" => {
            let mut page = reply(StatusCode::OK, "text/html; charset=utf-8", PAGE);
            let policy = HeaderValue::from_static(PAGE_MAY);
            page.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
            page
        }
        "/metrics" => reply(StatusCode::OK, CONTENT_TYPE, place.metrics_text(shared)),
        "/healthz" => reply(StatusCode::OK, TEXT, "ok\n"),
        "/readyz" => match place.unready() {
            None => reply(StatusCode::OK, TEXT, "ok\n"),
            Some(why) => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
        },
        "/api/v1/status" => {
            let status = serde_json::to_vec(&place.status(shared)).expect("a status is JSON");
            reply(StatusCode::OK, "application/json", status)
        }
        _ => {
            let text = "there are /, /metrics, /healthz, /readyz and /api/v1/status\n";
            reply(StatusCode::NOT_FOUND, TEXT, text)
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
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
