//! Folders that a client watches. A thread watches each folder, and sends the session one batch of
//! changes whenever the client asks for one. The client's memory limit counts watched folders and
//! waiting changes. Owns the watches of a session, which end with it; a client may watch any folder
//! that it may read.

use super::client::Client;
use super::end::End;
use crate::limits::client_limits;
use crate::limits::fair_pool::Permit;
use crate::limits::memory_budget::WATCHED_FOLDER_BYTES;
use std::collections::{HashMap, HashSet};
use verbatim_files::watch::{Rooms, Timing};
use verbatim_files::{Told, Watching};
use verbatim_proto::message::ServerMessage;
use verbatim_proto::{Code, Excludes, Fault, Watch, WatchReply, WatchRequest};
use verbatim_serve::EventPort;

/// Folders one session may watch.
const WATCHES_MAX: usize = 4;

/// The watches of a session, by request.
pub(super) struct FolderWatches {
    /// Where the threads report.
    port: EventPort<WatchEvent>,
    watches: HashMap<u32, Watching>,
    /// Watches that reported a change which the kernel had sent no event for.
    healed: HashSet<u32>,
}

/// A report of the thread that watches a folder.
pub(crate) struct WatchEvent {
    pub request: u32,
    pub report: Told,
}

impl FolderWatches {
    /// No watch yet; their threads will report to this port.
    pub fn new(port: EventPort<WatchEvent>) -> Self {
        Self { port, watches: HashMap::new(), healed: HashSet::new() }
    }

    /// Begins, continues or ends a watch, as the client asks.
    pub fn request(&mut self, client: &Client, request: WatchRequest) -> Result<(), End> {
        match request {
            WatchRequest::Begin { request, watch } => match self.begin(client, request, watch) {
                Ok(()) => Ok(()),
                Err(fault) => client.send(ended(request, fault)),
            },
            // A watch that ended by itself is unknown here: its `Ended` is on the way.
            WatchRequest::More { request } => {
                self.watches.get(&request).inspect(|watching| watching.more());
                Ok(())
            }
            WatchRequest::End { request } => {
                self.end(request);
                Ok(())
            }
        }
    }

    fn begin(&mut self, client: &Client, request: u32, watch: Watch) -> Result<(), Fault> {
        let limit = |text: String| Err(Fault::new(Code::Limit, text));
        if self.watches.contains_key(&request) {
            return Err(Fault::new(Code::Protocol, "a watch of this number is open"));
        }
        if self.watches.len() >= WATCHES_MAX {
            return limit(format!("a session may watch {WATCHES_MAX} folders"));
        }
        let watches = &client.share.watches;
        let Some(place) = watches.take(1) else {
            let (all, own) = (client_limits::WATCHES_MAX, watches.used());
            return limit(format!(
                "the server watches {all} folders at most, {own} for this client"
            ));
        };
        let excludes =
            Excludes::parse(watch.exclude)?.metered(client.share.name.pattern_steps.meter());
        let (export, below) = client.reach.resolve(&watch.path)?;
        let send_report = event_sender(request, self.port.clone(), place);
        let folder = export.folder.share();
        let mut folders = client.share.watched_folders.empty();
        let (mut of_folders, mut of_changes) = (client.memory.empty(), client.memory.empty());
        let rooms = Rooms {
            folders: Box::new(move |count| {
                folders.resize(count) && of_folders.resize(count * WATCHED_FOLDER_BYTES)
            }),
            memory: Box::new(move |bytes| of_changes.resize(bytes)),
        };
        let timing = Timing::default();
        let watching = Watching::begin_within(rooms, folder, below, excludes, timing, send_report)?;
        tracing::info!(session = client.id, path = %watch.path, "folder watched");
        self.watches.insert(request, watching);
        Ok(())
    }

    fn end(&mut self, request: u32) {
        self.watches.remove(&request);
        self.healed.remove(&request);
    }

    /// Ends all watches.
    pub fn end_all(&mut self) {
        self.watches.clear();
        self.healed.clear();
    }

    /// Sends the client what the thread of a watch reported.
    pub fn event(&mut self, client: &Client, event: WatchEvent) -> Result<(), End> {
        let WatchEvent { request, report } = event;
        if !self.watches.contains_key(&request) {
            return Ok(());
        }
        match report {
            Told::Changed(changes) => {
                client.send(ServerMessage::Watch(WatchReply::Changed { request, changes }))
            }
            Told::Healed(count, path) => {
                client.view.watch_healed(count);
                // Logged once per watch: more may follow from the same cause.
                if self.healed.insert(request) {
                    let session = client.id;
                    tracing::warn!(session, %path, count, "change found that no event told");
                }
                Ok(())
            }
            Told::Ended(fault) => {
                tracing::info!(session = client.id, cause = %fault, "watch ended");
                self.end(request);
                client.send(ended(request, fault))
            }
        }
    }
}

/// Makes the callback that sends a watch's reports to the session. The callback holds the watch's
/// place in the limit of the server until the thread ends, which may be later than the watch.
fn event_sender(
    request: u32,
    port: EventPort<WatchEvent>,
    place: Permit,
) -> impl FnMut(Told) + Send + 'static {
    move |report| {
        let _place = &place;
        // The session may have ended: then nobody needs the report.
        port.blocking_send(WatchEvent { request, report });
    }
}

fn ended(request: u32, fault: Fault) -> ServerMessage {
    ServerMessage::Watch(WatchReply::Ended { request, fault })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::fair_pool::{FairPool, PoolShare};
    use tokio::sync::mpsc;

    #[test]
    fn a_watch_counts_until_its_thread_ends() {
        let places = FairPool::new(1);
        let place = PoolShare::new(&places).take(1).expect("a place");
        let (queue, mut heard) = mpsc::channel(1);
        let mut send_report = event_sender(7, EventPort::of(&queue), place);
        send_report(Told::Changed(verbatim_proto::Changes::rescan()));
        assert!(matches!(heard.try_recv(), Ok(WatchEvent { request: 7, .. })));
        assert_eq!(places.free(), 0);
        drop(send_report);
        assert_eq!(places.free(), 1);
    }
}
