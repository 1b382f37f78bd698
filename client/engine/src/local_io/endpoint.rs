//! The local end of a copy: an `DataSource` that chunks are read from, or a `DataSink`
//! that verified ranges go to. Each is a file or a pipe, and whoever moves data
//! need not know which.

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

/// Where bytes come from.
#[derive(Clone)]
pub(crate) enum DataSource {
    File(Arc<Source>),
    Pipe(Arc<StdinSource>),
}

impl DataSource {
    /// How long it is, as far as is known.
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

    /// Remembers digests that went to the other side, where they may have to be compared.
    pub fn hand_out(&self, extent: Extent, digests: &[Digest]) {
        if let Self::File(source) = self {
            source.hand_out(extent, digests);
        }
    }

    /// Whether what is read now may be remembered for a later run.
    pub fn is_settled(&self) -> bool {
        self.file().is_some_and(|source| source.is_settled())
    }

    /// Whether that has been so ever since it was opened.
    pub fn was_settled(&self) -> bool {
        self.file().is_some_and(|source| !source.is_racy())
    }

    /// Remembers digests for a later run.
    pub fn note(&self, extent: Extent, digests: &[Digest]) {
        if let Self::File(source) = self {
            source.note(extent, digests);
        }
    }

    /// The file, for whoever can send from it.
    pub fn file(&self) -> Option<&Arc<Source>> {
        match self {
            Self::File(source) => Some(source),
            Self::Pipe(_) => None,
        }
    }

    /// Nobody reads it any more.
    pub fn close(&self) {
        if let Self::Pipe(stdin) = self {
            stdin.close();
        }
    }

    /// Says what a failure means to whoever has to begin again.
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

/// Where verified bytes go.
#[derive(Clone)]
pub(crate) enum DataSink {
    File(Arc<DownloadFile>),
    Pipe(StdoutSession),
    /// Of a file that is read here and there.
    Part(Arc<RangeBuffer>),
}

impl DataSink {
    /// The source is known now.
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

    /// Takes a hole; returns the digests of zeros there.
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

    /// Removes what has landed; what went through a pipe has gone.
    pub fn discard(&self) {
        match self {
            Self::File(local_file) => local_file.discard(),
            Self::Pipe(stdout) => stdout.close(),
            Self::Part(_) => {}
        }
    }

    /// Lets go of it: what lasts is there for a later run, and a pipe for the next session.
    pub fn suspend(&self) {
        match self {
            Self::File(local_file) => drop(local_file.suspend()),
            Self::Pipe(_) | Self::Part(_) => {}
        }
    }

    /// Where it is, for people.
    pub fn shown(&self) -> String {
        match self {
            Self::File(local_file) => local_file.shown(),
            Self::Pipe(_) | Self::Part(_) => "-".into(),
        }
    }

    /// Says what a failure means to whoever has to begin again.
    pub fn explain(&self, fault: Fault) -> Fault {
        match self {
            Self::Pipe(stdout) => stdout.explain(fault),
            Self::File(_) | Self::Part(_) => fault,
        }
    }
}
