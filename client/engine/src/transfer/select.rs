//! What becomes of everything a copy to the server finds, by its rules: it is sent, left alone,
//! only reported, or compared. The server is asked what is at the targets, many paths at a time.

use crate::connection::Engine;
use crate::connection::dir_guard::Mark;
use crate::connection::ledger::Item;
use crate::model::copy_policy::Task;
use crate::model::location::shown;
use crate::model::report::Planned;
use crate::transfer::remote_mkdir::Make;
use crate::transfer::select_local::{compare_kinds, existing};
use crate::transfer::upload::Upload;
use crate::transfer::verify::Compare;
use std::collections::{HashMap, VecDeque};
use verbatim_proto::message::{ClientMessage, Entry, EntryKind, NewEntry};
use verbatim_proto::units::{FRAME_BYTES_MAX, LOOK_PATHS_MAX};
use verbatim_proto::{Code, Fault, Look, WirePath};

/// Questions to the server on their way at a time.
const LOOKS_MAX: usize = 16;

/// Something to send, before it is known whether it is sent.
pub(crate) enum Offer {
    File(Mark, Upload),
    /// A folder or a link.
    Entry {
        mark: Mark,
        entry: NewEntry,
        mtime_ns: i64,
        label: String,
    },
}

/// Offers that wait for what the server says is at their targets.
#[derive(Default)]
pub(crate) struct Select {
    waiting: VecDeque<Offer>,
    asked: HashMap<u32, Vec<Offer>>,
}

/// Offers that are accepted: what is to be compared, made and sent.
#[derive(Default)]
pub(crate) struct Accepted {
    pub compares: Vec<Compare>,
    pub makes: Vec<Make>,
    pub files: Vec<(Mark, Upload)>,
}

impl Select {
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.asked.is_empty()
    }

    /// Whether the server was asked and has not answered.
    pub fn awaits(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether this request asked the server for offers.
    pub fn has_asked(&self, request: u32) -> bool {
        self.asked.contains_key(&request)
    }

    pub fn queued(&self) -> usize {
        self.waiting.len() + self.asked.values().map(Vec::len).sum::<usize>()
    }

    /// Accepts offers, keeps them until the server was asked, or leaves them, as the rules say.
    pub fn offer(&mut self, engine: &mut Engine, mut offers: Vec<Offer>) -> Accepted {
        let verify = engine.rules().task == Task::Verify;
        let must_look = engine.rules().must_look();
        let mut accepted = Accepted::default();
        // A folder that is there already is no harm; everything else is offered once.
        let ledger = engine.outcomes().ledger();
        offers.retain(|offer| offer.is_folder() || !ledger.is_over(offer.item()));
        for offer in offers {
            match offer {
                Offer::File(mark, upload) if verify => {
                    accepted.compares.push(compare_of(mark.item, upload));
                }
                // An existing folder is fine, whatever is kept.
                offer if verify || must_look && !offer.is_folder() => {
                    self.waiting.push_back(offer);
                }
                offer => accept(engine, offer, &mut accepted),
            }
        }
        accepted
    }

    /// Asks the server what is at the targets of offers that wait.
    pub fn pump(&mut self, engine: &mut Engine) {
        while self.asked.len() < LOOKS_MAX {
            let Some(first) = self.waiting.front() else { return };
            // A folder may be behind a link; a link is what it is.
            let follow = first.is_folder();
            let (mut offers, mut bytes) = (Vec::new(), 0);
            while let Some(offer) = self.waiting.pop_front_if(|offer| {
                bytes += offer.target().as_bytes().len();
                offer.is_folder() == follow
                    && offers.len() < LOOK_PATHS_MAX
                    && (offers.is_empty() || bytes <= FRAME_BYTES_MAX / 2)
            }) {
                offers.push(offer);
            }
            let paths = offers.iter().map(|offer| offer.target().clone()).collect();
            let request = engine.request();
            engine.send(ClientMessage::Stat { request, look: Look { follow, paths } });
            self.asked.insert(request, offers);
        }
    }

    /// The server says what is at the targets that this request named.
    pub fn stated(
        &mut self,
        engine: &mut Engine,
        request: u32,
        answers: Vec<Result<Entry, Fault>>,
    ) -> Accepted {
        let mut accepted = Accepted::default();
        let offers = self.asked.remove(&request).unwrap_or_default();
        if offers.len() != answers.len() {
            engine.broke(Fault::new(Code::Protocol, "the server looked at other paths"));
            return accepted;
        }
        for (offer, answer) in offers.into_iter().zip(answers) {
            match choose(engine, &offer, answer) {
                Ok(true) => accept(engine, offer, &mut accepted),
                Ok(false) => {}
                Err(fault) => engine.outcomes().failed(offer.item(), offer.into_label(), fault),
            }
        }
        accepted
    }

    /// Lets go of offers that wait.
    pub fn leave(&mut self, engine: &mut Engine) {
        let asked = std::mem::take(&mut self.asked).into_values().flatten();
        for offer in asked.chain(std::mem::take(&mut self.waiting)) {
            engine.outcomes().ledger().leave(offer.item(), offer.into_label(), false);
        }
    }
}

