//! The HTTP endpoints: status page, metrics, health, readiness and status as JSON, all
//! read-only. Knows no session and changes nothing; `Port` accepts the connections and limits
//! them.

use crate::config::Metrics;
use crate::observe::server_stats::{ServerStats, StatusSources};
use std::net::SocketAddr;
use std::sync::Arc;
use verbatim_telemetry::port::{Answer, Port, PortError};
use verbatim_telemetry::serve::CONTENT_TYPE;

/// The status page.
const PAGE: &str = include_str!("page.html");

/// The Content-Security-Policy of the page: its own scripts, and requests to this server.
const PAGE_CSP: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                        connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                        frame-ancestors 'none'";

/// The paths, for the answer to an unknown one.
const PATHS: &str = "there are /, /metrics, /healthz, /readyz and /api/v1/status";

/// The bound port of metrics and status page.
pub(crate) struct Page(Port);

impl Page {
    /// Binds the configured address. If the default address is in use, that is a warning, because
    /// two servers may run on one machine; for an address that was set it is an error.
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

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Serves requests for ever.
    pub async fn serve(self, stats: Arc<ServerStats>, watched: Arc<StatusSources>) {
        self.0.serve(PATHS, move |path| answer(path, &stats, &watched)).await;
    }
}

fn answer(path: &str, stats: &ServerStats, watched: &StatusSources) -> Option<Answer> {
    Some(match path {
        "/" => Answer::page(PAGE, PAGE_CSP),
        "/metrics" => Answer::new(CONTENT_TYPE, stats.metrics_text(watched)),
        "/healthz" => Answer::well(None),
        "/readyz" => Answer::well(stats.not_ready_reason()),
        "/api/v1/status" => {
            let status = serde_json::to_vec(&stats.status(watched)).expect("a status is JSON");
            Answer::new("application/json", status)
        }
        _ => return None,
    })
}
