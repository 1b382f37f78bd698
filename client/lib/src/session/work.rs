//! The pieces of work of a session: files, trees, pipes, and a tree to make
//! equal to another.

use crate::tree_sync::spec::Mirror;
use verbatim_engine::transfer::download::Download;
use verbatim_engine::transfer::local_walk::LocalTree;
use verbatim_engine::transfer::pipe_transfer::{FromPipe, ToPipe};
use verbatim_engine::transfer::remote_scan::RemoteTree;
use verbatim_engine::transfer::upload::Upload;
use verbatim_proto::Fault;

/// Something to copy.
#[derive(Clone)]
pub enum Work {
    /// A file to fetch.
    Download(Download),
    /// A file to send.
    Upload(Upload),
    /// A remote folder and all in it, to fetch.
    DownloadTree(RemoteTree),
    /// A local folder and all in it, to send.
    UploadTree(LocalTree),
    /// A file to write to standard output; the only work of its session.
    ToPipe(ToPipe),
    /// Standard input, to send.
    FromPipe(FromPipe),
    /// A tree to make equal to another; the only work of its session.
    Mirror(Box<Mirror>),
}

impl Work {
    /// Whether another session could go on with it: what came out of a pipe is gone.
    pub(crate) fn can_resume(&self) -> bool {
        match self {
            Self::ToPipe(work) => work.can_resume(),
            Self::FromPipe(_) => false,
            _ => true,
        }
    }

    /// No session will go on with it, for this reason; returns what that means to people.
    pub(crate) fn give_up(&self, fault: Fault) -> Fault {
        let Self::ToPipe(work) = self else { return fault };
        work.give_up(fault)
    }
}
