//! Folders and links that the server makes, many in one request and in order:
//! a folder before what is in it, its metadata behind all of it. Files wait for
//! the last request that could hold their folder.

use crate::engine::ledger::Item;
use crate::session::dispatch::Core;
use crate::transfer::dir_metadata::Mark;
use crate::transfer::upload::Upload;
use verbatim_proto::message::{ClientMessage, NewEntry};
use verbatim_proto::units::{BATCH_FILES_MAX, FRAME_BYTES_MAX};
use verbatim_proto::{Code, Fault};

/// Requests to make something that may wait for their answer; the server takes more.
const MAKING_MAX: usize = 64;

/// Something to make, and what it is.
pub(crate) type Make = (NewEntry, (Mark, String));

/// Folders and links that the server was asked to make, and the files that wait for them.
pub(crate) struct Making {
    /// They hold up their folders until the server has answered.
    labels: Vec<(Mark, String)>,
    files: Vec<(Mark, Upload)>,
}

impl Making {
    /// All in it, by name.
    pub fn into_labels(self) -> impl Iterator<Item = (Item, String)> {
        let files = self.files.into_iter().map(|(mark, file)| (mark, file.label));
        self.labels.into_iter().chain(files).map(|(mark, label)| (mark.item, label))
    }
}

impl Core {
    /// Whether the server may be asked to make more.
    pub(crate) fn can_make(&self) -> bool {
        self.trees.making.len() < MAKING_MAX
    }

    /// Files that wait for what the server makes.
    pub(crate) fn waiting_for_folders(&self) -> usize {
        self.trees.making.values().map(|making| making.files.len()).sum()
    }

    /// Has entries made, and then the files added. The server makes them in order, so files
    /// wait for the last request that could hold their folder.
    pub(crate) fn make(&mut self, makes: Vec<Make>, files: Vec<(Mark, Upload)>) {
        if makes.is_empty() && (self.trees.making.is_empty() || files.is_empty()) {
            return self.queue_uploads(files);
        }
        let mut requests = cut(makes);
        // An empty request still comes back behind those before it.
        let last = requests.pop().unwrap_or_default();
        for makes in requests {
            self.request_make(makes, Vec::new());
        }
        self.request_make(last, files);
    }

    fn request_make(&mut self, makes: Vec<Make>, files: Vec<(Mark, Upload)>) {
        let (entries, labels) = makes.into_iter().unzip();
        let request = self.request();
        self.sending.push_back(ClientMessage::Make { request, entries });
        self.trees.making.insert(request, Making { labels, files });
    }

    fn queue_uploads(&mut self, files: Vec<(Mark, Upload)>) {
        files.into_iter().for_each(|(mark, file)| self.queue_upload(mark, file));
    }

    pub(crate) fn made(&mut self, request: u32, answers: Vec<Result<(), Fault>>) {
        let asked = self.trees.making.remove(&request);
        let Some(making) = asked.filter(|making| making.labels.len() == answers.len()) else {
            return self.broke(Fault::new(Code::Protocol, "the server made what nobody asked for"));
        };
        for ((mark, label), answer) in making.labels.into_iter().zip(answers) {
            match answer {
                Ok(()) => self.ledger.made(mark.item),
                Err(fault) => self.not_placed_there(mark.item, label, fault),
            }
        }
        self.queue_uploads(making.files);
    }
}

/// Cuts a list into requests that stay below the largest frame.
fn cut(makes: Vec<Make>) -> Vec<Vec<Make>> {
    let mut requests: Vec<Vec<Make>> = Vec::new();
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
