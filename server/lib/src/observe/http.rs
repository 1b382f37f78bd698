//! What the server shows to people and machines that watch: five paths, all of them
//! read. Knows no session and changes nothing; who answers, and to whom, is `Port`.

use crate::config::Metrics;
use crate::observe::observatory::{Observatory, Watched};
use std::net::SocketAddr;
use std::sync::Arc;
use verbatim_telemetry::port::{Answer, Port, PortError};
use verbatim_telemetry::serve::CONTENT_TYPE;

/// The page for people.
const PAGE: &str = include_str!("page.html");

/// What the page may do: run itself, and ask this server.
const PAGE_MAY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                        connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                        frame-ancestors 'none'";

/// What there is.
const PATHS: &str = "there are /, /metrics, /healthz, /readyz and /api/v1/status";

/// The port, before it answers.
pub(crate) struct Page(Port);

impl Page {
    /// Takes the address that the configuration says. A default that is taken is a warning,
    /// because two servers on one machine work; one that was asked for is an error.
    pub async fn bind(metrics: &Metrics) -> Result<Option<Self>, PortError> {
        let Some(address) = metrics.address() else { return Ok(None) };
        match Port::bind(address).await {
            Ok(port) => Ok(Some(Self(port))),
            Err(error) if metrics.is_asked_for() => Err(error),
            Err(error) => {
                let hint = format!("{}, or --metrics off", error.hint());
                tracing::warn!(%error, hint, "no metrics and no page");
                Ok(None)
            }
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Answers for ever.
    pub async fn serve(self, place: Arc<Observatory>, watched: Arc<Watched>) {
        self.0.serve(PATHS, move |path| answer(path, &place, &watched)).await;
    }
}

fn answer(path: &str, place: &Observatory, watched: &Watched) -> Option<Answer> {
    Some(match path {
        "/" => Answer::page(PAGE, PAGE_MAY),
        "/metrics" => Answer::new(CONTENT_TYPE, place.metrics_text(watched)),
        "/healthz" => Answer::well(None),
        "/readyz" => Answer::well(place.unready()),
        "/api/v1/status" => {
            let status = serde_json::to_vec(&place.status(watched)).expect("a status is JSON");
            Answer::new("application/json", status)
        }
        _ => return None,
    })
}