impl Offer {
    fn target(&self) -> &WirePath {
        match self {
            Self::File(_, upload) => &upload.remote,
            Self::Entry { entry, .. } => &entry.path,
        }
    }

    fn mtime_ns(&self) -> i64 {
        match self {
            Self::File(_, upload) => upload.mtime_ns,
            Self::Entry { mtime_ns, .. } => *mtime_ns,
        }
    }

    fn is_folder(&self) -> bool {
        matches!(self, Self::Entry { entry, .. } if entry.kind == EntryKind::Folder)
    }

    fn item(&self) -> Item {
        match self {
            Self::File(mark, _) | Self::Entry { mark, .. } => mark.item,
        }
    }

    fn into_label(self) -> String {
        match self {
            Self::File(_, upload) => upload.label,
            Self::Entry { label, .. } => label,
        }
    }
}

fn compare_of(item: Item, upload: Upload) -> Compare {
    let Upload { source, remote, size, label, .. } = upload;
    let shown = label.clone();
    Compare { item, remote, source, size, label, shown }
}

/// Whether an offer is accepted, now that it is known what is at its target.
fn choose(engine: &mut Engine, offer: &Offer, answer: Result<Entry, Fault>) -> Result<bool, Fault> {
    if engine.rules().task == Task::Verify {
        if let Offer::Entry { entry, .. } = offer {
            compare_kinds(&entry.kind, &answer?)?;
        }
        return Ok(false);
    }
    let there = existing(answer)?;
    let Some(reason) = engine.rules().skip(there.as_ref(), offer.mtime_ns()) else {
        return Ok(true);
    };
    let label = match offer {
        Offer::File(_, upload) => &upload.label,
        Offer::Entry { label, .. } => label,
    };
    engine.outcomes().skipped(offer.item(), label.clone(), reason);
    Ok(false)
}

/// Has an offer sent, or reports that it would be.
fn accept(engine: &mut Engine, offer: Offer, accepted: &mut Accepted) {
    if engine.rules().task == Task::DryRun {
        return plan(engine, offer);
    }
    match offer {
        Offer::File(mark, upload) => accepted.files.push((mark, upload)),
        Offer::Entry { mark, entry, label, .. } => accepted.makes.push((entry, (mark, label))),
    }
}

fn plan(engine: &mut Engine, offer: Offer) {
    let target = shown(&engine.options().connect.host, offer.target());
    let (kind, bytes) = match &offer {
        Offer::File(_, upload) => (EntryKind::File, upload.size),
        Offer::Entry { entry, .. } => (entry.kind.clone(), 0),
    };
    let item = offer.item();
    let path = offer.into_label();
    engine.outcomes().planned(item, Planned { path, target, kind, bytes });
}
