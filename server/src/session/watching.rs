//! Folders that a client watches. Each is watched by a thread of its own, which
//! tells this session one batch for each that the client asks for; what waits
//! meanwhile is bounded there, and counts as memory of the client; so do the folders. Whoever may read a folder may watch it. The end
//! of a session ends its watches.

use super::Session;
use super::end::End;
use crate::limits::client_limits;
use crate::limits::fair_pool::Place;
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
#[derive(Default)]
pub(super) struct Watches {
    watches: HashMap<u32, Watching>,
    /// Those of which a change was found that no event told.
    healed: HashSet<u32>,
}

/// A watched folder changed.
pub(crate) struct Watched {
    pub request: u32,
    pub told: Told,
}

impl Session {
    pub(super) fn watch(&mut self, request: WatchRequest) -> Result<(), End> {
        let watches = &mut self.watches.watches;
        match request {
            WatchRequest::Begin { request, watch } => match self.begin_watch(request, watch) {
                Ok(()) => Ok(()),
                Err(fault) => self.client.send(ended(request, fault)),
            },
            // One that ended by itself is not known any more: its client hears of it.
            WatchRequest::More { request } => {
                watches.get(&request).inspect(|watching| watching.more());
                Ok(())
            }
            WatchRequest::End { request } => {
                watches.remove(&request);
                self.watches.healed.remove(&request);
                Ok(())
            }
        }
    }

    fn begin_watch(&mut self, request: u32, watch: Watch) -> Result<(), Fault> {
        let limit = |text: String| Err(Fault::new(Code::Limit, text));
        if self.watches.watches.contains_key(&request) {
            return Err(Fault::new(Code::Protocol, "a watch of this number is open"));
        }
        if self.watches.watches.len() >= WATCHES_MAX {
            return limit(format!("a session may watch {WATCHES_MAX} folders"));
        }
        let watches = &self.client.share.watches;
        let Some(place) = watches.take(1) else {
            let (all, own) = (client_limits::WATCHES_MAX, watches.has());
            return limit(format!(
                "the server watches {all} folders at most, {own} for this client"
            ));
        };
        let excludes =
            Excludes::parse(watch.exclude)?.metered(self.client.share.name.matching.meter());
        let (export, below) = self.client.reach.resolve(&watch.path)?;
        let tell = teller(request, EventPort::of(&self.events), place);
        let folder = export.folder.share();
        let mut folders = self.client.share.watched_folders.none();
        let (mut of_folders, mut of_changes) =
            (self.client.memory.none(), self.client.memory.none());
        let rooms = Rooms {
            folders: Box::new(move |count| {
                folders.hold(count) && of_folders.hold(count * WATCHED_FOLDER_BYTES)
            }),
            memory: Box::new(move |bytes| of_changes.hold(bytes)),
        };
        let timing = Timing::default();
        let watching = Watching::begin_within(rooms, folder, below, excludes, timing, tell)?;
        tracing::info!(session = self.client.id, path = %watch.path, "folder watched");
        self.watches.watches.insert(request, watching);
        Ok(())
    }

    pub(super) fn watched(&mut self, Watched { request, told }: Watched) -> Result<(), End> {
        if !self.watches.watches.contains_key(&request) {
            return Ok(());
        }
        match told {
            Told::Changed(changes) => {
                self.client.send(ServerMessage::Watch(WatchReply::Changed { request, changes }))
            }
            Told::Healed(count, path) => {
                self.client.view.watch_healed(count);
                // Once for each watch: whatever the cause is, more may follow.
                if self.watches.healed.insert(request) {
                    let session = self.client.id;
                    tracing::warn!(session, %path, count, "change found that no event told");
                }
                Ok(())
            }
            Told::Ended(fault) => {
                tracing::info!(session = self.client.id, cause = %fault, "watch ended");
                self.watches.watches.remove(&request);
                self.watches.healed.remove(&request);
                self.client.send(ended(request, fault))
            }
        }
    }
}

/// Tells the session what its watch sees. It has the watch's place among those of the server,
/// which is free when the thread is gone: that may be later than the watch.
fn teller(
    request: u32,
    port: EventPort<Watched>,
    place: Place,
) -> impl FnMut(Told) + Send + 'static {
    move |told| {
        let _place = &place;
        // A session that is gone needs no answer.
        port.blocking_send(Watched { request, told });
    }
}

fn ended(request: u32, fault: Fault) -> ServerMessage {
    ServerMessage::Watch(WatchReply::Ended { request, fault })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::fair_pool::{Places, Taker};
    use tokio::sync::mpsc;

    #[test]
    fn a_place_is_taken_until_the_thread_that_tells_is_gone() {
        let places = Places::new(1);
        let place = Taker::new(&places).take(1).expect("a place");
        let (queue, mut heard) = mpsc::channel(1);
        let mut tell = teller(7, EventPort::of(&queue), place);
        tell(Told::Changed(verbatim_proto::Changes::rescan()));
        assert!(matches!(heard.try_recv(), Ok(Watched { request: 7, .. })));
        assert_eq!(places.left(), 0);
        drop(tell);
        assert_eq!(places.left(), 1);
    }
}
