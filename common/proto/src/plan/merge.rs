//! The merge of two sorted streams. Takes entries of either side as they come, or
//! of both, and says what it needs when it has none; every entry is looked at once. A
//! stream that is not sorted, or has an entry outside its folders, is refused:
//! the other side is not believed.

use super::compare::{content, metadata};
use super::links::{Links, Role};
use super::side::Side;
use super::streams::{Meeting, Streams};
use super::{Options, Step, What, Why};
use crate::tree::{EntryKind, Found, Node, path_of};
use crate::{Code, Fault, WirePath};
use std::collections::{HashSet, VecDeque};

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// This is to be done.
    Step(Step),
    /// More entries of these sides are needed.
    Need {
        /// Of the source.
        source: bool,
        /// Of the target.
        target: bool,
    },
    /// Nothing more.
    End,
}

/// What was seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries of the source, its root not counted.
    pub source: u64,
    /// Entries of the target, its root not counted.
    pub target: u64,
    /// Deletes among the steps.
    pub deletes: u64,
    /// Entries of the source that cannot be told.
    pub faults: u64,
}

/// A merge under way.
#[derive(Debug)]
pub struct Diff {
    options: Options,
    streams: Streams,
    /// The folders of the source that the merge is in, the innermost last.
    folders: Vec<Open>,
    /// What is below this at the target is neither looked at nor deleted.
    kept: Option<WirePath>,
    /// What is below this in the source cannot be done.
    blocked: Option<WirePath>,
    links: Links,
    steps: VecDeque<Step>,
    counts: Counts,
}

/// A folder of the source, and whether something in it changes.
#[derive(Debug)]
struct Open {
    node: Box<Node>,
    why: Why,
    dirty: bool,
    /// Whether it is there, and its owner may not write to it.
    shut: bool,
    /// Its names in one case, where the target does not tell them apart.
    names: HashSet<Vec<u8>>,
}

