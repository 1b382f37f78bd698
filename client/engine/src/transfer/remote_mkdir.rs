//! Creates folders and links at the server, many per request and in order: a folder before its
//! entries, its metadata after them. Files wait for the answer to the last request that may create
//! their folder.

use crate::connection::Engine;
use crate::connection::dir_guard::WorkItem;
use crate::connection::ledger::ItemKey;
use crate::transfer::upload::Upload;
use std::collections::HashMap;
use verbatim_proto::message::{ClientMessage, NewEntry};
use verbatim_proto::units::{BATCH_FILES_MAX, FRAME_BYTES_MAX};
use verbatim_proto::{Code, Fault};

/// Requests in flight; the server accepts more.
const MKDIR_REQUESTS_MAX: usize = 64;

/// A folder or link to create at the server, its work item, and its label.
pub type MkdirEntry = (NewEntry, (WorkItem, String));

/// One request for folders and links, and the files that wait for its answer.
struct MkdirRequest {
    /// These hold the guards of their parent folders until the server answers.
    labels: Vec<(WorkItem, String)>,
    files: Vec<(WorkItem, Upload)>,
}

impl MkdirRequest {
    /// The keys and labels of all items.
    fn into_labels(self) -> impl Iterator<Item = (ItemKey, String)> {
        let files = self.files.into_iter().map(|(work_item, file)| (work_item, file.label));
        self.labels.into_iter().chain(files).map(|(work_item, label)| (work_item.item, label))
    }
}

/// Requests for folders and links in flight, and the files that wait for them.
#[derive(Default)]
pub(crate) struct RemoteMkdir {
    requests: HashMap<u32, MkdirRequest>,
}

impl RemoteMkdir {
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether another request may be sent.
    pub fn has_room(&self) -> bool {
        self.requests.len() < MKDIR_REQUESTS_MAX
    }

    /// How many files wait for folders.
    pub fn waiting(&self) -> usize {
        self.requests.values().map(|pending| pending.files.len()).sum()
    }

    /// Requests folders and links, then adds files. The server handles requests in order, so the
    /// files wait for the last one. Returns the files that need not wait.
    pub fn make(
        &mut self,
        engine: &mut Engine,
        makes: Vec<MkdirEntry>,
        files: Vec<(WorkItem, Upload)>,
    ) -> Vec<(WorkItem, Upload)> {
        if makes.is_empty() && (self.requests.is_empty() || files.is_empty()) {
            return files;
        }
        let mut requests = cut(makes);
        // Even an empty request is answered after those before it.
        let last = requests.pop().unwrap_or_default();
        for makes in requests {
            self.request(engine, makes, Vec::new());
        }
        self.request(engine, last, files);
        Vec::new()
    }

    fn request(
        &mut self,
        engine: &mut Engine,
        makes: Vec<MkdirEntry>,
        files: Vec<(WorkItem, Upload)>,
    ) {
        let (entries, labels) = makes.into_iter().unzip();
        let request = engine.request();
        engine.send(ClientMessage::Make { request, entries });
        self.requests.insert(request, MkdirRequest { labels, files });
    }

    /// Handles an answer. Returns the files that waited for it.
    pub fn made(
        &mut self,
        engine: &mut Engine,
        request: u32,
        answers: Vec<Result<(), Fault>>,
    ) -> Vec<(WorkItem, Upload)> {
        let requests = self.requests.remove(&request);
        let Some(pending) = requests.filter(|pending| pending.labels.len() == answers.len()) else {
            let text = "the server answered a request to make folders that was not sent";
            engine.fail_session(Fault::new(Code::Protocol, text));
            return Vec::new();
        };
        for ((work_item, label), answer) in pending.labels.into_iter().zip(answers) {
            match answer {
                Ok(()) => engine.outcomes().ledger().made(work_item.item),
                Err(fault) => engine.outcomes().remote_commit_refused(work_item.item, label, fault),
            }
        }
        pending.files
    }

    /// Notes the entries of unanswered requests as unfinished.
    pub fn suspend(&mut self, engine: &mut Engine) {
        for (item, label) in self.requests.drain().flat_map(|(_, pending)| pending.into_labels()) {
            engine.outcomes().ledger().note_unfinished(item, label, false);
        }
    }
}

/// Splits a list into requests below the frame limit.
fn cut(makes: Vec<MkdirEntry>) -> Vec<Vec<MkdirEntry>> {
    let mut requests: Vec<Vec<MkdirEntry>> = Vec::new();
    let mut bytes = 0;
    for make in makes {
        bytes += make.0.weight();
        match requests.last_mut() {
            Some(request) if request.len() < BATCH_FILES_MAX && bytes < FRAME_BYTES_MAX / 2 => {
                request.push(make);
            }
            _ => {
                bytes = make.0.weight();
                requests.push(vec![make]);
            }
        }
    }
    requests
}
