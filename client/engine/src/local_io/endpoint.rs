//! The local end of a copy: a `DataSource` of chunks, or a `DataSink` of verified ranges. Each is a
//! file or a pipe; workers treat them alike.

use crate::local_io::download_file::DownloadFile;
use crate::local_io::range_buffer::RangeBuffer;
use crate::local_io::stdin_source::StdinSource;
use crate::local_io::stdout_sink::StdoutSession;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use verbatim_files::Source;
use verbatim_files::holes::hash_zeros;
use verbatim_proto::message::FileInfo;
use verbatim_proto::{Digest, Extent, Fault};

/// A source of chunks.
#[derive(Clone)]
pub(crate) enum DataSource {
    File(Arc<Source>),
    Pipe(Arc<StdinSource>),
}

impl DataSource {
    /// The size, as far as it is known.
    pub fn size(&self) -> u64 {
        match self {
            Self::File(source) => source.identity().size,
            Self::Pipe(stdin) => stdin.size(),
        }
    }

    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), Fault> {
        match self {
            Self::File(source) => {
                let read = source.file().read_exact_at(bytes, offset);
                read.map_err(|error| source.read_fault(&error))
            }
            Self::Pipe(stdin) => stdin.read_at(bytes, offset),
        }
    }

    /// Remembers digests that the other side received, to detect a change of the source later.
    pub fn hand_out(&self, extent: Extent, digests: &[Digest]) {
        if let Self::File(source) = self {
            source.hand_out(extent, digests);
        }
    }

    /// Whether digests of bytes read now may be stored for a later run.
    pub fn is_settled(&self) -> bool {
        self.file().is_some_and(|source| source.is_settled())
    }

    /// Whether that was true ever since the file was opened.
    pub fn was_settled(&self) -> bool {
        self.file().is_some_and(|source| !source.is_racy())
    }

    /// Stores digests for a later run.
    pub fn note(&self, extent: Extent, digests: &[Digest]) {
        if let Self::File(source) = self {
            source.note(extent, digests);
        }
    }

    /// The file, for links that can send from it.
    pub fn file(&self) -> Option<&Arc<Source>> {
        match self {
            Self::File(source) => Some(source),
            Self::Pipe(_) => None,
        }
    }

    /// Stops the reader of a pipe.
    pub fn close(&self) {
        if let Self::Pipe(stdin) = self {
            stdin.close();
        }
    }

    /// Adds to a fault what it means for a retry by the user.
    pub fn explain(&self, fault: Fault) -> Fault {
        match self {
            Self::File(_) => fault,
            Self::Pipe(_) => {
                let text = "nothing is stored, and a pipe cannot be read again: run all of it anew";
                Fault::new(fault.code, format!("{}; {text}", fault.text))
            }
        }
    }
}

/// A target of verified ranges.
#[derive(Clone)]
pub(crate) enum DataSink {
    File(Arc<DownloadFile>),
    Pipe(StdoutSession),
    /// A range of a file in memory, for a mount.
    Part(Arc<RangeBuffer>),
}

impl DataSink {
    /// Notes the size and times of the source.
    pub fn set_info(&self, info: FileInfo) -> Result<(), Fault> {
        match self {
            Self::File(local_file) => local_file.set_info(info),
            Self::Pipe(stdout) => {
                stdout.set_info(info);
                Ok(())
            }
            Self::Part(_) => Ok(()),
        }
    }

    /// Stores a hole. Returns the digests of its zeros.
    pub fn zero(&self, extent: Extent, size: u64) -> Result<Vec<Digest>, Fault> {
        match self {
            Self::File(local_file) => local_file.target()?.zero(extent, size, |_| Ok(())),
            Self::Pipe(stdout) => {
                let digests = hash_zeros(size, extent);
                stdout.put_zeros(extent, &digests);
                Ok(digests)
            }
            Self::Part(part) => Ok(part.put_zeros(extent, size)),
        }
    }

    /// Removes a partial file, or closes the pipe.
    pub fn discard(&self) {
        match self {
            Self::File(local_file) => local_file.discard(),
            Self::Pipe(stdout) => stdout.close(),
            Self::Part(_) => {}
        }
    }

    /// Ends this session's use: a partial file stays for a later run, a pipe for the next session.
    pub fn suspend(&self) {
        match self {
            Self::File(local_file) => drop(local_file.suspend()),
            Self::Pipe(_) | Self::Part(_) => {}
        }
    }

    /// The target path, for messages.
    pub fn shown(&self) -> String {
        match self {
            Self::File(local_file) => local_file.shown(),
            Self::Pipe(_) | Self::Part(_) => "-".into(),
        }
    }

    /// Adds to a fault what it means for a retry by the user.
    pub fn explain(&self, fault: Fault) -> Fault {
        match self {
            Self::Pipe(stdout) => stdout.explain(fault),
            Self::File(_) | Self::Part(_) => fault,
        }
    }
}
