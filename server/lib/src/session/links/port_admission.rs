//! RDMA ports of exports with `gids`: the session holds a message that names a file of such an
//! export until all links to other ports are dead. So no window or slot of the export is registered
//! while such a link could reach it. The session reads no other message meanwhile.
//!
//! `exports::client_view` has the rules, and refuses those ports from then on. The client goes on
//! over admitted ports, or over TCP.

use super::Links;
use crate::session::client::Client;
use crate::session::end::End;
use std::time::Duration;
use tokio::time::Instant;
use verbatim_proto::message::{LinkId, ReadRequest, ServerMessage, WriteRequest};
use verbatim_proto::{ClientMessage, Code, WirePath};

/// How long links may take to die: longer than a device takes to flush a queue pair.
const LEAVE_MAX: Duration = Duration::from_secs(20);

/// A message that waits until links are dead, and since when.
pub(crate) struct HeldMessage {
    message: ClientMessage,
    since: Instant,
}

impl HeldMessage {
    /// Holds a message from now on.
    pub fn new(message: ClientMessage) -> Self {
        Self { message, since: Instant::now() }
    }

    /// The held message.
    pub fn into_message(self) -> ClientMessage {
        self.message
    }

    /// Ends a session whose links do not die.
    pub fn check(&self) -> Result<(), End> {
        if self.since.elapsed() <= LEAVE_MAX {
            return Ok(());
        }
        let text = "links to RDMA ports that an export does not admit do not end";
        Err(End::refused(Code::TimedOut, text))
    }
}

/// Ends the links that the files of a message may not move over; returns whether the message must
/// wait for that.
pub(crate) fn leave_ports(
    client: &Client,
    links: &mut Links,
    message: &ClientMessage,
) -> Result<bool, End> {
    if !client.reach.restricts_gids() {
        return Ok(false);
    }
    for path in data_of(message) {
        // The job that opens the path reports the error.
        let _ = client.reach.resolve(path);
    }
    let refused: Vec<(LinkId, [u8; 16])> = links_to_leave(client, links).collect();
    if refused.is_empty() {
        return Ok(false);
    }
    let (session, count) = (client.id, refused.len());
    tracing::info!(session, count, "links end: an export does not admit their RDMA ports");
    for (link, gid) in refused {
        let refused = client.reach.use_gid(gid).err();
        let fault = refused.expect("it is left because it is refused");
        if !links.setup.abandon(client, link, fault.clone())? {
            links.kill(client, link)?;
            // The client of an idle link would not notice its end, nor know the reason.
            client.send(ServerMessage::Attached { link, answer: Err(fault) })?;
        }
    }
    // A pending queue pair may have been the only one.
    Ok(has_links_to_leave(client, links))
}

/// Whether a link exists to a port that an export of the client refuses.
pub(crate) fn has_links_to_leave(client: &Client, links: &Links) -> bool {
    links_to_leave(client, links).next().is_some()
}

fn links_to_leave(client: &Client, links: &Links) -> impl Iterator<Item = (LinkId, [u8; 16])> {
    links.gids().filter(|(_, gid)| !client.reach.admits_gid(gid))
}

/// The files whose data a message asks to move.
fn data_of(message: &ClientMessage) -> Vec<&WirePath> {
    match message {
        ClientMessage::Read(ReadRequest::Open { files }) => {
            files.iter().map(|file| &file.path).collect()
        }
        ClientMessage::Write(WriteRequest::Create { files }) => {
            files.iter().map(|file| &file.path).collect()
        }
        _ => Vec::new(),
    }
}
