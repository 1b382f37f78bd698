//! Exports that admit some RDMA ports only. What names a file of such an export waits
//! until links to other ports are dead, so that no window or slot of it is registered
//! while one of them could reach it; nothing else is heard from the client meanwhile.
//! `exports::client_view` has the rules and refuses such ports from then on; the client goes on over
//! those that are admitted, or over TCP.

use super::Session;
use super::end::End;
use std::time::Duration;
use tokio::time::Instant;
use verbatim_proto::message::{LinkId, ReadRequest, ServerMessage, WriteRequest};
use verbatim_proto::{ClientMessage, Code, Fault, WirePath};

/// How long links may take to die: longer than a device may take to flush one.
const LEAVE_MAX: Duration = Duration::from_secs(20);

/// What waits until links are dead, and since when.
pub(super) struct Held {
    message: ClientMessage,
    since: Instant,
}

impl Session {
    /// Takes a message, or holds it until the ports that its files may not move to are left.
    pub(super) fn message_or_hold(&mut self, message: ClientMessage) -> Result<(), End> {
        if !self.client.reach.is_picky() || !self.leave_ports(&message)? {
            return self.message(message);
        }
        self.held = Some(Held { message, since: Instant::now() });
        Ok(())
    }

    /// A link died: what waits for the last of them goes on.
    pub(super) fn go_on_if_left(&mut self) -> Result<(), End> {
        match self.held.take() {
            Some(held) if self.links_to_leave().next().is_some() => {
                self.held = Some(held);
                Ok(())
            }
            Some(held) => self.message_or_hold(held.message),
            None => Ok(()),
        }
    }

    /// Links that do not die must not keep a client for ever.
    pub(super) fn check_held(&self) -> Result<(), End> {
        match &self.held {
            Some(held) if held.since.elapsed() > LEAVE_MAX => {
                let text = "links to RDMA ports that an export does not admit do not end";
                Err(End::Refused(Fault::new(Code::TimedOut, text)))
            }
            _ => Ok(()),
        }
    }

    /// Ends the links that files named in a message may not move over; says whether there are.
    fn leave_ports(&mut self, message: &ClientMessage) -> Result<bool, End> {
        for path in data_of(message) {
            // A path that leads nowhere is told to who asked, by the job that opens it.
            let _ = self.client.reach.resolve(path);
        }
        let links: Vec<(LinkId, [u8; 16])> = self.links_to_leave().collect();
        if links.is_empty() {
            return Ok(false);
        }
        let (session, count) = (self.client.id, links.len());
        tracing::info!(session, count, "links end: an export does not admit their RDMA ports");
        for (link, gid) in links {
            let refused = self.client.reach.use_gid(gid).err();
            let fault = refused.expect("it is left because it is refused");
            if !self.links.setup.give_up(&self.client, link, fault.clone())? {
                self.links.kill(&self.client, link)?;
                // An idle link would not find out, and its client could not say why.
                self.client.send(ServerMessage::Attached { link, answer: Err(fault) })?;
            }
        }
        // One that waited to be made is gone.
        Ok(self.links_to_leave().next().is_some())
    }

    fn links_to_leave(&self) -> impl Iterator<Item = (LinkId, [u8; 16])> {
        self.links.gids().filter(|(_, gid)| !self.client.reach.admits_gid(gid))
    }
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
