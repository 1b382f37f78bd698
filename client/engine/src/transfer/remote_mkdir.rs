//! Folders and links that the server makes, many in one request and in order:
//! a folder before what is in it, its metadata behind all of it. Files wait for
//! the last request that could hold their folder.

use crate::connection::Engine;
use crate::connection::dir_guard::Mark;
use crate::connection::ledger::Item;
use crate::transfer::upload::Upload;
use std::collections::HashMap;
use verbatim_proto::message::{ClientMessage, NewEntry};
use verbatim_proto::units::{BATCH_FILES_MAX, FRAME_BYTES_MAX};
use verbatim_proto::{Code, Fault};

/// Requests to make something that may wait for their answer; the server takes more.
const MAKING_MAX: usize = 64;

/// A folder or link to create at the server, its mark, and its label.
pub type Make = (NewEntry, (Mark, String));

/// Folders and links that the server was asked to make, and the files that wait for them.
struct Making {
    /// They hold up their folders until the server has answered.
    labels: Vec<(Mark, String)>,
    files: Vec<(Mark, Upload)>,
}

impl Making {
    /// All in it, by name.
    fn into_labels(self) -> impl Iterator<Item = (Item, String)> {
        let files = self.files.into_iter().map(|(mark, file)| (mark, file.label));
        self.labels.into_iter().chain(files).map(|(mark, label)| (mark.item, label))
    }
}

/// Folders and links that the server makes, and the files that wait for them.
#[derive(Default)]
pub(crate) struct RemoteMkdir {
    asked: HashMap<u32, Making>,
}

impl RemoteMkdir {
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// Whether the server may be asked to make more.
    pub fn has_room(&self) -> bool {
        self.asked.len() < MAKING_MAX
    }

    /// Files that wait for what the server makes.
    pub fn waiting(&self) -> usize {
        self.asked.values().map(|making| making.files.len()).sum()
    }

    /// Has entries made, and then the files added. The server makes them in order, so files
    /// wait for the last request that could hold their folder; returns those that need not wait.
    pub fn make(
        &mut self,
        engine: &mut Engine,
        makes: Vec<Make>,
        files: Vec<(Mark, Upload)>,
    ) -> Vec<(Mark, Upload)> {
        if makes.is_empty() && (self.asked.is_empty() || files.is_empty()) {
            return files;
        }
        let mut requests = cut(makes);
        // An empty request still comes back behind those before it.
        let last = requests.pop().unwrap_or_default();
        for makes in requests {
            self.request(engine, makes, Vec::new());
        }
        self.request(engine, last, files);
        Vec::new()
    }

    fn request(&mut self, engine: &mut Engine, makes: Vec<Make>, files: Vec<(Mark, Upload)>) {
        let (entries, labels) = makes.into_iter().unzip();
        let request = engine.request();
        engine.send(ClientMessage::Make { request, entries });
        self.asked.insert(request, Making { labels, files });
    }

    /// The server answers; returns the files that waited for it.
    pub fn made(
        &mut self,
        engine: &mut Engine,
        request: u32,
        answers: Vec<Result<(), Fault>>,
    ) -> Vec<(Mark, Upload)> {
        let asked = self.asked.remove(&request);
        let Some(making) = asked.filter(|making| making.labels.len() == answers.len()) else {
            let text = "the server made what nobody asked for";
            engine.broke(Fault::new(Code::Protocol, text));
            return Vec::new();
        };
        for ((mark, label), answer) in making.labels.into_iter().zip(answers) {
            match answer {
                Ok(()) => engine.outcomes().ledger().made(mark.item),
                Err(fault) => engine.outcomes().not_placed_there(mark.item, label, fault),
            }
        }
        making.files
    }

    /// Lets go of all that was asked for.
    pub fn leave(&mut self, engine: &mut Engine) {
        for (item, label) in self.asked.drain().flat_map(|(_, making)| making.into_labels()) {
            engine.outcomes().ledger().leave(item, label, false);
        }
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
