//! Starts sessions: answers an authenticated client with `Welcome` or an error, resolves its view
//! of the exports, and runs its session to the end. Owns the ids of sessions and their maximum.
//! Authenticates nobody: `net::accept` does, and calls this.

use super::{Services, Session};
use crate::exports::client_view::{ClientIdentity, ClientView};
use crate::net::accept::{Host, Remote};
use crate::net::data_tickets::Tickets;
use crate::net::refusal_log::{Refusal, RefusalLog};
use crate::observe::session_stats::SessionInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;
use verbatim_control::{Accepted, Outbox, Policy};
use verbatim_proto::message::{self, ServerMessage};
use verbatim_proto::units::is_chunk_size;
use verbatim_proto::{Code, Fault};
use verbatim_telemetry::labels::Entry;

/// Starts the sessions of a server.
pub(crate) struct SessionHost {
    services: Arc<Services>,
    refusals: Arc<RefusalLog>,
    sessions_max: u32,
    next_session: AtomicU64,
}

impl SessionHost {
    /// No session yet.
    pub fn new(services: Arc<Services>, refusals: Arc<RefusalLog>, sessions_max: u32) -> Self {
        Self { services, refusals, sessions_max, next_session: AtomicU64::new(1) }
    }
}

impl Host for SessionHost {
    fn tickets(&self) -> &Tickets {
        &self.services.joins
    }

    async fn serve(
        &self,
        remote: Remote,
        stopping: watch::Receiver<bool>,
        policies: &watch::Sender<Arc<Policy>>,
    ) {
        let Remote { accepted, peer, local } = remote;
        let Accepted { sender, receiver, hello, who, request } = accepted;
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        tracing::info!(session = id, request, %peer, %who, agent = hello.agent, "session began");
        let outbox = Outbox::new(sender, self.services.idle);
        let shares = &self.services.shares;
        let sessions = shares.of(&who.to_string(), peer.ip()).sessions.clone();
        let place = sessions.take(1);
        let welcome = if place.is_none() {
            let (all, own) = (self.sessions_max, sessions.used());
            let text = match shares.sessions.free() {
                0 => format!("the server is full: it has {all} sessions; try again"),
                _ => format!("this client has {own} of the server's {all} sessions; try again"),
            };
            self.services.observatory.counters.metrics.entered(Entry::Full);
            if self.refusals.should_log(Refusal::SessionsFull) {
                self.services.observatory.report_error(peer, Code::Limit, text.clone());
                tracing::warn!(session = id, %peer, cause = text, "no room for a session");
            }
            ServerMessage::Refused(Fault::new(Code::Limit, text))
        } else if is_chunk_size(hello.chunk_bytes) {
            let agent = concat!("rdma-serve ", env!("CARGO_PKG_VERSION")).to_owned();
            let links_max = self.services.links_max;
            ServerMessage::Welcome(message::Welcome { agent, session: id, links_max })
        } else {
            let text = format!("{} is not a valid chunk size", hello.chunk_bytes);
            ServerMessage::Refused(Fault::new(Code::Protocol, text))
        };
        let refused = matches!(welcome, ServerMessage::Refused(_));
        if outbox.push(&welcome).is_err() || refused {
            // The client is gone, or reads the reason as the connection closes.
            let _ = outbox.close().await;
            return;
        }
        let observatory = &self.services.observatory;
        observatory.counters.metrics.entered(Entry::Accepted);
        let reach = ClientView::of(
            &self.services.exports,
            &ClientIdentity { who: &who, address: peer.ip() },
        );
        let (name, agent, domain) = (who.to_string(), hello.agent, Arc::default());
        let used_hidden = reach.used_hidden();
        let guest = SessionInfo { id, request, peer, who: name, agent, domain, used_hidden };
        let view = observatory.add_session(guest);
        let (services, chunk_bytes) = (self.services.clone(), hello.chunk_bytes);
        let (session, events) =
            Session::new(services, outbox, chunk_bytes, local, view, (who, reach));
        session.run(receiver, events, stopping, policies.subscribe()).await;
        drop(place);
    }

    fn connection_closed(&self) {
        self.services.trimmer.client_gone();
    }
}
