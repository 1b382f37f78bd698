//! The names in a folder, sorted by their bytes. Kept in one piece of memory: a
//! folder of a million names takes what its names take, and six bytes for each.
//! Called by the walk of a tree that is mirrored.

use rustix::fs::{FileType, RawDir, SeekFrom, seek};
use std::os::fd::OwnedFd;
use verbatim_proto::{Code, Fault};

/// Read of a folder at a time: many of its longest names.
const READ_BYTES: usize = 32 << 10;

/// Sorted names, taken one by one.
pub(crate) struct Names {
    /// Each behind a byte that is 1 where it may be that of a folder, and ended by a zero.
    bytes: Vec<u8>,
    /// Where each name begins, the next one last.
    starts: Vec<u32>,
    longest: usize,
}

impl Names {
    /// Reads all names of an open folder; `what` is for messages.
    pub fn read(fd: &OwnedFd, what: &str) -> Result<Self, Fault> {
        let fault = |e: rustix::io::Errno| Fault::from_io(what, &e.into());
        seek(fd, SeekFrom::Start(0)).map_err(fault)?;
        let mut read = Vec::with_capacity(READ_BYTES);
        let mut dir = RawDir::new(fd, read.spare_capacity_mut());
        let (mut bytes, mut starts, mut longest) = (Vec::new(), Vec::new(), 0);
        while let Some(entry) = dir.next() {
            let entry = entry.map_err(fault)?;
            let name = entry.file_name().to_bytes_with_nul();
            if matches!(name, b".\0" | b"..\0") {
                continue;
            }
            // Not every file system says what a name is.
            let may_be_folder =
                matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            bytes.push(u8::from(may_be_folder));
            let start = u32::try_from(bytes.len()).map_err(|_| {
                Fault::new(Code::Limit, format!("{what}: its names take more than 4 GiB"))
            })?;
            starts.push(start);
            bytes.extend_from_slice(name);
            longest = longest.max(name.len() - 1);
        }
        // The next one last, so that taking one is popping. Names have no zero in them, so two of
        // them differ at the latest where one ends, and nothing behind that is compared.
        starts.sort_unstable_by(|a, b| bytes[*b as usize..].cmp(&bytes[*a as usize..]));
        Ok(Self { bytes, starts, longest })
    }

    /// How long the longest name is.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Whether the next name may be that of a folder; none where there is no next one.
    pub fn next_may_be_folder(&self) -> Option<bool> {
        self.starts.last().map(|&start| self.bytes[start as usize - 1] == 1)
    }

    /// The next name.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        self.take_into(&mut name).then_some(name)
    }

    /// Puts the next name in place of what is in `into`; false where there is none.
    pub fn take_into(&mut self, into: &mut Vec<u8>) -> bool {
        into.clear();
        let next = self.starts.pop().map(|start| name_at(&self.bytes, start));
        into.extend_from_slice(next.unwrap_or_default());
        next.is_some()
    }
}

fn name_at(bytes: &[u8], start: u32) -> &[u8] {
    let rest = &bytes[start as usize..];
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    &rest[..end]
}
