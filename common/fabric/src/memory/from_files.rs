//! Parts of a message that lie in files: a link that can sends them from there, and what
//! is in memory at their place is of no use. They may change before they are sent; the
//! peer has their digests, and asks again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Shorter parts among others cost less to copy than to send from their files.
pub const FROM_FILE_BYTES_MIN: u64 = 32 << 10;

/// The parts of a message that lie in files, in order.
#[derive(Clone, Debug, Default)]
pub struct FromFiles(Vec<Piece>);

#[derive(Clone, Debug)]
struct Piece {
    /// Where in the message it begins, and where it ends.
    at: usize,
    end: usize,
    file: Arc<File>,
    offset: u64,
}

/// What the next bytes of a message are.
#[derive(Debug)]
pub(crate) enum Part<'f> {
    /// Of this file, from this offset; so many.
    File(&'f File, u64, usize),
    /// In memory; so many.
    Memory(usize),
}

impl FromFiles {
    /// The `len` bytes at `at` of the message are those of a file from `offset`.
    ///
    /// # Panics
    /// When they begin before the last part ends: a bug of the caller.
    pub fn push(&mut self, at: usize, len: usize, file: Arc<File>, offset: u64) {
        assert!(self.0.last().is_none_or(|last| last.end <= at), "parts come in order");
        self.0.push(Piece { at, end: at + len, file, offset });
    }

    /// Whether all of the message is in memory.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What lies at `at` of the message, as far as `end`.
    pub(crate) fn part(&self, at: usize, end: usize) -> Part<'_> {
        let next = self.0.partition_point(|piece| piece.end <= at);
        match self.0.get(next) {
            Some(piece) if piece.at <= at => {
                let offset = piece.offset + (at - piece.at) as u64;
                Part::File(&piece.file, offset, piece.end.min(end) - at)
            }
            Some(piece) => Part::Memory(piece.at.min(end) - at),
            None => Part::Memory(end - at),
        }
    }

    /// Brings what lies in files into the memory of the message. A file that is shorter by now,
    /// or cannot be read, leaves something else there, which its digests tell.
    pub(super) fn fill(&self, message: &mut [u8]) {
        for piece in &self.0 {
            let _ = piece.file.read_exact_at(&mut message[piece.at..piece.end], piece.offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> Arc<File> {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(bytes).expect("writes");
        Arc::new(file)
    }

    /// The message, put together part by part.
    fn put_together(from: &FromFiles, memory: &[u8], begin: usize) -> Vec<u8> {
        let mut message = Vec::new();
        let mut at = begin;
        while at < memory.len() {
            let end = memory.len().min(at + 3);
            match from.part(at, end) {
                Part::File(file, offset, len) => {
                    let mut bytes = vec![0; len];
                    file.read_exact_at(&mut bytes, offset).expect("reads");
                    message.extend(bytes);
                    at += len;
                }
                Part::Memory(len) => {
                    message.extend(&memory[at..at + len]);
                    at += len;
                }
            }
        }
        message
    }

    #[test]
    fn a_message_is_its_memory_but_where_it_lies_in_files() {
        let mut from = FromFiles::default();
        from.push(2, 4, file(b"--ABCD--"), 2);
        from.push(6, 1, file(b"E"), 0);
        from.push(10, 2, file(b"FG"), 0);
        let memory = *b"0123456789ab";
        let whole = *b"01ABCDE789FG";
        for begin in 0..=whole.len() {
            assert_eq!(put_together(&from, &memory, begin), whole[begin..], "from {begin}");
        }
        let mut filled = memory;
        from.fill(&mut filled);
        assert_eq!(filled, whole);
    }

    #[test]
    fn a_file_that_shrank_takes_nothing_from_what_is_beside_it() {
        let mut from = FromFiles::default();
        from.push(1, 3, file(b"x"), 0);
        from.push(5, 2, file(b"yz"), 0);
        let mut message = *b"0123456";
        from.fill(&mut message);
        assert_eq!((message[0], &message[4..]), (b'0', &b"4yz"[..]));
    }

    #[test]
    #[should_panic(expected = "parts come in order")]
    fn parts_do_not_overlap() {
        let mut from = FromFiles::default();
        from.push(0, 3, file(b"abc"), 0);
        from.push(2, 1, file(b"d"), 0);
    }
}
