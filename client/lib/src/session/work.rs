//! The pieces of work of a session: files, trees, pipes, and mirrors. Plans create them, the
//! dispatcher starts them, and their numbers key the ledger.

use crate::tree_sync::spec::Mirror;
use verbatim_engine::transfer::download::Download;
use verbatim_engine::transfer::local_walk::LocalTree;
use verbatim_engine::transfer::pipe_transfer::{FromPipe, ToPipe};
use verbatim_engine::transfer::remote_scan::RemoteTree;
use verbatim_engine::transfer::upload::Upload;
use verbatim_proto::Fault;

/// A piece of work.
#[derive(Clone)]
pub enum Work {
    /// A file to download.
    Download(Download),
    /// A file to upload.
    Upload(Upload),
    /// A remote folder to download with its entries.
    DownloadTree(RemoteTree),
    /// A local folder to upload with its entries.
    UploadTree(LocalTree),
    /// A file to write to standard output; the only work of its session.
    ToPipe(ToPipe),
    /// Standard input, to upload.
    FromPipe(FromPipe),
    /// A tree to mirror; the only work of its session.
    Mirror(Box<Mirror>),
}

impl Work {
    /// Whether another session can resume it: a pipe cannot be read or written twice.
    pub(crate) fn can_resume(&self) -> bool {
        match self {
            Self::ToPipe(work) => work.can_resume(),
            Self::FromPipe(_) => false,
            _ => true,
        }
    }

    /// Ends the work, because no session follows. Adds to the fault what it means for the user.
    pub(crate) fn give_up(&self, fault: Fault) -> Fault {
        let Self::ToPipe(work) = self else { return fault };
        work.give_up(fault)
    }
}
