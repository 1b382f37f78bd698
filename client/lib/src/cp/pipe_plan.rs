//! Plans copies from standard input and to standard output: checks that the options make sense, and
//! turns them into work.

use crate::cp::plan::Plan;
use crate::cp::{CopyOptions, remote};
use crate::session::Session;
use crate::session::command_error::CopyError;
use crate::session::work::Work;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::model::copy_policy::Task;
use verbatim_engine::model::location::{Location, Remote};
use verbatim_engine::transfer::pipe_transfer::{FromPipe, ToPipe};
use verbatim_proto::message::EntryKind;
use verbatim_proto::{Code, Fault};

/// Rejects options that do not apply to a pipe, and more than one source.
pub(crate) fn check(options: &CopyOptions) -> Result<(), CopyError> {
    let usage = |cause: &str, hint: &str| {
        Err(CopyError::Usage { cause: cause.into(), hint: Some(hint.into()) })
    };
    let piped = options.sources.contains(&Location::Pipe) || options.target == Location::Pipe;
    if piped && (options.policy.task != Task::Copy || options.policy.must_stat_target()) {
        return usage(
            "a pipe is only copied: not compared, planned, or left out by what is there",
            "leave out --dry-run, --verify, -n and -u",
        );
    }
    if options.sources.len() == 1 {
        return Ok(());
    }
    if options.sources.contains(&Location::Pipe) {
        return usage("standard input is copied alone", "rdma-cp - HOST:/EXPORT/NAME");
    }
    if options.target == Location::Pipe {
        return usage(
            "standard output takes one file",
            "rdma-cp HOST:/EXPORT/NAME - writes one; give a folder as the target for more",
        );
    }
    Ok(())
}

impl Plan {
    pub(crate) async fn download_to_pipe(
        &mut self,
        options: &CopyOptions,
        session: &mut Session,
    ) -> Result<(), CopyError> {
        for source in options.sources.iter().filter_map(remote) {
            let label = source.to_string();
            let entry = session.stat(&source.path).await?;
            let file = entry.and_then(|entry| match entry.kind {
                EntryKind::File => Ok(entry),
                EntryKind::Folder => {
                    Err(Fault::new(Code::Special, "it is a folder; a pipe takes one file"))
                }
                _ => Err(Fault::new(Code::Special, "it is not a regular file")),
            });
            match file {
                Ok(entry) => {
                    let (remote, size) = (source.path.clone(), entry.size);
                    self.work.push(Work::ToPipe(ToPipe::new(remote, size, label)));
                }
                Err(fault) => self.fail(label, fault),
            }
        }
        Ok(())
    }

    pub(crate) async fn upload_from_pipe(
        &mut self,
        target: &Remote,
        session: &mut Session,
    ) -> Result<(), CopyError> {
        let is_folder = match session.stat(&target.path).await? {
            Ok(entry) => entry.kind == EntryKind::Folder,
            // A missing file may be created; a missing export cannot be.
            Err(fault) if fault.code == Code::NotFound && !target.path.parent().is_root() => false,
            Err(fault) => return Err(ClientError::Fault(fault).into()),
        };
        if is_folder || target.is_folder {
            return Err(CopyError::Usage {
                cause: format!("cannot copy standard input to {target}: it is a folder"),
                hint: Some("a pipe has no name of its own: write HOST:/EXPORT/NAME".into()),
            });
        }
        self.work.push(Work::FromPipe(FromPipe { remote: target.path.clone() }));
        Ok(())
    }
}
