//! A queue of any length: one page in memory, the rest in an unnamed temporary file, which the
//! kernel removes with the process. Read from the front, or from the end where the last entry must
//! come first. Mirrors queue their deferred steps here.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;
use verbatim_proto::wire::{PREFIX_BYTES, decode, encode};
use verbatim_proto::{Code, Fault};

/// A page in memory is written once it is this long.
const PAGE_BYTES: usize = 128 << 10;

/// A queue of any length: a page of 128 KiB in memory, the rest in an unnamed temporary file.
pub struct Spool<T> {
    file: Option<File>,
    /// Offset and length of the pages in the file.
    pages: VecDeque<(u64, usize)>,
    end: u64,
    /// The last page, not yet written: encoded entries.
    tail: Vec<u8>,
    count: u64,
    of: PhantomData<T>,
}

impl<T> Default for Spool<T> {
    fn default() -> Self {
        let (pages, tail) = (VecDeque::new(), Vec::new());
        Self { file: None, pages, end: 0, tail, count: 0, of: PhantomData }
    }
}

impl<T: Serialize + DeserializeOwned> Spool<T> {
    /// How many entries were added, in all.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds an entry at the end. Fails if the temporary file cannot be written.
    pub fn push(&mut self, thing: &T) -> Result<(), Fault> {
        let frame = encode(thing).map_err(|e| Fault::new(Code::Limit, e.to_string()))?;
        self.tail.extend_from_slice(&frame);
        self.count += 1;
        if self.tail.len() >= PAGE_BYTES {
            self.write().map_err(|e| Fault::from_io("cannot keep a list of what is to do", &e))?;
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        file.write_all_at(&self.tail, self.end)?;
        self.pages.push_back((self.end, self.tail.len()));
        self.end += self.tail.len() as u64;
        self.tail.clear();
        Ok(())
    }

    /// Removes a page of entries from the front, in order; empty when the queue is.
    pub fn take_front_page(&mut self) -> Result<Vec<T>, Fault> {
        match self.pages.pop_front() {
            Some(page) => self.read(page),
            None => parse(&std::mem::take(&mut self.tail)),
        }
    }

    /// Removes a page of entries from the end, the last first; empty when the queue is.
    pub fn take_back_page(&mut self) -> Result<Vec<T>, Fault> {
        let mut page = match (self.tail.is_empty(), self.pages.pop_back()) {
            (true, Some(page)) => self.read(page)?,
            (_, page) => {
                self.pages.extend(page);
                parse(&std::mem::take(&mut self.tail))?
            }
        };
        page.reverse();
        Ok(page)
    }

    fn read(&self, (offset, len): (u64, usize)) -> Result<Vec<T>, Fault> {
        let what = "cannot read a list of what is to do";
        let mut bytes = vec![0; len];
        let file = self.file.as_ref().ok_or_else(|| Fault::new(Code::Io, what))?;
        file.read_exact_at(&mut bytes, offset).map_err(|e| Fault::from_io(what, &e))?;
        parse(&bytes)
    }
}

fn parse<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<Vec<T>, Fault> {
    let broken = || Fault::new(Code::Io, "a list of what is to do is damaged");
    let mut things = Vec::new();
    while let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_BYTES>() {
        let len = u32::from_le_bytes(*prefix) as usize;
        let (body, rest) = rest.split_at_checked(len).ok_or_else(broken)?;
        things.push(decode(body).map_err(|_| broken())?);
        bytes = rest;
    }
    Ok(things)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: u64) -> Spool<String> {
        let mut spool = Spool::default();
        (0..count).for_each(|number| spool.push(&format!("step {number}")).expect("room"));
        spool
    }

    #[test]
    fn entries_come_back_in_order_and_in_reverse() {
        for count in [0, 1, 100_000] {
            let (mut spool, mut taken) = (filled(count), Vec::new());
            assert_eq!(spool.count(), count);
            loop {
                let page = spool.take_front_page().expect("reads");
                if page.is_empty() {
                    break;
                }
                taken.extend(page);
            }
            let all: Vec<String> = (0..count).map(|number| format!("step {number}")).collect();
            assert_eq!(taken, all);
            let (mut spool, mut taken) = (filled(count), Vec::new());
            loop {
                let page = spool.take_back_page().expect("reads");
                if page.is_empty() {
                    break;
                }
                taken.extend(page);
            }
            assert!(taken.iter().rev().eq(&all));
        }
    }
}
