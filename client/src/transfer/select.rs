//! What becomes of everything a copy finds, by its rules: it is copied, left
//! alone, only told of, or compared. On the way down the target is looked at
//! here; on the way up the server is asked, many paths at a time.

use crate::engine::ledger::Item;
use crate::model::copy_policy::Task;
use crate::model::location::shown;
use crate::model::report::Planned;
use crate::session::dispatch::Core;
use crate::transfer::dir_metadata::Mark;
use crate::transfer::download::Download;
use crate::transfer::upload::{Upload, UploadSource};
use crate::transfer::verify::Compare;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use verbatim_files::Folder;
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
pub(crate) struct Choices {
    waiting: VecDeque<Offer>,
    asked: HashMap<u32, Vec<Offer>>,
}

impl Choices {
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.asked.is_empty()
    }

    /// Whether the server was asked and has not answered.
    pub fn awaits(&self) -> bool {
        !self.asked.is_empty()
    }

    pub fn queued(&self) -> usize {
        self.waiting.len() + self.asked.values().map(Vec::len).sum::<usize>()
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

/// Cuts a list into messages that the server takes and can answer.
pub(crate) fn look_batches<T>(items: Vec<T>, path_of: impl Fn(&T) -> &[u8]) -> Vec<Vec<T>> {
    let mut batches: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for item in items {
        bytes += path_of(&item).len();
        match batches.last_mut() {
            Some(batch) if batch.len() < LOOK_PATHS_MAX && bytes <= FRAME_BYTES_MAX / 2 => {
                batch.push(item);
            }
            _ => {
                bytes = path_of(&item).len();
                batches.push(vec![item]);
            }
        }
    }
    batches
}

/// The way down.
impl Core {
    pub(crate) fn add_download(&mut self, mark: Mark, download: Download) {
        let item = mark.item;
        if self.ledger.is_over(item) {
            return;
        }
        if self.rules.task == Task::Verify {
            let Download { remote, folder, local, size, label, .. } = download;
            let shown = folder.shown(&local);
            let source = UploadSource::Below(folder, local);
            return self.add_compare(Compare { item, remote, source, size, label, shown });
        }
        let Download { folder, local, mtime_ns, label, .. } = &download;
        match self.skip_at(item, folder, local, *mtime_ns, label) {
            Ok(false) => {}
            Ok(true) => return,
            Err(fault) => return self.failed(item, download.label, fault),
        }
        if self.rules.task == Task::DryRun {
            let (path, target) = (download.label, download.folder.shown(&download.local));
            let (kind, bytes) = (EntryKind::File, download.size);
            return self.planned(item, Planned { path, target, kind, bytes });
        }
        self.queue_download(mark, download);
    }

    /// A folder of a remote tree: made, told of, or looked for. One that is to keep its metadata
    /// gets it last, and is nobody else's business until then.
    pub(crate) fn take_folder(
        &mut self,
        item: Item,
        folder: &Arc<Folder>,
        local: &WirePath,
        mode: u32,
        label: &str,
    ) -> Result<(), Fault> {
        match self.rules.task {
            Task::Copy => {
                let unfinished = self.options.preserve;
                let mode = if unfinished { 0o700 } else { mode };
                match self.rules.force && !is_link(folder, local) {
                    true => folder.force_folder(local, mode, unfinished),
                    false => folder.make_folder(local, mode, unfinished),
                }
            }
            Task::DryRun => {
                let (path, target) = (label.to_owned(), folder.shown(local));
                self.planned(item, Planned { path, target, kind: EntryKind::Folder, bytes: 0 });
                Ok(())
            }
            Task::Verify => compare_kinds(&EntryKind::Folder, &folder.stat(local, true)?),
        }
    }

    /// A link of a remote tree: made, left alone, told of, or compared.
    pub(crate) fn take_link(
        &mut self,
        item: Item,
        folder: &Arc<Folder>,
        local: &WirePath,
        link: &Entry,
        label: &str,
    ) -> Result<(), Fault> {
        if self.rules.task == Task::Verify {
            return compare_kinds(&link.kind, &folder.stat(local, false)?);
        }
        if self.skip_at(item, folder, local, link.mtime_ns, label)? {
            return Ok(());
        }
        match &link.kind {
            EntryKind::Symlink { target } if self.rules.task == Task::Copy => {
                let allowed = verbatim_files::Rules::of_user();
                let keep = link.meta.as_deref().map(|meta| (meta, &allowed));
                let made = folder.make_symlink(local, target, keep, self.rules.over())?;
                self.ledger.summary.dropped += made;
            }
            kind => {
                let (path, target) = (label.to_owned(), folder.shown(local));
                let kind = kind.clone();
                self.planned(item, Planned { path, target, kind, bytes: 0 });
            }
        }
        Ok(())
    }

    /// Whether what is at a target here is left alone; says so if it is.
    fn skip_at(
        &mut self,
        item: Item,
        folder: &Folder,
        local: &WirePath,
        mtime_ns: i64,
        label: &str,
    ) -> Result<bool, Fault> {
        if !self.rules.must_look() {
            return Ok(false);
        }
        let there = what_is_there(folder.stat(local, false))?;
        let skip = self.rules.skip(there.as_ref(), mtime_ns);
        if let Some(reason) = skip {
            self.skipped(item, label.to_owned(), reason);
        }
        Ok(skip.is_some())
    }
}

/// Whether a link is in the place of a folder: it may lead to where somebody wants its files, so
/// it is not taken away as a file is.
fn is_link(folder: &Folder, path: &WirePath) -> bool {
    matches!(folder.stat(path, false), Ok(Entry { kind: EntryKind::Symlink { .. }, .. }))
}

/// The way up.
impl Core {
    /// Sends these, or does with them what the rules say.
    pub(crate) fn offer(&mut self, offers: Vec<Offer>) {
        let verify = self.rules.task == Task::Verify;
        let must_look = self.rules.must_look();
        let mut now = Vec::new();
        // A folder that is there already is no harm; everything else is offered once.
        let over = |offer: &Offer| !offer.is_folder() && self.ledger.is_over(offer.item());
        let offers: Vec<Offer> = offers.into_iter().filter(|offer| !over(offer)).collect();
        for offer in offers {
            match offer {
                Offer::File(mark, upload) if verify => self.compare_upload(mark.item, upload),
                // An existing folder is fine, whatever is kept.
                offer if verify || must_look && !offer.is_folder() => {
                    self.choices.waiting.push_back(offer);
                }
                offer => now.push(offer),
            }
        }
        self.accept(now);
    }

    fn compare_upload(&mut self, item: Item, upload: Upload) {
        let Upload { source, remote, size, label, .. } = upload;
        let shown = label.clone();
        self.add_compare(Compare { item, remote, source, size, label, shown });
    }

    /// Asks the server what is at the targets of what waits.
    pub(crate) fn pump_choices(&mut self) {
        while self.choices.asked.len() < LOOKS_MAX {
            let Some(first) = self.choices.waiting.front() else { return };
            // A folder may be behind a link; a link is what it is.
            let follow = first.is_folder();
            let (mut offers, mut bytes) = (Vec::new(), 0);
            while let Some(offer) = self.choices.waiting.pop_front_if(|offer| {
                bytes += offer.target().as_bytes().len();
                offer.is_folder() == follow
                    && offers.len() < LOOK_PATHS_MAX
                    && (offers.is_empty() || bytes <= FRAME_BYTES_MAX / 2)
            }) {
                offers.push(offer);
            }
            let paths = offers.iter().map(|offer| offer.target().clone()).collect();
            let request = self.request();
            self.sending.push_back(ClientMessage::Stat { request, look: Look { follow, paths } });
            self.choices.asked.insert(request, offers);
        }
    }

    /// Takes an answer of the server; gives it back if it was asked for elsewhere.
    pub(crate) fn looked(
        &mut self,
        request: u32,
        answers: Vec<Result<Entry, Fault>>,
    ) -> Option<Vec<Result<Entry, Fault>>> {
        let Some(offers) = self.choices.asked.remove(&request) else { return Some(answers) };
        if offers.len() != answers.len() {
            self.broke(Fault::new(Code::Protocol, "the server looked at other paths"));
            return None;
        }
        let mut accepted = Vec::new();
        for (offer, answer) in offers.into_iter().zip(answers) {
            match self.choose(&offer, answer) {
                Ok(true) => accepted.push(offer),
                Ok(false) => {}
                Err(fault) => self.failed(offer.item(), offer.into_label(), fault),
            }
        }
        self.accept(accepted);
        None
    }

    /// Whether an offer is sent, now that it is known what is there.
    fn choose(&mut self, offer: &Offer, answer: Result<Entry, Fault>) -> Result<bool, Fault> {
        if self.rules.task == Task::Verify {
            if let Offer::Entry { entry, .. } = offer {
                compare_kinds(&entry.kind, &answer?)?;
            }
            return Ok(false);
        }
        let there = what_is_there(answer)?;
        let Some(reason) = self.rules.skip(there.as_ref(), offer.mtime_ns()) else {
            return Ok(true);
        };
        let label = match offer {
            Offer::File(_, upload) => &upload.label,
            Offer::Entry { label, .. } => label,
        };
        self.skipped(offer.item(), label.clone(), reason);
        Ok(false)
    }

    /// Sends what was chosen, or tells of it.
    fn accept(&mut self, offers: Vec<Offer>) {
        let (mut makes, mut files) = (Vec::new(), Vec::new());
        for offer in offers {
            if self.rules.task == Task::DryRun {
                self.plan_offer(offer);
                continue;
            }
            match offer {
                Offer::File(mark, upload) => files.push((mark, upload)),
                Offer::Entry { mark, entry, label, .. } => makes.push((entry, (mark, label))),
            }
        }
        if !makes.is_empty() || !files.is_empty() {
            self.make(makes, files);
        }
    }

    fn plan_offer(&mut self, offer: Offer) {
        let target = shown(&self.options.connect.host, offer.target());
        let (kind, bytes) = match &offer {
            Offer::File(_, upload) => (EntryKind::File, upload.size),
            Offer::Entry { entry, .. } => (entry.kind.clone(), 0),
        };
        let item = offer.item();
        self.planned(item, Planned { path: offer.into_label(), target, kind, bytes });
    }

    /// Lets go of what waits.
    pub(crate) fn leave_choices(&mut self) {
        let choices = std::mem::take(&mut self.choices);
        for offer in choices.asked.into_values().flatten().chain(choices.waiting) {
            self.ledger.leave(offer.item(), offer.into_label(), false);
        }
    }
}

/// What is at a target, where nothing is an answer too.
fn what_is_there(answer: Result<Entry, Fault>) -> Result<Option<Entry>, Fault> {
    match answer {
        Ok(entry) => Ok(Some(entry)),
        // A file where a folder should be is found out when it is made.
        Err(fault) if matches!(fault.code, Code::NotFound | Code::NotFolder) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Says how a folder or link is not what it should be.
fn compare_kinds(wanted: &EntryKind, there: &Entry) -> Result<(), Fault> {
    let differs = match (wanted, &there.kind) {
        (wanted, there) if wanted == there => return Ok(()),
        (EntryKind::Folder, _) => "it is no folder at the target".to_owned(),
        (_, EntryKind::Symlink { target }) => {
            format!("its copy leads to {}", String::from_utf8_lossy(target))
        }
        _ => "it is no link at the target".to_owned(),
    };
    Err(Fault::new(Code::Mismatch, differs))
}
