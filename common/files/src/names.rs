//! The names in a folder, sorted by their bytes. Kept in one piece of memory: a
//! folder of a million names takes what its names take, and four bytes for each.
//! Called by the walk of a tree that is mirrored.

use rustix::fs::Dir;
use std::os::fd::OwnedFd;
use verbatim_proto::{Code, Fault};

/// Sorted names, taken one by one.
pub(crate) struct Names {
    bytes: Vec<u8>,
    /// Where each name begins, the next one last.
    starts: Vec<u32>,
}

impl Names {
    /// Reads all names of an open folder; `what` is for messages.
    pub fn read(fd: &OwnedFd, what: &str) -> Result<Self, Fault> {
        let fault = |e: rustix::io::Errno| Fault::from_io(what, &e.into());
        let dir = Dir::read_from(fd).map_err(fault)?;
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for entry in dir {
            let entry = entry.map_err(fault)?;
            let name = entry.file_name().to_bytes_with_nul();
            if matches!(name, b".\0" | b"..\0") {
                continue;
            }
            let start = u32::try_from(bytes.len()).map_err(|_| {
                Fault::new(Code::Limit, format!("{what}: its names take more than 4 GiB"))
            })?;
            starts.push(start);
            bytes.extend_from_slice(name);
        }
        // The next one last, so that taking one is popping.
        starts.sort_unstable_by(|a, b| name_at(&bytes, *b).cmp(name_at(&bytes, *a)));
        Ok(Self { bytes, starts })
    }

    /// How long the longest name is.
    pub fn longest(&self) -> usize {
        self.bytes.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0)
    }

    /// The next name.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.starts.pop().map(|start| name_at(&self.bytes, start).to_vec())
    }
}

fn name_at(bytes: &[u8], start: u32) -> &[u8] {
    let rest = &bytes[start as usize..];
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    &rest[..end]
}