impl Diff {
    /// A merge of two trees of which nothing is known yet.
    pub fn new(options: Options) -> Self {
        let delete = options.delete && !options.fold_case;
        Self {
            options: Options { delete, ..options },
            streams: Streams::default(),
            folders: Vec::new(),
            kept: None,
            blocked: None,
            links: Links::default(),
            steps: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Takes entries of one side, behind those before; `done` says that there are no more.
    pub fn push(&mut self, side: Side, found: Vec<Found>, done: bool) -> Result<(), Fault> {
        self.streams.push(side, found, done)
    }

    /// Takes entries that both sides have alike, and in the same order, behind those before of
    /// either; `ended` says whether there are no more of the source, and of the target. That they
    /// are sorted is for the caller to know: they are of this machine.
    pub fn push_alike(&mut self, found: Vec<Found>, ended: [bool; 2]) -> Result<(), Fault> {
        self.streams.push_alike(found, ended)
    }

    /// How many entries wait to be looked at.
    pub fn waiting(&self, side: Side) -> usize {
        self.streams.waiting(side)
    }

    /// What was seen so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Says what is to be done next. A fault ends the merge: the other side misbehaves.
    pub fn next_step(&mut self) -> Result<Next, Fault> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                return Ok(Next::Step(step));
            }
            let (source, target) = self.streams.lack();
            if source || target {
                return Ok(Next::Need { source, target });
            }
            match self.streams.take() {
                None if self.folders.is_empty() => return Ok(Next::End),
                None => self.leave_folders(None),
                Some(Meeting::Apart(source, target)) => self.meet(source, target)?,
                Some(Meeting::Alike(found)) => self.meet_alike(found)?,
            }
        }
    }

    /// Looks at what both sides have alike: of files and links there is nothing to do.
    fn meet_alike(&mut self, found: Found) -> Result<(), Fault> {
        let is_plain = |node: &Node| {
            let kind = matches!(node.kind, EntryKind::File | EntryKind::Symlink { .. });
            kind && node.twin.is_none()
        };
        if self.options.fold_case || !found.as_ref().is_ok_and(|node| is_plain(node)) {
            let there = found.clone();
            return self.meet(Some(found), Some(there));
        }
        let path = path_of(&found);
        self.leave_folders(Some(path));
        self.counts.source += 1;
        self.counts.target += 1;
        self.check_parent(path)
    }

    /// Looks at what one or both sides have at a path.
    fn meet(&mut self, source: Option<Found>, target: Option<Found>) -> Result<(), Fault> {
        let Some(path) = source.as_ref().or(target.as_ref()).map(path_of) else { return Ok(()) };
        self.leave_folders(Some(path));
        self.counts.source += u64::from(source.is_some() && !path.is_root());
        self.counts.target += u64::from(target.is_some() && !path.is_root());
        if source.is_some() {
            self.check_parent(path)?;
        }
        let is_below = |of: &Option<WirePath>| of.as_ref().is_some_and(|of| path.is_below(of));
        if source.is_some() && is_below(&self.blocked) {
            return Ok(());
        }
        let is_kept = is_below(&self.kept);
        match (source, target) {
            (Some(Err((path, fault))), _) => {
                self.counts.faults += 1;
                self.kept = Some(path.clone());
                self.refuse(path, fault);
            }
            (Some(Ok(_)), Some(Err((path, fault)))) => self.block(path, fault),
            (Some(Ok(node)), target) => {
                let target = target.and_then(Result::ok);
                self.wanted(node, target.as_deref());
            }
            // Nobody asked for it, and whether it would be deleted is another matter.
            (None, Some(Err((path, fault)))) if self.options.delete && !is_kept => {
                self.refuse(path, fault);
            }
            (None, Some(Ok(node))) if !is_kept => self.extra(&node),
            _ => {}
        }
        Ok(())
    }

    /// An entry of the source must be in a folder of the source.
    fn check_parent(&self, path: &WirePath) -> Result<(), Fault> {
        let known = |folder: &WirePath| path.is_root() || path.parent_bytes() == folder.as_bytes();
        let blocked = self.blocked.as_ref().is_some_and(|blocked| path.is_below(blocked));
        if blocked || self.folders.last().map_or(path.is_root(), |open| known(&open.node.path)) {
            return Ok(());
        }
        Err(Fault::new(Code::Protocol, format!("{path} came without the folder it is in")))
    }

    /// Finishes the folders that `path` is not in.
    fn leave_folders(&mut self, path: Option<&WirePath>) {
        let is_in = |open: &Open| path.is_some_and(|path| path.is_below(&open.node.path));
        while let Some(open) = self.folders.pop_if(|open| !is_in(open)) {
            if open.dirty || !open.why.is_empty() {
                let (what, why) = (What::Finish { node: open.node }, open.why);
                self.steps.push_back(Step { what, why });
            }
        }
    }

    /// Something of the source, and what the target has of that name.
    fn wanted(&mut self, node: Box<Node>, there: Option<&Node>) {
        if self.is_twice(&node) {
            let text = "another name of the same folder differs only in case, and the target \
                        does not tell them apart";
            return self.block(node.path, Fault::new(Code::BadPath, text));
        }
        match node.kind {
            EntryKind::Special => {
                self.kept = Some(node.path.clone());
                self.steps
                    .push_back(Step { what: What::Skip { path: node.path }, why: Why::default() });
            }
            EntryKind::Folder => self.wanted_folder(node, there),
            EntryKind::File | EntryKind::Symlink { .. } => {
                let in_the_way = there.is_some_and(Node::is_folder);
                if in_the_way && !self.options.delete {
                    let fault = Fault::new(Code::IsFolder, "a folder is in its place");
                    self.kept = Some(node.path.clone());
                    return self.refuse(node.path, fault);
                }
                if in_the_way {
                    self.delete(node.path.clone(), true);
                }
                match node.kind {
                    EntryKind::File => self.wanted_file(node, there),
                    _ => self.wanted_link(node, there),
                }
            }
        }
    }

    /// Whether the target would take it for another entry of the same folder.
    fn is_twice(&mut self, node: &Node) -> bool {
        let (Some(open), Some(name)) = (self.folders.last_mut(), node.path.name()) else {
            return false;
        };
        let folded = || String::from_utf8_lossy(name).to_lowercase().into_bytes();
        self.options.fold_case && !open.names.insert(folded())
    }

    fn wanted_folder(&mut self, node: Box<Node>, there: Option<&Node>) {
        let why = match there {
            Some(there) if there.is_folder() => metadata(&node, there, &self.options),
            Some(_) if !self.options.delete => {
                let text = "something that is no folder is in its place";
                return self.block(node.path, Fault::new(Code::NotFolder, text));
            }
            there => {
                let replace = there.is_some();
                let why = if replace { Why::KIND } else { Why::NEW };
                self.change(What::MakeFolder { node: node.clone(), replace }, why);
                // Its metadata follows without a reason of its own.
                let (why, names) = (Why::default(), HashSet::new());
                self.folders.push(Open { node, why, dirty: true, shut: false, names });
                return;
            }
        };
        let shut = there.is_some_and(|there| there.meta.mode & 0o700 != 0o700);
        self.folders.push(Open { node, why, dirty: false, shut, names: HashSet::new() });
    }

    /// Links what is another name of something that came before, unless it is that already. True
    /// where it is not.
    fn is_first(&mut self, node: &Node, there: Option<&Node>, same: Option<&Node>) -> bool {
        match self.links.role(node.twin, same.and_then(|same| same.twin)) {
            Role::Leader => return true,
            Role::Right => {}
            Role::Follower(to) => {
                let (new, late) = (there.is_none(), there.is_some_and(Node::is_folder));
                let why = Why { new, kind: !new && same.is_none(), link: true, ..Why::default() };
                self.change(What::Link { path: node.path.clone(), to, late }, why);
            }
        }
        false
    }

    fn wanted_file(&mut self, node: Box<Node>, there: Option<&Node>) {
        let late = there.is_some_and(Node::is_folder);
        let file = there.filter(|there| there.kind == EntryKind::File);
        let was = file.and_then(|file| file.twin);
        if !self.is_first(&node, there, file) {
            return;
        }
        let Some(file) = file else {
            self.links.lead(&node.path, node.twin, None);
            let why = if there.is_some() { Why::KIND } else { Why::NEW };
            return self.change(What::Fetch { node, there: false, late }, why);
        };
        let about = metadata(&node, file, &self.options);
        let mut why = content(&node, file, &self.options);
        // Where the source has one name of it and the target several, one of those may be out of
        // sight, and is another file.
        let others = node.twin.is_none() && was.is_some();
        let elsewhere = self.options.part && others && !about.is_empty();
        why.link = elsewhere || !self.links.may_keep(was);
        if !why.is_empty() {
            self.links.lead(&node.path, node.twin, None);
            let why = Why { size: why.size, content: why.content, link: why.link, ..about };
            return self.change(What::Fetch { node, there: true, late }, why);
        }
        let kept = was.filter(|_| !self.options.apart || about.is_empty());
        self.links.lead(&node.path, node.twin, kept);
        if !about.is_empty() {
            // Done to the file itself: the time of its folder stays.
            self.steps.push_back(Step { what: What::Describe { node }, why: about });
        }
    }

    fn wanted_link(&mut self, node: Box<Node>, there: Option<&Node>) {
        let late = there.is_some_and(Node::is_folder);
        let link = there.filter(|there| matches!(there.kind, EntryKind::Symlink { .. }));
        if !self.is_first(&node, there, link) {
            return;
        }
        let was = link.and_then(|link| link.twin);
        let why = match (there, link) {
            (None, _) => Why::NEW,
            (Some(_), None) => Why::KIND,
            (Some(_), Some(link)) => Why {
                content: node.kind != link.kind,
                link: !self.links.may_keep(was),
                ..metadata(&node, link, &self.options)
            },
        };
        self.links.lead(&node.path, node.twin, was.filter(|_| why.is_empty()));
        if !why.is_empty() {
            self.change(What::Symlink { node, late }, why);
        }
    }

    /// Something that only the target has.
    fn extra(&mut self, node: &Node) {
        if node.path.is_root() {
            return;
        }
        if self.options.delete {
            self.delete(node.path.clone(), node.is_folder());
        } else if self.options.apart && !self.options.fold_case {
            let what = What::Revert { path: node.path.clone() };
            self.steps.push_back(Step { what, why: Why::default() });
        }
    }

    fn delete(&mut self, path: WirePath, is_folder: bool) {
        self.counts.deletes += 1;
        self.change(What::Delete { path, is_folder }, Why::GONE);
    }

    /// A step that changes the time of the folder it is done in.
    fn change(&mut self, what: What, why: Why) {
        if let Some(open) = self.folders.last_mut() {
            open.dirty = true;
            if std::mem::take(&mut open.shut) {
                let (what, why) = (What::OpenUp { path: open.node.path.clone() }, Why::default());
                self.steps.push_back(Step { what, why });
            }
        }
        self.steps.push_back(Step { what, why });
    }

    /// Something cannot be done, and nothing below it.
    fn block(&mut self, path: WirePath, fault: Fault) {
        self.blocked = Some(path.clone());
        self.kept = Some(path.clone());
        self.refuse(path, fault);
    }

    fn refuse(&mut self, path: WirePath, fault: Fault) {
        self.steps.push_back(Step { what: What::Refuse { path, fault }, why: Why::default() });
    }
}
