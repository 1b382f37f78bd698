//! What waits to be compared: the entries of two trees, each in the order of its
//! walk, and in the middle of both those that both have alike. Says which is next.

use super::side::Side;
use crate::tree::{Found, path_of};
use crate::{Code, Fault, WirePath};
use std::cmp::Ordering;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct Streams {
    source: Stream,
    target: Stream,
}

#[derive(Debug, Default)]
struct Stream {
    told: VecDeque<Told>,
    ended: bool,
    last: Option<WirePath>,
}

#[derive(Debug)]
enum Told {
    Found(Found),
    /// Both have it, and it is kept with the source: the same number of these is in both streams.
    Alike(Option<Found>),
}

/// What the two trees have at a path.
pub(super) enum Meeting {
    /// One of them has something, or both.
    Apart(Option<Found>, Option<Found>),
    /// Both have this.
    Alike(Found),
}

impl Streams {
    /// Takes entries of one side, behind those before; `done` says that there are no more.
    pub fn push(&mut self, side: Side, found: Vec<Found>, done: bool) -> Result<(), Fault> {
        let stream = self.of(side);
        for found in found {
            stream.follow(path_of(&found))?;
            stream.told.push_back(Told::Found(found));
        }
        stream.keep_last();
        stream.ended |= done;
        Ok(())
    }

    /// Takes entries of both sides, which are sorted, behind those before of either.
    pub fn push_alike(&mut self, found: Vec<Found>, ended: [bool; 2]) -> Result<(), Fault> {
        if let Some(first) = found.first().map(path_of) {
            self.source.follow(first)?;
            self.target.follow(first)?;
        }
        let last = found.last().map(|found| path_of(found).clone());
        for found in found {
            self.source.told.push_back(Told::Alike(Some(found)));
            self.target.told.push_back(Told::Alike(None));
        }
        for (stream, ended) in [&mut self.source, &mut self.target].into_iter().zip(ended) {
            stream.last = last.clone().or_else(|| stream.last.take());
            stream.ended |= ended;
        }
        Ok(())
    }

    /// How many entries of a side wait.
    pub fn waiting(&self, side: Side) -> usize {
        match side {
            Side::Source => self.source.told.len(),
            Side::Target => self.target.told.len(),
        }
    }

    /// Of which side it is not known what comes next: of the source, of the target.
    pub fn lack(&self) -> (bool, bool) {
        let lacks = |stream: &Stream| stream.told.is_empty() && !stream.ended;
        (lacks(&self.source), lacks(&self.target))
    }

    /// Takes what comes next, when nothing lacks; none at the end of both.
    pub fn take(&mut self) -> Option<Meeting> {
        let order = match (self.source.told.front(), self.target.told.front()) {
            (None, None) => return None,
            (Some(Told::Alike(_)), Some(Told::Alike(_))) => Ordering::Equal,
            // What is before an entry that both have is before it in either.
            (Some(Told::Alike(_)), Some(_)) | (None, Some(_)) => Ordering::Greater,
            (Some(_), Some(Told::Alike(_)) | None) => Ordering::Less,
            (Some(Told::Found(source)), Some(Told::Found(target))) => {
                path_of(source).tree_cmp(path_of(target))
            }
        };
        let source = if order.is_le() { self.source.told.pop_front() } else { None };
        let target = if order.is_ge() { self.target.told.pop_front() } else { None };
        let found = |told: Option<Told>| match told {
            Some(Told::Found(found)) => Some(found),
            _ => None,
        };
        Some(match source {
            Some(Told::Alike(Some(found))) => Meeting::Alike(found),
            source => Meeting::Apart(found(source), found(target)),
        })
    }

    fn of(&mut self, side: Side) -> &mut Stream {
        match side {
            Side::Source => &mut self.source,
            Side::Target => &mut self.target,
        }
    }
}

impl Stream {
    /// Refuses a path that is not behind all before it.
    fn follow(&self, path: &WirePath) -> Result<(), Fault> {
        let last = match self.told.back() {
            Some(Told::Found(found)) => Some(path_of(found)),
            _ => self.last.as_ref(),
        };
        if last.is_some_and(|last| last.tree_cmp(path).is_ge()) {
            let text = format!("{path} came out of order in a list of a tree");
            return Err(Fault::new(Code::Protocol, text));
        }
        Ok(())
    }

    /// What comes next is behind the last, also when that was taken by then.
    fn keep_last(&mut self) {
        if let Some(Told::Found(found)) = self.told.back() {
            self.last = Some(path_of(found).clone());
        }
    }
}
